"""Pinhole cameras: projection and its inverse, skew, resizing, cropping, pixel centres, network canvases."""

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from page4d.conventions import INTEGER_PIXEL_CENTER
from page4d.errors import ShapeError, UsageError
from page4d.geometry.camera import (
    Cameras,
    camera_rays,
    crop_intrinsics,
    denormalize_pixels,
    move_pixel_center,
    normalize_pixels,
    pixel_grid,
    project,
    resize_intrinsics,
    unproject,
    world_points,
)
from page4d.geometry.pixels import fit_views
from page4d.geometry.transforms import transform_points
from tests.geometry.geometry_samples import BATCHES, DTYPES, close, intrinsics, normal, transforms

SIZE = (30, 40)


def depths(*batch: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (normal(*batch, *SIZE, seed=seed).exp() + 0.1).to(dtype)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("center", [0.5, 0.0])
def test_projection_inverts_unprojection(batch: tuple[int, ...], dtype: torch.dtype, center: float):
    lens, depth = intrinsics(*batch, seed=1, dtype=dtype), depths(*batch, seed=2, dtype=dtype)
    points = unproject(depth, lens, center)
    pixels, again = project(points, lens)
    assert points.dtype == pixels.dtype == dtype
    grid = pixel_grid(*SIZE, pixel_center=center, dtype=dtype)
    close(pixels, grid.expand(*batch, *SIZE, 2), factor=20)
    close(again, depth)


def test_projection_is_the_matrix_product():
    lens = intrinsics(seed=3)
    points = normal(50, 3, seed=4)
    points = torch.cat([points[:, :2], points[:, 2:].abs() + 1], dim=-1)
    expected = points @ lens.T
    pixels, depth = project(points, lens)
    close(pixels, expected[:, :2] / expected[:, 2:], factor=50)
    close(depth, expected[:, 2])


def test_projection_agrees_with_opencv():
    lens = intrinsics(seed=5, skew=0.0)
    points = normal(50, 3, seed=6)
    points = torch.cat([points[:, :2], points[:, 2:].abs() + 1], dim=-1)
    integer = move_pixel_center(lens, 0.5, INTEGER_PIXEL_CENTER)
    shown = cv2.projectPoints(points.numpy(), np.zeros(3), np.zeros(3), integer.numpy(), None)[0][:, 0]
    close(project(points, lens)[0], torch.from_numpy(shown) + 0.5, factor=50)


def test_skew_is_applied_and_inverted():
    lens = torch.tensor([[10.0, 2.0, 5.0], [0.0, 20.0, 6.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    plane = torch.tensor([[0.1, 0.3]], dtype=torch.float64)
    close(
        denormalize_pixels(plane, lens), torch.tensor([[10 * 0.1 + 2 * 0.3 + 5, 20 * 0.3 + 6]], dtype=torch.float64)
    )
    close(normalize_pixels(denormalize_pixels(plane, lens), lens), plane)


def test_batched_rays_equal_single_camera_rays():
    lens = intrinsics(2, 3, seed=7)
    rays = camera_rays(lens, SIZE)
    for i in range(2):
        for j in range(3):
            close(rays[i, j], camera_rays(lens[i, j], SIZE))
    close(rays[..., 2], torch.ones_like(rays[..., 2]))


def test_the_ray_of_the_image_centre_is_the_optical_axis():
    lens = torch.tensor([[10.0, 0.0, 20.0], [0.0, 10.0, 15.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    rays = camera_rays(lens, SIZE)
    close(rays.mean(dim=(0, 1)), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    # x grows to the right, y downwards.
    assert rays[0, -1, 0] > 0 > rays[0, 0, 0]
    assert rays[-1, 0, 1] > 0 > rays[0, 0, 1]


def test_world_points_project_to_their_pixels():
    cameras = Cameras(world_to_camera=transforms(2, 3, seed=8), intrinsics=intrinsics(2, 3, seed=9), image_size=SIZE)
    depth = depths(2, 3, seed=10)
    points = world_points(depth, cameras)
    pixels, again = project(transform_points(cameras.world_to_camera, points), cameras.intrinsics)
    close(pixels, pixel_grid(*SIZE, dtype=torch.float64).expand_as(pixels), factor=200)
    close(again, depth, factor=4)
    one = cameras[1, 2]
    close(world_points(depth[1, 2], one), points[1, 2])
    close(one.centers, cameras.centers[1, 2])
    close(
        cameras.camera_to_world @ cameras.world_to_camera,
        torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4),
        factor=4,
    )


def test_incompatible_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"\(3, 4\) and \(3, 3\)"):
        Cameras(world_to_camera=torch.zeros(3, 4), intrinsics=torch.zeros(3, 3), image_size=SIZE)
    with pytest.raises(ShapeError, match=r"batch axes \(2,\) and \(\) differ"):
        Cameras(world_to_camera=torch.zeros(2, 4, 4), intrinsics=torch.zeros(3, 3), image_size=SIZE)
    with pytest.raises(ShapeError, match=r"depth has batch axes \(2,\), intrinsics \(3,\)"):
        unproject(torch.zeros(2, 4, 4), torch.zeros(3, 3, 3))


def test_resizing_and_cropping_commute_with_projection():
    lens, points = intrinsics(seed=11), normal(30, 3, seed=12)
    points = torch.cat([points[:, :2], points[:, 2:].abs() + 1], dim=-1)
    pixels = project(points, lens)[0]
    resized = project(points, resize_intrinsics(lens, 0.37, 1.9))[0]
    close(resized, pixels * torch.tensor([0.37, 1.9], dtype=torch.float64), factor=100)
    cropped = project(points, crop_intrinsics(lens, 3.0, -4.5))[0]
    close(cropped, pixels - torch.tensor([3.0, -4.5], dtype=torch.float64), factor=100)
    close(crop_intrinsics(crop_intrinsics(lens, 3, 4), -3, -4), lens)


def test_pixel_center_conversion_shifts_by_half_a_pixel_and_inverts():
    lens = intrinsics(4, seed=13)
    integer = move_pixel_center(lens, 0.5, INTEGER_PIXEL_CENTER)
    close(lens - integer, torch.tensor([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]], dtype=torch.float64).expand(4, 3, 3))
    close(move_pixel_center(integer, INTEGER_PIXEL_CENTER), lens)
    # A pixel has the same ray in both conventions.
    close(camera_rays(integer, SIZE, INTEGER_PIXEL_CENTER), camera_rays(lens, SIZE), factor=4)


SIDES = st.integers(1, 4000)
RIGS = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(sizes=RIGS, long_side=st.integers(14, 800), multiple=st.sampled_from([1, 14, 16]))
def test_views_fit_a_shared_canvas_without_cropping(sizes: list[tuple[int, int]], long_side: int, multiple: int):
    vanishes = any(round(min(size) * long_side / max(size)) < 1 for size in sizes)
    if vanishes:
        with pytest.raises(UsageError, match="has no pixels left at long_side"):
            fit_views(sizes, long_side, multiple)
        return
    placed = fit_views(sizes, long_side, multiple)
    assert len({view.canvas_size for view in placed}) == 1
    height, width = placed[0].canvas_size
    assert height % multiple == width % multiple == 0
    # Every row and column of patches is used by a view.
    assert height - max(view.content_size[0] for view in placed) < multiple
    assert width - max(view.content_size[1] for view in placed) < multiple
    for size, view in zip(sizes, placed, strict=True):
        assert max(view.content_size) == long_side
        exact = long_side / max(size)
        for side, content in zip(size, view.content_size, strict=True):
            assert abs(content - side * exact) <= 0.5
        assert int(view.content_mask().sum()) == view.content_size[0] * view.content_size[1]
        assert abs((width - view.content_size[1]) - 2 * view.left) <= 1
        assert abs((height - view.content_size[0]) - 2 * view.top) <= 1
        corners = torch.tensor([[0, 0], [size[1], size[0]]], dtype=torch.float64)
        inside = view.to_network(corners)
        expected = [[view.left, view.top], [view.left + view.content_size[1], view.top + view.content_size[0]]]
        close(inside, torch.tensor(expected, dtype=torch.float64), factor=4)
        close(view.to_original(inside), corners, factor=4000)
