"""Guided sub-pixel matching of patches by normalized cross-correlation (NCC) near their predicted positions."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import WarpedPixels, ncc, pixel_extent, ray_warp, sample_grid
from page4d.layers.embed import cut_patches
from page4d.layers.execution import in_chunks
from page4d.refinement.view_prediction import center_pixels

RADIUS = 5
"""Search radius in px."""

_MIN_VARIANCE = 1e-4
"""Added to variances of brightness in [0, 1]: patches with less texture are not matched."""

_MIN_CORRELATION = 0.5
_MIN_CURVATURE = 0.02
"""Of the correlation at its peak, per px^2, in every direction: it vanishes along an edge."""

_MAX_SUBPIXEL_SHIFT = 0.7
"""In px, from the best integer shift to the peak."""

_ZERO_SCORE_CORRELATION = 0.4
"""Typical correlation of wrong matches; the score is 0 there and 1 at a correlation of 1."""

_MIN_DEPTH = 1e-4
_MAX_SAMPLES = 1 << 21
"""Pixels that are compared at once: some 50 MB."""


class GuidedMatches(NamedTuple):
    """Positions of patch centers in another image in px, and scores in [0, 1]; 0 where no match was found.

    `shift` is the difference of the position from the predicted one.
    """

    positions: Float[Tensor, "B T P 2"]
    score: Float[Tensor, "B T P"]
    shift: Float[Tensor, "B T P 2"]


class _Predicted(NamedTuple):
    """Predicted positions of the N pixels of patches and of their centers; `usable` if the center is visible."""

    pixels: Float[Tensor, "F P N 2"]
    center: Float[Tensor, "F P 2"]
    usable: Bool[Tensor, "F P"]


@torch.no_grad()
def match_guided(
    source: Float[Tensor, "B T 3 H W"],
    target: Float[Tensor, "B T 3 h w"],
    source_cameras: Cameras,
    target_cameras: Cameras,
    depth: Float[Tensor, "B T H W"],
    patch_size: int,
    chosen: Int[Tensor, " P"] | None = None,
) -> GuidedMatches:
    """Search the patches of the source images in the target images near the positions that depth predicts.

    Cameras are [B, T], in the unit of depth; images are in [0, 1]. `chosen` are the indices of the patches to search,
    None for all. Every pixel of a patch is warped by its own depth,
    then all of them are shifted together. Brightness is compared by NCC, which is invariant to exposure and contrast;
    the peak is found by a quadratic fit.

    Source: Furukawa & Ponce (2009), "Accurate Camera Calibration from Multi-View Stereo and Bundle Adjustment".
    """
    rays = camera_rays(source_cameras.intrinsics.to(depth.device), depth.shape[-2:])
    warped = ray_warp(rays, source_cameras, target_cameras).at(depth.to(rays), _MIN_DEPTH)
    patches = cut_patches(source.mean(dim=2).flatten(0, 1)[..., None], (patch_size,) * 2).flatten(1, 2)
    predicted = _predict(warped, patch_size, target.shape[-2:])
    if chosen is not None:
        patches, predicted = patches[:, chosen], _Predicted(*(part[:, chosen] for part in predicted))
    shift, score = _search(patches, target.mean(dim=2).flatten(0, 1), predicted)
    found = predicted.center + shift, torch.where(predicted.usable, score, 0), shift
    return GuidedMatches(*(torch.unflatten(one, 0, depth.shape[:2]) for one in found))


def _predict(warped: WarpedPixels, patch_size: int, size: Sequence[int]) -> _Predicted:
    """Cut warped pixels [B, T, H, W] into patches."""
    pixels = warped.pixels.flatten(0, 1).float()
    depth = warped.depth.flatten(0, 1)[..., None]
    sides, inner = (patch_size, patch_size), center_pixels(patch_size)
    of_patches = torch.unflatten(cut_patches(pixels, sides).flatten(1, 2), 2, (*sides, 2))
    center = of_patches[:, :, inner, inner].mean(dim=(2, 3))
    in_front = (cut_patches(depth, sides).flatten(1, 2) > _MIN_DEPTH).all(dim=-1)
    inside = (center > 0) & (center < center.new_tensor([size[1], size[0]]))
    return _Predicted(of_patches.flatten(2, 3), center, in_front & inside.all(dim=-1))


def _search(
    source: Float[Tensor, "F P N"], target: Float[Tensor, "F h w"], predicted: _Predicted
) -> tuple[Float[Tensor, "F P 2"], Float[Tensor, "F P"]]:
    """Return the shifts from the predicted positions to the peaks of correlation, and their scores."""
    steps = torch.arange(-RADIUS, RADIUS + 1, device=source.device, dtype=source.dtype)
    shifts = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).flatten(0, 1)  # K 2
    size, count = pixel_extent(target), source.shape[-1]
    # Shifts are added on sample_grid's scale: converting their sum would be another pass over all samples.
    positions, offsets = predicted.pixels / size * 2 - 1, shifts / size * 2
    centered = source - source.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    moments = torch.stack([centered, torch.ones_like(centered)], dim=-1) / count  # F P N 2

    def of_patches(part: slice) -> Tensor:
        sampled = sample_grid(target[:, None], positions[:, part, None] + offsets[:, None])[:, 0]  # F P K N
        covariance, mean = (sampled @ moments[:, part]).unbind(dim=-1)
        power = torch.linalg.vector_norm(sampled, dim=-1).square() / count
        correlation = ncc(covariance, variance[:, part], power - mean.square(), _MIN_VARIANCE)
        return _peak(torch.unflatten(correlation, -1, (len(steps), len(steps))))

    at_once = max(1, _MAX_SAMPLES // (source.shape[0] * source.shape[-1] * len(shifts)))
    peaks = in_chunks(of_patches, source.shape[1], at_once, dim=1)
    return peaks[..., :2], peaks[..., 2]


def _peak(correlation: Float[Tensor, "F P K K"]) -> Float[Tensor, "F P 3"]:
    """Return the shift (x, y) from the middle to the peak of a quadratic fit, and its score."""
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
    curvature = (across + down) / 2 - ((across - down).square() / 4 + skew.square()).sqrt()
    distinct = inner & (peak > _MIN_CORRELATION) & (curvature > _MIN_CURVATURE)
    by_x, by_y = (right - left) / 2, (below - above) / 2
    determinant = torch.where(distinct, across * down - skew.square(), 1)
    x = ((down * by_x - skew * by_y) / determinant).clamp(-_MAX_SUBPIXEL_SHIFT, _MAX_SUBPIXEL_SHIFT)
    y = ((across * by_y - skew * by_x) / determinant).clamp(-_MAX_SUBPIXEL_SHIFT, _MAX_SUBPIXEL_SHIFT)
    score = torch.where(distinct, (peak - _ZERO_SCORE_CORRELATION) / (1 - _ZERO_SCORE_CORRELATION), 0)
    return torch.stack([column - RADIUS + x, row - RADIUS + y, score], dim=-1)
