"""Tracklets: poses of one view joined over instants."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from page4d.rig.people.landmarks import Pose
from page4d.rig.records import Tracklet

MAX_GAP = 10
"""Largest number of instants between two poses of a tracklet."""

MIN_LENGTH = 5
"""Shorter tracklets are mostly false detections."""

MAX_STEP = 0.5
"""Largest median joint distance of consecutive poses, in body scales."""


@dataclass
class _Track:
    instants: list[int] = field(default_factory=list)
    poses: list[Pose] = field(default_factory=list)


def join_poses(poses: Sequence[Sequence[Pose]], breaks: Sequence[int] = ()) -> tuple[Tracklet, ...]:
    """Join the poses of each instant with the nearest of earlier instants; no tracklet spans an instant of `breaks`.

    Tracklets are in the order of their first instant.
    """
    starts = np.sort(np.asarray(breaks, dtype=np.int64))
    tracks: list[_Track] = []
    for instant, found in enumerate(poses):
        first = max([int(start) for start in starts if start <= instant], default=0)
        active = [t for t in tracks if t.instants[-1] >= max(first, instant - MAX_GAP)]
        cost = np.array([[_step(track.poses[-1], pose) for pose in found] for track in active])
        taken = set()
        if cost.size:
            for row, column in zip(*linear_sum_assignment(np.minimum(cost, 2 * MAX_STEP)), strict=True):
                if cost[row, column] <= MAX_STEP:
                    active[row].instants.append(instant)
                    active[row].poses.append(found[int(column)])
                    taken.add(column)
        tracks += [_Track([instant], [pose]) for index, pose in enumerate(found) if index not in taken]
    return tuple(_tracklet(track) for track in tracks if len(track.instants) >= MIN_LENGTH)


def _step(first: Pose, second: Pose) -> float:
    """Return the median joint distance in body scales."""
    distance = np.linalg.norm(first.joints - second.joints, axis=1)
    return float(np.median(distance) / max(first.scale, second.scale))


def _tracklet(track: _Track) -> Tracklet:
    return Tracklet(
        instants=np.array(track.instants, dtype=np.int64),
        joints=np.stack([pose.joints for pose in track.poses]),
        visibility=np.stack([pose.visibility for pose in track.poses]),
    )
