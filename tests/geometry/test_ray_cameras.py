"""Cameras from ray maps: recorded numbers of the public code, consistent rays, outliers."""

from pathlib import Path

import pytest
import torch
from geometry_samples import close, normal, transforms
from safetensors.torch import load_file
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.ray_cameras import cameras_from_rays, ql_decomposition, weighted_homography
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_angle
from page4d.geometry.transforms import rigid

GOLDEN = Path(__file__).parents[1] / "golden" / "da3_ops.safetensors"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    return load_file(GOLDEN)


def agrees(ours: Tensor, reference: Tensor) -> None:
    assert ours.shape == reference.shape
    assert ((ours - reference).abs() / (1e-4 + 1e-4 * reference.abs())).max() <= 1


def test_decomposition_equals_the_reference(recorded: dict[str, Tensor]) -> None:
    orthogonal, lower = ql_decomposition(recorded["input/ql_matrix"])
    agrees(orthogonal, recorded["output/ql_rotation"])
    agrees(lower, recorded["output/ql_lower"])
    assert (lower.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_homography_equals_the_reference(recorded: dict[str, Tensor]) -> None:
    parts = (recorded[f"input/homography_{name}"] for name in ("from", "to", "weight"))
    ours = weighted_homography(*parts)
    agrees(ours / ours[2, 2], recorded["output/homography"])


@pytest.mark.parametrize("seed", [0, 5])
def test_cameras_equal_the_reference(recorded: dict[str, Tensor], seed: int) -> None:
    cameras = cameras_from_rays(recorded["input/rays"], recorded["input/ray_conf"], (56, 84), seed)
    agrees(cameras.world_to_camera[..., :3, :].float(), recorded["output/rays_extrinsics"])
    agrees(cameras.camera_to_world.float(), recorded["output/rays_c2w"])
    agrees(cameras.intrinsics.float(), recorded["output/rays_intrinsics"])


def rig(size: tuple[int, int], poses: Tensor | None = None) -> Cameras:
    lens = torch.eye(3, dtype=torch.float64).expand(2, 3, 3, 3).clone()
    lens[..., 0, 0] = torch.linspace(60, 200, 6).reshape(2, 3)
    lens[..., 1, 1] = torch.linspace(90, 70, 6).reshape(2, 3)
    lens[..., 0, 2], lens[..., 1, 2] = size[1] / 2, size[0] / 2
    poses = transforms(2, 3, seed=3) if poses is None else poses
    return Cameras(world_to_camera=poses, intrinsics=lens, image_size=size)


def rays_of(cameras: Cameras, step: int) -> Tensor:
    """Return rays at the centres of cells of `step` pixels."""
    height, width = (side // step for side in cameras.image_size)
    scaled = cameras.intrinsics.clone()
    scaled[..., :2, :] /= step
    pose = cameras.camera_to_world
    directions = torch.einsum("...ij,...hwj->...hwi", pose[..., :3, :3], camera_rays(scaled, (height, width)))
    return torch.cat([directions, pose[..., None, None, :3, 3].expand_as(directions)], dim=-1)


def test_cameras_of_their_own_rays() -> None:
    """Directions may have any positive length; weights change nothing."""
    expected = rig((112, 168))
    rays = rays_of(expected, 7)
    lengths = normal(2, 3, 16, 24, 1, seed=1).exp()
    rays = torch.cat([rays[..., :3] * lengths, rays[..., 3:]], dim=-1)
    weights = 1 + normal(2, 3, 16, 24, seed=2).exp()
    found = cameras_from_rays(rays, weights, (112, 168))
    close(found.world_to_camera, expected.world_to_camera, factor=1e6)
    close(found.intrinsics, expected.intrinsics, factor=1e7)


def test_outliers_and_noise() -> None:
    """A quarter of the directions is random, with as much confidence; origins of low confidence are wrong."""
    turned = matrix_from_rotation_vector(0.3 * normal(2, 3, 3, seed=7))
    expected = rig((112, 168), rigid(turned, normal(2, 3, 3, seed=8)))
    rays, generator = rays_of(expected, 4), torch.Generator().manual_seed(0)
    wrong = torch.rand(rays.shape[:-1], generator=generator) < 0.25
    rays[..., :3] += 1e-3 * normal(*rays.shape[:-1], 3, seed=4)
    rays[..., :3] = torch.where(wrong[..., None], normal(*rays.shape[:-1], 3, seed=5), rays[..., :3])
    doubtful = torch.rand(rays.shape[:-1], generator=generator) < 0.3
    rays[..., 3:] += doubtful[..., None] * 1e3
    weights = torch.where(doubtful, 1e-9, 2 + torch.rand(rays.shape[:-1], generator=generator))
    found = cameras_from_rays(rays, weights, (112, 168))
    assert rotation_angle(found.world_to_camera[..., :3, :3], expected.world_to_camera[..., :3, :3]).max() < 5e-3
    assert (found.intrinsics - expected.intrinsics).abs().max() < 2
    assert (found.centers - expected.centers).norm(dim=-1).max() < 1e-3
    again = cameras_from_rays(rays, weights, (112, 168))
    assert torch.equal(found.world_to_camera, again.world_to_camera)


def test_directions_parallel_to_the_plane_are_left_out() -> None:
    expected = rig((56, 56))
    rays = rays_of(expected, 7)
    rays[..., :4, :, 2] = 0
    found = cameras_from_rays(rays, torch.ones(rays.shape[:-1]), (56, 56))
    close(found.intrinsics, expected.intrinsics, factor=1e7)
