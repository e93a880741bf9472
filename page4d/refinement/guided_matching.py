"""Matches to a fraction of a pixel: patches that look alike near where cameras and depth show them."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, unproject
from page4d.geometry.rigid import transform_points
from page4d.layers.chunks import in_chunks
from page4d.layers.embed import cut_patches
from page4d.refinement.matched_view import inner_pixels

_REACH = 5
"""In px: how far from where it is expected a patch is looked for, to each side."""

_LEAST_VARIANCE = 1e-4
"""Of brightness from 0 to 1: what varies less is flat, and flat things all look alike."""

_LEAST_CORRELATION = 0.5
"""Patches that correlate less are not the same."""

_LEAST_CURVATURE = 0.02
"""Of the correlation at its peak, per px^2, in every direction: along an edge it stays the same."""

_FURTHEST = 0.7
"""In px: where the peak can be from the highest of the places that are tried."""

_UNLIKE = 0.4
"""Correlation of patches that show different things: what exceeds it says how sure a find is."""

_LEAST_DISTANCE = 1e-4
_AT_ONCE = 1 << 21
"""Pixels that are compared together: some 50 MB."""


class CloseMatches(NamedTuple):
    """Where the middles of patches are found in another image, in px, and how sure that is, from 0 to 1.

    It is 0 where nothing that looks alike was found close by.
    """

    found: Float[Tensor, "B T P 2"]
    sure: Float[Tensor, "B T P"]


class _Expected(NamedTuple):
    """Where the N pixels of patches, and their middles, are expected in another image; `usable` if they are in it."""

    pixels: Float[Tensor, "F P N 2"]
    middle: Float[Tensor, "F P 2"]
    usable: Bool[Tensor, "F P"]


@torch.no_grad()
def match_closely(
    mine: Float[Tensor, "B T 3 H W"],
    theirs: Float[Tensor, "B T 3 h w"],
    own: Cameras,
    other: Cameras,
    depth: Float[Tensor, "B T H W"],
    patch_size: int,
) -> CloseMatches:
    """Look for the patches of images in others, close to where they should be.

    Cameras are [B, T], with the unit of depth; images are from 0 to 1. Every pixel of a patch is carried over by its
    own depth, and all of them are shifted together. They are compared by the correlation of their brightness, so that
    exposure and contrast may differ; the peak is that of a paraboloid.

    Source: Furukawa & Ponce (2009), "Accurate Camera Calibration from Multi-View Stereo and Bundle Adjustment", for
    matches that are made better where a first reconstruction shows them, and then make cameras better.
    """
    points = unproject(depth.double(), own.intrinsics.to(depth.device))
    between = other.world_to_camera @ own.camera_to_world
    patches = cut_patches(mine.mean(dim=2).flatten(0, 1)[..., None], (patch_size,) * 2).flatten(1, 2)
    expected = _expected(points, between, other.intrinsics, patch_size, theirs.shape[-2:])
    shift, alike = _compared(patches, theirs.mean(dim=2).flatten(0, 1), expected)
    sure = torch.where(expected.usable, alike, 0)
    return CloseMatches(*(torch.unflatten(one, 0, depth.shape[:2]) for one in (expected.middle + shift, sure)))


def _expected(
    points: Float[Tensor, "B T H W 3"],
    between: Float[Tensor, "B T 4 4"],
    intrinsics: Float[Tensor, "B T 3 3"],
    patch_size: int,
    size: tuple[int, ...],
) -> _Expected:
    """Project all pixels into another image of this size."""
    seen = transform_points(between.to(points), points) @ intrinsics.to(points).transpose(-1, -2)[:, :, None]
    distance = seen[..., 2:]
    pixels = (seen[..., :2] / distance.clamp(min=_LEAST_DISTANCE)).flatten(0, 1).float()
    sides, inner = (patch_size, patch_size), inner_pixels(patch_size)
    of_patches = torch.unflatten(cut_patches(pixels, sides).flatten(1, 2), 2, (*sides, 2))
    middle = of_patches[:, :, inner, inner].mean(dim=(2, 3))
    in_front = (cut_patches(distance.flatten(0, 1), sides).flatten(1, 2) > _LEAST_DISTANCE).all(dim=-1)
    inside = (middle > 0) & (middle < middle.new_tensor([size[1], size[0]]))
    return _Expected(of_patches.flatten(2, 3), middle, in_front & inside.all(dim=-1))


def _compared(
    mine: Float[Tensor, "F P N"], theirs: Float[Tensor, "F h w"], expected: _Expected
) -> tuple[Float[Tensor, "F P 2"], Float[Tensor, "F P"]]:
    """Return how far from where they are expected patches are found, and how sure that is."""
    steps = torch.arange(-_REACH, _REACH + 1, device=mine.device, dtype=mine.dtype)
    shifts = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).flatten(0, 1)  # K 2
    size, count = mine.new_tensor([theirs.shape[-1], theirs.shape[-2]]), mine.shape[-1]
    expected_there, steps_there = expected.pixels / size * 2 - 1, shifts / size * 2  # as grid_sample counts
    own = mine - mine.mean(dim=-1, keepdim=True)
    variance = own.square().mean(dim=-1, keepdim=True)
    told = torch.stack([own, torch.ones_like(own)], dim=-1) / count  # F P N 2

    def of_patches(part: slice) -> Tensor:
        places = expected_there[:, part, None] + steps_there[:, None]  # F P K N 2
        there = functional.grid_sample(
            theirs[:, None], places.flatten(1, 2), padding_mode="border", align_corners=False
        ).reshape(places.shape[:-1])
        shared, mean = (there @ told[:, part]).unbind(dim=-1)
        their_variance = (torch.linalg.vector_norm(there, dim=-1).square() / count - mean.square()).clamp(min=0)
        spread = (variance[:, part] + _LEAST_VARIANCE) * (their_variance + _LEAST_VARIANCE)
        return _peak(torch.unflatten(shared / spread.sqrt(), -1, (len(steps), len(steps))))

    at_once = max(1, _AT_ONCE // (mine.shape[0] * mine.shape[-1] * len(shifts)))
    peaks = in_chunks(of_patches, mine.shape[1], at_once, dim=1)
    return peaks[..., :2], peaks[..., 2]


def _peak(correlation: Float[Tensor, "F P K K"]) -> Float[Tensor, "F P 3"]:
    """Return the shift (x, y) of the highest correlation from the middle, and how sure it is."""
    steps = correlation.shape[-1]
    best = correlation.flatten(2).argmax(dim=-1)
    row, column = best // steps, best % steps
    inner = (row > 0) & (row < steps - 1) & (column > 0) & (column < steps - 1)
    row, column = row.clamp(1, steps - 2), column.clamp(1, steps - 2)

    def at(down: int, right: int) -> Tensor:
        place = (row + down) * steps + column + right
        return correlation.flatten(2).gather(-1, place[..., None])[..., 0]

    peak, left, right, above, below = at(0, 0), at(0, -1), at(0, 1), at(-1, 0), at(1, 0)
    across, down = 2 * peak - left - right, 2 * peak - above - below
    skew = (at(1, -1) + at(-1, 1) - at(1, 1) - at(-1, -1)) / 4
    least = (across + down) / 2 - ((across - down).square() / 4 + skew.square()).sqrt()
    clear = inner & (peak > _LEAST_CORRELATION) & (least > _LEAST_CURVATURE)
    # The peak of the paraboloid through these: there its slopes, which are known in the middle, have become 0.
    by_x, by_y = (right - left) / 2, (below - above) / 2
    size = torch.where(clear, across * down - skew.square(), 1)
    x = ((down * by_x - skew * by_y) / size).clamp(-_FURTHEST, _FURTHEST)
    y = ((across * by_y - skew * by_x) / size).clamp(-_FURTHEST, _FURTHEST)
    sure = torch.where(clear, (peak - _UNLIKE) / (1 - _UNLIKE), 0)
    return torch.stack([column - _REACH + x, row - _REACH + y, sure], dim=-1)
