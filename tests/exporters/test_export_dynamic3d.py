"""The folder of Dynamic 3D Gaussians, read as its train.py does."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.exporters import plan
from page4d.exporters.export import Exported
from page4d.exporters.pictures import PictureGeometry, plan_pictures
from page4d.formats.ply import encode_ply
from tests.exporters.capture import THRESHOLD, Capture, make_capture, project, read_rgb
from tests.exporters.trainer_shots import Points, Shot, export_one, mistakes, next_instant, on_moving, worst_error

NAME = "dynamic3dgs"


def load_meta(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}_meta.json").read_text())


def load_shots(folder: Path, name: str) -> list[Shot]:
    """Read cameras [t][c]; the rasteriser takes all four intrinsics, with pixel centres at half integers."""
    meta, shots = load_meta(folder, name), []
    for instant, files in enumerate(meta["fn"]):
        for camera, file in enumerate(files):
            picture = read_rgb(folder / "ims" / file)
            assert picture.shape == (meta["h"], meta["w"], 3)
            matrix, pose = (np.array(meta[key][instant][camera]) for key in ("k", "w2c"))
            assert meta["cam_id"][instant][camera] == int(file.split("/")[0])
            shots.append(Shot(int(file.split("/")[0]), instant, picture, matrix, pose))
    return shots


def load_segmentation(folder: Path, shot: Shot) -> NDArray[np.uint8]:
    path = folder / "seg" / f"{shot.view}/{shot.instant:06d}.png"
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert mask.dtype == np.uint8
    return mask


def load_points(folder: Path) -> NDArray[np.float64]:
    rows: NDArray[np.float64] = np.load(folder / "init_pt_cld.npz")["data"]
    assert rows.shape[1] == 7
    assert rows[:, 3:6].min() >= 0
    assert 0.5 < rows[:, 3:6].max() <= 1
    assert set(np.unique(rows[:, 6])) <= {0.0, 1.0}
    return rows


@pytest.mark.parametrize("pinhole", ["keep", "common"])
@pytest.mark.parametrize("moves", [False, True], ids=["static", "moving"])
def test_colors(moves: bool, pinhole: str, request, tmp_path):
    capture = request.getfixturevalue("moving_capture" if moves else "capture")
    exported = export_one(capture, NAME, tmp_path / "room", pinhole=pinhole, scale=1.5)
    rows, shots = load_points(exported.folder), load_shots(exported.folder, "train")
    assert [(shot.view, shot.instant) for shot in shots] == [(view, t) for t in range(4) for view in range(4)]
    scale = exported.record.scale
    assert scale == 1.5
    if pinhole == "keep":
        expected = capture.world_to_camera.copy()
        expected[..., :3, 3] *= scale
        meta = load_meta(exported.folder, "train")
        np.testing.assert_allclose(meta["w2c"], expected, atol=1e-12)
        np.testing.assert_allclose(meta["k"], capture.intrinsics, atol=1e-12)

    def of_instant(instant: int) -> Points:
        chosen = rows if instant == 0 else rows[rows[:, 6] == 0]
        return chosen[:, :3], chosen[:, 3:6]

    # Common pictures show a part of each view, so that points outside are left out here.
    def visible(shot: Shot) -> Points:
        xyz, rgb = of_instant(shot.instant)
        pixels, z = project(xyz, shot.intrinsics, shot.world_to_camera)
        inside = (z > 0) & (pixels >= 0).all(axis=1) & (pixels <= shot.picture.shape[1::-1]).all(axis=1)
        return xyz[inside], rgb[inside]

    for shot in shots:
        clouds = visible(shot)
        assert worst_error(capture, [shot], lambda _, clouds=clouds: clouds, scale=scale) < THRESHOLD / 2
    if pinhole == "keep":
        for name, changed in mistakes(shots).items():
            assert worst_error(capture, changed, of_instant, scale=scale) > THRESHOLD, name
    late = [shot for shot in next_instant(shots) if shot.instant == 0]
    assert late
    assert worst_error(capture, late, of_instant, scale=scale, moving=True) > THRESHOLD


def test_segmentation_is_0_or_1_where_points_move(exported: Exported, capture: Capture):
    rows = load_points(exported.folder)
    for shot in load_shots(exported.folder, "train"):
        mask = load_segmentation(exported.folder, shot)
        assert set(np.unique(mask)) == {0, 1}
        name = capture.predictions.view_names[shot.view]
        assert np.array_equal(mask == 1, capture.output.dynamic(shot.instant, name))
        if shot.instant == 0:
            xyz = rows[:, :3] / exported.record.scale
            seen = capture.sees(xyz, 0, shot.view, tolerance=0.005)
            agree = on_moving(capture, xyz[seen], 0, shot.view) == (rows[seen, 6] == 1)
            assert agree.mean() > 0.98


def nearest(exported: Exported) -> float:
    rows, shots = load_points(exported.folder), load_shots(exported.folder, "train")
    depths = [project(rows[:, :3], shot.intrinsics, shot.world_to_camera)[1] for shot in shots]
    return min(depth[depth > 0].min() for depth in depths)


def test_a_run_in_an_arbitrary_unit_is_moved_beyond_the_near_plane(tmp_path):
    capture = make_capture(tmp_path, scale=Scale.ARBITRARY)
    exported = export_one(capture, NAME, tmp_path / "room")
    cloud, depths = capture.output.points(0), []
    for view, (pose, matrix) in enumerate(zip(capture.world_to_camera[0], capture.intrinsics[0], strict=True)):
        depths.append(np.percentile(project(cloud.xyz[cloud.view == view], matrix, pose)[1], 0.1))
    assert exported.record.scale == pytest.approx(2 / min(depths), rel=0.01)
    assert nearest(exported) > 1
    assert any("scaled by" in remark for remark in exported.record.remarks)


def test_metres_are_kept_unless_points_are_nearer_than_the_near_plane(exported: Exported):
    assert exported.record.scale == 1
    assert nearest(exported) > 1
    assert not any("near" in remark for remark in exported.record.remarks)


def test_a_small_scale_is_reported(capture: Capture, tmp_path):
    small = export_one(capture, NAME, tmp_path / "small", scale=0.5)
    assert any("nearest points are 0.69 away" in remark for remark in small.record.remarks)


def test_moving_points_below_the_floor_are_reported(exported: Exported):
    assert any("floor" in remark and "79%" in remark for remark in exported.record.remarks)


def test_held_out_views(exported: Exported, capture: Capture, tmp_path):
    held = export_one(capture, NAME, tmp_path / "held", hold_out=("cam02", "cam04"))
    assert load_meta(held.folder, "train")["cam_id"] == [[0, 2]] * 4
    assert load_meta(held.folder, "test")["cam_id"] == [[1, 3]] * 4
    assert load_meta(held.folder, "test")["fn"][2] == ["1/000002.jpg", "3/000002.jpg"]
    assert held.record.held_out == ["cam02", "cam04"]
    np.testing.assert_allclose(load_meta(held.folder, "test")["k"], capture.intrinsics[:, [1, 3]], atol=1e-12)
    assert load_meta(exported.folder, "test")["cam_id"] == [[0]] * 4
    assert exported.record.held_out == []


def test_without_motion_masks_everything_moves(capture: Capture, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(capture.folder, folder)
    shutil.rmtree(folder / "dynamic")
    exported = export_one(Capture(capture.scene, folder, capture.predictions), NAME, tmp_path / "room")
    assert (load_points(exported.folder)[:, 6] == 1).all()
    assert (load_segmentation(exported.folder, load_shots(exported.folder, "train")[0]) == 1).all()
    assert any("predicted no motion" in remark for remark in exported.record.remarks)


def test_pictures_of_several_sizes_need_a_common_pinhole(capture: Capture, tmp_path, monkeypatch):
    def several(*arguments: Any, **options: Any) -> tuple[PictureGeometry, ...]:
        first, *others = plan_pictures(*arguments, **options)
        return (replace(first, size=(160, 120)), *others)

    monkeypatch.setattr(plan, "plan_pictures", several)
    with pytest.raises(UsageError, match="one size") as caught:
        export_one(capture, NAME, tmp_path / "room")
    assert "pinhole='common'" in str(caught.value.hint)
    assert not (tmp_path / "room").exists()


def test_the_first_instant_needs_points(capture: Capture, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(capture.folder, folder)
    cloud = capture.output.points(0)
    path = folder / capture.output.layout.points(0).relative_to(capture.folder)
    path.write_bytes(encode_ply(cloud[np.zeros(cloud.num_points, dtype=bool)].columns))
    changed = Capture(capture.scene, folder, capture.predictions)
    with pytest.raises(UsageError, match="instant 0 has no points"):
        export_one(changed, NAME, tmp_path / "room")


def test_next_step_and_number_of_points(exported: Exported):
    assert str(exported.folder.absolute()) in exported.next_step
    assert "python -c \"from train import train; train('room', 'page4d')\"" in exported.next_step
    assert exported.record.points == len(load_points(exported.folder)) == 4 * 120 * 160 - exported.record.cut_points
