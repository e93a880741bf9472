"""The Neural 3D Video form of 4DGaussians, read as its loader does."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from page4d.errors import UsageError
from page4d.exporters.export import Exported
from page4d.exporters.trainers.views import reading_order
from tests.exporters.capture import Capture, project, read_rgb
from tests.exporters.trainer_shots import Shot, assert_colors, by_instant, planned, poses_of_rows, read_cloud

NAME = "4dgaussians-dynerf"
SIZE = (1014, 1352)
VIEWS = (1, 0, 2)
"""Views of the export in the order of its files."""
INSTANTS = (0, 2)
OPTIONS: dict[str, Any] = {"views": ("cam01", "cam02", "cam03"), "hold_out": ("cam02",), "instants": (0, None, 2)}


def load_shots(folder: Path) -> tuple[list[Shot], dict[str, list[float]]]:
    """Read the folder as the loader does, and return also the times of every view's pictures.

    The focal length is that of the first row, halved; pictures are resized to 1352x1014; columns of poses are down,
    right, backwards; the pictures of a view lie beside its video, in the order of their names.
    """
    rows = np.load(folder / "poses_bounds.npy")
    videos = sorted(folder.glob("cam*.mp4"))
    focal = rows[0, 14] / (2704 / SIZE[1])
    intrinsics = np.array([[focal, 0, SIZE[1] / 2], [0, focal, SIZE[0] / 2], [0, 0, 1]])
    shots, times = [], {}
    for view, video, pose in zip(VIEWS, videos, poses_of_rows(rows), strict=True):
        pictures = sorted((folder / video.stem / "images").iterdir())
        times[video.stem] = [index / 300 for index in range(len(pictures))]
        for instant, path in zip(INSTANTS, pictures, strict=True):
            picture = cv2.resize(read_rgb(path), SIZE[::-1], interpolation=cv2.INTER_LANCZOS4)
            shots.append(Shot(view, instant, picture, intrinsics, pose))
    return shots, times


def points_of(capture: Capture, folder: Path) -> dict[str, Any]:
    cloud, _ = read_cloud(folder / "points3D_downsample2.ply")
    return {"points_of": by_instant(capture, cloud).__getitem__, "job": planned(capture, NAME, **OPTIONS)}


def test_colors(exported: Exported, capture: Capture):
    folder = exported.folder
    shots, times = load_shots(folder)
    assert times == {f"cam0{rank}": [0.0, 1 / 300] for rank in range(3)}
    assert [instant.time for instant in exported.record.instants] == times["cam00"]
    poses = capture.world_to_camera[0, list(VIEWS)]
    np.testing.assert_allclose([shot.world_to_camera for shot in shots[::2]], poses, atol=1e-12)
    assert_colors(capture, shots, wrong=("axes", "order of views"), **points_of(capture, folder))


def test_rows_of_poses_bounds(exported: Exported):
    rows = np.load(exported.folder / "poses_bounds.npy")
    assert rows.shape == (3, 17)
    assert rows.dtype == np.float64
    height, width, focal = rows[:, :15].reshape(-1, 3, 5)[..., 4].T
    assert set(height) == {2028.0}
    assert set(width) == {2704.0}
    assert len(set(focal)) == 1
    (xyz, _), _ = read_cloud(exported.folder / "points3D_downsample2.ply")
    xyz = xyz[:: len(xyz) // 20_000]  # bounds are those of a sample
    shots, _ = load_shots(exported.folder)
    for row, shot in zip(rows, shots[::2], strict=True):
        pixels, depth = project(xyz, shot.intrinsics, shot.world_to_camera)
        inside = (depth > 0) & ((pixels >= 0) & (pixels <= SIZE[::-1])).all(axis=1)
        np.testing.assert_allclose(row[15:], np.percentile(depth[inside], [0.1, 99.9]), rtol=1e-9)


def test_video_equals_pictures(exported: Exported):
    for rank in range(3):
        video = cv2.VideoCapture(str(exported.folder / f"cam0{rank}.mp4"))
        assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(6.0)
        for path in sorted((exported.folder / f"cam0{rank}" / "images").iterdir()):
            done, frame = video.read()
            assert done
            assert frame.shape == (*SIZE, 3)
            assert np.abs(frame[..., ::-1].astype(float) - read_rgb(path)).mean() < 2.0
        assert not video.read()[0]


def test_record(exported: Exported):
    assert exported.record.held_out == ["cam02"]
    assert exported.record.points > 1000
    assert json.loads((exported.folder / "export.json").read_text())["pinhole"] == "common"
    _, command, *_ = exported.next_step.splitlines()
    assert command == (
        f"python train.py -s {exported.folder} --port 6017 --expname dynerf/room "
        "--configs arguments/dynerf/default.py"
    )


def test_a_dot_in_the_path_is_named(capture: Capture):
    job = planned(capture, NAME)
    assert "dot" in job.format.code.next_step(job, Path("/data/room.v2"))
    assert "dot" not in job.format.code.next_step(job, Path("/data/room"))


def test_the_first_view_is_held_out_by_default(capture: Capture):
    assert reading_order(planned(capture, NAME)) == [0, 1, 2, 3]
    assert reading_order(planned(capture, NAME, hold_out=("cam03",))) == [2, 0, 1, 3]
    with pytest.raises(UsageError, match="holds out one view"):
        reading_order(planned(capture, NAME, hold_out=("cam01", "cam03")))
