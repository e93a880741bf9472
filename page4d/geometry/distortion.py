"""Lens distortion and its inverse: the rational Brown-Conrady and the Kannala-Brandt fisheye model.

Coordinates are normalized image coordinates (x / z, y / z), independent of intrinsics and pixel centre convention.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.choices import LensModel as LensModel
from page4d.errors import InputError

_MAX_RADIUS = 1e6
"""Bound on the radius in normalized image coordinates for lens models that are monotonic up to 90 degrees."""

_SMALLEST_RECIPROCAL = 1e-30


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """Coefficients in OpenCV's order: k1 k2 p1 p2 [k3 [k4 k5 k6]] for Brown-Conrady, k1 k2 k3 k4 for fisheye.

    Raises:
        InputError: if the number of coefficients does not match the model or a coefficient is not finite.
    """

    model: LensModel
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        allowed = (4,) if self.model is LensModel.FISHEYE else (4, 5, 8)
        if len(self.coefficients) not in allowed:
            raise InputError(
                f"{len(self.coefficients)} coefficients for {self.model} distortion",
                f"pass {' or '.join(map(str, allowed))} coefficients",
            )
        if not all(abs(value) < float("inf") for value in self.coefficients):
            raise InputError(f"the distortion coefficients {self.coefficients} are not finite", "pass finite numbers")

    @property
    def is_identity(self) -> bool:
        """True for Brown-Conrady distortion with zero coefficients; a fisheye model is never the identity."""
        return self.model is LensModel.BROWN_CONRADY and not any(self.coefficients)

    def distort(self, plane: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Map ideal (undistorted) to distorted coordinates."""
        if self.model is LensModel.FISHEYE:
            radius = plane.norm(dim=-1, keepdim=True)
            return plane * _ratio(_fisheye_radius(torch.atan(radius), self.coefficients)[0], radius)
        return _brown_conrady(plane, self.coefficients)[0]

    def undistort(self, plane: Float[Tensor, "*batch 2"], iterations: int = 50) -> Float[Tensor, "*batch 2"]:
        """Map distorted to ideal coordinates; the inverse of `distort` within its domain.

        The result is NaN where no ideal ray exists, or where it is 90 degrees or more off the optical axis.
        """
        if self.model is LensModel.FISHEYE:
            return self._undistort_fisheye(plane, iterations)
        return self._undistort_brown_conrady(plane, iterations)

    def in_domain(self, plane: Float[Tensor, "*batch 2"]) -> Bool[Tensor, "*batch"]:
        """Return True where ideal coordinates lie within the radius up to which radial distortion is monotonic.

        Beyond it the polynomial folds back and would repeat a part of the image.
        """
        if self.model is LensModel.FISHEYE:
            limit = math.tan(min(_first_turning_angle(self.coefficients), math.pi / 2))
        else:
            limit = _first_turning_radius(self.coefficients)
        inside: Tensor = plane.norm(dim=-1) <= limit
        return inside

    def _undistort_brown_conrady(self, plane: Tensor, iterations: int) -> Tensor:
        limit = min(_first_turning_radius(self.coefficients), _MAX_RADIUS)
        k1, k2, _, _, *rest = self.coefficients
        radial = (k1, k2, 0.0, 0.0, *rest)

        def distorted_radius(radius: Tensor) -> tuple[Tensor, Tensor]:
            distorted, jacobian = _brown_conrady(torch.stack([radius, torch.zeros_like(radius)], dim=-1), radial)
            return distorted[..., 0], jacobian[0]

        # The radial part has a unique inverse by bracketing; Newton steps then add the small tangential part.
        distance = plane.norm(dim=-1, keepdim=True)
        ideal = plane * _ratio(_invert_monotonic(distorted_radius, distance, limit, iterations), distance)
        for _ in range(iterations):
            distorted, jacobian = _brown_conrady(ideal, self.coefficients)
            error = distorted - plane
            if error.numel() == 0 or error.abs().max() < 4 * torch.finfo(plane.dtype).eps:
                break
            a, b, c, d = jacobian
            determinant = a * d - b * c
            step = torch.stack([d * error[..., 0] - b * error[..., 1], a * error[..., 1] - c * error[..., 0]], dim=-1)
            ideal = ideal - step / determinant[..., None]
            # A step beyond the limit would reach the folded branch: clamp the radius.
            radius = ideal.norm(dim=-1, keepdim=True)
            ideal = torch.where(radius > limit, ideal * (0.999 * limit / radius), ideal)
        error = _brown_conrady(ideal, self.coefficients)[0] - plane
        scale = 1 + plane.norm(dim=-1)
        solved = error.norm(dim=-1) <= scale * torch.finfo(plane.dtype).eps ** 0.75
        return torch.where(solved[..., None], ideal, torch.nan)

    def _undistort_fisheye(self, plane: Tensor, iterations: int) -> Tensor:
        distorted = plane.norm(dim=-1, keepdim=True)
        limit = min(_first_turning_angle(self.coefficients), math.pi / 2)
        angle = _invert_monotonic(
            lambda angle: _fisheye_radius(angle, self.coefficients), distorted, limit, iterations
        )
        error = _fisheye_radius(angle, self.coefficients)[0] - distorted
        solved = (error.abs() <= (1 + distorted) * torch.finfo(plane.dtype).eps ** 0.75) & (angle < math.pi / 2)
        return torch.where(solved, plane * _ratio(torch.tan(angle), distorted), torch.nan)


def _invert_monotonic(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, limit: float, iterations: int
) -> Tensor:
    """Invert a function that increases on [0, limit] and returns its value and derivative.

    Newton steps inside a shrinking bracket; a step that leaves the bracket (zero slope or a pole at the limit) is
    replaced by bisection. Targets beyond the range converge to the limit.
    """
    position = torch.where(target < limit, target, torch.full_like(target, limit / 2))
    low, high = torch.zeros_like(target), torch.full_like(target, limit)
    for _ in range(iterations):
        value, slope = function(position)
        low, high = torch.where(value > target, low, position), torch.where(value > target, position, high)
        newton = position - (value - target) / slope
        step = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2) - position
        position = position + step
        if step.numel() == 0 or step.abs().max() < 4 * torch.finfo(target.dtype).eps:
            break
    return position


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide; 1 on the optical axis, where both are 0."""
    return torch.where(denominator > 0, numerator / denominator, torch.ones_like(denominator))


def _brown_conrady(
    plane: Tensor, coefficients: tuple[float, ...]
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return distorted coordinates and the entries of the Jacobian in row-major order.

    Source: OpenCV 4 documentation, "Camera Calibration and 3D Reconstruction", detailed description.
    """
    k1, k2, p1, p2, k3, k4, k5, k6 = coefficients + (0.0,) * (8 - len(coefficients))
    x, y = plane[..., 0], plane[..., 1]
    squared = x * x + y * y
    top = 1 + squared * (k1 + squared * (k2 + squared * k3))
    bottom = 1 + squared * (k4 + squared * (k5 + squared * k6))
    radial = top / bottom
    # Derivative of the radial factor with respect to r^2.
    slope = (
        (k1 + squared * (2 * k2 + squared * 3 * k3)) - radial * (k4 + squared * (2 * k5 + squared * 3 * k6))
    ) / bottom
    distorted = torch.stack(
        [
            x * radial + 2 * p1 * x * y + p2 * (squared + 2 * x * x),
            y * radial + p1 * (squared + 2 * y * y) + 2 * p2 * x * y,
        ],
        dim=-1,
    )
    cross = 2 * x * y * slope + 2 * p1 * x + 2 * p2 * y
    jacobian = (
        radial + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x,
        cross,
        cross,
        radial + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x,
    )
    return distorted, jacobian


def _fisheye_radius(angle: Tensor, coefficients: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return the distorted radius of a ray angle, and its derivative.

    Source: Kannala & Brandt (2006), eq. 6, in the form of OpenCV's fisheye module.
    """
    k1, k2, k3, k4 = coefficients
    squared = angle * angle
    radius = angle * (1 + squared * (k1 + squared * (k2 + squared * (k3 + squared * k4))))
    slope = 1 + squared * (3 * k1 + squared * (5 * k2 + squared * (7 * k3 + squared * 9 * k4)))
    return radius, slope


def _first_turning_radius(coefficients: tuple[float, ...]) -> float:
    """Return the smallest radius at which r * (1 + k1 r^2 + ...) / (1 + k4 r^2 + ...) stops increasing."""
    k1, k2, _, _, k3, k4, k5, k6 = coefficients + (0.0,) * (8 - len(coefficients))
    top, bottom, order = np.array([1.0, k1, k2, k3]), np.array([1.0, k4, k5, k6]), np.arange(4)
    # With u = r^2 the numerator of the derivative is top * bottom + 2 u (top' * bottom - top * bottom').
    turning = np.convolve(top, bottom) + 2 * (np.convolve(order * top, bottom) - np.convolve(top, order * bottom))
    return math.sqrt(min(_smallest_positive_root(turning), _smallest_positive_root(bottom)))


def _first_turning_angle(coefficients: tuple[float, ...]) -> float:
    """Return the smallest ray angle at which the fisheye radius stops increasing."""
    k1, k2, k3, k4 = coefficients
    return math.sqrt(_smallest_positive_root(np.array([1.0, 3 * k1, 5 * k2, 7 * k3, 9 * k4])))


def _smallest_positive_root(ascending: NDArray[np.float64]) -> float:
    """Return the smallest positive real root of a polynomial with constant term 1, or infinity.

    It is the reciprocal of the largest root of the reversed polynomial, which is monic: a tiny leading coefficient is
    never a divisor.
    """
    roots = np.roots(ascending)
    real = roots.real[(np.abs(roots.imag) < 1e-9 * np.abs(roots.real)) & (roots.real > _SMALLEST_RECIPROCAL)]
    return 1 / float(real.max()) if len(real) else float("inf")
