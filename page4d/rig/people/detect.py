"""Detection of the people of a scene, view by view."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

import numpy as np
import torch

from page4d.errors import CapabilityError
from page4d.rig.people.detector import detect_regions
from page4d.rig.people.keypoint_cache import load_poses, save_poses
from page4d.rig.people.landmarks import Pose, find_poses
from page4d.rig.people.model import PoseModel, is_fetched, pose_model
from page4d.rig.people.regions import Pyramid
from page4d.rig.people.tracklets import join_poses
from page4d.rig.records import Lens, Tracklet, ViewPeople
from page4d.scene.records import Scene, View

FETCH_COMMAND = "page4d weights get people"

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
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ViewPeople, ...]:
    """Return the people of each view at some increasing instants of a scene, in undistorted pixels.

    `progress` takes the frames done and their number. Frames are decoded one at a time; the poses of a view are kept
    in the cache.

    Raises:
        CapabilityError: if the pose model was not fetched, or cannot run on this platform.
        InputError: if a frame cannot be decoded.
    """
    if not is_fetched():
        raise CapabilityError("people cannot be detected: the pose model was not fetched", FETCH_COMMAND)
    counter = _Counter(len(instants) * scene.num_views, progress)
    with ThreadPoolExecutor(min(_MAX_THREADS, max(scene.num_views, 1)), thread_name_prefix="people") as threads:
        found = list(threads.map(lambda view: _poses_of(view, instants, counter), scene.views))
    breaks = _breaks(scene.times[list(instants)])
    return tuple(
        ViewPeople(tracklets=tuple(undistorted(tracklet, lens) for tracklet in join_poses(poses, breaks)))
        for poses, lens in zip(found, lenses, strict=True)
    )


class _Counter:
    """Counts the frames of all threads."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._total, self._progress, self._done, self._lock = total, progress, 0, Lock()

    def add(self, number: int) -> None:
        with self._lock:
            self._done += number
            if self._progress is not None:
                self._progress(self._done, self._total)


def _poses_of(view: View, instants: Sequence[int], counter: _Counter) -> list[list[Pose]]:
    frames = [view.indices[instant] for instant in instants]
    poses = load_poses(view.source, frames)
    if poses is not None:
        counter.add(len(frames))
        return poses
    model = pose_model()
    assert model is not None
    poses = _detect(model, view, frames, counter)
    save_poses(view.source, frames, poses)
    return poses


def _detect(model: PoseModel, view: View, frames: Sequence[int], counter: _Counter) -> list[list[Pose]]:
    """Return the poses of each frame in pixels of the source."""
    height, width = view.source.size
    factor = min(1.0, LONG_SIDE / max(height, width))
    size = (max(round(height * factor), 1), max(round(width * factor), 1))
    scale = np.array([width / size[1], height / size[0]])
    poses: list[list[Pose]] = []
    last: list[Pose] = []
    with view.source.open(size) as reader:
        for image in reader.read(frames):
            shallow = image if image.dtype == np.uint8 else (image >> 8).astype(np.uint8)
            pyramid = Pyramid(shallow)
            followed = [pose.next_region for pose in last]
            last = find_poses(model, pyramid, followed, detect_regions(model, pyramid, size))
            poses.append([replace(pose, joints=pose.joints * scale) for pose in last])
            counter.add(1)
    # Tracklets compare joints by the scale of the body, which is still that of the decoded image.
    longest = float(scale.max())
    return [[replace(p, next_region=p.next_region.scaled(longest)) for p in found] for found in poses]


def _breaks(times: np.ndarray) -> list[int]:
    """Return the indices of instants that follow a gap."""
    steps = np.diff(times)
    return [] if len(steps) == 0 else (np.flatnonzero(steps > _BREAK * np.median(steps)) + 1).tolist()


def undistorted(tracklet: Tracklet, lens: Lens) -> Tracklet:
    """Return a tracklet of original pixels in undistorted ones; joints without an ideal ray become invisible."""
    if lens.distortion is None or lens.distortion.is_identity:
        return tracklet
    focal, centre = np.diag(lens.intrinsics)[:2], lens.intrinsics[:2, 2]
    plane = torch.from_numpy((tracklet.joints - centre) / focal)
    joints = lens.distortion.undistort(plane).numpy() * focal + centre
    lost = np.asarray(~np.isfinite(joints).all(axis=-1))
    return replace(
        tracklet,
        joints=np.where(lost[..., None], tracklet.joints, joints),
        visibility=np.where(lost, 0.0, tracklet.visibility),
    )
