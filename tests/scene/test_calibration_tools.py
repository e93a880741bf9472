"""Calibrations of other tools: forms that the common rig does not have, and refusals that name the way out."""

import json
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import scipy.io
import torch
import yaml
from scipy.spatial.transform import Rotation

from page4d.choices import CalibrationMatch
from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.formats import llff
from page4d.formats.calibrations import read_calibration, read_lenses
from page4d.formats.camera_model import Calibration
from page4d.geometry.distortion import LensModel
from page4d.rig.lens import lenses_of
from page4d.run.calibration import _lens_footage
from page4d.scene.calibration import paired_names
from page4d.scene.open import open_scene
from tests.scene.calibration_writers import (
    WRITERS,
    RigCamera,
    edit_json,
    make_rig,
    matlab_camera,
    read_pixels,
    write_caliscope,
    write_file_pairs,
    write_kalibr,
    write_metashape,
    write_multical,
)
from tests.scene.clip_writers import counter_image, write_counter_clip, write_images

SIZE = (48, 64)
K = np.array([[70.0, 0.0, 31.5], [0.0, 71.0, 23.5], [0.0, 0.0, 1.0]])


def views(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        write_counter_clip(folder / f"{name}.mp4", 3, size=SIZE)
    return folder


def write_frames(folder: Path) -> None:
    write_images(folder, {f"frame_{index:05d}.png": counter_image(index, SIZE) for index in range(4)})


def relative(first: RigCamera, second: RigCamera) -> np.ndarray:
    return second.world_to_camera @ np.linalg.inv(first.world_to_camera)


def test_a_kalibr_chain_is_relative_to_its_first_camera_in_natural_order(tmp_path: Path) -> None:
    rig = make_rig()
    names = ("cam0", "cam2", "cam10")

    def renamed(names: tuple[str, ...]) -> list[RigCamera]:
        return [RigCamera(name, *list(vars(camera).values())[1:]) for name, camera in zip(names, rig, strict=True)]

    by_hand = read_calibration(write_kalibr(tmp_path, renamed(("right", "left", "b")), world=False))
    assert by_hand.names == ("right", "left", "b")
    path = write_kalibr(tmp_path, renamed(names), world=False)
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.dump(content, sort_keys=True))  # cam0, cam10, cam2, as Kalibr writes them
    calibration = read_calibration(path)
    assert (calibration.names, calibration.scale) == (names, Scale.METRIC)
    for camera, true in zip(calibration.cameras, rig, strict=True):
        np.testing.assert_allclose(camera.world_to_camera, relative(rig[0], true), atol=1e-12)
    for name, camera in zip(names, rig, strict=True):
        content[name].pop("T_cn_cnm1", None)
        content[name]["T_cam_imu"] = camera.world_to_camera.tolist()
    content["imu0"] = {"T_i_b": np.eye(4).tolist(), "model": "calibrated"}
    path.write_text(yaml.dump(content))
    for _ in range(2):
        for camera, true in zip(read_calibration(path).cameras, rig, strict=True):
            np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)
        for name in names:  # as OpenVINS writes it
            content[name]["T_imu_cam"] = np.linalg.inv(content[name].pop("T_cam_imu", np.eye(4))).tolist()
        path.write_text("%YAML:1.0\n" + yaml.dump(content))


STEREO = {
    "M1": K,
    "D1": np.array([[-0.1, 0.02, 0.001, -0.002, 0.003]]),
    "M2": K + np.diag([1, 2, 0.0]),
    "D2": np.zeros((1, 5)),
    "R": cv2.Rodrigues(np.array([0.0, 0.3, 0.1]))[0],
    "T": np.array([[-2.0], [0.1], [0.3]]),
}


def write_storage(path: Path, content: dict[str, Any]) -> Path:
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
    for key, value in content.items():
        storage.write(key, value)
    storage.release()
    return path


@pytest.mark.parametrize(
    "keys",
    [
        "M1 D1 M2 D2 R T",
        "K1 D1 K2 D2 R T",
        "K0 D0 K1 D1 R T",
        "K_left D_left K_right D_right R T",
        "LEFT_K LEFT_D RIGHT_K RIGHT_D R T",
        "cameraMatrix1 distCoeffs1 cameraMatrix2 distCoeffs2 R T",
        "Intrinsic_mtx_1 dist_1 Intrinsic_mtx_2 dist_2 rot_mat trans",
        "left_camera_matrix left_distortion right_camera_matrix right_distortion R T",
        "camera_matrix_l distortion_coefficents_l camera_matrix_r distortion_coefficents_r rotation translation",
    ],
)
def test_a_stereo_pair_of_opencv_is_read_in_any_spelling(keys: str, tmp_path: Path) -> None:
    content = dict(zip(keys.split(), STEREO.values(), strict=True))
    content |= {f"{key}{side}": np.eye(3, 4)[:, :size] for side in ("1", "_l", "_left", "2", "_r", "_right")
                for key, size in (("R", 3), ("P", 4))}  # fmt: skip
    paths = [write_storage(tmp_path / "stereo.yml", content), tmp_path / "stereo.json"]
    paths[1].write_text(json.dumps({key: np.asarray(value).tolist() for key, value in content.items()}))
    np.savez(tmp_path / "stereo.npz", **content, object_points=np.zeros((90, 90)), errors=np.array([None]))
    paths += [tmp_path / "stereo.npz", tmp_path / "sides.json"]
    sides = {
        side: {key: STEREO[f"{key}{place}"].tolist() for key in "MD"} for place, side in ((1, "left"), (2, "right"))
    }
    paths[-1].write_text(json.dumps(sides | {key: STEREO[key].tolist() for key in "RT"}))
    if not keys.startswith("K_left"):  # which would be cameras called left and right, without poses
        rectified = {f"{side}_{key}": np.eye(3, columns) for side in ("left", "right")
                     for key, columns in (("R", 3), ("P", 4))}  # fmt: skip
        lenses = dict(list(content.items())[:4])
        paths.append(write_storage(tmp_path / "intrinsics.yml", lenses | rectified | {"width": 64, "height": 48}))
        paths.append(write_storage(tmp_path / "extrinsics.yml", {key: STEREO[key] for key in ("R", "T")}))
    points = np.random.default_rng(3).uniform([-0.5, -0.5, 3.5], [0.5, 0.5, 4.5], (20, 3))
    for path in paths:
        first, second = read_calibration(path).cameras
        np.testing.assert_array_equal(first.world_to_camera, np.eye(4))
        np.testing.assert_allclose(second.world_to_camera[:3, :3], STEREO["R"], atol=1e-14)
        np.testing.assert_array_equal(second.world_to_camera[:3, 3], STEREO["T"][:, 0])
        np.testing.assert_allclose(second.intrinsics, [[71, 0, 32], [0, 73, 24], [0, 0, 1]])
        expected = cv2.projectPoints(points, np.zeros(3), np.zeros(3), K, STEREO["D1"])[0][:, 0] + 0.5
        plane = first.distortion.distort(torch.from_numpy(points[:, :2] / points[:, 2:]))
        shown = plane.numpy() @ first.intrinsics[:2, :2].numpy().T + first.intrinsics[:2, 2].numpy()
        np.testing.assert_allclose(shown, expected, atol=1e-9)


def test_a_complete_stereo_file_is_not_completed_by_others(tmp_path: Path) -> None:
    path = write_storage(tmp_path / "intrinsics.yml", {key: STEREO[key] for key in ("M1", "M2", "R", "T")})
    write_storage(tmp_path / "extrinsics.yml", STEREO)
    calibration = read_calibration(path)
    assert [camera.distortion for camera in calibration.cameras] == [None, None]
    assert calibration.notices == ("intrinsics.yml has no distortion of 1, 2: undistorted images are assumed",)
    write_storage(path, {key: value for key, value in STEREO.items() if key != "D2"})
    with pytest.raises(InputError, match=r"intrinsics.yml: camera 2: the distortion D2 is missing"):
        read_calibration(path)


def test_cameras_without_names_are_the_views_in_natural_order(tmp_path: Path) -> None:
    folder = views(tmp_path / "rig", "right", "left")
    path = write_storage(tmp_path / "stereo.yml", STEREO)
    scene = open_scene(folder, calibration=path)
    assert "stereo.yml names no cameras; they are, in this order, left, right" in [
        notice.marked_text for notice in scene.notices
    ]
    left, right = scene.views
    assert float(left.camera.intrinsics[0, 0]) == 70.0
    assert float(right.camera.intrinsics[0, 0]) == 71.0
    write_counter_clip(folder / "third.mp4", 3, size=SIZE)
    with pytest.raises(InputError, match=r"stereo.yml has 2 cameras without names, the scene 3 views"):
        open_scene(folder, calibration=path)


ROS = """image_width: 64
image_height: 48
camera_name: {name}
camera_matrix:
  rows: 3
  cols: 3
  data: [70.0, 0.0, 31.5, 0.0, 71.0, 23.5, 0.0, 0.0, 1.0]
distortion_model: {model}
distortion_coefficients:
  rows: 1
  cols: {count}
  data: {data}
rectification_matrix: {{rows: 3, cols: 3, data: [1, 0, 0, 0, 1, 0, 0, 0, 1]}}
"""


ROS_TOPIC = """header: {seq: 1}
height: 48
width: 64
distortion_model: rational_polynomial
D: [-0.1, 0.02, 0, 0, 0.01, 0, 0, 0]
K: [70.0, 0.0, 31.5, 0.0, 71.0, 23.5, 0.0, 0.0, 1.0]
R: [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
---
"""


EUROC = {
    "camera_model": "pinhole",
    "intrinsics": [70, 71, 31.5, 23.5],
    "distortion_model": "radial-tangential",
    "distortion_coefficients": [-0.1, 0.02, 0, 0],
}
OPENPOSE = {
    "CameraMatrix": np.eye(3, 4).tolist(),
    "Intrinsics": K.tolist(),
    "Distortion": [[-0.1], [0.02], *[[0.0]] * 6],
}
LENSES = [
    (yaml.dump(OPENPOSE), "lens", "brown-conrady"),
    (ROS.format(name="left", model="plumb_bob", count=5, data=[-0.1, 0.02, 0, 0, 0.01]), "left", "brown-conrady"),
    (ROS.format(name="''", model="equidistant", count=4, data=[-0.1, 0.02, 0, 0]), "lens", "fisheye"),
    (ROS_TOPIC, "lens", "brown-conrady"),
    (yaml.dump(EUROC), "lens", "brown-conrady"),
    *(
        (yaml.dump({matrix: K.tolist(), lens: [[-0.1, 0.02, 0.0, 0.0, 0.01]]}), "lens", "brown-conrady")
        for matrix, lens in (
            ("camera_matrix", "dist_coeff"),
            ("camera_matrix", "distortion_coefficents"),  # a misspelling of published files
            ("intrinsic_matrix", "distortion"),
            ("mtx", "dist"),
        )
    ),
]


@pytest.mark.parametrize(("text", "name", "lens"), LENSES)
def test_a_lens_of_one_camera_is_read_as_intrinsics_alone(text: str, name: str, lens: str, tmp_path: Path) -> None:
    path = tmp_path / "lens.yaml"
    path.write_text(text)
    (camera,) = read_lenses(path).cameras
    assert (camera.name, camera.image_size) == (name, SIZE if "height" in text else None)
    assert camera.intrinsics.tolist() == [[70.0, 0.0, 32.0], [0.0, 71.0, 24.0], [0.0, 0.0, 1.0]]
    assert (camera.distortion.model, camera.distortion.coefficients[:2]) == (LensModel(lens), (-0.1, 0.02))
    with pytest.raises(InputError, match=r"lens.yaml: camera .*: it has a lens, but no pose \(R and T\)") as caught:
        read_calibration(path)
    assert "intrinsics" in caught.value.hint


@pytest.mark.parametrize(
    "keys",
    [
        "intrinsicMatrix distortionCoefficients R T",
        "camera_matrix dist rvec tvec",
        "K D R t",
        "Intrinsics Distortion CameraMatrix",
        "camera_matrix distortion_coefficients T_BS",
    ],
)
def test_files_of_single_cameras_are_a_calibration(keys: str, tmp_path: Path) -> None:
    rig = make_rig()
    matrix, distortion, turn, *shift = keys.split()
    for camera in rig:
        lens, rotation = camera.integer_intrinsics, camera.rotation
        if matrix == "intrinsicMatrix":  # JARVIS multiplies rows from the left
            lens, rotation = lens.T, rotation.T
        if turn == "rvec":
            rotation = camera.vector[:, None]
        content = {matrix: lens, distortion: np.array([[*camera.coefficients, 0.0]]), turn: rotation}
        content |= dict.fromkeys(shift, camera.translation[:, None])
        path = tmp_path / f"{camera.name}{'.yaml' if shift else '.xml'}"
        if turn == "T_BS":  # EuRoC
            content[turn] = np.linalg.inv(camera.world_to_camera)
            path = tmp_path / camera.name / "sensor.yaml"
            path.parent.mkdir()
            path.with_name("data.csv").write_text("#timestamp [ns],filename\n0,0.png\n")
        elif not shift:  # OpenPose
            content[turn] = camera.world_to_camera[:3]
        write_storage(path, content)
    if turn == "T_BS":
        (tmp_path / "imu0").mkdir()
        write_storage(tmp_path / "imu0/sensor.yaml", {turn: np.eye(4), "rate_hz": 200})
    calibration = read_calibration(tmp_path)
    assert [camera.name for camera in calibration.cameras] == [camera.name for camera in rig]
    for camera, true in zip(calibration.cameras, rig, strict=True):
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-9)
        np.testing.assert_allclose(camera.intrinsics, true.intrinsics, atol=1e-9)
    assert [lens.world_to_camera.tolist() for lens in read_lenses(tmp_path).cameras] == [np.eye(4).tolist()] * 3


def check_tables(calibration: Calibration, rig: list[RigCamera], names: list[str]) -> None:
    """Check the cameras of a rig, of which unnamed ones are numbered."""
    assert list(calibration.names) == (["1", "2", "3"] if calibration.unnamed else names)
    for camera, true in zip(calibration.cameras, rig, strict=True):
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)
        np.testing.assert_allclose(camera.intrinsics, true.intrinsics, atol=1e-12)
        assert camera.distortion.coefficients[:4] == true.coefficients


def test_tables_of_cameras_are_read_in_any_arrangement(tmp_path: Path) -> None:
    rig = make_rig()
    lenses = [
        {"matrix": camera.integer_intrinsics.tolist(), "distortions": [*camera.coefficients, 0.0],
         "size": [*camera.size[::-1]]}
        for camera in rig
    ]  # fmt: skip
    four = [
        dict(zip(("fx", "fy", "ppx", "ppy"), camera.integer_intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]], strict=True))
        for camera in rig
    ]
    poses: dict[str, list[dict[str, object]]] = {
        "vector": [
            {"rotation": camera.vector.tolist(), "translation": camera.translation.tolist()} for camera in rig
        ],
        "RT": [{"RT": camera.world_to_camera[:3].ravel().tolist()} for camera in rig],
        "extrinsic": [{"extrinsic": camera.world_to_camera.tolist()} for camera in rig],
        "cam2world": [{"cam2world": np.linalg.inv(camera.world_to_camera).tolist()} for camera in rig],
    }
    names = [camera.name for camera in rig]
    path = tmp_path / "rig.json"
    for pose in poses.values():
        flat = [lens | turn for lens, turn in zip(lenses, pose, strict=True)]
        nested = [
            {"intrinsics": focal | {key: lens[key] for key in ("distortions", "size")}, "extrinsics": turn}
            for focal, lens, turn in zip(four, lenses, pose, strict=True)
        ]
        named = [table | {"name": name} for name, table in zip(names, flat, strict=True)]
        by_name = dict(zip(names, nested, strict=True))
        for content in (named, {"cameras": named}, by_name, {"cameras": by_name, "unit": "?"}, flat):
            path.write_text(json.dumps(content))
            calibration = read_calibration(path)
            assert calibration.unnamed == (content is flat)
            check_tables(calibration, rig, names)
            assert [camera.image_size for camera in calibration.cameras] == [true.size for true in rig]
    apart = {"intrinsics": dict(zip(names, lenses, strict=True)),
             "extrinsics": dict(zip(names, poses["RT"], strict=True))}  # fmt: skip
    common = {"Ks": np.array([lens["matrix"] for lens in lenses]), "size": np.array([640, 480]),
              "dist": np.array([lens["distortions"] for lens in lenses]),
              "extrinsics": np.array([camera.world_to_camera[:3] for camera in rig])}  # fmt: skip
    parts = {"K": common["Ks"], "D": common["dist"], "R": np.array([camera.rotation for camera in rig]),
             "T": np.array([camera.translation[:, None] for camera in rig])}  # fmt: skip
    files = [tmp_path / f"{index}.npz" for index in range(3)]
    for file, arrays in zip(files, (common, common | {"ids": np.array(names)}, parts), strict=True):
        np.savez(file, **arrays)
    path.write_text(json.dumps(apart))
    for file in (path, *files):
        calibration = read_calibration(file)
        assert calibration.unnamed == (file in (files[0], files[2]))
        check_tables(calibration, rig, names)
    path.write_text(json.dumps({"intrinsics": K.tolist(), "distortion": [-0.1, 0.02, 0.0, 0.0, 0.0]}))
    assert read_lenses(path).names == ("rig",)
    shelf = {
        "R": np.eye(3).tolist(),
        "T": [[1], [2], [3]],
        "fx": 600,
        "fy": 600,
        "cx": 300,
        "cy": 200,
        "k": [0, 0, 0],
    }
    incomplete = "camera 2: camera_matrix is missing"
    for refused, message in (
        ({"0": shelf | {"p": [0.0, 0.0]}}, "camera 0: .*whose T is the position of the camera"),
        ([named[0], poses["vector"][1]], incomplete),
        ({"a": nested[0], "2": poses["vector"][1], "unit": {"x": 1}}, incomplete),
        (
            [named[0] | {"unit": "mm"}, named[1] | {"unit": "m"}, *named[2:]],
            "its cameras have different units: m, mm",
        ),
        (
            {"cam1": {"K": np.eye(3).tolist(), "extrinsic": [1.0] * 9}},
            "camera cam1: the pose has 9 numbers, expected 3x4 or 4x4",
        ),
    ):
        path.write_text(json.dumps(refused))
        with pytest.raises(InputError, match=f"rig.json: {message}"):
            read_calibration(path)
    path.write_text(json.dumps([named[0] | {"unit": "mm"}, *named[1:]]))
    assert read_calibration(path).scale is Scale.ARBITRARY
    path.with_suffix(".csv").write_text('name;fx;fy;cx;cy\n"hall, left";900,5;900;320;240\n')
    (lens,) = read_lenses(path.with_suffix(".csv")).cameras
    assert (lens.name, float(lens.intrinsics[0, 0])) == ("hall, left", 900.5)


def tables_of_brown_conrady(rig: list[RigCamera]) -> Iterator[tuple[str, str, object]]:
    """Yield files of other arrangements and spellings, and with statements for all cameras."""
    tables = {
        camera.name: {"K": camera.integer_intrinsics.tolist(), "D": [*camera.coefficients, 0.0],
                      "R": camera.rotation.tolist(), "T": camera.translation.tolist()}
        for camera in rig
    }  # fmt: skip
    to_world = {camera.name: np.linalg.inv(camera.world_to_camera) for camera in rig}
    yield "by property", "rig.json", {key: {name: table[key] for name, table in tables.items()} for key in "KDRT"}
    yield "K_cam01", "rig.json", {f"{key}_{name}": table[key] for name, table in tables.items() for key in "KDRT"}
    short = {camera.name: {"K": tables[camera.name]["K"], "distortion": [*camera.coefficients, 0.0], "width": 640,
                           "height": 480, "Rt": camera.world_to_camera[:3].tolist()} for camera in rig}  # fmt: skip
    yield (
        "cam01_K",
        "rig.json",
        {f"{name}_{key}": value for name, table in short.items() for key, value in table.items()},
    )
    parts = {camera.name: camera.integer_intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]].tolist() for camera in rig}
    turns = {camera.name: np.roll(Rotation.from_matrix(camera.rotation).as_quat(), 1) for camera in rig}
    words = "qw qx qy qz tx ty tz".split()
    separate = {
        camera.name: dict(zip(words, [*turns[camera.name], *camera.translation.tolist()], strict=True))
        | {"focal_length": parts[camera.name][:2], "principal_point": parts[camera.name][2:]}
        | {"D": tables[camera.name]["D"]}
        for camera in rig
    }
    yield "quaternions", "rig.json", separate
    rows = [(table["K"], [table["D"]], np.c_[table["R"], table["T"]]) for table in tables.values()]
    lines = [[" ".join(map(repr, map(float, row))) for part in parts for row in part] for parts in rows]
    yield "Multiface", "KRT", "\n\n".join("\n".join((name, *part)) for name, part in zip(tables, lines, strict=True))
    poses = {name: {"c2w": (pose @ np.diag([1.0, -1, -1, 1])).tolist()} for name, pose in to_world.items()}
    opengl = [{"name": name, "K": table["K"], "D": table["D"]} | poses[name] for name, table in tables.items()]
    yield "OpenGL", "rig.json", {"convention": "OpenGL", "cams": opengl, "version": 2}
    millimetres = {name: table | {"T": (1000 * np.array(table["T"])).tolist()} for name, table in tables.items()}
    yield "unit", "rig.json", {"units": "millimeters", "rig": millimetres}
    inverse = {name: {"extrinsic_r": pose[:3, :3].tolist(), "extrinsic_t": pose[:3, 3].tolist(), "rotation": 0}
               for name, pose in to_world.items()}  # fmt: skip
    lens = {name: {"K": table["K"], "camera_model": "OPENCV", "D": table["D"][:4]} for name, table in tables.items()}
    yield "XRPrimer", "rig.json", {name: lens[name] | inverse[name] | {"world2cam": False} for name in tables}
    by_columns = [{"intrinsic": {"intrinsic_matrix": np.ravel(table["K"], "F").tolist()}, "D": table["D"],
                   "extrinsic": np.ravel(camera.world_to_camera, "F").tolist(), "name": camera.name}
                  for camera, table in zip(rig, tables.values(), strict=True)]  # fmt: skip
    yield "Open3D", "rig.json", {"class_name": "PinholeCameraTrajectory", "parameters": by_columns}
    depth = {"depth": {"K": K.tolist(), "R": np.eye(3).tolist(), "T": [0.0, 0.0, 1.0]}}
    yield "sensors", "rig.json", {name: depth | {"color": table} for name, table in tables.items()}
    header = (
        "name,fx,fy,cx,cy,k1,k2,p1,p2," + ",".join(f"r{i}{j}" for i in (1, 2, 3) for j in (1, 2, 3)) + ",tx,ty,tz"
    )
    cells = [[camera.name, *camera.integer_intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]], *camera.coefficients,
              *camera.rotation.ravel(), *camera.translation] for camera in rig]  # fmt: skip
    table = "\n".join((header, *(",".join(map(str, row)) for row in cells)))
    yield "columns", "rig.csv", table
    yield "spaces", "rig.csv", table.replace(",", ", ") + "\n,,"
    yield "semicolons", "rig.csv", table.replace(",", ";").replace(".", ",")


def projections(rig: list[RigCamera]) -> Iterator[tuple[str, str, object]]:
    """Yield files of lenses without distortion: NeuS, projection matrices, InterHand2.6M, NeRSemble, Captury."""
    square = {camera.name: np.pad(camera.integer_intrinsics, (0, 1)) + np.diag([0, 0, 0, 1.0]) for camera in rig}
    matrices = {camera.name: -2 * square[camera.name] @ camera.world_to_camera for camera in rig}
    yield "NeuS", "cameras.json", {f"world_mat_{name}": matrix.tolist() for name, matrix in matrices.items()}
    yield "P", "rig.json", {name: {"P": matrix[:3].tolist()} for name, matrix in matrices.items()}
    hand = {"campos": {camera.name: (-camera.rotation.T @ camera.translation).tolist() for camera in rig},
            "camrot": {camera.name: camera.rotation.tolist() for camera in rig},
            "focal": {camera.name: camera.intrinsics[[0, 1], [0, 1]].tolist() for camera in rig},
            "princpt": {camera.name: camera.integer_intrinsics[:2, 2].tolist() for camera in rig}}  # fmt: skip
    yield "InterHand2.6M", "camera.json", {"0": hand}
    text = "Skeletool Camera Calibration File V1.0\n"
    for camera in rig:
        pose = camera.world_to_camera * [1, 1, 1, 1000.0]
        pose[3, 3] = 1
        numbers = [" ".join(map(repr, map(float, matrix.ravel()))) for matrix in (square[camera.name], pose)]
        text += f"name  {camera.name}\n  size  {camera.size[1]} {camera.size[0]}\n  animated  0\n"
        text += f"  intrinsic  {numbers[0]} \n  extrinsic  {numbers[1]} \n  radial  0\n"
    yield "Captury", "camera.calibration", text


def other_tables(rig: list[RigCamera]) -> Iterator[tuple[str, str, object]]:
    """Yield files of other conventions: their data set, name and content."""
    lenses = [camera.integer_intrinsics for camera in rig]
    centers = [(-camera.rotation.T @ camera.translation).tolist() for camera in rig]
    poses = [{"R": camera.rotation.tolist(), "T": camera.translation.tolist()} for camera in rig]
    keys = ("k1", "k2", "k3", "k4") if rig[0].fisheye else ("k1", "k2", "p1", "p2")
    single = [dict(zip(keys, camera.coefficients, strict=True)) | {"is_fisheye": camera.fisheye} for camera in rig]
    for name in ("cam_id", "label", "camera_name", "serial_number"):
        named = zip(rig, lenses, poses, single, strict=True)
        tables = [{name: camera.name, "K": lens.tolist(), **pose, "lens": one} for camera, lens, pose, one in named]
        yield name, "rig.json", {"today": {"cameras": tables[::-1]}}
    numbered = [
        {"id": number, "K": lens.tolist(), **pose, **one}
        for number, (lens, pose, one) in enumerate(zip(lenses, poses, single, strict=True))
    ]
    yield "numbered", "rig.json", numbered[::-1]
    turns = [rig[0].vector.tolist(), *(camera.rotation.tolist() for camera in rig[1:])]
    if not rig[0].fisheye:
        yield from tables_of_brown_conrady(rig)
    google = [
        {"name": camera.name, "position": center, "orientation": turn, "focal_length": lens[0, 0],
         "principal_point": camera.intrinsics[:2, 2].tolist(), "pixel_aspect_ratio": lens[1, 1] / lens[0, 0],
         "radial_distortion": camera.coefficients[: 4 if camera.fisheye else 2], "image_size": camera.size[::-1],
         "projection_type": "fisheye" if camera.fisheye else "perspective"}
        | ({} if camera.fisheye else {"tangential_distortion": camera.coefficients[2:]})
        for camera, lens, center, turn in zip(rig, lenses, centers, turns, strict=True)
    ]  # fmt: skip
    yield "Google", "models.json", google
    if rig[0].fisheye:
        header = "cam_uid," + ",".join(f"t{axis}_world_cam" for axis in "xyz")
        header += "," + ",".join(f"q{axis}_world_cam" for axis in "xyzw") + ",image_width,image_height"
        header += ",intrinsics_type," + ",".join(f"intrinsics_{number}" for number in range(8))
        rows = [
            [camera.name, *center, *Rotation.from_matrix(camera.rotation.T).as_quat(), *camera.size[::-1],
             "KANNALABRANDTK3", *lens[[0, 1, 0, 1], [0, 1, 2, 2]], *camera.coefficients]
            for camera, lens, center in zip(rig, lenses, centers, strict=True)
        ]  # fmt: skip
        yield "Ego-Exo4D", "gopro_calibs.csv", "\n".join((header, *(",".join(map(str, row)) for row in rows)))
    if not any(rig[0].coefficients):
        rows = [
            [camera.name, *camera.size[::-1], *Rotation.from_matrix(camera.rotation.T).as_rotvec(), *center,
             *(camera.intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]] / (camera.size[::-1] * 2))]
            for camera, center in zip(rig, centers, strict=True)
        ]  # fmt: skip
        header = "name,w,h,rx,ry,rz,tx,ty,tz,fx,fy,px,py"
        yield "ActorsHQ", "calibration.csv", "\n".join((header, *(",".join(map(str, row)) for row in rows)))
        yield from projections(rig)
        matrices = {"k": [camera.intrinsics.tolist() for camera in rig],
                    "w2c": [camera.world_to_camera.tolist() for camera in rig]}  # fmt: skip
        instants = {key: [value] * 3 for key, value in matrices.items()}
        files = [[f"{camera.name}/{time:06d}.jpg" for camera in rig] for time in range(3)]
        yield "Dynamic 3DGS", "train_meta.json", {"w": 640, "h": 480, "fn": files, **instants}


@pytest.mark.parametrize("lens", ["plain", "fisheye", "none"])
def test_tables_of_other_conventions_have_the_same_pixels(lens: str, tmp_path: Path) -> None:
    points = np.random.default_rng(3).uniform(-0.7, 0.7, size=(20, 3))
    rig = make_rig(fisheye=lens == "fisheye")
    if lens == "none":
        rig = [replace(camera, coefficients=(0.0, 0.0, 0.0, 0.0)) for camera in rig]
    for kind, name, content in other_tables(rig):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        calibration = read_calibration(path)
        cameras = sorted(calibration.cameras, key=lambda camera: camera.name)
        expected = ["1", "2", "3"] if kind == "numbered" else [camera.name for camera in rig]
        assert [camera.name for camera in cameras] == expected, kind
        assert not any("no distortion" in notice for notice in calibration.notices) or lens == "none", kind
        assert (calibration.scale is Scale.METRIC) == (kind in ("unit", "Captury")), kind
        for camera, true in zip(cameras, rig, strict=True):
            np.testing.assert_allclose(read_pixels(camera, points), true.pixels(points), atol=1e-9, err_msg=kind)


def test_cameras_of_mvsnet_and_common_lenses_are_read(tmp_path: Path) -> None:
    rig = make_rig()
    (tmp_path / "cams").mkdir()
    for camera in rig:
        lens, pose = ("\n".join(" ".join(map(repr, map(float, row))) for row in matrix)
                      for matrix in (camera.integer_intrinsics, camera.world_to_camera))  # fmt: skip
        (tmp_path / "cams" / f"{camera.name}_cam.txt").write_text(
            f"extrinsic\n{pose}\n\nintrinsic\n{lens}\n\n425.0 2.5\n"
        )
    common = {
        "world_2_cam": {camera.name: camera.world_to_camera.tolist() for camera in rig},
        "intrinsics": K.tolist(),
    }
    (tmp_path / "camera_params.json").write_text(json.dumps(common))  # NeRSemble
    for path, lenses in ((tmp_path / "cams", [camera.integer_intrinsics for camera in rig]), (tmp_path, [K] * 3)):
        for camera, true, lens in zip(read_calibration(path).cameras, rig, lenses, strict=True):
            assert camera.name == true.name
            np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)
            np.testing.assert_allclose(camera.intrinsics[:2, 2], lens[:2, 2] + 0.5, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xi": 1.2}, "the distortion model omnidirectional is not supported"),
        ({"camera_model": "ds", "distortion_model": "radtan"}, "the distortion model ds is not supported"),
        ({"camera_model": "Double-Sphere"}, "the distortion model Double-Sphere is not supported"),
        ({"model": "distortion.inverse_brown_conrady"}, "distortion.inverse_brown_conrady is not supported"),
        ({"left": {"K": K.tolist()}, "right": {"K": K.tolist()}}, "it has 2 lenses: left, right"),
        ({"w2c": np.eye(4).tolist()}, "r and w2c state different poses"),
        ({"K": (K @ np.eye(3, 4, 1)).tolist()}, "the fourth column of camera_matrix is not zero"),
        ({"K": K.T.ravel().tolist()}, "camera_matrix is transposed, but R may not be"),
        ({"R": None, "w2c": np.ones((4, 4)).tolist()}, "the last row of the pose is not 0 0 0 1"),
        ({"convention": "unity"}, "its convention is unity"),
        ({"h": 480}, "the image has a height or a width alone"),
        ({"f": [1, 1], "c": [0, 0], "k": [0, 0, 0], "p": [0, 0]}, "it has f, k and p"),
        ({"D": None, "radial_distortion": -0.1}, "radial_distortion is not a list of numbers"),
        ({"D": None, "distortion": 0.1}, "distortion is not a list of numbers"),
        ({"D": [0.1] * 14}, "14 distortion coefficients; thin-prism and tilt terms are not supported"),
        ({"R": [1.0, 0, 0, 0]}, "R is a quaternion of an unknown order"),
        ({"K": None, "P": [1, 2, 3]}, "the projection matrix has 3 numbers, expected 3x4 or 4x4"),
        ({"K": None, "P": np.diag([1, 1, 0, 1]).tolist()}, "the projection matrix is singular"),
    ],
)
def test_statements_that_a_camera_contradicts_are_not_ignored(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table = {"K": K.tolist(), "D": [-0.1, 0, 0, 0, 0.0], "R": np.eye(3).tolist(), "T": [1.0, 0.0, 0.0]}
    path = tmp_path / "rig.json"
    path.write_text(json.dumps({"cam1": table | change}))
    with pytest.raises(InputError, match=rf"rig.json: camera cam1: .*{message}"):
        read_calibration(path)
    zero = table | {"D": [0.0] * 5, "model": "distortion.inverse_brown_conrady"}
    path.write_text(json.dumps({"cam1": zero}))
    assert read_calibration(path).cameras[0].distortion is None


@pytest.mark.parametrize(
    ("last", "shift", "order"),
    [([1e-17, 0, 0, 0.9999999], 1.0, "C"), ([0, 0, 0, 1], 1.0, "F"), ([0, 0, 0, 1], 0.0, "F")],
)
def test_poses_by_rows_or_columns_are_read(last: list[float], shift: float, order: Any, tmp_path: Path) -> None:
    pose = np.vstack([np.c_[make_rig()[1].rotation, [shift, 0, 0]], last])
    content = {"K": np.ravel(K, order).tolist(), "w2c": np.ravel(pose, order).tolist()}
    (tmp_path / "rig.json").write_text(json.dumps({"cam1": content if order == "F" else content | {"K": K.tolist()}}))
    (camera,) = read_calibration(tmp_path / "rig.json").cameras
    np.testing.assert_allclose(camera.world_to_camera[:3], pose[:3], atol=1e-12)


LENS, PLACED = {"K": K.tolist(), "D": [-0.1, 0.02, 0.0, 0.0, 0.003]}, {"R": np.eye(3).tolist(), "T": [1.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    ("table", "common"),
    [
        (LENS | PLACED | {"H": np.eye(3).tolist()}, {}),  # a homography
        ({"intrinsics": LENS, "extrinsics": PLACED, "projection": "perspective"}, {}),
        ({"intrinsics": LENS, "extrinsics": PLACED, "P": np.c_[K, np.zeros(3)].tolist()}, {}),
        (LENS | PLACED | {"D": [-0.1, 0.02, 0.003], "distortion_model": "radial"}, {}),
        ({"K": np.c_[K, np.zeros(3)].tolist(), "radial": [-0.1, 0.02, 0.003], "tangential": [0, 0]} | PLACED, {}),
        (LENS | {"R": PLACED["R"], "T": [-1.0, 0.0, 0.0]}, {"convention": "camera to world"}),
        (LENS | PLACED, {"cameras": 1}),
    ],
)
def test_other_entries_of_a_camera_are_understood(
    table: dict[str, Any], common: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "rig.json"
    path.write_text(json.dumps({"cam1": table} | common))
    (camera,) = read_calibration(path).cameras
    np.testing.assert_array_equal(camera.world_to_camera[:3], np.c_[np.eye(3), [1.0, 0.0, 0.0]])
    assert camera.distortion.coefficients[:5] == (-0.1, 0.02, 0.0, 0.0, 0.003)


@pytest.mark.parametrize(
    "stated", [{"is_fisheye": True}, {"lens_model": "fisheye"}, {"distortion_type": "equidistant"}]
)
def test_a_stereo_file_states_the_lens_and_the_size_of_both_cameras(stated: dict[str, Any], tmp_path: Path) -> None:
    content = {key: np.asarray(value).tolist() for key, value in STEREO.items()} | {"D1": [0.1] * 4, "D2": [0.2] * 4}
    path = tmp_path / "stereo.json"
    path.write_text(json.dumps(content | stated | {"img_height": 48, "img_width": 64}))
    for camera in read_calibration(path).cameras:
        assert (camera.distortion.model, camera.image_size) == (LensModel.FISHEYE, SIZE)


@pytest.mark.parametrize("key", ["{word}_{name}", "{name}_{word}"])
def test_cameras_may_be_named_as_properties_and_have_a_common_size(key: str, tmp_path: Path) -> None:
    names = ("left", "R", "K") if key.startswith("{word}") else ("cam2", "cam1", "cam3")
    lenses = {key.format(word="K", name=name): (K + np.diag([n, 0, 0])).tolist() for n, name in enumerate(names)}
    poses = {key.format(word=word, name=name): PLACED[word] for name in names[::-1] for word in ("R", "T")}
    rectified = {key.format(word="P", name=f"rect_{name}"): np.eye(3, 4).tolist() for name in names}
    (tmp_path / "intri.json").write_text(json.dumps({"height": 48, "width": 64} | lenses | rectified))
    (tmp_path / "extri.json").write_text(json.dumps(poses))
    for path in (tmp_path / "intri.json", tmp_path / "extri.json")[: 1 + key.startswith("{word}")]:
        cameras = read_calibration(path).cameras
        assert [(camera.name, float(camera.intrinsics[0, 0])) for camera in cameras] == [
            (name, 70.0 + n) for n, name in enumerate(names)
        ]
        assert {camera.image_size for camera in cameras} == {SIZE}


def bouguet(camera: RigCamera, end: str = "") -> dict[str, Any]:
    matrix = camera.integer_intrinsics
    return {f"fc{end}": matrix[[0, 1], [0, 1]][:, None], f"cc{end}": matrix[:2, 2:], f"alpha_c{end}": 0.0,
            f"kc{end}": np.array([*camera.coefficients, 0.0])[:, None]}  # fmt: skip


def parameters(camera: RigCamera) -> dict[str, Any]:
    """Return `toStruct(cameraParams)`."""
    names = {"K": "IntrinsicMatrix", "RDistort": "RadialDistortion", "TDistort": "TangentialDistortion"}
    lens = {names[key]: value for key, value in matlab_camera(camera).items() if key in names}
    return lens | {"ImageSize": np.array([camera.size], float), "WorldUnits": "mm"}


def test_calibrations_of_matlab_have_pixels_from_one_and_matrices_for_rows(tmp_path: Path) -> None:
    first, second, _ = make_rig()[1:] + make_rig()[:1]
    pose = relative(first, second)
    size = {"nx": float(first.size[1]), "ny": float(first.size[0])}
    turn, shift = pose[:3, :3], pose[:3, 3]
    stereo = {"CameraParameters1": parameters(first), "CameraParameters2": parameters(second),
              "RotationOfCamera2": turn.T, "TranslationOfCamera2": shift[None]}  # fmt: skip
    toolbox = bouguet(first, "_left") | bouguet(second, "_right") | size
    path = tmp_path / "calibration.mat"
    for content in (
        stereo,
        {"s": stereo, "images": np.zeros((90, 90)), "z": 1j},
        toolbox | {"R": turn, "T": shift[:, None]},
        toolbox | {"om": cv2.Rodrigues(turn)[0], "T": shift[:, None]},
    ):
        scipy.io.savemat(path, content)
        calibration = read_calibration(path)
        assert calibration.unnamed
        for camera, true, expected in zip(calibration.cameras, (first, second), (np.eye(4), pose), strict=True):
            np.testing.assert_allclose(camera.intrinsics, true.intrinsics, atol=1e-12)
            np.testing.assert_allclose(camera.world_to_camera, expected, atol=1e-12)
            assert camera.image_size == true.size
            assert camera.distortion.coefficients[:4] == true.coefficients
    for content in (parameters(first), {"cameraParams": parameters(first)}, bouguet(first) | size):
        scipy.io.savemat(path, content)
        (lens,) = read_lenses(path).cameras
        np.testing.assert_allclose(lens.intrinsics, first.intrinsics, atol=1e-12)
        assert lens.image_size == first.size
        with pytest.raises(InputError, match=r"it has a lens, but no pose \(R and T\)"):
            read_calibration(path)


def test_a_lens_in_an_archive_of_numpy_is_read(tmp_path: Path) -> None:
    lens = {"mtx": K, "dist": np.array([[-0.1, 0.02, 0.0, 0.0, 0.01]]), "rvecs": np.zeros((4, 3, 1))}
    np.savez(tmp_path / "calibration.npz", **lens)
    (camera,) = read_lenses(tmp_path).cameras
    assert camera.intrinsics.tolist() == [[70.0, 0.0, 32.0], [0.0, 71.0, 24.0], [0.0, 0.0, 1.0]]
    (tmp_path / "calibration.npz").write_bytes(b"PK\3\4")
    with pytest.raises(InputError, match="it is not an archive of NumPy arrays, or incomplete"):
        read_lenses(tmp_path)


def test_files_of_single_cameras_of_dannce_are_in_natural_order(tmp_path: Path) -> None:
    rig = make_rig()
    for camera, number in zip(rig, (1, 2, 10), strict=True):
        scipy.io.savemat(tmp_path / f"hires_cam{number}_params.mat", matlab_camera(camera))
    calibration = read_calibration(tmp_path)
    assert calibration.names == ("hires_cam1_params", "hires_cam2_params", "hires_cam10_params")
    for camera, true in zip(calibration.cameras, rig, strict=True):
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)
    scipy.io.savemat(tmp_path / "own.mat", matlab_camera(rig[0]) | {"K": rig[0].intrinsics})
    with pytest.raises(InputError, match=r"own.mat: camera own: K is not that of MATLAB"):
        read_calibration(tmp_path / "own.mat")


def mat_object(name: bytes) -> bytes:
    """Return a MAT file with an object: flags, its name, the system of its class, the class, and its number."""
    element = lambda kind, data: struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)  # noqa: E731
    number = (6, struct.pack("<II", 13, 0)), (5, struct.pack("<ii", 1, 1)), (1, b""), (6, struct.pack("<I", 1))
    reference = b"".join(element(*part) for part in number)
    parts = (6, struct.pack("<II", 17, 0)), (1, name), (1, b"MCOS"), (1, b"stereoParameters"), (14, reference)
    return b"MATLAB 5.0".ljust(124) + b"\0\1IM" + element(14, b"".join(element(*part) for part in parts))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (mat_object(b"stereoParams"), "is a calibration of MATLAB objects, which is not read"),
        (b"MATLAB 7.3".ljust(512) + b"\x89HDF\r\n", "it is a MAT file of version 7.3: save it in MATLAB with '-v7'"),
        (b"\0" * 200, "it is not a MAT file of version 5 to 7.2, or damaged"),
        (mat_object(b"x")[:-8], "it is not a MAT file of version 5 to 7.2, or damaged"),
    ],
)
def test_mat_files_that_cannot_be_read_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.mat").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_calibration(tmp_path / "calibration.mat")
    assert ("toStruct" in caught.value.hint) == ("objects" in message)


def test_lenses_and_poses_in_two_files_per_camera_are_paired(tmp_path: Path) -> None:
    rig = make_rig()
    write_file_pairs(tmp_path, rig)
    for path, names in (
        (tmp_path / "intrinsic", 3),
        (tmp_path / "extrinsic", 3),
        (tmp_path / "intrinsic" / "intr_cam01.xml", 1),
        (tmp_path / "extrinsic" / "extr_cam01.xml", 1),
    ):
        calibration = read_calibration(path)
        assert calibration.names == tuple(camera.name for camera in rig[:names])
        np.testing.assert_allclose(calibration.cameras[0].world_to_camera, rig[0].world_to_camera, atol=1e-12)
    assert read_lenses(tmp_path).names == ("cam01", "cam02", "cam03")
    shutil.copytree(tmp_path / "intrinsic", tmp_path / "intrinsic_original")
    with pytest.raises(InputError, match="contains 2 folders of lenses: intrinsic, intrinsic_original") as caught:
        read_calibration(tmp_path)
    assert f"calibration='{tmp_path / 'intrinsic'}'" in caught.value.marked_hint
    with pytest.raises(InputError, match=r"extr_cam01.xml: camera .*: camera_matrix is missing"):
        read_calibration(tmp_path / "extrinsic")


def test_lenses_of_several_files_are_joined(tmp_path: Path) -> None:
    scene = open_scene(views(tmp_path / "rig", "left", "right"))
    (tmp_path / "info").mkdir()
    for names, files in (
        (("left", "right"), ("left", "right")),
        (("narrow_stereo",) * 2, ("left", "right")),
        (("narrow_stereo",) * 2, ("left.camera_info", "right.camera_info")),
        (("narrow_stereo",) * 2, ("rig.left", "rig.right")),
    ):
        for path in (tmp_path / "info").iterdir():
            path.unlink()
        for file, name in zip(files, names, strict=True):
            text = ROS.format(name=name, model="plumb_bob", count=5, data=[0.0] * 5)
            (tmp_path / "info" / f"{file}.yaml").write_text(text)
        assert [lens.intrinsics[0, 0] for lens in lenses_of(scene, intrinsics=tmp_path / "info")] == [70.0, 70.0]


def test_the_sample_of_opencv_states_whether_four_coefficients_are_a_fisheye(tmp_path: Path) -> None:
    content = {"image_width": 64, "image_height": 48, "camera_matrix": K, "fisheye_model": 1,
               "distortion_coefficients": np.array([[-0.1], [0.02], [0.0], [0.0]])}  # fmt: skip
    path = write_storage(tmp_path / "camera.yml", content)
    for flag, lens in ((1, LensModel.FISHEYE), (0, LensModel.BROWN_CONRADY)):
        write_storage(path, content | {"fisheye_model": flag})
        assert read_lenses(path).cameras[0].distortion.model is lens
    content.pop("fisheye_model")
    with pytest.raises(InputError, match="4 distortion coefficients are k1 k2 p1 p2, or k1 k2 k3 k4") as caught:
        read_lenses(write_storage(path, content))
    assert "fisheye_model: 1" in caught.value.hint


def llff_rows(rig: list[RigCamera]) -> np.ndarray:
    """Return rows by the README of LLFF: columns down, right, backwards, centre, (height, width, focal length)."""
    rows = []
    for camera in rig:
        right, down, forward = camera.rotation
        center = -camera.rotation.T @ camera.translation
        matrix = np.stack([down, right, -forward, center, [*camera.size, 600.0]], axis=1)
        rows.append([*matrix.ravel(), 0.5, 9.0])
    return np.array(rows)


def test_poses_bounds_are_written(tmp_path: Path) -> None:
    rig = make_rig()
    poses = np.stack([np.linalg.inv(camera.world_to_camera) for camera in rig])
    lenses = np.array([[*camera.size, 600.0] for camera in rig])
    (tmp_path / "a.npy").write_bytes(llff.encode(poses, lenses, np.tile([0.5, 9.0], (3, 1))))
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), llff_rows(rig), atol=1e-12)


@pytest.mark.parametrize("kind", ["LLFF", "3D Gaussian Splatting"])
def test_cameras_with_centred_lenses_are_camera_to_world(kind: str, tmp_path: Path) -> None:
    rig = make_rig()
    content = [
        {"id": index, "img_name": camera.name, "width": camera.size[1], "height": camera.size[0], "fx": 600.0,
         "fy": 600.0, "position": (-camera.rotation.T @ camera.translation).tolist(),
         "rotation": camera.rotation.T.tolist()}
        for index, camera in enumerate(rig)
    ]  # fmt: skip
    if kind == "LLFF":
        np.save(tmp_path / "poses_bounds.npy", llff_rows(rig))
    else:
        (tmp_path / "cameras.json").write_text(json.dumps(content))
    calibration = read_calibration(tmp_path)
    assert (calibration.format, calibration.unnamed) == (kind, kind == "LLFF")
    assert calibration.names == (("1", "2", "3") if kind == "LLFF" else ("cam01", "cam02", "cam03"))
    for camera, true in zip(calibration.cameras, rig, strict=True):
        assert camera.image_size == true.size
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)
        height, width = true.size
        assert camera.intrinsics.tolist() == [[600.0, 0.0, width / 2], [0.0, 600.0, height / 2], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.zeros((3, 15)), r"its shape is \(3, 15\), expected \(views, 17\)"),
     (np.array([None]), r"it is not a NumPy array of numbers \(save K, R and T of Python objects with numpy")],
)  # fmt: skip
def test_other_arrays_are_refused(array: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "poses_bounds.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=message):
        read_calibration(tmp_path)


@pytest.mark.parametrize(("height", "width"), [(0.0, 0.0), (-48.0, 64.0), (48.0, np.nan), (1e12, 64.0)])
def test_poses_bounds_with_impossible_sizes_are_refused(height: float, width: float, tmp_path: Path) -> None:
    rows = llff_rows(make_rig())
    rows[1, [4, 9]] = height, width
    np.save(tmp_path / "poses_bounds.npy", rows)
    with pytest.raises(
        InputError, match=r"poses_bounds.npy: camera 2: the image size is (64x-?\d|0x0|nanx48|64x1e\+12)"
    ):
        read_calibration(tmp_path)


def test_a_field_of_view_alone_takes_the_size_of_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_frames(tmp_path / "train")
    stems = sorted(path.stem for path in (tmp_path / "train").iterdir())
    frames = [
        {"file_path": f"./train/{stem}", "time": index / 4, "transform_matrix": np.eye(4).tolist()}
        for index, stem in enumerate(stems)
    ]
    (tmp_path / "transforms_train.json").write_text(
        json.dumps({"camera_angle_x": 2 * np.arctan(64 / 2 / 90), "camera_angle_y": 1.0, "frames": frames})
    )
    monkeypatch.chdir(tmp_path)
    scene = open_scene(".", calibration=Path())
    np.testing.assert_allclose(scene.views[0].camera.intrinsics, [[90, 0, 32], [0, 90, 24], [0, 0, 1]], rtol=1e-12)
    assert not any("ignored transforms_train.json" in notice.marked_text for notice in scene.notices)


def test_images_of_one_moving_camera_are_the_frames_of_their_view(tmp_path: Path) -> None:
    write_frames(tmp_path / "images")
    files = sorted((tmp_path / "images").iterdir())
    frames = []
    for index, file in reversed(list(enumerate(files))):
        matrix = np.eye(4)
        matrix[0, 3] = index
        frames.append({"file_path": f"images/{file.name}", "transform_matrix": matrix.tolist()})
    content = {"fl_x": 70.0, "cx": 32.0, "cy": 24.0, "w": 64, "h": 48, "frames": frames}
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    scene = open_scene(tmp_path, calibration=tmp_path / "transforms.json")
    assert scene.views[0].camera.world_to_camera[:, 0, 3].tolist() == [0.0, -1.0, -2.0, -3.0]
    for index, file in enumerate(files):
        file.rename(file.with_name(f"cam{index}.png"))
    (tmp_path / "transforms.json").write_text(json.dumps(content).replace("frame_0000", "cam"))
    cameras = [view.camera for view in open_scene(tmp_path, calibration=tmp_path / "transforms.json").views]
    assert [camera and camera.world_to_camera[0, 3].tolist() for camera in cameras] == [0.0, -1.0, -2.0, -3.0]


def test_rows_of_poses_bounds_are_the_images_of_one_moving_camera(tmp_path: Path) -> None:
    write_frames(tmp_path / "images")
    rows = np.tile(llff_rows(make_rig())[0], (4, 1))
    rows[:, [4, 9, 14]] = [[*SIZE, 70.0]]
    rows[:, 3] += np.arange(4)  # the centre moves along x
    np.save(tmp_path / "poses_bounds.npy", rows)
    camera = open_scene(tmp_path, calibration=tmp_path / "poses_bounds.npy").views[0].camera
    centers = -(camera.world_to_camera[:, :3, :3].mT @ camera.world_to_camera[:, :3, 3:])[..., 0]
    np.testing.assert_allclose((centers - centers[0]).numpy()[:, 0], [0, 1, 2, 3], atol=1e-12)


@pytest.mark.parametrize(
    ("names", "longer", "paired"),
    [
        ("00_10 00_00", "hd_00_00 hd_00_10", "hd_00_10 hd_00_00"),
        ("cam1 cam2", "int_cam1_img int_cam2_img", "int_cam1_img int_cam2_img"),
        ("A B C", "take3-B-trimmed take3-A-trimmed", "take3-A-trimmed take3-B-trimmed"),
        ("1 2", "s_1_c_1 s_1_c_2", "s_1_c_1 s_1_c_2"),
        ("cam1 cam2", "cam1_a cam1_b cam2_a", ""),
        ("1 2", "take_1_cam_3 take_2_cam_4 take_1_cam_5", ""),
        ("cam1 cam2", "cam10 cam20", ""),
        ("2 1", "cam01 cam02", "cam02 cam01"),
        ("0 1", "Kinect0 Kinect10", ""),
        ("Camera_2 Camera_1", "cam01 cam02", "cam02 cam01"),
        ("depth_1 depth_2", "cam1 cam2", ""),
        ("1 2", "cam1_take1 cam2_take1", ""),
        ("01", "2024_01_camA", ""),
        ("01 02", "take_01_camA take_02_camB", ""),
        ("01 02", "2024_01_05_left 2024_02_05_right", ""),
        ("01 02", "left_take_01 right_take_02", ""),
        ("05 06", "2024-01-05 2024-01-06", ""),
        ("01 02", "take_05_cam_01_img take_05_cam_02_img", "take_05_cam_01_img take_05_cam_02_img"),
        ("402 403", "b__402__20240315_14 b__403__20240315_14", "b__402__20240315_14 b__403__20240315_14"),
        ("1 2", "1_take3 2_take3", "1_take3 2_take3"),
        ("01 02", "iphone_12_cam_01 iphone_13_cam_02", "iphone_12_cam_01 iphone_13_cam_02"),
        ("1 2", "video_1_1080p video_2_1080p", "video_1_1080p video_2_1080p"),
    ],
)
def test_names_are_paired_with_those_that_contain_them(names: str, longer: str, paired: str) -> None:
    found = paired_names(names.split(), longer.split())
    assert [found[name] for name in names.split() if name in found] == paired.split()


@pytest.mark.parametrize("scale", [1.0, 1.5, 0.5])
def test_matrices_of_images_of_another_size_are_reported(scale: float, tmp_path: Path) -> None:
    folder = views(tmp_path / "rig", "cam1", "cam2")
    lens = np.diag([scale, scale, 1.0]) @ K
    camera = {"K": lens.tolist(), "dist": [0.0] * 5, "R": np.eye(3).tolist()}
    cameras = {f"/rig/cam{n}.MP4": camera | {"T": [float(n), 0.0, 0.0]} for n in (1, 2)}
    path = tmp_path / "rig.json"
    path.write_text(json.dumps(cameras))
    found = [
        notice.text for notice in open_scene(folder, calibration=path).notices if "principal points" in notice.text
    ]
    assert [float(text.split("images of ")[1].split()[0]) for text in found] == pytest.approx(
        [] if scale == 1.0 else [scale], rel=0.05
    )
    path.write_text(json.dumps({name: each | {"size": list(SIZE[::-1])} for name, each in cameras.items()}))
    texts = [notice.text for notice in open_scene(folder, calibration=path).notices]
    assert not any("principal points" in text for text in texts)


def test_videos_for_lenses_may_have_longer_names_than_views(tmp_path: Path) -> None:
    scene = open_scene(views(tmp_path / "rig", "cam1", "cam2"))
    assert [*_lens_footage(scene, views(tmp_path / "lenses", "int_cam2_img", "int_cam1_img"))] == [0, 1]
    with pytest.raises(UsageError, match="has the name of a view"):
        _lens_footage(scene, views(tmp_path / "others", "x", "y"))


def test_views_are_paired_with_cameras_by_the_ends_of_their_names(tmp_path: Path) -> None:
    folder = views(tmp_path / "rig", "hd_00_00", "hd_00_10")
    cameras = [
        {"name": name, "type": "hd", "resolution": [64, 48], "K": (K + np.diag([shift, 0, 0])).tolist(),
         "R": np.eye(3).tolist(), "t": [[100.0 * shift], [0.0], [0.0]], "panel": 0, "node": shift}
        for shift, name in enumerate(("00_10", "00_00"))
    ]  # fmt: skip
    path = tmp_path / "calibration_1.json"
    path.write_text(json.dumps({"cameras": cameras}))
    scene = open_scene(folder, calibration=path)
    first, second = (view.camera for view in scene.views)
    assert [float(camera.intrinsics[0, 0]) for camera in (first, second)] == [71.0, 70.0]
    assert float(first.world_to_camera[0, 3]) == 1.0  # 100 cm
    assert any("00_10 is hd_00_10, 00_00 is hd_00_00" in notice.marked_text for notice in scene.notices)
    for camera in cameras:
        del camera["node"]
    path.write_text(json.dumps({"cameras": cameras}))
    other = read_calibration(path)
    assert (other.scale, float(other.cameras[1].world_to_camera[0, 3])) == (Scale.ARBITRARY, 100.0)
    by_order = open_scene(folder, calibration=path, calibration_match=CalibrationMatch.ORDER)
    assert float(by_order.views[0].camera.intrinsics[0, 0]) == 70.0


def test_caliscope_cameras_that_are_not_in_use_are_left_out(tmp_path: Path) -> None:
    path = write_caliscope(tmp_path, make_rig())
    text = path.read_text().replace("ignore = false", "ignore = true", 1)
    tables = text.split("[cameras.")
    tables[2] = "\n".join(line for line in tables[2].splitlines() if not line.startswith("rotation =")) + "\n"
    path.write_text("[cameras.".join(tables))
    calibration = read_calibration(path)
    assert calibration.names == ("cam_2",)
    assert calibration.notices == (
        "camera_array.toml: cam_0, cam_1 left out: not calibrated completely, or marked with 'ignore'",
    )
    assert read_lenses(path).names == ("cam_1", "cam_2")
    path.write_text(path.read_text().replace("translation =", 'translation = "null" #'))
    with pytest.raises(InputError, match="no camera has all of matrix, rotation, translation") as caught:
        read_calibration(path)
    assert "intrinsics" in caught.value.hint


def test_poses_of_multical_may_be_missing(tmp_path: Path) -> None:
    path = edit_json(write_multical(tmp_path, make_rig()), lambda content: content["camera_poses"].pop("cam02"))
    calibration = read_calibration(path)
    assert (calibration.names, calibration.notices) == (
        ("cam01", "cam03"),
        ("calibration.json: cam02 left out: without a pose",),
    )
    edit_json(path, lambda content: content.pop("camera_poses"))
    assert read_lenses(path).names == ("cam01", "cam02", "cam03")


TOOL_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    (
        "kalibr",
        "camera_model: pinhole",
        "camera_model: omni",
        "camera cam01: the distortion model omni is not supported",
    ),
    ("kalibr", "distortion_model: radtan", "distortion_model: fov", "the distortion model fov is not supported"),
    ("kalibr", r"cam02:\n.*T_cn_cnm1.*\n", "cam02:\n", "camera cam02: T_cn_cnm1 is missing"),
    ("mc-calib", "camera_group: 0", "camera_group: 1", "2 groups without common poses"),
    ("mc-calib", "distortion_type: 0", "distortion_type: 2", "the distortion model 2 is not supported"),
    ("multical", r'"camera_poses": \{', '"camera_poses": {"a_to_b": 1, ', "relative to 2 cameras: b, cam01"),
    ("metashape", "<k1>", "<k4>0.1</k4><k1>", "the lens has k4, p3 or p4"),
    ("metashape", 'type="frame"', 'type="spherical"', "the sensor type spherical is not supported"),
    ("metashape", "<f>([^<]*)</f>", r"<fx>\1</fx>", "its calibration has no focal length f"),
    ("metashape", "<transform>", "<pose>", "not well-formed XML"),
    ("metashape", "<transform>", "<transform>1 ", "<transform> has 17 numbers, expected 16"),
    ("metashape", "(?s)<calibration .*?</calibration>", "", "its sensor has no calibration"),
    ("multical", '"camera_poses": ', '"camera_poses": {}, "old_poses": ', "has no camera_poses"),
    ("metashape", "<cameras>.*</cameras>", "<cameras/>", "it has 0 chunks with aligned cameras, expected 1"),
    ("panoptic", '"R":', '"q":', r"camera cam01: it has a lens, but no pose \(R and T\)"),
)


@pytest.mark.parametrize(("name", "old", "new", "message"), TOOL_ERRORS)
def test_what_cannot_be_read_is_named(name: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, make_rig())
    count = 1 if name in ("mc-calib", "multical") or "cam02" in old else 0
    path.write_text(re.sub(old, new, path.read_text(), count=count))
    with pytest.raises(InputError, match=message) as caught:
        read_calibration(path)
    assert caught.value.hint


def test_metashape_names_images_by_groups_and_leaves_out_what_is_not_aligned(tmp_path: Path) -> None:
    path = write_metashape(tmp_path, make_rig())
    text = path.read_text().replace('<camera id="0"', '<group label="left"><camera id="0"')
    text = text.replace('<camera id="1"', '</group><group label="right"><camera id="1"')
    text = text.replace('<camera id="2"', '</group><camera id="9" label="lost"/><camera id="2"')
    world = re.findall(r"(<transform><rotation>.*</transform>)</chunk>", text)[0]
    text = text.replace(world, f'<components><component id="5">{world}</component></components>')
    path.write_text(text.replace("<camera ", '<camera component_id="5" '))
    calibration = read_calibration(path)
    assert calibration.names == ("left", "right", "cam03")
    assert calibration.notices == ("cameras.xml: lost left out: without a transform",)
    for camera, true in zip(calibration.cameras, make_rig(), strict=True):
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)


def test_formats_of_other_tools_that_are_not_read_are_named(tmp_path: Path) -> None:
    sfm = {"cameras.sfm": {"version": ["1", "2", "6"], "poses": [{"poseId": "1", "pose": {}}]},
           "sfm_data.json": {"sfm_data_version": "0.3", "views": [], "extrinsics": []}}  # fmt: skip
    for name, content in sfm.items():
        (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(
            InputError, match=f"'{name}' is a calibration of (AliceVision|OpenMVG), which is not read"
        ):
            read_calibration(tmp_path / name)
        (tmp_path / name).unlink()
    (tmp_path / "take.xcp").write_text('<?xml version="1.0"?>\n<Cameras><Camera DEVICEID="1"/></Cameras>')
    for path in (tmp_path / "take.xcp", tmp_path):
        with pytest.raises(InputError, match=r"'take.xcp' is a calibration of Vicon, which is not read") as caught:
            read_calibration(path)
        assert "Pose2Sim" in caught.value.hint
    WRITERS["toml"](tmp_path, make_rig())
    assert read_calibration(tmp_path).format == "Pose2Sim/Anipose TOML"
