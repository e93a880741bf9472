"""Held-out evidence: the start is kept where images do not support the adjusted cameras."""

from dataclasses import replace

import pytest
import torch

from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.records import GroundTruth
from page4d.stereo import refine
from page4d.stereo.bundle_adjustment import Correspondences
from page4d.stereo.refine import run_refinement
from page4d.stereo.state import HeldOutFit, held_out_patches, without_patches
from tests.geometry.geometry_samples import se3_exp
from tests.stereo.synthetic_rigs import FINER, PATCH, filled_depth, refined, true_matches, views_without_matches

SIZE = (96, 128)


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], SceneRequest(num_times=1, num_views=3, image_size=SIZE, spacing_deg=(12, 13)))


@pytest.fixture(scope="module")
def output(truth: GroundTruth) -> NetworkOutput:
    """A prediction with exact matches, of cameras wrong by some degrees and 8 %."""
    twist = 0.08 * torch.randn(2, 1, 3, 6, generator=torch.Generator().manual_seed(0)).double()
    return NetworkOutput(
        world_to_camera=se3_exp(twist) @ truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double() * torch.tensor([1.08, 1.08, 1])[:, None],
        depth=filled_depth(truth),
        depth_confidence=torch.full_like(truth.depth, 2.0),
        matches=true_matches(truth),
    )


def cameras_of(output: NetworkOutput | RigOutput) -> torch.Tensor:
    return torch.cat([output.world_to_camera.flatten(3), output.intrinsics.flatten(3)], dim=-1)


def test_each_scene_keeps_its_start_unless_its_images_support_the_result(truth: GroundTruth, output: NetworkOutput):
    """Images of noise: the matches agree with each other, but nothing in the images does."""
    noise = torch.rand(truth.images.shape[1:], generator=torch.Generator().manual_seed(0))
    images = torch.stack([truth.images[0], noise])
    found = refined(output, images=images)
    assert not torch.equal(cameras_of(found)[0], cameras_of(output)[0])
    assert torch.equal(cameras_of(found)[1], cameras_of(output)[1])
    alone = replace_batch(output, 1)
    unsupported = run_refinement(alone, PATCH, FINER, images=images[1:]).output
    assert torch.equal(cameras_of(unsupported), cameras_of(alone))


def replace_batch(output: NetworkOutput, scene: int) -> RigOutput:
    """Return the output of one scene."""
    one = slice(scene, scene + 1)
    parts = {name: value[one] for name, value in vars(output).items() if isinstance(value, torch.Tensor)}
    matches = replace(
        output.matches, expected=output.matches.expected[one], confidence=output.matches.confidence[one]
    )
    return RigOutput.of(replace(output, **parts, matches=matches))


def test_weak_evidence_supports_poses_but_not_focal_lengths(truth: GroundTruth, output: NetworkOutput, monkeypatch):
    calls: list[Cameras] = []

    def weak(_, __, cameras: Cameras, ___) -> HeldOutFit:
        calls.append(cameras)
        level = torch.full((2,), 2.7 if len(calls) > 1 else 0.0, dtype=torch.float64)
        return HeldOutFit(level, level)

    monkeypatch.setattr(refine, "measure_held_out", weak)
    found = refined(output, images=truth.images)
    assert torch.equal(found.intrinsics, output.intrinsics)
    assert not torch.equal(found.world_to_camera, output.world_to_camera)


def test_what_is_kept_is_reported(truth: GroundTruth, output: NetworkOutput):
    kept = run_refinement(RigOutput.of(output), PATCH, FINER, images=truth.images).kept
    assert kept.poses.tolist() == [True, True]
    assert kept.focal.tolist() == [True, True]


def test_a_fifth_of_the_patches_is_held_out_and_no_neighbours():
    views = views_without_matches([torch.ones(1, 2, *SIZE), torch.ones(1, 2, 64, 48)])
    held = held_out_patches(views, num_times=2)
    assert held.shape == (4, 192)
    assert torch.equal(held[:2], held[2:])
    grid = held[0].reshape(12, 16)
    assert int(grid.sum()) == pytest.approx(192 / 5, abs=1)
    assert not (grid[1:] & grid[:-1]).any()
    assert not (grid[:, 1:] & grid[:, :-1]).any()
    assert not held[1, 48:].any()


def test_held_out_patches_have_no_weight():
    held = torch.tensor([[True, False], [False, False]])
    matches = Correspondences(
        pixels=torch.zeros(1, 2, 2, 2),
        targets=torch.tensor([[1], [0]]),
        positions=torch.zeros(1, 2, 1, 2, 2),
        weight=torch.ones(1, 2, 1, 2),
        sigma_px=1.0,
    )
    assert without_patches(matches, held).weight[0, :, 0].tolist() == [[0, 1], [1, 1]]
