"""A whole export, read back by independent readers: values equal the predictions up to quantization."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.exporters.export import export as export_run
from page4d.formats.maps import crop_to_content
from page4d.formats.ply import read_ply_header
from page4d.options import PointOptions
from page4d.output.cameras import capture_cameras
from page4d.output.instant import write_capture_cameras
from page4d.output.layout import OutputLayout
from page4d.output.points import cloud_comments, merged_cloud
from page4d.output.reader import Output, open_output
from page4d.quality.page import report
from page4d.records import Predictions
from tests.output.output_scene import NAMES, export, made_capture


@pytest.fixture(scope="module")
def capture() -> Predictions:
    return made_capture(2)


@pytest.fixture(scope="module")
def output(capture: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("out")
    export(folder, capture)
    return open_output(folder)


def content(capture: Predictions, name: str, index: int, view: int) -> np.ndarray:
    transform = capture.pixel_transforms[view]
    return getattr(capture, name)[0, index, view][..., transform.rows, transform.columns].numpy()


def test_maps_equal_the_predictions_up_to_quantization(capture: Predictions, output: Output):
    for index in range(2):
        for view, name in enumerate(NAMES):
            depth = content(capture, "depth", index, view)
            confidence = content(capture, "depth_confidence", index, view)
            assert np.abs(output.depth(index, name) - depth).max() <= 0.5 / 1000 + 1e-6
            assert np.abs(output.confidence(index, name) - confidence).max() <= 0.5 / 255 + 1e-6
            moving = output.dynamic(index, name)
            assert np.array_equal(moving, content(capture, "dynamic", index, view) >= 0.5)


@pytest.mark.usefixtures("without_open3d")
def test_without_open3d_the_header_of_a_cloud_records_unit_time_and_views(capture: Predictions, tmp_path: Path):
    export(tmp_path, capture)
    output = open_output(tmp_path)
    comments = read_ply_header(output.layout.points(1)).comments
    assert "unit metre" in comments
    assert f"time {output.run.times[1]!r} seconds" in comments
    assert "view 2 Kamera_u" in comments
    assert any("dynamic 1 = moving" in comment for comment in comments)


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_exports_are_deterministic_and_leave_predictions_unchanged(capture: Predictions, tmp_path: Path):
    before = {name: getattr(capture, name).clone() for name in ("depth", "images", "valid", "dynamic")}
    poses = capture.cameras.world_to_camera.clone(), capture.cameras.intrinsics.clone()
    options = {"points": PointOptions(voxel_size=0.05, max_points=2000), "seed": 3}
    written = [export(tmp_path / name, capture, **options) for name in ("a", "b")]
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    for name, value in before.items():
        assert torch.equal(getattr(capture, name), value)
    assert torch.equal(capture.cameras.world_to_camera, poses[0])
    assert torch.equal(capture.cameras.intrinsics, poses[1])
    listed = {str(file.path.relative_to(tmp_path / "a")): file for file in written[0].files}
    assert {name: file.sha256 for name, file in listed.items()} == tree(tmp_path / "a")
    assert all(file.path.stat().st_size == file.num_bytes for file in listed.values())
    assert written[0].num_points == 4000


def test_bfloat16_predictions_without_motion_and_metric_scale_are_written(tmp_path: Path, capture: Predictions):
    parts = ("depth", "depth_confidence", "images", "dynamic")
    tensors = {name: getattr(capture, name)[:, :1].bfloat16() for name in parts}
    cameras = capture.cameras[:, :1].map(torch.Tensor.bfloat16)
    moving = replace(capture.at_times(0, 1), scale=Scale.ARBITRARY, cameras=cameras, **tensors)
    assert merged_cloud(moving).num_points > 0.9 * int(moving.valid.sum())
    half = replace(moving, dynamic=None, cameras=capture.cameras[:, :1])
    export(tmp_path, half)
    output = open_output(tmp_path)
    assert not (tmp_path / "dynamic").exists()
    assert output.dynamic(0, NAMES[0]) is None
    assert output.run.unit == "arbitrary"
    assert output.run.depth_scale != 1000
    rounded = content(replace(half, depth=half.depth.float()), "depth", 0, 0)
    assert np.abs(output.depth(0, NAMES[0]) - rounded).max() <= 0.51 / output.run.depth_scale
    comments = cloud_comments(half.at_times(0, 1), output.layout.file_names)
    assert "unit arbitrary" in comments
    assert any("dynamic not predicted" in comment for comment in comments)


def test_depths_that_do_not_fit_the_maps_are_unknown_and_said(tmp_path: Path, capture: Predictions):
    """As in a chunk that is much deeper than the first one."""
    depth = capture.depth.clone()
    depth[0, 1, 0, :20] *= 100
    far = replace(capture, depth=depth)
    written = export(tmp_path, far, scale_of=capture.at_times(0, 1), writers=("depth", "confidence", "dynamic"))
    output = open_output(tmp_path)
    beyond = crop_to_content((far.depth > 65.535)[0, 1, 0], far.pixel_transforms[0]).numpy()
    assert written.clipped_depths == beyond.sum() > 0
    assert not output.depth(1, NAMES[0])[beyond].any()
    assert not output.confidence(1, NAMES[0])[beyond].any()
    said = f"{beyond.sum()} depths outside 0.001 to 65.53 m are 0"
    (exported,) = export_run(tmp_path, "npz", tmp_path.parent / "npz")
    for texts in (report(tmp_path).notes, exported.record.remarks):
        assert any(text.startswith(said) for text in texts)
    with pytest.warns(UserWarning, match=said):
        points, mask = output.world_points(1, NAMES[0])
    assert not mask[beyond].any()
    assert np.isnan(points[beyond]).all()


@pytest.mark.parametrize("factor", [0.01, 0.1, 1.0, 40.0, 250.0])
def test_depths_from_1_cm_to_1_km_survive_within_half_a_step(tmp_path: Path, capture: Predictions, factor: float):
    scaled = replace(capture, depth=capture.depth * factor)
    assert export(tmp_path, scaled, writers=("depth",)).clipped_depths == 0
    output = open_output(tmp_path)
    true, step = content(scaled, "depth", 1, 0), 1 / output.run.depth_scale
    assert np.abs(output.depth(1, NAMES[0]) - true).max() <= 0.51 * step
    assert step <= 0.002 * np.median(true)


def test_unknown_views_and_instants_are_refused(output: Output):
    with pytest.raises(UsageError, match="no view is called 'cam9'"):
        output.depth(0, "cam9")
    for instant in (2, "cam 1", None, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=f"no instant {instant}"):
            output.points(instant)


def test_an_open_result_is_shown_in_a_line_and_can_be_a_key(output: Output):
    assert repr(output) == f"<Output '{output.layout.folder}': 2 instants, 4 views, unit {output.run.unit}>"
    assert {output: 1}[output] == 1
    assert output != open_output(output.layout.folder)


def test_folders_without_a_complete_run_are_refused(tmp_path: Path, capture: Predictions):
    with pytest.raises(InputError, match="is not a folder"):
        open_output(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no result: run\.json is missing"):
        open_output(tmp_path)
    export(tmp_path, capture.at_times(0, 1), status="incomplete")
    with pytest.raises(InputError, match="is incomplete") as caught:
        open_output(tmp_path)
    assert "existing='resume'" in caught.value.hint
    partial = open_output(tmp_path, allow_incomplete=True)
    partial.layout.depth(0, NAMES[0]).unlink()
    with pytest.raises(InputError, match=r"frame_000000\.png' is missing"):
        partial.depth(0, NAMES[0])


def test_camera_files_of_another_run_are_refused(tmp_path: Path, capture: Predictions):
    export(tmp_path, capture)
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, capture_cameras(capture.at_times(0, 1)))
    with pytest.raises(InputError, match="different runs"):
        open_output(tmp_path)
    layout.cameras.unlink()
    with pytest.raises(InputError, match=r"cameras\.json' is missing"):
        open_output(tmp_path)
