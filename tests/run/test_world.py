"""The world frame and the scale of a result."""

from dataclasses import replace

import pytest
import torch

from page4d.choices import Poses
from page4d.conventions import Scale
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.records import Predictions
from page4d.run.stages.world import World
from tests.run.test_reconstruct import uncalibrated
from tests.run.truth import exact_predictions, random_similarity

CAPTURE = SyntheticCapture(seed=1, num_views=3, num_times=2, image_size=(24, 32))


@pytest.fixture(scope="module")
def truth() -> Predictions:
    return exact_predictions(CAPTURE)


def test_without_a_calibration_the_first_camera_is_the_world_frame(truth: Predictions):
    world = World(uncalibrated(CAPTURE.scene()), Poses.INPUT, predictor_uses_rig=False)
    placed = truth.transformed(world.place_first(truth, None))
    identity = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(placed.cameras.world_to_camera[0, 0, 0], identity, rtol=0, atol=1e-12)
    assert not world.is_fixed
    assert world.scale is Scale.ARBITRARY


def test_a_calibrated_chunk_has_the_rigs_cameras_and_scale(truth: Predictions):
    world = World(CAPTURE.scene(), Poses.INPUT, predictor_uses_rig=False)
    registered, transform = world.register(truth.transformed(random_similarity(2)), truth.cameras)
    torch.testing.assert_close(transform.scale, 1 / random_similarity(2).scale)
    assert world.is_fixed
    assert world.scale is Scale.METRIC
    torch.testing.assert_close(registered.depth, truth.depth, rtol=1e-9, atol=1e-9)
    assert torch.equal(registered.cameras.world_to_camera, truth.cameras.world_to_camera)


def test_predicted_cameras_are_aligned_to_the_rigs_world(truth: Predictions):
    world = World(CAPTURE.scene(), Poses.PREDICTED, predictor_uses_rig=False)
    moved = truth.transformed(random_similarity(4))
    assert world.register(moved, truth.cameras)[0] is moved
    placed = moved.transformed(world.place_first(moved, truth.cameras))
    torch.testing.assert_close(placed.cameras.world_to_camera, truth.cameras.world_to_camera, rtol=0, atol=1e-9)
    torch.testing.assert_close(placed.depth, truth.depth, rtol=1e-9, atol=1e-9)


def test_a_single_static_camera_determines_no_scale():
    capture = SyntheticCapture(seed=1, num_views=1, num_times=2, image_size=(24, 32))
    alone = exact_predictions(capture)
    world = World(capture.scene(), Poses.INPUT, predictor_uses_rig=False)
    world.register(alone.transformed(random_similarity(4)), alone.cameras)
    assert world.lacks_baseline
    assert world.scale is Scale.ARBITRARY


def coinciding(predictions: Predictions) -> Predictions:
    """Put all cameras at the first one, up to rounding."""
    poses = predictions.cameras.world_to_camera
    jitter = 1e-9 * torch.randn(poses.shape[:-2], generator=torch.Generator().manual_seed(0), dtype=poses.dtype)
    first = poses[:, :1, :1].expand_as(poses).clone()
    first[..., 0, 3] += jitter
    return replace(predictions, cameras=replace(predictions.cameras, world_to_camera=first))


def test_a_chunk_without_a_baseline_has_the_scale_of_its_predecessor(truth: Predictions):
    world = World(CAPTURE.scene(), Poses.INPUT, predictor_uses_rig=False)
    halved = truth.transformed(replace(random_similarity(2), scale=torch.tensor(0.5, dtype=torch.float64)))
    world.register(halved, truth.cameras)
    registered, transform = world.register(coinciding(halved), truth.cameras)
    torch.testing.assert_close(registered.depth, truth.depth, rtol=1e-9, atol=1e-9)
    assert float(transform.scale) == pytest.approx(2.0)
    assert world.scale is Scale.METRIC


def test_the_unit_of_length_is_determined_by_the_first_chunk(truth: Predictions):
    world = World(CAPTURE.scene(), Poses.INPUT, predictor_uses_rig=False)
    world.register(coinciding(truth), truth.cameras)
    assert world.scale is Scale.ARBITRARY
    _, transform = world.register(truth.transformed(random_similarity(3)), truth.cameras)
    assert world.scale is Scale.ARBITRARY
    assert float(transform.scale) == 1.0
