"""Camera files are read exactly by page4d, evo and Open3D."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evo.tools import file_interface

from page4d.choices import CalibrationFormat, UpAxis
from page4d.conventions import DESCRIPTION, Scale
from page4d.errors import InputError, OutputError, ShapeError
from page4d.formats.calibrations import read_calibration, write_calibration
from page4d.formats.cameras_json import CaptureCameras, read_cameras_json
from page4d.geometry.transforms import invert_rigid
from page4d.output.cameras import capture_cameras
from page4d.output.instant import write_capture_cameras
from page4d.output.layout import OutputLayout
from tests.output.output_scene import NAMES, SIZES, made_capture

HALF = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
"""Between pixel centres at 0.5, and at integers."""


@pytest.fixture
def cameras() -> CaptureCameras:
    """Cameras whose values need full double precision."""
    made = capture_cameras(made_capture(5))
    noise = torch.rand(made.intrinsics.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return replace(made, intrinsics=made.intrinsics * (1 + 1e-9 * noise), times=made.times + 1 / 3e8)


def test_intrinsics_are_those_of_the_original_images():
    made = capture_cameras(made_capture(1))
    for view, (height, width) in enumerate(SIZES):
        focal = 0.9 * max(height, width)
        expected = torch.tensor([[focal, 0, width / 2 + 3], [0, focal * 1.01, height / 2 - 2], [0, 0, 1]]).double()
        assert torch.allclose(made.intrinsics[0, view], expected, rtol=1e-5)
    assert made.image_sizes == SIZES


def test_cameras_json_is_read_back_exactly(tmp_path: Path, cameras: CaptureCameras):
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, cameras)
    found = read_cameras_json(layout.cameras)
    for name in ("times", "world_to_camera", "intrinsics"):
        assert torch.equal(getattr(found, name), getattr(cameras, name))
    assert (found.view_names, found.image_sizes, found.scale) == (NAMES, SIZES, Scale.METRIC)


def test_the_axis_that_points_up_is_kept_and_values_of_other_tools_are_ignored(tmp_path: Path):
    layout, cameras = OutputLayout(tmp_path, NAMES), capture_cameras(made_capture(3))
    write_capture_cameras(layout, cameras)
    assert b'"up"' not in layout.cameras.read_bytes()
    write_capture_cameras(layout, replace(cameras, up=UpAxis.MINUS_Z))
    assert read_cameras_json(layout.cameras).up is UpAxis.MINUS_Z
    calibration = read_calibration(layout.cameras)
    assert calibration.up is UpAxis.MINUS_Z
    static = tuple(camera for camera in calibration.cameras if camera.is_static)
    write_calibration(replace(calibration, cameras=static), tmp_path / "rig.json", CalibrationFormat.PAGE4D)
    assert read_calibration(tmp_path / "rig.json").up is UpAxis.MINUS_Z
    content = json.loads((tmp_path / "rig.json").read_text())
    for foreign in ([0, 0, 1], "auto", 3, "up"):
        (tmp_path / "rig.json").write_text(json.dumps(content | {"up": foreign, "start_ns": foreign}))
        assert read_calibration(tmp_path / "rig.json").up is None
    for start_ns in (None, 1.7e18):
        layout.cameras.write_text(json.dumps(json.loads(layout.cameras.read_text()) | {"start_ns": start_ns}))
        assert read_calibration(layout.cameras).start_ns == read_cameras_json(layout.cameras).start_ns == start_ns


def test_cameras_json_records_conventions_units_and_sizes(tmp_path: Path):
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, capture_cameras(made_capture(3)))
    content = json.loads(layout.cameras.read_text())
    assert content["conventions"] == DESCRIPTION
    assert (content["scale"], content["unit"]) == ("metric", "metre")
    static, moving = content["views"]["cam 1"], content["views"]["../../x"]
    assert (static["static"], moving["static"]) == (True, False)
    assert static["image_size"] == [640, 480]
    assert np.shape(static["world_to_camera"]) == (4, 4)
    assert np.shape(moving["world_to_camera"]) == (3, 4, 4)
    assert np.shape(moving["intrinsics"]) == (3, 3)


def test_evo_reads_the_trajectories(tmp_path: Path, cameras: CaptureCameras):
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, cameras)
    camera_to_world = invert_rigid(cameras.world_to_camera).numpy()
    for view, name in enumerate(NAMES):
        found = file_interface.read_tum_trajectory_file(layout.tum(name))
        assert np.array_equal(found.timestamps, cameras.times.numpy())
        poses = np.stack(found.poses_se3)
        assert np.array_equal(poses[:, :3, 3], camera_to_world[:, view, :3, 3])
        assert np.allclose(poses[:, :3, :3], camera_to_world[:, view, :3, :3], atol=1e-6)


def test_cameras_of_the_maps_are_written_beside_them(tmp_path: Path, open3d: Any):
    made = capture_cameras(made_capture(3))
    static = replace(made, intrinsics=made.intrinsics[:1].expand(3, -1, -1, -1))
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, static)
    for view, name in enumerate(NAMES):
        (height, width), (rows, columns) = SIZES[view], made.map_sizes[view]
        expected = np.diag([columns / width, rows / height, 1]) @ static.intrinsics[0, view].numpy()
        found = open3d.io.read_pinhole_camera_intrinsic(str(layout.map_intrinsics(name)))
        assert (found.height, found.width) == (rows, columns)
        assert np.allclose(found.intrinsic_matrix + HALF, expected, rtol=1e-14)
        trajectory = open3d.io.read_pinhole_camera_trajectory(str(layout.map_trajectory(name))).parameters
        for index, camera in enumerate(trajectory):
            assert np.array_equal(camera.extrinsic, made.world_to_camera[index, view].numpy())
            assert np.array_equal(camera.intrinsic.intrinsic_matrix, found.intrinsic_matrix)
        entry = json.loads(layout.cameras.read_text())["views"][name]
        assert entry["map_size"] == [columns, rows]
        assert np.allclose(entry["map_intrinsics"], expected, rtol=1e-14)
    assert read_cameras_json(layout.cameras).map_sizes == made.map_sizes


def test_intrinsics_that_vary_have_no_file_of_one_matrix(tmp_path: Path, cameras: CaptureCameras):
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, cameras)
    assert not layout.map_intrinsics(NAMES[0]).exists()
    assert np.shape(json.loads(layout.cameras.read_text())["views"][NAMES[0]]["map_intrinsics"]) == (5, 3, 3)


def test_trajectories_have_the_time_stamps_of_the_frames_to_the_nanosecond(tmp_path: Path, cameras: CaptureCameras):
    times = torch.tensor([0.0, 0.049999872, 0.1, 1.0, 3600.1], dtype=torch.float64)
    given = replace(cameras, times=times, start_ns=1_403_636_579_763_555_584)
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, given)
    lines = layout.tum(NAMES[0]).read_text().splitlines()[1:]
    expected = ["1403636579.763555584", "1403636579.813555456", "1403640179.863555584"]
    assert [lines[index].split()[0] for index in (0, 1, 4)] == expected
    found = file_interface.read_tum_trajectory_file(layout.tum(NAMES[0]))
    assert found.timestamps[[0, 1, 4]].tolist() == [float(text) for text in expected]


def test_open3d_reads_the_trajectories(tmp_path: Path, cameras: CaptureCameras, open3d: Any):
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, cameras)
    for view, name in enumerate(NAMES):
        found = open3d.io.read_pinhole_camera_trajectory(str(layout.open3d_trajectory(name))).parameters
        assert len(found) == 5
        for index, parameters in enumerate(found):
            assert np.array_equal(parameters.extrinsic, cameras.world_to_camera[index, view].numpy())
            matrix = parameters.intrinsic.intrinsic_matrix
            assert np.allclose(matrix + HALF, cameras.intrinsics[index, view].numpy(), rtol=1e-15)
            assert (parameters.intrinsic.height, parameters.intrinsic.width) == SIZES[view]


def test_a_name_that_is_not_utf8_is_escaped(tmp_path: Path):
    capture = made_capture(1, 28, sizes=((14, 14),), names=("caf\udce9",))
    layout = OutputLayout(tmp_path, capture.view_names)
    write_capture_cameras(layout, capture_cameras(capture))
    assert read_cameras_json(layout.cameras).view_names == ("caf\\udce9",)


def test_cameras_that_are_not_finite_are_not_written():
    capture = made_capture(2)
    poses = capture.cameras.world_to_camera.clone()
    poses[0, 1, 2, 0, 3] = math.nan
    broken = replace(capture, cameras=replace(capture.cameras, world_to_camera=poses))
    with pytest.raises(OutputError, match=r"view 'Kamera ü' at 0\.133 s is not finite"):
        capture_cameras(broken)


def test_records_of_inconsistent_shapes_are_refused(cameras: CaptureCameras):
    with pytest.raises(ShapeError, match=r"intrinsics is torch\.float32"):
        replace(cameras, intrinsics=cameras.intrinsics.float())
    with pytest.raises(ShapeError, match="1 image sizes for 4 views"):
        replace(cameras, image_sizes=SIZES[:1])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"scale": "metric"', '"scale": "metric", "more": 1', "more: unknown key"),
        ('"scale": "metric"', '"scale": "miles"', "scale: "),
        ('"static": ', '"start_s": 0.5, "static": ', "start_s is in 1 of 4 views"),
        ('"times": [', '"times": [NaN, ', "line 15: NaN is not a JSON number"),
        ('"times": [', '"times": [0.0, ', "world_to_camera is not one matrix, or 3, for"),
        ("[0.0, 0.0, 0.0, 1.0]", "[0.0, 0.0, 1.0]", "world_to_camera: .* rows differ in length"),
        (", [0.0, 0.0, 0.0, 1.0]", "", r"world_to_camera: .*\[3, 4\] numbers, expected finite ones \[\*T 4 4\]"),
        ("{", "", "line 2: Extra data"),
        ('"scale": "metric"', '"scale": "metric", "scale": "arbitrary"', "key 'scale' appears twice"),
    ],
)
def test_invalid_camera_files_are_refused_with_the_field(tmp_path: Path, old: str, new: str, words: str):
    layout = OutputLayout(tmp_path, NAMES)
    write_capture_cameras(layout, capture_cameras(made_capture(2)))
    text = layout.cameras.read_text()
    assert old in text
    layout.cameras.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=words) as caught:
        read_cameras_json(layout.cameras)
    assert caught.value.hint


def test_missing_and_unreadable_camera_files_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="is missing"):
        read_cameras_json(tmp_path / "cameras.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_cameras_json(tmp_path)
    (tmp_path / "cameras.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="cannot be read"):
        read_cameras_json(tmp_path / "cameras.json")


@pytest.mark.parametrize(("column", "words"), [(0, "a world_to_camera has no rotation"), (3, "a camera is too far")])
def test_poses_that_no_run_writes_are_refused(column: int, words: str, tmp_path: Path):
    layout = OutputLayout(tmp_path, NAMES)
    cameras = capture_cameras(made_capture(2))
    poses = cameras.world_to_camera.clone()
    poses[0, 1, 0, column] = 2.0**63
    write_capture_cameras(layout, replace(cameras, world_to_camera=poses))
    with pytest.raises(InputError, match=words):
        read_cameras_json(layout.cameras)
