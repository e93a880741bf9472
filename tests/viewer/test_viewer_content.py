"""What a viewer shows, without viser: clouds, cameras, sizes, budgets."""

import ast
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import page4d.viewer
from page4d.choices import PointLayer
from page4d.exporters.points import Bounds, PointFilter
from page4d.options import ExportSettings
from page4d.output.pictures import open_pictures
from page4d.output.reader import open_output
from page4d.viewer import content as content_module
from page4d.viewer.content import viewer_content
from page4d.viewer.scene import LONG_SIDE, Thumbnails, first_viewpoint, frustum, frustum_depth, quaternion, shrunk


def test_positions_are_relative_to_the_centre_and_in_the_order_of_the_file(capture, content):
    cloud = capture.output.points(2)
    shown = content.points(2)
    assert np.array_equal(shown.rgb, cloud.rgb)
    assert np.abs(shown.xyz + content.center - cloud.xyz).max() < 1e-6
    assert np.linalg.norm(content.center) > 0.1


@pytest.mark.parametrize("threshold", [0.0, 0.31, 0.5, 1.0])
@pytest.mark.parametrize("layer", PointLayer)
@pytest.mark.parametrize("views", [(0, 1, 2, 3), (2,), ()])
def test_the_chosen_points_are_those_of_a_search(content, threshold, layer, views):
    cloud = content.points(1)
    confidence = np.random.default_rng(0).choice(np.float32([0.0, 0.3, 0.5, 0.9]), cloud.num_points)
    cloud = replace(cloud, confidence=confidence)
    keep = (confidence >= threshold) & np.isin(cloud.view, views)
    if layer is not PointLayer.ALL:
        keep &= (cloud.dynamic == 1) == (layer is PointLayer.MOVING)
    assert np.array_equal(PointFilter(views=views, only=layer, min_confidence=threshold).of(cloud), keep)


def test_a_budget_draws_from_every_view(capture):
    content = viewer_content(capture.output, ExportSettings(max_points=400))
    cloud, whole = content.points(0), capture.output.points(0)
    assert cloud.num_points == 400
    assert content.clouds.most() == [400] * 4
    shares = np.bincount(cloud.view) / 400, np.bincount(whole.view) / whole.num_points
    assert np.abs(shares[0] - shares[1]).max() < 0.003
    assert np.array_equal(content.points(0).xyz, cloud.xyz)


def test_default_budgets(capture, monkeypatch):
    def limit(is_page, **options):
        return viewer_content(capture.output, ExportSettings(**options), is_page=is_page).clouds.limit

    monkeypatch.setattr(content_module, "MAX_PAGE_POINTS", 4000)
    for is_page, expected in ((False, 200_000), (True, 1000)):
        assert limit(is_page) == expected
        assert limit(is_page, max_points=7) == 7
        assert limit(is_page, max_points=0) == 0


def test_instants_and_views(capture):
    settings = ExportSettings(instants=(1, 4, 2), views=("cam04", "cam02"))
    content = viewer_content(capture.output, settings)
    assert content.instants == (1, 3)
    assert np.allclose(content.seconds, capture.times[[1, 3]])
    assert [view.name for view in content.views] == ["cam02", "cam04"]
    poses = np.linalg.inv(capture.world_to_camera[np.ix_([1, 3], [1, 3])])
    assert np.allclose(content.camera_to_world, poses)
    assert set(np.unique(content.points(0).view)) == {1, 3}
    assert content.choice.views == (1, 3)


def test_durations_are_those_of_the_capture(capture, content):
    steps = np.diff(capture.times)
    assert steps.max() > 1.5 * steps.min()
    assert np.allclose(content.durations, [*steps, np.median(steps)])
    single = viewer_content(capture.output, ExportSettings(instants=(1, 2, 1)))
    assert single.durations.tolist() == [1.0]


def test_half_precision_is_used_where_its_error_is_invisible(content):
    xyz = np.abs(content.points(0).xyz)
    assert content.precision == "float16"
    assert np.abs(xyz.astype(np.float16) - xyz).max() < content.point_size / 5

    def with_bounds(factor):
        clouds = content.clouds
        bounds = Bounds(lower=content.center - factor, upper=content.center + factor)
        other = replace(content, clouds=type("Clouds", (), {"bounds": bounds, "sampled": clouds.sampled})())
        return other.precision

    assert with_bounds(1.0) == "float16"
    assert with_bounds(1000.0) == "float32"


def test_frusta_show_the_field_of_view():
    intrinsics = np.array([[300.0, 0, 160], [0, 200, 120], [0, 0, 1]])
    fov, aspect = frustum(intrinsics, (240, 320))
    assert np.tan(fov / 2) == pytest.approx(120 / 200)
    assert np.tan(fov / 2) * aspect == pytest.approx(160 / 300)


def test_quaternions_are_those_of_the_poses(content):
    for pose in content.camera_to_world[0]:
        w, x, y, z = quaternion(pose)
        matrix = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        assert np.allclose(matrix, pose[:3, :3])


def test_the_first_viewpoint_is_behind_and_above_the_cameras(content):
    viewpoint = first_viewpoint(content)
    up = content.up
    assert up.tolist() == [0, -1, 0]
    centers = content.camera_to_world[0, :, :3, 3]
    forward = np.array(viewpoint.look_at) - viewpoint.position
    forward /= np.linalg.norm(forward)
    ahead = (centers - viewpoint.position) @ forward
    assert (ahead > 0).all()
    assert (up @ (np.array(viewpoint.position) - centers.mean(axis=0))) > 0
    assert viewpoint.near < ahead.min()
    assert viewpoint.far > 10 * content.diagonal


def cameras_around(content, height: float) -> tuple[np.ndarray, np.ndarray]:
    """Return what the first viewpoint faces, and poses of cameras around it."""
    target, poses = np.array(first_viewpoint(content).look_at), content.camera_to_world.copy()
    for view, angle in enumerate(np.radians([0, 90, 180, 270])):
        poses[:, view, :3, 3] = target + 3 * np.array([np.cos(angle), height, np.sin(angle)])
    return target, poses


def test_the_first_viewpoint_of_cameras_all_around_is_on_the_side_of_the_first(content):
    target, poses = cameras_around(content, 0)
    viewpoint = first_viewpoint(replace(content, camera_to_world=poses))
    assert np.array(viewpoint.position)[0] - target[0] > 3
    assert np.allclose(np.array(viewpoint.position)[2], target[2])


def test_the_first_viewpoint_of_cameras_around_and_above_is_not_straight_down(content):
    target, poses = cameras_around(content, -0.6)
    forward = target - first_viewpoint(replace(content, camera_to_world=poses)).position
    assert forward[0] < -0.7 * np.linalg.norm(forward)
    poses[..., :3, 3] = target + np.array([0, -3, 0])
    poses[..., :3, :3] = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]])
    forward = target - first_viewpoint(replace(content, camera_to_world=poses)).position
    assert forward[2] > 0.1 * np.linalg.norm(forward), "pictures are upright, seen from their lower edge"
    assert forward[1] > 0


def test_a_middle_instant_without_points_does_not_matter(capture, tmp_path):
    shutil.copytree(capture.folder, tmp_path / "out")
    file = tmp_path / "out" / "points" / "frame_000002.ply"
    header = file.read_bytes().partition(b"end_header\n")[0]
    file.write_bytes(re.sub(rb"element vertex \d+", b"element vertex 0", header) + b"end_header\n")
    content = viewer_content(open_output(tmp_path / "out"), ExportSettings())
    assert len(content.points(2).xyz) == 0
    assert np.isfinite(first_viewpoint(content).position).all()
    assert 0 < frustum_depth(content) < content.diagonal
    assert 0 < content.point_size < content.diagonal / 10


def test_frusta_do_not_hide_what_close_cameras_see(content):
    target, poses = np.array(first_viewpoint(content).look_at), content.camera_to_world.copy()
    poses[..., :3, 3] = target + 0.1 * content.diagonal * poses[0, :, :3, 0]
    single = replace(content, views=content.views[:1], camera_to_world=poses[:, :1])
    assert frustum_depth(single) == pytest.approx(0.015 * content.diagonal)


def test_frusta_are_smaller_than_the_distance_of_cameras(content):
    poses = content.camera_to_world.copy()
    wide = frustum_depth(content)
    poses[..., :3, 3] = poses[:, :1, :3, 3] + 0.02 * (poses[..., :3, 3] - poses[:, :1, :3, 3])
    assert 0.02 * content.diagonal < wide < 0.1 * content.diagonal
    assert 0.01 * wide < frustum_depth(replace(content, camera_to_world=poses)) < 0.5 * wide


def test_thumbnails_are_those_of_their_view_and_instant(capture, content):
    pictures = open_pictures(capture.output, capture.scene)
    thumbnails = Thumbnails(content, pictures)
    assert not thumbnails.has(0, 0)
    assert thumbnails.get(0, 0) is None
    assert list(thumbnails.read()) == list(range(1, thumbnails.total + 1))
    originals = {
        (place, view): pixels
        for view, shown in enumerate(content.views)
        for place, pixels in enumerate(pictures.read(shown.name, content.instants))
    }
    for place, view in originals:
        errors = {
            key: np.abs(thumbnails.get(place, view).astype(float) - shrunk(pixels)).mean()
            for key, pixels in originals.items()
        }
        assert min(errors, key=errors.__getitem__) == (place, view)
        assert errors[place, view] < 8


def test_thumbnails_have_a_long_side():
    assert shrunk(np.zeros((1080, 1920, 3), np.uint8)).shape == (90, LONG_SIDE, 3)
    assert shrunk(np.zeros((1920, 1080, 3), np.uint8)).shape == (LONG_SIDE, 90, 3)
    assert shrunk(np.zeros((30, 40, 3), np.uint8)).shape == (30, 40, 3)


@pytest.mark.parametrize("file", sorted(Path(page4d.viewer.__path__[0]).glob("*.py")), ids=lambda file: file.stem)
def test_modules_import_viser_only_inside_functions_and_for_types(file):
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.If | ast.Try | ast.With):
            assert "import viser" not in ast.unparse(statement)
            assert "from viser" not in ast.unparse(statement)


def test_a_world_without_an_axis_that_points_up_stands_as_its_cameras_do(capture):
    poses = capture.output.cameras.world_to_camera
    rolled = torch.eye(4, dtype=poses.dtype)
    rolled[:2, :2] = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=poses.dtype)
    output = replace(capture.output, cameras=replace(capture.output.cameras, world_to_camera=poses @ rolled))
    assert viewer_content(output, ExportSettings()).up == pytest.approx([-0.6, -0.8, 0], abs=0.3)
