"""Whether cameras move: their motion is told from the jitter of a prediction by how smooth it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras, unproject
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.inference.seams import has_depth
from page4d.predictions import Predictions

STILL_SHARE = 0.002
"""Motion up to this share of the image's long side is none: 1 px of 518."""

_FEWEST_STEPS = 3
"""With fewer steps from instant to instant jitter cannot be told from motion, and counts as motion."""

_SIDE = 3
"""Points along each side of the grid whose images are compared."""


class CameraMotion(StrEnum):
    """Whether each view has one camera for the whole capture."""

    STATIC = "static"
    MOVING = "moving"
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How far cameras are from where they should stand, as root mean squares in network pixels, for each of V views.

    A point of the image at the view's median depth is seen so far off. `jitter` is what changes at random from
    instant to instant, `motion` the rest.
    """

    jitter: Float[Tensor, " V"]
    motion: Float[Tensor, " V"]

    def still_views(self, long_side: int) -> list[bool]:
        """Tell for each view whether its motion is too small to matter, or drowned in its jitter."""
        return (self.motion <= self.jitter.clamp_min(STILL_SHARE * long_side)).tolist()


def measure_shift(
    cameras: Cameras, rig: Cameras, depth: Float[Tensor, " V"], sizes: Sequence[tuple[int, int]]
) -> Shift:
    """Compare cameras [T, V] with those of a rig [V] that stands still, for points at one `depth` a view.

    `sizes` are the (height, width) of the views' images.

    The jitter is half the mean squared successive difference: a camera on a smooth path changes little from one
    instant to the next, however far it goes, while random errors do not know of each other.

    Source: von Neumann, "Distribution of the ratio of the mean square successive difference to the variance", 1941.
    """
    shifts = _image_shifts(cameras, rig, depth, sizes)
    total = shifts.square().sum(-1).mean((0, 2))
    steps = shifts.diff(dim=0)
    noise = steps.square().sum(-1).mean((0, 2)) / 2 if len(steps) >= _FEWEST_STEPS else torch.zeros_like(total)
    return Shift(jitter=noise.sqrt(), motion=(total - noise).clamp_min(0).sqrt())


def _image_shifts(
    cameras: Cameras, rig: Cameras, depth: Float[Tensor, " V"], sizes: Sequence[tuple[int, int]]
) -> Float[Tensor, "T V N 3"]:
    """Return how far the viewing directions of a grid of points are off, times the focal length.

    Differences of directions are those of pixels where they are small, and bounded where a camera looks elsewhere.
    """
    cell = rig.intrinsics.new_tensor([[[_SIDE / width], [_SIDE / height], [1.0]] for height, width in sizes])
    grid = unproject(depth[:, None, None].expand(-1, _SIDE, _SIDE), cell * rig.intrinsics).flatten(1, 2)
    placed = transform_points(invert_rigid(rig.world_to_camera), grid)
    seen = transform_points(cameras.world_to_camera, placed.expand(len(cameras.world_to_camera), *placed.shape))
    focal = rig.intrinsics[:, [0, 1], [0, 1]].abs().prod(-1).sqrt()[:, None, None]  # untrained networks say anything
    unit = torch.nn.functional.normalize
    return focal * (unit(seen, dim=-1) - unit(grid, dim=-1))


def median_depths(predictions: Predictions) -> Float[Tensor, " V"]:
    """Return the median depth of each view; that of all where a view has none, 1 where none has."""
    known = has_depth(predictions)

    def median(depth: Tensor, where: Tensor, otherwise: Tensor) -> Tensor:
        return depth[where].double().median() if bool(where.any()) else otherwise

    of_all = median(predictions.depth, known, torch.ones((), dtype=torch.float64))
    views = range(known.shape[2])
    return torch.stack([median(predictions.depth[:, :, v], known[:, :, v], of_all) for v in views])
