"""Bring a calibration to the views of a scene: who is who, at which image size, at which instant."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import InputError, UsageError
from page4d.geometry.camera import crop_intrinsics, resize_intrinsics
from page4d.geometry.rigid import interpolate_rigid
from page4d.scene.calibration.record import CalibratedCamera, Calibration
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import FrameSource, Notice, ViewCamera


class CalibrationResize(StrEnum):
    """How the video relates to the larger or smaller image that was calibrated."""

    CROP_CENTER = "crop-center"
    SCALE = "scale"


class CalibrationMatch(StrEnum):
    """How calibrated cameras and views find each other."""

    NAME = "name"
    ORDER = "order"


@dataclass(frozen=True, kw_only=True)
class RigRequest:
    """One view that wants its calibrated camera: its frames, and when each was taken on the common clock."""

    name: str
    source: FrameSource
    indices: tuple[int, ...]
    frame_times: NDArray[np.float64]


def match_cameras(
    calibration: Calibration,
    view_names: Sequence[str],
    all_names: Sequence[str],
    match: CalibrationMatch,
    *,
    views_were_named: bool,
) -> tuple[CalibratedCamera, ...]:
    """Find the calibrated camera of every view.

    Raises:
        InputError: if a view has no camera, or a camera no video while the views were not chosen by name.
    """
    file, cameras = calibration.path.name, calibration.cameras
    if match is CalibrationMatch.ORDER:
        if len(cameras) != len(view_names):
            raise InputError(
                f"{file} has {len(cameras)} cameras, {len(view_names)} views are used",
                "pair by name, or choose as many views as there are cameras with --views",
            )
        return cameras
    by_name = {camera.name: camera for camera in cameras}
    orphans = [name for name in by_name if name not in all_names]
    lacking = [name for name in view_names if name not in by_name]
    by_order = "rename the videos, or pass --calibration-match order"
    if lacking and len(orphans) == len(cameras):
        raise InputError(
            f"{file} names {', '.join(by_name)}, the videos are {', '.join(all_names)}: no name is in both", by_order
        )
    if orphans and not views_were_named:
        count = f"calibration has {len(cameras)} cameras, scene has {len(all_names)} videos"
        raise InputError(
            f"{count}; missing video for {', '.join(orphans)}",
            f"add the videos, or choose the views by name: --views {','.join(n for n in all_names if n in by_name)}",
        )
    if lacking:
        raise InputError(f"{file} has no camera for {', '.join(lacking)}", by_order)
    return tuple(by_name[name] for name in view_names)


def place_cameras(
    cameras: Sequence[CalibratedCamera],
    requests: Sequence[RigRequest],
    resize: CalibrationResize | None,
    file: Path,
) -> tuple[tuple[ViewCamera, ...], tuple[Notice, ...]]:
    """Turn calibrated cameras into those of the views at their own image sizes and at the scene's instants.

    Raises:
        InputError: naming every camera whose image size differs from its video's while no `resize` says how, or a
            moving camera whose poses do not cover the instants.
    """
    differing = [
        f"{request.name}: calibration is for {_size(camera.image_size)}, video is {_size(request.source.size)}"
        for camera, request in zip(cameras, requests, strict=True)
        if camera.image_size is not None and camera.image_size != request.source.size
    ]
    if differing and resize is None:
        raise InputError("; ".join(differing), "pass --calib-resize crop-center or scale to say how they relate")
    notices = tuple(Notice(f"{text}; {resize} applied") for text in differing)
    placed = tuple(
        ViewCamera(
            world_to_camera=_poses_at(camera, request, file),
            intrinsics=_fit_intrinsics(camera, request.source.size, resize),
            distortion=None if camera.distortion is None or camera.distortion.is_identity else camera.distortion,
        )
        for camera, request in zip(cameras, requests, strict=True)
    )
    return placed, notices


def _size(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"


def _fit_intrinsics(camera: CalibratedCamera, size: tuple[int, int], resize: CalibrationResize | None) -> Tensor:
    if camera.image_size is None or camera.image_size == size:
        return camera.intrinsics
    (height, width), (video_height, video_width) = camera.image_size, size
    if resize is CalibrationResize.SCALE:
        return resize_intrinsics(camera.intrinsics, video_width / width, video_height / height)
    return crop_intrinsics(camera.intrinsics, (width - video_width) / 2, (height - video_height) / 2)


def _poses_at(camera: CalibratedCamera, request: RigRequest, file: Path) -> Tensor:
    poses = camera.world_to_camera
    if poses.ndim == 2:
        return poses
    if camera.times is not None:
        return _interpolate(camera, np.asarray(camera.times), request.frame_times, file)
    if isinstance(request.source, ImageFolderSource) and camera.frames is not None:
        return _poses_by_name(camera, camera.frames, request.source, request.indices, file)
    places = _places_in_video(camera)
    num_frames = len(request.source.frame_times)
    if places is None or len(places) != num_frames:
        counted = "numbered without a gap, " if places is None else ""
        counts = f"{len(poses)} poses, {request.source.label} has {num_frames} frames"
        raise InputError(
            f"{file.name}: camera {camera.name} has {counts}: which frame each belongs to is not stated",
            f"give one pose a frame, {counted}or poses by time in a cameras.json",
        )
    return poses[[places[index] for index in request.indices]]


def _poses_by_name(
    camera: CalibratedCamera, frames: tuple[str, ...], source: ImageFolderSource, indices: tuple[int, ...], file: Path
) -> Tensor:
    places = {name: place for place, name in enumerate(frames)}
    stems = [source.files[index].stem for index in indices]
    missing = [stem for stem in stems if stem not in places]
    if missing:
        count = f"{len(missing)} of {len(stems)} frames, first {missing[0]}"
        raise InputError(
            f"{file.name}: camera {camera.name} has no pose for {count}",
            "choose frames that have one with --frames and --stride",
        )
    return camera.world_to_camera[[places[stem] for stem in stems]]


def _places_in_video(camera: CalibratedCamera) -> list[int] | None:
    """Return which pose belongs to each frame counted from the first, or None where the names do not count frames."""
    if camera.frames is None:
        return list(range(len(camera.world_to_camera)))
    numbers = [re.search(r"(\d+)$", name) for name in camera.frames]
    counted = sorted((int(number[1]), place) for place, number in enumerate(numbers) if number is not None)
    steps = {after - before for (before, _), (after, _) in pairwise(counted)}
    return [place for _, place in counted] if len(counted) == len(numbers) and steps <= {1} else None


def _interpolate(
    camera: CalibratedCamera, known: NDArray[np.float64], times: NDArray[np.float64], file: Path
) -> Tensor:
    if np.any(np.diff(known) <= 0):
        raise InputError(f"{file.name}: camera {camera.name}: times do not increase", "sort the poses by time")
    slack = float(np.median(np.diff(known))) / 2 if len(known) > 1 else 0.0
    if times[0] < known[0] - slack or times[-1] > known[-1] + slack:
        raise InputError(
            f"{file.name}: camera {camera.name} has poses for {known[0]:.3f}-{known[-1]:.3f} s, the scene needs "
            f"{times[0]:.3f}-{times[-1]:.3f} s",
            "shorten the scene with --frames",
        )
    if len(known) == 1:
        return camera.world_to_camera[[0] * len(times)]
    after = np.clip(np.searchsorted(known, times), 1, len(known) - 1)
    fraction = np.clip((times - known[after - 1]) / (known[after] - known[after - 1]), 0.0, 1.0)
    poses = camera.world_to_camera
    return interpolate_rigid(poses[after - 1], poses[after], torch.from_numpy(fraction))


def check_unit_request(unit: str | None, has_calibration: bool) -> None:
    """Refuse a unit without a calibration that it could belong to.

    Raises:
        UsageError: if there is none.
    """
    if unit is not None and not has_calibration:
        raise UsageError("--calibration-unit without --calibration", "pass the calibration file too")
