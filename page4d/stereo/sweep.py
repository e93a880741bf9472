"""Plane sweeps: depth by cross-correlation (NCC) of windows, by descriptors, and semi-global aggregation.

Hypotheses cover the depth range, or fractions of a pixel around given depth. Scores are aggregated along rows and
columns of the image.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, camera_rays, crop_intrinsics, normalize_pixels
from page4d.geometry.warp import (
    WarpedPixels,
    compared_views,
    ncc,
    ray_warp,
    sample,
    sample_grid,
    viewing_angles,
    window_means,
)
from page4d.networks.conditioning import Grid
from page4d.networks.inputs.matching import Likelihoods, match_likelihoods
from page4d.networks.layers.execution import in_chunks, numbers_at_once
from page4d.stereo import kernels
from page4d.stereo.descriptors import DescribedImages, similarity
from page4d.stereo.regions import Region
from page4d.stereo.views import ViewPrediction, matched_views, target_indices

_MAX_TOGETHER = 1 << 24
"""Numbers that are aggregated at once: 64 MB. The scores of more pixels are no faster."""


def aggregate_scores(
    score: Float[Tensor, "N rows K columns"], penalty: float, max_penalty: float
) -> Float[Tensor, "N rows K columns"]:
    """Add to the K label scores of every pixel the best path scores that end there, from four directions.

    Scores are log-likelihoods. A difference in labels between neighbours costs `penalty` per label, at most
    `max_penalty`.

    Source: Hirschmüller (2008), "Stereo Processing by Semiglobal Matching", eq. 13 and 14, with four paths and a
    truncated linear penalty.
    """
    if kernels.apply_to(score):
        return kernels.aggregate(score, penalty, max_penalty)
    if (on_gpu := kernels.of_gpu(score.device)) is not None:
        aggregated: Tensor = on_gpu.aggregate(score, penalty, max_penalty)
        return aggregated
    total = score.clone()
    for scores, sums in ((score, total), (score.transpose(1, 3), total.transpose(1, 3))):
        lines = scores.movedim(0, 2)
        both = torch.stack([lines, lines.flip(0)], dim=2)
        _replace_by_messages(both, penalty, max_penalty)
        sums += (both[:, :, 0] + both[:, :, 1].flip(0)).movedim(2, 0)
    return total


def aggregate_together(
    scores: Sequence[Float[Tensor, "_ K _"]], penalty: float, max_penalty: float
) -> list[Float[Tensor, "_ K _"]]:
    """Aggregate scores of images whose sizes may differ, as `aggregate_scores` does one by one.

    The time of small images is that of starting kernels, so that many take little longer than one.
    """
    size = [max(score.shape[axis] for score in scores) for axis in (0, 2)] if scores else []
    found: list[Tensor] = []
    while len(found) < len(scores):
        at_once = max(1, _MAX_TOGETHER // (size[0] * size[1] * scores[0].shape[1]))
        part = scores[len(found) : len(found) + at_once]
        # Scores of 0 beyond the borders send no messages.
        margins = [(0, size[1] - score.shape[2], 0, 0, 0, size[0] - len(score)) for score in part]
        padded = torch.stack([functional.pad(*pair) for pair in zip(part, margins, strict=True)])
        aggregated = aggregate_scores(padded, penalty, max_penalty)
        found += [one[: len(own), :, : own.shape[2]] for one, own in zip(aggregated, part, strict=True)]
    return found


def _replace_by_messages(lines: Float[Tensor, "lines K *paths pixels"], penalty: float, max_penalty: float) -> None:
    """Replace the scores of every line by the message that it gets from the previous one; zero for the first.

    Labels are before pixels, so that operations on neighbouring labels run over consecutive memory.
    """
    message = torch.zeros_like(lines[0])
    for line in lines:
        path = line + message
        line.copy_(message)
        message = (_max_convolution(path, penalty, max_penalty) - path.amax(dim=0)).clamp_(min=-max_penalty)


def _max_convolution(
    score: Float[Tensor, "K *paths pixels"], penalty: float, max_penalty: float
) -> Float[Tensor, "K *paths pixels"]:
    """Return, for every label, the maximum over labels of the score minus the linear penalty.

    Doubling offsets 1, 2, 4, ... reach every offset whose penalty is below the maximum.
    """
    best, offset = score, 1
    while offset < len(score) and offset * penalty < max_penalty:
        lower = best - offset * penalty
        wider = best.clone()
        torch.maximum(best[offset:], lower[:-offset], out=wider[offset:])
        torch.maximum(wider[:-offset], lower[offset:], out=wider[:-offset])
        best, offset = wider, 2 * offset
    return best


_SIGMA = 0.5
"""Prior sigma of log depth at confidence 1; it is divided by the confidence."""

_MAX_LOG_FACTOR = 0.4
_HYPOTHESES_KNOWN_CAMERAS, _HYPOTHESES_ESTIMATED_CAMERAS = 33, 17
"""Along estimated rays, whose errors blur the scores, more hypotheses are no better."""

_WINDOW = 5
"""Side in px of the windows that are compared."""

_MIN_VARIANCE = 1e-4
"""Added to variances of colors in [0, 1], summed over channels: windows without texture give no evidence."""

_MIN_CORRELATION = 0.4
_WEIGHT_KNOWN_CAMERAS, _WEIGHT_ESTIMATED_CAMERAS = 6.0, 3.0
"""Log likelihood per unit of correlation above the minimum: lower along estimated rays, where wrong windows match
more often."""

_MAX_PENALTY = 3.0
_MAX_STEP = 0.3
"""Log depth factors of neighbouring pixels are penalized linearly up to this difference."""

_MIN_DEPTH = 1e-4
_MAX_SCORES = 1 << 23
"""Scores of images that are aggregated at once, or those of one image: 32 MB."""

_MAX_SAMPLES = 1 << 19
"""Pixels that are warped at once: some 40 MB."""


@torch.no_grad()
def sweep_planes(
    views: Sequence[ViewPrediction],
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "B T _ _"]],
    cameras_are_known: bool = True,
    descriptors: Sequence[Float[Tensor, "B T C _ _"]] | None = None,
    regions: Sequence[Sequence[Region]] | None = None,
) -> list[Float[Tensor, "B T _ _"]]:
    """Return the posterior mean of the log factor of every pixel's depth; outside of the `regions` of a view it is 0.

    `cameras` are [B, T, V], in the unit of depth; images are in [0, 1]. Each image is compared with those of its
    instant that the network matched it with. Windows are slanted as the given depth and compared by the NCC of their
    colors, which is invariant to exposure and contrast; `descriptors`, of cells of the images, add their similarity.
    Semi-global aggregation favours equal factors of neighbouring pixels.

    Source: Collins (1996), "A Space-Sweep Approach to True Multi-Image Matching", and Hirschmüller (2008),
    "Stereo Processing by Semiglobal Matching", with correlation for mutual information.
    """
    count = _HYPOTHESES_KNOWN_CAMERAS if cameras_are_known else _HYPOTHESES_ESTIMATED_CAMERAS
    hypotheses = torch.linspace(-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR, count)
    weight = _WEIGHT_KNOWN_CAMERAS if cameras_are_known else _WEIGHT_ESTIMATED_CAMERAS
    penalty = _MAX_PENALTY * float(hypotheses[1] - hypotheses[0]) / _MAX_STEP
    hypotheses = hypotheses.to(depth[0].device)
    corrections, sigmas = [], [_SIGMA / view.confidence for view in views]
    for place, (own, sigma) in enumerate(zip(depth, sigmas, strict=True)):
        others = matched_views(views, place)
        correction = torch.zeros_like(own)
        whole = [(slice(0, own.shape[2]), slice(0, own.shape[3]))]
        parts = [
            (slice(start, start + at_once), region)
            for region in (whole if regions is None else regions[place])
            for at_once in [max(1, _MAX_SCORES // (own[:, 0, *region].numel() * count))]
            for start in range(0, own.shape[1], at_once)
        ]
        for part, (rows, columns) in parts:
            area = (slice(None), part, rows, columns)
            prior = sigma[area].to(hypotheses).flatten(0, 1)
            score = -(hypotheses[:, None] / prior[..., None, :]).square() / 2
            source = Windows.of(images[place][:, part, :, rows, columns].flatten(0, 1))
            for other in others:
                target = images[other][:, part].flatten(0, 1)
                from_camera, to_camera = (
                    cameras[:, part, view].map(lambda values: values.flatten(0, 1)) for view in (place, other)
                )
                intrinsics = crop_intrinsics(from_camera.intrinsics, columns.start, rows.start)
                from_camera = replace(from_camera, intrinsics=intrinsics)
                factors = hypotheses.exp()[:, None, None]
                found = correlate(source, target, from_camera, to_camera, own[area].flatten(0, 1), factors)
                score.add_(found.sub_(_MIN_CORRELATION).clamp_(min=0), alpha=weight)
                if descriptors is not None:
                    described, compared = (
                        DescribedImages.of(part, cameras[:, :, view], descriptors[view], depth[view], sigmas[view])
                        for view in (place, other)
                    )
                    score.add_(similarity(described, compared, hypotheses.exp())[:, rows, :, columns])
            aggregated = aggregate_scores(score, penalty, _MAX_PENALTY)
            mean = (aggregated.softmax(dim=2) * hypotheses[:, None]).sum(dim=2)
            correction[area] = mean.view_as(correction[area])
        corrections.append(correction)
    return corrections


class Windows(NamedTuple):
    """Images, and the means of colors over the windows of their pixels, with the variance."""

    images: Float[Tensor, "*B 3 H W"]
    mean: Float[Tensor, "*B 3 H W"]
    variance: Float[Tensor, "*B H W"]

    @classmethod
    def of(cls, images: Float[Tensor, "*B 3 H W"]) -> "Windows":
        """Return the windows of images."""
        mean = window_means(images, _WINDOW)
        return cls(images, mean, window_means(images.square().sum(dim=-3), _WINDOW) - mean.square().sum(dim=-3))


def correlate(
    source: Windows,
    target: Float[Tensor, "B 3 h w"],
    source_cameras: Cameras,
    target_cameras: Cameras,
    depth: Float[Tensor, "B H W"],
    factors: Float[Tensor, "K one_or_H one_or_W"],
    min_variance: float = _MIN_VARIANCE,
) -> Float[Tensor, "B H K W"]:
    """Return the NCC of windows for every factor of depth; 0 where the pixel is not visible."""
    if kernels.apply_to(source.images, target, depth):
        # The rays of pixels are linear in their coordinates.
        axes = ray_warp(source_cameras.intrinsics.inverse().mT, source_cameras, target_cameras)
        warp = axes.on_grid(target.shape[-2:]).to(depth)
        return kernels.correlate(*source, target, warp, depth, factors, (_MIN_DEPTH, min_variance))
    rays = camera_rays(source_cameras.intrinsics.to(depth), depth.shape[-2:])
    warp = ray_warp(rays[:, None], source_cameras, target_cameras).on_grid(target.shape[-2:])
    correlation = depth.new_zeros(*depth.shape[:2], len(factors), depth.shape[2])
    at_once = max(1, numbers_at_once(_MAX_SAMPLES, depth.device) // depth.numel())
    for start in range(0, len(factors), at_once):
        part = slice(start, start + at_once)
        grid, target_depth = warp.at(depth[:, None] * factors[part], _MIN_DEPTH)  # B K H W
        shown = Windows.of(sample_grid(target, grid).transpose(1, 2))  # B K
        products = window_means((source.images[:, None] * shown.images).sum(dim=2), _WINDOW)
        covariance = products - (source.mean[:, None] * shown.mean).sum(dim=2)
        similarity = ncc(covariance, source.variance[:, None], shown.variance, min_variance)
        visible = (target_depth > _MIN_DEPTH) & (grid[..., 0].abs() < 1) & (grid[..., 1].abs() < 1)
        correlation[:, :, part] = (similarity * visible).transpose(1, 2)
    return correlation


_PATCH_SIGMA = 1.3
"""Prior sigma of log depth at confidence 1."""

_CONFIDENCE_POWER = 1.25
"""The prior sigma is divided by this power of the confidence."""

_PATCH_MAX_LOG_FACTOR = 0.9
_NUM_HYPOTHESES = 61
_OCCLUSION = 0.02
_MIN_UNSEEN = 0.1
"""Likelihood of a similar descriptor at a place where the patch is occluded: the first number times (the probability
that the patch is not visible, plus the second)."""

_PATCH_MAX_PENALTY = 1.0
_PATCH_MAX_STEP = 0.3
"""Log depth factors of neighbouring patches are penalized linearly up to this difference."""

_MAX_PAIRS = 1 << 23
"""Pairs of patches and cells compared at once: 32 MB of numbers, a few times over."""


def sweep_features(
    views: Sequence[ViewPrediction], cameras: Cameras, depth: Float[Tensor, "B N P"]
) -> Float[Tensor, "B N P"]:
    """Refine the depth of patch centers under known cameras.

    `cameras` are [B, N], N = T * V, in the unit of depth. Every patch is compared with the cells at its projections
    for many depth hypotheses. Semi-global aggregation favours equal factors of neighbouring patches, which patches
    without a match take over. Depth is unchanged where nothing matches.

    Source: Collins (1996), "A Space-Sweep Approach to True Multi-Image Matching", section 2, per ray.
    """
    refined: Tensor = torch.unflatten(depth, 1, (-1, len(views))).clone()
    rig = cameras.by_time(refined.shape[1])
    for place, view in enumerate(views):
        own = refined[:, :, place, : view.grid[0] * view.grid[1]]
        sigma = _PATCH_SIGMA * view.patch_confidence**-_CONFIDENCE_POWER
        own *= _expected_log_factor(_evidence(views, place, rig, own), sigma, view.grid).exp()
    return refined.flatten(1, 2)


def _hypotheses(device: torch.device | str) -> Float[Tensor, " K"]:
    return torch.linspace(
        -_PATCH_MAX_LOG_FACTOR, _PATCH_MAX_LOG_FACTOR, _NUM_HYPOTHESES, dtype=torch.float64, device=device
    )


def _evidence(
    views: Sequence[ViewPrediction], place: int, rig: Cameras, depth: Float[Tensor, "B T P"]
) -> Float[Tensor, "B T P K"]:
    """Return the log likelihood ratio of every depth hypothesis against occlusion in all targets."""
    view = views[place]
    evidence = depth.new_zeros(*depth.shape, _NUM_HYPOTHESES)
    targets = view.matches.targets
    indices = target_indices(targets, depth.shape[1], len(views))
    own = torch.arange(indices.shape[0]) * len(views) + place
    plane = normalize_pixels(view.patch_centers.expand(*depth.shape, 2), rig[:, :, place].intrinsics)
    rays = functional.pad(plane, (0, 1), value=1.0)[..., None, :]  # B T P 1 3
    depths = depth[..., None] * _hypotheses(depth.device).exp()  # B T P K
    for index, target in enumerate(targets):
        number = indices[:, place, index]
        is_new = (number != own) & ~(indices[:, place, :index] == number[:, None]).any(dim=1)
        times, other = (number // len(views)).to(depth.device), int(number[0]) % len(views)
        if is_new.any():
            warp = ray_warp(rays, rig[:, :, place], rig[:, times, other])
            ratio = _log_ratios(view, views[other], times, warp.at(depths))
            evidence += ratio * (view.static_probability(target) * is_new.to(depth.device)[:, None])[..., None]
    return evidence


def _log_ratios(
    view: ViewPrediction, other: ViewPrediction, times: Int[Tensor, " T"], warped: WarpedPixels
) -> Float[Tensor, "B T P K"]:
    """Return the log likelihood ratios of depth hypotheses [B, T, P, K] from another view at these instants."""
    own, target = view.matches.features, other.matches.features
    if own is None or target is None:
        return torch.zeros_like(warped.depth)
    places, visible = warped.pixels.flatten(0, 1), warped.visible(other.size).flatten(0, 1)
    grid = (other.grid[0] * target.finer, other.grid[1] * target.finer)
    patches, cells = own.patches[:, :, 0].flatten(0, 1), target.cells[:, times, 0].flatten(0, 1)
    unseen, cells_per_px = own.unseen, target.finer / other.patch_size

    def of_images(part: slice) -> Tensor:
        likelihoods = match_likelihoods(patches[part], cells[part], unseen)
        return _at_places(likelihoods, grid, places[part] * cells_per_px, visible[part])

    at_once = max(1, _MAX_PAIRS // (patches.shape[-2] * cells.shape[-2]))
    return torch.unflatten(in_chunks(of_images, len(patches), at_once, dim=0), 0, warped.depth.shape[:2])


def _at_places(
    likelihoods: Likelihoods, grid: Grid, places: Float[Tensor, "N P K 2"], visible: Bool[Tensor, "N P K"]
) -> Float[Tensor, "N P K"]:
    """Return log(1 + match likelihood / occlusion likelihood) at places in cells."""
    maps = likelihoods.cell.exp().reshape(-1, 1, *grid)
    found = sample(maps, places.flatten(0, 1), border="zeros").reshape(visible.shape)
    occluded = _OCCLUSION * (likelihoods.unseen.exp() + _MIN_UNSEEN)[..., None]
    return (found * visible / occluded).log1p()


def _expected_log_factor(
    evidence: Float[Tensor, "B T P K"], sigma: Float[Tensor, "B T P"], grid: Grid
) -> Float[Tensor, "B T P"]:
    """Return the posterior mean of the log factor of each patch's depth."""
    hypotheses = _hypotheses(evidence.device)
    score = (evidence - (hypotheses / sigma[..., None]).square() / 2).flatten(0, 1)
    first, second = _hypotheses("cpu")[:2].tolist()
    penalty = _PATCH_MAX_PENALTY * (second - first) / _PATCH_MAX_STEP
    aggregated = aggregate_scores(torch.unflatten(score, 1, grid).mT, penalty, _PATCH_MAX_PENALTY)
    mean: Tensor = (aggregated.softmax(dim=2) * hypotheses[:, None]).sum(dim=2)
    return mean.reshape(*evidence.shape[:2], -1)


_SIGMA_PX = 3.5
"""Prior sigma of the given depth, as a distance in the other image."""

_MAX_ANGLE_DEG = 50.0
"""Largest angle between the rays of two views at a point: beyond, windows look different from both."""

_WEIGHT = 6.0
"""Log likelihood per unit of correlation above the minimum."""

_PENALTY, _FINE_MAX_PENALTY = 0.75, 3.0
"""Of a difference between neighbouring pixels, per pixel of the other image, and at most."""

_FINE_MAX_STEP = 0.05
"""Largest log factor of a hypothesis from the next, where no other view has much parallax."""

_MAX_PARTNERS = 4
"""Views that each view is compared with, those that see most of it: more change errors by less than 1 % (8 views)."""

_MIN_SEEN = 0.01
"""Share of the pixels of a view that another one must see at a usable angle."""

_ASIDE_PX, _AWAY_PX = 2.0, 6.0
"""Distances from epipolar lines at which pictures match less than on lines that are exact, and by chance."""

_LEAST_EXCESS = 0.02
"""Correlation above chance below which it shows nothing."""


@torch.no_grad()
def sweep_around(
    log_depth: Float[Tensor, "H W"],
    known: Bool[Tensor, "H W"],
    images: Sequence[Float[Tensor, "3 _ _"]],
    cameras: Cameras,
    view: int,
    region: tuple[slice, slice],
    reach: int,
    others: Sequence[int] | None = None,
) -> Float[Tensor, "H W"]:
    """Return the log depth of a region of one view, refined by the pictures of the others at the same instant.

    These are the ones of `others`, by default of all, that see most of the region. `cameras` are [V], each at the
    pixels of its own image. `log_depth` and `known` are those of the region alone. Hypotheses are up to `reach`
    pixels of the image with the largest parallax away from the given depth; windows are slanted as that depth. Pixels
    without evidence keep their depth.

    Source: `page4d.stereo.sweep`.
    """
    rows, columns = region
    intrinsics = crop_intrinsics(cameras.intrinsics[view], columns.start, rows.start)
    camera, depth = replace(cameras[view], intrinsics=intrinsics), log_depth.exp()
    rays, seen, rates, shares = camera_rays(camera.intrinsics, depth.shape), {}, {}, {}
    for other in compared_views(cameras, view):
        if others is not None and other not in others:
            continue
        usable = known & (viewing_angles(depth, camera, cameras[other]) <= _MAX_ANGLE_DEG)
        if float(usable.float().mean()) >= _MIN_SEEN:
            warp = ray_warp(rays, camera, cameras[other]).to(depth)
            rates[other] = warp.pixels_per_log_depth(depth, images[other].shape[-2:]) * usable
            seen[other], shares[other] = usable, float((rates[other] > 0).float().mean())
    if not seen:
        return log_depth
    partners = sorted(sorted(seen, key=lambda other: -shares[other])[:_MAX_PARTNERS])
    step = torch.stack([rates[other] for other in partners]).amax(dim=0).clamp(min=1 / _FINE_MAX_STEP).reciprocal()
    hypotheses = torch.arange(-reach, reach + 1, device=depth.device, dtype=depth.dtype)
    factors = (hypotheses[:, None, None] * step).exp()
    score = (-(hypotheses / _SIGMA_PX).square() / 2)[:, None].expand(1, len(depth), -1, depth.shape[1]).clone()
    source = Windows.of(images[view][None, :, rows, columns])
    for other in partners:
        usable = seen[other]
        found = correlate(source, images[other][None], camera[None], cameras[other][None], depth[None], factors)
        score.add_(found.sub_(_MIN_CORRELATION).clamp_(min=0).mul_(usable[:, None]), alpha=_WEIGHT)
    score = aggregate_scores(score, _PENALTY, _FINE_MAX_PENALTY)[0]
    moved: Tensor = log_depth + (score.softmax(dim=1) * hypotheses[:, None]).sum(dim=1) * step
    return moved


@torch.no_grad()
def match_on_lines(
    log_depth: Float[Tensor, "H W"],
    known: Bool[Tensor, "H W"],
    images: Sequence[Float[Tensor, "3 _ _"]],
    cameras: Cameras,
    views: tuple[int, int],
    reach: int,
) -> float | None:
    """Return by how much the pictures of two views match better along their epipolar lines than along displaced ones.

    The best correlation within `reach` of the depth of the first view, less that on lines a few pixels aside (of the
    two sides the larger), as a share of the same on lines farther away: 0.2 or more if lines are exact to a pixel.
    The quarter of the picture with the most texture is compared; None if the other view sees none of it at a usable
    angle. Arguments are those of `sweep_around`.
    """
    first, second = views
    picture, other = images[first], cameras[[second]]
    depth = log_depth.exp()
    rate = usable_rates(depth, known, cameras[first], cameras[second], images[second].shape[-2:])
    if float((rate > 0).float().mean()) < _MIN_SEEN:
        return None
    part = _textured_part(picture, rate > 0)
    rows, columns = part
    intrinsics = crop_intrinsics(cameras.intrinsics[first], columns.start, rows.start)
    camera, depth, rate = replace(cameras[first], intrinsics=intrinsics), depth[part], rate[part]
    hypotheses = torch.arange(-reach, reach + 1, device=depth.device, dtype=depth.dtype)
    factors = (hypotheses[:, None, None] * rate.clamp(min=1 / _FINE_MAX_STEP).reciprocal()).exp()
    warp = ray_warp(camera_rays(camera.intrinsics, depth.shape), camera, cameras[second]).to(depth)
    ends = [warp.at(depth * factor).pixels[rate > 0] for factor in (factors[0], factors[-1])]
    along = functional.normalize((ends[1] - ends[0]).mean(dim=0), dim=0).to(other.intrinsics)
    across = torch.stack([-along[1], along[0]])
    source, scores = Windows.of(picture[None, :, rows, columns]), []
    for offset in (0.0, -_ASIDE_PX, _ASIDE_PX, -_AWAY_PX, _AWAY_PX):
        displaced = other.intrinsics.clone()
        displaced[0, :2, 2] += offset * across
        target = replace(other, intrinsics=displaced)
        found = correlate(source, images[second][None], camera[None], target, depth[None], factors)
        scores.append(found[0].amax(dim=1))
    compared = torch.stack(scores)
    compared = compared[:, (rate > 0) & (compared != 0).all(dim=0)]
    if compared.shape[1] == 0:
        return None
    on, *aside, away, beyond = compared.mean(dim=1).tolist()
    return float((on - max(aside)) / max(on - (away + beyond) / 2, _LEAST_EXCESS))


def usable_rates(
    depth: Float[Tensor, "H W"], known: Bool[Tensor, "H W"], camera: Cameras, other: Cameras, size: Sequence[int]
) -> Float[Tensor, "H W"]:
    """Return the pixels that projections into another view move per log depth; 0 where it has no usable angle."""
    usable = known & (viewing_angles(depth, camera, other) <= _MAX_ANGLE_DEG)
    warp = ray_warp(camera_rays(camera.intrinsics, depth.shape), camera, other).to(depth)
    return warp.pixels_per_log_depth(depth, size) * usable


def _textured_part(picture: Float[Tensor, "3 H W"], usable: Bool[Tensor, "H W"]) -> tuple[slice, slice]:
    """Return the part of half the height and width with the most texture in usable pixels."""
    texture = Windows.of(picture[None]).variance.clamp(min=0).sqrt() * usable
    size, step = (tuple(max(1, side // share) for side in usable.shape) for share in (2, 4))
    sums = functional.avg_pool2d(texture, size, step)[0]
    starts = torch.stack(torch.unravel_index(sums.argmax(), sums.shape)).tolist()
    rows, columns = (slice(n * by, n * by + side) for n, by, side in zip(starts, step, size, strict=True))
    return rows, columns
