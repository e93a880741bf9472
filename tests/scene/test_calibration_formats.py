"""Exact values read from each calibration format."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from page4d.conventions import Scale
from page4d.errors import InputError
from page4d.formats.build import ImageName, brown_conrady, group_images
from page4d.formats.calibrations import read_calibration
from page4d.formats.table import FORMATS
from page4d.geometry.distortion import Distortion, LensModel
from tests.scene.calibration_writers import make_rig, output_content, write_colmap_text, write_nerfstudio

QCA = """<?xml version='1.0' encoding='ASCII'?>
<calibration source="x"><results std-dev="0."/>
 <cameras>
  <camera active="1" serial="left" viewrotation="0">
   <fov_video left="32" top="0" right="671" bottom="479"/>
   <transform r11="0" r12="1" r13="0" r21="0" r22="0" r23="1" r31="1" r32="0" r33="0" x="1500" y="-2000" z="250.5"/>
   <intrinsic focalLengthU="64000" focalLengthV="64064" centerPointU="22528" centerPointV="15376" skew="0"
    radialDistortion1="-0.046183" radialDistortion2="0.139983" radialDistortion3="0.000000"
    tangentalDistortion1="0.000608" tangentalDistortion2="0.00069"/>
  </camera>
  <camera active="0" serial="right" viewrotation="0"/>
 </cameras>
</calibration>
"""

INTRI = """%YAML:1.0
---
names:
   - "01"
K_01: !!opencv-matrix
   rows: 3
   cols: 3
   dt: d
   data: [ 1e3, 0., 010, 0., 1.001e+03, 2.4e2, 0., 0., 1. ]
D_01: !!opencv-matrix
   rows: 1
   cols: 5
   dt: d
   data: [ 0., 0., 0., 0., 0. ]
"""

EXTRI = """%YAML:1.0
---
names:
   - "01"
R_01: !!opencv-matrix
   rows: 3
   cols: 1
   dt: d
   data: [ 0., 0., 1.5707963267948966 ]
T_01: !!opencv-matrix
   rows: 3
   cols: 1
   dt: d
   data: [ 1., 2., 3. ]
"""


@pytest.mark.parametrize("document", ["README.md", "docs/formats.md"])
def test_every_format_is_documented(document: str) -> None:
    text = (Path(__file__).parents[2] / document).read_text()
    assert all(row.name.split()[0].split("/")[0] in text for row in FORMATS)


def test_qualisys_values_are_converted(tmp_path: Path) -> None:
    path = tmp_path / "small.qca.txt"
    path.write_text(QCA)
    calibration = read_calibration(path)
    (camera,) = calibration.cameras
    assert (camera.name, camera.image_size) == ("left", (480, 640))
    # 22528 / 64 - 32 + 0.5 and 15376 / 64 + 0.5
    assert camera.intrinsics.tolist() == [[1000.0, 0.0, 320.5], [0.0, 1001.0, 240.75], [0.0, 0.0, 1.0]]
    # y and z change sign; t = -R C with C = (1.5, -2, 0.2505) m
    assert camera.world_to_camera.tolist() == [[0, 1, 0, 2.0], [0, 0, -1, 0.2505], [-1, 0, 0, 1.5], [0, 0, 0, 1]]
    assert camera.distortion == Distortion(
        model=LensModel.BROWN_CONRADY, coefficients=(-0.046183, 0.139983, 0.000608, 0.00069, 0.0)
    )
    assert calibration.scale is Scale.METRIC
    assert calibration.notices == ("small.qca.txt: camera right is inactive and is ignored",)


def test_opencv_yaml_of_early_versions_is_read(tmp_path: Path) -> None:
    (tmp_path / "intri.yml").write_text(INTRI)
    (tmp_path / "extri.yml").write_text(EXTRI)
    calibration = read_calibration(tmp_path)
    (camera,) = calibration.cameras
    assert camera.name == "01"
    assert camera.distortion is None
    assert camera.image_size is None
    # "010" is 10, not octal 8 as in YAML 1.1; "1e3" is a number, not text.
    assert camera.intrinsics.tolist() == [[1000.0, 0.0, 10.5], [0.0, 1001.0, 240.5], [0.0, 0.0, 1.0]]
    turned = [[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]]
    np.testing.assert_allclose(camera.world_to_camera, turned, atol=1e-15)
    assert calibration.scale is Scale.ARBITRARY


@pytest.mark.parametrize("key", ["D", "dist", "distCoeffs", "distortion_coefficients"])
def test_distortion_of_opencv_yaml_has_several_names(key: str, tmp_path: Path) -> None:
    (tmp_path / "intri.yml").write_text(INTRI.replace("D_01", f"{key}_01").replace("[ 0., 0., 0.", "[ -0.1, 0., 0."))
    (tmp_path / "extri.yml").write_text(EXTRI)
    (camera,) = read_calibration(tmp_path).cameras
    assert camera.distortion.coefficients == (-0.1, 0.0, 0.0, 0.0, 0.0)


def test_toml_names_and_distortion_lengths_are_read(tmp_path: Path) -> None:
    table = (
        "[{key}]\n{name}size = [640, 480]\nmatrix = [[500.0, 0.0, 320.0], [0.0, 500.0, 240.0], [0.0, 0.0, 1.0]]\n"
        "rotation = [0.0, 0.0, 0.0]\ntranslation = [0.0, 0.0, {z}]\ndistortions = {lens}\n"
    )
    text = table.format(key="cam_0", name='name = "A"\n', z="1.0", lens="[0.0, 0.0, 0.0, 0.0, 0.0]")
    text += table.format(key="cam_1", name="", z="2.0", lens="[-0.1, 0.0, 0.0, 0.0, 0.02]")
    path = tmp_path / "calibration.toml"
    path.write_text(text + "[filter]\nenabled = true\n")
    calibration = read_calibration(path)
    assert calibration.names == ("A", "cam_1")
    assert calibration.cameras[0].distortion is None
    assert calibration.cameras[1].distortion == Distortion(
        model=LensModel.BROWN_CONRADY, coefficients=(-0.1, 0.0, 0.0, 0.0, 0.02)
    )


def write_transforms(folder: Path, **content: Any) -> Path:
    path = folder / "transforms.json"
    path.write_text(json.dumps(content))
    return path


def nerf_frame(name: str, shift: float = 0.0, **more: Any) -> dict[str, Any]:
    matrix = np.eye(4)
    matrix[0, 3] = shift
    return {"file_path": name, "transform_matrix": matrix.tolist(), **more}


LENS = {"fl_x": 500.0, "cx": 320.0, "cy": 240.0, "w": 640, "h": 480}


def test_nerfstudio_poses_are_converted_from_opengl_axes(tmp_path: Path) -> None:
    frame = nerf_frame("images/a.png", shift=2.0, fl_x=600.0)
    (camera,) = read_calibration(write_transforms(tmp_path, **LENS, frames=[frame])).cameras
    assert camera.name == "a"
    assert camera.intrinsics.tolist() == [[600.0, 0.0, 320.0], [0.0, 600.0, 240.0], [0.0, 0.0, 1.0]]
    # The optical axis of an unrotated OpenGL camera is -z: y and z change sign in OpenCV axes.
    assert camera.world_to_camera.tolist() == [[1, 0, 0, -2.0], [0, -1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1]]


def test_nerfstudio_field_of_view_gives_the_focal_length(tmp_path: Path) -> None:
    content = {"camera_angle_x": math.pi / 2, "w": 800, "h": 600}
    (camera,) = read_calibration(write_transforms(tmp_path, **content, frames=[nerf_frame("./train/r_0")])).cameras
    np.testing.assert_allclose(camera.intrinsics, [[400, 0, 400], [0, 400, 300], [0, 0, 1]], rtol=1e-15)
    assert camera.image_size == (600, 800)


def test_nerfstudio_models_have_the_coefficients_that_are_stated(tmp_path: Path) -> None:
    content = LENS | {"camera_model": "PINHOLE", "k1": -0.1, "p2": 0.001}
    (camera,) = read_calibration(write_transforms(tmp_path, **content, frames=[nerf_frame("a.png")])).cameras
    assert camera.distortion == brown_conrady((-0.1, 0.0, 0.0, 0.001, 0.0))


def test_instant_ngp_declares_fisheye_lenses(tmp_path: Path) -> None:
    content = LENS | {"is_fisheye": True, "k1": -0.05, "k2": 0.01, "k3": -0.002, "k4": 0.0}
    (camera,) = read_calibration(write_transforms(tmp_path, **content, frames=[nerf_frame("a.png")])).cameras
    assert camera.distortion == Distortion(model=LensModel.FISHEYE, coefficients=(-0.05, 0.01, -0.002, 0.0))


def test_nerfstudio_frames_are_merged_into_moving_and_static_views(tmp_path: Path) -> None:
    frames = [nerf_frame(f"images/moving/{index}.png", shift=index) for index in (10, 9)]
    frames += [nerf_frame(f"images/still/{index}.png", shift=5 + index * 1e-9) for index in (9, 10)]
    moving, still = read_calibration(write_transforms(tmp_path, **LENS, frames=frames)).cameras
    assert (moving.name, moving.frames, moving.is_static) == ("moving", ("9", "10"), False)
    assert moving.world_to_camera[:, 0, 3].tolist() == [-9.0, -10.0]
    assert (still.name, still.frames, still.is_static) == ("still", None, True)


def test_nerfstudio_frames_with_times_belong_to_one_moving_camera(tmp_path: Path) -> None:
    names = ("left_000", "left_001", "right_000", "right_001")
    frames = [nerf_frame(f"images/{name}.png", shift=index, time=index / 2) for index, name in enumerate(names)]
    (camera,) = read_calibration(write_transforms(tmp_path, **LENS, frames=frames)).cameras
    assert (camera.name, camera.frames) == ("images", names)


def test_nerfstudio_intrinsics_that_change_within_a_view_are_refused(tmp_path: Path) -> None:
    frames = [nerf_frame(f"cam7/{index}.png", fl_x=500.0 + index) for index in range(2)]
    with pytest.raises(InputError, match="camera cam7: the intrinsics change by 1 px between frames"):
        read_calibration(write_transforms(tmp_path, **LENS, frames=frames))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cam01/000000.png", "cam01/000001.png"], [("cam01", "000000"), ("cam01", "000001")]),
        (["cam01/0.png", "cam02/0.png"], [("cam01", "0"), ("cam02", "0")]),
        (["cam01.png", "cam02.JPG"], [("cam01", None), ("cam02", None)]),
        (["./images/cam01.png", "images/cam02.png"], [("cam01", None), ("cam02", None)]),
        (["images_4/cam01.png"], [("cam01", None)]),
        (["a/images/0.png", "b/images/0.png"], [("a", "0"), ("b", "0")]),
        (["x/a/images/0", "x/b/images/0.5"], [("a", "0"), ("b", "0.5")]),
        (["rig\\left\\0.png", "rig\\right\\0.png"], [("left", "0"), ("right", "0")]),
        (["../../x.png"], [("..", "x")]),
        (["00/cam1.png", "00/cam2.png", "01/cam1.png"], [("cam1", "00"), ("cam2", "00"), ("cam1", "01")]),
        (["00/x_cam1.png", "01/x_cam1.png"], [("00", "x_cam1"), ("01", "x_cam1")]),
        (
            [f"images/{name}.png" for name in ("cam1_000", "cam1_001", "cam2_000", "cam2_001")],
            [("cam1", "cam1_000"), ("cam1", "cam1_001"), ("cam2", "cam2_000"), ("cam2", "cam2_001")],
        ),
        *(
            ([f"{name}.png" for name in names.split()], [(name, None) for name in names.split()])
            for names in (
                "top_1 top_2 side_1 side_2",
                "left_cam001 left_cam002 right_cam001 right_cam002",
                "left_100 left_200 right_100 right_200",
                "cam1_000 cam1_001 cam2_000",
            )
        ),
        (["cam1234/view_1.png", "cam1235/view_1.png"], [("cam1234", "view_1"), ("cam1235", "view_1")]),
        (["cam1/GH01.mp4", "cam2/GH02.mp4"], [("cam1", "GH01"), ("cam2", "GH02")]),
        (["x/cam1.mp4", "x/cam2.MOV"], [("cam1", None), ("cam2", None)]),
        (["cam1/video.mp4", "cam2/video.mp4"], [("cam1", "video"), ("cam2", "video")]),
        (["a/x/0.png", "b/x/0.png", "0.png"], [("a/x", "0"), ("b/x", "0"), ("0", None)]),
        ([], []),
    ],
)
def test_image_names_give_views_and_frames(names: list[str], expected: list[tuple[str, str | None]]) -> None:
    assert group_images(names) == [ImageName(*pair) for pair in expected]


def test_colmap_cameras_may_be_shared_and_names_contain_spaces(tmp_path: Path) -> None:
    (tmp_path / "cameras.txt").write_text("1 SIMPLE_PINHOLE 640 480 500 320 240\n")
    (tmp_path / "images.txt").write_text("1 1 0 0 0 0 0 4 1 cam b.png\n\n2 1 0 0 0 1 0 4 1 cam a.png\n\n")
    calibration = read_calibration(tmp_path / "images.txt")
    assert calibration.names == ("cam a", "cam b")
    assert calibration.cameras[0].intrinsics.tolist() == [[500, 0, 320], [0, 500, 240], [0, 0, 1]]
    assert calibration.cameras[0].world_to_camera[:3, 3].tolist() == [1, 0, 4]


def test_colmap_has_priority_over_transforms_json(tmp_path: Path) -> None:
    write_nerfstudio(tmp_path, make_rig())
    write_colmap_text(tmp_path, make_rig())
    assert read_calibration(tmp_path).format == "COLMAP"


def write_output(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "cameras.json"
    path.write_text(json.dumps(content))
    return path


def test_run_output_with_a_moving_view_and_varying_intrinsics_is_read(tmp_path: Path) -> None:
    content: dict[str, Any] = output_content(make_rig())
    view = content["views"]["cam02"]
    moved = np.array(view["world_to_camera"]) + np.eye(4, k=3) * 0.1
    view |= {"static": False, "world_to_camera": [view["world_to_camera"], moved.tolist()]}
    lens = np.array(view["intrinsics"])
    view["intrinsics"] = [lens.tolist(), (lens + np.diag([2.0, 2.0, 0.0])).tolist()]
    calibration = read_calibration(write_output(tmp_path, content))
    camera = calibration.cameras[1]
    assert camera.times == (0.0, 0.5)
    np.testing.assert_allclose(camera.world_to_camera[1], moved, atol=1e-12)
    assert calibration.notices == (
        "cameras.json: camera cam02: the intrinsics vary by up to 2 px over time; their median is used",
    )


@pytest.mark.parametrize(
    ("change", "moved"),
    [({}, 0.0), ({"pixel_center": 0.0}, 0.5), ({"conventions": {"pixel_center": "top-left is (0, 0)"}}, 0.5),
     ({"conventions": {"pixel_center": 0.25}}, 0.25), ({"conventions": {}}, 0.0)],
)  # fmt: skip
def test_run_output_declares_its_pixel_center(change: dict[str, Any], moved: float, tmp_path: Path) -> None:
    rig = make_rig()
    calibration = read_calibration(write_output(tmp_path, output_content(rig) | change))
    assert float(calibration.cameras[0].intrinsics[0, 2]) == rig[0].intrinsics[0, 2] + moved


@pytest.mark.parametrize(
    ("convention", "moved", "notices"),
    [("integer pixel centres", 0.5, 0), ("half-integer pixel centres", 0.0, 0), ("", 0.0, 1)],
)
def test_ground_truth_declares_its_pixel_center(convention: str, moved: float, notices: int, tmp_path: Path) -> None:
    pose = np.eye(4).tolist()
    lens = [[500, 0, 320], [0, 500, 240], [0, 0, 1]]
    camera = {"world_to_camera": pose, "intrinsics": lens, "width": 640, "height": 480}
    calibration = read_calibration(write_output(tmp_path, {"convention": convention, "cameras": {"../../x": camera}}))
    assert calibration.names == ("../../x",)
    assert calibration.scale is Scale.ARBITRARY
    assert len(calibration.notices) == notices
    assert float(calibration.cameras[0].intrinsics[0, 2]) == 320 + moved


def test_rounded_rotations_are_orthonormalized(tmp_path: Path) -> None:
    content: dict[str, Any] = output_content(make_rig())
    for view in content["views"].values():
        view["world_to_camera"] = np.round(view["world_to_camera"], 4).tolist()
    for camera in read_calibration(write_output(tmp_path, content)).cameras:
        rotation = camera.world_to_camera[:3, :3]
        torch.testing.assert_close(rotation.T @ rotation, torch.eye(3, dtype=torch.float64), atol=1e-14, rtol=0)
