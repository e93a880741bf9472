"""Runs with depth_size: maps and clouds at the pixels of the videos, static parts steady, resumable."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from page4d.choices import DepthSize, ExistingOutput, Poses, Preprocess, Registration
from page4d.errors import Page4DError, UsageError
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.networks.layers.execution import on_threads
from page4d.networks.network import build_network
from page4d.options import PointOptions, ReconstructSettings
from page4d.output.reader import Output, open_output
from page4d.output.rig_record import RegistrationRecord
from page4d.records import Predictions
from page4d.rig.records import FocalSource, Lens, RigRegistration, placed_record
from page4d.run.plan import plan_run
from page4d.run.predictor import CPU, MeasuredDepth, NetworkPredictor, PredictedChunk
from page4d.run.reconstruct import reconstruct
from page4d.run.scene_evidence import SceneEvidence, evidence_of
from page4d.run.stages import detail
from page4d.scene.batches import FrameBatch
from page4d.scene.content import ViewContent
from page4d.scene.image_file import Image
from page4d.scene.records import Scene
from page4d.stereo.detail import fine_instant
from tests.run.test_network_predictor import TINY
from tests.run.test_reconstruct import resumed, uncalibrated
from tests.synthetic.scenes import maps_on

CAPTURE = SyntheticCapture(seed=11, num_views=3, num_times=5, image_size=(60, 80), spacing_deg=14.0)
NETWORK_SIDE, SIDE = 42, 80
SETTINGS = ReconstructSettings(
    long_side=NETWORK_SIDE,
    depth_size=SIDE,
    chunk=3,
    overlap=1,
    preview=False,
    check_calibration=False,
    points=PointOptions(min_views=0),
)


@dataclass(frozen=True, kw_only=True)
class NoisyTruth(NetworkPredictor):
    """The truth at network pixels, with 2 % of noise, in place of a network's prediction."""

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:  # noqa: ARG002  no memory
        times = [round(float(time) * CAPTURE.fps) for time in batch.times]
        transforms = batch.pixel_transforms
        frames = [[maps_on(CAPTURE, time, view, transforms[view]) for view in range(3)] for time in times]

        def joined(name: str) -> torch.Tensor:
            return torch.stack([torch.stack([frame[name] for frame in row]) for row in frames])[None]

        random = torch.Generator().manual_seed(sum(times))
        depth = joined("depth")
        noise = torch.exp(0.02 * torch.randn(depth.shape, generator=random))
        return PredictedChunk(
            Predictions(
                times=batch.times,
                view_names=batch.view_names,
                scale=CAPTURE.scene().scale,
                pixel_transforms=transforms,
                cameras=batch.cameras,
                images=batch.images,
                valid=batch.valid & (depth > 0),
                depth=depth * noise,
                depth_confidence=torch.full_like(depth, 0.5),
                dynamic=joined("dynamic").to(depth) * 0.9 + 0.02,
            ),
            batch.cameras,
            rig_scale=1.0,
        )


network = cache(lambda: build_network(TINY).eval())


def predictor(settings: ReconstructSettings = SETTINGS) -> NoisyTruth:
    return NoisyTruth(network=network(), device=CPU, settings=settings)


def run(out: Path, existing: ExistingOutput = ExistingOutput.REFUSE, **changes: Any) -> Output:
    reconstruct(CAPTURE.scene(), predictor(), out=out, settings=SETTINGS, existing=existing, **changes)
    return open_output(out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Output:
    return run(tmp_path_factory.mktemp("detail") / "out", layers=True)


def relative_error(output: Output, time: int, view: int) -> float:
    """Return the median relative error of depth at the pixels of the video, of what does not move."""
    frame = CAPTURE.rendered(time, view)
    found = np.asarray(output.depth(time, output.view_names[view]))
    height, width = frame.depth.shape
    row = (np.arange(height) * found.shape[0] // height)[:, None]
    column = np.arange(width) * found.shape[1] // width
    counted = (frame.depth.numpy() > 0) & (found[row, column] > 0) & ~frame.dynamic.numpy()
    true = frame.depth.numpy()
    return float(np.median(np.abs(found[row, column] - true)[counted] / true[counted]))


def test_maps_and_clouds_have_the_pixels_of_the_videos(finished: Output):
    record = finished.run.views[0]
    assert record.map_size == (80, 60)
    assert record.pixel_transform.content_size[0] == NETWORK_SIDE
    assert finished.depth(0, "cam01").shape == (60, 80)
    assert finished.confidence(0, "cam01").shape == (60, 80)
    assert finished.dynamic(0, "cam01").shape == (60, 80)
    assert finished.points(0).num_points > 0.5 * 3 * 60 * 80


def test_depth_is_closer_to_the_truth_than_at_network_pixels(finished: Output, tmp_path: Path):
    coarse = run(tmp_path / "coarse", depth_size=DepthSize.NETWORK)
    assert coarse.depth(0, "cam01").shape == (32, 42)
    errors = [
        np.mean([relative_error(output, time, view) for time in (0, 4) for view in range(3)])
        for output in (coarse, finished)
    ]
    assert errors[1] < 0.7 * errors[0]


def test_depth_between_bars_is_as_close_to_the_truth(finished: Output, tmp_path: Path):
    def barred(render: Callable[[int], Image], index: int) -> Image:
        return np.pad(render(index)[8:-8], ((8, 8), (0, 0), (0, 0)))

    scene = CAPTURE.scene()
    sources = [replace(view.source, render=partial(barred, view.source.render)) for view in scene.views]
    views = tuple(replace(view, source=source) for view, source in zip(scene.views, sources, strict=True))
    reconstruct(replace(scene, views=views), predictor(), out=tmp_path / "out", settings=SETTINGS)
    output = open_output(tmp_path / "out")
    assert output.depth(0, "cam01").shape == (60, 80)
    assert not output.depth(0, "cam01")[[*range(8), *range(52, 60)]].any()
    assert (output.depth(0, "cam01")[10:50] > 0).mean() > 0.9
    errors = [relative_error(one, time, view) for one in (finished, output) for time in (0, 4) for view in range(3)]
    assert np.mean(errors[6:]) < 1.3 * np.mean(errors[:6])


def test_points_have_the_colors_of_the_videos(finished: Output):
    cloud, cameras = finished.points(2), finished.cameras
    pose, matrix = cameras.world_to_camera[2, 0], cameras.intrinsics[2, 0]
    own = cloud.view == 0
    points = torch.from_numpy(cloud.xyz[own]).double() @ pose[:3, :3].T + pose[:3, 3]
    pixels = ((points @ matrix.T)[:, :2] / points[:, 2:]).floor().long()
    image = CAPTURE.rendered(2, 0).image.permute(1, 2, 0)
    expected = image[pixels[:, 1].clamp(0, 59), pixels[:, 0].clamp(0, 79)]
    assert float((expected * 255 - torch.from_numpy(cloud.rgb[own].astype(np.float32))).abs().mean()) < 2.0


def test_static_depth_does_not_change_over_time(finished: Output):
    depths = np.stack([np.asarray(finished.depth(time, "cam02")) for time in range(5)])
    still = ~np.stack([np.asarray(finished.dynamic(time, "cam02")) for time in range(5)]).any(axis=0)
    assert (depths == depths[0]).all(axis=0)[still].mean() > 0.97


def test_layers_have_the_same_resolution(finished: Output):
    assert finished.static_points().num_points > 60 * 80
    moving = finished.moving_points(1)
    assert moving.num_points == int((finished.points(1).dynamic != 0).sum())


def test_pictures_of_wrongly_registered_cameras_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last of the cameras is turned by 6 px; an interrupted run keeps the decision."""
    angle = 6.0 / float(CAPTURE.cameras.intrinsics[0, 2, 0, 0])
    turn = torch.eye(4, dtype=torch.float64)
    turn[:3, :3] = matrix_from_rotation_vector(torch.tensor([angle, 0.0, 0.0], dtype=torch.float64))

    def register(evidence: SceneEvidence, *_: object) -> SceneEvidence:
        views = [view.camera for view in CAPTURE.scene().views if view.camera is not None]
        cameras = [*views[:2], replace(views[2], world_to_camera=turn @ views[2].world_to_camera)]
        lens = Lens(intrinsics=np.eye(3), image_size=(60, 80), focal_source=FocalSource.OPTION)
        placed = [placed_record(name, lens, epipolar_px=3.0) for name in evidence.scene.view_names]
        record = RegistrationRecord(asked=Registration.AUTO, cameras=placed)
        return replace(evidence, registration=RigRegistration(record=record, cameras=cameras), is_pending=False)

    monkeypatch.setattr("page4d.run.reconstruct.register_for_run", register)
    scene = uncalibrated(CAPTURE.scene())
    record = resumed(reconstruct, scene, predictor(), out=tmp_path, instants=2, register="auto")
    found = {pair.views: pair.side for pair in record.fine_depth.pairs}
    assert found == {("cam01", "cam02"): 80, ("cam01", "cam03"): 0, ("cam02", "cam03"): 0}
    assert record.fine_depth.reason.startswith(
        "pictures of 2 of 3 pairs of registered views do not refine depth at 80"
    )


@pytest.mark.parametrize(("chunk", "threads"), [(3, 1), (CAPTURE.num_times, 2)])
def test_a_resumed_run_has_the_same_bytes(
    chunk: int, threads: int, finished: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first two of all instants in one chunk are raised together on two threads: each waits for the other."""
    whole = finished if chunk == 3 else run(tmp_path / "whole", chunk=chunk, layers=True)
    both = Barrier(threads)

    def raised(coarse: Predictions, *others: Any) -> Predictions:
        if coarse.times[0] < 1.5 / CAPTURE.fps:
            both.wait(timeout=60)
        return fine_instant(coarse, *others)

    monkeypatch.setattr(detail, "fine_instant", raised)
    with on_threads(threads):
        again = resumed(run, out=tmp_path / "out", instants=4, chunk=chunk, layers=True)
    for kind in ("depth", "confidence", "dynamic", "points"):
        folder = whole.layout.folder / kind
        names = [path.relative_to(folder) for path in sorted(folder.rglob("*.*"))]
        assert names
        for name in names:
            assert (folder / name).read_bytes() == (again.layout.folder / kind / name).read_bytes(), name


@pytest.mark.parametrize(
    ("size", "long_side", "sides"),
    [
        (DepthSize.NETWORK, 42, (42, 56)),
        (60, 42, (60, 81)),
        (42, 42, (42, 56)),
        (41, 42, None),
        (DepthSize.AUTO, None, (96, 128)),
    ],
)
def test_a_size_is_that_of_the_picture_between_bars(
    size: DepthSize | int, long_side: int | None, sides: tuple[int, int] | None
):
    scene = barred(LARGE.scene(), LARGE.view_names)
    settings = replace(AUTO, long_side=long_side, depth_size=size)
    evidence = evidence_of(scene, settings)
    if sides is None:
        with pytest.raises(UsageError, match="depth_size=41 is below the network's 42 px"):
            plan_run(evidence.scene, predictor(settings), evidence)
        return
    plan = plan_run(evidence.scene, predictor(settings), evidence)
    assert {transform.map_size for transform in plan.map_transforms} == {sides}


def barred(scene: Scene, names: tuple[str, ...]) -> Scene:
    """Return a scene with bars at the sides of some views."""
    area = np.zeros((60, 80), bool)
    area[:, 16:64] = True  # 76 of 128 px
    content = ViewContent(area=area)
    views = (replace(view, content=content) if view.name in names else view for view in scene.views)
    return replace(scene, views=tuple(views))


@pytest.mark.parametrize("preprocess", [Preprocess.PI3, Preprocess.DA3, Preprocess.NATIVE])
def test_bars_do_not_change_the_pictures_of_public_loaders_and_of_sensors(preprocess: Preprocess):
    is_measured, settings = preprocess is Preprocess.NATIVE, replace(AUTO, preprocess=preprocess)
    views = tuple(replace(view, depth=object() if is_measured else None) for view in LARGE.scene().views)
    scenes = [replace(LARGE.scene(), views=views)]
    scenes.append(barred(scenes[0], LARGE.view_names[:1]))
    sensors = [MeasuredDepth(scene, settings) if is_measured else predictor(settings) for scene in scenes]
    whole, cropped = (plan_run(*pair, evidence_of(pair[0], settings)) for pair in zip(scenes, sensors, strict=True))
    assert cropped.transforms == whole.transforms
    assert not is_measured or {place.map_size for place in cropped.map_transforms} == {LARGE.image_size}
    assert [notice.text for notice in cropped.notices] == [notice.text for notice in whole.notices]


def planned(scene: Scene, settings: ReconstructSettings) -> tuple[int, int] | None:
    """Return the (height, width) of the maps of the first view; None for those of the network."""
    found = plan_run(scene, predictor(settings)).fine_transforms
    return None if found is None else found[0].content_size


AUTO = ReconstructSettings(preview=False)
LARGE = replace(CAPTURE, image_size=(96, 128))


@pytest.mark.parametrize(
    ("settings", "change", "size"),
    [
        (AUTO, None, (96, 128)),
        (AUTO, uncalibrated, None),
        (replace(AUTO, poses=Poses.PREDICTED), None, None),
        (replace(AUTO, long_side=42), None, None),
        (replace(AUTO, fuse=False), None, None),
        (replace(AUTO, depth_size=DepthSize.NETWORK), None, None),
        (replace(AUTO, depth_size=DepthSize.VIDEO), uncalibrated, (96, 128)),
        (replace(AUTO, depth_size=80), None, (60, 80)),
        (replace(AUTO, depth_size=4000), None, (96, 128)),
    ],
    ids=["auto", "no cameras", "predicted poses", "size", "no fusion", "network", "video", "number", "above"],
)
def test_the_size_follows_from_cameras_and_settings(
    settings: ReconstructSettings, change: Callable[[Scene], Scene] | None, size: tuple[int, int] | None
):
    scene = LARGE.scene()
    assert planned(scene if change is None else change(scene), settings) == size


def test_the_plan_counts_memory_disk_and_time_of_fine_pixels():
    small, large = (plan_run(LARGE.scene(), predictor(replace(AUTO, depth_size=size))) for size in (80, 120))
    assert large.bytes_on_disk > 2 * small.bytes_on_disk
    peaks = [replace(plan.forecast, used_bytes=0).peak_bytes(3) for plan in (small, large)]
    assert peaks[1] > peaks[0]
    seconds = [plan.forecast.detail_seconds() for plan in (small, large)]
    assert seconds[0] < seconds[1] < (120 / 80) ** 2 * seconds[0]  # a part of the time does not depend on pixels
    assert plan_run(CAPTURE.scene(), predictor(SETTINGS)).max_side == NETWORK_SIDE


def test_a_size_below_that_of_the_network_is_refused():
    with pytest.raises(UsageError, match="depth_size=20 is below the network's 42 px"):
        plan_run(CAPTURE.scene(), predictor(replace(AUTO, depth_size=20, long_side=42)))


def test_measured_depth_keeps_its_pixels():
    views = tuple(replace(view, depth=object()) for view in CAPTURE.scene().views)
    scene = replace(CAPTURE.scene(), views=views)
    with pytest.raises(Page4DError) as error:
        plan_run(scene, MeasuredDepth(scene, replace(AUTO, depth_size=80)))
    assert "depth_size with measured depth" in error.value.message
