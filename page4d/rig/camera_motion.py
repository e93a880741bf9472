"""Detect which cameras move, from a few pictures of each view spread over the capture.

Between two pictures, corners that stay are weighed against corners that move together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from page4d.errors import Notice
from page4d.rig.samples import ViewSample
from page4d.scene.content import Area, Fault, Picture
from page4d.scene.records import Scene

Points = Float[NDArray[np.float32], "K 2"]

STILL_PX = 0.25
"""Corners within this distance of their place are still, at pictures of 256 px: half a pixel of a network's 518."""

SHAKE_PX = 0.5
"""Largest common displacement of still corners, which tripods have in wind: 0.002 of the long side."""

MIN_CORNERS = 40
"""Pictures with fewer corners, such as black or covered ones, are not judged."""

STILL_SHARE = 0.15
"""Smallest share of still corners in pictures of a static camera. Static ones had at least 0.45 in real captures, and
0.2 with strong noise or people in most of the picture."""

LOST_SHARE = 0.04
"""Pictures with a smaller share of still corners have lost the one that they are compared with: the camera moved by
more than 2 px (at most 0.02 in real captures), or people, light or noise hide the corners."""

MIN_SPREAD = 0.3
"""Share of the cells with corners that also have still ones, in pictures of a static camera. A logo, a time stamp or
a dashboard is still in pictures of a moving camera too, but fills fewer cells."""

GONE_SHARE = 0.02
"""Share of corners that are still by chance in pictures of a camera that moved."""

_MOST_SHARE = 0.4
"""Corners that move together while more than that stay are the picture, and not people, from this share on."""

ANCHOR_SHARE = 0.25
"""Share of pictures in which a corner is still that anchors the others. A moving camera has no anchors except those
of a display in its picture, which fill few cells; people uncover different anchors over time."""

KEPT_SHARE = 0.3
"""Share of anchors that are still in a picture of a camera at rest, although people move together in the rest."""

ANCHOR_SPREAD = 0.4
"""Smallest share of cells with corners that have anchors too."""

_REST_SHARE = 0.3
"""Share of corners that noise displaces by less than 1 px around a common motion of none: it is then averaged."""

_REST_SPREAD = 0.5
"""Share of cells with corners that these fill."""

_MIN_TOGETHER = 5
"""With fewer pictures, corners that stay in a quarter of them are those of one picture."""

_MAX_CORNERS = 400
_CORNER_QUALITY = 0.01
_CORNER_DISTANCE_PX = 5
_BORDER_PX = 4
_CELLS = 5
"""Cells per side of the grid that measures the spread of corners."""

_RETURN_PX = 0.5
"""Corners that are tracked forward and backward return to within this distance."""

_MODEL_PX = 1.0
"""Distance of corners from the motion that they share with others."""

_DOMINANCE = 1.5
"""Corners that move together are the picture, and still ones a display in it, if they are more by this
factor, also in the number of cells. A vehicle that fills half of a picture moves together too."""

_MAX_SAMPLES = 300
"""RANSAC finds a motion that a third of the corners share, from two corners, with a probability above 1 - 1e-15."""

_MIN_SIMILARITY = 0.7
"""Normalized correlation of the surroundings of a still corner in both pictures."""

_PATCH_PX = 9
_NORMALIZED_STD = 40.0
_NORMALIZED_MEAN = 128.0
_MIN_STD = 6.0
"""Grey levels that are added to the local contrast: noise of flat areas is not amplified to texture."""

_NORMALIZING_PX = 25
"""Side of the area whose brightness and contrast are normalized."""


@dataclass(frozen=True, kw_only=True)
class PictureMotion:
    """Motion of a camera between two pictures.

    `share` is the share of all corners that are still. `displacement_px` is the median displacement of the corners
    that were found again, or of the still ones for a camera that did not move; None if too few were found.
    `has_moved` is None if the two pictures do not determine it. `stays` holds which corners are still, None if the
    pictures were not compared, and `moving_cells` the number of cells that move together.
    """

    has_moved: bool | None
    share: float = 0.0
    displacement_px: float | None = None
    stays: NDArray[np.bool_] | None = None
    moving_cells: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether the second picture has corners, but nearly none of the first."""
        return self.has_moved is None and self.stays is not None and self.share < LOST_SHARE


def normalize_contrast(gray: Picture) -> Picture:
    """Normalize local brightness and contrast, which exposure, lamps and clouds change."""
    values = gray.astype(np.float32)
    side = (_NORMALIZING_PX, _NORMALIZING_PX)
    mean = cv2.blur(values, side)
    std = np.sqrt(np.maximum(cv2.blur(values * values, side) - mean * mean, 0))
    normalized = _NORMALIZED_MEAN + _NORMALIZED_STD * (values - mean) / (std + _MIN_STD)
    return np.clip(np.rint(normalized), 0, 255).astype(np.uint8)


def find_corners(picture: Picture, area: Picture) -> Points:
    """Return corners of a normalized picture in an area, away from its border, where tracking lacks surroundings."""
    inside = np.zeros_like(picture)
    inside[_BORDER_PX:-_BORDER_PX, _BORDER_PX:-_BORDER_PX] = area[_BORDER_PX:-_BORDER_PX, _BORDER_PX:-_BORDER_PX]
    found = cv2.goodFeaturesToTrack(picture, _MAX_CORNERS, _CORNER_QUALITY, _CORNER_DISTANCE_PX, mask=inside)
    return np.zeros((0, 2), np.float32) if found is None else np.asarray(found, np.float32).reshape(-1, 2)


def compare_pictures(first: Picture, second: Picture, corners: Points) -> PictureMotion:
    """Compare normalized pictures [H, W] of a view; `corners` are those of the first, at least one.

    Still corners are searched from their place on, without a pyramid: people who cross the picture do not draw them
    along. Source: Bouguet, "Pyramidal implementation of the Lucas Kanade feature tracker", 2001.
    """
    count = len(corners)
    still, shake = _still_corners(first, second, corners)
    share = float(still.mean())
    spread, rest = _num_cells(corners[still], first.shape), _num_cells(corners, first.shape)
    flow, found = _track(first, second, corners, window=15, levels=3)
    distance = float(np.median(np.linalg.norm(flow[found], axis=1))) if found.sum() >= MIN_CORNERS // 4 else None
    result = PictureMotion(has_moved=None, share=share, displacement_px=distance, stays=still & (shake <= SHAKE_PX))
    together, motion = _common_motion(corners, flow, found & ~still)
    cells = _num_cells(corners[together], first.shape)
    number = int(together.sum())
    least = STILL_SHARE if share < GONE_SHARE else _MOST_SHARE
    if motion > SHAKE_PX and number > max(_DOMINANCE * still.sum(), count * least) and cells > _DOMINANCE * spread:
        return replace(result, has_moved=True, moving_cells=cells)
    if share >= STILL_SHARE and spread >= MIN_SPREAD * rest:
        return replace(result, has_moved=shake > SHAKE_PX, displacement_px=shake)
    together |= still
    fills = _num_cells(corners[together], first.shape) >= _REST_SPREAD * rest
    if motion <= SHAKE_PX and together.mean() >= _REST_SHARE and fills:
        return replace(result, has_moved=False, displacement_px=motion)
    return result


def compare_together(found: Sequence[PictureMotion], corners: Points, size: tuple[int, ...]) -> list[PictureMotion]:
    """Judge pictures of a view by the corners that stay in others of them too, if these fill the picture [H, W].

    A picture that keeps a part of them is of a camera at rest, even if people in front of the rest move together.
    """
    known = [one.stays for one in found if one.stays is not None]
    if len(known) < _MIN_TOGETHER:
        return list(found)
    anchors = np.mean(known, axis=0) >= ANCHOR_SHARE
    cells = _num_cells(corners[anchors], size)
    if anchors.mean() < STILL_SHARE or cells < ANCHOR_SPREAD * _num_cells(corners, size):
        return list(found)

    def rests(one: PictureMotion) -> bool:
        hidden = one.moving_cells > _DOMINANCE * cells
        return one.stays is not None and not hidden and bool(one.stays[anchors].mean() >= KEPT_SHARE)

    return [replace(one, has_moved=False) if rests(one) else one for one in found]


def _still_corners(first: Picture, second: Picture, corners: Points) -> tuple[NDArray[np.bool_], float]:
    """Return which corners stay except for a common shift, and the length of that shift in pixels."""
    flow, found = _track(first, second, corners, window=9, levels=1)
    shift = np.zeros(2, np.float32)
    for reach in (2 * SHAKE_PX, SHAKE_PX, SHAKE_PX):
        near = found & (np.linalg.norm(flow - shift, axis=1) < reach)
        if not near.any():
            return np.zeros(len(corners), bool), 0.0
        shift = np.median(flow[near], axis=0)
    still = found & (np.linalg.norm(flow - shift, axis=1) < STILL_PX)
    still[still] = _similarity(first, second, corners[still], shift) > _MIN_SIMILARITY
    return still, float(np.linalg.norm(shift))


def _track(
    first: Picture, second: Picture, corners: Points, window: int, levels: int
) -> tuple[Float[NDArray[np.float32], "K 2"], NDArray[np.bool_]]:
    """Track corners forward and backward; return their displacements, and which of them were found."""

    def track(source: Picture, target: Picture, places: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
        window_size = (window, window)
        after, status, _ = cv2.calcOpticalFlowPyrLK(
            source, target, places, np.empty_like(places), winSize=window_size, maxLevel=levels
        )
        return np.asarray(after), np.asarray(status)

    after, forward = track(first, second, corners[:, None])
    before, backward = track(second, first, after)
    returned = np.linalg.norm((before - corners[:, None])[:, 0], axis=1) < _RETURN_PX
    return (after - corners[:, None])[:, 0], (forward[:, 0] > 0) & (backward[:, 0] > 0) & returned


def _similarity(first: Picture, second: Picture, places: Points, shift: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the normalized correlation of the patches around places, shifted in the second picture."""
    if not len(places):
        return np.zeros(0)
    reach = np.arange(_PATCH_PX, dtype=np.float32) - _PATCH_PX // 2
    x, y = np.tile(reach, _PATCH_PX), np.repeat(reach, _PATCH_PX)
    patches = [
        cv2.remap(
            picture.astype(np.float32),
            points[:, :1] + x,
            points[:, 1:] + y,
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REPLICATE,
        )
        for picture, points in ((first, places), (second, places + shift))
    ]
    one, two = (each - each.mean(axis=1, keepdims=True) for each in patches)
    norm = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    return np.asarray((one * two).sum(1) / np.maximum(norm, 1e-6), np.float64)


def _common_motion(corners: Points, flow: Points, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], float]:
    """Return which of the chosen corners follow one rotation, zoom and shift, and its median length in pixels.

    The length is that of the motion and not of the corners, whose noise does not average out.
    """
    together = np.zeros(len(corners), bool)
    if chosen.sum() < MIN_CORNERS // 4:
        return together, 0.0
    start = corners[chosen]
    model, inliers = cv2.estimateAffinePartial2D(
        start, start + flow[chosen], ransacReprojThreshold=_MODEL_PX, maxIters=_MAX_SAMPLES
    )
    if model is None:
        return together, 0.0
    together[chosen] = inliers[:, 0] > 0
    places = corners[together]
    moved = places @ model[:, :2].T + model[:, 2]
    return together, float(np.median(np.linalg.norm(moved - places, axis=1)))


def _num_cells(places: Points, size: tuple[int, ...]) -> int:
    """Return the number of cells of a grid over the picture that have at least two of the places."""
    cells = np.minimum(places[:, ::-1] * _CELLS // np.asarray(size, np.float32), _CELLS - 1).astype(int)
    _, counts = np.unique(cells, axis=0, return_counts=True)
    return int((counts > 1).sum())


MAX_OTHERS = 0.1
"""Share of pictures of a static camera that may disagree: a hand that stops the recording, a passing vehicle."""

_MIN_GROUP = 2
"""Other pictures of a camera at rest in one place, from which it was moved to another."""

_BAR_MARGIN = 3
"""Pixels removed with a border: tracking windows must not see its edge, which never moves."""


@dataclass(frozen=True, kw_only=True)
class ViewMotion:
    """Whether the camera of a view moves, measured in pictures with a long side of 256 px.

    `is_static` is None if the pictures do not determine it. `share` is the median share of corners that stay, and
    `displacement_px` the median displacement from the picture of reference, of a moving camera over the pictures that
    moved; None where no corners are found again. `num_frames` pictures were compared. `reason` states why nothing is
    determined, or when a camera moved that is still at other times.
    """

    view: str
    is_static: bool | None
    share: float | None = None
    displacement_px: float | None = None
    num_frames: int = 0
    reason: str = ""


def measure_camera_motion(scene: Scene, samples: Sequence[ViewSample]) -> tuple[ViewMotion, ...]:
    """Measure for each view of a scene, from its sample, whether its camera moves."""
    return tuple(measure_motion(sample, scene.times[list(sample.instants)]) for sample in samples)


def calibrated_motion_notices(scene: Scene, motions: Sequence[ViewMotion]) -> tuple[Notice, ...]:
    """Warn of views that move although their calibration has one pose."""
    moving = {motion.view for motion in motions if motion.is_static is False}
    return tuple(
        Notice(
            f"{view.name} moves, but its calibration has one pose; the result is wrong while it moves "
            "(⟨camera_motion=moving⟩ if the whole rig moves as one)"
        )
        for view in scene.views
        if view.name in moving and view.camera is not None and view.camera.is_static
    )


def measure_motion(sample: ViewSample, times: NDArray[np.float64]) -> ViewMotion:
    """Measure whether the camera of one view moves; `times` of its pictures are in seconds.

    The first, the middle and the last picture are references, and the one that most pictures agree with counts:
    a lamp, a person at the lens or a hand at the camera can spoil any of them. Pictures with faults are left out.
    """
    shown = [place for place, fault in enumerate(sample.faults) if fault in (None, Fault.REPEATED)]
    undetermined = ViewMotion(view=sample.view, is_static=None, num_frames=len(shown))
    if reason := sample.reason or sample.obstacle:
        return replace(undetermined, reason=reason)
    if len(shown) < 2:
        return replace(undetermined, reason="1 instant")
    times = times[shown]
    plain, inside = _content([sample.pictures[place] for place in shown], sample.content.area)
    plain = [normalize_contrast(picture) for picture in plain]
    corners = [find_corners(picture, inside) for picture in plain]
    judged: list[ViewMotion] = []
    lost: dict[int, set[int]] = {}
    for reference in dict.fromkeys((0, len(plain) // 2, len(plain) - 1)):
        if len(corners[reference]) < MIN_CORNERS:
            continue
        others = [index for index in range(len(plain)) if index != reference]
        found = [
            compare_pictures(plain[reference], plain[index], corners[reference])
            if len(corners[index]) >= MIN_CORNERS
            else PictureMotion(has_moved=None)
            for index in others
        ]
        found = compare_together(found, corners[reference], plain[reference].shape)
        if sum(one.has_moved is False for one in found) >= _MIN_GROUP:
            lost[reference] = {index for index, one in zip(others, found, strict=True) if one.is_lost}
        judged.append(_judge(undetermined, found, times[reference], times[others]))
        if judged[-1].is_static and not judged[-1].reason:
            break
    if not judged:
        return replace(undetermined, reason="too few corners")
    best = max(judged, key=lambda one: ((None, False, True).index(one.is_static), one.share or 0.0))
    if best.is_static is not None:
        return best
    if any(second in lost[first] and first in lost[second] for first in lost for second in lost):
        return replace(best, is_static=False, reason="still at times, but not in one place")
    if all(one.share is not None and one.share < GONE_SHARE for one in judged):
        return replace(best, is_static=False, reason="")
    return best


def _judge(base: ViewMotion, found: Sequence[PictureMotion], at: float, times: NDArray[np.float64]) -> ViewMotion:
    """Judge a view by comparisons of its pictures with the one at the time `at`."""
    moved = [one for one in found if one.has_moved]
    still = [one for one in found if one.has_moved is False]
    lost = [one for one in found if one.is_lost]
    if 2 * (len(moved) + len(still) + len(lost)) < len(found):
        return replace(base, reason="too few corners are found again")
    most = MAX_OTHERS * len(found)
    is_static: bool | None = False if len(moved) > most else None
    if len(moved) + len(lost) <= most and 2 * len(still) >= len(found):
        is_static = True
    shown = still if is_static else moved or lost
    shifts = [one.displacement_px for one in shown if one.displacement_px is not None]
    judged = replace(
        base,
        is_static=is_static,
        share=float(np.median([one.share for one in (*moved, *still, *lost)])),
        displacement_px=float(np.median(shifts)) if shifts else None,
    )
    moments = [time for time, one in zip(times, found, strict=True) if one.has_moved or one.is_lost]
    if is_static is None:
        share = f"{len(lost)} of {len(found)} pictures"
        return replace(judged, reason=f"corners neither stay nor move together in {share}")
    if is_static and moments:
        return replace(judged, reason=f"except at {moments[0]:.1f} s")
    if is_static is False and len(still) >= 1 + most:
        return replace(judged, reason=f"not at all times: still around {at:.1f} s, moved at {moments[0]:.1f} s")
    return judged


def _content(pictures: Sequence[Picture], area: Area | None) -> tuple[list[Picture], Picture]:
    """Crop pictures to the content within their border, away from its edge, and return where they have content."""
    if area is None:
        return list(pictures), np.full_like(pictures[0], 255)
    kernel = np.ones((2 * _BAR_MARGIN + 1, 2 * _BAR_MARGIN + 1), np.uint8)
    inner = cv2.erode(area.astype(np.uint8) * np.uint8(255), kernel, borderValue=255)
    left, top, width, height = cv2.boundingRect(inner)
    window = slice(top, top + height), slice(left, left + width)
    return [np.ascontiguousarray(picture[window]) for picture in pictures], np.ascontiguousarray(inner[window])
