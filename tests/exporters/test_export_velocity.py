"""Velocities and tracks in exports: turned and scaled with the world, never moved, and 0 where they are unknown."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.errors import UsageError
from page4d.exporters.export import export
from page4d.exporters.formats import FORMATS
from page4d.exporters.npz import check
from page4d.exporters.plan import plan_job
from page4d.formats.ply import encode_ply, read_ply
from page4d.geometry.transforms import invert_rigid
from page4d.options import ExportSettings
from page4d.output.reader import open_output
from tests.exporters.capture import DRIFT, IMAGE_FPS, NUM_TRACKS, UNEVEN, Capture, ball_tracks, make_capture, project

VELOCITY = np.array(DRIFT) * IMAGE_FPS
"""Velocity of the ball in metres per second."""


def opened(folder: Path) -> Any:
    from pxr import Usd

    (scene,) = folder.glob("scene.usd?")
    return Usd.Stage.Open(str(scene))


def values(stage: Any, path: str, name: str, code: float) -> NDArray[Any]:
    return np.array(stage.GetPrimAtPath(path).GetAttribute(name).Get(code))


def archive(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as data:
        return dict(data)


class TestUsd:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("pxr")

    @pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
    def test_velocities_have_the_samples_of_the_points(self, fast_capture: Capture, tmp_path: Path, split: bool):
        export(fast_capture.folder, "usd", tmp_path / "usd", split=split, scale=2.0)
        stage = opened(tmp_path / "usd")
        prim = stage.GetPrimAtPath("/World/points")
        assert prim.GetAttribute("velocities").GetTimeSamples() == prim.GetAttribute("points").GetTimeSamples()
        for place in range(4):
            cloud = fast_capture.output.points(place)
            found = values(stage, "/World/points", "velocities", place)
            assert len(found) == len(values(stage, "/World/points", "points", place))
            found = found[: cloud.num_points]
            moving, known = cloud.dynamic != 0, cloud.velocity_sigma > 0
            np.testing.assert_allclose(
                found[moving & known], 2 * np.tile(VELOCITY, (sum(moving & known), 1)), rtol=1e-5
            )
            assert not found[~known].any()
            assert not found[~moving].any()
            assert (moving & known).sum() > 100

    def test_usd_moves_the_points_by_their_velocity_per_second(self, fast_capture: Capture, tmp_path: Path):
        from pxr import Usd, UsdGeom

        export(fast_capture.folder, "usd", tmp_path / "usd")
        stage = opened(tmp_path / "usd")
        assert stage.GetTimeCodesPerSecond() == IMAGE_FPS
        points = UsdGeom.Points(stage.GetPrimAtPath("/World/points"))
        start = np.array(points.ComputePointsAtTime(Usd.TimeCode(1.0), Usd.TimeCode(1.0)))
        moved = np.array(points.ComputePointsAtTime(Usd.TimeCode(1.5), Usd.TimeCode(1.0)))
        cloud = fast_capture.output.points(1)
        moving = np.flatnonzero((cloud.dynamic != 0) & (cloud.velocity_sigma > 0))
        np.testing.assert_allclose(
            (moved - start)[moving], np.tile(0.5 * np.array(DRIFT), (len(moving), 1)), atol=1e-6
        )
        matrix = np.array(UsdGeom.Xformable(points).ComputeLocalToWorldTransform(0.0))
        np.testing.assert_allclose(matrix[:3, :3], np.diag([1, -1, -1]), atol=1e-12)  # y up, with the points

    @pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
    def test_tracks_keep_their_identity(self, fast_capture: Capture, tmp_path: Path, split: bool):
        export(fast_capture.folder, "usd", tmp_path / "usd", split=split)
        stage = opened(tmp_path / "usd")
        tracks = ball_tracks((0, 1, 2, 3), 4)
        assert values(stage, "/World/tracks", "ids", 0).tolist() == tracks.ids.tolist()
        for place in range(4):
            exists = np.isfinite(tracks.coords[place]).all(axis=-1)
            xyz, widths = (values(stage, "/World/tracks", name, place) for name in ("points", "widths"))
            np.testing.assert_array_equal(xyz[exists], tracks.coords[place][exists])
            np.testing.assert_array_equal(widths > 0, exists)
            np.testing.assert_array_equal(values(stage, "/World/tracks", "primvars:visible", place), exists)
        assert np.isfinite(values(stage, "/World/tracks", "points", 0)).all()
        between = values(stage, "/World/tracks", "points", 1.5)
        np.testing.assert_allclose(between[2:], (tracks.coords[1:3, 2:].sum(axis=0)) / 2, atol=1e-6)


def test_static_layers_have_no_velocities_and_moving_ones_have(tmp_path: Path):
    pytest.importorskip("pxr")
    capture = make_capture(tmp_path, velocity=True, layers=True, size=(60, 80))
    assert capture.output.static_points().velocity is None
    assert capture.output.moving_points(1).velocity is not None
    export(capture.folder, "usd", tmp_path / "usd")
    stage = opened(tmp_path / "usd")
    assert not stage.GetPrimAtPath("/World/static").GetAttribute("velocities").IsAuthored()
    found = values(stage, "/World/points", "velocities", 2)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1).max(), np.linalg.norm(VELOCITY), rtol=1e-5)
    job = plan_job(capture.output, FORMATS["freetimegs"], ExportSettings(), None)
    cloud = job.model_points().cloud
    assert not cloud.velocity[cloud.dynamic == 0].any()
    assert cloud.velocity[cloud.dynamic != 0].any()


def test_points_with_a_velocity_move_in_runs_without_motion_masks(fast_capture: Capture, tmp_path: Path):
    shutil.copytree(fast_capture.folder, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "dynamic")
    for path in (tmp_path / "out" / "points").glob("*.ply"):
        cloud = read_ply(path)
        path.write_bytes(encode_ply(replace(cloud, dynamic=np.zeros_like(cloud.dynamic)).columns))
    output = open_output(tmp_path / "out")
    assert output.has_moving_points
    true = fast_capture.output.points(1)
    np.testing.assert_array_equal(output.points(1).dynamic != 0, (true.dynamic != 0) & (true.velocity_sigma > 0))
    export(output.layout.folder, "freetimegs", tmp_path / "free")
    velocities = archive(tmp_path / "free" / "points.npz")["velocities"]
    assert (np.linalg.norm(velocities, axis=1) > 0).sum() > 100


@pytest.mark.parametrize("up", [axis for axis in UpAxis if axis is not UpAxis.AUTO])
def test_velocities_turn_and_scale_with_the_points(fast_capture: Capture, up: UpAxis):
    job = plan_job(fast_capture.output, FORMATS["splat"], ExportSettings(up=up, scale=3.0), None)
    clouds = [job.instant_points(place) for place in (0, 1)]
    ours = fast_capture.output.points(0)
    moving = (clouds[0].dynamic != 0) & (clouds[0].velocity_sigma > 0)
    centers = [cloud.xyz[(cloud.dynamic != 0) & (cloud.velocity_sigma > 0)].mean(axis=0) for cloud in clouds]
    velocity = clouds[0].velocity[moving].mean(axis=0)
    direction = job.world.rotation @ VELOCITY
    np.testing.assert_allclose(velocity, 3 * direction, rtol=1e-4, atol=1e-5)
    assert (centers[1] - centers[0]) @ velocity > 0.8 * np.linalg.norm(centers[1] - centers[0]) * np.linalg.norm(
        velocity
    )
    np.testing.assert_allclose(clouds[0].velocity_sigma, 3 * ours.velocity_sigma, rtol=1e-6)
    coords, tracks = job.tracks.coords[1], ball_tracks((0, 1, 2, 3), 4)
    kept = np.isfinite(coords).all(axis=-1)
    np.testing.assert_allclose(coords[kept], 3 * tracks.coords[1][kept] @ job.world.rotation.T, rtol=1e-4, atol=1e-5)


class TestNpz:
    def test_velocities_are_those_of_the_maps(self, fast_capture: Capture, tmp_path: Path):
        export(fast_capture.folder, "npz", tmp_path / "npz", scale=2.0, instants=(1, None, 1))
        for view, name in enumerate(fast_capture.output.view_names):
            data = archive(tmp_path / "npz" / f"{name}.npz")
            assert data["velocity"].dtype == data["velocity_sigma"].dtype == np.float32
            assert data["velocity"].shape == (*data["depth"].shape, 3)
            for place in range(3):
                velocity, sigma = fast_capture.output.velocity(place + 1, name)
                np.testing.assert_allclose(data["velocity"][place], 2 * velocity, rtol=1e-6)
                np.testing.assert_allclose(data["velocity_sigma"][place], 2 * sigma, rtol=1e-6)
            known = data["velocity_sigma"] > 0
            assert not data["velocity"][~known].any()
            step = 2 * fast_capture.output.run.motion.motion_step
            assert np.abs(data["velocity"][data["dynamic"] & known] - 2 * VELOCITY).max() <= step, view
            assert all(word in str(data["conventions"]) for word in ("velocity [T, h, w, 3]", "velocity_sigma"))

    def test_tracks_project_onto_the_ball(self, fast_capture: Capture, tmp_path: Path):
        export(fast_capture.folder, "npz", tmp_path / "npz")
        for view, name in enumerate(fast_capture.output.view_names):
            data = archive(tmp_path / "npz" / f"tracks_{name}.npz")
            assert data["coords"].shape == (4, NUM_TRACKS, 3)
            assert data["coords"].dtype == np.float32
            assert np.isfinite(data["coords"]).all()
            assert data["visibs"].any() == (view > 0)
            np.testing.assert_array_equal(data["extrinsics"], fast_capture.world_to_camera[:, view])
            np.testing.assert_array_equal(data["intrinsics"], fast_capture.intrinsics[:, view])
            centre = np.array([-0.6, 0.35, 3.2])
            for place in range(4):
                exists = data["exists"][place]
                assert exists.sum() == NUM_TRACKS - (place == 0) - (place > 1)
                offsets = data["coords"][place][exists] - centre - place * np.array(DRIFT)
                np.testing.assert_allclose(np.linalg.norm(offsets, axis=1), 0.6, atol=1e-5)
                pixels, _ = project(
                    data["coords"][place][exists], data["intrinsics"][place], data["extrinsics"][place]
                )
                height, width = data["image_size"]
                dynamic = fast_capture.output.dynamic(place, name)
                columns, rows = np.floor(pixels).astype(int).T
                inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
                assert dynamic[rows[inside], columns[inside]].mean() > 0.75  # many lie near the silhouette
            names = data.keys() - {"view", "unit", "conventions"}
            assert all(array in str(data["conventions"]) for array in names)

    def test_views_and_instants_are_selected_and_empty_tracks_left_out(self, fast_capture: Capture, tmp_path: Path):
        export(fast_capture.folder, "npz", tmp_path / "npz", instants=(2, 4, 1), views=("cam03",))
        files = sorted(path.name for path in (tmp_path / "npz").glob("*.npz"))
        assert files == ["cam03.npz", "tracks_cam03.npz"]
        data = archive(tmp_path / "npz" / "tracks_cam03.npz")
        assert data["ids"].tolist() == [100, *range(102, 100 + NUM_TRACKS)]
        assert data["exists"].all()

    def test_files_of_two_views_are_different(self, tmp_path: Path):
        names = ("cam", "tracks_cam")
        capture = make_capture(tmp_path, velocity=True, tracks=True, size=(30, 40), names=names)
        with pytest.raises(UsageError, match="the tracks of 'cam' would have the file of another view"):
            export(capture.folder, "npz", tmp_path / "npz")
        check(plan_job(capture.output, FORMATS["npz"], ExportSettings(views=("cam",)), None))


class TestFreeTimeGs:
    def test_points_move_to_where_the_ball_is_at_other_times(self, fast_capture: Capture, tmp_path: Path):
        export(fast_capture.folder, "freetimegs", tmp_path / "points", max_points=0)
        data = archive(tmp_path / "points" / "points.npz")
        number = len(data["positions"])
        shapes = {"positions": (number, 3), "velocities": (number, 3), "colors": (number, 3), "times": (number, 1)}
        shapes |= {"durations": (number, 1), "has_velocity": (number,)}
        assert {name: data[name].shape for name in shapes} == shapes
        assert data["colors"].min() >= 0
        assert data["colors"].max() <= 1
        assert (int(data["frame_start"]), int(data["frame_end"]), int(data["time_denominator"])) == (0, 4, 3)
        moving = data["durations"][:, 0] < 1
        assert set(np.round(data["times"][moving, 0] * 3, 5)) == {0, 1, 2, 3}
        assert (data["times"][~moving] == 0.5).all()
        assert not data["velocities"][~moving].any()
        known = moving & data["has_velocity"]
        assert known.sum() > 300
        np.testing.assert_allclose(data["velocities"][known], np.tile(DRIFT, (known.sum(), 1)), rtol=1e-4)
        # As the trainer moves them: frames from their own time, to the last one.
        ahead = 3 * (1 - data["times"][known])
        xyz = data["positions"][known] + data["velocities"][known] * ahead
        distance = np.linalg.norm(xyz - ([-0.6, 0.35, 3.2] + 3 * np.array(DRIFT)), axis=1)
        assert np.abs(distance - 0.6).max() < 0.01

    def test_unknown_velocities_are_0(self, fast_capture: Capture, tmp_path: Path):
        export(fast_capture.folder, "freetimegs", tmp_path / "points", views=("cam01",), max_points=0)
        data = archive(tmp_path / "points" / "points.npz")
        assert not data["velocities"][~data["has_velocity"]].any()

    def test_velocities_are_per_step_of_an_uneven_capture(self, tmp_path: Path):
        capture = make_capture(tmp_path, numbers=UNEVEN, velocity=True, size=(60, 80))
        export(capture.folder, "freetimegs", tmp_path / "points", max_points=0)
        data = archive(tmp_path / "points" / "points.npz")
        known = (data["durations"][:, 0] < 1) & data["has_velocity"]
        for place, frames in enumerate((1.0, 1.5, 1.5, 1.0)):  # steps of 1, 2 and 1 frames
            here = known & (np.abs(data["times"][:, 0] - place / 3) < 1e-6)
            np.testing.assert_allclose(
                data["velocities"][here], np.tile(frames * np.array(DRIFT), (here.sum(), 1)), rtol=1e-4
            )
        remarks = json.loads((tmp_path / "points" / "export.json").read_text())["remarks"]
        assert any("per frame of the steps around each instant" in remark for remark in remarks)

    def test_the_world_is_that_of_the_run_at_the_scale(self, fast_capture: Capture, tmp_path: Path):
        for name, scale in (("one", 1.0), ("two", 2.0)):
            export(fast_capture.folder, "freetimegs", tmp_path / name, scale=scale, max_points=500)
        one, two = (archive(tmp_path / name / "points.npz") for name in ("one", "two"))
        assert len(one["positions"]) == 500
        for key in ("positions", "velocities"):
            np.testing.assert_allclose(two[key], 2 * one[key], rtol=1e-5, atol=1e-7)
        for key in ("times", "durations", "colors", "has_velocity"):
            np.testing.assert_array_equal(two[key], one[key])
        pose = fast_capture.predictions.cameras.world_to_camera[0, 0, 0]
        distance = np.linalg.norm(one["positions"] - invert_rigid(pose)[:3, 3].numpy(), axis=1)
        assert 1 < np.median(distance) < 6
