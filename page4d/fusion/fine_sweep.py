"""Plane sweep by fractions of a pixel around given depth, for one level of a coarse-to-fine refinement."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays, crop_intrinsics
from page4d.geometry.warp import compared_views, ray_warp, viewing_angles
from page4d.refinement.plane_sweep import correlate
from page4d.refinement.semi_global import aggregate_scores

_SIGMA_PX = 3.5
"""Prior sigma of the given depth, as a distance in the other image."""

_MAX_ANGLE_DEG = 50.0
"""Largest angle between the rays of two views at a point: beyond, windows look different from both."""

_MIN_CORRELATION = 0.4
_WEIGHT = 6.0
"""Log likelihood per unit of correlation above the minimum."""

_PENALTY, _MAX_PENALTY = 0.75, 3.0
"""Of a difference between neighbouring pixels, per pixel of the other image, and at most."""

_MAX_STEP = 0.05
"""Largest log factor of a hypothesis from the next, where no other view has much parallax."""

_MIN_DEPTH = 1e-6
_MIN_SEEN = 0.01
"""Share of the pixels of a view that another one must see at a usable angle."""


@torch.no_grad()
def sweep_around(
    log_depth: Float[Tensor, "H W"],
    known: Bool[Tensor, "H W"],
    images: Sequence[Float[Tensor, "3 _ _"]],
    cameras: Cameras,
    view: int,
    region: tuple[slice, slice],
    reach: int,
) -> Float[Tensor, "H W"]:
    """Return the log depth of a region of one view, refined by the pictures of the others at the same instant.

    `cameras` are [V], each at the pixels of its own image. `log_depth` and `known` are those of the region alone.
    Hypotheses are up to `reach` pixels of the image with the largest parallax away from the given depth; windows are
    slanted as that depth. Pixels without evidence keep their depth.

    Source: `page4d.refinement.plane_sweep`.
    """
    rows, columns = region
    intrinsics = crop_intrinsics(cameras.intrinsics[view], columns.start, rows.start)
    camera, depth = replace(cameras[view], intrinsics=intrinsics), log_depth.exp()
    seen = {}
    for other in compared_views(cameras, view):
        usable = known & (viewing_angles(depth, camera, cameras[other]) <= _MAX_ANGLE_DEG)
        if float(usable.float().mean()) >= _MIN_SEEN:
            seen[other] = usable
    if not seen:
        return log_depth
    rate = torch.zeros_like(depth)
    for other, usable in seen.items():
        rate = rate.maximum(_pixels_per_log_depth(depth, camera, cameras[other], images[other]) * usable)
    step = rate.clamp(min=1 / _MAX_STEP).reciprocal()
    hypotheses = torch.arange(-reach, reach + 1, device=depth.device, dtype=depth.dtype)
    factors = (hypotheses[:, None, None] * step).exp()
    score = (-(hypotheses / _SIGMA_PX).square() / 2).expand(1, *depth.shape, -1).clone()
    source = images[view][None, :, rows, columns]
    for other, usable in seen.items():
        found = correlate(source, images[other][None], camera[None], cameras[other][None], depth[None], factors)
        score.add_(found.sub_(_MIN_CORRELATION).clamp_(min=0).mul_(usable[..., None]), alpha=_WEIGHT)
    score = aggregate_scores(score, _PENALTY, _MAX_PENALTY)[0]
    moved: Tensor = log_depth + (score.softmax(dim=-1) * hypotheses).sum(dim=-1) * step
    return moved


def _pixels_per_log_depth(
    depth: Float[Tensor, "H W"], camera: Cameras, other: Cameras, image: Float[Tensor, "3 h w"]
) -> Float[Tensor, "H W"]:
    """Return how fast the projection of each pixel into another image moves with its log depth; 0 outside of it."""
    warp = ray_warp(camera_rays(camera.intrinsics, depth.shape), camera, other).to(depth)
    warped = warp.at(depth, _MIN_DEPTH)
    target = warped.depth.clamp(min=_MIN_DEPTH)
    slope = depth * (warp.directions[..., :2] - warped.pixels * warp.directions[..., 2:]).norm(dim=-1) / target
    found: Tensor = slope * warped.visible(image.shape[-2:], _MIN_DEPTH)
    return found
