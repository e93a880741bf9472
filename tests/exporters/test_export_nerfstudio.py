"""nerfstudio exports, read as nerfstudio's data parser reads them."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from page4d.exporters.export import export
from tests.exporters.capture import THRESHOLD, Capture, project, read_rgb
from tests.exporters.trainer_shots import Shot, assert_colors, by_instant, export_one, worst_error

plyfile = pytest.importorskip("plyfile")

NUM_VIEWS = 4
NUM_TIMES = 4
OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
Z_UP = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0]])
"""From a world whose y axis points down to one whose z axis points up."""

OPTIONS: dict[str, Any] = {"max_points": 8000}


@dataclass(frozen=True)
class Frame:
    """A frame as nerfstudio's data parser sees it; depth is in units of the world."""

    file: str
    picture: np.ndarray
    depth: np.ndarray
    mask: np.ndarray | None
    intrinsics: np.ndarray
    camera_to_world: np.ndarray
    time: float

    @property
    def world_to_camera(self) -> np.ndarray:
        """Pose with OpenCV camera axes; nerfstudio's look along -z with y up."""
        return np.linalg.inv(self.camera_to_world @ OPENGL)


@dataclass(frozen=True)
class Dataset:
    """A folder as nerfstudio's data parser sees it, with frames sorted by path."""

    meta: dict[str, Any]
    frames: list[Frame]
    xyz: np.ndarray
    rgb: np.ndarray

    @property
    def run_xyz(self) -> np.ndarray:
        """The points in the run's world."""
        return self.xyz.astype(np.float64) @ np.array(self.meta["applied_transform"])[:, :3]


def read_dataset(folder: Path) -> Dataset:
    """Read transforms.json and the files that it names."""
    meta = json.loads((folder / "transforms.json").read_text())
    frames = []
    for entry in sorted(meta["frames"], key=lambda entry: entry["file_path"]):
        depth_path = folder / entry["depth_file_path"]
        levels = np.load(depth_path) if depth_path.suffix == ".npy" else cv2.imread(str(depth_path), -1)
        picture = read_rgb(folder / entry["file_path"])
        assert picture.shape == (entry["h"], entry["w"], 3)
        fl_x, fl_y, cx, cy = (entry[key] for key in ("fl_x", "fl_y", "cx", "cy"))
        frames.append(
            Frame(
                file=entry["file_path"],
                picture=picture,
                depth=levels.astype(np.float64) * 1e-3,
                mask=cv2.imread(str(folder / entry["mask_path"]), -1) if "mask_path" in entry else None,
                intrinsics=np.array([[fl_x, 0, cx], [0, fl_y, cy], [0, 0, 1]]),
                camera_to_world=np.array(entry["transform_matrix"]),
                time=entry["time"],
            )
        )
    vertices = plyfile.PlyData.read(folder / meta["ply_file_path"])["vertex"]
    assert [(entry.name, entry.val_dtype) for entry in vertices.properties] == [
        *((name, "f4") for name in "xyz"),
        *((name, "u1") for name in ("red", "green", "blue")),
    ]
    xyz = np.stack([vertices[name] for name in "xyz"], axis=1)
    return Dataset(meta, frames, xyz, np.stack([vertices[name] for name in ("red", "green", "blue")], axis=1))


@pytest.fixture(scope="module")
def exported(capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the static capture."""
    return export_one(capture, "nerfstudio", tmp_path_factory.mktemp("nerfstudio") / "room", **OPTIONS).folder


@pytest.fixture(scope="module")
def instants(capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An export of the static capture with a dataset per instant."""
    folder = tmp_path_factory.mktemp("nerfstudio_instants") / "export"
    export(capture.folder, "nerfstudio", folder, scene=capture.scene, per_instant=True, max_points=32000)
    return sorted(path for path in folder.iterdir() if path.is_dir())


def shots_of(dataset: Dataset, places: Iterable[tuple[int, int]]) -> list[Shot]:
    """Return the frames, of these views and instants, with poses in the run's world."""
    turn = np.vstack([dataset.meta["applied_transform"], [0, 0, 0, 1]])
    return [
        Shot(view, instant, frame.picture, frame.intrinsics, frame.world_to_camera @ turn)
        for (view, instant), frame in zip(places, dataset.frames, strict=True)
    ]


def assert_capture_colors(dataset: Dataset, capture: Capture) -> None:
    """Compare the pictures of all views and instants with the points of the capture."""
    shots = shots_of(dataset, [divmod(number, NUM_TIMES) for number in range(NUM_VIEWS * NUM_TIMES)])
    cloud = dataset.run_xyz.astype(np.float32), dataset.rgb
    assert_colors(capture, shots, by_instant(capture, cloud).__getitem__)


def test_the_file_has_every_key_and_the_frames_of_all_instants(exported: Path, capture: Capture) -> None:
    dataset = read_dataset(exported)
    meta = {key: value for key, value in dataset.meta.items() if key != "frames"}
    assert meta == {
        "camera_model": "OPENCV",
        "orientation_override": "none",
        "ply_file_path": "points.ply",
        "applied_transform": Z_UP.tolist(),
    }
    names = [f"images/cam0{view}/frame_00000{time}.png" for view in (1, 2, 3, 4) for time in range(NUM_TIMES)]
    assert [frame.file for frame in dataset.frames] == names
    assert [frame.time for frame in dataset.frames] == capture.times.tolist() * NUM_VIEWS
    assert {entry["camera_label"] for entry in dataset.meta["frames"]} == {"cam01", "cam02", "cam03", "cam04"}


def test_cameras_stand_in_a_world_whose_z_axis_points_up(exported: Path, capture: Capture) -> None:
    turn = np.vstack([Z_UP, [0, 0, 0, 1]])
    for number, frame in enumerate(read_dataset(exported).frames):
        view, instant = divmod(number, NUM_TIMES)
        expected = turn @ np.linalg.inv(capture.world_to_camera[instant, view]) @ OPENGL
        np.testing.assert_allclose(frame.camera_to_world, expected, atol=1e-12)
        np.testing.assert_allclose(frame.intrinsics, capture.intrinsics[instant, view], rtol=1e-15)
        assert frame.camera_to_world[2, 1] > 0.9  # y of an OpenGL camera points up


def test_the_colours_of_points_are_those_of_the_pictures(exported: Path, capture: Capture) -> None:
    assert_capture_colors(read_dataset(exported), capture)


def test_an_instant_has_its_own_points_and_pictures(instants: list[Path], capture: Capture) -> None:
    assert [path.name for path in instants] == [f"frame_{instant:06d}" for instant in range(NUM_TIMES)]
    dataset = read_dataset(instants[2])
    assert [frame.file for frame in dataset.frames] == [f"images/cam0{view}.png" for view in (1, 2, 3, 4)]
    assert {frame.time for frame in dataset.frames} == {capture.times[2]}
    assert not (instants[2] / "masks").exists()
    assert dataset.frames[0].mask is None
    for instant, dataset in enumerate(map(read_dataset, instants)):
        shots = shots_of(dataset, [(view, instant) for view in range(NUM_VIEWS)])
        points = dataset.run_xyz, dataset.rgb
        assert worst_error(capture, shots, lambda _, points=points: points, moving=True) < THRESHOLD


def test_depth_is_in_thousandths_of_the_unit(exported: Path, capture: Capture) -> None:
    for number, frame in enumerate(read_dataset(exported).frames):
        view, instant = divmod(number, NUM_TIMES)
        expected = capture.output.depth(instant, f"cam0{view + 1}")
        assert (expected == 0).any() or expected.min() > 0.1
        np.testing.assert_allclose(frame.depth, expected, atol=0.0005 + 1e-6)


def test_depth_of_a_small_scene_is_not_rounded_to_levels(capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "nerfstudio", tmp_path / "x", scene=capture.scene, scale=1e-3, instants=(0, 1, 1))
    frame = read_dataset(tmp_path / "x").frames[0]
    expected = 1e-3 * capture.output.depth(0, capture.output.view_names[0])
    np.testing.assert_allclose(frame.depth, expected, rtol=1e-5)


def test_depth_beyond_16_bits_is_real_for_all_frames(capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "nerfstudio", tmp_path / "export", scene=capture.scene, scale=30.0, **OPTIONS)
    dataset = read_dataset(tmp_path / "export")
    depths = sorted((tmp_path / "export" / "depths").rglob("*.*"))
    assert len(depths) == NUM_VIEWS * NUM_TIMES
    assert {path.suffix for path in depths} == {".npy"}
    assert np.load(depths[0]).dtype == np.float32
    assert max(frame.depth.max() for frame in dataset.frames) > 65.535
    np.testing.assert_allclose(dataset.frames[0].depth, 30 * capture.output.depth(0, "cam01"), rtol=1e-6)
    assert "applied_scale" not in dataset.meta
    _, z = project(dataset.xyz[:1000], dataset.frames[0].intrinsics, dataset.frames[0].world_to_camera)
    assert 0.5 < np.median(z) / np.median(dataset.frames[0].depth) < 2


def test_masks_leave_out_what_moves(exported: Path, capture: Capture) -> None:
    for number, frame in enumerate(read_dataset(exported).frames):
        view, instant = divmod(number, NUM_TIMES)
        moving = capture.output.dynamic(instant, f"cam0{view + 1}")
        assert moving.any()
        np.testing.assert_array_equal(frame.mask, 255 - 255 * moving.astype(np.uint8))


@pytest.mark.parametrize("instants", [(0, 1, 1), (0, 2, 1)])
def test_masks_leave_out_bars(capture: Capture, tmp_path: Path, instants: tuple[int, int, int]) -> None:
    shutil.copytree(capture.folder, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["views"][1]["pixel_transform"]["window"] = (16, 0, 96, 120)
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    options = OPTIONS | {"image_size": 80, "instants": instants}
    export(tmp_path / "run", "nerfstudio", tmp_path / "export", scene=capture.scene, **options)
    for frame in read_dataset(tmp_path / "export").frames:
        bars = np.ones((60, 80), bool)
        bars[:, 8:56] = False
        marked = frame.mask == 0
        assert marked[bars].all() if "cam02" in frame.file else marked.any() == (instants[1] == 2)
        assert not marked[~bars].all()
        assert marked[~bars].any() == (instants[1] == 2)


def test_points_of_what_masks_leave_out_are_mentioned(capture: Capture, tmp_path: Path) -> None:
    for only, is_mentioned in (("all", True), ("static", False)):
        options: dict[str, Any] = OPTIONS | {"only": only, "overwrite": True}
        (result,) = export(capture.folder, "nerfstudio", tmp_path / "export", scene=capture.scene, **options)
        assert any("--only static" in remark for remark in result.record.remarks) is is_mentioned


def test_masks_have_the_size_of_resized_pictures(capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "nerfstudio", tmp_path / "export", scene=capture.scene, image_size=80, **OPTIONS)
    dataset = read_dataset(tmp_path / "export")
    for frame in dataset.frames:
        assert frame.mask.shape == frame.picture.shape[:2] == (60, 80)
    assert_capture_colors(dataset, capture)


def test_a_run_without_motion_has_no_masks(capture: Capture, tmp_path: Path) -> None:
    shutil.copytree(capture.folder, tmp_path / "run", ignore=shutil.ignore_patterns("dynamic"))
    export(tmp_path / "run", "nerfstudio", tmp_path / "export", scene=capture.scene, **OPTIONS)
    assert not (tmp_path / "export" / "masks").exists()
    assert all(frame.mask is None for frame in read_dataset(tmp_path / "export").frames)


def test_held_out_views_are_for_validation_and_test(capture: Capture, tmp_path: Path) -> None:
    (result,) = export(
        capture.folder, "nerfstudio", tmp_path / "export", scene=capture.scene, hold_out=("cam02",), **OPTIONS
    )
    meta = json.loads((tmp_path / "export" / "transforms.json").read_text())
    files = [entry["file_path"] for entry in meta["frames"]]
    assert meta["val_filenames"] == meta["test_filenames"] == [file for file in files if "cam02" in file]
    assert meta["train_filenames"] == [file for file in files if "cam02" not in file]
    assert result.record.held_out == ["cam02"]


def test_moving_cameras_have_a_pose_and_a_focal_length_per_frame(moving_capture: Capture, tmp_path: Path) -> None:
    export(moving_capture.folder, "nerfstudio", tmp_path / "export", scene=moving_capture.scene, **OPTIONS)
    dataset = read_dataset(tmp_path / "export")
    for number, frame in enumerate(dataset.frames):
        view, instant = divmod(number, NUM_TIMES)
        pose = frame.world_to_camera @ np.vstack([Z_UP, [0, 0, 0, 1]])
        np.testing.assert_allclose(pose, moving_capture.world_to_camera[instant, view], atol=1e-12)
        np.testing.assert_allclose(frame.intrinsics, moving_capture.intrinsics[instant, view], rtol=1e-15)
    assert_capture_colors(dataset, moving_capture)


def test_the_next_step_keeps_the_world(capture: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "my export"
    (result,) = export(capture.folder, "nerfstudio", folder, scene=capture.scene, instants=(0, 1, 1), **OPTIONS)
    assert f"ns-train splatfacto --data '{folder}' nerfstudio-data" in result.next_step
    for words in ("--center-method none", "--auto-scale-poses False", "--depth-unit-scale-factor 0.001"):
        assert words in result.next_step
    assert not (folder / "masks").exists()  # of a single instant, nothing is left out
