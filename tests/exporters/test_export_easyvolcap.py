"""The dataset folder of EasyVolcap, read as its loader does, by OpenCV, and by page4d's reader of calibrations."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.exporters.export import Exported
from page4d.formats.calibrations import read_calibration
from tests.exporters.capture import EXACT_THRESHOLD, THRESHOLD, Capture, make_capture, read_rgb
from tests.exporters.trainer_shots import Shot, assert_colors, export_one, read_cloud

NAME = "easyvolcap"
LABELS = ("cam01", "cam02", "cam03", "cam04")


@dataclass(frozen=True)
class Camera:
    """A camera of `intri.yml` and `extri.yml`."""

    intrinsics: NDArray[np.float64]
    size: tuple[int, int]
    pose: NDArray[np.float64]
    time: float
    near: float
    far: float
    bounds: NDArray[np.float64]


def read_camera_files(folder: Path) -> dict[str, Camera]:
    """Read cameras as EasyVolcap does: rotations from their vectors; D and bounds are matrices."""
    intri, extri = (cv2.FileStorage(str(folder / f"{stem}ri.yml"), cv2.FILE_STORAGE_READ) for stem in ("int", "ext"))
    node = intri.getNode("names")
    cameras = {}
    for name in [node.at(index).string() for index in range(node.size())]:
        rotation, translation = cv2.Rodrigues(extri.getNode(f"R_{name}").mat())[0], extri.getNode(f"T_{name}").mat()
        np.testing.assert_allclose(rotation, extri.getNode(f"Rot_{name}").mat(), atol=1e-12)
        lens = intri.getNode(f"D_{name}").mat()
        assert lens.shape == (5, 1)
        assert not lens.any()
        cameras[name] = Camera(
            intrinsics=intri.getNode(f"K_{name}").mat(),
            size=(int(intri.getNode(f"H_{name}").real()), int(intri.getNode(f"W_{name}").real())),
            pose=np.vstack([np.hstack([rotation, translation]), [0, 0, 0, 1]]),
            time=extri.getNode(f"t_{name}").real(),
            near=extri.getNode(f"n_{name}").real(),
            far=extri.getNode(f"f_{name}").real(),
            bounds=extri.getNode(f"bounds_{name}").mat(),
        )
    return cameras


def load_cameras(folder: Path) -> dict[str, list[Camera]]:
    """Return the cameras of every view and instant: static ones if there are files at the top, as the loader does."""
    num_times = min(len(list(path.iterdir())) for path in (folder / "images").iterdir())
    if (folder / "intri.yml").exists():
        return {name: [camera] * num_times for name, camera in sorted(read_camera_files(folder).items())}
    names = sorted(path.name for path in (folder / "cameras").iterdir())
    return {
        name: [camera for _, camera in sorted(read_camera_files(folder / "cameras" / name).items())] for name in names
    }


def image_path(folder: Path, name: str, instant: int) -> Path:
    path = folder / "images" / name / f"{instant:06d}.jpg"
    return path if path.exists() else path.with_suffix(".png")


def load_shots(folder: Path) -> list[Shot]:
    """Rays pass through pixel centres at half integers, so that the intrinsics are those of the colour test."""
    shots = []
    for name, cameras in load_cameras(folder).items():
        for instant, camera in enumerate(cameras):
            picture = read_rgb(image_path(folder, name, instant))
            assert picture.shape[:2] == camera.size
            shots.append(Shot(LABELS.index(name), instant, picture, camera.intrinsics, camera.pose))
    return shots


@pytest.fixture(scope="module")
def moving(moving_capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_one(moving_capture, NAME, tmp_path_factory.mktemp("easyvolcap") / "room", image_format="png")


@pytest.mark.parametrize("moves", [False, True], ids=["static", "moving"])
def test_colors(moves: bool, request: pytest.FixtureRequest):
    capture = request.getfixturevalue("moving_capture" if moves else "capture")
    folder = request.getfixturevalue("moving" if moves else "exported").folder
    shots = load_shots(folder)
    assert [(shot.view, shot.instant) for shot in shots] == [(view, t) for view in range(4) for t in range(4)]
    clouds = [read_cloud(folder / "vhulls" / f"{instant:06d}.ply")[0] for instant in range(4)]
    limit = EXACT_THRESHOLD if moves else THRESHOLD / 2  # PNG, or JPEG
    assert_colors(capture, shots, clouds.__getitem__, (limit, THRESHOLD))


def test_cameras_are_exact(exported: Exported, moving: Exported, capture: Capture, moving_capture: Capture):
    for folder, truth in ((exported.folder, capture), (moving.folder, moving_capture)):
        for view, cameras in enumerate(load_cameras(folder).values()):
            for instant, camera in enumerate(cameras):
                np.testing.assert_allclose(camera.intrinsics, truth.intrinsics[instant, view], atol=1e-12)
                np.testing.assert_allclose(camera.pose, truth.world_to_camera[instant, view], atol=1e-12)
    times = [camera.time for camera in load_cameras(moving.folder)["cam02"]]
    np.testing.assert_allclose(times, moving_capture.times, atol=1e-12)


def test_page4d_reads_the_same_moving_cameras(moving: Exported, moving_capture: Capture):
    assert not (moving.folder / "intri.yml").exists()
    calibration = read_calibration(moving.folder / "cameras" / "cam03")
    assert calibration.names == tuple(f"{instant:06d}" for instant in range(4))
    for instant, camera in enumerate(calibration.cameras):
        np.testing.assert_allclose(camera.intrinsics, moving_capture.intrinsics[instant, 2], atol=1e-12)
        np.testing.assert_allclose(camera.world_to_camera, moving_capture.world_to_camera[instant, 2], atol=1e-12)


def test_the_pixel_center_must_be_known(exported: Exported, tmp_path: Path):
    for name in ("intri.yml", "extri.yml"):
        shutil.copy(exported.folder / name, tmp_path)
    path = tmp_path / "intri.yml"
    without = path.read_text().replace("pixel_center: 0.5\n", "")
    path.write_text(without)
    given, shifted = read_calibration(exported.folder), read_calibration(tmp_path)
    difference = shifted.cameras[0].intrinsics - given.cameras[0].intrinsics
    np.testing.assert_allclose(difference, [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]], atol=1e-12)
    path.write_text(without.replace("names:", "pixel_center: 7\nnames:"))
    with pytest.raises(InputError, match="pixel_center"):
        read_calibration(tmp_path)


def test_masks_are_found_by_the_names_of_pictures(exported: Exported, moving: Exported, capture: Capture):
    for folder in (exported.folder, moving.folder):
        for name in LABELS:
            for instant in range(4):
                path = Path(str(image_path(folder, name, instant)).replace("images", "masks").replace(".jpg", ".png"))
                mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
                assert set(np.unique(mask)) == {0, 255}
                if folder == exported.folder:
                    assert np.array_equal(mask == 255, capture.output.dynamic(instant, name))


def test_near_and_far_enclose_what_a_camera_sees(exported: Exported, moving: Exported, moving_capture: Capture):
    for view, cameras in enumerate(load_cameras(moving.folder).values()):
        for instant, camera in enumerate(cameras):
            depth = moving_capture.output.depth(instant, LABELS[view])
            low, high = np.percentile(depth[depth > 0], [0.1, 99.9])
            assert 0.85 * low < camera.near < low
            assert high < camera.far < 1.15 * high
    nears = {camera.near for cameras in load_cameras(exported.folder).values() for camera in cameras}
    assert len(nears) == 4


def test_the_configuration_has_distances_and_bounds(exported: Exported):
    document = yaml.safe_load((exported.folder / "dataset.yaml").read_text())
    dataset = document["dataloader_cfg"]["dataset_cfg"]
    assert document["val_dataloader_cfg"]["dataset_cfg"] == dataset
    cameras = [camera for cameras in load_cameras(exported.folder).values() for camera in cameras]
    assert dataset["near"] == pytest.approx(min(camera.near for camera in cameras), rel=1e-5)
    assert dataset["far"] == pytest.approx(max(camera.far for camera in cameras), rel=1e-5)
    assert dataset["view_sample"] == dataset["frame_sample"] == [0, 4, 1]
    xyz = np.concatenate([read_cloud(path)[0][0] for path in sorted((exported.folder / "vhulls").iterdir())])
    assert len(xyz) == exported.record.points
    expected = np.stack([xyz.min(axis=0), xyz.max(axis=0)])
    np.testing.assert_allclose(dataset["bounds"], expected, rtol=1e-5)
    np.testing.assert_allclose(cameras[0].bounds, expected, rtol=1e-12)


def test_unusual_names_and_no_motion(tmp_path: Path):
    capture = make_capture(tmp_path, names=("7", "cam.1", "Kamera ü"), numbers=(0,))
    shutil.rmtree(capture.folder / "dynamic")
    exported = export_one(capture, NAME, tmp_path / "my images")
    labels = [view.label for view in exported.record.views]
    cameras = load_cameras(exported.folder)
    assert list(cameras) == sorted(labels)
    for view, label in enumerate(labels):
        np.testing.assert_allclose(cameras[label][0].intrinsics, capture.intrinsics[0, view], atol=1e-12)
        assert image_path(exported.folder, label, 0).exists()
    assert not (exported.folder / "masks").exists()
    assert any("no motion" in remark for remark in exported.record.remarks)
    assert "must not contain 'images'" in exported.next_step
    assert "data_root='" in exported.next_step


def test_the_path_is_in_the_next_step_alone(exported: Exported):
    folder = str(exported.folder)
    assert f"val_dataloader_cfg.dataset_cfg.data_root={folder}" in exported.next_step
    assert folder not in "".join(path.read_text() for path in exported.folder.glob("*.y*ml"))
