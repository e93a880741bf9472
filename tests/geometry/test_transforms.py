"""Rigid and similarity transforms: group axioms, exponential map, action on points and cameras."""

import pytest
import torch

from page4d.geometry.camera import project
from page4d.geometry.transforms import Sim3, camera_centers, interpolate_rigid, invert_rigid, rigid, transform_points
from tests.geometry.geometry_samples import (
    BATCHES,
    DTYPES,
    close,
    intrinsics,
    normal,
    rotations,
    similarities,
    transforms,
)

EYE4 = torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inverse_times_transform_is_the_identity(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    given = transforms(*batch, seed=1, dtype=dtype)
    identity = EYE4.to(dtype).expand(*batch, 4, 4)
    close(invert_rigid(given) @ given, identity, factor=4)
    close(given @ invert_rigid(given), identity, factor=4)
    close(invert_rigid(given), torch.linalg.inv(given), factor=16)


def test_batched_transforms_equal_single_transforms() -> None:
    given = transforms(2, 3, seed=7)
    points = normal(2, 3, 4, 5, 3, seed=9)
    moved = transform_points(given, points)
    for i in range(2):
        for j in range(3):
            expected = points[i, j] @ given[i, j, :3, :3].T + given[i, j, :3, 3]
            close(moved[i, j], expected)
    close(transform_points(given[0, 0], points[0, 0]), moved[0, 0])
    close(transform_points(given[:1], points), transform_points(given[:1].expand(2, 3, 4, 4), points))


def test_camera_centers_map_to_the_origin() -> None:
    given = transforms(6, seed=10)
    close(transform_points(given, camera_centers(given)[:, None])[:, 0], torch.zeros(6, 3, dtype=torch.float64))
    close(camera_centers(given), invert_rigid(given)[..., :3, 3])


def test_interpolated_camera_centers_lie_on_a_straight_line() -> None:
    first, second = transforms(9, seed=15), transforms(9, seed=17)
    fraction = torch.linspace(0, 1, 9, dtype=torch.float64)
    between = interpolate_rigid(first, second, fraction)
    close(
        camera_centers(between),
        torch.lerp(camera_centers(first), camera_centers(second), fraction[:, None]),
        factor=4,
    )
    close(between[0], first[0], factor=4)
    close(between[-1], second[-1], factor=8)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_similarities_satisfy_the_group_axioms(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    first, second, third = (similarities(*batch, seed=seed, dtype=dtype) for seed in (20, 30, 40))
    close((first @ second).matrix(), first.matrix() @ second.matrix(), factor=16)
    close(((first @ second) @ third).matrix(), (first @ (second @ third)).matrix(), factor=64)
    close((first @ first.inverse()).matrix(), EYE4.to(dtype).expand(*batch, 4, 4), factor=16)
    close((first.inverse() @ first).matrix(), EYE4.to(dtype).expand(*batch, 4, 4), factor=16)
    close((Sim3.identity().like(first.scale) @ first).matrix(), first.matrix())


def test_similarities_transform_points_like_their_matrix() -> None:
    given, points = similarities(2, seed=50), normal(2, 4, 5, 3, seed=53)
    expected = torch.einsum("bij,bhwj->bhwi", given.matrix()[:, :3, :3], points) + given.translation[:, None, None]
    close(given.apply(points), expected)
    close(given.inverse().apply(given.apply(points)), points, factor=8)
    first = Sim3(scale=given.scale[0], rotation=given.rotation[0], translation=given.translation[0])
    close(first.apply(points[0]), expected[0])


@pytest.mark.parametrize("batch", [(), (2,)])
def test_transformed_cameras_project_transformed_points_to_the_same_pixels(batch: tuple[int, ...]) -> None:
    given = similarities(*batch, seed=90)
    cameras = transforms(*batch, 4, seed=93)
    lenses = intrinsics(*batch, 4, seed=95)
    seen = normal(*batch, 4, 11, 3, seed=97)
    seen = torch.cat([seen[..., :2], seen[..., 2:].abs() + 2], dim=-1)
    points = transform_points(invert_rigid(cameras), seen)
    moved = transform_points(given.apply_to_cameras(cameras), given.apply(points))
    pixels, depth = project(seen, lenses)
    moved_pixels, moved_depth = project(moved, lenses)
    close(moved_pixels, pixels, factor=200)
    close(moved_depth, given.scale[(..., *(None,) * 2)] * depth, factor=16)
    close(camera_centers(given.apply_to_cameras(cameras)), given.apply(camera_centers(cameras)), factor=16)


def test_like_converts_to_the_dtype_of_a_tensor() -> None:
    moved = similarities(seed=130).like(torch.zeros(1, dtype=torch.float32))
    assert moved.scale.dtype == moved.rotation.dtype == moved.translation.dtype == torch.float32


def test_rigid_places_rotation_and_translation() -> None:
    rotation, translation = rotations(2, seed=131), normal(2, 3, seed=132)
    given = rigid(rotation, translation)
    assert given[:, 3].tolist() == [[0, 0, 0, 1]] * 2
    close(given[:, :3, :3], rotation)
    close(given[:, :3, 3], translation)
