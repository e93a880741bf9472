"""The scale of depth maps in a known rig: from the agreement of depth between views, without predicted cameras."""

from collections.abc import Sequence
from math import log

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.camera import Cameras, normalize_pixels, pixel_grid
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.warp import ray_warp, sample

MAX_DISAGREEMENT_DEG = 15.0
"""Median error of the relative rotations of predicted cameras above which their distances give no scale: networks
that place a rig are right to a few degrees; where they fail, on rigs around a subject, they are wrong by 40."""

_MIN_SHARE, _MAX_SHARE = 0.1, 10.0
"""Median depth in units of the largest distance between cameras: from close-ups to narrow rigs."""

_NUM_SCALES = 93
"""Candidates, each 5 % above the one before."""

_SIGMA = 0.1
"""Standard deviation of the log ratio of the depths of one surface point in two views."""

_MIN_PEAK = 1.25
"""Agreement at the best scale in units of its median over all candidates, below which depth determines no scale."""

_MIN_VISIBLE = 0.1
"""Added to the number of points that other views see, as a share of all that are compared: few points that agree do
not determine the scale. Without the division, scales at which more points are seen would be preferred: on
rings, depth with 10 % of noise then gets 0.76 of its scale in the median, otherwise 1.03."""

_PIXELS = 400
_INSTANTS = 4
"""Numbers of pixels per image and of instants that are compared."""

_MIN_DEPTH = 1e-6


def disagreement_deg(found: Cameras, known: Cameras) -> float:
    """Return the median error of the relative rotations of all pairs of views; cameras are [T, V]."""
    if found.world_to_camera.shape[-3] < 2:
        return 0.0
    size, device = (found.world_to_camera.shape[-3],) * 2, found.world_to_camera.device
    first, second = torch.triu_indices(*size, offset=1, device=device)

    def relative(cameras: Cameras) -> Tensor:
        rotation = cameras.world_to_camera[..., :3, :3].double()
        return rotation[:, first] @ rotation[:, second].transpose(-1, -2)

    return float(torch.rad2deg(rotation_angle(relative(found), relative(known))).quantile(0.5))


def confident(confidence: Float[Tensor, "T H W"]) -> Bool[Tensor, "T H W"]:
    """Return the mask of the more confident half of the pixels, all of them where confidence does not vary."""
    return confidence >= confidence.flatten().float().quantile(0.5)


def agreeing_scale(
    rig: Cameras, depth: Sequence[Float[Tensor, "T _ _"]], valid: Sequence[Bool[Tensor, "T _ _"]]
) -> Tensor | None:
    """Return the factor on depth at which most points of views lie on the surfaces that other views see.

    `rig` is [T, V]; depth has any unit, one for all views and instants. Scales are compared by the share of agreeing
    points among those that other views see; a scale at which they see few points is not preferred. None if the
    cameras coincide, there is no depth, or no scale stands out.
    """
    chosen = slice(None, None, -(-len(depth[0]) // _INSTANTS))
    cameras = rig[chosen].to(torch.float64)
    centers = cameras.centers
    size = float((centers[:, :, None] - centers[:, None]).norm(dim=-1).max())
    maps = [one[chosen].double() for one in depth]
    masks = [one[chosen] & (values > 0) for one, values in zip(valid, maps, strict=True)]
    known = torch.cat([values[mask] for values, mask in zip(maps, masks, strict=True)])
    if size == 0 or not known.numel():
        return None
    logs = torch.linspace(log(_MIN_SHARE), log(_MAX_SHARE), _NUM_SCALES, dtype=torch.float64, device=centers.device)
    scales = size / known.median() * logs.exp()
    agreeing, visible, compared = torch.zeros_like(scales), torch.zeros_like(scales), scales.new_zeros(())
    for view in range(len(maps)):
        for other in range(len(maps)):
            if other != view:
                of_pair = _agreement(cameras, maps, masks, (view, other), scales)
                agreeing, visible, compared = agreeing + of_pair[0], visible + of_pair[1], compared + of_pair[2]
    score = agreeing / (visible + _MIN_VISIBLE * compared)
    best = int(score.argmax())
    if best in (0, len(score) - 1) or not bool(score[best] > _MIN_PEAK * score.median()):
        return None
    before, peak, after = score[best - 1 : best + 2]
    curvature = 2 * peak - before - after
    step = 0.5 * (after - before) / curvature if curvature > 0 else torch.zeros_like(peak)
    result: Tensor = scales[best] * (step * (logs[1] - logs[0])).exp()
    return result


def _agreement(
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "T _ _"]],
    masks: Sequence[Bool[Tensor, "T _ _"]],
    pair: tuple[int, int],
    scales: Float[Tensor, " K"],
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"], Float[Tensor, ""]]:
    """Compare points of one view with the depth of another at every scale.

    Returns the sum of their agreement, the number of those that are visible, and that of all.
    """
    view, other = pair
    height, width = depth[view].shape[-2:]
    stride = max(1, round((height * width / _PIXELS) ** 0.5))
    rows, columns = (slice(stride // 2, None, stride),) * 2
    pixels = pixel_grid(height, width, dtype=torch.float64, device=scales.device)[rows, columns].flatten(0, 1)
    source, target = cameras[:, view], cameras[:, other]
    plane = normalize_pixels(pixels.expand(len(depth[view]), -1, 2), source.intrinsics)
    rays = torch.nn.functional.pad(plane, (0, 1), value=1.0)[:, :, None]
    own, mask = (maps[view][:, rows, columns].flatten(1) for maps in (depth, masks))
    warped = ray_warp(rays, source, target).at(own[..., None] * scales, _MIN_DEPTH)
    size = depth[other].shape[-2:]
    maps = torch.stack([torch.where(masks[other], depth[other], 0.0), masks[other].double()], dim=1)
    found, whole = sample(maps, warped.pixels).unbind(1)
    visible = warped.visible(size, _MIN_DEPTH) & mask[..., None] & (whole > 1 - 1e-6)
    ratio = warped.depth.clamp(min=_MIN_DEPTH).log() - (found.clamp(min=_MIN_DEPTH) * scales).log()
    agreeing = visible * torch.exp(-(ratio / _SIGMA).square() / 2)
    return agreeing.sum(dim=(0, 1)), visible.double().sum(dim=(0, 1)), mask.double().sum()
