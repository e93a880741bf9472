"""Steps on networks of published architectures lower the losses of everything that they predict."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.transforms import transform_points
from page4d.lab.training import train as steps
from page4d.lab.training.config import SampleShape
from page4d.lab.training.losses import LossConfig, SceneUnit, Targets, losses, targets_of
from page4d.lab.training.state import begin
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import NetworkConfig
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from page4d.run.predictor import CPU
from tests.networks.small_networks import OMEGA_LIKE, SMALL_DA3, SMALL_DA3_MONO, SMALL_DA3_NESTED, SMALL_PI3X
from tests.run.truth import random_similarity
from tests.training.test_losses import truth  # noqa: F401  fixture
from tests.training.test_training_run import one_batch
from tests.training.training_runs import TINY

SMALL_PI3 = replace(SMALL_PI3X, frame_head=replace(SMALL_PI3X.frame_head, conv=None, metric=None))

CAMERAS_AND_DEPTH = {"rotation", "translation", "focal", "depth", "gradient"}
NETWORKS: Mapping[str, tuple[NetworkConfig, set[str]]] = {
    "pi3": (SMALL_PI3, {*CAMERAS_AND_DEPTH, "points"}),
    "pi3x": (SMALL_PI3X, {*CAMERAS_AND_DEPTH, "points"}),
    "da3": (SMALL_DA3, CAMERAS_AND_DEPTH),
    "da3-nested": (SMALL_DA3_NESTED, CAMERAS_AND_DEPTH),
    "da3-mono": (SMALL_DA3_MONO, {"depth", "gradient"}),
    "da3-metric": (replace(SMALL_DA3_MONO, metric_focal=300.0), {"depth", "gradient"}),
    "vggt-omega": (OMEGA_LIKE, CAMERAS_AND_DEPTH),
}
"""Networks, and the parts of their losses."""


VARIANTS = ("pi3", "da3-nested", "da3-mono")
"""Networks whose parts others have: pi3x, da3 and da3-metric."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in NETWORKS]
)
def test_steps_on_published_architectures_lower_the_loss(name: str) -> None:
    network, parts = NETWORKS[name]
    patch = network.patch_size
    shape = SampleShape(times=1, views=3)  # of three views, Depth Anything 3 selects the reference
    stage = replace(TINY.stages[0], shots=(shape,), sizes=((2 * patch, 3 * patch),), images_per_batch=3)
    evaluation = replace(TINY.evaluation, image_size=(2 * patch, 3 * patch))
    optimizer = replace(TINY.optimizer, warmup_steps=0, learning_rate=0.005)
    config = replace(TINY, model=network, stages=(stage,), optimizer=optimizer, evaluation=evaluation)
    state = begin(config, CPU)
    plan, truths = one_batch(config)
    results = [steps.take_step(state.network, state, plan, truths, torch.float32) for _ in range(6)]
    assert all(result.moved for result in results)
    assert set(results[0].losses) == {*parts, "total"}
    assert results[-1].losses["total"] < 0.98 * results[0].losses["total"]


def test_depth_in_metres_is_trained_with_the_true_intrinsics() -> None:
    network = replace(SMALL_DA3_MONO, metric_focal=300.0)
    stage = replace(TINY.stages[0], shots=(SampleShape(times=1, views=2),), sizes=((16, 24),))
    evaluation = replace(TINY.evaluation, image_size=(16, 24))
    config = replace(TINY, model=network, stages=(stage,), evaluation=evaluation)
    state = begin(config, CPU)
    plan, (batch,) = one_batch(config)
    with torch.no_grad():
        output = state.network(batch.images, conditioning=Conditioning(intrinsics=batch.cameras.intrinsics))
        expected = losses(output, batch, LossConfig(unit=SceneUnit.TRUTH))["depth"]
    found = steps.take_step(
        state.network, state, replace(plan, intrinsics_known=False), [batch], torch.float32
    ).losses["depth"]
    assert found == pytest.approx(float(expected), rel=1e-5)


def frame_output(targets: Targets, truth: GroundTruth, seed: int) -> NetworkOutput:  # noqa: F811
    """Return the perfect output of a frame head in another frame and unit."""
    moved = random_similarity(seed)
    poses = moved.apply_to_cameras(targets.cameras.world_to_camera)
    depth = targets.depth * float(moved.scale)
    points = moved.like(targets.points).apply(targets.points)
    ones = torch.ones_like(depth)
    return NetworkOutput(
        world_to_camera=poses,
        camera_to_world=torch.linalg.inv(poses),
        intrinsics=truth.cameras.intrinsics.double(),
        depth=depth,
        depth_confidence=ones,
        points=points,
        points_confidence=ones,
        local_points=transform_points(poses.float(), points),
    )


def test_frame_and_unit_of_a_frame_head_do_not_matter_unless_it_predicts_metres(truth: GroundTruth) -> None:  # noqa: F811
    output = frame_output(targets_of(truth), truth, 3)
    parts = losses(output, truth, LossConfig())
    assert max(float(value) for name, value in parts.items() if name != "total") < 1e-3
    assert float(losses(output, truth, LossConfig(unit=SceneUnit.TRUTH))["depth"]) > 0.1
    in_metres = frame_output(targets_of(truth, SceneUnit.TRUTH), truth, 3)
    exact = replace(in_metres, depth=in_metres.depth / float(random_similarity(3).scale))
    assert float(losses(exact, truth, LossConfig(unit=SceneUnit.TRUTH))["depth"]) < 1e-3


def test_targets_are_in_the_frame_of_the_reference_camera(truth: GroundTruth) -> None:  # noqa: F811
    targets = targets_of(truth, reference=torch.tensor([4]))
    place = targets.cameras.world_to_camera.flatten(1, 2)[0, 4]
    torch.testing.assert_close(place, torch.eye(4, dtype=place.dtype), rtol=0, atol=1e-6)
    world = truth.cameras.world_to_camera.flatten(1, 2)[0, 4].double()
    expected: Tensor = (truth.cameras.world_to_camera.double() @ torch.linalg.inv(world))[..., :3, :3]
    torch.testing.assert_close(targets.cameras.world_to_camera[..., :3, :3], expected, rtol=0, atol=1e-6)
