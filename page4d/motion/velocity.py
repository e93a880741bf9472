"""Velocities from the displacements of points to the instants before and after."""

from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from page4d.motion.rig_flow import Displacement

ONE_SIDED_ERROR = 0.25
"""Standard deviation of a one-sided difference relative to the displacement: half a step of acceleration."""


class Velocity(NamedTuple):
    """Velocity of the points of a depth map in units of the scene per second, its standard deviation, and the views.

    `views` is the number of views that measured it, 0 where it is unknown: velocity and sigma are 0 there. The
    velocity is exactly 0 where a point stands still, and `views` then is `STILL`.
    """

    velocity: Float[Tensor, "h w 3"]
    sigma: Float[Tensor, "h w"]
    views: UInt8[Tensor, "h w"]


def combine(
    before: Displacement | None, after: Displacement | None, seconds_before: float, seconds_after: float
) -> Velocity:
    """Return the central difference of the displacements to the instants before and after.

    `seconds_before` and `seconds_after` are the positive distances in time. Where one of the displacements is
    unknown, or only one of them was measured by several views, the difference is one-sided.
    """
    if before is None or after is None:
        side, seconds = (after, seconds_after) if before is None else (before, -seconds_before)
        assert side is not None
        return _one_sided(side, seconds)
    sides = (_one_sided(before, -seconds_before), _one_sided(after, seconds_after))
    span = seconds_before + seconds_after
    both = (before.views > 0) & (after.views > 0) & ((before.views > 1) == (after.views > 1))
    take_after = (before.views == 0) | (after.views > 1)  # the better one, where only one of them is

    def chosen(central: Tensor, of_before: Tensor, of_after: Tensor) -> Tensor:
        spare = (1,) * (central.ndim - both.ndim)
        one = torch.where(take_after.reshape(*both.shape, *spare), of_after, of_before)
        return torch.where(both.reshape(*both.shape, *spare), central, one)

    return Velocity(
        chosen((after.motion - before.motion) / span, sides[0].velocity, sides[1].velocity),
        chosen(
            (after.sigma.square() + before.sigma.square()).sqrt() / span,
            sides[0].sigma,
            sides[1].sigma,
        ),
        chosen(torch.minimum(after.views, before.views), sides[0].views, sides[1].views),
    )


def _one_sided(side: Displacement, seconds: float) -> Velocity:
    change = ONE_SIDED_ERROR * side.motion.norm(dim=-1)
    sigma = (side.sigma.square() + change.square()).sqrt() / abs(seconds)
    # A component of exactly 0 keeps its sign: no -0.0 in files.
    velocity = side.motion / seconds + 0.0
    return Velocity(velocity, torch.where(side.views > 0, sigma, 0.0), side.views)
