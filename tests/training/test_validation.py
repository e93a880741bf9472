"""Validation metrics and baselines on scenes with known results."""

import math
from dataclasses import replace

import pytest
import torch

from page4d.choices import SceneFamily
from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.lab.training.validation import (
    MEAN,
    HeldOutScenes,
    baselines,
    counted_pairs,
    evaluate,
    evaluate_all,
    held_out_truths,
    mean_scene,
    measure,
    summarize,
)
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth

SIZE = (4, 6)


def truth(
    turn_deg: float = 20.0, shift: tuple[float, float, float] = (-2.0, 0.0, 0.0), scenes: int = 1
) -> GroundTruth:
    """Two views at two instants, the second turned and shifted; the left half is 2 deep, the right one 4."""
    depth = torch.full((scenes, 2, 2, *SIZE), 2.0)
    depth[..., 3:] = 4.0
    poses = torch.eye(4).repeat(scenes, 2, 2, 1, 1)
    poses[:, :, 1, :3, :3] = matrix_from_rotation_vector(torch.tensor([0.0, math.radians(turn_deg), 0.0]))
    poses[:, :, 1, :3, 3] = torch.tensor(shift)
    intrinsics = torch.tensor([[6.0, 0, 3], [0, 6.0, 2], [0, 0, 1]]).repeat(scenes, 2, 2, 1, 1)
    dynamic = torch.zeros_like(depth, dtype=torch.bool)
    dynamic[..., 0] = True
    return GroundTruth(
        images=torch.zeros(scenes, 2, 2, 3, *SIZE),
        valid=torch.ones_like(dynamic),
        depth=depth,
        dynamic=dynamic,
        cameras=Cameras(world_to_camera=poses, intrinsics=intrinsics, image_size=SIZE),
        times=torch.arange(2.0).expand(scenes, 2),
    )


def metrics(prediction: NetworkOutput, of: GroundTruth):
    return summarize(measure(prediction, of))


def oracle(of: GroundTruth) -> NetworkOutput:
    return NetworkOutput(
        depth=3 * of.depth,
        depth_confidence=torch.ones_like(of.depth),
        world_to_camera=of.cameras.world_to_camera,
        intrinsics=of.cameras.intrinsics,
        dynamic=of.dynamic,
    )


def test_the_truth_at_another_scale_has_no_error():
    found = metrics(oracle(truth()), truth())
    assert [name for name, value in found.items() if value is None] == ["ordering"]
    assert found["abs_rel"] == pytest.approx(0, abs=1e-6)
    assert found["rotation_deg"] == pytest.approx(0, abs=1e-3)
    assert found["direction_deg"] == pytest.approx(0, abs=1e-3)
    assert (found["delta"], found["rra_15"], found["rta_15"], found["focal"], found["mask_iou"]) == (1, 1, 1, 0, 1)


def test_silence_has_no_metrics():
    assert set(metrics(NetworkOutput(), truth()).values()) == {None}


def constant(truth: GroundTruth) -> NetworkOutput:
    """Predict depth 1, identity poses, and that all pixels move."""
    ones = torch.ones_like(truth.depth)
    poses = torch.eye(4, dtype=torch.float64).expand(truth.cameras.world_to_camera.shape)
    return NetworkOutput(depth=ones, world_to_camera=poses, dynamic=ones)


def test_errors_of_constant_depth_and_identity_are_those_of_the_scene():
    found = metrics(constant(truth()), truth())
    assert found["rotation_deg"] == pytest.approx(20, abs=1e-3)
    assert found["direction_deg"] == 180
    assert found["mask_iou"] == pytest.approx(1 / 6)
    # The best single depth for halves of 2 and 4 by absolute error lies between them: (d - 2) / 2 + (4 - d) / 4.
    assert 0.25 - 1e-6 <= found["abs_rel"] <= 0.5 + 1e-6
    assert found["delta"] <= 0.5


def test_the_mean_of_equal_scenes_is_that_scene():
    mean = mean_scene([truth(), truth(scenes=3)])
    found = metrics(mean(truth()), truth())
    assert found["abs_rel"] == pytest.approx(0, abs=1e-6)
    assert found["rotation_deg"] == pytest.approx(0, abs=1e-3)
    assert found["direction_deg"] == pytest.approx(0, abs=1e-3)
    assert found["focal"] == pytest.approx(0, abs=1e-6)


def test_the_mean_scene_averages_log_depth_and_rotations():
    deeper = truth(turn_deg=40)
    mean = mean_scene([truth(), replace(deeper, depth=deeper.depth * 5)])
    assert torch.allclose(mean.log_depth[0, 0, 0].exp() * 3, truth().depth[0, 0, 0, 0].double())
    angle = torch.atan2(mean.world_to_camera[0, 1, 0, 2], mean.world_to_camera[0, 1, 0, 0]).rad2deg()
    assert angle == pytest.approx(30, abs=1e-3)
    assert mean.world_to_camera[0, 1, 0, 3] == pytest.approx(-(2 / 3 + 2 / 15) / 2)


def test_pixels_without_known_depth_are_ignored():
    holes = truth()
    depth = holes.depth.clone()
    depth[..., :2] = 0
    wrong = 3 * holes.depth
    wrong[..., :2] = 77
    assert metrics(NetworkOutput(depth=wrong), replace(holes, depth=depth))["abs_rel"] == pytest.approx(0, abs=1e-6)
    assert mean_scene([replace(holes, depth=depth)]).log_depth[..., 0].abs().max() == 0


def test_pairs_of_one_view_count_for_single_views_only():
    assert counted_pairs(2, 2).tolist() == [True, False, True, True, False, True]
    assert counted_pairs(3, 1).all()


def test_a_static_camera_has_no_pairs():
    still = truth()
    cameras = Cameras(
        world_to_camera=still.cameras.world_to_camera[:, :, :1],
        intrinsics=still.cameras.intrinsics[:, :, :1],
        image_size=SIZE,
    )
    single = GroundTruth(
        images=still.images[:, :, :1],
        valid=still.valid[:, :, :1],
        depth=still.depth[:, :, :1],
        dynamic=None,
        cameras=cameras,
        times=still.times,
    )
    assert metrics(constant(single), single)["rotation_deg"] is None


def test_ordering_is_1_for_perfect_confidence_and_negative_for_inverted_confidence():
    of = truth()
    depth = of.depth.clone()
    depth[..., 0, :] *= 1.5
    error = (depth / of.depth - 1).abs()
    assert metrics(NetworkOutput(depth=depth, depth_confidence=-error), of)["ordering"] == pytest.approx(1, abs=1e-2)
    assert metrics(NetworkOutput(depth=depth, depth_confidence=error), of)["ordering"] < 0


def test_held_out_scenes_are_reproducible_and_evaluated_with_baselines():
    scenes = HeldOutScenes(scenes=2, times=1, views=2, image_size=(16, 24))
    first, second = (list(held_out_truths(scenes, SceneFamily.ARC, torch.device("cpu"))) for _ in range(2))
    assert torch.equal(first[0].images, second[0].images)
    assert first[0].images.shape == (2, 1, 2, 3, 16, 24)
    rows = evaluate_all({"oracle": oracle, **baselines(scenes, SceneFamily.ARC, torch.device("cpu"))}, first)
    assert rows["oracle"]["abs_rel"] < 1e-5 < rows[MEAN]["abs_rel"]
    assert evaluate(oracle, first) == rows["oracle"]
