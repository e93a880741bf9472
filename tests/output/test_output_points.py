"""Point clouds: filtering of flying pixels, thinning, and determinism."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from page4d.errors import ShapeError, UsageError
from page4d.formats.open3d import OUTLIER_NEIGHBOURS, estimate_normals, remove_outliers
from page4d.formats.ply import PointCloud
from page4d.geometry.camera import camera_rays, project, unproject
from page4d.geometry.transforms import transform_points
from page4d.options import PointOptions
from page4d.output.points import merged_cloud, random_subset, surface_mask, voxel_subset
from tests.output.clouds import made_cloud
from tests.output.output_scene import made_capture


def intrinsics(width: int, focal_px: float | None = None) -> Tensor:
    focal = focal_px or width
    return torch.tensor([[focal, 0, width / 2], [0, focal, width / 2], [0, 0, 1]], dtype=torch.float64)


def kept(depth: Tensor, edge_angle_deg: float = 85.0, valid: Tensor | None = None, focal_px: float = 400) -> Tensor:
    points = unproject(depth.double(), intrinsics(depth.shape[-1], focal_px))
    return surface_mask(points, depth > 0 if valid is None else valid, edge_angle_deg)


def test_a_depth_step_keeps_every_pixel() -> None:
    depth = torch.full((16, 64), 2.0)
    depth[:, 30:] = 5.0
    assert kept(depth).all()
    assert kept(depth.T.contiguous()).all()


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_only_the_ramp_between_two_surfaces_is_removed(length: int, transposed: bool) -> None:
    depth = torch.full((64, 64), 2.0)
    depth[:, 30:] = 5.0
    for pixel in range(length):
        depth[:, 30 + pixel] = 2.0 + 3.0 * (pixel + 1) / (length + 1)
    expected = torch.ones(64, 64, dtype=torch.bool)
    expected[:, 30 : 30 + length] = False
    if transposed:
        depth, expected = depth.T.contiguous(), expected.T
    assert torch.equal(kept(depth), expected)
    assert kept(depth, edge_angle_deg=89.99).all()


def grazing_plane(width: int, incidence_deg: float) -> Tensor:
    """Return the depth of a plane inclined along x, with the given incidence angle at the image centre."""
    tilt = math.radians(incidence_deg)
    normal = torch.tensor([math.sin(tilt), 0.0, -math.cos(tilt)], dtype=torch.float64)
    depth = (normal[2] * 4.0) / (camera_rays(intrinsics(width), (width, width)) @ normal)
    return torch.where((depth > 0) & (depth < 100), depth, 0.0)


@pytest.mark.parametrize("width", [64, 512])
def test_a_slanted_plane_is_filtered_by_its_angle_at_any_resolution(width: int) -> None:
    depth = grazing_plane(width, 80.0)
    rays = torch.nn.functional.normalize(camera_rays(intrinsics(width), (width, width)), dim=-1)
    tilt = math.radians(80.0)
    normal = torch.tensor([math.sin(tilt), 0.0, -math.cos(tilt)], dtype=torch.float64)
    incidence = torch.rad2deg(torch.acos((rays @ normal).abs()))
    middle = slice(width // 2 - 2, width // 2 + 2)
    assert kept(depth, focal_px=width)[middle, middle].all()
    assert kept(depth, focal_px=width)[(incidence < 84.9) & (depth > 0)].all()
    assert not kept(depth, edge_angle_deg=75.0, focal_px=width)[middle, middle].any()
    assert kept(depth, edge_angle_deg=82.0, focal_px=width)[middle, middle].all()


def test_invalid_neighbours_and_borders_are_ignored() -> None:
    depth = torch.full((8, 8), 2.0)
    depth[3, 3] = 9.0
    assert not kept(depth)[3, 3]
    alone = torch.zeros(8, 8, dtype=torch.bool)
    alone[3, 3] = True
    assert torch.equal(kept(depth, valid=alone), alone)
    corner = torch.full((8, 8), 2.0)
    corner[0, 0] = 9.0
    assert kept(corner).sum() == 63
    for shape in ((1, 1), (1, 5), (5, 1)):
        assert kept(torch.ones(shape)).all()


def test_values_that_are_not_finite_do_not_affect_neighbours() -> None:
    depth = torch.full((8, 8), 2.0, dtype=torch.float64)
    depth[2, 2], depth[5, 5] = math.nan, math.inf
    points = unproject(depth, intrinsics(8))
    valid = torch.isfinite(depth)
    assert torch.equal(surface_mask(points, valid, 85.0), valid)


def test_points_project_onto_their_pixels_and_depths() -> None:
    capture = made_capture(1)
    cloud = merged_cloud(capture, PointOptions(edge_angle_deg=90))
    assert cloud.num_points == int(capture.valid.sum())
    for view in range(4):
        points = cloud[cloud.view == view]
        valid = capture.valid[0, 0, view]
        pose = capture.cameras.world_to_camera[0, 0, view].double()
        pixels, depth = project(
            transform_points(pose, torch.from_numpy(points.xyz).double()),
            capture.cameras.intrinsics[0, 0, view].double(),
        )
        rows, columns = valid.nonzero(as_tuple=True)
        assert torch.allclose(pixels, torch.stack([columns, rows], dim=-1).double() + 0.5, atol=1e-3)
        assert torch.allclose(depth, capture.depth[0, 0, view][valid].double(), rtol=1e-5)
        colors = capture.images[0, 0, view].permute(1, 2, 0)[valid]
        assert np.abs(points.rgb / 255 - colors.numpy()).max() <= 0.5 / 255 + 1e-6
        assert np.array_equal(points.confidence, capture.depth_confidence[0, 0, view][valid].numpy())
        assert np.array_equal(points.dynamic, capture.dynamic[0, 0, view][valid].numpy().astype(np.uint8))


def test_sharp_silhouettes_are_kept_and_blurred_ones_removed() -> None:
    capture = made_capture(1, 336)
    share = merged_cloud(capture).num_points / int(capture.valid.sum())
    assert share > 0.999
    blurred = torch.nn.functional.avg_pool2d(capture.depth[0, 0][:, None], 3, stride=1, padding=1)[:, 0][None, None]
    num_removed = int(capture.valid.sum()) - merged_cloud(replace(capture, depth=blurred)).num_points
    assert num_removed > 1000


def test_invalid_depth_and_low_confidence_are_dropped() -> None:
    capture = made_capture(1)
    depth, confidence = capture.depth.clone(), capture.depth_confidence.clone()
    depth[0, 0, 0, 40, :5] = torch.tensor([0.0, -1.0, math.nan, math.inf, -math.inf])
    confidence[0, 0, 0, 50, :2] = torch.tensor([math.nan, 2.0])
    changed = replace(capture, depth=depth, depth_confidence=confidence)
    options = PointOptions(edge_angle_deg=90)
    cloud = merged_cloud(changed, options)
    assert cloud.num_points == int(capture.valid.sum()) - 5
    assert np.isfinite(cloud.xyz).all()
    assert cloud.confidence.min() == 0
    assert cloud.confidence.max() == 1
    half = merged_cloud(changed, replace(options, min_confidence=0.6))
    assert 0 < half.num_points < cloud.num_points
    assert half.confidence.min() >= 0.6


clouds = st.integers(1, 200).flatmap(lambda number: st.tuples(st.just(number), st.integers(0, 2**32 - 1)))


@given(clouds, st.sampled_from([0.05, 0.5, 3.0]))
def test_a_voxel_keeps_its_most_confident_point(drawn: tuple[int, int], size: float) -> None:
    number, seed = drawn
    draw = np.random.default_rng(seed)
    xyz = draw.normal(size=(number, 3)).astype(np.float32)
    confidence = draw.integers(0, 4, number).astype(np.float32) / 4
    best: dict[tuple[int, ...], int] = {}
    for index, cell in enumerate(map(tuple, np.floor(xyz.astype(np.float64) / size).astype(int).tolist())):
        if cell not in best or confidence[index] > confidence[best[cell]]:
            best[cell] = index
    assert voxel_subset(xyz, confidence, size).tolist() == sorted(best.values())


def test_a_random_subset_is_seeded_sorted_and_exact() -> None:
    first = random_subset(1000, 100, 7)
    assert len(set(first.tolist())) == 100
    assert (np.diff(first) > 0).all()
    assert np.array_equal(first, random_subset(1000, 100, 7))
    assert not np.array_equal(first, random_subset(1000, 100, 8))


def test_voxels_and_a_maximum_number_thin_the_cloud() -> None:
    capture = made_capture(1)
    complete = merged_cloud(capture)
    assert 0 < merged_cloud(capture, PointOptions(voxel_size=0.1)).num_points < complete.num_points / 2
    few = merged_cloud(capture, PointOptions(voxel_size=0.1, max_points=500))
    assert few.num_points == 500
    assert (np.diff(few.view.astype(int)) >= 0).all()
    assert merged_cloud(capture, PointOptions(max_points=10**7)).num_points == complete.num_points


def test_more_than_one_instant_and_too_many_views_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(1, 2\) instants"):
        merged_cloud(made_capture(2))
    capture = made_capture(1, 14, sizes=((14, 14),) * 2, names=("a", "b"))
    parts = ("cameras", "images", "valid", "depth", "depth_confidence", "dynamic")
    many = {name: getattr(capture, name)[:, :, [0] * 258] for name in parts}
    many |= {"view_names": tuple(map(str, range(258))), "pixel_transforms": capture.pixel_transforms * 129}
    with pytest.raises(UsageError, match="258 views"):
        merged_cloud(replace(capture, **many))


def plane_with_outliers() -> tuple[PointCloud, int]:
    """Return a grid of points on z = 2, seen by two cameras in turn, and before them some far from it."""
    draw = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(-1, 1, 40), np.linspace(-1, 1, 40))
    plane = np.stack([x, y, np.full_like(x, 2.0)], axis=-1).reshape(-1, 3)
    xyz = np.concatenate([draw.uniform(3, 6, (8, 3)), plane]).astype(np.float32)
    return replace(made_cloud(len(xyz)), xyz=xyz, view=(np.arange(len(xyz)) % 2).astype(np.uint8)), 8


@pytest.mark.usefixtures("open3d")
def test_outliers_are_removed_and_nothing_else() -> None:
    cloud, number = plane_with_outliers()
    kept = remove_outliers(cloud)
    assert np.array_equal(kept.xyz, cloud.xyz[number:])
    assert np.array_equal(kept.rgb, cloud.rgb[number:])
    few = cloud[np.arange(OUTLIER_NEIGHBOURS)]
    assert remove_outliers(few) is few


@pytest.mark.usefixtures("open3d")
def test_normals_face_the_camera_that_saw_the_point() -> None:
    cloud, number = plane_with_outliers()
    plane = cloud[np.arange(number, cloud.num_points)]
    centers = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    normals = estimate_normals(plane, centers).normals
    expected = np.where(plane.view[:, None] == 0, [[0, 0, -1]], [[0, 0, 1]])
    assert np.abs(normals - expected).max() < 1e-6
    pair = estimate_normals(plane[np.arange(2)], centers)
    assert np.allclose(np.linalg.norm(pair.normals, axis=1), 1)


@pytest.mark.usefixtures("open3d")
def test_filters_apply_before_the_cloud_is_thinned_at_random() -> None:
    capture = made_capture(1)
    plain = merged_cloud(capture, PointOptions(edge_angle_deg=90))
    options = PointOptions(edge_angle_deg=90, outliers=True, normals=True, max_points=500)
    cloud = merged_cloud(capture, options)
    assert cloud.num_points == 500
    filtered = {tuple(point) for point in remove_outliers(plain).xyz.tolist()}
    assert {tuple(point) for point in cloud.xyz.tolist()} <= filtered
    on_wall = np.abs(cloud.xyz[:, 2] - 5) < 1e-3
    assert on_wall.sum() > 50
    assert np.median(np.abs(cloud.normals[on_wall] @ [0, 0, 1] + 1)) < 1e-4
