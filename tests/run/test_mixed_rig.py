"""A rig of one portrait and three landscape cameras of different image sizes."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from page4d.choices import CameraMotion
from page4d.conventions import Scale
from page4d.geometry.camera import Cameras, project
from page4d.geometry.pixels import PixelTransform, Size, fit_views
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.networks.config_parts import SparseConfig
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.options import ReconstructSettings
from page4d.output.reader import Output, open_output
from page4d.records import Predictions
from page4d.run.memory import Extent, NetworkCost
from page4d.run.plan import plan_run
from page4d.run.predictor import CPU, NetworkPredictor, PredictedChunk
from page4d.run.reconstruct import reconstruct
from page4d.scene.batches import FrameBatch, open_placed_batches
from tests.run.truth import TruthPredictor, random_similarity
from tests.synthetic.scenes import maps_on

MULTIPLE = 4
CANVASES = ((40, 24), (24, 40), (32, 40), (20, 40))
"""Canvases of the sizes below at a long side of 40 px in multiples of 4."""


@dataclass(frozen=True, kw_only=True)
class MixedCapture(SyntheticCapture):
    view_sizes = ((40, 23), (24, 40), (30, 40), (9, 20))


CAPTURE = MixedCapture(seed=3, num_views=4, num_times=6)


@dataclass
class MixedTruth(TruthPredictor):
    """Returns the ground truth on each view's own canvas, in a random world and unit per chunk."""

    multiple: int = MULTIPLE
    takes_mixed_sizes: bool = True

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:  # noqa: ARG002
        start = int(torch.searchsorted(torch.from_numpy(self.capture.times), batch.times[0] - 1e-6))
        stop = start + len(batch.times)
        self.calls.append((start, stop))
        height, width = batch.images.shape[-2:]
        depth, poses, lenses = [], [], []
        for view, pixels in enumerate(batch.pixel_transforms):
            own = torch.stack([maps_on(self.capture, time, view, pixels)["depth"] for time in range(start, stop)])
            below, right = height - pixels.canvas_size[0], width - pixels.canvas_size[1]
            depth.append(functional.pad(own, (0, right, 0, below), value=7.0))
            cameras = self.capture.cameras_of(view)[start:stop]
            poses.append(cameras.world_to_camera)
            lenses.append(pixels.intrinsics_to_network(cameras.intrinsics))
        depths = torch.stack(depth, dim=1)[None].double()
        predicted = Predictions(
            times=batch.times,
            view_names=batch.view_names,
            scale=Scale.ARBITRARY,
            pixel_transforms=batch.pixel_transforms,
            cameras=Cameras(
                world_to_camera=torch.stack(poses, dim=1)[None],
                intrinsics=torch.stack(lenses, dim=1)[None],
                image_size=(height, width),
            ),
            images=batch.images,
            valid=batch.valid & (depths > 0),
            depth=depths,
            depth_confidence=torch.ones_like(depths),
        )
        return PredictedChunk(self.disturb(start, predicted.transformed(random_similarity(start + 1))), batch.cameras)


def run(out: Path, *, calibrated: bool, motion: CameraMotion = CameraMotion.AUTO) -> Output:
    scene = CAPTURE.scene()
    if not calibrated:
        scene = replace(scene, views=tuple(replace(view, camera=None) for view in scene.views), calibration=None)
    settings = ReconstructSettings(chunk=4, overlap=2, camera_motion=motion, preview=False, check_calibration=False)
    reconstruct(scene, MixedTruth(CAPTURE), out=out, settings=settings)
    return open_output(out)


def fitted(sizes: list[Size]) -> tuple[PixelTransform, ...]:
    return tuple(fit_views([size], 40, MULTIPLE)[0] for size in sizes)


def test_every_view_has_its_own_canvas_and_aspect_ratio() -> None:
    sizes = list(CAPTURE.view_sizes)
    placed = fitted(sizes)
    assert tuple(view.canvas_size for view in placed) == CANVASES
    for view, size in zip(placed, sizes, strict=True):
        assert max(view.content_size) == 40
        assert view.share_cut == 0
        assert abs(view.content_size[0] * size[1] / (view.content_size[1] * size[0]) - 1) < 0.03


def test_views_are_placed_at_the_top_left_of_a_common_canvas_and_are_invalid_elsewhere() -> None:
    with open_placed_batches(CAPTURE.scene(), fitted(list(CAPTURE.view_sizes))) as reader:
        mixed = reader.read(0, 1)
    assert mixed.images.shape == (1, 1, 4, 3, 40, 40)
    for view, pixels in enumerate(mixed.pixel_transforms):
        alone = replace(CAPTURE.scene(), views=CAPTURE.scene().views[view : view + 1])
        with open_placed_batches(alone, (pixels,)) as reader:
            own = reader.read(0, 1)
        height, width = pixels.canvas_size
        assert torch.equal(mixed.images[:, :, view, :, :height, :width], own.images[:, :, 0])
        assert torch.equal(mixed.valid[:, :, view, :height, :width], own.valid[:, :, 0])
        assert int(mixed.valid[:, :, view].sum()) == int(own.valid.sum())
        assert torch.equal(mixed.cameras.intrinsics[:, :, view], own.cameras.intrinsics[:, :, 0])


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_mixed_rig_is_reconstructed_exactly_over_chunks(calibrated: bool, tmp_path: Path) -> None:
    output = run(tmp_path / "out", calibrated=calibrated)
    assert len(output.run.chunks) == 2
    assert all(chunk.seam is None or chunk.seam.residual_share < 1e-3 for chunk in output.run.chunks)
    assert output.cameras.image_sizes == CAPTURE.view_sizes
    true = [CAPTURE.cameras_of(view) for view in range(4)]
    found = output.cameras.world_to_camera
    apart = [
        (poses[0, 1, :3, 3] - poses[0, 0, :3, 3]).norm()
        for poses in (found @ torch.linalg.inv(found[:1, :1]), _relative(true))
    ]
    scale = float(apart[0] / apart[1])
    if calibrated:
        assert scale == pytest.approx(1, abs=1e-6)
    for view, name in enumerate(output.view_names):
        torch.testing.assert_close(output.cameras.intrinsics[:, view], true[view].intrinsics, rtol=1e-5, atol=1e-4)
        pixels = fit_views([CAPTURE.view_sizes[view]], 40, MULTIPLE)[0]
        whole = replace(pixels, canvas_size=pixels.content_size, left=0, top=0)
        for time in (0, CAPTURE.num_times - 1):
            truth = scale * maps_on(CAPTURE, time, view, whole)["depth"].numpy()
            depth = output.depth(time, name)
            assert depth.shape == output.confidence(time, name).shape == pixels.content_size
            seen = (truth > 0) & (depth > 0)
            assert seen.mean() > 0.5
            assert np.abs(depth - truth)[seen].max() < 2e-3 * truth.max()


def _relative(cameras: list[Cameras]) -> torch.Tensor:
    poses = torch.stack([camera.world_to_camera for camera in cameras], dim=1)
    return poses @ torch.linalg.inv(poses[:1, :1])


def test_points_of_a_mixed_rig_project_into_their_images(tmp_path: Path) -> None:
    output = run(tmp_path / "out", calibrated=True, motion=CameraMotion.STATIC)
    cloud = output.points(0)
    for view, (height, width) in enumerate(CAPTURE.view_sizes):
        points = torch.from_numpy(cloud.xyz[cloud.view == view]).double()
        assert len(points) > 100
        local = transform_points(output.cameras.world_to_camera[0, view], points)
        pixels, depth = project(local, output.cameras.intrinsics[0, view])
        assert bool((depth > 0).all())
        slack = 1e-3
        assert bool((pixels > -slack).all() & (pixels < torch.tensor([width, height]) + slack).all())


def test_a_network_for_images_of_one_size_gets_one_canvas() -> None:
    torch.manual_seed(0)
    tiny = PRESETS["mv-tiny"]
    settings = ReconstructSettings(long_side=42, chunk=2, overlap=1)
    canvases = []
    for config in (tiny, replace(tiny, sparse=SparseConfig(layers=(3,)))):
        predictor = NetworkPredictor(network=build_network(config).eval(), device=CPU, settings=settings)
        plan = plan_run(CAPTURE.scene(), predictor)
        canvases.append({transform.canvas_size for transform in plan.transforms})
    assert canvases == [{(42, 28), (28, 42), (42, 42)}, {(42, 42)}]


def test_the_work_of_a_mixed_rig_is_that_of_its_patches_without_padding() -> None:
    cost = NetworkCost(config=PRESETS["mv-tiny"], device=CPU)
    uniform, padded = (Extent(times=3, views=2, size=(height, 42)) for height in (28, 42))
    mixed = replace(padded, own_sizes=((28, 42), (42, 28)))
    assert cost.tflop(mixed) == pytest.approx(cost.tflop(uniform), rel=0.01)
    assert cost.tflop(padded) > 1.3 * cost.tflop(mixed)
