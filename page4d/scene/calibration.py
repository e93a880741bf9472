"""Assignment of calibrated cameras to views, by name or order."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.choices import CalibrationMatch, CalibrationResize
from page4d.conventions import ClockOrigin
from page4d.errors import InputError, Notice, counted, listed, similar_names
from page4d.formats.build import ImageCamera, ImageName, join_images, pinhole
from page4d.formats.camera_model import CalibratedCamera, Calibration, check_lens, check_rig, world_offset
from page4d.formats.files import error_context
from page4d.geometry.camera import crop_intrinsics, resize_intrinsics
from page4d.geometry.transforms import interpolate_rigid, move_origin
from page4d.io.input_files import CAMERA_IN_NAME, CAMERA_NAME, CAMERA_WORD, composed, natural_key
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import Scene, View, ViewCamera
from page4d.scene.stamps import NS
from page4d.scene.timeline import timing

_OTHER_SIZE = 0.15
"""Deviation of all principal points from the centres that is one of the image size, in units of half the image."""

_MAX_STRETCH = 1.005
"""Ratio of the scales along both axes of a picture that rounding of its size explains."""

_MAX_NAMES_IN_HINT = 32
"""Names up to which a hint writes an option that can be copied."""


def match_cameras(
    calibration: Calibration,
    view_names: Sequence[str],
    all_names: Sequence[str],
    match: CalibrationMatch,
    *,
    views_were_named: bool,
    notices: Sequence[Notice] = (),
) -> tuple[CalibratedCamera | None, ...]:
    """Return the calibrated camera of every view, None for those of other cameras.

    An error about cameras without a video repeats the notices of the scene that name them as ignored.

    Raises:
        InputError: if no view has a camera, a camera has no video and the views were not selected by name, or the
            names of a view and of a camera, which have no partner, are nearly the same.
    """
    file, cameras = calibration.path.name, calibration.cameras
    if match is CalibrationMatch.ORDER:
        if len(cameras) != len(view_names):
            raise InputError(
                f"{file} has {len(cameras)} cameras, {len(view_names)} views are used",
                "pair by name, or select one view per camera with ⟨views⟩",
            )
        return cameras
    by_name = {composed(camera.name): camera for camera in cameras}
    without_video = [name for name in by_name if name not in all_names]
    without_camera = [name for name in view_names if name not in by_name]
    hint = "rename the videos, or pass ⟨calibration_match=order⟩"
    if without_camera and len(without_video) == len(cameras):
        raise InputError(
            f"{file} and the videos have no name in common: the cameras are {listed(by_name)}, "
            f"the videos {listed(all_names)}",
            hint,
        )
    if without_video and not views_were_named:
        count = f"calibration has {len(cameras)} cameras, scene has {len(all_names)} videos"
        both = [name for name in all_names if name in by_name]
        calibrated = ",".join(both) if len(both) <= _MAX_NAMES_IN_HINT else "NAME,NAME,..."
        select = f"add the videos, or select the views by name: ⟨views={calibrated}⟩"
        # Equal numbers are those of one rig with other names, such as cameras counted from 0 and videos from 1.
        entries = {one.marked_text: one.marked_text.partition(": ")[0] for one in notices}
        called = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, without_video))})(?!\w)")
        texts = [text for text, entry in entries.items() if entry.startswith("ignored ") and called.search(entry)]
        raise InputError(
            "; ".join([count, f"missing video for {listed(without_video)}", *texts]),
            hint if len(cameras) == len(all_names) else select,
        )
    misspelt = _nearly_equal(without_camera, without_video)
    if misspelt or len(without_camera) == len(view_names):
        similar = "".join(f", and no video for its camera {camera}" for camera in list(misspelt.values())[:1])
        raise InputError(f"{file} has no camera for {listed([*misspelt] or without_camera)}{similar}", hint)
    return tuple(by_name.get(name) for name in view_names)


def _nearly_equal(views: Sequence[str], cameras: Sequence[str]) -> dict[str, str]:
    """Return the views with names that differ little from that of a camera, and not in a number."""
    by_numbers: dict[tuple[int, ...], list[str]] = {}
    for camera in cameras:
        by_numbers.setdefault(_numbers(camera), []).append(camera)
    near = {view: similar_names(view, by_numbers.get(_numbers(view), ())) for view in views}
    return {view: names[0] for view, names in near.items() if names}


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", name)))


def named_as_views(calibration: Calibration, views: Sequence[str]) -> Calibration:
    """Name the cameras as the views where their files leave that open, and report it.

    The cameras of an unnamed calibration are the views in natural order. If no view has the name of a camera, but one
    name contains the other (`hd_00_05` and 00_05, cam01 and `int_cam01_img`), these belong together.

    Raises:
        InputError: if an unnamed calibration has another number of cameras.
    """
    file, names = calibration.path.name, [composed(name) for name in calibration.names]
    if calibration.unnamed:
        if len(views) != len(names):
            raise InputError(
                f"{file} has {counted(len(names), 'camera')} without names, the scene {counted(len(views), 'view')}",
                "leave the videos of other cameras out, or use a calibration with names",
            )
        order = sorted(views, key=natural_key)
        notice = f"{file} names no cameras; they are, in this order, {listed(order)}"
    elif set(names) & set(views):
        return calibration
    else:
        names = [_FILE_NAME.sub(r"\1", name) for name in names]
        pairing = views_of_names(names, views)
        if not pairing:
            return calibration
        order = [pairing.get(name, "") for name in names]
        pairs = listed([f"{name} is {view}" for name, view in zip(names, order, strict=True) if view], 4)
        notice = f"cameras of {file} are paired with views by a common part of their names: {pairs}"
    cameras = tuple(
        replace(camera, name=view or camera.name) for camera, view in zip(calibration.cameras, order, strict=True)
    )
    return replace(calibration, cameras=cameras, notices=(*calibration.notices, notice), unnamed=False)


def views_of_names(names: Sequence[str], views: Sequence[str]) -> dict[str, str]:
    """Return the view of each camera whose name is in that of the view or contains it; none if it is ambiguous."""
    return paired_names(names, views) or {name: view for view, name in paired_names(views, names).items()}


def paired_names(names: Sequence[str], longer: Sequence[str]) -> dict[str, str]:
    """Return which of the `longer` names end with, or else contain each name as a word, or are cameras of its number.

    Either all names or all longer ones are paired; none if it is ambiguous.
    """
    words = [re.escape(name) for name in names]
    numbers = [re.fullmatch(rf"(?i)(?:{CAMERA_WORD})?0*(\d+)", name) for name in names]
    for patterns in (
        [rf"[^0-9a-zA-Z]{word}$" for word in words],
        [rf"(?<![0-9a-zA-Z]){word}(?![0-9a-zA-Z])" for word in words],
        [rf"(?i)^(?:{CAMERA_WORD})?0*{match[1]}$" if match else "(?!)" for match in numbers],
    ):
        found = {
            name: [each for each in longer if _has_camera(pattern, name if name.isdecimal() else None, each)]
            for name, pattern in zip(names, patterns, strict=True)
        }
        paired = {name: each[0] for name, each in found.items() if each}
        is_plain = all(len(each) < 2 for each in found.values()) and len({*paired.values()}) == len(paired)
        if paired and is_plain and len(paired) in (len(names), len(longer)):
            return paired
    return {}


_DATE_OR_TAKE = re.compile(
    r"(?<![0-9])(?:19|20)[0-9]{2}[-_.][01][0-9](?:[-_.][0-3][0-9])?(?![0-9])"
    r"|(?:take|trial|session|scene|shot)[-_. ]*[0-9]+",
    re.IGNORECASE,
)


def _has_camera(pattern: str, number: str | None, name: str) -> bool:
    """Return whether a name matches a pattern; a number not by a date, a take, or next to the number of a camera."""
    if number is None:
        return bool(re.search(pattern, name))
    labels = {match[1].lstrip("0") for match in CAMERA_IN_NAME.finditer(name) if match[1]}
    is_other = bool(labels) and number.lstrip("0") not in labels  # cam01_take02, 2024_01_camA
    return not is_other and bool(re.search(pattern, _DATE_OR_TAKE.sub("~", name)))


_FILE_NAME = re.compile(r"^(?:.*[/\\])?([^/\\]+)\.(?:mp4|mov|mkv|avi|png|jpe?g|tiff?|bmp)$", re.IGNORECASE)


def as_moving_camera(calibration: Calibration, views: Sequence[View]) -> Calibration:
    """Join the cameras of single images to the moving camera of the only view, whose images have their names.

    The cameras of an unnamed calibration are the images in natural order. Images that are named as cameras, such as
    cam01, are no frames.
    """
    source = views[0].source if len(views) == 1 else None
    if not isinstance(source, ImageFolderSource) or views[0].name in calibration.names or len(source.files) < 2:
        return calibration
    stems = [file.stem for file in source.files]
    if all(CAMERA_NAME.fullmatch(stem) for stem in stems):
        return calibration
    frames = list(calibration.names)
    if calibration.unnamed and len(stems) == len(frames):
        frames = sorted(stems, key=natural_key)
    elif not set(stems) & set(frames):
        return calibration
    images = [
        ImageCamera(
            ImageName(views[0].name, frame),
            camera.intrinsics,
            camera.world_to_camera,
            camera.image_size,
            camera.distortion,
            camera.nominal_width,
        )
        for frame, camera in zip(frames, calibration.cameras, strict=True)
        if camera.is_static
    ]
    return replace(calibration, cameras=join_images(calibration.path.name, images), unnamed=False)


def seconds_later(scene: Scene, pairs: Sequence[tuple[CalibratedCamera, View]], run: Calibration) -> float:
    """Return how much later the times of moving cameras of a run are on the clock of a scene with other views.

    Clocks from time stamps differ by those of time 0, others by the median difference of the starts of moving views.
    Time 0 of a sync file may be that of the run or any other one: starts must be the same.

    Raises:
        InputError: if differences vary by more than half a frame, or a start is not that in the sync file.
    """
    moving = [(camera, view) for camera, view in pairs if camera.times is not None]
    if scene.clock_origin is ClockOrigin.STAMPS and scene.start_ns is not None and run.start_ns is not None:
        return (run.start_ns - scene.start_ns) / NS
    shifts = [view.clock.offset_s - one.start_s for one, view in moving if one.start_s is not None] or [0.0]
    least, most = min(shifts), max(shifts)
    rate = max((timing(view.source.frame_times).fps or 30 for _, view in moving), default=30)
    if (max(most, -least) if scene.clock_origin is ClockOrigin.FILE else most - least) > 0.5 / rate:
        text = f"views of moving cameras start {least:+.3f} to {most:+.3f} s later by {scene.synchronisation}"
        raise InputError(f"{run.path.name}: {text} than in its run", "use the views and clocks of that run")
    return median(shifts)


def place_cameras(
    cameras: Sequence[CalibratedCamera],
    views: Sequence[View],
    resize: CalibrationResize | None,
    file: Path,
    late: float,
) -> tuple[tuple[ViewCamera, ...], tuple[Notice, ...]]:
    """Convert calibrated cameras to the image sizes of the views and to the instants of the scene.

    These are `late` seconds after the same instants on the clock of the calibration.

    Raises:
        InputError: if image sizes differ and `resize` is None, or the poses of a moving camera do not cover the
            instants.
    """
    matrices, notices = fit_lenses(cameras, views, resize, file)
    placed = tuple(
        ViewCamera(
            world_to_camera=_poses_at(camera, view, file, late),
            intrinsics=matrix,
            distortion=None if camera.distortion is None or camera.distortion.is_identity else camera.distortion,
        )
        for camera, view, matrix in zip(cameras, views, matrices, strict=True)
    )
    return placed, (*notices, *_doubts(placed, cameras, views, file))


def fit_lenses(
    cameras: Sequence[CalibratedCamera], views: Sequence[View], resize: CalibrationResize | None, file: Path
) -> tuple[list[Tensor], list[Notice]]:
    """Return the intrinsics [3, 3] at the images of the views, and notices of other sizes and of doubtful lenses.

    Raises:
        InputError: if image sizes differ and `resize` is None, or there is no such lens.
    """
    notices = [Notice(text) for text in _check_sizes(cameras, views, resize)]
    matrices = [_fit_to_view(camera, view.source.size, resize) for camera, view in zip(cameras, views, strict=True)]
    doubts: dict[str, list[str]] = {}
    for matrix, camera, view in zip(matrices, cameras, views, strict=True):
        with error_context(file.name, camera.name):
            for doubt in check_lens(matrix, view.source.size, camera.distortion):
                doubts.setdefault(doubt, []).append(camera.name)
    return matrices, notices + [
        Notice(f"{file.name}: camera {listed(names)}: {doubt}") for doubt, names in doubts.items()
    ]


def _check_sizes(
    cameras: Sequence[CalibratedCamera], views: Sequence[View], resize: CalibrationResize | None
) -> list[str]:
    """Return a text for each camera whose image size is not that of its view."""
    sizes = [
        (view.name, camera.image_size, view.source.size)
        for camera, view in zip(cameras, views, strict=True)
        if camera.image_size is not None and camera.image_size != view.source.size
    ]
    differing = [f"{name}: calibration is for {_size(own)}, video is {_size(shown)}" for name, own, shown in sizes]
    if resize is not CalibrationResize.PAD_CENTER and any(own == shown[::-1] for _, own, shown in sizes):
        raise InputError(
            listed(differing, separator="; "),
            "rotate the videos like the calibrated images, calibrate with images that are rotated like the videos, "
            "or pass ⟨calibration_resize=pad-center⟩ if the videos have bars",
        )
    is_larger = any(shown[0] > own[0] or shown[1] > own[1] for _, own, shown in sizes)
    if differing and (resize is None or (resize is CalibrationResize.CROP_CENTER and is_larger)):
        hint = (
            "pass ⟨calibration_resize=scale⟩ if the whole image was resized, crop-center if its edges were cut off, "
            "or pad-center if bars were added; or use the calibration of these videos"
        )
        raise InputError(listed(differing, separator="; "), hint)
    stretches = [
        1.0 if resize is not CalibrationResize.SCALE else shown[1] * own[0] / (own[1] * shown[0])
        for _, own, shown in sizes
    ]
    doubt = ", with pixels stretched by {:.3g}: wrong if edges were cut off"
    doubts = [doubt.format(one) * (max(one, 1 / one) > _MAX_STRETCH) for one in stretches]
    return [f"{text}; {resize} applied{doubt}" for text, doubt in zip(differing, doubts, strict=True)]


def _doubts(
    placed: Sequence[ViewCamera], cameras: Sequence[CalibratedCamera], views: Sequence[View], file: Path
) -> tuple[Notice, ...]:
    """Return doubts about the size of the calibrated images, and about the positions of the cameras."""
    texts = []
    stated = [camera.image_size or camera.nominal_width for camera in cameras]
    centers = [
        2 * float(lens.intrinsics[axis, 2]) / view.source.size[1 - axis]
        for lens, view, size in zip(placed, views, stated, strict=True)
        for axis in (0, 1)
        if size is None
    ]
    scale = median(centers) if len(centers) > 2 else 1.0
    if abs(scale - 1) > _OTHER_SIZE and max(abs(center / scale - 1) for center in centers) < _OTHER_SIZE / 2:
        text = f"the principal points are the centres of images of {scale:.3g} times the size of the views"
        texts.append(f"{text}: scale the camera matrices, or add the size of the calibrated images")
    with error_context(file.name):
        texts += check_rig([camera.name for camera in cameras], [lens.world_to_camera for lens in placed])
    return tuple(Notice(f"{file.name}: {text}") for text in texts)


def _size(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"


def _fit_to_view(camera: CalibratedCamera, size: tuple[int, int], resize: CalibrationResize | None) -> Tensor:
    """Return the intrinsics [3, 3] at images of (height, width)."""
    if camera.nominal_width is not None:
        focal_x, focal_y = (camera.intrinsics.diagonal()[:2] * size[1] / camera.nominal_width).tolist()
        return pinhole(focal_x, focal_y, size[1] / 2, size[0] / 2)
    if camera.image_size is None or camera.image_size == size:
        return camera.intrinsics
    (height, width), (video_height, video_width) = camera.image_size, size
    if resize is CalibrationResize.SCALE:
        return resize_intrinsics(camera.intrinsics, video_width / width, video_height / height)
    fits = min(video_width / width, video_height / height) if resize is CalibrationResize.PAD_CENTER else 1.0
    matrix = resize_intrinsics(camera.intrinsics, fits, fits)
    return crop_intrinsics(matrix, (width * fits - video_width) / 2, (height * fits - video_height) / 2)


def _poses_at(camera: CalibratedCamera, view: View, file: Path, late: float) -> Tensor:
    poses = camera.world_to_camera
    if poses.ndim == 2:
        return poses
    if camera.times is not None:
        times = view.clock.to_common(view.source.frame_times)[list(view.indices)]
        return _interpolate(camera, np.asarray(camera.times) + late, times, file)
    source, frames = view.source, camera.frames
    if isinstance(source, ImageFolderSource) and frames is not None:
        names = source.frame_names
        pose_of = {name: pose for pose, name in enumerate(frames)}
        missing = [names[index] for index in view.indices if names[index] not in pose_of]
        if missing:
            count = f"{len(missing)} of {len(view.indices)} frames, first {missing[0]}"
            raise InputError(
                f"{file.name}: camera {camera.name} has no pose for {count}",
                "select frames with poses by ⟨frames⟩ and ⟨stride⟩",
            )
        return poses[[pose_of[names[index]] for index in view.indices]]
    order = range(len(poses)) if frames is None else _numbered_order(frames)
    num_frames = len(source.frame_times)
    if len(order) != num_frames:
        counts = f"{counted(len(poses), 'pose')}, {source.label} has {counted(num_frames, 'frame')}"
        gap = "" if order else "numbered without a gap, "
        raise InputError(
            f"{file.name}: camera {camera.name} has {counts}: poses and frames cannot be paired",
            f"give one pose per frame, {gap}or poses by time in a cameras.json",
        )
    return poses[[order[index] for index in view.indices]]


def _numbered_order(names: Sequence[str]) -> list[int]:
    """Return the places of names in the order of their numbers; none if these are not consecutive."""
    numbers = [re.search(r"(\d+)$", name) for name in names]
    numbered = sorted((int(number[1]), place) for place, number in enumerate(numbers) if number is not None)
    steps = {after - before for (before, _), (after, _) in pairwise(numbered)}
    return [place for _, place in numbered] if len(numbered) == len(numbers) and steps <= {1} else []


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
            "shorten the scene with ⟨frames⟩",
        )
    if len(known) == 1:
        return camera.world_to_camera[[0] * len(times)]
    after = np.clip(np.searchsorted(known, times), 1, len(known) - 1)
    fraction = np.clip((times - known[after - 1]) / (known[after] - known[after - 1]), 0.0, 1.0)
    poses = camera.world_to_camera
    return interpolate_rigid(poses[after - 1], poses[after], torch.from_numpy(fraction))


def near_origin(scene: Scene) -> Scene:
    """Return a scene with cameras about a `world_offset` if their coordinates are too large for single precision."""
    offset = world_offset([view.camera.world_to_camera for view in scene.views if view.camera is not None])
    if offset is None:
        return scene
    place = torch.tensor(offset, dtype=torch.float64)
    given = {view.name: view.camera.world_to_camera for view in scene.views if view.camera is not None}
    views = tuple(
        view
        if (camera := view.camera) is None
        else replace(view, camera=replace(camera, world_to_camera=move_origin(camera.world_to_camera, place)))
        for view in scene.views
    )
    return replace(scene, views=views, world_offset=offset, surveyed=given)
