"""Runs of published networks and preprocessing: chunks, mixed sizes, calibration, cropped and stretched views."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from page4d.choices import Poses, Preprocess
from page4d.conventions import ScaleSource
from page4d.errors import UsageError
from page4d.geometry.camera import pixel_grid, project
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.networks.config import NetworkConfig
from page4d.networks.network import build_network
from page4d.networks.preprocess import place_views
from page4d.options import NetworkOptions, ReconstructSettings
from page4d.output.reader import Output, open_output
from page4d.run.plan import plan_run
from page4d.run.predictor import CPU, NetworkPredictor, PredictedChunk, predictor_for
from page4d.run.reconstruct import reconstruct
from page4d.scene.batches import FrameBatch, open_batches
from page4d.scene.records import PairedFrames
from tests.networks.small_networks import OMEGA_LIKE, SMALL_DA3, SMALL_DA3_NESTED, SMALL_PI3X, fill_zeros
from tests.run.test_mixed_rig import CAPTURE
from tests.run.test_reconstruct import bytes_of, resumed, uncalibrated
from tests.run.truth import TruthPredictor, exact_predictions

pytestmark = pytest.mark.usefixtures("constant_forecast", "few_steps")

STILL = SyntheticCapture(seed=5, num_views=1, num_times=1, image_size=(40, 24))


def depth_at(original: Tensor) -> Tensor:
    """Return the depth of a tilted wall with a step at original pixels."""
    x, y = original.unbind(-1)
    return 2 + 0.01 * x + 0.02 * y + (x > 12.3)


@dataclass
class WallOnCanvas(TruthPredictor):
    """Returns the true depth of the wall at network pixels."""

    multiple: int = 14

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:  # noqa: ARG002  no memory
        truth = exact_predictions(self.capture)
        pixels = batch.pixel_transforms[0]
        grid = pixel_grid(*pixels.canvas_size, dtype=torch.float64)
        depth = depth_at(pixels.to_original(grid))[None, None, None]
        cameras = replace(
            truth.cameras,
            intrinsics=pixels.intrinsics_to_network(truth.cameras.intrinsics),
            image_size=pixels.canvas_size,
        )
        predicted = replace(
            truth,
            images=batch.images,
            valid=batch.valid,
            pixel_transforms=batch.pixel_transforms,
            depth=depth,
            depth_confidence=torch.ones_like(depth),
            dynamic=None,
            cameras=cameras,
        )
        return PredictedChunk(predicted, batch.cameras)


def run(preprocess: Preprocess, out: Path) -> Output:
    settings = ReconstructSettings(preprocess=preprocess, preview=False, check_calibration=False)
    reconstruct(STILL.scene(), WallOnCanvas(STILL), out=out, settings=settings)
    return open_output(out)


@pytest.mark.parametrize("preprocess", [Preprocess.VGGT_CROP, Preprocess.VGGT_PAD, Preprocess.PI3, Preprocess.DA3])
def test_maps_and_cameras_refer_to_the_whole_image(preprocess: Preprocess, tmp_path: Path) -> None:
    output = run(preprocess, tmp_path / "out")
    (transform,) = place_views(preprocess, [STILL.image_size], 0, 14)
    (name,) = output.view_names
    torch.testing.assert_close(output.cameras.intrinsics[0, 0], STILL.cameras.intrinsics[0, 0].double())
    record = output.run.views[0].pixel_transform
    assert (record.left, record.top) == (transform.left, transform.top)

    whole = replace(transform, canvas_size=transform.content_size, left=0, top=0)
    depth = output.depth(0, name)
    truth = depth_at(whole.to_original(pixel_grid(*whole.canvas_size, dtype=torch.float64))).numpy()
    assert depth.shape == truth.shape == transform.content_size
    seen = np.zeros(depth.shape, bool)
    seen[transform.content_rows, transform.content_columns] = True
    assert not depth[~seen].any()
    assert not output.confidence(0, name)[~seen].any()
    assert np.abs(depth - truth)[seen].max() <= 0.0006

    points = torch.from_numpy(output.points(0).xyz).double()
    pixels, _ = project(
        transform_points(output.cameras.world_to_camera[0, 0], points), output.cameras.intrinsics[0, 0]
    )
    on_canvas = transform.to_network(pixels)
    height, width = transform.canvas_size
    assert bool(((on_canvas > 0) & (on_canvas < torch.tensor([width, height]))).all())

    warned = [text for text in output.run.warnings if "--preprocess" in text]
    if preprocess is Preprocess.VGGT_CROP:
        assert warned == ["--preprocess vggt-crop crops 40.3% of cam01: its maps are 0 there"]
    else:
        assert warned == []


def test_maps_of_an_image_that_was_cropped_before_it_was_resized(tmp_path: Path) -> None:
    capture = SyntheticCapture(seed=5, num_views=1, num_times=1, image_size=(61, 24))
    settings = ReconstructSettings(preprocess=Preprocess.VGGT_OMEGA, preview=False, check_calibration=False)
    reconstruct(capture.scene(), WallOnCanvas(capture, multiple=16), out=tmp_path / "out", settings=settings)
    output = open_output(tmp_path / "out")
    (name,) = output.view_names
    torch.testing.assert_close(output.cameras.intrinsics[0, 0], capture.cameras.intrinsics[0, 0].double())
    assert output.run.views[0].pixel_transform.window == (0, 6, 24, 48)
    depth = output.depth(0, name)
    height, width = depth.shape
    assert (height, width) == (round(61 * 720 / 48), 368)
    at = pixel_grid(height, width, dtype=torch.float64) * torch.tensor([24 / width, 61 / height])
    inside = ((at[..., 1] > 6.05) & (at[..., 1] < 53.95)).numpy()
    outside = ((at[..., 1] < 5.95) | (at[..., 1] > 54.05)).numpy()
    near_step = ((at[..., 0] - 12.3).abs() < 0.1).numpy()
    assert not depth[outside].any()
    assert np.abs(depth - depth_at(at).numpy())[inside & ~near_step].max() <= 0.003
    (warning,) = [text for text in output.run.warnings if "--preprocess" in text]
    assert warning == "--preprocess vggt-omega crops 21.3% of cam01: its maps are 0 there"


def test_a_stretched_view_is_reported() -> None:
    scene = STILL.scene()
    tall = scene.views[0]
    wide = replace(SyntheticCapture(seed=5, num_views=1, num_times=1, image_size=(24, 40)).scene().views[0], name="b")
    both = replace(scene, views=(tall, wide))
    predictor = WallOnCanvas(STILL, settings=ReconstructSettings(preprocess=Preprocess.PI3))
    (notice,) = plan_run(both, predictor).notices
    assert notice.text == "preprocess='pi3' stretches b by 2.74 along one side"


def test_a_size_with_published_preprocessing_is_refused() -> None:
    with pytest.raises(UsageError, match="long_side=300 with preprocess='pi3'"):
        ReconstructSettings(long_side=300, preprocess=Preprocess.PI3)


NETWORKS: Mapping[str, NetworkConfig] = {
    "da3": SMALL_DA3,
    "da3-nested": SMALL_DA3_NESTED,
    "pi3x": SMALL_PI3X,
    "vggt-omega": OMEGA_LIKE,
}
TAKE_CAMERAS = ("da3", "da3-nested", "pi3x")
METRIC = ("da3-nested", "pi3x")


@cache
def predictor_of(name: str) -> NetworkPredictor:
    torch.manual_seed(0)
    network = fill_zeros(build_network(NETWORKS[name]).eval())
    side = 3 * network.config.patch_size
    settings = ReconstructSettings(chunk=4, overlap=2, long_side=side, preview=False, check_calibration=False)
    return NetworkPredictor(network=network, device=CPU, settings=settings)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_of_several_chunks_is_in_the_frame_of_the_first_camera(name: str, tmp_path: Path) -> None:
    scene, predictor = uncalibrated(CAPTURE.scene()), predictor_of(name)
    record = reconstruct(scene, predictor, out=tmp_path / "whole")
    assert [(chunk.start, chunk.stop) for chunk in record.chunks] == [(0, 4), (2, 6)]
    assert record.scale_source is (ScaleSource.NETWORK if name in METRIC else None)
    first = open_output(tmp_path / "whole").cameras.world_to_camera[0, 0]
    torch.testing.assert_close(first, torch.eye(4, dtype=first.dtype), rtol=0, atol=1e-6)
    if name == "da3":
        resumed(reconstruct, scene, predictor, out=tmp_path / "parts", instants=3)
        assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("name", TAKE_CAMERAS)
def test_a_calibrated_run_has_the_cameras_of_the_rig(name: str, tmp_path: Path) -> None:
    reconstruct(CAPTURE.scene(), predictor_of(name), out=tmp_path / "out")
    found = open_output(tmp_path / "out").cameras.world_to_camera
    for view in range(CAPTURE.num_views):
        assert torch.equal(found[:, view], CAPTURE.cameras_of(view).world_to_camera.double())


@pytest.mark.parametrize("name", NETWORKS)
def test_calibrated_cameras_condition_networks_that_take_them_unless_poses_are_predicted(name: str) -> None:
    predictor = predictor_of(name)
    with open_batches(CAPTURE.scene(), 3 * predictor.multiple, predictor.multiple) as reader:
        batch = reader.read(0, 2)
    for poses in Poses:
        chosen = predictor.with_settings(replace(predictor.settings, poses=poses))
        given, without = (chosen.predict(each).predictions.depth for each in (batch, replace(batch, cameras=None)))
        assert torch.equal(given, without) != (poses is Poses.INPUT and name in TAKE_CAMERAS)


def test_measured_depth_is_an_input_of_networks_that_take_it() -> None:
    for name in NETWORKS:
        predictor = predictor_of(name)
        with open_batches(CAPTURE.scene(), 3 * predictor.multiple, predictor.multiple) as reader:
            batch = reader.read(0, 2)
        measured = 1 + torch.rand(batch.valid.shape, generator=torch.Generator().manual_seed(0))
        given, empty, without = (
            predictor.predict(replace(batch, depth=depth)).predictions.depth
            for depth in (measured, torch.zeros_like(measured), None)
        )
        assert torch.equal(empty, without)
        assert torch.equal(given, without) == (name != "pi3x")


def test_depth_with_a_network_that_takes_none_is_refused() -> None:
    scene = CAPTURE.scene()
    view = scene.views[0]
    frames = PairedFrames(frames=view.source, indices=view.indices)
    with_depth = replace(scene, views=(replace(view, depth=frames), *scene.views[1:]))
    options = NetworkOptions(untrained=True, preset="mv-tiny")
    with pytest.raises(UsageError, match="depth with a network that takes no depth"):
        predictor_for(with_depth, options, ReconstructSettings())
