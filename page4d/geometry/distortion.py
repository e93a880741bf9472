"""Lens distortion, both ways: Brown-Conrady (with the rational terms) and the fisheye model of Kannala and Brandt.

Functions act on image-plane coordinates (x / z, y / z), so they do not depend on the intrinsics or the pixel centre.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import InputError

LARGEST_RADIUS = 1e6
"""Image-plane radius that stands for 90 degrees where a lens model has no limit of its own."""


class LensModel(StrEnum):
    """How radius and angle of a ray relate on the sensor."""

    BROWN_CONRADY = "brown-conrady"
    FISHEYE = "fisheye"


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """Coefficients in OpenCV's order: k1 k2 p1 p2 [k3 [k4 k5 k6]] for Brown-Conrady, k1 k2 k3 k4 for fisheye.

    Raises:
        InputError: for a number of coefficients that the model does not have, or values that are not finite.
    """

    model: LensModel
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        allowed = (4,) if self.model is LensModel.FISHEYE else (4, 5, 8)
        if len(self.coefficients) not in allowed:
            raise InputError(
                f"{len(self.coefficients)} coefficients for {self.model} distortion",
                f"give {' or '.join(map(str, allowed))}",
            )
        if not all(abs(value) < float("inf") for value in self.coefficients):
            raise InputError(f"distortion coefficients {self.coefficients}", "give finite numbers")

    @property
    def is_identity(self) -> bool:
        """True if a Brown-Conrady lens bends nothing (a fisheye lens always does)."""
        return self.model is LensModel.BROWN_CONRADY and not any(self.coefficients)

    def distort(self, plane: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Map ideal image-plane coordinates to where the lens puts them."""
        if self.model is LensModel.FISHEYE:
            radius = plane.norm(dim=-1, keepdim=True)
            return plane * _ratio(_fisheye_radius(torch.atan(radius), self.coefficients)[0], radius)
        return _brown_conrady(plane, self.coefficients)[0]

    def undistort(self, plane: Float[Tensor, "*batch 2"], iterations: int = 50) -> Float[Tensor, "*batch 2"]:
        """Map what the lens shows back to ideal image-plane coordinates; undoes `distort` where it is one-to-one.

        Coordinates that no ideal ray reaches, or whose ray is 90 degrees or more off the axis, come back as NaN.
        """
        if self.model is LensModel.FISHEYE:
            return self._undistort_fisheye(plane, iterations)
        return self._undistort_brown_conrady(plane, iterations)

    def in_domain(self, plane: Float[Tensor, "*batch 2"]) -> Bool[Tensor, "*batch"]:
        """Return True where ideal coordinates lie inside the radius up to which the radial model grows.

        Beyond it a polynomial folds back: it would show the same piece of the image a second time.
        """
        if self.model is LensModel.FISHEYE:
            limit = math.tan(min(_first_turning_angle(self.coefficients), math.pi / 2))
        else:
            limit = _first_turning_radius(self.coefficients)
        inside: Tensor = plane.norm(dim=-1) <= limit
        return inside

    def _undistort_brown_conrady(self, plane: Tensor, iterations: int) -> Tensor:
        limit = min(_first_turning_radius(self.coefficients), LARGEST_RADIUS)
        k1, k2, _, _, *rest = self.coefficients
        radial = (k1, k2, 0.0, 0.0, *rest)

        def show_radius(radius: Tensor) -> tuple[Tensor, Tensor]:
            bent, jacobian = _brown_conrady(torch.stack([radius, torch.zeros_like(radius)], dim=-1), radial)
            return bent[..., 0], jacobian[0]

        # The radial part alone has one answer, found safely; the small tangential part is a few steps away.
        distance = plane.norm(dim=-1, keepdim=True)
        ideal = plane * _ratio(_invert_growing(show_radius, distance, limit, iterations), distance)
        for _ in range(iterations):
            shown, jacobian = _brown_conrady(ideal, self.coefficients)
            error = shown - plane
            if error.numel() == 0 or error.abs().max() < 4 * torch.finfo(plane.dtype).eps:
                break
            a, b, c, d = jacobian
            determinant = a * d - b * c
            step = torch.stack([d * error[..., 0] - b * error[..., 1], a * error[..., 1] - c * error[..., 0]], dim=-1)
            ideal = ideal - step / determinant[..., None]
            # A step beyond the turning radius would land on the mirror branch: pull it back inside.
            radius = ideal.norm(dim=-1, keepdim=True)
            ideal = torch.where(radius > limit, ideal * (0.999 * limit / radius), ideal)
        error = _brown_conrady(ideal, self.coefficients)[0] - plane
        scale = 1 + plane.norm(dim=-1)
        solved = error.norm(dim=-1) <= scale * torch.finfo(plane.dtype).eps ** 0.75
        return torch.where(solved[..., None], ideal, torch.nan)

    def _undistort_fisheye(self, plane: Tensor, iterations: int) -> Tensor:
        shown = plane.norm(dim=-1, keepdim=True)
        limit = min(_first_turning_angle(self.coefficients), math.pi / 2)
        angle = _invert_growing(lambda angle: _fisheye_radius(angle, self.coefficients), shown, limit, iterations)
        error = _fisheye_radius(angle, self.coefficients)[0] - shown
        solved = (error.abs() <= (1 + shown) * torch.finfo(plane.dtype).eps ** 0.75) & (angle < math.pi / 2)
        return torch.where(solved, plane * _ratio(torch.tan(angle), shown), torch.nan)


def _invert_growing(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, limit: float, iterations: int
) -> Tensor:
    """Find where a function that grows on [0, limit] reaches `target`; it returns its value and its derivative.

    Newton's steps inside a shrinking bracket; where one would leave it (the slope vanishes at the limit, or the
    function has a pole there) the bracket is halved. Targets that are not reached end at the limit.
    """
    place = torch.where(target < limit, target, torch.full_like(target, limit / 2))
    low, high = torch.zeros_like(target), torch.full_like(target, limit)
    for _ in range(iterations):
        value, slope = function(place)
        low, high = torch.where(value > target, low, place), torch.where(value > target, place, high)
        newton = place - (value - target) / slope
        step = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2) - place
        place = place + step
        if step.numel() == 0 or step.abs().max() < 4 * torch.finfo(target.dtype).eps:
            break
    return place


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, giving 1 where both vanish (the optical axis)."""
    return torch.where(denominator > 0, numerator / denominator, torch.ones_like(denominator))


def _brown_conrady(
    plane: Tensor, coefficients: tuple[float, ...]
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Distort and return the Jacobian's entries row by row.

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
    shown = torch.stack(
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
    return shown, jacobian


def _fisheye_radius(angle: Tensor, coefficients: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return the distance from the axis on the sensor for a ray angle, and its derivative.

    Source: Kannala & Brandt (2006), eq. 6, in the form of OpenCV's fisheye module.
    """
    k1, k2, k3, k4 = coefficients
    squared = angle * angle
    radius = angle * (1 + squared * (k1 + squared * (k2 + squared * (k3 + squared * k4))))
    slope = 1 + squared * (3 * k1 + squared * (5 * k2 + squared * (7 * k3 + squared * 9 * k4)))
    return radius, slope


def _first_turning_radius(coefficients: tuple[float, ...]) -> float:
    """Return the smallest radius at which r * (1 + k1 r^2 + ...) / (1 + k4 r^2 + ...) stops growing."""
    k1, k2, _, _, k3, k4, k5, k6 = coefficients + (0.0,) * (8 - len(coefficients))
    top = torch.tensor([1.0, k1, k2, k3], dtype=torch.float64)
    bottom = torch.tensor([1.0, k4, k5, k6], dtype=torch.float64)
    # With u = r^2 the derivative's numerator is top * bottom + 2 u (top' * bottom - top * bottom').
    order = torch.arange(4, dtype=torch.float64)
    product = _multiply(top, bottom)
    turning = product + 2 * (_multiply(order * top, bottom) - _multiply(top, order * bottom))
    return math.sqrt(min(_smallest_positive_root(turning), _smallest_positive_root(bottom)))


def _first_turning_angle(coefficients: tuple[float, ...]) -> float:
    """Return the smallest ray angle at which the fisheye radius stops growing."""
    k1, k2, k3, k4 = coefficients
    slope = torch.tensor([1.0, 3 * k1, 5 * k2, 7 * k3, 9 * k4], dtype=torch.float64)
    return math.sqrt(_smallest_positive_root(slope))


def _multiply(first: Tensor, second: Tensor) -> Tensor:
    """Multiply two polynomials given by ascending coefficients."""
    result = torch.zeros(len(first) + len(second) - 1, dtype=first.dtype)
    for power, coefficient in enumerate(first):
        result[power : power + len(second)] += coefficient * second
    return result


def _smallest_positive_root(ascending: Tensor) -> float:
    """Return the smallest positive real root of a polynomial that is 1 at zero, or infinity.

    The companion matrix is that of the polynomial in 1 / u, which is monic: the roots near zero, which matter, are
    its largest eigenvalues, and a tiny highest coefficient is never divided by.
    """
    relevant = (ascending.abs() > 1e-30).nonzero().flatten()
    degree = int(relevant[-1])
    if degree == 0:
        return float("inf")
    companion = torch.zeros(degree, degree, dtype=ascending.dtype)
    companion[0] = -ascending[1 : degree + 1]
    companion[range(1, degree), range(degree - 1)] = 1.0
    roots = torch.linalg.eigvals(companion)
    real = roots.real[(roots.imag.abs() < 1e-9 * roots.real.abs()) & (roots.real > 0)]
    return 1 / float(real.max()) if len(real) else float("inf")
