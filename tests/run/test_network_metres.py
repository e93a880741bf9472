"""Metres that a network estimates, and networks that predict depth and no cameras."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.choices import CameraMotion, Poses
from page4d.conventions import Scale, ScaleSource
from page4d.errors import UsageError
from page4d.geometry.transforms import Sim3
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.records import Predictions
from page4d.run.plan import plan_run
from page4d.run.predictor import CPU, NetworkPredictor
from page4d.run.reconstruct import reconstruct
from page4d.scene.batches import open_placed_batches
from page4d.scene.records import Scene
from tests.run.test_reconstruct import CAPTURE, SETTINGS, bytes_of, resumed, uncalibrated
from tests.run.truth import TruthPredictor

TINY = PRESETS["mv-tiny"]
ALONE = SyntheticCapture(seed=1, num_views=1, num_times=2, image_size=(28, 42))


def with_metres(factor: float) -> Callable[[int, Predictions], Predictions]:
    """Return predictions in metres that are wrong by a constant factor, and another one per chunk."""

    def disturb(start: int, predictions: Predictions) -> Predictions:
        scale = torch.tensor(factor * (1 + 0.02 * start), dtype=torch.float64)
        moved = predictions.transformed(replace(Sim3.identity(), scale=scale))
        return replace(moved, scale=Scale.METRIC)

    return disturb


def metric_predictor(factor: float = 1.0) -> TruthPredictor:
    return TruthPredictor(CAPTURE, with_metres(factor), scale=Scale.METRIC)


@pytest.mark.parametrize("motion", [CameraMotion.STATIC, CameraMotion.MOVING])
def test_later_chunks_are_scaled_to_the_metres_of_the_first_one(tmp_path: Path, motion: CameraMotion):
    scene, settings = uncalibrated(CAPTURE.scene()), replace(SETTINGS, camera_motion=motion)
    record = reconstruct(scene, metric_predictor(), out=tmp_path / "out", settings=settings)
    assert (record.scale, record.scale_source, record.depth_scale) == (Scale.METRIC, ScaleSource.NETWORK, 1000.0)
    output = open_output(tmp_path / "out")
    for view, name in enumerate(output.view_names):
        assert np.abs(output.depth(8, name) - CAPTURE.rendered(8, view).depth.numpy()).max() <= 0.0006
    assert [chunk.transform.scale for chunk in record.chunks if chunk.transform] == pytest.approx(
        [1 / (1 + 0.02 * chunk.start) for chunk in record.chunks], rel=1e-4
    )
    (warning,) = [text for text in record.warnings if "metres" in text]
    assert "by up to a factor of 1.1" in warning
    if motion is CameraMotion.MOVING:
        return
    again = resumed(reconstruct, scene, metric_predictor(), out=tmp_path / "two", instants=5, settings=settings)
    assert again.scale_source is ScaleSource.NETWORK
    assert bytes_of(tmp_path / "two") == bytes_of(tmp_path / "out")


def test_a_calibration_and_a_known_distance_replace_the_metres_of_the_network(tmp_path: Path):
    apart = float((CAPTURE.cameras.centers[0, 0] - CAPTURE.cameras.centers[0, 1]).norm())
    unitless = replace(CAPTURE.scene(), scale=Scale.ARBITRARY)
    cases = (
        (CAPTURE.scene(), None, ScaleSource.CALIBRATION),
        (unitless, f"cam01-cam02={apart:.9f}m", ScaleSource.DISTANCE),
        (uncalibrated(CAPTURE.scene()), f"cam01-cam02={apart:.9f}m", ScaleSource.DISTANCE),
        (unitless, None, None),
    )
    for number, (scene, distance, source) in enumerate(cases):
        settings = replace(SETTINGS, chunk=9, scale_from=distance)
        record = reconstruct(scene, metric_predictor(1.5), out=tmp_path / str(number), settings=settings)
        assert record.scale_source is source
        depth = open_output(tmp_path / str(number)).depth(8, "cam01")
        tolerance = 0.6 / record.depth_scale
        assert np.abs(depth - CAPTURE.rendered(8, 0).depth.numpy()).max() <= tolerance


def test_one_calibrated_camera_has_the_metres_of_the_network(tmp_path: Path):
    settings = replace(SETTINGS, chunk=2, overlap=0)
    predictor = TruthPredictor(ALONE, with_metres(1.0), scale=Scale.METRIC)
    record = reconstruct(ALONE.scene(), predictor, out=tmp_path / "out", settings=settings)
    assert record.scale_source is ScaleSource.NETWORK
    assert not [text for text in record.warnings if "baseline" in text]


@pytest.fixture(scope="module")
def depth_only() -> NetworkPredictor:
    torch.manual_seed(0)
    network = build_network(replace(TINY, camera_head=None, point_head=None)).eval()
    return NetworkPredictor(network=network, device=CPU, settings=ReconstructSettings(preview=False))


def test_a_network_without_a_camera_head_has_the_calibrated_cameras(depth_only: NetworkPredictor, tmp_path: Path):
    record = reconstruct(ALONE.scene(), depth_only, out=tmp_path / "out")
    found = open_output(tmp_path / "out").cameras
    assert torch.equal(found.world_to_camera, ALONE.cameras.world_to_camera.double())
    torch.testing.assert_close(found.intrinsics, ALONE.cameras.intrinsics.double())
    assert record.scale is Scale.ARBITRARY
    assert record.calibration_residuals is None


@pytest.fixture(scope="module")
def single_image() -> NetworkPredictor:
    """Return a network like da3-metric whose depth is 2 m at a focal length of 300 px; it predicts no sky."""
    levels = (0, 1, 2, 3)
    config = replace(
        PRESETS["da3-metric"],
        encoder=replace(PRESETS["da3-metric"].encoder, embed_dim=32, num_heads=2, depth=4, levels=levels),
        num_heads=2,
        depth_head=replace(PRESETS["da3-metric"].depth_head, layers=levels, features=16, out_channels=(8, 8, 8, 8)),
        default_long_side=42,
    )
    torch.manual_seed(0)
    network = build_network(config).eval()
    with torch.no_grad():
        network.depth_head.out_conv2.weight.zero_()
        network.depth_head.out_conv2.bias.fill_(math.log(2))
        network.depth_head.sky[2].weight.abs_()
        network.depth_head.sky[2].bias.fill_(-100)
    return NetworkPredictor(network=network, device=CPU, settings=ReconstructSettings(preview=False))


def test_a_metric_single_image_network_scales_with_the_focal_lengths(single_image: NetworkPredictor, tmp_path: Path):
    assert single_image.default_long_side == 42
    record = reconstruct(CAPTURE.scene(), single_image, out=tmp_path / "out", fuse=False)
    assert (record.scale, record.scale_source) == (Scale.METRIC, ScaleSource.CALIBRATION)
    output = open_output(tmp_path / "out")
    torch.testing.assert_close(output.cameras.world_to_camera, CAPTURE.cameras.world_to_camera.double())
    for view, name in enumerate(output.view_names):
        lens = output.intrinsics_at_maps(name)[0]
        expected = 2 * float(lens[0, 0] + lens[1, 1]) / 2 / 300
        depth = output.depth(0, name)
        assert depth.max() == pytest.approx(expected, abs=0.001)
        assert np.unique(depth[depth > 0]).size == 1, view


def test_the_sky_has_no_depth(single_image: NetworkPredictor):
    scene = CAPTURE.scene()
    plan = plan_run(scene, single_image)
    with open_placed_batches(scene, plan.transforms) as reader:
        batch = reader.read(0, 2)
    predictor, size = deepcopy(single_image), batch.images.shape[-2:]
    bias = predictor.network.depth_head.sky[2].bias.data
    bias.zero_()
    bias.fill_(0.3 - float(predictor.run(batch).on_canvas(size).sky[batch.valid].median()))
    in_sky = predictor.run(batch).on_canvas(size).sky >= 0.3
    found = predictor.predict(batch).predictions
    assert 0.4 < in_sky[batch.valid].float().mean() < 0.6
    assert torch.equal(found.valid, batch.valid & ~in_sky)
    assert bool((found.depth_confidence == 1).all())
    bias.fill_(1)  # all is sky
    assert torch.equal(predictor.predict(batch).predictions.valid, batch.valid)


@pytest.mark.parametrize(
    ("scene", "poses", "message"),
    [
        (uncalibrated(ALONE.scene()), Poses.INPUT, "predicts depth and no cameras"),
        (ALONE.scene(), Poses.PREDICTED, "poses='predicted' with a network that predicts no cameras"),
        (CAPTURE.scene(), Poses.INPUT, "depth of every image in a unit of its own"),
    ],
)
def test_cameras_that_do_not_fit_a_network_without_a_camera_head_are_refused(
    depth_only: NetworkPredictor, scene: Scene, poses: Poses, message: str
):
    with pytest.raises(UsageError, match=message) as caught:
        plan_run(scene, depth_only.with_settings(ReconstructSettings(poses=poses)))
    assert ("da3-metric" in caught.value.hint) == (scene.num_views > 1)


def test_metres_need_a_calibration_with_a_unit(single_image: NetworkPredictor):
    with pytest.raises(UsageError, match="the unit of the calibration is unknown"):
        plan_run(replace(CAPTURE.scene(), scale=Scale.ARBITRARY), single_image)
