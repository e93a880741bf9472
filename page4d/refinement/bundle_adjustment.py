"""Bundle adjustment: cameras, and depths of some of their pixels, from where these pixels are found in other images.

Everything is known beforehand to some degree, so that a few uncertain finds improve on a guess and none spoil it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras
from page4d.refinement.normal_equations import Beliefs, Bundle, Guess, Sightings

_WIDEST_KERNEL = 0.12
"""Of the image's long side: finds that are further off hardly count, to begin with."""

_NARROWEST_KERNEL = 1.0
"""In standard deviations of a find, in the end: what is further off counts less and less."""

_NUM_KERNELS = 6
_LATER_KERNELS = (3.0, 0.5, 3)
"""Widest and narrowest, in standard deviations of a find, and how many, where an earlier adjustment went before."""

_STEPS_A_KERNEL = 2
_LEAST_GAIN = 1e-9
"""Of twice the negative log-likelihood: less is rounding."""


@dataclass(frozen=True, kw_only=True)
class Adjusted:
    """Better cameras, better depths of the pixels, and by how much their errors of projection fell, from 0 to 1.

    `guess` is the same in the terms of an adjustment, so that another one can begin there.
    """

    cameras: Cameras
    depth: Float[Tensor, "B N P"]
    gain: Float[Tensor, " B"]
    guess: Guess


def adjust(
    cameras: Cameras,
    depth: Float[Tensor, "B N P"],
    sightings: Sightings,
    beliefs: Beliefs | None = None,
    earlier: Adjusted | None = None,
) -> Adjusted:
    """Return the likeliest cameras and depths, the first camera's pose as it was; scenes that get worse stay.

    What is believed is that `cameras` and `depth` are right but for errors as `beliefs` say. An `earlier` adjustment
    of the same ones, to other sightings, is where this one begins: finds are expected close to where it shows them.

    Iterated least squares in float64 with a robust kernel that narrows; depths are eliminated.

    Source: Triggs et al. (1999), "Bundle Adjustment", sections 3.3 and 6.1 (robust costs, the reduced camera system);
    the kernel is of Geman & McClure (1987), narrowed as in Black & Rangarajan (1996).

    Raises:
        ShapeError: if cameras, depths and sightings are not of the same images.
    """
    _check(cameras, depth, sightings)
    bundle = Bundle(cameras, depth, sightings, beliefs or Beliefs())
    guess = bundle.start if earlier is None else earlier.guess
    kernels = _kernels(cameras, sightings.sigma_px) if earlier is None else _later_kernels(sightings.sigma_px)
    for kernel in kernels:
        for _ in range(_STEPS_A_KERNEL):
            guess = bundle.improved(guess, kernel)
    before, after = (bundle.cost(one, kernels[-1]) for one in (bundle.start, guess))
    better = after < before - _LEAST_GAIN
    kept = Guess(*(_choose(better, new, old) for new, old in zip(guess, bundle.start, strict=True)))
    gain = torch.where(better, 1 - after / before, 0.0)
    return Adjusted(cameras=bundle.cameras_of(kept), depth=bundle.depth_of(kept), gain=gain, guess=kept)


def _kernels(cameras: Cameras, sigma_px: float) -> list[float]:
    """Return the widths of the robust kernel in px, wide first."""
    narrowest = sigma_px * _NARROWEST_KERNEL
    widest = max(narrowest, _WIDEST_KERNEL * max(cameras.image_size))
    return _between(widest, narrowest, _NUM_KERNELS)


def _later_kernels(sigma_px: float) -> list[float]:
    widest, narrowest, number = _LATER_KERNELS
    return _between(sigma_px * widest, sigma_px * narrowest, number)


def _between(widest: float, narrowest: float, number: int) -> list[float]:
    shares = torch.linspace(0, 1, number, dtype=torch.float64)
    widths: list[float] = (widest * (narrowest / widest) ** shares).tolist()
    return widths


def _choose(which: Bool[Tensor, " B"], first: Tensor, second: Tensor) -> Tensor:
    return torch.where(which.reshape(-1, *(1,) * (first.ndim - 1)), first, second)


def _check(cameras: Cameras, depth: Tensor, sightings: Sightings) -> None:
    batch, num_images, num_pixels = depth.shape
    num_others = sightings.images.shape[1]
    expected = {
        "cameras": (tuple(cameras.world_to_camera.shape[:-2]), (batch, num_images)),
        "pixels": (tuple(sightings.pixels.shape), (batch, num_images, num_pixels, 2)),
        "finds": (tuple(sightings.found.shape), (batch, num_images, num_others, num_pixels, 2)),
        "weights": (tuple(sightings.weight.shape), (batch, num_images, num_others, num_pixels)),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise ShapeError(f"{name} of shape {found} with depths of {tuple(depth.shape)}", f"give {wanted}")
