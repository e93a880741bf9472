"""The frame of a world that stands on a floor: gravity and floor from points that a user marks in pictures."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

from page4d.choices import UpAxis, WorldFrame
from page4d.errors import InputError, counted, listed, shortened
from page4d.geometry.rotation import turn_up
from page4d.io.documents import DocumentError, read_text
from page4d.output.rig_record import WorldRecord
from page4d.rig.adjust import Observations, rays, triangulate
from page4d.rig.epipolar import undistorted_pixels
from page4d.rig.people.pairs import TOLERANCE
from page4d.rig.records import Array, RigCamera

MAX_STD_DEG = 5.0
"""Standard deviation beyond which the vertical is unknown."""

MIN_POINTS = 3

_MARK = 0.0015
"""Standard deviation of a marked pixel in focal lengths: 2 px at 1080p."""

_LIMIT = 3 * TOLERANCE
"""Angle between a mark and its point beyond which marks are not of one point: 40 px at 1080p, more than the errors of
registered cameras."""

_FLATNESS = 0.005
"""Standard deviation of the height of a floor, as a share of the extent of the points."""

MAX_SIGMA = 5.0
"""Distance of a point from the plane of all, or from its coordinates, in standard deviations, from which on it is
wrong."""

_COLUMNS = ("point", "view", "x", "y")
_NAMES = {"camera": "view", "cam": "view", "name": "point", "label": "point", "marker": "point"}
_AXIS = re.compile(r"(?:\w+[_ ])?[xyz](?:[_ (\[].*)?", re.IGNORECASE)
"""Columns that may be coordinates, such as `world_x` or `Z (mm)`: none is left out in silence."""

_HINT = (
    "give a table with the columns point, view, x and y: pixels of three points of the floor or more, each in two "
    "views or more"
)
COORDINATES_HINT = (
    "the columns X, Y and Z are metres in a right-handed world, of two points or more; without Z, points have Z = 0"
)


@dataclass(frozen=True, kw_only=True)
class Vertical:
    """The unit vector `up`, and the height of the floor along it, with standard deviations.

    They are from poses of people, from points on the floor, or, without either, from a board.
    """

    up: Float[Array, " 3"]
    std_deg: float
    floor: float
    floor_std: float
    num_poses: int = 0
    num_points: int = 0

    def world(self, poses: Float[Array, "V 4 4"], up: UpAxis) -> WorldRecord:
        """Return the upright world of cameras (`world_to_camera`) with this up axis, z by default."""
        axis = UpAxis.Z if up is UpAxis.AUTO else up
        return WorldRecord(
            frame=WorldFrame.UPRIGHT,
            up=axis,
            transform=upright_frame(self.up, self.floor, poses, axis).tolist(),
            vertical=self.up.tolist(),
            vertical_std_deg=self.std_deg,
            floor=self.floor,
            floor_std=self.floor_std,
            num_poses=self.num_poses,
            num_points=self.num_points,
        )


def upright_frame(
    vertical: Float[Array, " 3"], floor: float, poses: Float[Array, "V 4 4"], up: UpAxis
) -> Float[Array, "4 4"]:
    """Return the rigid transform from the world of cameras (`world_to_camera`) to an upright one with this up axis.

    Its origin is on the floor below the mean of the cameras. With z up, the first camera faces along y, and x is to
    its right; other axes follow by quarter turns, so that with y up it faces along -z.
    """
    forward, down = poses[0, 2, :3], poses[0, 1, :3]
    # A camera that faces down has the upper edge of its picture ahead, one that faces up the lower edge.
    ahead = forward + (forward @ vertical) * down
    right = np.cross(ahead, vertical)
    right /= np.linalg.norm(right)
    rotation = turn_up(UpAxis.Z.vector, up.vector) @ np.stack([right, np.cross(vertical, right), vertical])
    centers = -(np.swapaxes(poses[:, :3, :3], 1, 2) @ poses[:, :3, 3:])[..., 0]
    origin = centers.mean(0)
    origin += (floor - origin @ vertical) * vertical
    frame = np.eye(4)
    frame[:3, :3], frame[:3, 3] = rotation, -rotation @ origin
    return frame


@dataclass(frozen=True, kw_only=True)
class FloorPoints:
    """Points on the floor, by name: their original pixels by view; `label` is the name of the table.

    `coordinates`, in metres, are those of points whose places in the user's world are known.
    """

    label: str
    marks: Mapping[str, Mapping[str, tuple[float, float]]]
    coordinates: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    def placed_in(self, cameras: Mapping[str, RigCamera]) -> dict[str, dict[str, tuple[float, float]]]:
        """Return the marks in the views that have a camera, of the points with two of them."""
        placed = {
            point: {view: xy for view, xy in by_view.items() if view in cameras}
            for point, by_view in self.marks.items()
        }
        return {point: by_view for point, by_view in placed.items() if len(by_view) > 1}

    def too_few(self, found: str, needed: int, cameras: Mapping[str, RigCamera], hint: str) -> InputError:
        """Return the error of fewer points than are needed, naming views without a camera."""
        without = sorted({view for by_view in self.marks.values() for view in by_view} - {*cameras})
        lacks = f"; no camera: {listed(without)}" if without else ""
        return InputError(f"{self.label}: {found} marked in two placed views, {needed} are needed{lacks}", hint)


def read_floor_points(path: Path) -> FloorPoints:
    """Read a table of points on the floor, with a row for every mark of a point in a view.

    Raises:
        InputError: if it cannot be read, a mark is no pixel or given twice, or a point is marked in one view alone.
    """
    try:
        lines = [line for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")]
        delimiter = next((each for each in "\t;" if lines and each in lines[0]), ",")
        rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    except (DocumentError, csv.Error) as error:
        raise InputError(f"⟨floor_at⟩: {shortened(path.name)}: {error}", _HINT) from error
    head = _columns(rows[0] if rows else [])
    if sorted(name for name in head if name in _COLUMNS) != sorted(_COLUMNS):
        raise InputError(f"{path.name} has the columns {listed(head) or 'of no table'}", _HINT)
    axes = [name for name in head if _AXIS.fullmatch(name) and name not in _COLUMNS]
    if axes and sorted(axes) not in (["X", "Y"], ["X", "Y", "Z"]):
        raise InputError(f"{path.name} has the coordinates {listed(axes)}", COORDINATES_HINT)
    marks: dict[str, dict[str, tuple[float, float]]] = {}
    coordinates: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows[1:], start=2):
        # Tables with semicolons may have decimal commas.
        texts = (cell.strip().replace(",", ".") if delimiter == ";" else cell.strip() for cell in row)
        cells = dict(zip(head, texts, strict=False))
        point, view = cells.get("point", ""), cells.get("view", "")
        try:
            x, y = (float(cells[name]) for name in "xy")
        except (KeyError, ValueError):
            raise InputError(f"{path.name}: row {number} has no pixel of a point", _HINT) from None
        if view in marks.setdefault(point, {}):
            raise InputError(f"{path.name} marks {shortened(point)} in {view} twice", "leave one of the rows out")
        marks[point][view] = x, y
        if any(cells.get(name) for name in axes):
            try:
                place = (float(cells["X"]), float(cells["Y"]), float(cells.get("Z", "0")))
            except (KeyError, ValueError):
                place = (np.nan, np.nan, np.nan)
            if not np.isfinite(place).all():
                raise InputError(f"{path.name}: row {number} has no coordinates in numbers", COORDINATES_HINT)
            if coordinates.setdefault(point, place) != place:
                raise InputError(f"{path.name} gives {shortened(point)} two places", "give one of them")
    if alone := [point for point, by_view in marks.items() if len(by_view) < 2]:
        raise InputError(f"{path.name} marks {listed(alone)} in a single view", _HINT)
    if len({*coordinates.values()}) < len(coordinates):
        names = [name for name, place in coordinates.items() if [*coordinates.values()].count(place) > 1]
        raise InputError(f"{path.name} gives {listed(names)} one place", "leave unknown coordinates empty")
    return FloorPoints(label=path.name, marks=marks, coordinates=coordinates)


def _columns(cells: Sequence[str]) -> list[str]:
    """Return the names of columns: pixels are x and y, or u and v next to which x, y and z are X, Y and Z."""
    names = [cell.strip() for cell in cells]
    lower = [_NAMES.get(name.lower(), name.lower()) for name in names]
    if {"u", "v"} <= {*lower}:
        return [{"u": "x", "v": "y", "x": "X", "y": "Y", "z": "Z"}.get(name, name) for name in lower]
    has_both = {"x", "y"} <= {*names}
    return [name if has_both and name in ("X", "Y", "Z") else low for name, low in zip(names, lower, strict=True)]


def floor_of_points(points: FloorPoints, cameras: Mapping[str, RigCamera]) -> Vertical:
    """Find gravity and floor from points that two or more of some static cameras, by view, have marks of.

    Points are triangulated, and a plane is fitted to them by their covariances and the unevenness of floors.

    Raises:
        InputError: if a mark is outside of its picture, fewer than three points have two cameras, marks or points
            contradict each other, or the points leave the vertical uncertain.
    """
    placed = points.placed_in(cameras)
    if len(placed) < MIN_POINTS:
        raise points.too_few(counted(len(placed), "point"), MIN_POINTS, cameras, _HINT)
    places, covariances = triangulated_marks(points.label, placed, cameras)
    extent = float(np.linalg.norm(places - places.mean(0), axis=1).max())
    normal = np.linalg.svd(places - places.mean(0))[2][2]
    for _ in range(5):
        weights = 1 / (np.einsum("i,nij,j->n", normal, covariances, normal) + (_FLATNESS * extent) ** 2)
        center = weights @ places / weights.sum()
        spreads, axes = np.linalg.eigh(np.einsum("n,ni,nj->ij", weights, places - center, places - center))
        normal = axes[:, 0]
    sigmas = (places - center) @ normal * np.sqrt(weights)
    worst = int(np.abs(sigmas).argmax())
    if abs(sigmas[worst]) > MAX_SIGMA:
        raise InputError(
            f"the points of {points.label} are not on one plane: {list(placed)[worst]} is "
            f"{abs(sigmas[worst]) / np.sqrt(weights[worst]) / extent:.0%} of their extent away from it",
            "correct its pixels, or leave it out",
        )
    excess = float(np.sqrt(max(1.0, spreads[0] / max(1, len(places) - MIN_POINTS))))
    tilts = excess / np.sqrt(np.maximum(spreads[1:], 1e-12))
    std_deg = float(np.degrees(np.hypot(*tilts)))
    if std_deg > MAX_STD_DEG:
        raise InputError(
            f"the points of {points.label} leave the vertical uncertain by {std_deg:.0f} degrees: they are close "
            "together or nearly on a line",
            "mark points that are farther apart, in all directions",
        )
    heights = np.array([(camera.center - center) @ normal for camera in cameras.values()])
    if heights.min() < 0 < heights.max():
        raise InputError(
            f"cameras are on both sides of the plane of the points of {points.label}", "mark points on the floor"
        )
    normal = normal * np.sign(heights.sum())
    below = np.mean([camera.center for camera in cameras.values()], axis=0) - center
    return Vertical(
        up=normal,
        std_deg=std_deg,
        floor=float(center @ normal),
        floor_std=float(np.hypot(excess / np.sqrt(weights.sum()), np.hypot(*(tilts * (below @ axes[:, 1:]))))),
        num_points=len(placed),
    )


def triangulated_marks(
    label: str, marks: Mapping[str, Mapping[str, tuple[float, float]]], cameras: Mapping[str, RigCamera]
) -> tuple[Float[Array, "P 3"], Float[Array, "P 3 3"]]:
    """Return places of points and their covariances, by the errors of marks or, if these are larger, residuals."""
    names = list(cameras)
    rows = [(point, view, xy) for point, by_view in enumerate(marks.values()) for view, xy in by_view.items()]
    pixels = []
    for point, view, (x, y) in rows:
        height, width = cameras[view].lens.image_size
        pixels.append(undistorted_pixels(np.array([[x, y]]), cameras[view].lens)[0])
        if not (0 <= x <= width and 0 <= y <= height and np.isfinite(pixels[-1]).all()):
            raise InputError(
                f"{label}: {list(marks)[point]} is at ({x:g}, {y:g}) in {view}, which has {width}x{height} pixels",
                "give pixels of the video at its full size",
            )
    none = np.full(len(marks), -1)
    tracks = Observations(
        view=np.array([names.index(view) for _, view, _ in rows]),
        point=np.array([point for point, _, _ in rows]),
        pixels=np.array(pixels),
        weights=np.ones(len(rows)),
        person=none,
        instant=none,
        joint=none,
    )
    poses = np.stack([camera.world_to_camera for camera in cameras.values()])
    intrinsics = np.stack([camera.lens.intrinsics for camera in cameras.values()])
    places, usable = triangulate(poses, intrinsics, tracks)
    if not usable.all():
        lost = [name for name, fits in zip(marks, usable, strict=True) if not fits]
        raise InputError(f"{label}: the marks of {listed(lost)} do not meet in front of the cameras", _HINT)
    centers, directions = rays(poses, intrinsics, tracks)
    offsets = places[tracks.point] - centers
    across = np.eye(3) - directions[:, :, None] * directions[:, None, :]
    distances = np.linalg.norm(offsets, axis=1)
    errors = np.linalg.norm((across @ offsets[..., None])[..., 0], axis=1) / distances
    worst = int(errors.argmax())
    if errors[worst] > _LIMIT:
        point, view, _ = rows[worst]
        raise InputError(
            f"{label}: the marks of {list(marks)[point]} are not of one point, by "
            f"{errors[worst] * cameras[view].lens.focal:.0f} px in {view}",
            "correct its pixels, or leave it out",
        )
    sigma = max(_MARK, float(np.sqrt((errors**2).sum() / (2 * len(rows) - 3 * len(marks)))))
    precision = np.zeros((len(marks), 3, 3))
    np.add.at(precision, tracks.point, across / (sigma * distances)[:, None, None] ** 2)
    return places, np.asarray(np.linalg.inv(precision), np.float64)
