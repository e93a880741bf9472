"""Straight edges of the background of static views: rotations to three orthogonal directions, and lenses.

Rooms, furniture and machines have edges along three orthogonal directions. Each direction has a vanishing point in a
picture, and these determine the rotation of the camera, and mostly its focal length and principal point, without
another view. Views in whose world the directions are the same thus have accurate relative rotations, even if they
show different things.

Source: Caprile & Torre, "Using vanishing points for camera calibration", IJCV 1990; Coughlan & Yuille, "Manhattan
world", ICCV 1999.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations, product

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import least_squares

from page4d.rig.epipolar import undistorted_pixels
from page4d.rig.records import Array, Lens, rotation_angle_deg
from page4d.scene.content import gray_of, scaled_area
from page4d.scene.records import View

MAX_SIDE_PX = 1600
"""Long side of the pictures in which segments are found."""

NUM_PICTURES = 5
"""Pictures of a view whose median shows the background without people who move."""

MAX_SEGMENTS, MIN_SEGMENTS = 300, 20
"""Segments of a view that count, the longest, and fewest of a view that shows directions."""

MIN_SECOND = 8
"""Fewest segments along a second direction: one alone, such as the vertical, determines no rotation about it."""

MIN_LENGTH = 0.03
"""Least length of a segment in long sides of the picture."""

_MARGIN_PX = 4
"""Distance from dead borders and from those of the picture below which a segment is a part of these."""

TOLERANCE, _TOLERANCE_PX = 1.6e-3, 0.8
"""Distance of the ends of a segment from the line through its middle and a vanishing point up to which it has this
direction: in long sides, and at least in pixels."""

_SCALES = (3.0, 2.0, 1.5, 1.0, 1.0), (1.0,) * 4
"""Tolerances of the rounds of two refinements, of which the better score counts: from all focal lengths within 10 %
the first has one result, but edges of clutter in its wide tolerances turned a view of a rendered rig by 4.8 degrees.
"""

MIN_SCORE = 0.5
"""Least share of the length of all segments along three directions: views of rooms have 0.55 to 0.88, of a dome, a
hand, and a desk from above 0.22 to 0.36."""

FOCALS = np.geomspace(0.5, 2.5, 28)
"""Focal lengths in long sides at which the directions of an unknown lens are sought: steps of 6 %."""

_CENTERS = np.array([*product((-0.16, -0.08, 0.0, 0.08, 0.16), repeat=2)])
"""Offsets of the principal point in long sides at which the directions of a cropped picture are sought."""

_MAX_EVALUATIONS = 50
"""Steps to a principal point, at most: where it is not determined they do not end."""

_NUM_STARTS, _MIN_START_GAIN = 4, 1.01
"""Results of this search that are refined, if the best has at least this ratio to that at the centre."""

MIN_OFFSET, _MAX_OFFSET, _MIN_OFFSET_SIGMA = 0.05, 0.3, 4.0
"""Offsets of the principal point from the centre, in long sides, of cropped pictures, and their least ratio to the
standard deviation: lenses have up to 0.027."""

MIN_CROP_SCORE, MIN_CROP_GAIN, MIN_CROP_THIRD = 0.55, 1.03, 12
"""Least score of a cropped picture, its ratio to that with a centred principal point, and number of segments along
each direction: no picture of five captures that were not cropped has all of these. Other evidence decides."""

_FAR, MIN_PEAK = np.log(1.2), 1.05
"""Difference of log focal lengths from which scores are compared with the best, and its least ratio to them."""

MAX_RIVAL_SHARE, _RIVAL_DEG = 0.96, 3.0
"""Share of the best score from which other directions are rivals, and their angle to the best: views of real rooms
have up to 0.94, and rendered ones whose directions are 2 to 17 degrees wrong 0.98 to 1.01."""

SLACK_RAD, SLACK_FOCAL = np.radians(0.4), 0.007
"""Standard deviations by which edges are not orthogonal, and lenses not as modelled: with true lenses, relative
rotations in real rooms are 0.1 to 0.9 degrees wrong, most of them far more than their covariance."""

_NUM_SAMPLES = 800
"""Random samples of three segments: where a fifth of the length has each direction, 38 of them are right."""

_FEW_SEGMENTS = 150
"""Segments that count at each focal length that is tried."""

_MIN_SINE = 0.03
"""Sine of the angle between the planes of two segments below which they determine no direction."""

_SYMMETRIES = np.stack(
    [
        matrix
        for order, signs in product(permutations(range(3)), product((1.0, -1.0), repeat=3))
        if np.linalg.det(matrix := np.eye(3)[list(order)] * signs) > 0
    ]
)
"""The 24 rotations that exchange three orthogonal axes."""


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Three orthogonal directions in a view.

    `rotation` maps them into the camera; `log_focal` is the logarithm of the factor on the focal length that they
    show. `information` is the inverse covariance of a rotation vector in the camera and of this logarithm.
    """

    rotation: Float[Array, "3 3"]
    log_focal: float
    information: Float[Array, "4 4"]


class ViewEdges:
    """Straight segments of the background of a view, found on first access, and the directions that they show."""

    def __init__(self, view: View, instants: tuple[int, ...]) -> None:
        self.view, self.instants = view, instants
        self._last: tuple[Lens, Directions | None] | None = None

    @cached_property
    def segments(self) -> Float[Array, "N 2 2"]:
        """Ends of the segments in original pixels, inside of the content, the longest first.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        if not self.instants:
            return np.zeros((0, 2, 2))
        height, width = self.view.source.size
        scale = min(1.0, MAX_SIDE_PX / max(height, width))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        places = np.linspace(0, len(self.instants) - 1, NUM_PICTURES).round().astype(int)
        indices = sorted({self.view.indices[self.instants[place]] for place in places})
        with self.view.source.open(size) as reader:
            pictures = [gray_of(pixels) for pixels in reader.read(indices)]
        area = None if self.view.content is None else self.view.content.area
        inside = np.ones(size, bool) if area is None else scaled_area(area, size)
        return straight_segments(np.median(pictures, axis=0).astype(np.uint8), inside) / scale

    def start(self, lens: Lens) -> Lens | None:
        """Return the lens of a focal length at which most edges are along three directions, if few are at others."""
        ends, side = self._ends(lens), max(lens.image_size)
        if len(ends) < MIN_SEGMENTS:
            return None
        matrices = [lens.with_focal(factor * side) for factor in FOCALS]
        scores = np.array([_sampled(ends[:_FEW_SEGMENTS], matrix, lens)[1].max() for matrix in matrices])
        best = int(scores.argmax())
        far = np.abs(np.log(FOCALS / FOCALS[best])) > _FAR
        is_peak = 0 < best < len(FOCALS) - 1 and scores[best] >= max(MIN_SCORE, MIN_PEAK * float(scores[far].max()))
        return replace(lens, intrinsics=matrices[best]) if is_peak else None

    def crop(self, lens: Lens) -> Lens | None:
        """Return an unknown lens with another principal point through which more edges are along three directions.

        The picture may have been cropped. Edges along others, as of a slanted wall, show one, too.
        """
        ends = self._ends(lens)
        return None if len(ends) < MIN_SEGMENTS else _cropped(ends, lens)

    def directions(self, lens: Lens) -> Directions | None:
        """Return the directions along which most edges are through a lens; None if too few are."""
        if self._last is not None and self._last[0] is lens:
            return self._last[1]
        ends, found = self._ends(lens), None
        if len(ends) >= MIN_SEGMENTS:
            rotations, scores = _sampled(ends, lens.intrinsics, lens)
            start = rotations[scores.argmax()]
            score, found = max((fit.result(lens) for fit in _refined(ends, lens, start)), key=lambda one: one[0])
            if found is not None:
                if not lens.is_known:
                    rotations, scores = _sampled(ends, lens.with_focal(lens.focal * np.exp(found.log_focal)), lens)
                rivals = rotations[scores > MAX_RIVAL_SHARE * score]
                traces = np.einsum("sij,nij->ns", found.rotation @ _SYMMETRIES, rivals).max(-1)
                found = None if traces.min(initial=3.0) < 1 + 2 * np.cos(np.radians(_RIVAL_DEG)) else found
        self._last = lens, found
        return found

    def _ends(self, lens: Lens) -> Float[Array, "N 2 2"]:
        """Return the segments without distortion."""
        ends = undistorted_pixels(self.segments, lens)
        return np.asarray(ends[np.isfinite(ends).all((1, 2))])


def straight_segments(gray: NDArray[np.uint8], inside: NDArray[np.bool_]) -> Float[Array, "N 2 2"]:
    """Return the ends of straight segments of a picture in its pixels, the longest first, away from dead borders.

    Source: Grompone von Gioi et al., "LSD: a fast line segment detector with a false detection control", TPAMI 2010.
    """
    import cv2  # a local import keeps start-up short

    found = cv2.createLineSegmentDetector().detect(gray)[0]
    if found is None:
        return np.zeros((0, 2, 2))
    ends = np.asarray(found, np.float64).reshape(-1, 2, 2) + 0.5  # OpenCV's pixel centres are integers
    length = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=-1)
    kernel = np.ones((2 * _MARGIN_PX + 1,) * 2, np.uint8)
    inner = cv2.erode(np.pad(inside.astype(np.uint8), 1), kernel)[1:-1, 1:-1] > 0
    column, row = np.clip(ends.mean(1).astype(int), 0, np.array(gray.shape[::-1]) - 1).T
    usable = np.flatnonzero((length >= MIN_LENGTH * max(gray.shape)) & inner[row, column])
    return ends[usable[np.argsort(-length[usable], kind="stable")[:MAX_SEGMENTS]]]


def shared_directions(
    views: Mapping[int, Directions], rotations: Mapping[int, Float[Array, "3 3"]], limit_deg: float
) -> dict[int, Directions]:
    """Return the directions that are the same in the world, those of the most views, in one order; none of one view.

    Those of two views are the same if they differ by at most `limit_deg` under the rotations of the cameras.
    """
    best: dict[int, Directions] = {}
    for view, own in views.items():
        same = {}
        for other, found in views.items():
            ordered, turn = in_order(found, rotations[other] @ rotations[view].T @ own.rotation)
            if turn <= limit_deg:
                same[other] = ordered
        best = same if len(same) > len(best) else best
    return best if len(best) > 1 else {}


def in_order(found: Directions, rotation: Float[Array, "3 3"]) -> tuple[Directions, float]:
    """Return directions in the order and with the signs that are nearest to a rotation, and the angle in degrees."""
    orders = found.rotation @ _SYMMETRIES
    turns = rotation_angle_deg(orders, np.broadcast_to(rotation, orders.shape))
    return replace(found, rotation=orders[turns.argmin()]), float(turns.min())


def _tolerance(lens: Lens) -> float:
    """Return the tolerance in px."""
    return max(TOLERANCE * max(lens.image_size), _TOLERANCE_PX)


def _sampled(
    ends: Float[Array, "N 2 2"], matrix: Float[Array, "3 3"], lens: Lens, count: int = _NUM_SAMPLES
) -> tuple[Float[Array, "H 3 3"], Float[Array, " H"]]:
    """Return rotations of three directions from random samples of segments, at least one, and their scores.

    Two segments of a sample have the first direction; the second is in the plane of the third segment.
    """
    lengths = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=-1)
    rays = np.concatenate([ends, np.ones((len(ends), 2, 1))], -1) @ np.linalg.inv(matrix).T
    planes = np.cross(rays[:, 0], rays[:, 1])
    planes /= np.linalg.norm(planes, axis=-1, keepdims=True)
    chosen = np.random.default_rng(0).choice(len(ends), (count, 3), p=lengths / lengths.sum())
    one = np.cross(planes[chosen[:, 0]], planes[chosen[:, 1]])
    two = np.cross(planes[chosen[:, 2]], one)
    sines = np.linalg.norm([one, two], axis=-1)
    usable = (sines > _MIN_SINE * np.maximum([np.ones_like(sines[0]), sines[0]], 1e-12)).all(0)
    if not usable.any():
        return np.eye(3)[None], np.zeros(1)
    one, two = one[usable] / sines[0, usable, None], two[usable] / sines[1, usable, None]
    rotations = np.stack([one, two, np.cross(one, two)], axis=-1)
    return rotations, _scores(ends, matrix, rotations, _tolerance(lens))


def _forms(ends: Float[Array, "N 2 2"]) -> Float[Array, "3 N 3"]:
    """Return the factors of a vanishing point in the error of each segment: the first product over the others' norm.

    The error is the distance of the first end from the line through the middle and the vanishing point.
    """
    first, middle = (np.insert(points, 2, 1.0, axis=1) for points in (ends[:, 0], ends.mean(1)))
    direction = np.eye(3)[:2, None] * np.ones((len(ends), 1))
    direction[..., 2] = -middle[:, :2].T
    return np.stack([np.cross(first, middle), *direction])


def _squared_errors(
    ends: Float[Array, "N 2 2"], matrix: Float[Array, "3 3"], rotations: Float[Array, "*batch 3 3"]
) -> Float[Array, "*batch 3 N"]:
    """Return the squared errors of segments in px, given the directions of three vanishing points."""
    vanishing = np.swapaxes(matrix @ rotations, -1, -2)  # one a row
    area, x, y = (vanishing @ form.T for form in _forms(ends))
    for part in (area, x, y):  # in place: memory for copies takes longer than the products
        part *= part
    x += y
    return np.asarray(area / np.maximum(x, 1e-24))


def _derived_errors(
    forms: Float[Array, "3 N 3"], vanishing: Float[Array, "N 3"]
) -> tuple[Float[Array, " N"], Float[Array, "N 3"]]:
    """Return the errors in px of segments, each with its vanishing point, and the derivatives by its coordinates."""
    area, x, y = (forms * vanishing).sum(-1)
    distance = np.maximum(np.hypot(x, y), 1e-12)
    error = area / distance
    slope = forms[0] - (error / distance)[:, None] * (x[:, None] * forms[1] + y[:, None] * forms[2])
    return error, slope / distance[:, None]


def _scores(
    ends: Float[Array, "N 2 2"], matrix: Float[Array, "3 3"], rotations: Float[Array, "H 3 3"], tolerance: float
) -> Float[Array, " H"]:
    """Return the shares of the length of segments along three directions, less where their errors are larger."""
    lengths = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=-1)
    squared = _squared_errors(ends, matrix, rotations).min(-2) / tolerance**2
    return np.asarray(np.maximum(1 - squared, 0.0) @ lengths / lengths.sum())


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Three directions of N edges: `slope` [N, F] are derivatives of their errors, of this `variance`.

    F are the rotation vector, the log focal length unless the lens is known, and the principal point in long sides if
    it is sought.
    """

    score: float = 0.0
    rotation: Float[Array, "3 3"]
    intrinsics: Float[Array, "3 3"]
    counts: tuple[int, ...] = (0, 0, 0)
    slope: Float[Array, "N F"]
    variance: float = 1.0

    def result(self, lens: Lens) -> tuple[float, Directions | None]:
        """Return the score and the directions, with the focal length of a lens unless that is known.

        These are None, and the score 0, unless enough edges fit.
        """
        if self.score < MIN_SCORE or sorted(self.counts)[1] < MIN_SECOND:
            return 0.0, None
        slope = np.zeros((len(self.slope), 4))
        slope[:, : self.slope.shape[1]] = self.slope
        full = slope.T @ slope / self.variance
        slack = np.diag([SLACK_RAD**-2] * 3 + [SLACK_FOCAL**-2])
        information = full - full @ np.linalg.solve(full + slack, full)  # the inverse of the sum of both covariances
        log_focal = float(np.log(self.intrinsics[0, 0] / lens.intrinsics[0, 0]))
        return self.score, Directions(rotation=self.rotation, log_focal=log_focal, information=information)


def _refined(
    ends: Float[Array, "N 2 2"], lens: Lens, start: Float[Array, "3 3"], *, finds_center: bool = False
) -> list[_Fit]:
    """Return directions next to a rotation, with the focal length of an unknown lens, by both kinds of rounds.

    With `finds_center` also with its principal point.
    """
    return [_refined_by(scales, ends, lens, start, finds_center) for scales in _SCALES]


def _refined_by(
    scales: tuple[float, ...], ends: Float[Array, "N 2 2"], lens: Lens, start: Float[Array, "3 3"], finds_center: bool
) -> _Fit:
    """Return directions after rounds with these tolerances."""
    import cv2  # its rotation takes a hundredth of the time of SciPy's

    tolerance, side = _tolerance(lens), max(lens.image_size)
    values = np.zeros(3 + (not lens.is_known) + 2 * finds_center)

    def at(values: Array) -> tuple[Array, Array]:
        matrix = lens.with_focal(lens.focal * float(np.exp(values[3:4].sum())))
        matrix[:2, 2] += side * values[4:] if finds_center else 0.0
        return matrix, cv2.Rodrigues(values[:3])[0] @ start

    def error(values: Array) -> Array:
        matrix, rotation = at(values)
        return _derived_errors(forms, (matrix @ rotation).T[column])[0]

    def slope(values: Array) -> Array:
        matrix, rotation = at(values)
        turns = cv2.Rodrigues(values[:3])[1].reshape(3, 3, 3) @ start
        by_lens = np.zeros((3, 3, 3))
        by_lens[0, :2, :2] = matrix[:2, :2]
        by_lens[[1, 2], [0, 1], 2] = side
        vanishing = np.concatenate([matrix @ turns, by_lens[: len(values) - 3] @ rotation])
        by_point = _derived_errors(forms, (matrix @ rotation).T[column])[1]
        return np.asarray(np.einsum("ni,fin->nf", by_point, vanishing[:, :, column]))

    for scale in scales:
        squared = _squared_errors(ends, *at(values))
        axis, kept = squared.argmin(0), np.flatnonzero(squared.min(0) < (scale * tolerance) ** 2)
        if len(kept) < MIN_SEGMENTS // 2:
            return _Fit(rotation=start, intrinsics=lens.intrinsics, slope=np.zeros((0, len(values))))
        forms, column = _forms(ends[kept]), axis[kept]
        found = least_squares(
            error,
            values,
            jac=slope,
            loss="soft_l1",
            f_scale=tolerance / 5,
            x_scale=0.01,
            max_nfev=_MAX_EVALUATIONS if finds_center else None,
        )
        values = found.x
    matrix, rotation = at(values)
    return _Fit(
        score=float(_scores(ends, matrix, rotation[None], tolerance)[0]),
        rotation=rotation,
        intrinsics=matrix,
        counts=tuple(np.bincount(axis[kept], minlength=3).tolist()),
        slope=np.asarray(found.jac),
        variance=max(2 * float(found.cost) / len(kept), (tolerance / 10) ** 2),
    )


def _cropped(ends: Float[Array, "N 2 2"], lens: Lens) -> Lens | None:
    """Return an unknown lens with the principal point that edges along three directions show, if off the centre.

    None if edges fit the centre nearly as well, or few edges fit.
    """
    side, starts = max(lens.image_size), []
    for offset, factor in product(_CENTERS, FOCALS[::3]):
        matrix = lens.with_focal(factor * side)
        matrix[:2, 2] += side * offset
        rotations, scores = _sampled(ends[:_FEW_SEGMENTS], matrix, lens, _NUM_SAMPLES // 4)
        starts.append((float(scores.max()), replace(lens, intrinsics=matrix), rotations[scores.argmax()]))
    starts.sort(key=lambda start: -start[0])
    centered = [start for start in starts if start[1].is_centered][:_NUM_STARTS]
    if starts[0][0] < _MIN_START_GAIN * centered[0][0]:
        return None
    fits = [_refined(ends, start, rotation, finds_center=True) for _, start, rotation in starts[:_NUM_STARTS]]
    best = max((fit for both in fits for fit in both), key=lambda fit: fit.score)
    if best.score < MIN_CROP_SCORE or min(best.counts) < MIN_CROP_THIRD:
        return None
    rival = max(fit.score for _, start, rotation in centered for fit in _refined(ends, start, rotation))
    offset = (best.intrinsics[:2, 2] - lens.intrinsics[:2, 2]) / side
    full = best.slope.T @ best.slope / best.variance
    information = full[4:, 4:] - full[4:, :4] @ np.linalg.pinv(full[:4, :4]) @ full[:4, 4:]
    is_clear = offset @ information @ offset > _MIN_OFFSET_SIGMA**2
    is_possible = (
        FOCALS[0] < best.intrinsics[0, 0] / side < FOCALS[-1] and MIN_OFFSET < np.linalg.norm(offset) < _MAX_OFFSET
    )
    is_cropped = is_clear and is_possible and best.score > MIN_CROP_GAIN * rival
    return replace(lens, intrinsics=best.intrinsics) if is_cropped else None
