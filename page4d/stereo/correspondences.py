"""Correspondences of patches: the network's matches, and guided sub-pixel matches by cross-correlation (NCC).

Guided matches lie near the positions that cameras and depth predict; where there are none, earlier correspondences
stay.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, camera_rays, resize_intrinsics
from page4d.geometry.warp import WarpedPixels, ncc, pixel_extent, ray_warp, sample_grid
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.matching import to_pixels
from page4d.networks.layers.execution import in_chunks, numbers_at_once
from page4d.stereo.bundle_adjustment import Correspondences
from page4d.stereo.views import (
    ViewPrediction,
    center_pixels,
    neighbour_views,
    pad_patches,
    stack_views,
    target_indices,
)

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
_MAX_SAMPLES = 1 << 20
"""Samples at once: some 20 MB."""


class GuidedMatches(NamedTuple):
    """Positions of patch centers in another image in px, and scores in [0, 1]; 0 where no match was found.

    `shift` is the difference of the position from the predicted one.
    """

    positions: Float[Tensor, "B T P 2"]
    score: Float[Tensor, "B T P"]
    shift: Float[Tensor, "B T P 2"]


class _Windows(NamedTuple):
    """Brightness of the N pixels of every window, and their predicted positions in the target, coordinates first.

    `center` are the positions of the centers of patches; windows are `usable` if their center is visible.
    """

    brightness: Float[Tensor, "F P N"]
    positions: Float[Tensor, "2 F P N"]
    center: Float[Tensor, "2 F P"]
    usable: Bool[Tensor, "F P"]

    def of_patches(self, index: Int[Tensor, " Q"]) -> "_Windows":
        """Return the windows of some patches, the same of every frame."""
        return _Windows(
            self.brightness[:, index], self.positions[:, :, index], self.center[:, :, index], self.usable[:, index]
        )


@torch.no_grad()
def match_guided(
    source: Float[Tensor, "B T C H W"],
    target: Float[Tensor, "B T C h w"],
    source_cameras: Cameras,
    target_cameras: Cameras,
    depth: Float[Tensor, "B T H W"],
    patch_size: int,
    margin: int = 0,
    chosen: Int[Tensor, " P"] | None = None,
) -> GuidedMatches:
    """Search the patches of the source images in the target images near the positions that depth predicts.

    Cameras are [B, T], in the unit of depth; images are in [0, 1]. Windows are the patches with `margin` px on every
    side. `chosen` are the indices of the patches to search, None for all. The best integer shift of a patch is that
    under one affine map of its pixels; around it every pixel is warped by its own depth. Brightness is compared by
    NCC, which is invariant to exposure and contrast; the peak is that of a quadratic fit.

    Source: Furukawa & Ponce (2009), "Accurate Camera Calibration from Multi-View Stereo and Bundle Adjustment".
    """
    rays = camera_rays(source_cameras.intrinsics.to(depth), depth.shape[-2:])
    warped = ray_warp(rays, source_cameras, target_cameras).at(depth, _MIN_DEPTH)
    windows = _cut_windows(source.mean(dim=2), warped, patch_size, margin, target.shape[-2:])
    if chosen is not None:
        windows = windows.of_patches(chosen.to(depth.device))
    searched = first_chosen(windows.usable)
    brightness = _of_patches(windows.brightness[None], searched)[0]
    positions = _of_patches(windows.positions, searched)
    peaks = _search(brightness, target.mean(dim=2)[..., None, :, :].flatten(0, 1), positions)
    placed = _placed(peaks, searched, windows.usable)
    shift, score = placed[:2], placed[2]
    found = (windows.center + shift).movedim(0, -1), score, shift.movedim(0, -1)
    return GuidedMatches(*(torch.unflatten(one, 0, depth.shape[:2]) for one in found))


def _cut_windows(
    brightness: Float[Tensor, "B T H W"], warped: WarpedPixels, patch_size: int, margin: int, size: tuple[int, ...]
) -> _Windows:
    """Return the windows of patches, with positions [B, T, H, W] in a target of (height, width)."""
    pixels, ahead = warped.pixels.flatten(0, 1).movedim(-1, 0), warped.depth.flatten(0, 1)
    side = patch_size + 2 * margin
    wide = functional.pad(
        torch.cat([brightness.flatten(0, 1)[None], pixels, ahead[None]]), (margin,) * 4, "replicate"
    )
    windows = wide.unfold(2, side, patch_size).unfold(3, side, patch_size)  # 4 F rows columns side side
    inner = center_pixels(side)
    center = windows[1:3, ..., inner, inner].mean(dim=(-2, -1)).flatten(2)
    inside = (center > 0) & (center < center.new_tensor([size[1], size[0]])[:, None, None])
    pixels_last = windows.flatten(4).flatten(2, 3)
    in_front = (pixels_last[3] > _MIN_DEPTH).all(dim=-1)
    return _Windows(pixels_last[0], pixels_last[1:3], center, in_front & inside.all(dim=0))


def first_chosen(chosen: Bool[Tensor, "F P"]) -> Int[Tensor, "F Q"]:
    """Return the indices of the chosen patches of every frame, and of others after them, as many for each frame."""
    most = int(chosen.sum(dim=1).amax()) if chosen.numel() else 0
    return chosen.byte().argsort(dim=1, descending=True, stable=True)[:, :most]


def _of_patches(values: Float[Tensor, "C F P *_"], index: Int[Tensor, "F Q"]) -> Float[Tensor, "C F Q *_"]:
    """Return the values of some patches of every frame."""
    return values[:, torch.arange(len(index), device=index.device)[:, None], index]


def _placed(
    values: Float[Tensor, "C F Q"], index: Int[Tensor, "F Q"], chosen: Bool[Tensor, "F P"]
) -> Float[Tensor, "C F P"]:
    """Return values of some patches in the order of all, 0 for those that were not chosen."""
    placed = values.new_zeros(len(values), *chosen.shape)
    placed[:, torch.arange(len(index), device=index.device)[:, None], index] = values * chosen.gather(1, index)
    return placed


def _search(
    source: Float[Tensor, "F Q N"], target: Float[Tensor, "F one h w"], predicted: Float[Tensor, "2 F Q N"]
) -> Float[Tensor, "3 F Q"]:
    """Return the shifts (x, y) of patches from predicted positions to peaks of correlation in an image, and scores.

    Under an affine map the target is sampled once per patch and compared by a convolution.
    """
    # Positions as `sample_grid` counts: converting all samples would be another pass.
    per_px = (2 / pixel_extent(target))[:, None, None]
    positions = predicted * per_px[..., None] - 1

    def of_patches(part: slice) -> Tensor:
        own, around = source[:, part], positions[:, :, part]
        start, best = _affine_shifts(own, target, around)
        promising = best > _MIN_AFFINE_CORRELATION
        tried = first_chosen(promising)
        begin = _of_patches(start, tried)
        around = _of_patches(around, tried) + (begin * per_px)[..., None]
        fine = _peak(_correlations(_of_patches(own[None], tried)[0], target, around))
        shift = begin + fine[:2]
        is_within = shift.abs().amax(dim=0) < RADIUS - 0.5
        return _placed(torch.cat([shift, (fine[2] * is_within)[None]]), tried, promising)

    frames, count = source.shape[:2]
    if not frames * count:
        return source.new_zeros(3, frames, count)
    samples = frames * source.shape[-1] * (2 * _FINE_RADIUS + 1) ** 2  # of a patch in all frames
    at_once = numbers_at_once(_MAX_SAMPLES, source.device) // samples
    return in_chunks(of_patches, count, max(1, at_once), dim=2)


def _grid(side: int, like: Tensor) -> Float[Tensor, "2 N"]:
    """Return the offsets x and y of the pixels of a square from its center, row by row."""
    along = torch.arange(side, dtype=like.dtype, device=like.device) - (side - 1) / 2
    return torch.stack(torch.meshgrid(along, along, indexing="xy")).flatten(1)


def _affine_shifts(
    source: Float[Tensor, "F Q N"], target: Float[Tensor, "F one h w"], positions: Float[Tensor, "2 F Q N"]
) -> tuple[Float[Tensor, "2 F Q"], Float[Tensor, "F Q"]]:
    """Return the integer shifts (x, y) with the best correlation, by affine maps of the patches, and correlations."""
    side = round(source.shape[-1] ** 0.5)
    reach, offsets = side + 2 * RADIUS, _grid(side, source)
    slope = positions @ (offsets / offsets[0].square().sum()).T  # least squares
    center = positions.mean(dim=-1)
    places = torch.addmm(center.flatten()[:, None], slope.flatten(0, 2), _grid(reach, source))
    window = sample_grid(target, places.view(*center.shape, -1).movedim(0, -1)).reshape(-1, reach, reach)
    centered = (source - source.mean(dim=-1, keepdim=True)).view(-1, side, side)
    # One convolution per patch: a group of one channel each.
    covariance = functional.conv2d(window[None], centered[:, None] / side**2, groups=len(window))[0]
    place = torch.arange(reach, device=source.device)
    start = place[: 2 * RADIUS + 1, None]
    box = ((place >= start) & (place < start + side)).to(source) / side  # means over the patch at every shift
    mean, power = (box @ one @ box.T for one in (window, window.square()))
    variance = centered.square().mean(dim=(1, 2))[:, None, None]
    best, index = ncc(covariance, variance, power - mean.square(), _MIN_VARIANCE).flatten(1).max(dim=1)
    shift = _grid(2 * RADIUS + 1, source).T[index].view(*source.shape[:2], 2)  # in px of the source
    moved = (slope * shift).sum(dim=-1) * pixel_extent(target)[:, None, None] / 2
    return moved.round(), best.view(source.shape[:2])


def _correlations(
    source: Float[Tensor, "F Q N"], target: Float[Tensor, "F one h w"], positions: Float[Tensor, "2 F Q N"]
) -> Float[Tensor, "F Q K K"]:
    """Return the NCC of patches at positions on the scale of `sample_grid`, with small shifts added."""
    steps, count = 2 * _FINE_RADIUS + 1, source.shape[-1]
    shifts = _grid(steps, source) * (2 / pixel_extent(target))[:, None]
    places = positions.new_empty(*positions.shape[:3], steps**2, count)
    for place, position, shift in zip(places, positions, shifts, strict=True):
        torch.add(position[:, :, None], shift[:, None], out=place)
    sampled = sample_grid(target, places.movedim(0, -1))[:, 0]  # F Q K N
    centered = source - source.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    moments = torch.stack([centered, torch.ones_like(centered)], dim=2) / count  # F Q 2 N
    covariance, mean = (moments @ sampled.transpose(-1, -2)).unbind(dim=2)
    power = torch.linalg.vector_norm(sampled, dim=-1).square() / count
    correlation = ncc(covariance, variance, power - mean.square(), _MIN_VARIANCE)
    return correlation.view(*source.shape[:2], steps, steps)


def _peak(correlation: Float[Tensor, "F Q K K"]) -> Float[Tensor, "3 F Q"]:
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
    return torch.stack([column - steps // 2 + x, row - steps // 2 + y, score])


_CONFIDENCE_POWER = 1.5
"""Weight of a match as a power of its confidence: matches of low confidence are less accurate."""

_GUIDED_WEIGHT = 8.0
"""Maximum weight of a guided match, in units of that of a network match of confidence 1."""


class _Slot(NamedTuple):
    """Correspondences of one view's patches with one target image per instant."""

    targets: Int[Tensor, " T"]
    positions: Float[Tensor, "B T P 2"]
    weight: Float[Tensor, "B T P"]


def network_correspondences(views: Sequence[ViewPrediction], num_times: int, sigma_px: float) -> Correspondences:
    """Return the network's matches; a match of confidence 1 has a standard deviation of `sigma_px`."""
    targets = target_indices(views[0].matches.targets, num_times, len(views))
    pixels, positions, weight = [], [], []
    for place, view in enumerate(views):
        matches = view.matches
        expected, confidence = matches.expected[:, :, 0].double(), matches.confidence[:, :, 0].double()
        pixels.append(view.patch_centers.expand(len(expected), num_times, -1, 2))
        of_targets, weights = [], []
        for index, target in enumerate(matches.targets):
            other = views[int(targets[0, place, index]) % len(views)]
            of_targets.append(to_pixels(expected[:, :, index], other.grid, other.patch_size))
            weights.append(confidence[:, :, index] ** _CONFIDENCE_POWER * view.static_probability(target))
        positions.append(torch.stack(of_targets, dim=2))
        weight.append(torch.stack(weights, dim=2))
    return Correspondences(
        pixels=stack_views(pixels, dim=-2),
        targets=targets.flatten(0, 1),
        positions=stack_views(positions, dim=-2),
        weight=stack_views(weight, fill=0.0),
        sigma_px=sigma_px,
    )


def guided_correspondences(
    correspondences: Correspondences,
    views: Sequence[ViewPrediction],
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "B T _ _"]],
    reduction: int = 1,
    patches: Int[Tensor, "N P"] | None = None,
) -> Correspondences:
    """Replace correspondences between views of one instant by guided matches where these were found.

    `cameras` are [B, T, V], in the unit of depth. Images are compared at 1 / `reduction` of their size, over windows
    of about as many pixels: reach and windows are wider by this factor. Patches whose size is not divisible by it are
    compared at full size. The first slots are neighbouring views at the same instant, matched by the network or not,
    the last those of other instants, unchanged. A single view is searched in these, for what does not move.
    `patches` are the indices of those of the correspondences, the same at every instant; None: all.
    """
    num_times, num_views, num_patches = depth[0].shape[1], len(views), correspondences.positions.shape[-2]
    reduction = reduction if all(view.patch_size % reduction == 0 for view in views) else 1
    images = [_reduced(image.mean(dim=2, keepdim=True), reduction) for image in images]
    depth = [_reduced(one[:, :, None], reduction)[:, :, 0] for one in depth]
    cameras = replace(
        cameras,
        intrinsics=resize_intrinsics(cameras.intrinsics, 1 / reduction, 1 / reduction),
        image_size=(cameras.image_size[0] // reduction, cameras.image_size[1] // reduction),
    )
    instants, slots = torch.arange(num_times) * num_views, []
    for place, view in enumerate(views):
        side = view.patch_size // reduction
        margin = (view.patch_size - side) // 2
        chosen = None if patches is None else patches[place][patches[place] < view.grid[0] * view.grid[1]]
        before, guided = _slots_of_view(correspondences, place, num_times, num_views), []
        in_time = [slot for slot in before if not torch.equal(slot.targets, instants + slot.targets[0])]
        searched, static = [instants + other for other in neighbour_views(views, place)], torch.ones(())
        if num_views == 1 and in_time:
            searched, in_time = [slot.targets for slot in in_time], []
            static = view.static_probability(MatchTarget.NEXT_TIME)
            static = static if chosen is None else static[..., chosen]
        for targets in searched:
            other, times = int(targets[0]) % num_views, targets // num_views
            pair = cameras[:, :, place], cameras[:, times, other]
            found = match_guided(images[place], images[other][:, times], *pair, depth[place], side, margin, chosen)
            positions = pad_patches(reduction * found.positions.double(), num_patches, dim=-2)
            weight = _GUIDED_WEIGHT * pad_patches(found.score.double() * static.to(depth[place]), num_patches, dim=-1)
            earlier = next((slot for slot in before if torch.equal(slot.targets, targets)), None)
            if earlier is not None:
                matched = weight > 0
                positions = torch.where(matched[..., None], positions, earlier.positions)
                weight = torch.where(matched, weight, earlier.weight)
            guided.append(_Slot(targets, positions, weight))
        slots.append((guided + in_time) or before)
    return replace(
        correspondences,
        targets=_stacked([[slot.targets for slot in of_view] for of_view in slots], dim=1),
        positions=_stacked([[slot.positions for slot in of_view] for of_view in slots], dim=2),
        weight=_stacked([[slot.weight for slot in of_view] for of_view in slots], dim=2),
    )


def _reduced(maps: Float[Tensor, "B T C H W"], factor: int) -> Float[Tensor, "B T C h w"]:
    """Return the means over squares of pixels."""
    return torch.unflatten(functional.avg_pool2d(maps.flatten(0, 1), factor), 0, maps.shape[:2])


def _stacked(parts: Sequence[Sequence[Tensor]], dim: int) -> Tensor:
    """Stack values of all views and slots: views after the T before `dim`, flattened to N, then slots G."""
    of_views = [torch.stack(list(of_slots), dim=dim) for of_slots in parts]
    return torch.stack(of_views, dim=dim).flatten(dim - 1, dim)


def _slots_of_view(correspondences: Correspondences, place: int, num_times: int, num_views: int) -> list[_Slot]:
    """Return the correspondences of a view's patches by target."""
    size = (num_times, num_views)
    targets = torch.unflatten(correspondences.targets, 0, size)[:, place].unbind(-1)
    positions, weight = (
        torch.unflatten(part, 1, size)[:, :, place].unbind(2)
        for part in (correspondences.positions, correspondences.weight)
    )
    return [_Slot(*slot) for slot in zip(targets, positions, weight, strict=True)]
