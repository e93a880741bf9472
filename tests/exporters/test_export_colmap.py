"""COLMAP exports, read back by pycolmap and colmap4d."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page4d.exporters.export import export
from page4d.output.reader import Output
from page4d.scene.open import open_scene
from tests.exporters.capture import EXACT_THRESHOLD, THRESHOLD, Capture, color_error, make_capture, read_rgb
from tests.exporters.trainer_shots import export_one

pycolmap = pytest.importorskip("pycolmap")

NUM_VIEWS = 4
NUM_TIMES = 4
MAX_POINTS = 8000


@pytest.fixture(scope="module")
def exported(capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the static capture."""
    return export_one(capture, "colmap", tmp_path_factory.mktemp("colmap") / "room", max_points=MAX_POINTS).folder


@pytest.fixture(scope="module")
def moving_export(moving_capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the capture with moving and zooming cameras."""
    folder = tmp_path_factory.mktemp("moving") / "room"
    return export_one(moving_capture, "colmap", folder, max_points=MAX_POINTS).folder


@pytest.fixture(scope="module")
def images(exported: Path) -> "list[Shown]":
    """The images of the export of the static capture."""
    return read_shown(exported)


@dataclass(frozen=True)
class Shown:
    """An image as a reader of COLMAP models sees it, with the points of its own observations."""

    name: str
    picture: np.ndarray
    intrinsics: np.ndarray
    world_to_camera: np.ndarray
    xyz: np.ndarray
    rgb: np.ndarray
    moving: np.ndarray

    def error(self, *, moving_only: bool = False, shift: float = 0.0) -> float:
        """Return the colour error, with another principal point."""
        chosen = self.moving if moving_only else np.ones(len(self.xyz), dtype=bool)
        intrinsics = self.intrinsics + np.array([[0, 0, shift], [0, 0, shift], [0, 0, 0]])
        return color_error(self.xyz[chosen], self.rgb[chosen], self.picture, intrinsics, self.world_to_camera)


def read_shown(folder: Path) -> list[Shown]:
    """Read a model and its pictures, in the order of image ids."""
    model = pycolmap.Reconstruction(folder / "sparse" / "0")
    timed = set(read_table(folder / "sparse" / "0" / "points_t.bin", "<u8"))
    shown = []
    for number in sorted(model.images):
        image = model.images[number]
        fx, fy, cx, cy = model.cameras[image.camera_id].params
        ids = [point.point3D_id for point in image.points2D]
        shown.append(
            Shown(
                name=image.name,
                picture=read_rgb(folder / "images" / image.name),
                intrinsics=np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]),
                world_to_camera=np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]]),
                xyz=np.array([model.points3D[point].xyz for point in ids]).reshape(-1, 3),
                rgb=np.array([model.points3D[point].color for point in ids], dtype=np.uint8).reshape(-1, 3),
                moving=np.array([point in timed for point in ids], dtype=bool),
            )
        )
    return shown


def read_table(path: Path, kind: str) -> dict[int, int]:
    """Read a file of times: u64 count, then (id, i64 nanoseconds)."""
    content = path.read_bytes()
    rows = np.frombuffer(content, dtype=[("id", kind), ("time", "<i8")], offset=8)
    assert int.from_bytes(content[:8], "little") == len(rows)
    return dict(zip(rows["id"].tolist(), rows["time"].tolist(), strict=True))


def true_poses(output: Output) -> np.ndarray:
    """Return the poses of the run [V * T, 3, 4], in the order of image ids: that of names."""
    return output.cameras.world_to_camera.numpy()[..., :3, :].swapaxes(0, 1).reshape(-1, 3, 4)


def poses_of(model: Any) -> np.ndarray:
    return np.stack([model.images[number].cam_from_world().matrix() for number in sorted(model.images)])


def test_a_static_capture_is_one_rig_with_a_frame_per_instant(exported: Path, capture: Capture) -> None:
    model = pycolmap.Reconstruction(exported / "sparse" / "0")
    assert (model.num_rigs(), model.num_cameras(), model.num_frames()) == (1, NUM_VIEWS, NUM_TIMES)
    assert model.num_images() == model.num_reg_images() == NUM_VIEWS * NUM_TIMES
    np.testing.assert_allclose(poses_of(model), true_poses(capture.output), atol=1e-12)
    for number, matrix in enumerate(capture.intrinsics[0], start=1):
        camera = model.cameras[number]
        expected = [matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]]
        np.testing.assert_allclose(camera.params, expected, rtol=1e-15)
        assert (camera.model.name, camera.width, camera.height) == ("PINHOLE", 160, 120)
    names = [model.images[number].name for number in sorted(model.images)]
    assert names == [f"cam0{view}/frame_00000{time}.png" for view in (1, 2, 3, 4) for time in range(NUM_TIMES)]
    for frame in model.frames.values():
        instants = {model.images[data.id].name.split("/")[1] for data in frame.data_ids}
        assert len(instants) == 1


def test_points_are_observed_once_without_error(exported: Path) -> None:
    model = pycolmap.Reconstruction(exported / "sparse" / "0")
    assert model.num_points3D() == model.compute_num_observations() > 1000
    model.update_point_3d_errors()
    assert max(point.error for point in model.points3D.values()) < 1e-10
    assert {point.track.length() for point in model.points3D.values()} == {1}


def test_the_colours_of_points_are_those_of_the_pictures(images: list[Shown]) -> None:
    assert max(image.error() for image in images) < EXACT_THRESHOLD
    assert max(image.error(moving_only=True) for image in images) < THRESHOLD
    assert min(image.error(shift=0.5) for image in images) > EXACT_THRESHOLD


def test_images_and_moving_points_have_their_times(exported: Path, capture: Capture) -> None:
    place = exported / "sparse" / "0"
    model = pycolmap.Reconstruction(place)
    image_times, point_times = read_table(place / "times.bin", "<u4"), read_table(place / "points_t.bin", "<u8")
    nanoseconds = [round(seconds * 1e9) for seconds in capture.times]
    assert [image_times[number] for number in sorted(model.images)] == nanoseconds * NUM_VIEWS
    assert 0 < len(point_times) < model.num_points3D()
    for number, time in point_times.items():
        (element,) = model.points3D[number].track.elements
        assert image_times[element.image_id] == time
    clouds = [capture.output.points(instant) for instant in range(NUM_TIMES)]
    moving = np.concatenate([cloud.xyz[cloud.dynamic != 0] for cloud in clouds])
    written = np.array([model.points3D[number].xyz for number in point_times])
    known = {tuple(point) for point in moving.tolist()}
    assert all(tuple(point) in known for point in written.tolist())
    assert json.loads((place / "time_meta.json").read_text())["time_convention"] == "mid_exposure"


def test_colmap4d_reads_the_times(exported: Path, capture: Capture) -> None:
    colmap4d = pytest.importorskip("colmap4d")
    place = exported / "sparse" / "0"
    assert colmap4d.validate_full(place) == []
    view = colmap4d.load_model_view(place)
    assert set(view.effective_times().values()) == {round(seconds * 1e9) for seconds in capture.times}
    assert view.effective_points_t() == read_table(place / "points_t.bin", "<u8")
    assert len(view.effective_points_t()) < len(view.point_ids())


def test_text_is_the_same_model(exported: Path, capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "colmap", tmp_path / "text", images=False, text=True, max_points=MAX_POINTS)
    place = tmp_path / "text" / "sparse" / "0"
    assert {path.suffix for path in place.iterdir()} == {".txt", ".json"}
    (tmp_path / "binary").mkdir()
    pycolmap.Reconstruction(place).write_binary(tmp_path / "binary")
    (tmp_path / "same").mkdir()
    pycolmap.Reconstruction(exported / "sparse" / "0").write_binary(tmp_path / "same")
    for file in (tmp_path / "same").iterdir():
        assert file.read_bytes() == (tmp_path / "binary" / file.name).read_bytes()
        assert file.stem == "images" or file.read_bytes() == (exported / "sparse" / "0" / file.name).read_bytes()
    for stem, kind in (("times", "<u4"), ("points_t", "<u8")):
        rows = np.loadtxt(place / f"{stem}.txt", dtype=np.int64)
        assert dict(rows.tolist()) == read_table(exported / "sparse" / "0" / f"{stem}.bin", kind)


def test_colmap_undistorts_the_pictures(exported: Path, tmp_path: Path) -> None:
    pycolmap.undistort_images(tmp_path, exported / "sparse" / "0", exported / "images")
    model = pycolmap.Reconstruction(tmp_path / "sparse")
    assert model.num_images() == NUM_VIEWS * NUM_TIMES
    for image in model.images.values():
        original, undistorted = read_rgb(exported / "images" / image.name), read_rgb(tmp_path / "images" / image.name)
        np.testing.assert_array_equal(original, undistorted)


def test_colmap_reads_the_configuration_of_the_rig(exported: Path, capture: Capture) -> None:
    (config,) = pycolmap.read_rig_config(exported / "rig_config.json")
    first = capture.world_to_camera[0, 0]
    assert config.cameras[0].ref_sensor
    for view, camera in enumerate(config.cameras):
        assert camera.image_prefix == f"cam0{view + 1}/"
        if view:
            expected = capture.world_to_camera[0, view] @ np.linalg.inv(first)
            np.testing.assert_allclose(camera.cam_from_rig.matrix(), expected[:3], atol=1e-12)


def test_identifiers_are_those_of_a_database_of_colmap(exported: Path, tmp_path: Path) -> None:
    file = tmp_path / "database.db"
    pycolmap.Database.open(file).close()
    pycolmap.import_images(file, exported / "images", camera_mode=pycolmap.CameraMode.PER_FOLDER)
    model = pycolmap.Reconstruction(exported / "sparse" / "0")
    with pycolmap.Database.open(file) as database:
        pycolmap.apply_rig_config(pycolmap.read_rig_config(exported / "rig_config.json"), database)
        images = {image.image_id: (image.name, image.camera_id) for image in database.read_all_images()}
        frames = {frame.frame_id: (frame.rig_id, data_of(frame)) for frame in database.read_all_frames()}
        rigs = {rig.rig_id: rig.ref_sensor_id.id for rig in database.read_all_rigs()}
    assert images == {number: (image.name, image.camera_id) for number, image in model.images.items()}
    assert frames == {number: (frame.rig_id, data_of(frame)) for number, frame in model.frames.items()}
    assert rigs == {number: rig.ref_sensor_id.id for number, rig in model.rigs.items()}


def data_of(frame: Any) -> set[tuple[int, int]]:
    return {(data.sensor_id.id, data.id) for data in frame.data_ids}


def test_moving_cameras_have_no_rig(moving_export: Path, moving_capture: Capture) -> None:
    names = {path.name for path in (moving_export / "sparse" / "0").iterdir()}
    assert not names & {"rigs.bin", "frames.bin"}
    assert not (moving_export / "rig_config.json").exists()
    model = pycolmap.Reconstruction(moving_export / "sparse" / "0")
    assert (model.num_cameras(), model.num_frames()) == (NUM_VIEWS * NUM_TIMES,) * 2  # the cameras zoom
    np.testing.assert_allclose(poses_of(model), true_poses(moving_capture.output), atol=1e-12)
    assert max(shown.error() for shown in read_shown(moving_export)) < EXACT_THRESHOLD


def test_moving_cameras_of_constant_focal_length_are_shared(moving_capture: Capture, tmp_path: Path) -> None:
    output = moving_capture.output
    first = output.cameras.intrinsics[:1].expand_as(output.cameras.intrinsics)
    output = replace(output, cameras=replace(output.cameras, intrinsics=first.clone()))
    export(output, "colmap", tmp_path / "export", scene=moving_capture.scene, max_points=MAX_POINTS)
    model = pycolmap.Reconstruction(tmp_path / "export" / "sparse" / "0")
    assert (model.num_cameras(), model.num_images(), model.num_rigs()) == (NUM_VIEWS, 16, NUM_VIEWS)
    scene = open_scene(tmp_path / "export/images", image_fps=12.0, calibration=tmp_path / "export/sparse/0")
    cameras = [view.camera for view in scene.views]
    poses = np.stack([camera.world_to_camera.numpy() for camera in cameras if camera is not None], axis=1)
    np.testing.assert_allclose(poses, moving_capture.world_to_camera, atol=1e-12)


def test_an_instant_of_moving_cameras_is_a_rig(moving_capture: Capture, tmp_path: Path) -> None:
    options: dict[str, Any] = {"per_instant": True, "images": False, "max_points": MAX_POINTS}
    export(moving_capture.folder, "colmap", tmp_path / "export", **options)
    for instant, poses in enumerate(moving_capture.world_to_camera):
        model = pycolmap.Reconstruction(tmp_path / "export" / f"frame_{instant:06d}" / "sparse" / "0")
        assert (model.num_cameras(), model.num_rigs(), model.num_frames()) == (NUM_VIEWS, 1, 1)
        np.testing.assert_allclose(poses_of(model), poses[:, :3], atol=1e-12)


def test_every_instant_is_a_model_of_its_own(capture: Capture, tmp_path: Path) -> None:
    options: dict[str, Any] = {"per_instant": True, "max_points": MAX_POINTS}
    (result,) = export(capture.folder, "colmap", tmp_path / "export", scene=capture.scene, **options)
    total = 0
    for instant in range(NUM_TIMES):
        folder = tmp_path / "export" / f"frame_{instant:06d}"
        images = read_shown(folder)
        assert [image.name for image in images] == [f"cam0{view}.png" for view in (1, 2, 3, 4)]
        assert max(image.error() for image in images) < EXACT_THRESHOLD
        model = pycolmap.Reconstruction(folder / "sparse" / "0")
        assert (model.num_rigs(), model.num_frames()) == (1, 1)
        assert set(read_table(folder / "sparse/0/times.bin", "<u4").values()) == {round(capture.times[instant] * 1e9)}
        total += model.num_points3D()
    assert total == result.record.points
    assert "frame_000000" in result.next_step


def test_some_views_and_instants_keep_their_names_and_points(capture: Capture, tmp_path: Path) -> None:
    options: dict[str, Any] = {"instants": (1, None, 2), "views": ("cam02", "cam04"), "max_points": MAX_POINTS}
    (result,) = export(capture.folder, "colmap", tmp_path / "export", scene=capture.scene, **options)
    images = read_shown(tmp_path / "export")
    expected = [f"cam0{view}/frame_00000{instant}.png" for view in (2, 4) for instant in (1, 3)]
    assert [image.name for image in images] == expected
    assert max(image.error() for image in images) < EXACT_THRESHOLD
    assert [instant.time for instant in result.record.instants] == [round(capture.times[t] * 1e9) for t in (1, 3)]


def test_without_pictures_the_names_stay(exported: Path, capture: Capture, tmp_path: Path) -> None:
    (result,) = export(capture.folder, "colmap", tmp_path / "export", images=False, max_points=MAX_POINTS)
    assert not (tmp_path / "export" / "images").exists()
    assert any("no pictures were written" in remark for remark in result.record.remarks)
    name = "sparse/0/images.bin"
    assert (tmp_path / "export" / name).read_bytes() == (exported / name).read_bytes()


def test_points_outside_of_cropped_pictures_have_no_track(capture: Capture, tmp_path: Path) -> None:
    options: dict[str, Any] = {"pinhole": "common", "max_points": MAX_POINTS}
    (result,) = export(capture.folder, "colmap", tmp_path / "export", scene=capture.scene, **options)
    model = pycolmap.Reconstruction(tmp_path / "export" / "sparse" / "0")
    assert 0 < model.compute_num_observations() < model.num_points3D() == result.record.points
    assert len({tuple(camera.params) for camera in model.cameras.values()}) == 1
    assert max(image.error() for image in read_shown(tmp_path / "export")) < THRESHOLD


def test_names_with_spaces_and_accents_become_safe(tmp_path: Path) -> None:
    names = ("caméra 1", "Kamera ü")
    made = make_capture(tmp_path, names=names, numbers=(0, 1), size=(60, 80))
    export(made.folder, "colmap", tmp_path / "export", scene=made.scene, text=True)
    model = pycolmap.Reconstruction(tmp_path / "export" / "sparse" / "0")
    found = {image.name for image in model.images.values()}
    assert found == {f"{label}/frame_00000{i}.png" for label in ("camera_1", "Kamera_u") for i in (0, 1)}
    assert all((tmp_path / "export" / "images" / name).is_file() for name in found)
