"""Depth and normal edges: the filter of flying pixels of the public Pi3 code."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

_MIN_LENGTH = 1e-12


def depth_edges(
    depth: Float[Tensor, "*batch H W"], relative_step: float, valid: Bool[Tensor, "*batch H W"] | None = None
) -> Bool[Tensor, "*batch H W"]:
    """Return True where the depth range of the 3x3 neighbourhood exceeds `relative_step` of the pixel's depth.

    Neighbours that are not `valid` are ignored.

    Source: the edge mask of the public Pi3 code, with a step of 0.03 (reference facts).
    """
    ignored = torch.full_like(depth, -torch.inf)
    farthest = _max_3x3(depth if valid is None else torch.where(valid, depth, ignored))
    nearest = -_max_3x3(-depth if valid is None else torch.where(valid, -depth, ignored))
    edges: Tensor = ((farthest - nearest) / depth).nan_to_num() > relative_step
    return edges


def normal_edges(
    points: Float[Tensor, "*batch H W 3"], angle_deg: float, valid: Bool[Tensor, "*batch H W"]
) -> Bool[Tensor, "*batch H W"]:
    """Return True within one pixel of neighbours whose surface normals differ by more than `angle_deg`.

    Pixels without a normal, such as those that are not `valid`, are neither edges nor compared.

    Source: the edge mask of the public Pi3 code, with 5 degrees (reference facts).
    """
    normals, known = surface_normals(points, valid)
    height, width = known.shape[-2:]
    padded = functional.pad(normals, (0, 0, 1, 1, 1, 1))
    bent = torch.zeros_like(known)
    for row in range(3):
        for column in range(3):
            other = padded[..., row : row + height, column : column + width, :]
            is_known = other.any(dim=-1)
            bent |= is_known & ((normals * other).sum(-1) < math.cos(math.radians(angle_deg)))
    return known & (_max_3x3((bent & known).to(points.dtype)) > 0)


def surface_normals(
    points: Float[Tensor, "*batch H W 3"], valid: Bool[Tensor, "*batch H W"]
) -> tuple[Float[Tensor, "*batch H W 3"], Bool[Tensor, "*batch H W"]]:
    """Return unit normals and a mask of the pixels that have one; normals elsewhere are zero.

    The normal is the mean over the triangles of a pixel with one valid neighbour in its row and one in its column.
    Normals of visible surfaces point towards the camera.
    """
    padded, padded_valid = functional.pad(points, (0, 0, 1, 1, 1, 1)), functional.pad(valid, (1, 1, 1, 1))
    before, here, after = slice(0, -2), slice(1, -1), slice(2, None)
    around = [(before, here), (here, before), (after, here), (here, after)]  # above, left, below, right
    total, known = torch.zeros_like(points), torch.zeros_like(valid)
    for first, second in zip(around, around[1:] + around[:1], strict=True):
        normal = torch.linalg.cross(padded[..., *first, :] - points, padded[..., *second, :] - points)
        spans = valid & padded_valid[..., *first] & padded_valid[..., *second]
        total = total + torch.where(spans[..., None], functional.normalize(normal, dim=-1, eps=_MIN_LENGTH), 0.0)
        known = known | spans
    return functional.normalize(total, dim=-1, eps=_MIN_LENGTH), known


def _max_3x3(values: Float[Tensor, "*batch H W"]) -> Float[Tensor, "*batch H W"]:
    """Return the maximum over the 3x3 neighbourhood of every pixel."""
    flat = values.reshape(-1, 1, *values.shape[-2:])
    return functional.max_pool2d(flat, kernel_size=3, stride=1, padding=1).reshape(values.shape)
