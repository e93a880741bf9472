"""Poses of a view on disk, so that several commands on one capture detect people once."""

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np

from page4d.errors import OutputError
from page4d.io.atomic import write_bytes_atomic
from page4d.io.folders import cache_folder
from page4d.rig.people.landmarks import NUM_JOINTS, Pose
from page4d.rig.people.model import SHA256
from page4d.rig.people.regions import Region
from page4d.scene.identity import identify
from page4d.scene.records import FrameSource

VERSION = 1
"""Increases when detections change."""

MAX_FILES = 200
"""The oldest files beyond this number are removed; a file has about 50 kB."""

_SUFFIX = ".npz"

_PARSING = Lock()
"""Views are read by several threads, and numpy parses headers as Python, which is not safe in threads on Python 3.11.

Source: github.com/python/cpython, issue 106905.
"""


def load_poses(source: FrameSource, frames: Sequence[int]) -> list[list[Pose]] | None:
    """Return the poses of some frames; None if they are not in the cache or cannot be read."""
    path = _path(source, frames)
    if path is None:
        return None
    try:
        with _PARSING, np.load(path, allow_pickle=False) as file:
            counts, values = file["counts"], file["values"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    whole = values.ndim == 2 and values.shape[1] == _WIDTH and counts.shape == (len(frames),)
    if not whole or int(counts.sum()) != len(values) or not np.isfinite(values).all():
        return None
    poses = [_unpack(row) for row in values]
    ends = np.cumsum(counts)
    return [poses[end - count : end] for count, end in zip(counts, ends, strict=True)]


def save_poses(source: FrameSource, frames: Sequence[int], poses: Sequence[Sequence[Pose]]) -> None:
    """Keep the poses of some frames; a cache that cannot be written is ignored."""
    path = _path(source, frames)
    if path is None:
        return
    rows = [_pack(pose) for found in poses for pose in found]
    data = io.BytesIO()
    np.savez(data, counts=np.array([len(found) for found in poses]), values=np.array(rows).reshape(-1, _WIDTH))
    with suppress(OutputError, OSError):
        write_bytes_atomic(path, data.getvalue())
        files = sorted(path.parent.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_FILES]:
            file.unlink(missing_ok=True)


_WIDTH = NUM_JOINTS * 3 + 5


def _pack(pose: Pose) -> np.ndarray:
    region = pose.next_region
    return np.array([*pose.joints.ravel(), *pose.visibility, pose.flag, *region.centre, region.side, region.angle])


def _unpack(row: np.ndarray) -> Pose:
    joints, visibility, rest = np.split(row, [2 * NUM_JOINTS, 3 * NUM_JOINTS])
    flag, x, y, side, angle = rest.tolist()
    return Pose(joints.reshape(NUM_JOINTS, 2), visibility, flag, Region((x, y), side, angle))


def _path(source: FrameSource, frames: Sequence[int]) -> Path | None:
    """Return the file of a source and frames; None for frames without files, or without a home folder."""
    identity = identify(source)
    if identity is None:
        return None
    # The ends of a folder's first and last image do not show that another one was edited.
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in getattr(source, "files", ())]
    key = [VERSION, identity.num_bytes, identity.sha256_ends, files, list(source.size), list(frames), SHA256]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    try:
        return cache_folder() / "keypoints" / f"{name}{_SUFFIX}"
    except OutputError:
        return None
