"""Depth of higher resolution than a network's: upsampled along color edges and refined by the pictures, by levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.fusion.fine_sweep import sweep_around
from page4d.fusion.regions import Region
from page4d.fusion.upsampling import upsample
from page4d.geometry.camera import Cameras, pixel_grid, resize_intrinsics
from page4d.geometry.pixels import PixelTransform

_FIRST_REACH, _REACH = 8, 5
"""Pixels in another image by which depth is refined: at the first level the error of the network counts."""

_MARGIN = 8
"""Pixels around a region that are refined with it, as context of windows and paths."""

_MIN_RATIO = 1.2
"""Smallest ratio of the first level to the network's size."""


@dataclass(frozen=True, kw_only=True)
class CoarseView:
    """One view at network pixels, placed by `transform`. Pixels count by `weight`, 0 without depth."""

    log_depth: Float[Tensor, "h w"]
    confidence: Float[Tensor, "h w"]
    weight: Float[Tensor, "h w"]
    image: Float[Tensor, "3 h w"]
    transform: PixelTransform


@dataclass(frozen=True, kw_only=True)
class FineView:
    """One view at fine pixels, within regions of its image; elsewhere nothing is `known`."""

    log_depth: Float[Tensor, "H W"]
    confidence: Float[Tensor, "H W"]
    known: Bool[Tensor, "H W"]


@torch.no_grad()
def raise_resolution(
    coarse: Sequence[CoarseView],
    images: Sequence[Float[Tensor, "3 _ _"]],
    transforms: Sequence[PixelTransform],
    cameras: Cameras,
    regions: Sequence[Sequence[Region]],
    *,
    sweeps: bool,
) -> list[FineView]:
    """Return depth and confidence of the views of one instant at the pixels of larger images.

    Args:
        coarse: the views at network pixels.
        images: pictures of the views in [0, 1].
        transforms: placement of the original images on these pictures, which they cover.
        cameras: [V] cameras, each at the pixels of its picture.
        regions: regions of each picture that are needed, which may be none.
        sweeps: whether the cameras are known well enough to compare pictures.

    The size doubles from level to level. At every level depth is upsampled along color edges, then refined by a plane
    sweep within a few pixels of other pictures, where these show evidence.
    """
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    pyramids = [_level_sizes(view.transform.content_size, size) for view, size in zip(coarse, sizes, strict=True)]
    num_levels = max(len(pyramid) for pyramid in pyramids)
    # Views with fewer levels, of smaller pictures, stay at their first one meanwhile.
    by_level = [
        [pyramid[max(0, len(pyramid) - num_levels + level)] for pyramid in pyramids] for level in range(num_levels)
    ]
    current: list[FineView | None] = [None] * len(coarse)
    guides = [view.image for view in coarse]
    for level, level_sizes in enumerate(by_level):
        pictures = [_resized(image, size) for image, size in zip(images, level_sizes, strict=True)]
        rig = _at_sizes(cameras, sizes, level_sizes)
        found: list[FineView | None] = []
        for view, (needed, size) in enumerate(zip(regions, level_sizes, strict=True)):
            previous = current[view]
            if not needed or (previous is not None and previous.known.shape == size):
                found.append(previous)
                continue
            positions = _positions(coarse[view], transforms[view], previous, size)
            maps, weight = _source(coarse[view], previous)
            raised = _empty(size, like=weight)
            for region in needed:
                part = _scaled(region, sizes[view], size)
                sampled, known = upsample(maps, weight, guides[view], pictures[view][:, *part], positions[part])
                log_depth = sampled[0]
                if sweeps:
                    reach = _FIRST_REACH if level == 0 else _REACH
                    log_depth = sweep_around(log_depth, known, pictures, rig, view, part, reach)
                raised.log_depth[part], raised.confidence[part], raised.known[part] = log_depth, sampled[1], known
            found.append(raised)
        current, guides = found, pictures
    return [_empty(size) if view is None else view for view, size in zip(current, sizes, strict=True)]


def _level_sizes(network: tuple[int, int], size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the sizes of the levels from just above the network's to the full one, each twice the previous one."""
    sizes, factor = [size], 2
    while max(size) / factor >= _MIN_RATIO * max(network):
        sizes.insert(0, (max(1, round(size[0] / factor)), max(1, round(size[1] / factor))))
        factor *= 2
    return sizes


def _resized(image: Float[Tensor, "3 H W"], size: tuple[int, int]) -> Float[Tensor, "3 h w"]:
    if image.shape[-2:] == size:
        return image
    return functional.interpolate(image[None], size, mode="area")[0]


def _at_sizes(cameras: Cameras, full: Sequence[tuple[int, int]], sizes: Sequence[tuple[int, int]]) -> Cameras:
    """Return the cameras at the pixels of resized pictures."""
    scaled = [
        resize_intrinsics(matrix, size[1] / whole[1], size[0] / whole[0])
        for matrix, whole, size in zip(cameras.intrinsics, full, sizes, strict=True)
    ]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    return Cameras(
        world_to_camera=cameras.world_to_camera, intrinsics=torch.stack(scaled), image_size=(height, width)
    )


def _scaled(region: Region, full: tuple[int, int], size: tuple[int, int]) -> Region:
    """Return a region at another size, with a margin."""
    rows, columns = (
        slice(
            max(0, int(part.start * short / long) - _MARGIN),
            min(short, -int(-part.stop * short // long) + _MARGIN),
        )
        for part, long, short in zip(region, full, size, strict=True)
    )
    return rows, columns


def _positions(
    coarse: CoarseView, transform: PixelTransform, previous: FineView | None, size: tuple[int, int]
) -> Float[Tensor, "H W 2"]:
    """Return the positions of the pixels of a level in the maps of the previous one, or of the network."""
    grid = pixel_grid(*size, dtype=torch.float64, device=coarse.log_depth.device)
    if previous is not None:
        height, width = previous.log_depth.shape
        return (grid * grid.new_tensor([width / size[1], height / size[0]])).float()
    height, width = transform.original_size
    return coarse.transform.to_network(grid * grid.new_tensor([width / size[1], height / size[0]])).float()


def _source(coarse: CoarseView, previous: FineView | None) -> tuple[Float[Tensor, "2 h w"], Float[Tensor, "h w"]]:
    """Return the maps to upsample, with the weight of their pixels."""
    if previous is None:
        return torch.stack([coarse.log_depth, coarse.confidence]), coarse.weight
    return torch.stack([previous.log_depth, previous.confidence]), previous.known.to(previous.log_depth)


def _empty(size: tuple[int, int], like: Tensor | None = None) -> FineView:
    zeros = torch.zeros(size) if like is None else like.new_zeros(size)
    return FineView(log_depth=zeros, confidence=zeros.clone(), known=torch.zeros_like(zeros, dtype=torch.bool))
