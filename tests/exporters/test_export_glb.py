"""GLB, read back by an independent reader and evaluated as a viewer does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from page4d.choices import PointLayer
from page4d.errors import UsageError
from page4d.exporters import glb
from page4d.exporters.export import export, plan_exports
from page4d.exporters.formats import BudgetScope
from page4d.formats.ply import PointCloud
from tests.exporters.capture import Capture

pygltflib = pytest.importorskip("pygltflib")

Y_UP = np.diag([1.0, -1.0, -1.0])
TYPES = {5126: "<f4", 5123: "<u2"}
WIDTHS = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}


class Reader:
    """A GLB file as a viewer reads it."""

    def __init__(self, folder: Path) -> None:
        self.gltf = pygltflib.GLTF2().load(str(folder / "scene.glb"))
        self.instants = [node for node in self.gltf.nodes if node.camera is None]
        self.cameras = [node for node in self.gltf.nodes if node.camera is not None]

    def accessor(self, index: int) -> NDArray[Any]:
        accessor = self.gltf.accessors[index]
        view = self.gltf.bufferViews[accessor.bufferView]
        data = self.gltf.binary_blob()[view.byteOffset : view.byteOffset + view.byteLength]
        values = np.frombuffer(data, TYPES[accessor.componentType]).reshape(accessor.count, WIDTHS[accessor.type])
        if accessor.min:
            assert np.array_equal(values.min(axis=0), np.float32(accessor.min))
            assert np.array_equal(values.max(axis=0), np.float32(accessor.max))
        return values / 65535.0 if accessor.normalized else values

    def points(self, instant: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return positions and linear colours."""
        attributes = self.gltf.meshes[self.instants[instant].mesh].primitives[0].attributes
        colors = self.accessor(attributes.COLOR_0)
        assert (colors[:, 3] == 1).all()
        return self.accessor(attributes.POSITION), colors[:, :3]

    def curves(self) -> dict[tuple[int, str], tuple[NDArray[Any], NDArray[Any], str]]:
        """Return keys, values and interpolation by node and property."""
        animation = self.gltf.animations[0]
        found = {}
        for channel in animation.channels:
            sampler = animation.samplers[channel.sampler]
            times = self.accessor(sampler.input)[:, 0]
            assert (np.diff(times) > 0).all()
            curve = (times, self.accessor(sampler.output), sampler.interpolation)
            found[channel.target.node, channel.target.path] = curve
        return found

    def shown(self, seconds: float) -> list[int]:
        """Return the instants that are shown at a time of the animation."""
        curves, visible = self.curves(), []
        for node in range(len(self.instants)):
            times, values, interpolation = curves[node, "scale"]
            assert interpolation == "STEP"
            key = max(int(np.searchsorted(times, np.float32(seconds), side="right")) - 1, 0)
            assert set(values[key].tolist()) <= {0.0, 1.0}
            if values[key].all():
                visible.append(node)
        return visible

    def camera_to_world(self, view: int, seconds: float | None = None) -> NDArray[np.float64]:
        """Return the pose [4, 4] of an OpenGL camera, at rest or at a time of the animation."""
        node = self.cameras[view]
        rotation, position = Rotation.from_quat(node.rotation), np.array(node.translation)
        index = [place for place, each in enumerate(self.gltf.nodes) if each.camera is not None][view]
        curves = {} if seconds is None else self.curves()
        if (index, "rotation") in curves:
            times, values, _ = curves[index, "rotation"]
            assert ((values[1:] * values[:-1]).sum(axis=1) > 0).all()
            rotation = Slerp(times, Rotation.from_quat(values))(np.clip(np.float32(seconds), times[0], times[-1]))
            times, values, _ = curves[index, "translation"]
            position = np.array([np.interp(np.float32(seconds), times, values[:, axis]) for axis in range(3)])
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotation.as_matrix(), position
        return pose

    def intrinsics(self, view: int, size: tuple[int, int]) -> NDArray[np.float64]:
        lens = self.gltf.cameras[self.cameras[view].camera].perspective
        assert 0 < lens.znear < 0.1
        fy = size[0] / 2 / math.tan(lens.yfov / 2)
        fx = size[1] / 2 / (math.tan(lens.yfov / 2) * lens.aspectRatio)
        return np.array([[fx, 0, size[1] / 2], [0, fy, size[0] / 2], [0, 0, 1]])


def written(capture: Capture, folder: Path, **options: Any) -> Reader:
    export(capture.folder, "glb", folder / "glb", **options)
    return Reader(folder / "glb")


def encoded(linear: NDArray[np.float64]) -> NDArray[np.uint8]:
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(srgb * 255).astype(np.uint8)


def test_the_middle_instant_is_written_exactly(capture: Capture, tmp_path):
    done = export(capture.folder, "glb", tmp_path / "glb")[0]
    reader = Reader(tmp_path / "glb")
    cloud = capture.output.points(2)
    positions, linear = reader.points(0)
    assert len(reader.instants) == 1
    assert not reader.gltf.animations
    assert "instant 2; --animated" in done.next_step
    np.testing.assert_array_equal(positions, cloud.xyz * np.float32([1, -1, -1]))
    np.testing.assert_array_equal(encoded(linear), cloud.rgb)
    srgb = cloud.rgb / 255.0
    expected = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    assert np.abs(linear - expected).max() < 0.51 / 65535
    assert reader.gltf.materials[0].extensions == {"KHR_materials_unlit": {}}
    assert reader.gltf.asset.generator.startswith("page4d ")
    assert (tmp_path / "glb" / "scene.glb").stat().st_size % 4 == 0
    assert sorted(path.name for path in (tmp_path / "glb").iterdir()) == ["export.json", "scene.glb"]


def test_cameras_come_back(capture: Capture, tmp_path):
    reader = written(capture, tmp_path)
    for view, name in enumerate(capture.output.view_names):
        assert reader.cameras[view].name == name
        pose = np.diag([1.0, -1.0, -1.0, 1.0]) @ np.linalg.inv(capture.world_to_camera[0, view])
        np.testing.assert_allclose(reader.camera_to_world(view), pose @ np.diag([1.0, -1.0, -1.0, 1.0]), atol=1e-12)
        expected = capture.intrinsics[0, view].copy()
        expected[:2, 2] = 80, 60
        np.testing.assert_allclose(reader.intrinsics(view, (120, 160)), expected, atol=1e-9)


def test_one_instant_is_shown_at_each_time(uneven_capture: Capture, tmp_path):
    reader = written(uneven_capture, tmp_path, animated=True)
    assert {path for _, path in reader.curves()} == {"scale"}, "static cameras have no curves"
    starts = uneven_capture.times - uneven_capture.times[0]
    for instant, start in enumerate(starts):
        xyz, linear = reader.points(instant)
        cloud = uneven_capture.output.points(instant)
        np.testing.assert_array_equal(xyz @ Y_UP, cloud.xyz)
        np.testing.assert_array_equal(encoded(linear), cloud.rgb)
        stop = starts[instant + 1] if instant < 3 else start + 1 / 12
        for seconds in (start + 1e-6, (start + stop) / 2, stop - 1e-6):
            assert reader.shown(seconds) == [instant], seconds
    assert reader.shown(float(starts[-1]) + 1.0) == [3]
    assert [node.scale for node in reader.instants] == [None, [0, 0, 0], [0, 0, 0], [0, 0, 0]]  # without animation
    assert all(node.extras["seconds"] == t for node, t in zip(reader.instants, uneven_capture.times, strict=True))


def test_moving_cameras_move(moving_capture: Capture, tmp_path):
    done = export(moving_capture.folder, "glb", tmp_path / "glb", animated=True)[0]
    reader = Reader(tmp_path / "glb")
    for instant, seconds in enumerate(moving_capture.times - moving_capture.times[0]):
        for view in range(4):
            pose = reader.camera_to_world(view, seconds) @ np.diag([1.0, -1.0, -1.0, 1.0])
            expected = moving_capture.world_to_camera[instant, view] @ np.diag([1.0, -1.0, -1.0, 1.0])
            np.testing.assert_allclose(np.linalg.inv(pose), expected, atol=1e-6)
    assert any("fields of view" in remark for remark in done.record.remarks)


def test_an_animation_of_one_instant_is_a_still(capture: Capture, tmp_path):
    done = export(capture.folder, "glb", tmp_path / "glb", animated=True, instants=(1, 2, 1))[0]
    reader = Reader(tmp_path / "glb")
    assert len(reader.instants) == 1
    assert not reader.gltf.animations
    assert any("no animation" in remark for remark in done.record.remarks)


def test_an_instant_without_points(capture: Capture, tmp_path, monkeypatch):
    job, _ = plan_exports(capture.folder, "glb", tmp_path / "glb", overwrite=False, animated=True)[0]
    sampled = job.clouds.sampled

    def without_the_second(place: int, layer: PointLayer) -> PointCloud:
        cloud = sampled(place, layer)
        return cloud[np.arange(0)] if place == 1 else cloud

    monkeypatch.setattr(job.clouds, "sampled", without_the_second)
    glb.write(job, tmp_path)
    reader = Reader(tmp_path)
    assert [node.mesh for node in reader.instants] == [0, None, 1, 2]
    assert {node for node, _ in reader.curves()} == {0, 2, 3}


def test_budget(capture: Capture, tmp_path):
    still = export(capture.folder, "glb", tmp_path / "still", max_points=1000)[0].record
    film = export(capture.folder, "glb", tmp_path / "film", max_points=1000, animated=True)[0].record
    assert (still.points, len(still.instants)) == (1000, 1)
    assert (film.points, len(film.instants)) == (1000, 4)
    jobs = [
        plan_exports(capture.folder, "glb", tmp_path / "x", overwrite=False, animated=animated)[0][0]
        for animated in (False, True)
    ]
    assert [job.clouds.limit for job in jobs] == [1_000_000, 2_000_000]


def test_a_file_beyond_four_gibibytes_is_refused_first(capture: Capture, tmp_path, monkeypatch):
    job, _ = plan_exports(capture.folder, "glb", tmp_path / "glb", overwrite=False, animated=True)[0]
    number = sum(capture.output.points(index).num_points for index in range(4))
    monkeypatch.setattr(glb, "_LARGEST", 20 * number)
    with pytest.raises(UsageError, match="4 GiB"):
        plan_exports(capture.folder, "glb", tmp_path / "glb", overwrite=False, animated=True)
    glb.check(replace(job, clouds=job.clouds.limited(number // 2, BudgetScope.CAPTURE)))


def test_a_selection_that_fits_is_written(capture: Capture, tmp_path, monkeypatch):
    options = {"only": "moving", "animated": True}
    job, _ = plan_exports(capture.folder, "glb", tmp_path / "glb", overwrite=False, **options)[0]
    monkeypatch.setattr(glb, "_LARGEST", 20 * capture.output.points(0).num_points)
    glb.check(job)
    assert 0 < glb.write(job, tmp_path).num_points < capture.output.points(0).num_points


def test_scale_and_names(capture: Capture, tmp_path):
    reader = written(capture, tmp_path, scale=100.0, views=("cam02", "cam04"))
    assert [node.name for node in reader.cameras] == ["cam02", "cam04"]
    assert reader.gltf.asset.extras == {"unit": "0.01 metre"}
    center = np.linalg.inv(capture.world_to_camera[0, 1])[:3, 3]
    np.testing.assert_allclose(reader.camera_to_world(0)[:3, 3], 100 * Y_UP @ center, rtol=1e-12)
