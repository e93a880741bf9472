"""The files of a COLMAP model, read back by pycolmap."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.formats.colmap import Camera, Frame, Image, Model, Points3D, Rig, make_poses, write_model

NUM_POINTS = 50


def random_matrices(number: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    matrices = np.tile(np.eye(4), (number, 1, 1))
    matrices[:, :3, :3] = Rotation.random(number, random_state=seed).as_matrix()
    matrices[:, :3, 3] = rng.normal(size=(number, 3))
    return matrices


def small_model() -> tuple[Model, np.ndarray]:
    """Return two cameras over two instants, and the poses of their images; every third point has no track."""
    rng = np.random.default_rng(0)
    first, second = random_matrices(2, 1)
    poses = np.stack([first, second, first, second])
    numbered = np.arange(NUM_POINTS)
    image = np.where(numbered % 3, numbered % 4 + 1, 0).astype(np.int32)
    index = np.zeros(NUM_POINTS, dtype=np.int32)
    images = []
    for place, pose in enumerate(make_poses(poses)):
        shown = np.flatnonzero(image == place + 1)
        index[shown] = np.arange(len(shown))
        name = f"cam{place % 2}/frame_{place // 2}.png"
        pixels = rng.uniform(0, 100, (len(shown), 2))
        images.append(
            Image(id=place + 1, pose=pose, camera_id=place % 2 + 1, name=name, points2d=pixels, point_ids=shown + 1)
        )
    rig_poses = make_poses(np.stack([np.eye(4), second @ np.linalg.inv(first)]))
    rig = Rig(id=1, camera_ids=(1, 2), sensor_from_rig=tuple(rig_poses))
    frames = [Frame(id=n, rig=rig, rig_from_world=images[0].pose, image_ids=(2 * n - 1, 2 * n)) for n in (1, 2)]
    cameras = [
        Camera.of(1, (80, 100), np.array([[90.1, 0, 49.3], [0, 91.2, 41.4], [0, 0, 1]])),
        Camera.of(2, (60, 120), np.array([[70.5, 0, 61.5], [0, 71.5, 29.5], [0, 0, 1]])),
    ]
    points = Points3D(
        xyz=rng.normal(size=(NUM_POINTS, 3)).astype(np.float32),
        rgb=rng.integers(0, 256, (NUM_POINTS, 3), dtype=np.uint8),
        track_image=image,
        track_index=index,
    )
    return Model(cameras=cameras, images=images, points=points, rigs=[rig], frames=frames), poses


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_pycolmap_reads_every_record_exactly(tmp_path: Path, text: bool) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    model, poses = small_model()
    write_model(tmp_path, model, text=text)
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt" if text else ".bin"}
    read = pycolmap.Reconstruction(tmp_path)
    for camera in model.cameras:
        found = read.cameras[camera.id]
        assert (found.model.name, found.width, found.height) == ("PINHOLE", camera.width, camera.height)
        assert tuple(found.params) == camera.parameters
    for image, pose in zip(model.images, poses, strict=True):
        found = read.images[image.id]
        assert (found.name, found.camera_id) == (image.name, image.camera_id)
        np.testing.assert_allclose(found.cam_from_world().matrix(), pose[:3], atol=1e-14)
        np.testing.assert_array_equal([point.xy for point in found.points2D], image.points2d)
        np.testing.assert_array_equal([point.point3D_id for point in found.points2D], image.point_ids)
    ids = sorted(read.points3D)
    assert ids == list(range(1, NUM_POINTS + 1))
    np.testing.assert_array_equal([read.points3D[number].xyz for number in ids], model.points.xyz.astype(np.float64))
    np.testing.assert_array_equal([read.points3D[number].color for number in ids], model.points.rgb)
    elements = [[(element.image_id, element.point2D_idx) for element in read.points3D[n].track.elements] for n in ids]
    tracks = zip(model.points.track_image.tolist(), model.points.track_index.tolist(), strict=True)
    assert elements == [[track] if track[0] else [] for track in tracks]
    assert (read.num_rigs(), read.num_frames(), read.num_reg_images()) == (1, 2, 4)


def test_the_bytes_are_those_of_pycolmap(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    write_model(tmp_path / "ours", small_model()[0])
    (tmp_path / "theirs").mkdir()
    pycolmap.Reconstruction(tmp_path / "ours").write_binary(tmp_path / "theirs")
    for stem in ("cameras", "rigs", "frames", "points3D"):
        assert (tmp_path / "ours" / f"{stem}.bin").read_bytes() == (tmp_path / "theirs" / f"{stem}.bin").read_bytes()


def test_a_model_without_rig_and_tracks_has_three_files(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    model, _ = small_model()
    bare = [Image(id=image.id, pose=image.pose, camera_id=image.camera_id, name=image.name) for image in model.images]
    points = Points3D(xyz=model.points.xyz, rgb=model.points.rgb)
    write_model(tmp_path, Model(cameras=model.cameras, images=bare, points=points))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cameras.bin", "images.bin", "points3D.bin"]
    read = pycolmap.Reconstruction(tmp_path)
    assert (read.num_points3D(), read.num_images(), read.num_rigs(), read.num_frames()) == (NUM_POINTS, 4, 2, 4)


def test_a_model_without_points_has_two_files(tmp_path: Path) -> None:
    model, _ = small_model()
    write_model(tmp_path, Model(cameras=model.cameras, images=model.images))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cameras.bin", "images.bin"]
