"""Warping into another camera, sampling and NCC, against direct computation."""

import math

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays, project, unproject
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import transform_points
from page4d.geometry.warp import ncc, ray_warp, sample, sample_grid, surfaces_of, window_means

SIZE = (24, 32)


def made_cameras(seed: int, batch: tuple[int, ...] = ()) -> Cameras:
    """Cameras near the origin that face forward, with different focal lengths and skew."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*batch, *shape, generator=generator, dtype=torch.float64) * 2 - 1

    pose = torch.eye(4, dtype=torch.float64).repeat(*batch, 1, 1)
    pose[..., :3, :3] = matrix_from_rotation_vector(0.15 * uniform(3))
    pose[..., :3, 3] = 0.4 * uniform(3)
    intrinsics = torch.tensor([[30.0, 0.5, 16.0], [0.0, 31.0, 12.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    intrinsics = intrinsics + torch.zeros(*batch, 3, 3, dtype=torch.float64)
    intrinsics[..., :2, 2] += uniform(2)
    return Cameras(world_to_camera=pose, intrinsics=intrinsics, image_size=SIZE)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_warped_pixels_are_those_of_unprojection_and_projection(batch: tuple[int, ...]) -> None:
    source, target = made_cameras(1, batch), made_cameras(2, batch)
    depth = 2 + torch.rand(*batch, *SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    warped = ray_warp(camera_rays(source.intrinsics, SIZE), source, target).at(depth, 1e-3)
    world = transform_points(source.camera_to_world, unproject(depth, source.intrinsics))
    in_target = transform_points(target.world_to_camera, world)
    assert torch.allclose(warped.pixels, project(in_target, target.intrinsics)[0], atol=1e-9)
    assert torch.allclose(warped.depth, in_target[..., 2], atol=1e-12)


def test_points_behind_the_target_camera_are_not_visible() -> None:
    source, target = made_cameras(1), made_cameras(2)
    target.world_to_camera[2, 3] -= 4.0
    warped = ray_warp(camera_rays(source.intrinsics, SIZE), source, target).at(torch.full(SIZE, 2.0), 1e-3)
    assert (warped.depth < 0).all()
    assert warped.pixels.isfinite().all()
    assert not warped.visible(SIZE, 1e-3).any()


def test_visible_pixels_are_those_inside_the_image() -> None:
    source = made_cameras(1)
    warped = ray_warp(camera_rays(source.intrinsics, SIZE), source, source).at(torch.ones(SIZE).double(), 1e-3)
    assert warped.visible(SIZE, 1e-3).all()
    assert warped.visible((SIZE[0], 20), 1e-3).sum() == SIZE[0] * 20


def test_positions_on_the_sampling_grid_are_those_in_pixels() -> None:
    source, target, size = made_cameras(1), made_cameras(2), (18, 40)
    depth = 2 + torch.rand(SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    warp = ray_warp(camera_rays(source.intrinsics, SIZE), source, target)
    pixels, on_grid = (one.at(depth, 1e-3) for one in (warp, warp.on_grid(size)))
    assert torch.allclose(on_grid.pixels, pixels.pixels / torch.tensor([40, 18]) * 2 - 1, atol=1e-12)
    assert torch.equal(on_grid.depth, pixels.depth)
    maps = torch.rand(1, 2, *size, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert torch.allclose(sample_grid(maps, on_grid.pixels[None]), sample(maps, pixels.pixels[None]), atol=1e-9)


@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_window_means_are_those_of_the_pixels_inside_the_image(window: int) -> None:
    maps, half = torch.rand(2, 4, 7, generator=torch.Generator().manual_seed(0)).double(), window // 2
    before = maps.clone()
    means = window_means(maps, window)
    for row in range(4):
        for column in range(7):
            part = maps[:, max(0, row - half) : row + half + 1, max(0, column - half) : column + half + 1]
            assert torch.allclose(means[:, row, column], part.mean(dim=(1, 2)))
    assert torch.equal(maps, before)


def test_sampling_at_pixel_centres_returns_the_pixels() -> None:
    maps = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    rows, columns = torch.meshgrid(torch.arange(SIZE[0]) + 0.5, torch.arange(SIZE[1]) + 0.5, indexing="ij")
    pixels = torch.stack([columns, rows], dim=-1).expand(2, *SIZE, 2)
    assert torch.allclose(sample(maps, pixels), maps, atol=1e-5)
    outside = pixels - torch.tensor([100.0, 0.0])
    assert torch.allclose(sample(maps, outside), maps[..., :1].expand_as(maps), atol=1e-5)
    assert not sample(maps, outside, border="zeros").any()


def test_ncc_is_the_correlation_coefficient() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(200, generator=generator, dtype=torch.float64)
    second = 0.5 * first + torch.randn(200, generator=generator, dtype=torch.float64)
    moments = torch.cov(torch.stack([first, second]))
    found = ncc(moments[0, 1], moments[0, 0], moments[1, 1], 0.0)
    assert math.isclose(found, torch.corrcoef(torch.stack([first, second]))[0, 1], rel_tol=1e-12)
    flat = torch.zeros(1)
    assert ncc(flat, flat, flat, 1e-6) == 0


def test_surfaces_face_the_cameras_in_front_of_them() -> None:
    """A plane inclined by 40 degrees: its normal, and the angles to cameras on both of its sides."""
    size, angle = (24, 32), math.radians(40)
    matrix = torch.tensor([[30.0, 0, 16], [0, 30, 12], [0, 0, 1]], dtype=torch.float64)
    normal = torch.tensor([math.sin(angle), 0, -math.cos(angle)], dtype=torch.float64)
    depth = 3 * normal[2] / (camera_rays(matrix, size) @ normal)
    places = torch.tensor([[0.0, 0, 0], [2, 1, 0.5], [0, 0, 3.5]], dtype=torch.float64)
    poses = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1)
    poses[:, :3, 3] = -places
    cameras = Cameras(world_to_camera=poses, intrinsics=matrix.expand(3, 3, 3), image_size=size)
    depth[0, 0] = torch.nan
    surfaces = surfaces_of(depth, matrix)
    known = ~surfaces.normals.isnan().any(-1)
    assert known[3:, 3:].all()
    torch.testing.assert_close(surfaces.normals[known], normal.expand(*size, 3)[known])
    towards = places[:, None, None] - camera_rays(matrix, size) * depth[..., None]
    cosine = (towards * normal).sum(-1) / towards.norm(dim=-1)
    for other in range(3):
        found = surfaces.facing((...,), cameras[0], cameras[other])
        torch.testing.assert_close(found[known], cosine[other][known])
        assert (found[~known] == 0).all()
    assert (surfaces.facing((...,), cameras[0], cameras[2]) < 0).any()
