"""Planes: pictures correct the depth of surfaces of little texture, and of nothing else."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, camera_rays
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.stereo.planes import move_onto_planes

SIGMA, HEIGHT, SIDE = 0.08, 0.12, 0.2
"""Of log depth; height and half the width of a box on the floor, in metres."""


def rig(size: tuple[int, int], spacing: float) -> Cameras:
    """Return three cameras 2 m above the floor z = 0 that look down, x to the right and y to the front."""
    focal, pose = 1.1 * size[1], torch.eye(4, dtype=torch.float64).repeat(3, 1, 1)
    pose[:, :3, :3] = torch.tensor([[1.0, 0, 0], [0, -1, 0], [0, 0, -1]])
    pose[:, :3, 3] = torch.stack([torch.tensor([-spacing * place, 0.0, 2.0]) for place in (-1, 0, 1)])
    matrix = torch.tensor([[focal, 0, size[1] / 2], [0, focal, size[0] / 2], [0, 0, 1]], dtype=torch.float64)
    return Cameras(world_to_camera=pose, intrinsics=matrix.expand(3, 3, 3), image_size=size)


def scene(cameras: Cameras, contrast: float, period: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Render true log depth, pictures, and the mask of the box, which has another color than the floor.

    The texture is noise, or stripes along both axes with a period in metres.
    """
    pose = cameras.camera_to_world.float()
    rays = camera_rays(cameras.intrinsics, cameras.image_size).float() @ pose[:, None, :3, :3].mT
    center = pose[:, None, None, :3, 3]
    top = center + rays * ((HEIGHT - center[..., 2:]) / rays[..., 2:])
    box = (top[..., :2].abs() < SIDE).all(dim=-1)
    depth = torch.where(box, HEIGHT - center[..., 2], -center[..., 2]) / rays[..., 2]
    point = center + rays * depth[..., None]
    noise = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    texture = functional.grid_sample(noise.expand(3, -1, -1, -1), point[..., :2] / 2, align_corners=False)
    if period is not None:
        texture = (2 * torch.pi / period * point[..., :2]).sin().sum(dim=-1)[:, None].expand(-1, 3, -1, -1)
    return depth.log(), 0.3 + contrast * texture + 0.4 * box[:, None], box


@pytest.mark.parametrize(
    ("size", "tilt", "away"), [((72, 96), 0.08, 0.0), ((72, 96), -0.08, 4e6), ((192, 256), 0.08, 0.0)]
)
def test_pictures_determine_a_floor_of_little_texture(size: tuple[int, int], tilt: float, away: float) -> None:
    cameras = rig(size, 0.4)
    true, images, box = scene(cameras, contrast=0.004)
    cameras.world_to_camera[:, 0, 3] -= away
    error = torch.linspace(-tilt, tilt, size[0])[:, None].expand(true.shape)
    given = true + torch.where(box, 0.0, error)
    found = move_onto_planes(given, torch.ones_like(box), torch.full_like(true, SIGMA), images, cameras)
    assert (found - true)[~box].abs().mean() < 0.2 * error[~box].abs().mean()
    assert (found == given)[box].float().mean() > 0.9


@pytest.mark.parametrize(
    ("finer", "error", "corrected"), [(1, 0.5, 1.0), (1, -0.5, 1.0), (1, 1.2, 0.0), (3, 0.5, 1.0)]
)
def test_pictures_determine_pixels_far_from_a_plane(finer: int, error: float, corrected: float) -> None:
    cameras = rig((72 * finer, 96 * finer), 0.4)
    true, images, box = scene(cameras, contrast=0.02)
    far = torch.zeros_like(box)
    far[1, 10 * finer : 60 * finer, 66 * finer : 90 * finer] = True
    pole = torch.zeros_like(box)  # narrower than the distance of compared pixels
    pole[1, 20 * finer : 50 * finer, 78 * finer] = finer > 1
    given = true + torch.where(box, 0.0, torch.linspace(-0.08, 0.08, 72 * finer)[:, None]) + error * far
    given = torch.where(pole, true - 0.5, given)
    found = move_onto_planes(given, torch.ones_like(box), torch.full_like(true, SIGMA), images, cameras)
    assert ((found - true).abs() < 0.02)[far & ~pole].float().mean() == pytest.approx(corrected, abs=0.01)
    assert (found == given)[box].float().mean() > 0.9
    assert torch.equal(found[pole], given[pole])


@pytest.mark.parametrize(("contrast", "period", "spacing"), [(0.0, None, 0.4), (0.004, None, 5.0), (0.1, 0.08, 0.4)])
def test_depth_stays_without_texture_or_a_common_view_and_with_a_pattern(
    contrast: float, period: float | None, spacing: float
) -> None:
    cameras = rig((72, 96), spacing)
    true, images, box = scene(cameras, contrast, period)
    given = true + 0.05 * torch.linspace(-1, 1, 72)[:, None]
    found = move_onto_planes(given, torch.ones_like(box), torch.full_like(true, SIGMA), images, cameras)
    assert torch.equal(found, given)


def test_right_depth_stays() -> None:
    truth = sample_truth([4], SceneRequest(num_times=1, num_views=3, image_size=(72, 96), spacing_deg=(12, 13)))
    depth = truth.depth[0, 0]
    known, true = depth > 0, torch.where(depth > 0, depth, 1.0).log()
    cameras = truth.cameras[0, 0].to(torch.float64)
    found = move_onto_planes(true, known, torch.full_like(true, SIGMA), truth.images[0, 0], cameras)
    assert (found - true).abs().mean() < 0.001
