"""One rig in every format has the same pixels, sizes, names and unit; independent libraries agree."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pycolmap
import pytest
import torch
from scipy.spatial.transform import Rotation

from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.formats.calibrations import read_calibration, read_lenses
from page4d.geometry.distortion import LensModel
from tests.scene.calibration_writers import (
    FISHEYE_FORMATS,
    NAMES,
    WRITERS,
    make_rig,
    read_pixels,
    write_toml,
    write_yaml,
)

SAME_PIXEL = 1e-9
POINTS = np.random.default_rng(3).uniform(-0.7, 0.7, size=(200, 3))
METRIC_FORMATS = ("qualisys", "toml", "caliscope", "kalibr", "panoptic", "truth", "output")
RIG_NAMES = ("cam01", "cam02", "cam03")


@pytest.mark.parametrize("name", WRITERS)
def test_one_rig_has_the_same_pixels_in_every_format(name: str, tmp_path: Path) -> None:
    rig = make_rig()
    calibration = read_calibration(WRITERS[name](tmp_path, rig))
    assert calibration.names == NAMES.get(name, RIG_NAMES)
    assert calibration.scale is (Scale.METRIC if name in METRIC_FORMATS else Scale.ARBITRARY)
    assert calibration.notices == ()
    for true, camera in zip(rig, calibration.cameras, strict=True):
        assert camera.image_size == (None if name.startswith(("dat", "label3d")) else true.size)
        assert camera.is_static
        assert camera.intrinsics.dtype == camera.world_to_camera.dtype == torch.float64
        assert camera.distortion.model is LensModel.BROWN_CONRADY
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)
        np.testing.assert_allclose(read_pixels(camera, POINTS), true.pixels(POINTS), atol=SAME_PIXEL)


@pytest.mark.parametrize("read", [read_calibration, read_lenses])
@pytest.mark.parametrize("name", ["nerfstudio", "truth", "output"])
def test_json_is_parsed_once(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, make_rig())
    with patch.object(json, "loads", wraps=json.loads) as parse:
        read(path)
    assert parse.call_count == 1


@pytest.mark.parametrize("name", FISHEYE_FORMATS)
def test_one_fisheye_rig_has_the_same_pixels_in_every_format(name: str, tmp_path: Path) -> None:
    rig = make_rig(fisheye=True)
    for true, camera in zip(rig, read_calibration(WRITERS[name](tmp_path, rig)).cameras, strict=True):
        assert camera.distortion.model is LensModel.FISHEYE
        np.testing.assert_allclose(read_pixels(camera, POINTS), true.pixels(POINTS), atol=SAME_PIXEL)


@pytest.mark.parametrize(("unit", "metre"), [("mm", 1000.0), ("cm", 100.0), ("m", 1.0)])
def test_a_unit_scales_to_metres(unit: str, metre: float, tmp_path: Path) -> None:
    rig = make_rig()
    calibration = read_calibration(write_toml(tmp_path, rig, metre), unit)
    assert calibration.scale is Scale.METRIC
    assert calibration.notices == ()
    for true, camera in zip(rig, calibration.cameras, strict=True):
        np.testing.assert_allclose(camera.world_to_camera, true.world_to_camera, atol=1e-12)


def test_a_unit_makes_arbitrary_formats_metric(tmp_path: Path) -> None:
    assert read_calibration(write_yaml(tmp_path, make_rig()), "m").scale is Scale.METRIC


def test_cameras_too_far_apart_for_metres_are_of_an_unknown_unit(tmp_path: Path) -> None:
    rig = make_rig()
    centers = [-camera.rotation.T @ camera.translation for camera in rig]
    distance = max(np.linalg.norm(a - b) for a in centers for b in centers) * 1000
    calibration = read_calibration(write_toml(tmp_path, rig, 1000.0))
    assert calibration.scale is Scale.ARBITRARY
    assert calibration.notices == (
        (
            f"cameras of Calib.toml are up to {distance:.0f} apart, too far for metres: their unit is unknown; "
            "pass ⟨calibration_unit=mm⟩ if they are in millimetres"
        ),
    )
    assert read_calibration(write_toml(tmp_path, rig, 1000.0), "mm").scale is Scale.METRIC


def test_a_unit_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    path = WRITERS["qualisys"](tmp_path, make_rig())
    assert read_calibration(path, "mm").scale is Scale.METRIC
    with pytest.raises(UsageError, match="is in mm"):
        read_calibration(path, "m")
    with pytest.raises(UsageError, match="no unit is called 'inch'"):
        read_calibration(path, "inch")


@pytest.mark.parametrize("name", ["qualisys", "toml", "nerfstudio", "truth", "output"])
def test_files_with_other_names_are_recognized_by_content(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, make_rig())
    for other in ("calibration", "other.json" if path.suffix == ".json" else "other.dat"):
        renamed = tmp_path / other
        renamed.write_bytes(path.read_bytes())
        assert read_calibration(renamed).names == ("cam01", "cam02", "cam03")


@pytest.mark.parametrize("name", WRITERS)
def test_a_calibration_is_found_in_its_folder(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, make_rig())
    assert read_calibration(tmp_path).names == NAMES.get(name, RIG_NAMES)


COLMAP_MODELS = {
    "SIMPLE_PINHOLE": (510.0, 321.0, 239.5),
    "PINHOLE": (510.0, 512.0, 321.0, 239.5),
    "SIMPLE_RADIAL": (510.0, 321.0, 239.5, -0.12),
    "RADIAL": (510.0, 321.0, 239.5, -0.12, 0.03),
    "OPENCV": (510.0, 512.0, 321.0, 239.5, -0.12, 0.03, 1e-3, -2e-3),
    "OPENCV_FISHEYE": (510.0, 512.0, 321.0, 239.5, -0.05, 0.01, -2e-3, 1e-3),
    "FULL_OPENCV": (510.0, 512.0, 321.0, 239.5, -0.12, 0.03, 1e-3, -2e-3, 0.004, 0.02, -0.01, 0.003),
    "SIMPLE_RADIAL_FISHEYE": (510.0, 321.0, 239.5, -0.05),
    "RADIAL_FISHEYE": (510.0, 321.0, 239.5, -0.05, 0.01),
}


@pytest.mark.parametrize("binary", [False, True])
def test_pycolmap_agrees_on_every_camera_model(binary: bool, tmp_path: Path) -> None:
    model = pycolmap.Reconstruction()
    poses: dict[str, list[pycolmap.Rigid3d]] = {}
    rng = np.random.default_rng(5)
    for index, (name, parameters) in enumerate(COLMAP_MODELS.items()):
        lens = pycolmap.Camera(camera_id=index + 10, model=name, width=640, height=480, params=list(parameters))
        model.add_camera_with_trivial_rig(lens)
        for frame in range(2):
            turn = Rotation.from_rotvec(rng.normal(size=3) * 0.2).as_quat()
            pose = pycolmap.Rigid3d(pycolmap.Rotation3d(turn), np.array([*rng.normal(size=2), 4.0]))
            image_id = 2 * index + frame + 1
            image = pycolmap.Image(name=f"{name}/{frame + 9:d}.png", camera_id=index + 10, image_id=image_id)
            model.add_image_with_trivial_frame(image, pose)
            poses.setdefault(name, []).append(pose)
    (model.write_binary if binary else model.write_text)(str(tmp_path))
    calibration = read_calibration(tmp_path)
    assert set(calibration.names) == set(COLMAP_MODELS)
    lenses = {lens.model.name: lens for lens in model.cameras.values()}
    for camera in calibration.cameras:
        assert (camera.image_size, camera.frames) == ((480, 640), ("9", "10"))
        for frame in range(2):
            seen = poses[camera.name][frame] * POINTS
            expected = lenses[camera.name].img_from_cam(seen)
            np.testing.assert_allclose(read_pixels(camera, POINTS, frame), expected, atol=SAME_PIXEL)


@pytest.mark.parametrize("name", ["qualisys", "yaml", "nerfstudio", "nerfstudio-applied", "truth", "output"])
def test_a_reflected_camera_is_refused(name: str, tmp_path: Path) -> None:
    rig = make_rig()
    rig[1].rotation[0] *= -1
    with pytest.raises(
        InputError, match=r"\S: camera cam02: the rotation is not a rotation matrix \(det -1.00\)"
    ) as caught:
        read_calibration(WRITERS[name](tmp_path, rig))
    assert caught.value.exit_code == 3
    assert caught.value.hint
