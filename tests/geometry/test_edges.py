"""Depth and normal edges: parity with the public Pi3 code, and known surfaces."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.geometry.camera import unproject
from page4d.geometry.warp import depth_edges, normal_edges, surface_normals
from tests.geometry.geometry_samples import close

LENS = torch.tensor([[60.0, 0, 20], [0, 60, 15], [0, 0, 1]], dtype=torch.float64)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(Path(__file__).parents[1] / "golden" / "geometry_ops.safetensors")


def test_depth_edges_equal_the_reference(golden: dict[str, Tensor]) -> None:
    depth, valid = golden["input/depth"][..., 0], golden["input/mask"].bool()
    assert torch.equal(depth_edges(depth, 0.03), golden["output/depth_edge_rtol003"].bool())
    assert torch.equal(depth_edges(depth, 0.03, valid), golden["output/depth_edge_rtol003_masked"].bool())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_combined_depth_and_normal_edges_equal_the_reference(golden: dict[str, Tensor], dtype: torch.dtype) -> None:
    points, valid = golden["input/local_points"].to(dtype), golden["input/mask"].bool()
    ours = depth_edges(points[..., 2], 0.03, valid) & normal_edges(points, 5.0, valid)
    assert torch.equal(ours, golden["output/depth_normal_edge_rtol003_masked"].bool())


def plane(normal: tuple[float, float, float], distance: float = 3.0) -> Tensor:
    """Return the camera's point map of the plane normal . x = distance."""
    rays = unproject(torch.ones(30, 40, dtype=torch.float64), LENS)
    return rays * (distance / (rays @ torch.tensor(normal, dtype=torch.float64)))[..., None]


ALL = torch.ones(30, 40, dtype=torch.bool)


@pytest.mark.parametrize("normal", [(0.0, 0.0, 1.0), (0.6, 0.0, 0.8), (0.36, 0.48, 0.8)])
def test_a_plane_has_a_constant_normal_and_no_edges(normal: tuple[float, float, float]) -> None:
    points = plane(normal)
    ours, known = surface_normals(points, ALL)
    assert bool(known.all())
    close(ours, -torch.tensor(normal, dtype=torch.float64).expand_as(ours), factor=1e3)  # towards the camera
    assert not normal_edges(points, 0.1, ALL).any()


@pytest.mark.parametrize(("bend_deg", "found"), [(4.0, False), (8.0, False), (12.0, True)])
def test_a_fold_is_an_edge(bend_deg: float, found: bool) -> None:
    """Two planes meet in the middle column, where normals are averaged: the angle is split into two steps."""
    half = math.radians(bend_deg / 2)
    left, right = plane((math.sin(half), 0.0, math.cos(half))), plane((-math.sin(half), 0.0, math.cos(half)))
    edges = normal_edges(torch.where((torch.arange(40) < 20)[:, None], left, right), 5.0, ALL)
    assert bool(edges.any()) is found
    assert not edges[:, :16].any()
    assert not edges[:, 24:].any()


def test_a_depth_step_is_an_edge_on_both_sides() -> None:
    depth = torch.ones(6, 10, dtype=torch.float64)
    depth[:, 5:] = 1.05
    for share, found in ((0.03, {4, 5}), (0.049, {4}), (0.06, set())):
        columns = depth_edges(depth, share).any(dim=0).nonzero()[:, 0].tolist()
        assert set(columns) == found


def test_invalid_pixels_create_no_edges() -> None:
    points = plane((0.0, 0.0, 1.0))
    valid = ALL.clone()
    valid[10:12, 10:14] = False
    valid[20, 5:8] = False
    valid[:3, 0] = False
    points = torch.where(valid[..., None], points, 50 * torch.rand(30, 40, 3, dtype=torch.float64))
    assert not depth_edges(points[..., 2], 0.03, valid)[valid].any()
    assert not normal_edges(points, 1.0, valid).any()
    _, known = surface_normals(points, valid)
    assert torch.equal(known, known & valid)
