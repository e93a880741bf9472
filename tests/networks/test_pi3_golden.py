"""Pi3 and Pi3X: symmetries, intrinsics that are fitted to points, gradients."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from page4d.geometry.camera import Cameras, fit_intrinsics, move_pixel_center, world_points
from page4d.geometry.rotation import rotation_defect
from tests.networks.test_recorded_tensors import read_run

INSIDE = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("family", ["pi3", "pi3x"])
@pytest.mark.parametrize("case", ["c", "a", "b"])
def test_the_order_of_images_does_not_matter(golden: Callable, family: str, case: str) -> None:
    run = read_run(golden, family, case, "")
    images = run.images.unsqueeze(1)
    one, other = run.network(images), run.network(images.flip(2))
    torch.testing.assert_close(one.metric_scale, other.metric_scale, rtol=1e-5, atol=0)
    assert rotation_defect(one.camera_to_world[..., :3, :3]).max() < 1e-14
    torch.testing.assert_close(one.world_to_camera.flip(2), other.world_to_camera, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.depth.flip(2), other.depth, rtol=1e-4, atol=1e-4)


def test_intrinsics_reproduce_the_recorded_ones() -> None:
    """Recorded intrinsics have pixel centers at integers."""
    tensors = load_file(INSIDE / "geometry_ops.safetensors")
    ours = fit_intrinsics(tensors["input/local_points"].double())
    theirs = tensors["output/intrinsics_from_rays_centered"].double()
    torch.testing.assert_close(ours, move_pixel_center(theirs, source=0.0), rtol=0, atol=1e-4)


def test_intrinsics_are_recovered_from_exact_points() -> None:
    truth = torch.tensor([[50.0, 0, 21], [0, 40, 14], [0, 0, 1]], dtype=torch.float64).expand(2, 3, 3)
    depth = 1 + torch.rand(2, 28, 42, dtype=torch.float64)
    cameras = Cameras(
        world_to_camera=torch.eye(4, dtype=torch.float64).expand(2, 4, 4), intrinsics=truth, image_size=(28, 42)
    )
    points = world_points(depth, cameras)
    torch.testing.assert_close(fit_intrinsics(points), truth, rtol=0, atol=1e-12)
    points[:, :, 30:] = torch.rand(2, 28, 12, 3, dtype=torch.float64)
    weights = torch.ones(2, 28, 42, dtype=torch.float64)
    weights[:, :, 30:] = 0
    torch.testing.assert_close(fit_intrinsics(points, weights), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_degenerate_points_get_the_default_focal_length(factor: float) -> None:
    points = torch.ones(28, 42, 3)
    points[..., 0] = factor * torch.arange(42)
    points[..., 1] = factor * torch.arange(28)[:, None]
    expected = torch.tensor([[42.0, 0, 21], [0, 42, 14], [0, 0, 1]])
    assert torch.equal(fit_intrinsics(points), expected)
