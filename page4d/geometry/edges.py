"""Edges of depth maps and of surfaces, by which the public Pi3 code finds pixels that float between two surfaces."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

_LEAST_LENGTH = 1e-12


def depth_edges(
    depth: Float[Tensor, "*batch H W"], relative_step: float, valid: Bool[Tensor, "*batch H W"] | None = None
) -> Bool[Tensor, "*batch H W"]:
    """Return True where depths differ by more than `relative_step` of a pixel's own, among it and its 8 neighbours.

    Pixels that are not `valid` do not count as neighbours.

    Source: the edge mask of the public Pi3 code, with a step of 0.03 (reference facts).
    """
    nothing = torch.full_like(depth, -torch.inf)
    farthest = _most_around(depth if valid is None else torch.where(valid, depth, nothing))
    nearest = -_most_around(-depth if valid is None else torch.where(valid, -depth, nothing))
    edges: Tensor = ((farthest - nearest) / depth).nan_to_num() > relative_step
    return edges


def normal_edges(
    points: Float[Tensor, "*batch H W 3"], angle_deg: float, valid: Bool[Tensor, "*batch H W"]
) -> Bool[Tensor, "*batch H W"]:
    """Return True within a pixel of where the surface turns by more than `angle_deg` between neighbours.

    Pixels without a normal, such as those that are not `valid`, are no edge and make none.

    Source: the edge mask of the public Pi3 code, with 5 degrees (reference facts).
    """
    normals, known = surface_normals(points, valid)
    height, width = known.shape[-2:]
    around = functional.pad(normals, (0, 0, 1, 1, 1, 1))
    turned = torch.zeros_like(known)
    for row in range(3):
        for column in range(3):
            other = around[..., row : row + height, column : column + width, :]
            is_known = other.any(dim=-1)
            turned |= is_known & ((normals * other).sum(-1) < math.cos(math.radians(angle_deg)))
    return known & (_most_around((turned & known).to(points.dtype)) > 0)


def surface_normals(
    points: Float[Tensor, "*batch H W 3"], valid: Bool[Tensor, "*batch H W"]
) -> tuple[Float[Tensor, "*batch H W 3"], Bool[Tensor, "*batch H W"]]:
    """Return the mean normal of the triangles that a pixel spans with its neighbours, and where there is one.

    A triangle has one neighbour of the same row and one of the same column, all valid. The normals of a surface that
    is seen point towards the camera; where there is none it is zero.
    """
    padded, there = functional.pad(points, (0, 0, 1, 1, 1, 1)), functional.pad(valid, (1, 1, 1, 1))
    before, here, after = slice(0, -2), slice(1, -1), slice(2, None)
    around = [(before, here), (here, before), (after, here), (here, after)]  # above, left, below, right
    total, known = torch.zeros_like(points), torch.zeros_like(valid)
    for first, second in zip(around, around[1:] + around[:1], strict=True):
        normal = torch.linalg.cross(padded[..., *first, :] - points, padded[..., *second, :] - points)
        spans = valid & there[..., *first] & there[..., *second]
        total = total + torch.where(spans[..., None], functional.normalize(normal, dim=-1, eps=_LEAST_LENGTH), 0.0)
        known = known | spans
    return functional.normalize(total, dim=-1, eps=_LEAST_LENGTH), known


def _most_around(values: Float[Tensor, "*batch H W"]) -> Float[Tensor, "*batch H W"]:
    """Return the largest value among every pixel and its 8 neighbours."""
    flat = values.reshape(-1, 1, *values.shape[-2:])
    return functional.max_pool2d(flat, kernel_size=3, stride=1, padding=1).reshape(values.shape)
