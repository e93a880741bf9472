"""The world of points whose coordinates a user measured: origin, axes and metres from marks in pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from page4d.choices import UpAxis, WorldFrame
from page4d.errors import InputError, counted
from page4d.geometry.alignment import align_points
from page4d.output.rig_record import WorldRecord
from page4d.rig.floor import (
    COORDINATES_HINT,
    MAX_SIGMA,
    MAX_STD_DEG,
    FloorPoints,
    Vertical,
    floor_of_points,
    triangulated_marks,
)
from page4d.rig.length import TOLERANCE as METRE_TOLERANCE
from page4d.rig.records import Array, RigCamera, exp_rotation

_SURVEY = 0.003
"""Standard deviation of a coordinate that a user measured, as a share of the extent of the points."""

_MAX_MISFIT = 0.05
"""Distance of a point from its coordinates, as a share of the extent of all, from which on they are wrong: registered
cameras distort distances by 1 to 3 %."""

_THIN = 0.02
"""Width of points on a line, and thickness of those on a plane, as a share of their length."""

_SLOPE = 0.1
"""Slope of a level line at most."""

_MAX_SLOPE = 3.0
"""Angle between gravity by coordinates and by people, in standard deviations, from which on it is a contradiction."""

_ROUNDS = 10


def floor_world(
    points: FloorPoints,
    cameras: Mapping[str, RigCamera],
    up: UpAxis,
    *,
    is_metric: bool = False,
    other_vertical: Callable[[], Vertical | str] = lambda: "",
) -> WorldRecord:
    """Return the upright world of static cameras, by view, that stands on marked points or has their coordinates.

    With coordinates, `metres_per_unit` is that of the cameras, 1 if these are already in metres (`is_metric`). If all
    are on a line and no other points are marked, gravity is that of `other_vertical`, people, or why these show none.

    Raises:
        InputError: as `floor_of_points`; or if coordinates contradict the marks, gravity, the metres or the axis that
            is up.
    """
    if not points.coordinates:
        poses = np.stack([camera.world_to_camera for camera in cameras.values()])
        return floor_of_points(points, cameras).world(poses, up)
    marks = points.placed_in(cameras)
    names = [name for name in marks if name in points.coordinates]
    if len(names) < 2:
        raise points.too_few(f"{counted(len(names), 'point')} with coordinates", 2, cameras, COORDINATES_HINT)
    places, covariances = triangulated_marks(points.label, {name: marks[name] for name in names}, cameras)
    base, targets = places.mean(0), np.array([points.coordinates[name] for name in names])
    origin = targets.mean(0)
    targets = targets - origin
    extent = float(np.linalg.norm(targets, axis=1).max())
    is_line, axis, is_level = _layout(points.label, targets, up)
    vertical = np.array(axis.vector)
    gravity: Vertical | None = None
    if is_line:
        gravity = _gravity_of_line(points, cameras, len(names), len(marks), other_vertical)
        size = float(np.linalg.norm(places - base, axis=1).max())
        along = np.outer(gravity.up, gravity.up)
        spread = np.radians(gravity.std_deg) ** 2 * (np.eye(3) - along) + 100 * along
        places = np.concatenate([places, [base + size * gravity.up]])
        covariances = np.concatenate([covariances, [size**2 * spread]])
        targets = np.concatenate([targets, [extent * vertical]])
    fit = _Similarity.fitted(places, covariances, targets)
    if is_metric:
        if abs(np.log(fit.scale)) > max(METRE_TOLERANCE, 3 * fit.covariance[6, 6] ** 0.5):
            raise InputError(
                f"{points.label}: lengths by its coordinates are {fit.scale:.4g} times as long as by the cameras, "
                "which are in metres",
                "correct the coordinates, which are in metres, or the unit of the cameras",
            )
        fit = _Similarity.fitted(places, covariances, targets, is_rigid=True)
    misfits = np.linalg.norm(fit.residuals[: len(names)], axis=1)
    _check_fit(points.label, fit, names, extent, by_people=gravity is not None and gravity.num_poses > 0)
    above = np.array([(camera.center - fit.center) @ fit.rotation.T @ vertical for camera in cameras.values()])
    if is_level and 2 * (above < 0).sum() > len(above):
        raise InputError(
            f"cameras are below the floor in the coordinates of {points.label}",
            f"seen from above, with z up, y points to the left of x; {COORDINATES_HINT}",
        )
    frame = np.eye(4)
    frame[:3, :3] = fit.rotation
    frame[:3, 3] = (fit.shift + origin) / fit.scale - fit.rotation @ fit.center
    tilt = np.trace(fit.covariance[:3, :3]) - vertical @ fit.covariance[:3, :3] @ vertical
    floor_std = float(np.sqrt(vertical @ fit.covariance[3:6, 3:6] @ vertical)) / fit.scale if is_level else None
    if gravity is not None:
        base, floor_std = base + (gravity.floor - base @ gravity.up) * gravity.up, gravity.floor_std
    return WorldRecord(
        frame=WorldFrame.UPRIGHT,
        up=axis,
        transform=frame.tolist(),
        vertical=(vertical @ fit.rotation).tolist(),
        vertical_std_deg=float(np.degrees(np.sqrt(tilt))),
        floor=None if floor_std is None else float(base @ fit.rotation.T @ vertical),
        floor_std=floor_std,
        num_poses=0 if gravity is None else gravity.num_poses,
        num_points=len(marks) if is_line else len(names),
        num_coordinates=len(names),
        coordinates_rms=float(np.sqrt((misfits**2).mean())),
        metres_per_unit=fit.scale,
        metres_std=None if is_metric else float(fit.covariance[6, 6] ** 0.5),
    )


def _gravity_of_line(
    points: FloorPoints,
    cameras: Mapping[str, RigCamera],
    num_measured: int,
    num_marked: int,
    other_vertical: Callable[[], Vertical | str],
) -> Vertical:
    """Return gravity where points with coordinates are on a line, about which they leave a rotation.

    It is that of the plane of all points, if others are marked, else `other_vertical`.
    """
    found = floor_of_points(points, cameras) if num_marked > num_measured else other_vertical()
    if isinstance(found, str):
        raise InputError(
            f"{points.label}: {num_measured} points with coordinates, on a line, do not determine which way is up"
            f"{found and f', nor do people: {found}'}",
            "mark a third point of the floor in two views, with or without coordinates",
        )
    return found


def _check_fit(label: str, fit: "_Similarity", names: Sequence[str], extent: float, *, by_people: bool) -> None:
    """Refuse coordinates that do not fit the marks, or gravity, their last point, or leave the axes uncertain."""
    misfits = np.linalg.norm(fit.residuals, axis=1)
    worst = int(misfits[: len(names)].argmax())
    if misfits[worst] > _MAX_MISFIT * extent and fit.sigmas[worst] > MAX_SIGMA:
        raise InputError(
            f"{label}: its coordinates do not fit the marks, {names[worst]} by {misfits[worst]:.3g} m "
            f"({misfits[worst] / extent:.0%} of the extent of the points)",
            f"correct its coordinates or pixels; {COORDINATES_HINT}",
        )
    if by_people and fit.sigmas[-1] > _MAX_SLOPE:
        slope = np.degrees(np.arctan(misfits[-1] / extent))
        raise InputError(
            f"{label}: the line of its points slopes by {slope:.0f} degrees against its coordinates, by people",
            f"correct the heights or pixels; {COORDINATES_HINT}",
        )
    std_deg = float(np.degrees(np.sqrt(np.trace(fit.covariance[:3, :3]))))
    if std_deg > MAX_STD_DEG:
        raise InputError(
            f"the coordinates of {label} leave the axes uncertain by {std_deg:.0f} degrees: the points are "
            "close together or nearly on a line",
            "mark points that are farther apart, in all directions",
        )


def _layout(label: str, places: Float[Array, "N 3"], up: UpAxis) -> tuple[bool, UpAxis, bool]:
    """Return whether points about the origin are on a line, the axis that is up, and whether their plane is level.

    Without a request it is z, or y of points at one height y.

    Raises:
        InputError: if the points are on a line that is not level, or on a plane across another axis.
    """
    _, spread, axes = np.linalg.svd(places)
    axis = UpAxis.Z if up is UpAxis.AUTO else up
    hint = "give coordinates of points on a level floor, or its axis as ⟨up⟩"
    if spread[1] < _THIN * spread[0]:
        if abs(axes[0] @ axis.vector) > _SLOPE:
            raise InputError(f"{label}: its coordinates are on a line that is not level, and {axis} is up", hint)
        return True, axis, False
    across = np.flatnonzero(np.abs(axes[2]) > np.cos(np.radians(MAX_STD_DEG)))
    if spread[2] > _THIN * spread[0] or not len(across):
        return False, axis, False
    name = "xyz"[across[0]]
    if up is UpAxis.AUTO and name == "y":
        axis = UpAxis.Y
    if name != axis.value[-1]:
        raise InputError(f"{label}: its coordinates are on a plane across {name}, and {axis} is up", hint)
    return False, axis, True


@dataclass(frozen=True, kw_only=True)
class _Similarity:
    """The transform x -> scale * rotation @ (x - center) + shift, and the covariance of its parameters.

    `sigmas` are the lengths of `residuals` in standard deviations. The parameters are a rotation vector [3], `shift`
    [3] and the logarithm of the scale.
    """

    scale: float
    rotation: Float[Array, "3 3"]
    center: Float[Array, " 3"]
    shift: Float[Array, " 3"]
    residuals: Float[Array, "N 3"]
    sigmas: Float[Array, " N"]
    covariance: Float[Array, "7 7"]

    @staticmethod
    def fitted(
        places: Float[Array, "N 3"],
        covariances: Float[Array, "N 3 3"],
        targets: Float[Array, "N 3"],
        *,
        is_rigid: bool = False,
    ) -> "_Similarity":
        """Fit it to points with covariances by weighted least squares, from that of equal weights."""
        start = align_points(torch.from_numpy(places), torch.from_numpy(targets), with_scale=not is_rigid)
        scale, rotation, center = float(start.scale), start.rotation.numpy(), places.mean(0)
        shift = targets.mean(0)
        measured = np.eye(3) * (_SURVEY * np.linalg.norm(targets - shift, axis=1).max()) ** 2
        for _ in range(_ROUNDS):
            moved = scale * (places - center) @ rotation.T
            residuals = targets - moved - shift
            weights = np.linalg.inv(scale**2 * rotation @ covariances @ rotation.T + measured)
            turns = np.cross(np.eye(3)[None], moved[:, None]).swapaxes(1, 2)
            rates = np.concatenate([turns, np.broadcast_to(np.eye(3), turns.shape), moved[..., None]], axis=2)
            normal = np.einsum("nij,nik,nkl->jl", rates, weights, rates)
            if is_rigid:
                normal[6], normal[:, 6], normal[6, 6] = 0, 0, 1
                rates[..., 6] = 0
            step = np.linalg.solve(normal, np.einsum("nij,nik,nk->j", rates, weights, residuals))
            rotation, shift = exp_rotation(step[:3]) @ rotation, shift + step[3:6]
            scale *= float(np.exp(step[6]))
        squares = np.einsum("ni,nij,nj->n", residuals, weights, residuals)
        excess = max(1.0, squares.sum() / (3 * len(places) - 7 + is_rigid))
        return _Similarity(
            scale=scale,
            rotation=rotation,
            center=center,
            shift=shift,
            residuals=residuals,
            sigmas=np.sqrt(squares),
            covariance=np.linalg.inv(normal) * excess,
        )
