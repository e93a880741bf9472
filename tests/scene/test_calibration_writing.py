"""Calibrations that page4d writes: its own readers and pycolmap return the same cameras."""

import os
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from page4d.choices import CalibrationFormat
from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.formats.calibrations import check_calibration_target, choose_format, read_calibration, write_calibration
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.formats.table import FORMATS
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid

LENSES = {
    "front camera": None,
    "links.é": Distortion(model=LensModel.BROWN_CONRADY, coefficients=(-0.2, 0.05, 0.001, -0.002)),
    "cam03": Distortion(model=LensModel.BROWN_CONRADY, coefficients=(-0.2, 0.05, 0.001, -0.002, 0.01)),
    "cam04": Distortion(
        model=LensModel.BROWN_CONRADY, coefficients=(-0.2, 0.05, 0.001, -0.002, 0.01, 0.02, 0.003, 0.001)
    ),
    "cam05": Distortion(model=LensModel.FISHEYE, coefficients=(-0.01, 0.003, -0.001, 0.0004)),
}
TARGETS = {
    CalibrationFormat.PAGE4D: "cameras.json",
    CalibrationFormat.COLMAP: "model",
    CalibrationFormat.ANIPOSE: "rig.toml",
    CalibrationFormat.CALISCOPE: "camera_array.toml",
    CalibrationFormat.OPENCV: "rig.yml",
}


WITHOUT_SCALE = {CalibrationFormat.COLMAP, CalibrationFormat.OPENCV}
NOT_IN_OPENCV = {"links.é", "cam05"}


def rig(scale: Scale = Scale.ARBITRARY, file_format: CalibrationFormat = CalibrationFormat.PAGE4D) -> Calibration:
    """Return cameras of all lens models of a format, with general poses, one turned by nearly 180 degrees."""
    random = torch.Generator().manual_seed(3)
    cameras = []
    for index, (name, distortion) in enumerate(LENSES.items()):
        vector = torch.nn.functional.normalize(torch.randn(3, dtype=torch.float64, generator=random), dim=0)
        rotation = matrix_from_rotation_vector(vector * (3.1 if index == 2 else 0.7 * index))
        intrinsics = torch.tensor([[601.0 + index, 0, 321.25], [0, 602.0, 238.5], [0, 0, 1]], dtype=torch.float64)
        cameras.append(
            CalibratedCamera(
                name=name,
                image_size=(480, 640 + index),
                intrinsics=intrinsics,
                world_to_camera=rigid(rotation, torch.randn(3, dtype=torch.float64, generator=random)),
                distortion=distortion,
            )
        )
    left_out = NOT_IN_OPENCV if file_format is CalibrationFormat.OPENCV else set()
    kept = tuple(camera for camera in cameras if camera.name not in left_out)
    return Calibration(path=Path("rig"), scale=scale, cameras=kept)


@pytest.mark.parametrize("file_format", CalibrationFormat)
@pytest.mark.parametrize("scale", Scale)
def test_our_readers_return_what_was_written(file_format: CalibrationFormat, scale: Scale, tmp_path: Path) -> None:
    written, path = rig(scale, file_format), tmp_path / TARGETS[file_format]
    write_calibration(written, path, choose_format(path, None))
    found = read_calibration(path)
    assert found.scale is (Scale.ARBITRARY if file_format in WITHOUT_SCALE else scale)
    by_name = {camera.name: camera for camera in found.cameras}
    assert by_name.keys() == {camera.name for camera in written.cameras}
    for camera in written.cameras:
        other = by_name[camera.name]
        assert other.image_size == camera.image_size
        torch.testing.assert_close(other.intrinsics, camera.intrinsics, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other.world_to_camera, camera.world_to_camera, rtol=0, atol=1e-9)
        values = [() if one.distortion is None else one.distortion.coefficients for one in (camera, other)]
        padded = [value + (0.0,) * (8 - len(value)) for value in values]
        assert padded[0] == padded[1]


def test_opencv_reads_lenses_and_poses(tmp_path: Path) -> None:
    written = rig(file_format=CalibrationFormat.OPENCV)
    write_calibration(written, tmp_path / "rig.yml", CalibrationFormat.OPENCV)
    storage = cv2.FileStorage(str(tmp_path / "rig.yml"), cv2.FILE_STORAGE_READ)
    points = np.random.default_rng(0).uniform(-1, 1, (20, 3))
    for camera in written.cameras:
        key = "{}_" + camera.name
        turn, shift, matrix, lens = (storage.getNode(key.format(one)).mat() for one in ("R", "T", "K", "dist"))
        local = points @ storage.getNode(key.format("Rot")).mat().T + shift.T
        points[local[:, 2] < 0.5] = np.linalg.inv(camera.world_to_camera.numpy())[:3] @ [0.1, 0.2, 2.0, 1.0]
        seen = cv2.projectPoints(points, turn, shift, matrix, lens)[0].reshape(-1, 2)
        pose = torch.from_numpy(points) @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
        plane = pose[:, :2] / pose[:, 2:]
        plane = plane if camera.distortion is None else camera.distortion.distort(plane)
        expected = plane @ camera.intrinsics[:2, :2].T + camera.intrinsics[:2, 2]
        np.testing.assert_allclose(seen, expected.numpy() - 0.5, atol=1e-9)


@pytest.mark.parametrize(
    ("names", "numbers"), [(("cam_0", "cam_10", "cam_2"), ["0", "10", "2"]), (("cam_4", "left"), ["0", "1"])]
)
def test_cameras_of_caliscope_keep_their_numbers(names: tuple[str, ...], numbers: list[str], tmp_path: Path) -> None:
    cameras = tuple(replace(camera, name=name) for camera, name in zip(rig().cameras, names, strict=False))
    write_calibration(replace(rig(), cameras=cameras), tmp_path / "rig.toml", CalibrationFormat.CALISCOPE)
    content = tomllib.loads((tmp_path / "rig.toml").read_text())
    assert list(content["cameras"]) == numbers
    assert [camera["cam_id"] for camera in content["cameras"].values()] == [int(number) for number in numbers]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rig.toml", CalibrationFormat.ANIPOSE),
        ("camera_array.toml", CalibrationFormat.CALISCOPE),
        ("Rig.YML", CalibrationFormat.OPENCV),
        ("any.json", CalibrationFormat.PAGE4D),
        ("model", CalibrationFormat.COLMAP),
    ],
)
def test_the_format_follows_from_the_name(name: str, expected: CalibrationFormat) -> None:
    assert choose_format(Path(name), None) is expected


@pytest.mark.parametrize("file_format", CalibrationFormat)
def test_a_skew_is_written_or_refused(file_format: CalibrationFormat, tmp_path: Path) -> None:
    path, (first, *others) = tmp_path / TARGETS[file_format], rig(file_format=file_format).cameras
    skewed = replace(first, intrinsics=first.intrinsics + torch.tensor([[0, 3.0, 0], [0, 0, 0], [0, 0, 0]]))
    written = replace(rig(), cameras=(skewed, *others))
    if any(row.written is file_format and "skew" in row.cannot_hold for row in FORMATS):
        with pytest.raises(UsageError, match=f"{first.name} has a skew that the format {file_format} cannot hold"):
            write_calibration(written, path, file_format)
        assert [entry.name for entry in tmp_path.iterdir()] == [f"{path.name}.json"]
    else:
        write_calibration(written, path, file_format)
        (found,) = (camera for camera in read_calibration(path).cameras if camera.name == first.name)
        torch.testing.assert_close(found.intrinsics, skewed.intrinsics, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("index", "problem"), [(1, "a name"), (4, "a fisheye lens")])
def test_what_opencv_cannot_hold_is_refused(index: int, problem: str, tmp_path: Path) -> None:
    written = replace(rig(), cameras=rig().cameras[index:])
    with pytest.raises(UsageError, match=problem):
        write_calibration(written, tmp_path / "rig.yml", CalibrationFormat.OPENCV)
    assert [entry.name for entry in os.scandir(tmp_path)] == ["rig.yml.json"]
    assert read_calibration(tmp_path / "rig.yml.json").names == written.names
    (tmp_path / "b.yml.json").symlink_to("missing")
    with pytest.raises(UsageError, match=problem):
        write_calibration(written, tmp_path / "b.yml", CalibrationFormat.OPENCV)
    assert read_calibration(tmp_path / "b.yml2.json").names == written.names
    lenses = [(camera.name, camera.distortion, 0.0) for camera in rig().cameras]
    check = partial(check_calibration_target, tmp_path / "new.yml", CalibrationFormat.OPENCV, overwrite=False)
    check(lenses=lenses)  # two of them are possible
    with pytest.raises(UsageError, match=problem):
        check(lenses=lenses[index : index + 1] * 3)


def test_colmap_reads_the_model(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    written = rig()
    write_calibration(written, tmp_path / "model", CalibrationFormat.COLMAP)
    model = pycolmap.Reconstruction(tmp_path / "model")
    images = {image.name: image for image in model.images.values()}
    for camera in written.cameras:
        image = images[f"{camera.name}.png"]
        lens = model.cameras[image.camera_id]
        np.testing.assert_allclose(lens.calibration_matrix(), camera.intrinsics.numpy())
        np.testing.assert_allclose(image.cam_from_world().matrix(), camera.world_to_camera[:3].numpy(), atol=1e-12)
        if camera.distortion is not None:
            count = len(camera.distortion.coefficients)
            assert tuple(lens.params[4 : 4 + count]) == pytest.approx(camera.distortion.coefficients)


@pytest.mark.parametrize("file_format", CalibrationFormat)
def test_a_file_is_replaced_only_on_request(file_format: CalibrationFormat, tmp_path: Path) -> None:
    path = tmp_path / TARGETS[file_format]
    whole = rig(file_format=file_format)
    write_calibration(whole, path, file_format)
    one = replace(whole, cameras=whole.cameras[:1])
    with pytest.raises(UsageError, match=r"exists|is not empty"):
        write_calibration(one, path, file_format)
    assert len(read_calibration(path).cameras) == len(whole.cameras)
    write_calibration(one, path, file_format, overwrite=True)
    assert len(read_calibration(path).cameras) == 1
    assert [entry.name for entry in os.scandir(tmp_path)] == [path.name]


def test_a_folder_of_other_files_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep")
    with pytest.raises(UsageError, match="did not write"):
        write_calibration(rig(), tmp_path, CalibrationFormat.COLMAP, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "keep"


def test_moving_cameras_and_unknown_suffixes_are_refused(tmp_path: Path) -> None:
    camera = rig().cameras[0]
    moving = replace(camera, world_to_camera=camera.world_to_camera.expand(2, 4, 4))
    with pytest.raises(UsageError, match="moves"):
        write_calibration(replace(rig(), cameras=(moving,)), tmp_path / "a.json", CalibrationFormat.PAGE4D)
    with pytest.raises(UsageError, match="suffix"):
        choose_format(tmp_path / "rig.txt", None)
    assert not list(tmp_path.iterdir())
