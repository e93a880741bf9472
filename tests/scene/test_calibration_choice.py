"""The calibration that is named is read; several in a folder are named, and a choice is made only from evidence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page4d.conventions import Scale
from page4d.errors import InputError
from page4d.formats.calibrations import read_calibration, read_lenses
from tests.scene.calibration_writers import (
    RigCamera,
    make_rig,
    write_caliscope,
    write_colmap_binary,
    write_colmap_text,
    write_yaml,
)


def rig_of(focal: float) -> list[RigCamera]:
    """Return the rig with another focal length in x."""
    rig = make_rig()
    for camera in rig:
        camera.intrinsics[0, 0] = focal
    return rig


def focal_of(path: Path, views: tuple[str, ...] | None = None) -> float:
    return float(read_calibration(path, views=views).cameras[0].intrinsics[0, 0])


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Return a folder with calibrations of several days; the focal length tells them apart."""
    for focal, files in (
        (500.0, ("intri.yml", "extri.yml")),
        (600.0, ("calib_new.yml",) * 2),
        (700.0, ("intri_today.yml", "extri_today.yml")),
        (800.0, ("Intrinsics.yaml", "EXTRINSICS.yml")),
    ):
        write_yaml(tmp_path, rig_of(focal), files=(files[0], files[1]))
    (tmp_path / "EXTRINSICS.yml").rename(tmp_path / "Extrinsics.yml")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "focal"),
    [
        ("intri.yml", 500.0),
        ("extri.yml", 500.0),
        ("calib_new.yml", 600.0),
        ("intri_today.yml", 700.0),
        ("extri_today.yml", 700.0),
        ("Intrinsics.yaml", 800.0),
        ("Extrinsics.yml", 800.0),
    ],
)
def test_the_named_file_is_read(name: str, focal: float, sessions: Path):
    assert focal_of(sessions / name) == focal
    assert float(read_lenses(sessions / name).cameras[0].intrinsics[0, 0]) == focal


def test_several_calibrations_of_a_folder_are_refused(sessions: Path):
    with pytest.raises(
        InputError, match=r"contains 4 calibrations: calib_new.yml, intri.yml, intri_today.yml, Intrinsics.yaml$"
    ):
        read_calibration(sessions)


@pytest.mark.parametrize(
    ("keep", "message", "hint"),
    [
        ("K_", r"'c.yml': it has K_<camera>, but not R_<camera> and T_<camera>", "intrinsics"),
        ("[RT]", r"'c.yml': it has R_<camera> and T_<camera>, but not K_<camera>", "add them"),
    ],
)
def test_half_a_calibration_is_not_completed_by_other_files(
    keep: str, message: str, hint: str, sessions: Path, tmp_path: Path
):
    name = "intri.yml" if keep == "K_" else "extri.yml"
    (sessions / name).rename(sessions / "c.yml")
    with pytest.raises(InputError, match=message) as caught:
        read_calibration(tmp_path / "c.yml")
    assert hint in caught.value.hint


@pytest.mark.parametrize("parent", ["sparse", "colmap/sparse"])
def test_of_several_colmap_models_the_one_with_all_views_is_read(parent: str, tmp_path: Path):
    for number, (focal, count) in enumerate(((500.0, 1), (600.0, 3), (700.0, 2))):
        folder = tmp_path / parent / str(number)
        folder.mkdir(parents=True)
        write_colmap_text(folder, rig_of(focal)[:count])
    for path in (tmp_path, tmp_path / parent):
        above = "" if path != tmp_path else f"{parent}/"
        calibration = read_calibration(path, views=("cam03", "cam01"))
        assert float(calibration.cameras[0].intrinsics[0, 0]) == 600.0
        assert calibration.notices == (
            f"the COLMAP model {above}1 (3 images) is used, not {above}0 (1 image), {above}2 (2 images)",
        )
        everything = rf"3 COLMAP models: {above}0 \(1 image\), {above}1 \(3 images\), {above}2 \(2 images\)"
        for views, found in (
            (None, "$"),
            (("cam02",), f"; {above}1 and {above}2 have cameras of all views"),
            (("cam9",), "; none has cameras of all views"),
        ):
            with pytest.raises(InputError, match=everything + found) as caught:
                read_calibration(path, views=views)
            assert str(path / f"{above}1") in caught.value.hint
    assert focal_of(tmp_path / parent / "2") == 700.0


def test_the_calibrations_of_a_folder_may_be_equal_or_lenses(tmp_path: Path):
    write_caliscope(tmp_path, rig_of(500.0))
    text = (tmp_path / "camera_array.toml").read_text()
    (tmp_path / "config.toml").write_text(text.replace("[cameras.", "[cam_") + "[charuco]\ncolumns = 4\n")
    (tmp_path / "left.yaml").write_text("camera_matrix: [[9, 0, 9], [0, 9, 9], [0, 0, 1]]\n")
    (tmp_path / "stereo_pairs.toml").write_text("[stereo_1_2]\nrotation = [0.1, 0.2, 0.3]\ntranslation = [1, 2, 3]\n")
    assert focal_of(tmp_path) == 500.0
    assert read_calibration(tmp_path).path.name == "camera_array.toml"
    for old, new in (("500.0", "501.0"), ("-0.21", "-0.2"), ("fisheye = false", "fisheye = true")):
        (tmp_path / "config.toml").write_text(text.replace("[cameras.", "[cam_").replace(old, new))
        with pytest.raises(InputError, match=r"contains 2 calibrations: camera_array.toml, config.toml$"):
            focal_of(tmp_path)
    for name in ("camera_array.toml", "config.toml"):
        (tmp_path / name).write_text(text.replace("rotation =", "turn ="))
    with pytest.raises(InputError, match="no camera has all of matrix, rotation, translation"):
        focal_of(tmp_path)


def write_moving(path: Path, *, poses: int = 7, start: float = 0.0, scale: str = "metric") -> None:
    """Write a camera that moves, as `cameras.json` of a run."""
    camera = {"image_size": [64, 48], "intrinsics": [[90, 0, 32], [0, 90, 24], [0, 0, 1]], "static": False}
    times = [start + number / 4 for number in range(poses)]
    views = {"cam01": camera | {"world_to_camera": [np.eye(4).tolist()] * poses}}
    path.write_text(json.dumps({"pixel_center": 0.5, "times": times, "scale": scale, "views": views}))


@pytest.mark.parametrize(
    ("changes", "are_same"), [({}, True), ({"start": 1e-7}, True), ({"poses": 5}, False), ({"start": 0.5}, False)]
)
def test_copies_of_moving_cameras_have_the_same_instants(changes: dict[str, Any], are_same: bool, tmp_path: Path):
    write_moving(tmp_path / "calibration_a.json")
    write_moving(tmp_path / "calibration_b.json", **changes)
    if are_same:
        assert len(read_calibration(tmp_path).cameras[0].world_to_camera) == 7
        return
    with pytest.raises(InputError, match=r"contains 2 calibrations: calibration_a.json, calibration_b.json$"):
        read_calibration(tmp_path)


def test_of_equal_cameras_those_in_metres_are_read(tmp_path: Path):
    write_moving(tmp_path / "calibration_a.json", scale="arbitrary")
    write_moving(tmp_path / "calibration_b.json")
    assert read_calibration(tmp_path).scale is Scale.METRIC


def test_copies_of_a_colmap_model_are_one(tmp_path: Path):
    for folder in (tmp_path / "sparse", tmp_path / "sparse" / "0"):
        folder.mkdir()
        write_colmap_text(folder, rig_of(500.0))
    assert focal_of(tmp_path, views=("cam01",)) == 500.0


def test_binary_and_text_files_of_a_colmap_model_must_agree(tmp_path: Path):
    write_colmap_binary(tmp_path, rig_of(500.0))
    model = tmp_path / "sparse" / "0"
    write_colmap_text(model, rig_of(500.0))
    assert focal_of(model) == 500.0
    write_colmap_text(model, rig_of(600.0))
    with pytest.raises(
        InputError, match=r"'0' contains two COLMAP models, which differ: cameras.bin and cameras.txt"
    ):
        focal_of(tmp_path)
    assert [focal_of(model / name) for name in ("cameras.bin", "cameras.txt", "images.txt")] == [500.0, 600.0, 600.0]
