"""Exports of runs with layers: static points come from their file, at all times, and moving ones from theirs."""

from pathlib import Path

import numpy as np
import pytest

from page4d.choices import PointLayer
from page4d.exporters.export import Exported, export
from page4d.exporters.formats import FORMATS
from page4d.exporters.plan import estimate, plan_job
from page4d.exporters.points import CloudReader, PointFilter
from page4d.formats.ply import PointCloud
from page4d.options import ExportSettings
from tests.exporters.capture import EXACT_THRESHOLD, THRESHOLD, Capture, make_capture
from tests.exporters.test_export_fudan import load_shots, points_at
from tests.exporters.trainer_shots import assert_colors, export_one, files_of, read_cloud


@pytest.fixture(scope="module")
def layered(tmp_path_factory) -> Capture:
    """The static capture, with layers."""
    return make_capture(tmp_path_factory.mktemp("layered"), layers=True)


def reader(capture: Capture, **selection: object) -> CloudReader:
    selected = PointFilter(**{"views": (0, 1, 2, 3), **selection})
    return CloudReader(capture.output, range(4), selected, cuts_outliers=False, seed=0)


def same(cloud: PointCloud, other: PointCloud) -> bool:
    return np.array_equal(cloud.xyz, other.xyz) and np.array_equal(cloud.rgb, other.rgb)


def test_a_model_holds_the_static_layer_and_the_moving_points_of_every_instant(layered: Capture):
    points = reader(layered).model()
    moving = points.cloud.dynamic != 0
    assert same(points.cloud[~moving], layered.output.static_points())
    for place in range(4):
        assert same(points.cloud[moving & (points.place == place)], layered.output.moving_points(place))
    drawn = reader(layered).limited(500).model()
    assert drawn.cloud.num_points == 500
    assert (drawn.cloud.dynamic == 0).mean() == pytest.approx((~moving).mean(), abs=0.02)


def test_filters_apply_to_layers(layered: Capture):
    static = layered.output.static_points()
    assert reader(layered, only=PointLayer.STATIC).model().cloud.num_points == static.num_points
    assert reader(layered, only=PointLayer.MOVING).model().cloud.dynamic.all()
    certain = reader(layered, min_confidence=0.5).model().cloud
    assert certain.confidence.min() >= 0.5
    assert (certain.dynamic == 0).sum() == (static.confidence >= 0.5).sum()
    assert reader(layered, voxel=0.2).model().cloud.num_points < static.num_points / 3


def test_some_views_have_no_holes_where_the_layer_holds_the_points_of_another_view(
    layered: Capture, capture: Capture
):
    of_views, without_layers = (reader(one, views=(0, 1)).model() for one in (layered, capture))
    assert set(of_views.cloud.view) == {0, 1}
    assert same(of_views.cloud, without_layers.cloud)


def test_trainers_get_static_points_at_all_times(layered: Capture, tmp_path):
    folder = export_one(layered, "fudan-4dgs", tmp_path / "room", max_points=0).folder
    shots = load_shots(folder, "train")
    clouds = [points_at(folder, layered.times, instant) for instant in range(4)]
    assert_colors(layered, shots, clouds.__getitem__, (EXACT_THRESHOLD, THRESHOLD / 2))
    static = layered.output.static_points().num_points
    moving = [layered.output.moving_points(instant).num_points for instant in range(4)]
    for instant, cloud in enumerate(clouds):
        assert len(cloud[0]) == pytest.approx(static / 4 + moving[instant], rel=0.02)


def test_colmap_models_have_times_of_moving_points_alone(layered: Capture, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    folder = export_one(layered, "colmap", tmp_path / "room", max_points=0).folder / "sparse" / "0"
    moving = sum(layered.output.moving_points(instant).num_points for instant in range(4))
    points = pycolmap.Reconstruction(folder).points3D
    assert len(points) == layered.output.static_points().num_points + moving
    assert int.from_bytes((folder / "points_t.bin").read_bytes()[:8], "little") == moving


def test_exports_of_single_instants_are_those_of_a_run_without_layers(layered: Capture, capture: Capture, tmp_path):
    for name in ("splat", "glb"):
        folders = tmp_path / name / "plain", tmp_path / name / "layered"
        for one, folder in zip((capture, layered), folders, strict=True):
            export(one.folder, name, folder)
        assert files_of(folders[0]) == files_of(folders[1])


@pytest.mark.parametrize("name", ["4dgaussians", "nerfstudio"])
def test_the_estimate_counts_the_layers(name: str, layered: Capture, tmp_path):
    exported = export_one(layered, name, tmp_path / "room", max_points=0)
    job = plan_job(layered.output, FORMATS[name], ExportSettings(max_points=0), None)
    assert exported.record.points <= estimate(job).points
    cloud = "points3D_multipleview.ply" if name == "4dgaussians" else "points.ply"
    assert (exported.folder / cloud).is_file()
    if name == "4dgaussians":
        assert len(read_cloud(exported.folder / cloud)[0][0]) == exported.record.points


def without_scene(capture: Capture, name: str, folder: Path, **options: object) -> Exported:
    """Export a capture to a format without pictures."""
    (exported,) = export(capture.folder, name, folder, **options)
    return exported


@pytest.mark.parametrize("split", [False, True], ids=["one file", "clips"])
def test_usd_has_static_points_once_and_moving_ones_over_time(layered: Capture, tmp_path, split: bool):
    usd = pytest.importorskip("pxr.Usd")
    geometry = pytest.importorskip("pxr.UsdGeom")
    exported = without_scene(layered, "usd", tmp_path / "usd", split=split)
    stage = usd.Stage.Open(str(exported.folder / ("scene.usda" if split else "scene.usdc")))
    static = geometry.Points(stage.GetPrimAtPath("/World/static"))
    assert not static.GetPointsAttr().GetTimeSamples()
    assert np.array_equal(np.array(static.GetPointsAttr().Get()), layered.output.static_points().xyz)
    moving = geometry.Points(stage.GetPrimAtPath("/World/points"))
    for place in range(4):
        expected = layered.output.moving_points(place).xyz
        assert np.array_equal(np.array(moving.GetPointsAttr().Get(float(place)))[: len(expected)], expected)
    assert static.GetWidthsAttr().Get() == moving.GetWidthsAttr().Get()


def test_an_animated_glb_shows_static_points_all_the_time(layered: Capture, tmp_path):
    pygltflib = pytest.importorskip("pygltflib")
    exported = without_scene(layered, "glb", tmp_path / "glb", animated=True, max_points=0)
    scene = pygltflib.GLTF2().load(str(exported.folder / "scene.glb"))
    names = [node.name for node in scene.nodes]
    assert scene.nodes[names.index("static")].scale is None
    assert names.index("static") not in {channel.target.node for channel in scene.animations[0].channels}
    counts = {
        node.name: scene.accessors[scene.meshes[node.mesh].primitives[0].attributes.POSITION].count
        for node in scene.nodes
        if node.mesh is not None
    }
    assert counts["static"] == layered.output.static_points().num_points
    for place in range(4):
        assert counts[f"frame_{place:06d}"] == layered.output.moving_points(place).num_points
    assert exported.record.points == sum(counts.values())


@pytest.mark.parametrize(("name", "options"), [("usd", {}), ("glb", {"animated": True})])
@pytest.mark.parametrize("limit", [0, 900])
def test_budgets_and_estimates_of_formats_over_time_count_layers(
    name: str, options: dict[str, bool], limit: int, layered: Capture, tmp_path
):
    exported = without_scene(layered, name, tmp_path / "out", max_points=limit, **options)
    job = plan_job(layered.output, FORMATS[name], ExportSettings(max_points=limit, **options), None)
    assert exported.record.points <= estimate(job).points <= 2 * exported.record.points
    moving = [layered.output.moving_points(instant).num_points for instant in range(4)]
    if not limit:
        assert exported.record.points == layered.output.static_points().num_points + sum(moving)
    elif name == "glb":
        assert exported.record.points <= limit
