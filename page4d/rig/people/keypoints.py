"""Body keypoints of the people in a scene: detection, landmarks, and tracklets over the instants of a view.

A detector (anchors, decoding, non-maximum suppression) finds rotated squares in an image, whose crops the landmark
network takes. Poses of a view are kept on disk, so that several commands on one capture detect people once.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import chain, groupby, zip_longest
from math import dist
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from page4d.errors import CapabilityError, OutputError, Progress
from page4d.formats.files import read_arrays
from page4d.geometry.pixels import Window
from page4d.io.atomic import write_bytes_atomic
from page4d.io.documents import DocumentError
from page4d.io.folders import cache_folder
from page4d.rig.epipolar import undistorted_pixels
from page4d.rig.people.model import POSE_MODEL, PoseModel, RawLandmarks, is_fetched, pose_model
from page4d.rig.records import EXCHANGED_JOINTS, NUM_JOINTS, Array, Lens, Tracklet, ViewPeople, no_progress
from page4d.scene.identity import identify
from page4d.scene.image_file import in_8_bits
from page4d.scene.records import Scene, View
from page4d.signals import in_threads

DETECTOR_SIDE, LANDMARK_SIDE = 224, 256
"""Sides of the images that the networks take."""

REGION_SCALE = 2.5
"""Side of a region per distance between the hip centre and the scale point; the networks were trained with it."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """A square [centre, side] in pixels whose up direction is turned clockwise by `angle` radians."""

    centre: tuple[float, float]
    side: float
    angle: float

    def to_image(self, unit: Float[Array, "*n 2"]) -> Float[Array, "*n 2"]:
        """Map points of the unit square (the region upright, y down) to pixels."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        pixels: Array = (unit - 0.5) * self.side @ np.array([[cos, sin], [-sin, cos]]) + self.centre
        return pixels

    def scaled(self, factor: float) -> "Region":
        """Return the region in an image resized by a factor."""
        return Region((self.centre[0] * factor, self.centre[1] * factor), self.side * factor, self.angle)


def region_of(hip_centre: Float[Array, " 2"], scale_point: Float[Array, " 2"]) -> Region:
    """Return the region in which the vector from the hip centre to the scale point points up."""
    x, y = scale_point - hip_centre
    angle = float(np.arctan2(x, -y))
    return Region((float(hip_centre[0]), float(hip_centre[1])), REGION_SCALE * float(np.hypot(x, y)), angle)


class Pyramid:
    """An image and its halved copies, from which regions are sampled without aliasing."""

    def __init__(self, image: UInt8[Pixels, "H W 3"]) -> None:
        self._levels = [image]

    def crop(self, region: Region, side: int) -> Float[NDArray[np.float32], "side side 3"]:
        """Return a region as an upright image in [0, 1]; black outside of the image."""
        level, step = 0, region.side / side
        while step >= 2 and min(self._level(level).shape[:2]) >= 2:
            level, step = level + 1, step / 2
        image = self._level(level)
        full = self._levels[0].shape
        scale = np.array([image.shape[1] / full[1], image.shape[0] / full[0]])
        # Three corners of the crop and of the region; cv2 counts pixel centres from 0.
        unit = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        source = (region.to_image(unit) * scale - 0.5).astype(np.float32)
        target = (unit * side - 0.5).astype(np.float32)
        matrix = cv2.getAffineTransform(target, source)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        crop = cv2.warpAffine(image, matrix, (side, side), flags=flags)
        return crop.astype(np.float32) / np.float32(255)

    def _level(self, level: int) -> Pixels:
        while len(self._levels) <= level:
            last = self._levels[-1]
            half = (max(last.shape[1] // 2, 1), max(last.shape[0] // 2, 1))
            self._levels.append(cv2.resize(last, half, interpolation=cv2.INTER_AREA).astype(np.uint8))
        return self._levels[level]


_ANCHORS = ((8, 2), (16, 2), (32, 6))
"""Stride of the cells in pixels, and anchors per cell."""

MIN_SCORE = 0.4
"""A person that is missed costs more than a region without a person, which the landmarks' person flag drops."""

MAX_OVERLAP = 0.3
"""Intersection over union above which two boxes are one person."""

MAX_PEOPLE = 6
"""Largest number of people per image."""


@cache
def anchors() -> Float[Array, "2254 2"]:
    """Return the centres of all anchors in units of the input, (x, y), by stride, row, column."""
    centres = []
    for stride, per_cell in _ANCHORS:
        cells = (np.arange(DETECTOR_SIDE // stride) + 0.5) * stride / DETECTOR_SIDE
        y, x = np.meshgrid(cells, cells, indexing="ij")
        centres.append(np.repeat(np.stack([x, y], axis=-1).reshape(-1, 2), per_cell, axis=0))
    return np.concatenate(centres)


def detect_regions(model: PoseModel, image: Pyramid, size: tuple[int, int]) -> list[Region]:
    """Return the regions of people in an image of a size (height, width), the best first."""
    box = Region((size[1] / 2, size[0] / 2), float(max(size)), 0.0)  # the smallest square around it
    raw, logits = model.detect(2 * image.crop(box, DETECTOR_SIDE) - 1)
    return [
        region_of(*box.to_image(keypoints[:2]))
        for keypoints in decode(np.asarray(raw, np.float64), np.asarray(logits, np.float64))
    ]


def decode(raw: Float[Array, "2254 12"], logits: Float[Array, " 2254"]) -> list[Float[Array, "4 2"]]:
    """Return the keypoints of people in units of the input, the best first: hip centre, scale point, and two more."""
    scores = _sigmoid(logits)
    chosen = np.flatnonzero(scores >= MIN_SCORE)
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    values = raw[chosen] / DETECTOR_SIDE
    centre = anchors()[chosen]
    boxes = np.concatenate([values[:, :2] + centre - values[:, 2:4] / 2, values[:, 2:4]], axis=1)
    keypoints = values[:, 4:].reshape(-1, 4, 2) + centre[:, None]
    kept = cv2.dnn.NMSBoxes(boxes.tolist(), scores[chosen].tolist(), 0.0, MAX_OVERLAP)
    return [keypoints[index] for index in kept[:MAX_PEOPLE]]


MIN_FLAG = 0.5
"""Least probability that a region shows a person."""

MIN_PEAK = 0.5
"""Least value of a heatmap at whose centroid a landmark is refined."""

_WINDOW = 3
"""Half of the window of the centroid, in cells of a heatmap."""

_MIRRORED = np.array([*EXCHANGED_JOINTS, *range(NUM_JOINTS, 39)])
"""For each landmark that of the other side. Auxiliary points follow those of the body; two define the next region."""

_AGREEMENT = 0.2
"""Difference between a landmark and that of the mirrored crop, in body scales, at which its visibility falls to 1/e.

A wrong side or a guess behind the body differs by more. On footage of a calibrated rig this lowers the reprojection
error that 90 % of the joints do not exceed from 112 to 65 px, and the median from 15.9 to 14.8 px (of 1920).
"""

DUPLICATE = 0.25
"""Two poses are one person if their median joint distance is below this share of the body scale."""


@dataclass(frozen=True)
class BodyPose:
    """Landmarks of a person in pixels of an image; `next_region` is where to search at the next instant."""

    joints: Float[Array, "33 2"]
    visibility: Float[Array, " 33"]
    flag: float
    next_region: Region

    @property
    def scale(self) -> float:
        """Distance between the hip centre and the scale point in pixels: about the length of torso and head."""
        return self.next_region.side / REGION_SCALE


def find_poses(
    model: PoseModel, image: Pyramid, followed: Sequence[Region], detected: Sequence[Region]
) -> list[BodyPose]:
    """Return the people in regions that follow earlier poses, and in detected regions without a followed person."""
    found = without_duplicates(_poses_in(model, image, followed))
    known = [(pose.next_region.centre, pose.scale / 2) for pose in found]  # hip centre, and half a body scale
    new = [region for region in detected if all(dist(region.centre, hip) > reach for hip, reach in known)]
    return without_duplicates([*found, *_poses_in(model, image, new)])


def _poses_in(model: PoseModel, image: Pyramid, regions: Sequence[Region]) -> list[BodyPose]:
    """Return the means of the poses of crops and of their mirror images, where both show a person."""
    poses = []
    for region in regions:
        crop = image.crop(region, LANDMARK_SIDE)
        pose = read_pose(model.landmarks(crop), region)
        mirrored = pose and read_pose(model.landmarks(np.ascontiguousarray(crop[:, ::-1])), region, is_mirrored=True)
        if pose and mirrored:
            poses.append(_mean(pose, mirrored))
    return poses


def _mean(pose: BodyPose, mirrored: BodyPose) -> BodyPose:
    difference = np.linalg.norm(pose.joints - mirrored.joints, axis=1) / (_AGREEMENT * pose.scale)
    return BodyPose(
        (pose.joints + mirrored.joints) / 2,
        np.minimum(pose.visibility, mirrored.visibility) * np.exp(-difference),
        min(pose.flag, mirrored.flag),
        pose.next_region,
    )


def read_pose(raw: RawLandmarks, region: Region, *, is_mirrored: bool = False) -> BodyPose | None:
    """Return the person of a region from the outputs for its crop, or for the mirror image; None if there is none."""
    if not raw.flag >= MIN_FLAG or not np.isfinite(raw.points).all():
        return None
    points = np.asarray(raw.points, np.float64)
    unit = refine_landmarks(points[:, :2] / LANDMARK_SIDE, np.asarray(raw.heatmaps, np.float64))
    visibility = _sigmoid(points[:, 3])
    if is_mirrored:
        unit, visibility = np.array([1, 0]) + np.array([-1, 1]) * unit[_MIRRORED], visibility[_MIRRORED]
    pixels = region.to_image(unit)
    next_region = region_of(pixels[NUM_JOINTS], pixels[NUM_JOINTS + 1])
    if next_region.side <= 0:
        return None
    return BodyPose(pixels[:NUM_JOINTS], visibility[:NUM_JOINTS], raw.flag, next_region)


def refine_landmarks(unit: Float[Array, "39 2"], heatmaps: Float[Array, "h w 39"]) -> Float[Array, "39 2"]:
    """Move landmarks to the centroid of their heatmap in a window, where its peak is high."""
    height, width, _ = heatmaps.shape
    refined = unit.copy()
    for index, (x, y) in enumerate(unit):
        column, row = int(np.floor(x * width)), int(np.floor(y * height))
        if not (0 <= column < width and 0 <= row < height):
            continue
        left, top = max(column - _WINDOW, 0), max(row - _WINDOW, 0)
        window = _sigmoid(heatmaps[top : row + _WINDOW + 1, left : column + _WINDOW + 1, index])
        if window.max() < MIN_PEAK:
            continue
        rows, columns = np.mgrid[: window.shape[0], : window.shape[1]]
        total = window.sum()
        refined[index] = (
            (left + (columns * window).sum() / total) / width,
            (top + (rows * window).sum() / total) / height,
        )
    return refined


def without_duplicates(poses: Sequence[BodyPose]) -> list[BodyPose]:
    """Return one pose per person, that of the highest flag."""
    kept: list[BodyPose] = []
    for pose in sorted(poses, key=lambda pose: -pose.flag):
        if not any(_distance(pose, other) < DUPLICATE * other.scale for other in kept):
            kept.append(pose)
    return kept


def _distance(first: BodyPose, second: BodyPose) -> float:
    """Return the median joint distance in pixels."""
    return float(np.median(np.linalg.norm(first.joints - second.joints, axis=1)))


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(values, -100, 100)))


MAX_GAP = 10
"""Largest number of instants between two poses of a tracklet."""

MIN_LENGTH = 5
"""Shorter tracklets are mostly false detections."""

MAX_STEP = 0.5
"""Largest median joint distance of consecutive poses, in body scales."""


def join_poses(
    poses: Sequence[Sequence[BodyPose]], breaks: Sequence[int] = (), *, keeps_short: bool = False
) -> tuple[Tracklet, ...]:
    """Join the poses of each instant with the nearest of earlier instants; no tracklet spans an instant of `breaks`.

    Tracklets are in the order of their first instant. Poses of short ones are left out; or kept, in tracklets that
    take one pose of any person per instant.
    """
    starts = np.sort(np.asarray(breaks, dtype=np.int64))
    tracks: list[list[tuple[int, BodyPose]]] = []
    for instant, found in enumerate(poses):
        first = max([int(start) for start in starts if start <= instant], default=0)
        active = [track for track in tracks if track[-1][0] >= max(first, instant - MAX_GAP)]
        lasts = [pose for *_, (_, pose) in active]
        cost = np.array([[_distance(one, pose) / max(one.scale, pose.scale) for pose in found] for one in lasts])
        taken = set()
        if cost.size:
            for row, column in zip(*linear_sum_assignment(np.minimum(cost, 2 * MAX_STEP)), strict=True):
                if cost[row, column] <= MAX_STEP:
                    active[row].append((instant, found[int(column)]))
                    taken.add(column)
        tracks += [[(instant, pose)] for index, pose in enumerate(found) if index not in taken]
    kept = [track for track in tracks if len(track) >= MIN_LENGTH]
    if keeps_short:
        rest = sorted((one for track in tracks if len(track) < MIN_LENGTH for one in track), key=lambda one: one[0])
        by_instant = [list(found) for _, found in groupby(rest, key=lambda one: one[0])]
        kept += [[one for one in ranked if one is not None] for ranked in zip_longest(*by_instant)]
    return tuple(
        Tracklet(
            instants=np.array([instant for instant, _ in track], dtype=np.int64),
            joints=np.stack([pose.joints for _, pose in track]),
            visibility=np.stack([pose.visibility for _, pose in track]),
        )
        for track in kept
    )


VERSION = 1
"""Increases when detections change."""

MAX_FILES = 200
"""The oldest files beyond this number are removed; a file has about 50 kB."""

_SUFFIX = ".npz"


def load_poses(view: View, frames: Sequence[int]) -> list[list[BodyPose]] | None:
    """Return the poses of some frames; None if they are not in the cache or cannot be read."""
    path = _path(view, frames)
    if path is None:
        return None
    try:
        arrays = read_arrays(path, ["counts", "values"])
    except DocumentError:
        return None
    counts, values = arrays["counts"], arrays["values"]
    whole = values.ndim == 2 and values.shape[1] == _WIDTH and counts.shape == (len(frames),)
    if not whole or int(counts.sum()) != len(values) or not np.isfinite(values).all():
        return None
    poses = []
    for row in values:
        joints, visibility, rest = np.split(row, [2 * NUM_JOINTS, 3 * NUM_JOINTS])
        flag, x, y, side, angle = rest.tolist()
        poses.append(BodyPose(joints.reshape(NUM_JOINTS, 2), visibility, flag, Region((x, y), side, angle)))
    ends = np.cumsum(counts)
    return [poses[end - count : end] for count, end in zip(counts, ends, strict=True)]


def save_poses(view: View, frames: Sequence[int], poses: Sequence[Sequence[BodyPose]]) -> None:
    """Keep the poses of some frames; a cache that cannot be written is ignored."""
    path = _path(view, frames)
    if path is None:
        return
    rows = [
        np.hstack([pose.joints.ravel(), pose.visibility, pose.flag, *astuple(pose.next_region)])
        for pose in chain.from_iterable(poses)
    ]
    data = io.BytesIO()
    np.savez(data, counts=np.array([len(found) for found in poses]), values=np.array(rows).reshape(-1, _WIDTH))
    with suppress(OutputError, OSError):
        write_bytes_atomic(path, data.getvalue())
        files = sorted(path.parent.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_FILES]:
            file.unlink(missing_ok=True)


_WIDTH = NUM_JOINTS * 3 + 5


def _path(view: View, frames: Sequence[int]) -> Path | None:
    """Return the file of frames of a view and their part between bars; None for frames without files."""
    source, window = view.source, view.frame_window
    identity = identify(source)
    if identity is None:
        return None
    # The ends of a folder's first and last image do not show that another one was edited.
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in getattr(source, "files", ())]
    lists = [list(source.size), list(frames)]
    key = [VERSION, identity.num_bytes, identity.sha256_ends, files, *lists, *(window or ()), POSE_MODEL.sha256]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return cache_folder() / "keypoints" / f"{name}{_SUFFIX}"


LONG_SIDE = 1280
"""Long side of decoded images: people keep the resolution of their crops of 256 px if taller than a fifth of it."""

_MAX_THREADS = 2
"""Views that are decoded and detected at once; memory and processors stay free for other work."""

_BREAK = 3.0
"""Instants further apart than this multiple of the median step start new tracklets."""


def detect_people(
    scene: Scene,
    instants: Sequence[int],
    lenses: Sequence[Lens],
    progress: Progress = no_progress,
    *,
    keeps_short: bool = False,
) -> tuple[ViewPeople, ...]:
    """Return the people of each view at some increasing instants of a scene, in undistorted pixels.

    With `keeps_short`, those of single instants count, too (`join_poses`). `progress` takes the frames done and their
    number. Frames are decoded one at a time; the poses of a view are kept in the cache.

    Raises:
        CapabilityError: if the pose model was not fetched, or cannot run on this platform.
        InputError: if a frame cannot be decoded.
    """
    if not is_fetched():
        raise CapabilityError("people cannot be detected: the pose model was not fetched", POSE_MODEL.command)
    total = len(instants) * scene.num_views
    found = in_threads(lambda view, step: _poses_of(view, instants, step), scene.views, progress, total, _MAX_THREADS)
    steps = np.diff(scene.times[list(instants)])
    breaks = (np.flatnonzero(steps > _BREAK * np.median(steps)) + 1).tolist() if len(steps) else []
    return tuple(
        tuple(undistorted_tracklet(tracklet, lens) for tracklet in join_poses(poses, breaks, keeps_short=keeps_short))
        for poses, lens in zip(found, lenses, strict=True)
    )


def _poses_of(view: View, instants: Sequence[int], step: Callable[[], None]) -> list[list[BodyPose]]:
    frames = [view.indices[instant] for instant in instants]
    poses = load_poses(view, frames)
    if poses is not None:
        for _ in frames:
            step()
        return poses
    poses = _detect(view, frames, step)
    save_poses(view, frames, poses)
    return poses


def _detect(view: View, frames: Sequence[int], step: Callable[[], None]) -> list[list[BodyPose]]:
    """Return the poses of each frame in pixels of the source; bars would make people smaller, and are cut off."""
    model = pose_model()
    assert model is not None
    height, width = view.source.size
    window = view.frame_window or Window(0, 0, height, width)
    factor = min(1.0, LONG_SIDE / max(window.height, window.width))
    size = (max(round(height * factor), 1), max(round(width * factor), 1))
    scale = np.array([width / size[1], height / size[0]])
    first = np.ceil([window.left, window.top] / scale).astype(int)
    after = np.floor([window.left + window.width, window.top + window.height] / scale).astype(int)
    poses: list[list[BodyPose]] = []
    last: list[BodyPose] = []
    with view.source.open(size) as reader:
        for image in reader.read(frames):
            picture = in_8_bits(image)[first[1] : after[1], first[0] : after[0]]
            pyramid, followed = Pyramid(picture), [pose.next_region for pose in last]
            last = find_poses(model, pyramid, followed, detect_regions(model, pyramid, picture.shape[:2]))
            poses.append([replace(pose, joints=(pose.joints + first) * scale) for pose in last])
            step()
    # Tracklets compare joints by the scale of the body, which is still that of the decoded image.
    longest = float(scale.max())
    return [[replace(p, next_region=p.next_region.scaled(longest)) for p in found] for found in poses]


def ideal_people(people: ViewPeople, lens: Lens) -> ViewPeople:
    """Return people in undistorted pixels who were found before the distortion of an unknown lens was."""
    if not lens.estimated_k1:
        return people
    return tuple(undistorted_tracklet(tracklet, lens) for tracklet in people)


def undistorted_tracklet(tracklet: Tracklet, lens: Lens) -> Tracklet:
    """Return a tracklet of original pixels in undistorted ones; joints without an ideal ray become invisible."""
    if lens.distortion is None or lens.distortion.is_identity:
        return tracklet
    joints = undistorted_pixels(tracklet.joints, lens)
    lost = np.asarray(~np.isfinite(joints).all(axis=-1))
    return replace(
        tracklet,
        joints=np.where(lost[..., None], tracklet.joints, joints),
        visibility=np.where(lost, 0.0, tracklet.visibility),
    )
