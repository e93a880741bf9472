"""Runs with layers: static points once, moving points of every instant, resumable, or a reason why there are none."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from page4d.choices import CameraMotion, ExistingOutput
from page4d.formats.ply import read_ply
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.options import PointOptions, ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import RunRecord
from page4d.records import Predictions
from page4d.run.plan import plan_run
from page4d.run.reconstruct import reconstruct
from page4d.run.stages.clean import first_background
from page4d_cli.app import run as command
from tests.run.test_reconstruct import bytes_of, resumed, uncalibrated
from tests.run.test_settings_act import write_inputs
from tests.run.truth import TruthPredictor, exact_predictions

CAPTURE = SyntheticCapture(seed=5, num_views=2, num_times=5, image_size=(24, 32))
SETTINGS = ReconstructSettings(
    chunk=3, overlap=1, preview=False, check_calibration=False, layers=True, points=PointOptions(edge_angle_deg=90)
)

Disturb = Callable[[int, Predictions], Predictions]


def moving(_: int, predictions: Predictions) -> Predictions:
    """Move an upright strip of the first view, from left to right."""
    dynamic = torch.zeros_like(predictions.depth, dtype=torch.float32)
    for place, time in enumerate(predictions.times.tolist()):
        left = 4 * int(np.searchsorted(CAPTURE.times, time - 1e-6))
        dynamic[:, place, 0, :, left : left + 4] = 1.0
    return replace(predictions, dynamic=dynamic)


def without_motion(_: int, predictions: Predictions) -> Predictions:
    return replace(predictions, dynamic=None)


def run(
    out: Path,
    existing: ExistingOutput = ExistingOutput.REFUSE,
    disturb: Disturb = moving,
    capture: SyntheticCapture = CAPTURE,
    **changes: Any,
) -> RunRecord:
    predictor = TruthPredictor(capture, disturb)
    return reconstruct(capture.scene(), predictor, out=out, settings=SETTINGS, existing=existing, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layers") / "out"
    run(out)
    return out


def test_layers_together_are_the_merged_clouds_up_to_thinning(finished: Path) -> None:
    output = open_output(finished)
    assert output.has_layers
    static = output.static_points()
    assert output.run.layers.static_points == static.num_points
    assert not static.dynamic.any()
    assert output.run.counts.points == sum(output.points(index).num_points for index in range(5))
    for index in range(5):
        merged, moved = output.points(index), output.moving_points(index)
        assert np.array_equal(moved.xyz, merged.xyz[merged.dynamic != 0])
        assert moved.num_points == 24 * 4
    # At the first instant the background is known but for the strip, and has the exact depth.
    merged = output.points(0)
    spacing = 3 * np.median(cKDTree(merged.xyz).query(merged.xyz, k=2)[0][:, 1])
    distance, _ = cKDTree(static.xyz).query(merged.xyz[merged.dynamic == 0])
    assert np.quantile(distance, 0.98) < spacing
    # What the strip hides at the first instant is in the layer, from another instant.
    hidden = static.xyz[static.view == 0]
    distance, _ = cKDTree(hidden).query(output.moving_points(0).xyz)
    assert np.median(distance) < spacing


def test_merged_clouds_and_maps_do_not_depend_on_layers(finished: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", layers=False)
    plain, layered = bytes_of(tmp_path / "out"), bytes_of(finished)
    assert plain.items() < layered.items()
    assert layered.keys() - plain.keys() == {
        "points/static.ply",
        *(f"points/moving/frame_{index:06d}.ply" for index in range(5)),
    }
    assert not open_output(tmp_path / "out").has_layers


@pytest.mark.parametrize("instants", [0, 2, 4])
def test_a_resumed_run_writes_the_same_layers(finished: Path, instants: int, tmp_path: Path) -> None:
    assert resumed(run, out=tmp_path / "out", instants=instants).layers == open_output(finished).run.layers
    assert bytes_of(tmp_path / "out") == bytes_of(finished)


@pytest.mark.parametrize("name", ["points/static.ply", "points/moving/frame_000003.ply"])
def test_resuming_restores_a_layer_that_was_deleted_or_changed(finished: Path, name: str, tmp_path: Path) -> None:
    for change in (Path.unlink, lambda path: path.write_bytes(b"ply")):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        run(out)
        change(out / name)
        run(out, ExistingOutput.RESUME)
        assert bytes_of(out) == bytes_of(finished)


def test_static_points_are_written_once(finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from page4d.output import instant

    written = []
    write = instant.write_cloud

    def noted(path: Path, *rest: object, **options: object) -> object:
        written.append(path.name)
        return write(path, *rest, **options)

    monkeypatch.setattr(instant, "write_cloud", noted)
    resumed(run, out=tmp_path / "out", instants=4)
    assert written.count("static.ply") == 1
    assert bytes_of(tmp_path / "out") == bytes_of(finished)


def test_a_run_with_layers_is_not_continued_without_them(finished: Path) -> None:
    with pytest.raises(Exception, match="differs: layers"):
        run(finished, ExistingOutput.RESUME, layers=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disturb": without_motion}, "there are no motion masks, neither predicted nor given"),
        ({"capture": replace(CAPTURE, num_times=1), "chunk": None, "disturb": without_motion}, "one instant"),
        ({"poses": "predicted", "camera_motion": CameraMotion.MOVING}, "no camera stands still"),
    ],
    ids=["no masks", "one instant", "moving cameras"],
)
def test_a_run_that_cannot_have_layers_says_why(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    record = run(tmp_path / "out", **changes)
    assert [text for text in record.warnings if "--layers" in text and reason in text]
    assert record.layers is None
    assert record.status == "complete"
    assert sorted(path.name for path in (tmp_path / "out" / "points").iterdir()) == [
        f"frame_{index:06d}.ply" for index in range(len(record.times))
    ]


@pytest.mark.usefixtures("open3d")
def test_with_layers_the_static_surface_is_written_once_and_the_moving_one_at_every_instant(tmp_path: Path) -> None:
    out = tmp_path / "out"
    resumed(run, out=out, instants=2, mesh=True)
    assert sorted(str(path.relative_to(out / "mesh")) for path in (out / "mesh").rglob("*.ply")) == [
        *(f"moving/frame_{index:06d}.ply" for index in range(5)),
        "static.ply",
    ]
    run(tmp_path / "whole", mesh=True)
    assert bytes_of(out) == bytes_of(tmp_path / "whole")
    run(tmp_path / "plain", mesh=True, layers=False)
    assert sorted(
        str(path.relative_to(tmp_path / "plain/mesh")) for path in (tmp_path / "plain/mesh").rglob("*")
    ) == [f"frame_{index:06d}.ply" for index in range(5)]


def test_the_plan_counts_layers() -> None:
    def planned(**settings: object) -> int:
        chosen = replace(SETTINGS, **settings)
        return plan_run(CAPTURE.scene(), TruthPredictor(CAPTURE, settings=chosen)).bytes_on_disk

    pixels = 2 * 24 * 32
    assert planned() - planned(layers=False) == (CAPTURE.num_times + 1) * pixels * 21
    assert planned(mesh=True) - planned(mesh=True, layers=False) > planned() - planned(layers=False)


def test_the_background_is_the_static_depth_of_the_static_views() -> None:
    truth = moving(0, exact_predictions(CAPTURE))
    still = truth.depth[:, :1].expand_as(truth.depth)
    depth = still.clone()
    depth[truth.dynamic > 0.5] = 0.1  # something passes in front
    depth[:, 1] = torch.where(truth.dynamic[:, 1] > 0.5, depth[:, 1], 3 * depth[:, 1])  # one instant is wrong
    background = first_background(replace(truth, depth=depth), [0])
    assert background.num_times == 1
    assert background.dynamic is None
    assert background.valid[0, 0, 0].all()
    assert not background.valid[0, 0, 1].any()
    torch.testing.assert_close(background.depth[:, 0, 0], still[:, 0, 0])
    always = first_background(replace(truth, dynamic=torch.ones_like(truth.dynamic)), [0, 1])
    assert not always.valid.any()


def test_layers_of_a_rig_without_calibration_have_points_of_its_static_views(tmp_path: Path) -> None:
    scene = uncalibrated(CAPTURE.scene())
    settings = replace(SETTINGS, camera_motion=CameraMotion.STATIC, register="network")
    reconstruct(scene, TruthPredictor(CAPTURE, moving), out=tmp_path / "out", settings=settings)
    assert set(read_ply(tmp_path / "out" / "points" / "static.ply").view) == {0, 1}


def test_the_command_line_writes_layers_that_exports_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs()
    options = [*("--weights", "net.safetensors", "--calibration", "rig.json", "--masks", "masks", "--size", "28")]
    options += ["--frames", "0:3", "--no-refine", "--no-preview", "--quiet", "--edge-angle", "90"]
    assert command(["reconstruct", "images", "--out", "out", "--layers", *options]) == 0
    output = open_output("out")
    assert output.run.settings["layers"] is True
    static, moved = output.static_points(), [output.moving_points(index) for index in range(3)]
    assert static.num_points > 0
    assert all(cloud.num_points > 0 for cloud in moved)
    assert command(["export", "out", "--format", "colmap", "--no-images", "--max-points", "0", "--to", "model"]) == 0
    record = json.loads(Path("model/export.json").read_text())
    exported = record["points"] + record["cut_points"]
    assert exported == static.num_points + sum(cloud.num_points for cloud in moved)
    assert command(["reconstruct", "images", "--out", "out", "--layers", "--resume", *options]) == 0
