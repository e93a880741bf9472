"""Compiled kernels compute what PyTorch does, on any number of threads, and are not needed."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import ray_warp
from page4d.stereo import kernels
from page4d.stereo.background import median_of_maps
from page4d.stereo.consensus import _evidence, _Surface
from page4d.stereo.descriptors import _products
from page4d.stereo.edges import _median_of_windows, _windows, upsample
from page4d.stereo.sweep import Windows, aggregate_scores, correlate

pytest.importorskip("numba")


def camera(batch: int, position: tuple[float, float, float], size: tuple[int, int]) -> Cameras:
    pose = torch.eye(4).double()
    pose[:3, 3] = -torch.tensor(position)
    intrinsics = torch.tensor([[30.0, 0.0, size[1] / 2], [0.0, 30.0, size[0] / 2], [0.0, 0.0, 1.0]]).double()
    return Cameras(
        world_to_camera=pose.expand(batch, 4, 4), intrinsics=intrinsics.expand(batch, 3, 3), image_size=size
    )


def correlation(batch: int, size: tuple[int, int], target: tuple[int, int], factors: Tensor) -> Callable[[], Tensor]:
    images = Windows.of(torch.rand(batch, 3, *size)), torch.rand(batch, 3, *target)
    cameras = camera(batch, (0.0, 0.0, 0.0), size), camera(batch, (0.3, -0.2, 1.0), target)
    depth = torch.where(torch.rand(batch, *size) < 0.1, 0.5, 1.6 + 3 * torch.rand(batch, *size))  # some are behind
    return lambda: correlate(*images, *cameras, depth, factors)


def aggregation(*shape: int) -> Callable[[], Tensor]:
    score = torch.randn(shape)
    return lambda: aggregate_scores(score, 0.4, 1.5)


def products(batch: int, size: tuple[int, int], target: tuple[int, int], channels: int) -> Callable[[], Tensor]:
    cells = torch.randn(batch, channels, *size), torch.randn(batch, channels, *target)
    depth = 0.8 + 3 * torch.rand(batch, *size)
    rays = camera_rays(camera(batch, (0.0, 0.0, 0.0), size).intrinsics.float(), size)[:, None]
    warp = ray_warp(rays, camera(batch, (0.0, 0.0, 0.0), size), camera(batch, (0.3, -0.2, 1.0), target))
    factors = 0.8 + 0.4 * torch.rand(5, 1, 1)
    return lambda: _products(*cells, warp.on_grid(target), depth, factors)


def surface_evidence(size: tuple[int, int], target: tuple[int, int], count: int) -> Callable[[], Tensor]:
    own, other = camera(1, (0.0, 0.0, 0.0), size)[0], camera(1, (0.3, -0.2, 1.0), target)[0]
    maps = (
        torch.rand(4, *target) * (torch.rand(4, *target) > 0.3) + torch.tensor([0.5, 0.01, 0.0, 0.0])[:, None, None]
    )
    depth, rays = 0.8 + 3 * torch.rand(size), camera_rays(own.intrinsics, size)
    depth[:1, 1:2] = maps[0, 2:5, 1:5] = torch.nan
    return lambda: _evidence(depth.log(), rays, torch.linspace(-0.5, 1.2, count), own, other, _Surface(*maps))


def upsampling(size: tuple[int, int], target: tuple[int, int], maps: int) -> Callable[[], Tensor]:
    images = torch.randn(maps, *size).mul(0.1), torch.rand(*size) * (torch.rand(*size) > 0.3), torch.rand(3, *size)
    positions = torch.rand(*target, 2) * torch.tensor([size[1] + 6.0, size[0] + 6.0]) - 3
    picture = torch.rand(3, *target)

    def compute() -> Tensor:
        sampled, found = upsample(*images, picture, positions)
        return torch.cat([sampled, found[None]])

    return compute


def medians(height: int, width: int, levels: int) -> Callable[[], Tensor]:
    values = torch.randint(-levels, levels, (height, width)) / levels
    weight = torch.rand(25, height, width) * _windows(torch.ones(height, width))
    return lambda: _median_of_windows(values, weight)


def medians_of_maps(*shape: int, weight: float | None = None) -> Callable[[], Tensor]:
    values, weights = torch.randint(-9, 9, shape) / 9, torch.rand(shape[0], 1, *shape[2:])
    if weight is not None:
        weights = torch.full_like(weights, weight)
    return lambda: median_of_maps(values, weights)


CASES: dict[str, Callable[[], Callable[[], Tensor]]] = {
    "correlate, factors of labels": lambda: correlation(2, (9, 37), (12, 20), 0.9 + 0.2 * torch.rand(5, 1, 1)),
    "correlate, factors of pixels": lambda: correlation(1, (21, 18), (21, 18), 0.9 + 0.2 * torch.rand(3, 21, 18)),
    "correlate, one pixel": lambda: correlation(1, (1, 1), (1, 1), torch.ones(2, 1, 1)),
    "correlate, no number": lambda: correlation(
        1, (4, 5), (6, 5), torch.tensor([torch.nan, torch.inf])[:, None, None]
    ),
    "compare": lambda: products(2, (7, 9), (11, 6), 64),
    "compare, three channels": lambda: products(1, (1, 4), (3, 1), 3),
    "compare_surface": lambda: surface_evidence((7, 9), (11, 6), 40),
    "compare_surface, one pixel": lambda: surface_evidence((1, 1), (1, 1), 1),
    "upsample": lambda: upsampling((9, 11), (14, 35), 2),
    "upsample, one pixel": lambda: upsampling((1, 1), (3, 3), 1),
    "median_of_windows": lambda: medians(20, 39, 1000),
    "median_of_windows, equal values": lambda: medians(3, 5, 2),
    "median_of_maps": lambda: medians_of_maps(8, 3, 5, 37),
    "median_of_maps, equal weights": lambda: medians_of_maps(12, 3, 5, 37, weight=1.001),
    "median_of_maps, one map": lambda: medians_of_maps(1, 1, 1, 1),
    "aggregate": lambda: aggregation(2, 35, 9, 40),
    "aggregate, one label": lambda: aggregation(1, 3, 1, 5),
    "aggregate, one pixel": lambda: aggregation(1, 1, 4, 1),
    "aggregate, nothing": lambda: aggregation(0, 4, 3, 5),
}


@pytest.fixture
def without_kernels(monkeypatch) -> Iterator[Callable[[], None]]:
    """Replace Numba by a folder of its name, which imports as a module, from when it is called."""

    def block() -> None:
        monkeypatch.setitem(sys.modules, "numba", ModuleType("numba"))
        kernels.numba.cache_clear()

    yield block
    kernels.numba.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_pytorch_does(name: str, without_kernels: Callable[[], None], monkeypatch):
    torch.manual_seed(0)
    compute = CASES[name]()
    with monkeypatch.context() as patched:
        kernel = getattr(kernels, name.partition(",")[0])
        patched.setattr(kernels, kernel.__name__, Mock(side_effect=kernel))
        found = compute()
        arguments = getattr(kernels, kernel.__name__).call_args.args
        alone = kernel(*arguments)
        patched.setattr(torch, "get_num_threads", lambda: 3)
        torch.testing.assert_close(kernel(*arguments), alone, rtol=0, atol=0, equal_nan=True)
    without_kernels()
    torch.testing.assert_close(found, compute(), atol=1e-4, rtol=1e-4, equal_nan=True)


def test_a_cache_that_cannot_be_used_is_not_needed(monkeypatch):
    compute = CASES["aggregate, one label"]()
    expected = compute()
    monkeypatch.setattr(kernels._Kernel, "_compiled", cache(kernels._Kernel._compiled))  # once for both errors
    for error in (OSError("full"), EOFError()):
        monkeypatch.setattr(kernels._add_messages, "_run", Mock(side_effect=error))
        assert torch.equal(compute(), expected)
