"""Bundle adjustment: cameras and depths of pixels from correspondences, around a Gaussian prior on all parameters."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras
from page4d.refinement.normal_equations import Correspondences, NormalEquations, Parameters, Priors

_INITIAL_KERNEL = 0.12
"""Width of the robust kernel at the start, in units of the image's long side."""

_FINAL_KERNEL = 1.0
"""Width of the robust kernel at the end, in standard deviations of a position."""

_NUM_KERNELS = 6
_CONTINUED_KERNELS = (3.0, 0.5, 3)
"""Initial and final width in standard deviations, and number of widths, when continuing an earlier adjustment."""

_STEPS_PER_KERNEL = 2
_MIN_GAIN = 1e-9
"""In units of twice the negative log posterior; smaller gains are rounding."""


@dataclass(frozen=True, kw_only=True)
class BundleAdjustment:
    """Adjusted cameras and depths, and the relative decrease of the cost in [0, 1].

    `parameters` are the same in the parametrization of the adjustment, from which another one can continue.
    """

    cameras: Cameras
    depth: Float[Tensor, "B N P"]
    gain: Float[Tensor, " B"]
    parameters: Parameters

    def with_focal_of_prior(self) -> "BundleAdjustment":
        """Return the starting point of an adjustment with fixed focal lengths."""
        zero = torch.zeros_like(self.parameters.log_focal)
        return replace(self, parameters=self.parameters._replace(log_focal=zero))


def adjust_bundle(
    cameras: Cameras,
    depth: Float[Tensor, "B N P"],
    correspondences: Correspondences,
    priors: Priors | None = None,
    initial: BundleAdjustment | None = None,
) -> BundleAdjustment:
    """Return the MAP estimate of cameras and depths, with the first pose as gauge.

    `cameras` and `depth` are the prior mean. An `initial` adjustment of the same cameras is the starting point; its
    correspondences are taken to be close, so that the robust kernel starts narrow. Iteratively reweighted least
    squares in float64 with a narrowing kernel; depths are eliminated (Schur complement). Scenes whose cost does not
    fall keep the prior mean.

    Source: Triggs et al. (1999), "Bundle Adjustment", sections 3.3 and 6.1 (robust costs, the reduced camera system);
    the kernel is of Geman & McClure (1987), narrowed as in Black & Rangarajan (1996).

    Raises:
        ShapeError: if cameras, depths and correspondences are not of the same images.
    """
    _check(cameras, depth, correspondences)
    problem = NormalEquations(cameras, depth, correspondences, priors or Priors())
    sigma_px = correspondences.sigma_px
    if initial is None:
        parameters, final = problem.start, sigma_px * _FINAL_KERNEL
        kernels = _kernels(max(final, _INITIAL_KERNEL * max(cameras.image_size)), final, _NUM_KERNELS)
    else:
        widest, narrowest, number = _CONTINUED_KERNELS
        parameters, kernels = initial.parameters, _kernels(sigma_px * widest, sigma_px * narrowest, number)
    for kernel in kernels:
        for _ in range(_STEPS_PER_KERNEL):
            parameters = problem.step(parameters, kernel)
    before, after = (problem.cost(one, kernels[-1]) for one in (problem.start, parameters))
    better = after < before - _MIN_GAIN
    kept = Parameters(*(_choose(better, new, old) for new, old in zip(parameters, problem.start, strict=True)))
    gain = torch.where(better, 1 - after / before, 0.0)
    return BundleAdjustment(
        cameras=problem.cameras_of(kept), depth=problem.depth_of(kept), gain=gain, parameters=kept
    )


def _kernels(widest: float, narrowest: float, number: int) -> list[float]:
    """Return kernel widths in px in a decreasing geometric sequence."""
    shares = torch.linspace(0, 1, number, dtype=torch.float64)
    widths: list[float] = (widest * (narrowest / widest) ** shares).tolist()
    return widths


def _choose(which: Bool[Tensor, " B"], first: Tensor, second: Tensor) -> Tensor:
    return torch.where(which.reshape(-1, *(1,) * (first.ndim - 1)), first, second)


def _check(cameras: Cameras, depth: Tensor, correspondences: Correspondences) -> None:
    batch, num_images, num_pixels = depth.shape
    num_targets = correspondences.targets.shape[1]
    expected = {
        "cameras": (tuple(cameras.world_to_camera.shape[:-2]), (batch, num_images)),
        "pixels": (tuple(correspondences.pixels.shape), (batch, num_images, num_pixels, 2)),
        "positions": (tuple(correspondences.positions.shape), (batch, num_images, num_targets, num_pixels, 2)),
        "weights": (tuple(correspondences.weight.shape), (batch, num_images, num_targets, num_pixels)),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise ShapeError(f"{name} of shape {found} with depths of {tuple(depth.shape)}", f"give {wanted}")
