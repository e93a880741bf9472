"""2D tracks of other trackers: both forms of files, frames, lens distortion, and files that do not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from page4d.errors import InputError
from page4d.geometry.distortion import Distortion, LensModel
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.scene.point_tracks import read_point_tracks
from page4d.scene.records import Scene
from tests.fuzzing import read_or_refuse

CAPTURE = SyntheticCapture(seed=5, num_views=2, num_times=4, image_size=(24, 32))


@pytest.fixture
def scene() -> Scene:
    return CAPTURE.scene()


def tracks() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.uniform(2, 20, (5, 4, 2)), random.random((5, 4)) > 0.3


def test_files_of_tapir_and_of_cotracker_give_the_same_tracks(scene: Scene, tmp_path: Path) -> None:
    pixels, visible = tracks()
    forms = [
        {"tracks": pixels, "visibles": visible},
        {"tracks": pixels.astype(np.float32), "occluded": ~visible},
        {"pred_tracks": pixels.swapaxes(0, 1)[None] - 0.5, "pred_visibility": visible.T[None]},
        {"pred_tracks": pixels.swapaxes(0, 1) - 0.5, "pred_visibility": visible.T[..., None].astype(np.float32)},
    ]
    for form in forms:
        np.savez(tmp_path / "cam02.npz", **form)
        first, second = read_point_tracks(tmp_path, scene)
        assert first is None
        assert np.array_equal(second.visible, visible)
        assert np.abs(second.pixels - pixels)[visible].max() < 1e-5


def test_frames_of_the_video_are_selected(scene: Scene, tmp_path: Path) -> None:
    pixels, visible = tracks()
    np.savez(tmp_path / "cam01.npz", tracks=pixels, visibles=visible)
    views = tuple(replace(view, indices=(1, 3)) for view in scene.views)
    found = read_point_tracks(tmp_path, replace(scene, views=views, times=scene.times[[1, 3]]))[0]
    assert np.array_equal(found.visible, visible[:, [1, 3]])


def test_lens_distortion_is_removed(scene: Scene, tmp_path: Path) -> None:
    pixels, visible = tracks()
    np.savez(tmp_path / "cam01.npz", tracks=pixels, visibles=np.ones_like(visible))
    camera = scene.views[0].camera
    lens = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(0.1, 0.0, 0.0, 0.0))
    views = (replace(scene.views[0], camera=replace(camera, distortion=lens)), scene.views[1])
    found = read_point_tracks(tmp_path, replace(scene, views=views))[0]
    center = camera.intrinsics[:2, 2].numpy()
    # Positive coefficients move points outward: removing them moves points toward the center.
    radius, before = (np.linalg.norm(one - center, axis=-1) for one in (found.pixels, pixels))
    assert (radius < before).all()


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"points": np.zeros((2, 4, 2))}, "does not hold 2D tracks"),
        ({"tracks": np.zeros((2, 4, 3)), "visibles": np.ones((2, 4))}, "does not hold 2D tracks"),
        ({"tracks": np.zeros((2, 9, 2)), "visibles": np.ones((2, 9))}, "over 9 frames; the video has 4"),
    ],
)
def test_other_files_are_refused(arrays: dict[str, np.ndarray], reason: str, scene: Scene, tmp_path: Path) -> None:
    np.savez(tmp_path / "cam01.npz", **arrays)
    with pytest.raises(InputError, match=reason):
        read_point_tracks(tmp_path, scene)


def test_folders_without_tracks_are_refused(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file of any view"):
        read_point_tracks(tmp_path, scene)
    with pytest.raises(InputError, match="is not a folder"):
        read_point_tracks(tmp_path / "none", scene)
    np.save(tmp_path / "array.npy", np.zeros(3))
    for content in (b"PK", (tmp_path / "array.npy").read_bytes()):
        (tmp_path / "cam01.npz").write_bytes(content)
        with pytest.raises(InputError, match="does not hold 2D tracks"):
            read_point_tracks(tmp_path, scene)


def test_archives_with_changed_bytes_are_read_or_refused(scene: Scene, tmp_path: Path) -> None:
    pixels, visible = tracks()
    path, random = tmp_path / "cam01.npz", np.random.default_rng(0)
    np.savez_compressed(path, tracks=pixels, visibles=visible)
    content = path.read_bytes()
    for start in random.integers(0, len(content) - 8, 60):
        path.write_bytes(content[:start] + random.bytes(8) + content[start + 8 :])
        read_or_refuse(lambda: read_point_tracks(tmp_path, scene))
