"""Guided sub-pixel matching of patches by normalized cross-correlation (NCC) near their predicted positions."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import WarpedPixels, ncc, ray_warp, sample_grid
from page4d.layers.embed import cut_patches
from page4d.layers.execution import in_chunks
from page4d.refinement.view_prediction import center_pixels

RADIUS = 5
"""Search radius in px."""

_FINE_RADIUS = 2
"""Search radius in px around the best shift under an affine map."""

_MIN_VARIANCE = 1e-4
"""Added to variances of brightness in [0, 1]: patches with less texture are not matched."""

_MIN_CORRELATION = 0.5

_MIN_AFFINE_CORRELATION = 0.1
"""Smallest correlation under an affine map at which the pixels' own positions are compared."""

_MIN_CURVATURE = 0.02
"""Of the correlation at its peak, per px^2, in every direction: it vanishes along an edge."""

_MAX_SUBPIXEL_SHIFT = 0.7
"""In px, from the best integer shift to the peak."""

_ZERO_SCORE_CORRELATION = 0.4
"""Typical correlation of wrong matches; the score is 0 there and 1 at a correlation of 1."""

_MIN_DEPTH = 1e-4
_MAX_SAMPLES = 1 << 21
"""Samples at once: some 40 MB."""


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
    None for all. The best integer shift of a patch is that under one affine map of its pixels; around it every pixel
    is warped by its own depth. Brightness is compared by NCC, which is invariant to exposure and contrast; the
    peak is that of a quadratic fit.

    Source: Furukawa & Ponce (2009), "Accurate Camera Calibration from Multi-View Stereo and Bundle Adjustment".
    """
    rays = camera_rays(source_cameras.intrinsics.to(depth), depth.shape[-2:])
    warped = ray_warp(rays, source_cameras, target_cameras).at(depth, _MIN_DEPTH)
    patches = cut_patches(source.mean(dim=2).flatten(0, 1)[..., None], (patch_size,) * 2).flatten(1, 2)
    predicted = _predict(warped, patch_size, target.shape[-2:])
    if chosen is not None:
        chosen = chosen.to(patches.device)
        patches, predicted = patches[:, chosen], _Predicted(*(part[:, chosen] for part in predicted))
    brightness = target.mean(dim=2)[..., None, :, :].flatten(0, 1)
    searched = _first_chosen(predicted.usable)
    peaks = _search(_of_patches(patches, searched), brightness, _of_patches(predicted.pixels, searched))
    placed = _placed(peaks, searched, predicted.usable)
    shift, score = placed[..., :2], placed[..., 2]
    found = predicted.center + shift, score, shift
    return GuidedMatches(*(torch.unflatten(one, 0, depth.shape[:2]) for one in found))


def _predict(warped: WarpedPixels, patch_size: int, size: tuple[int, ...]) -> _Predicted:
    """Cut warped pixels [B, T, H, W] into patches."""
    pixels, depth = warped.pixels.flatten(0, 1), warped.depth.flatten(0, 1)[..., None]
    sides, inner = (patch_size, patch_size), center_pixels(patch_size)
    of_patches = torch.unflatten(cut_patches(pixels, sides).flatten(1, 2), 2, (*sides, 2))
    center = of_patches[:, :, inner, inner].mean(dim=(2, 3))
    in_front = (cut_patches(depth, sides).flatten(1, 2) > _MIN_DEPTH).all(dim=-1)
    inside = (center > 0) & (center < center.new_tensor([size[1], size[0]]))
    return _Predicted(of_patches.flatten(2, 3), center, in_front & inside.all(dim=-1))


def _first_chosen(chosen: Bool[Tensor, "F P"]) -> Int[Tensor, "F Q"]:
    """Return the indices of the chosen patches of every frame, and of others after them, as many for each frame."""
    most = int(chosen.sum(dim=1).amax()) if chosen.numel() else 0
    return chosen.byte().argsort(dim=1, descending=True, stable=True)[:, :most]


def _of_patches(values: Float[Tensor, "F P *_"], index: Int[Tensor, "F Q"]) -> Float[Tensor, "F Q *_"]:
    """Return the values of some patches of every frame."""
    return values[torch.arange(len(index), device=index.device)[:, None], index]


def _placed(
    values: Float[Tensor, "F Q C"], index: Int[Tensor, "F Q"], chosen: Bool[Tensor, "F P"]
) -> Float[Tensor, "F P C"]:
    """Return values of some patches in the order of all, 0 for those that were not chosen."""
    placed = values.new_zeros(*chosen.shape, values.shape[-1])
    frames = torch.arange(len(index), device=index.device)[:, None]
    placed[frames, index] = values * chosen.gather(1, index)[..., None]
    return placed


def _search(
    source: Float[Tensor, "F Q N"], target: Float[Tensor, "F one h w"], predicted: Float[Tensor, "F Q N 2"]
) -> Float[Tensor, "F Q 3"]:
    """Return the shifts (x, y) of patches from predicted positions to peaks of correlation in an image, and scores.

    Under an affine map the target is sampled once per patch and compared by a convolution.
    """
    extent = source.new_tensor([target.shape[-1], target.shape[-2]])
    positions = predicted / extent * 2 - 1  # as sample_grid counts: converting all samples would be another pass

    def of_patches(part: slice) -> Tensor:
        own = source[:, part]
        start, best = _affine_shifts(own, target, predicted[:, part])
        promising = best > _MIN_AFFINE_CORRELATION
        tried = _first_chosen(promising)
        begin = _of_patches(start, tried)
        around = _of_patches(positions[:, part], tried) + (begin / extent * 2)[:, :, None]
        fine = _peak(_correlations(_of_patches(own, tried), target, around, extent))
        shift = begin + fine[..., :2]
        is_within = shift.abs().amax(dim=-1) < RADIUS - 0.5
        return _placed(torch.cat([shift, (fine[..., 2] * is_within)[..., None]], dim=-1), tried, promising)

    frames, count = source.shape[:2]
    if not frames * count:
        return source.new_zeros(frames, count, 3)
    samples = frames * source.shape[-1] * (2 * _FINE_RADIUS + 1) ** 2  # of a patch in all frames
    return in_chunks(of_patches, count, max(1, _MAX_SAMPLES // samples), dim=1)


def _grid(side: int, device: torch.device) -> Float[Tensor, "N 2"]:
    """Return the (x, y) offsets of the pixels of a square from its center, row by row."""
    along = torch.arange(side, dtype=torch.float32, device=device) - (side - 1) / 2
    return torch.stack(torch.meshgrid(along, along, indexing="xy"), dim=-1).flatten(0, 1)


def _affine_shifts(
    source: Float[Tensor, "F Q N"], target: Float[Tensor, "F one h w"], predicted: Float[Tensor, "F Q N 2"]
) -> tuple[Float[Tensor, "F Q 2"], Float[Tensor, "F Q"]]:
    """Return the integer shifts (x, y) with the best correlation, by affine maps of the patches, and correlations."""
    side = round(source.shape[-1] ** 0.5)
    reach, offsets = side + 2 * RADIUS, _grid(side, source.device).to(source)
    slope = predicted.transpose(-1, -2) @ (offsets / offsets[:, 0].square().sum())  # least squares
    places = predicted.mean(dim=2, keepdim=True) + _grid(reach, source.device).to(source) @ slope.transpose(-1, -2)
    extent = source.new_tensor([target.shape[-1], target.shape[-2]])
    window = sample_grid(target, (places / extent).mul_(2).sub_(1))[:, 0].reshape(-1, reach, reach)
    centered = (source - source.mean(dim=-1, keepdim=True)).view(-1, side, side)
    # One convolution per patch: a group of one channel each.
    covariance = functional.conv2d(window[None], centered[:, None] / side**2, groups=len(window))[0]
    place = torch.arange(reach, device=source.device)
    start = place[: 2 * RADIUS + 1, None]
    box = ((place >= start) & (place < start + side)).to(source) / side  # means over the patch at every shift
    mean, power = (box @ one @ box.T for one in (window, window.square()))
    variance = centered.square().mean(dim=(1, 2))[:, None, None]
    best, index = ncc(covariance, variance, power - mean.square(), _MIN_VARIANCE).flatten(1).max(dim=1)
    shift = _grid(2 * RADIUS + 1, source.device).to(source)[index].view(*source.shape[:2], 2)  # in px of the source
    return (slope @ shift[..., None])[..., 0].round(), best.view(source.shape[:2])


def _correlations(
    source: Float[Tensor, "F Q N"],
    target: Float[Tensor, "F one h w"],
    positions: Float[Tensor, "F Q N 2"],
    extent: Tensor,
) -> Float[Tensor, "F Q K K"]:
    """Return the NCC of patches at positions on the scale of `sample_grid`, with small shifts added."""
    steps, count = 2 * _FINE_RADIUS + 1, source.shape[-1]
    shifts = _grid(steps, source.device).to(source) / extent * 2
    centered = source - source.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    moments = torch.stack([centered, torch.ones_like(centered)], dim=-1) / count  # F Q N 2
    sampled = sample_grid(target, positions[:, :, None] + shifts[:, None])[:, 0]  # F Q K N
    covariance, mean = (sampled @ moments).unbind(dim=-1)
    power = torch.linalg.vector_norm(sampled, dim=-1).square() / count
    correlation = ncc(covariance, variance, power - mean.square(), _MIN_VARIANCE)
    return correlation.view(*source.shape[:2], steps, steps)


def _peak(correlation: Float[Tensor, "*patches K K"]) -> Float[Tensor, "*patches 3"]:
    """Return the shift (x, y) from the middle to the peak of a quadratic fit, and its score."""
    steps = correlation.shape[-1]
    best = correlation.flatten(-2).argmax(dim=-1)
    row, column = best // steps, best % steps
    inner = (row > 0) & (row < steps - 1) & (column > 0) & (column < steps - 1)
    row, column = row.clamp(1, steps - 2), column.clamp(1, steps - 2)

    def at(down: int, right: int) -> Tensor:
        place = (row + down) * steps + column + right
        return correlation.flatten(-2).gather(-1, place[..., None])[..., 0]

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
    return torch.stack([column - steps // 2 + x, row - steps // 2 + y, score], dim=-1)
