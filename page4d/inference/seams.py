"""How well two neighbouring chunks fit together where they overlap."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from page4d.geometry.camera import project
from page4d.geometry.rigid import transform_points
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.similarity import Sim3
from page4d.predictions import Predictions

MOVING = 0.5
"""Pixels whose probability of motion is above this do not take part in an alignment."""

LARGEST_SHIFT = 0.01
"""A seam fits if the scene shifts by at most this share of the image's long side: 5 px of 518."""

LARGEST_SHARE = 0.05
"""A seam fits if its residual is at most this share of the depth."""


@dataclass(frozen=True, kw_only=True)
class Seam:
    """How well a chunk fits the one before, after alignment; residuals are None if they share no static pixel.

    `residual` is the median distance of the same static pixel in both, in units of the scene; `residual_share` is the
    median of that distance over the pixel's depth. `residual_px` is the median distance of its two images in the next
    view, where errors of depth show; with one view it is that of the view itself, where they do not. `rotation_deg`
    and `scale_ratio` are what the alignment had to turn and scale. `num_points` pixels decided it; 0 means that the
    cameras did.
    """

    residual: float | None
    residual_share: float | None
    residual_px: float | None
    rotation_deg: float
    scale_ratio: float
    num_points: int


def measure_seam(earlier: Predictions, later: Predictions, transform: Sim3, num_points: int) -> Seam:
    """Compare two chunks over the instants that both hold; `transform` brought the later one to the earlier."""
    static = static_pixels(earlier, later)
    points = [part.world_points() for part in (earlier, later)]
    distance = (points[0] - points[1]).norm(dim=-1)
    cameras = earlier.cameras
    onlooking = [matrix.roll(-1, dims=2) for matrix in (cameras.world_to_camera, cameras.intrinsics)]
    images, depths = zip(
        *(project(transform_points(onlooking[0], part), onlooking[1]) for part in points), strict=True
    )
    onlooker_sizes = [(width, height) for height, width in (*earlier.view_sizes[1:], earlier.view_sizes[0])]
    size = images[0].new_tensor(onlooker_sizes)[:, None, None]
    seen = static & (depths[0] > 0) & (depths[1] > 0) & ((images[0] >= 0) & (images[0] <= size)).all(-1)
    return Seam(
        residual=_median(distance, static),
        residual_share=_median(distance / earlier.depth, static),
        residual_px=_median((images[0] - images[1]).norm(dim=-1), seen),
        rotation_deg=float(torch.rad2deg(rotation_angle(transform.rotation))),
        scale_ratio=float(transform.scale),
        num_points=num_points,
    )


def seam_fits(residual_px: float | None, residual_share: float | None, long_side: int) -> bool:
    """Tell whether neither residual of a seam is above its limit, in images of `long_side` pixels."""
    return (residual_px or 0.0) <= LARGEST_SHIFT * long_side and (residual_share or 0.0) <= LARGEST_SHARE


def has_depth(predictions: Predictions) -> Bool[Tensor, "B T V H W"]:
    """Mark the pixels whose depth means something."""
    return predictions.valid & torch.isfinite(predictions.depth) & (predictions.depth > 0)


def static_pixels(first: Predictions, second: Predictions) -> Bool[Tensor, "B T V H W"]:
    """Mark the pixels that have a depth in both and move in neither."""
    static = has_depth(first) & has_depth(second)
    for part in (first, second):
        if part.dynamic is not None:
            static = static & (part.dynamic <= MOVING)
    return static


def _median(values: Tensor, chosen: Bool[Tensor, "B T V H W"]) -> float | None:
    return float(values[chosen].median()) if bool(chosen.any()) else None
