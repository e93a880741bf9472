"""Velocity maps as PNG files of 16 bits: three channels, and the standard deviations in a file of their own."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.output.arrays import to_numpy
from page4d.output.maps import read_png

STILL_LEVEL = 32768
"""Level of a velocity of exactly 0; a pixel whose three levels are 0 has an unknown velocity."""

MOTION_MAPPING = (
    f"motion: velocity in the world = (png - {STILL_LEVEL}) * motion_step per second, channels x y z (RGB); 0 0 0 "
    "where it is unknown. motion_sigma: standard deviation = png * motion_step; 0 where the velocity is unknown"
)

_FASTEST = 32767


class VelocityLevels(NamedTuple):
    """Levels of a velocity map, of its standard deviations, and the number of clipped velocities."""

    velocity: NDArray[np.uint16]
    sigma: NDArray[np.uint16]
    num_clipped: int


def quantize_velocity(
    velocity: Float[Tensor, "H W 3"], sigma: Float[Tensor, "H W"], motion_step: float
) -> VelocityLevels:
    """Quantize velocities and their standard deviations; 0 where a velocity is unknown (sigma 0 or not finite).

    A velocity that is not exactly 0 does not become 0: a component below half a step is kept as one step where all
    components would vanish. Faster components than 32,767 steps are clipped and counted, sigma to at least one step.
    """
    values, spread = to_numpy(velocity).astype(np.float64), to_numpy(sigma).astype(np.float64)
    known = np.isfinite(values).all(-1) & np.isfinite(spread) & (spread > 0)
    values, spread = np.where(known[..., None], values, 0.0), np.where(known, spread, 0.0)
    steps = np.rint(values / motion_step)
    vanished = (steps == 0).all(-1) & (values != 0).any(-1)
    largest = np.abs(values).argmax(-1)[..., None]
    sign = np.sign(np.take_along_axis(values, largest, -1))
    kept = np.where(vanished[..., None], sign, np.take_along_axis(steps, largest, -1))
    np.put_along_axis(steps, largest, kept, -1)
    clipped = steps.clip(-_FASTEST, _FASTEST)
    levels = np.where(known[..., None], clipped + STILL_LEVEL, 0).astype(np.uint16)
    sigma_levels = np.where(known, np.rint(spread / motion_step).clip(1, 65535), 0).astype(np.uint16)
    return VelocityLevels(levels, sigma_levels, int((steps != clipped).any(-1).sum()))


def read_velocity(
    velocity: Path, sigma: Path, size: tuple[int, int], motion_step: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read velocities [H, W, 3] and standard deviations [H, W] per second; both are 0 where unknown.

    Raises:
        InputError: if a file is missing, damaged or of another kind.
    """
    levels, spread = read_png(velocity, np.uint16, (*size, 3)), read_png(sigma, np.uint16, size)
    known = (levels != 0).any(-1)
    values = (levels.astype(np.float64) - STILL_LEVEL) * motion_step
    return (
        np.where(known[..., None], values, 0.0).astype(np.float32),
        np.where(known, spread * motion_step, 0.0).astype(np.float32),
    )
