"""Depth of a network whose cameras are wrong takes its scale from the agreement of views in the rig."""

from dataclasses import replace

import pytest
import torch

from page4d.choices import Poses, SceneFamily
from page4d.geometry.alignment import agreeing_scale, disagreement_deg
from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SceneRequest, SyntheticCapture, sample_truth
from page4d.records import GroundTruth, Predictions
from page4d.run.stages.world import World
from tests.geometry.geometry_samples import se3_exp
from tests.run.truth import exact_predictions

UNIT = 3.7
TOLERANCE = 0.05
"""Errors for the seeds 0 to 23 were measured up to 3.5 %; without normalization 15 and 23 are the worst ones."""
REQUEST = SceneRequest(family=SceneFamily.RING, num_times=1, num_views=4, image_size=(64, 80))


@pytest.fixture(scope="module", params=[*range(6), 15, 23])
def ring(request: pytest.FixtureRequest) -> GroundTruth:
    return sample_truth([request.param], REQUEST)


def scale_of(truth: GroundTruth, depth: torch.Tensor) -> torch.Tensor | None:
    return agreeing_scale(truth.cameras[0], depth[0].unbind(1), (truth.depth[0] > 0).unbind(1))


def test_exact_depth_has_the_scale_of_the_rig(ring: GroundTruth) -> None:
    assert float(scale_of(ring, ring.depth / UNIT)) / UNIT == pytest.approx(1, rel=TOLERANCE)


def test_cameras_at_one_place_and_missing_depth_give_no_scale(ring: GroundTruth) -> None:
    pose = ring.cameras.world_to_camera.clone()
    pose[..., :3, 3] = 0
    together = replace(ring, cameras=replace(ring.cameras, world_to_camera=pose))
    assert scale_of(together, ring.depth) is None
    assert scale_of(ring, torch.zeros_like(ring.depth)) is None


def wrong(cameras: Cameras, angle: float) -> Cameras:
    """Turn cameras at random, and shrink their distances."""
    twist = (
        angle * torch.randn(*cameras.intrinsics.shape[:-2], 6, generator=torch.Generator().manual_seed(0)).double()
    )
    pose = se3_exp(twist) @ cameras.world_to_camera.double()
    pose[..., :3, 3] *= 0.3
    return replace(cameras, world_to_camera=pose)


def test_wrong_cameras_do_not_set_the_scale_of_a_registered_rig() -> None:
    capture = SyntheticCapture(seed=1, num_views=4, num_times=1, image_size=(48, 64))
    truth: Predictions = exact_predictions(capture)
    known = truth.cameras
    predicted = replace(truth, cameras=wrong(known, 1.0))
    assert disagreement_deg(predicted.cameras.world_to_camera[0], known.world_to_camera[0]) > 15
    noise = 0.03 * torch.randn(truth.depth.shape, generator=torch.Generator().manual_seed(1)).double()
    noisy = replace(predicted, depth=truth.depth * noise.exp() / UNIT)
    placed, transform = World(capture.scene(), Poses.INPUT, predictor_uses_rig=False).register(noisy, known)
    assert float(transform.scale) / UNIT == pytest.approx(1, rel=0.06)
    mask = truth.valid & (truth.depth > 0)
    assert float((placed.depth / truth.depth)[mask].log().abs().median()) < 0.07
    assert torch.equal(placed.cameras.world_to_camera, known.world_to_camera)
