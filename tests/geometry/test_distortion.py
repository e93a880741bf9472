"""Lens distortion: agreement with OpenCV, inversion, and the domain of the inverse."""

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from page4d.errors import InputError
from page4d.geometry.distortion import Distortion, LensModel
from tests.geometry.geometry_samples import DTYPES, close, normal

BROWN = {
    "none": (0.0, 0.0, 0.0, 0.0),
    "barrel": (-0.28, 0.09, 1e-3, -5e-4),
    "pincushion": (0.1, 0.02, -2e-3, 1e-3),
    "treadmill": (-0.046183, 0.139983, 0.000608, 0.00069, 0.0),
    "sixth": (-0.3, 0.12, 0.0, 0.0, -0.02),
    "rational": (0.4, -0.2, 1e-3, 2e-4, 0.01, 0.7, -0.05, 0.002),
}
FISHEYE = {
    "equidistant": (0.0, 0.0, 0.0, 0.0),
    "wide": (-0.02, 0.005, -0.004, 0.0008),
    "action camera": (0.06, -0.03, 0.02, -0.006),
    "strong": (-0.12, 0.0, 0.0, 0.0),
}
LENSES = {name: Distortion(model=LensModel.BROWN_CONRADY, coefficients=values) for name, values in BROWN.items()}
LENSES |= {name: Distortion(model=LensModel.FISHEYE, coefficients=values) for name, values in FISHEYE.items()}


def plane_points(largest: float, seed: int = 0, count: int = 2000) -> Tensor:
    """Return points spread evenly over radii up to `largest`."""
    direction = torch.nn.functional.normalize(normal(count, 2, seed=seed), dim=-1)
    return direction * torch.linspace(0, largest, count, dtype=torch.float64)[:, None]


def opencv_distort(lens: Distortion, plane: Tensor) -> Tensor:
    points = torch.cat([plane, torch.ones_like(plane[:, :1])], dim=-1).numpy()
    coefficients = np.array(lens.coefficients)
    if lens.model is LensModel.FISHEYE:
        shown = cv2.fisheye.distortPoints(plane.numpy()[:, None], np.eye(3), coefficients)
    else:
        shown = cv2.projectPoints(points, np.zeros(3), np.zeros(3), np.eye(3), coefficients)[0]
    return torch.from_numpy(shown.reshape(-1, 2))


@pytest.mark.parametrize("name", LENSES)
def test_distortion_agrees_with_opencv(name: str) -> None:
    plane = plane_points(1.5)
    close(LENSES[name].distort(plane), opencv_distort(LENSES[name], plane), factor=10)


def largest_radius(lens: Distortion, limit: float = 20.0) -> float:
    """Find by exhaustive search the radius up to which radial distortion is monotonic, at most `limit`."""
    radial = lens
    if lens.model is LensModel.BROWN_CONRADY:
        k = lens.coefficients
        radial = Distortion(model=lens.model, coefficients=(k[0], k[1], 0.0, 0.0, *k[4:]))
    radii = torch.linspace(0, math.atan(limit), 50_001, dtype=torch.float64).tan()
    shown = radial.distort(torch.stack([radii, torch.zeros_like(radii)], dim=-1))[:, 0]
    falls = (shown[1:] <= shown[:-1]).nonzero().flatten()
    return float(radii[falls[0]]) if len(falls) else limit


@pytest.mark.parametrize("name", LENSES)
def test_undistortion_inverts_distortion_within_the_domain(name: str) -> None:
    lens = LENSES[name]
    plane = plane_points(min(0.9 * largest_radius(lens), 3.0))
    close(lens.undistort(lens.distort(plane)), plane, factor=1000)
    assert bool(lens.in_domain(plane).all())


@pytest.mark.parametrize("name", LENSES)
def test_distortion_inverts_undistortion_where_it_is_finite(name: str) -> None:
    lens = LENSES[name]
    shown = plane_points(1.3, seed=1)
    ideal = lens.undistort(shown)
    finite = torch.isfinite(ideal).all(-1)
    assert int(finite.sum()) > 300
    close(lens.distort(ideal[finite]), shown[finite], factor=100)


@pytest.mark.parametrize("name", LENSES)
def test_the_domain_agrees_with_exhaustive_search(name: str) -> None:
    lens = LENSES[name]
    edge = largest_radius(lens)
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    assert bool(lens.in_domain(direction * edge * 0.999))
    if edge < 20:
        assert not bool(lens.in_domain(direction * edge * 1.001))


def test_negligible_coefficients_do_not_change_the_domain() -> None:
    radial = (0.0, 0.0, 0.0, 0.0, 0.0, 0.25, -0.25)
    plain = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(*radial, 0.0))
    plane = plane_points(2.0)
    for tiny in (2.8e-238, 1e-40, -1e-20):
        lens = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(*radial, tiny))
        assert torch.equal(lens.in_domain(plane), plain.in_domain(plane))


def test_undistortion_beyond_the_domain_is_nan() -> None:
    lens = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(-0.3, 0.0, 0.0, 0.0))
    edge = 1 / math.sqrt(0.9)
    farthest = edge * (1 - 0.3 * edge**2)
    shown = torch.tensor([[farthest * 0.999, 0.0], [farthest * 1.001, 0.0], [3.0, 3.0]], dtype=torch.float64)
    ideal = lens.undistort(shown)
    assert bool(torch.isfinite(ideal[0]).all())
    assert 0 < float(ideal[0, 0]) < edge
    assert bool(torch.isnan(ideal[1:]).all())


def test_undistortion_never_returns_the_folded_branch() -> None:
    lens = LENSES["barrel"]
    edge = largest_radius(lens)
    ideal = lens.undistort(plane_points(1.3, seed=2))
    radii = ideal[torch.isfinite(ideal).all(-1)].norm(dim=-1)
    assert float(radii.max()) <= edge * 1.001


def test_fisheye_undistortion_beyond_90_degrees_is_nan() -> None:
    lens = LENSES["equidistant"]
    shown = torch.tensor([[1.5, 0.0], [math.pi / 2 + 1e-6, 0.0], [2.5, 0.0]], dtype=torch.float64)
    ideal = lens.undistort(shown)
    close(ideal[0], torch.tensor([math.tan(1.5), 0.0], dtype=torch.float64), factor=100)
    assert bool(torch.isnan(ideal[1:]).all())


@pytest.mark.parametrize("name", LENSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_axis_is_fixed_and_dtypes_and_batch_axes_are_kept(name: str, dtype: torch.dtype) -> None:
    lens = LENSES[name]
    zero = torch.zeros(2, dtype=dtype)
    close(lens.distort(zero), zero)
    close(lens.undistort(zero), zero)
    plane = 0.1 * normal(3, 4, 2, seed=3, dtype=dtype)
    assert lens.undistort(plane).shape == lens.distort(plane).shape == plane.shape
    assert lens.undistort(plane).dtype == lens.distort(plane).dtype == dtype
    assert lens.in_domain(plane).shape == plane.shape[:-1]
    close(lens.undistort(lens.distort(plane)), plane, factor=10)
    assert lens.undistort(torch.zeros(0, 2, dtype=dtype)).shape == (0, 2)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    radial=st.lists(st.floats(-0.4, 0.4), min_size=6, max_size=6),
    tangential=st.tuples(st.floats(-2e-3, 2e-3), st.floats(-2e-3, 2e-3)),
)
def test_random_lenses_are_inverted_within_their_domain(radial: list[float], tangential: tuple[float, float]) -> None:
    k1, k2, k3, k4, k5, k6 = radial
    brown = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(k1, k2, *tangential, k3, k4, k5, k6))
    fisheye = Distortion(model=LensModel.FISHEYE, coefficients=(k1, k2, k3, k4))
    for lens in (brown, fisheye):
        plane = plane_points(min(0.7 * largest_radius(lens), 1.0), seed=4, count=100)
        assert bool(lens.in_domain(plane).all())
        torch.testing.assert_close(lens.undistort(lens.distort(plane)), plane, atol=1e-8, rtol=0)


def test_invalid_coefficients_are_refused() -> None:
    with pytest.raises(InputError, match="3 coefficients for brown-conrady distortion") as caught:
        Distortion(model=LensModel.BROWN_CONRADY, coefficients=(0.1, 0.0, 0.0))
    assert caught.value.hint == "pass 4 or 5 or 8 coefficients"
    with pytest.raises(InputError, match="5 coefficients for fisheye"):
        Distortion(model=LensModel.FISHEYE, coefficients=(0.0,) * 5)
    with pytest.raises(InputError, match="nan"):
        Distortion(model=LensModel.FISHEYE, coefficients=(0.0, 0.0, 0.0, math.nan))


def test_only_zero_brown_conrady_coefficients_are_the_identity() -> None:
    assert LENSES["none"].is_identity
    assert not LENSES["barrel"].is_identity
    assert not LENSES["equidistant"].is_identity
