"""Plane sweep: per-pixel depth by windowed normalized cross-correlation (NCC) and semi-global aggregation."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import ncc, ray_warp, sample_grid, window_means
from page4d.refinement.semi_global import aggregate_scores
from page4d.refinement.view_prediction import ViewPrediction, matched_views

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
) -> list[Float[Tensor, "B T _ _"]]:
    """Return the posterior mean of the log factor of every pixel's depth.

    `cameras` are [B, T, V], in the unit of depth; images are in [0, 1]. Each image is compared with those of its
    instant that the network matched it with. Windows are slanted as the given depth and compared by the NCC of their
    colors, which is invariant to exposure and contrast. Semi-global aggregation favours equal factors of neighbouring
    pixels.

    Source: Collins (1996), "A Space-Sweep Approach to True Multi-Image Matching", and Hirschmüller (2008),
    "Stereo Processing by Semiglobal Matching", with correlation for mutual information.
    """
    count = _HYPOTHESES_KNOWN_CAMERAS if cameras_are_known else _HYPOTHESES_ESTIMATED_CAMERAS
    hypotheses = torch.linspace(-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR, count)
    weight = _WEIGHT_KNOWN_CAMERAS if cameras_are_known else _WEIGHT_ESTIMATED_CAMERAS
    penalty = _MAX_PENALTY * float(hypotheses[1] - hypotheses[0]) / _MAX_STEP
    hypotheses = hypotheses.to(depth[0].device)
    corrections = []
    for place, own in enumerate(depth):
        others, sigma = matched_views(views, place), _SIGMA / views[place].confidence
        correction = torch.empty_like(own)
        at_once = max(1, _MAX_SCORES // (own[:, 0].numel() * count))
        for start in range(0, own.shape[1], at_once):
            part = slice(start, start + at_once)
            score = -(hypotheses / sigma[:, part, ..., None].to(hypotheses)).square().flatten(0, 1) / 2
            for other in others:
                source, target = (images[view][:, part].flatten(0, 1) for view in (place, other))
                from_camera, to_camera = (
                    cameras[:, part, view].map(lambda values: values.flatten(0, 1)) for view in (place, other)
                )
                factors = hypotheses.exp()[:, None, None]
                found = correlate(source, target, from_camera, to_camera, own[:, part].flatten(0, 1), factors)
                score.add_(found.sub_(_MIN_CORRELATION).clamp_(min=0), alpha=weight)
            aggregated = aggregate_scores(score, penalty, _MAX_PENALTY)
            mean = (aggregated.softmax(dim=-1) * hypotheses).sum(dim=-1)
            correction[:, part] = mean.view_as(correction[:, part])
        corrections.append(correction)
    return corrections


def correlate(
    source: Float[Tensor, "B 3 H W"],
    target: Float[Tensor, "B 3 h w"],
    source_cameras: Cameras,
    target_cameras: Cameras,
    depth: Float[Tensor, "B H W"],
    factors: Float[Tensor, "K one_or_H one_or_W"],
) -> Float[Tensor, "B H W K"]:
    """Return the NCC of windows for every factor of depth; 0 where the pixel is not visible."""
    frames, height, width = len(source), source.shape[-2], source.shape[-1]
    rays = camera_rays(source_cameras.intrinsics.to(depth), (height, width))
    warp = ray_warp(rays[:, None], source_cameras, target_cameras).on_grid(target.shape[-2:])
    mean = window_means(source, _WINDOW)
    variance = window_means(source.square().sum(dim=1), _WINDOW) - mean.square().sum(dim=1)
    correlation = depth.new_zeros(frames, height, width, len(factors))
    at_once = max(1, _MAX_SAMPLES // (frames * height * width))
    for start in range(0, len(factors), at_once):
        part = factors[start : start + at_once]
        grid, target_depth = warp.at(depth[:, None] * part, _MIN_DEPTH)  # B K H W
        images = sample_grid(target, grid).transpose(1, 2)  # B K 3 H W
        target_mean = window_means(images, _WINDOW)
        target_variance = window_means(images.square().sum(dim=2), _WINDOW) - target_mean.square().sum(dim=2)
        products = window_means((source[:, None] * images).sum(dim=2), _WINDOW)
        covariance = products - (mean[:, None] * target_mean).sum(dim=2)
        similarity = ncc(covariance, variance[:, None], target_variance, _MIN_VARIANCE)
        visible = (target_depth > _MIN_DEPTH) & (grid[..., 0].abs() < 1) & (grid[..., 1].abs() < 1)
        correlation[..., start : start + at_once] = (similarity * visible).permute(0, 2, 3, 1)
    return correlation
