"""From a folder to a scene: which views, which clocks, which instants, which cameras. No pixel is kept."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from page4d.conventions import METRIC_DEPTH_SCALE, Scale
from page4d.errors import UsageError
from page4d.scene.assign_cameras import (
    CalibrationMatch,
    CalibrationResize,
    RigRequest,
    check_unit_request,
    match_cameras,
    place_cameras,
)
from page4d.scene.calibration.read import read_calibration
from page4d.scene.discover import Candidate, check_openable, discover, select_views
from page4d.scene.files import DEFAULT_MAX_MEGAPIXELS
from page4d.scene.images import ImageFolderSource, probe_image_folder, time_by_number
from page4d.scene.records import FrameSource, Level, MaskMeaning, Notice, Scene, View, ViewCamera
from page4d.scene.sidecars import find_companions
from page4d.scene.sync import synchronise
from page4d.scene.timeline import build_timeline
from page4d.scene.video import VideoSource, probe_video

_FINGERPRINT_BYTES = 1 << 20
_MEANINGS: dict[str, Callable[[Any], Any]] = {
    "calibration": Path,
    "calibration_match": CalibrationMatch,
    "calibration_resize": CalibrationResize,
    "masks": Path,
    "mask_meaning": MaskMeaning,
    "depth": Path,
}
"""Options that may be given as text, and what they then are."""


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """How to read a scene folder; the defaults use everything that is there.

    `views` is a number (the first ones) or names. `sync` is a file or one of auto, none, audio, timecode. `frames` is
    (start, stop) on the common timeline. `calibration_unit` (m, cm, mm) makes an arbitrary calibration metric.
    `depth` holds measured depth maps with `depth_levels` levels per unit of the calibration.
    """

    views: int | tuple[str, ...] | None = None
    sync: str = "auto"
    fps: float | None = None
    image_fps: float | None = None
    stride: int = 1
    frames: tuple[int | None, int | None] = (None, None)
    max_frames: int | None = None
    calibration: Path | None = None
    calibration_unit: str | None = None
    calibration_match: CalibrationMatch = CalibrationMatch.NAME
    calibration_resize: CalibrationResize | None = None
    masks: Path | None = None
    mask_meaning: MaskMeaning = MaskMeaning.DYNAMIC
    depth: Path | None = None
    depth_levels: float = METRIC_DEPTH_SCALE
    allow_damaged: bool = False
    max_megapixels: float = DEFAULT_MAX_MEGAPIXELS

    def __post_init__(self) -> None:
        # Text from a caller becomes what it means, or an error: the code asks `is CalibrationResize.SCALE`.
        for name, meaning in _MEANINGS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _understood(name, getattr(self, name), meaning))
        checks = {
            "--views": self.views is None or (self.views > 0 if isinstance(self.views, int) else bool(self.views)),
            "--fps": self.fps is None or 0 < self.fps < float("inf"),
            "--image-fps": self.image_fps is None or 0 < self.image_fps < float("inf"),
            "--stride": self.stride >= 1,
            "--max-frames": self.max_frames is None or self.max_frames >= 1,
            "--max-pixels": self.max_megapixels > 0,
            "--depth-levels": 0 < self.depth_levels < float("inf"),
        }
        for option, holds in checks.items():
            if not holds:
                raise UsageError(f"{option} must be positive", "see page4d reconstruct --help")


def _understood(name: str, value: Any, meaning: Callable[[Any], Any]) -> Any:
    try:
        return meaning(value)
    except ValueError as error:
        raise UsageError(f"{name} is '{value}'", "see page4d reconstruct --help for the choices") from error


def open_scene(folder: Path | str, options: SceneOptions | None = None, **changes: Any) -> Scene:
    """Open a folder of synchronized videos or image folders.

    `changes` are fields of `SceneOptions`, for calls such as `open_scene("rig", views=4, sync="audio")`.

    Raises:
        UsageError: for options that do not fit the folder.
        InputError: for a video, image, mask or calibration that cannot be used.
    """
    folder = Path(folder)
    options = replace(options or SceneOptions(), **changes)
    check_unit_request(options.calibration_unit, options.calibration is not None)
    found = discover(folder)
    chosen, view_notices = select_views(found.candidates, options.views, folder)
    names = tuple(candidate.name for candidate in chosen)
    all_names = tuple(candidate.name for candidate in found.candidates)
    for candidate in chosen:
        check_openable(candidate)
    sources, offsets, source_notices = _open_sources(chosen, options)
    sync = synchronise(names, sources, options.sync, found.sync_file, all_names=all_names, number_offsets=offsets)
    timeline = build_timeline(
        names,
        [clock.to_common(source.frame_times) for clock, source in zip(sync.clocks, sources, strict=True)],
        fps=options.fps,
        frames=options.frames,
        stride=options.stride,
        max_frames=options.max_frames,
    )
    views = tuple(
        View(name=name, source=source, clock=clock, indices=indices)
        for name, source, clock, indices in zip(names, sources, sync.clocks, timeline.indices, strict=True)
    )
    scene = Scene(
        name=folder.resolve().name,
        views=views,
        times=timeline.times,
        mask_meaning=options.mask_meaning,
        depth_levels=options.depth_levels,
        synchronisation=sync.method,
        notices=(*found.ignored, *view_notices, *source_notices, *sync.notices, *timeline.notices),
    )
    scene = _with_calibration(scene, options, all_names)
    return _with_companions(scene, options)


def _open_sources(
    chosen: tuple[Candidate, ...], options: SceneOptions
) -> tuple[tuple[FrameSource, ...], tuple[float, ...] | None, list[Notice]]:
    """Probe every view; image folders are timed together by the numbers in their names."""
    image_fps = options.image_fps or 30.0
    sources: list[FrameSource] = []
    for candidate in chosen:
        if candidate.is_image_folder:
            sources.append(probe_image_folder(candidate.path, fps=image_fps, max_megapixels=options.max_megapixels))
        else:
            sources.append(
                probe_video(
                    candidate.path, max_megapixels=options.max_megapixels, allow_damaged=options.allow_damaged
                )
            )
    notices = [notice for source in sources if isinstance(source, VideoSource) for notice in source.notices]
    notices += _same_file_notices(sources)
    folders = [source for source in sources if isinstance(source, ImageFolderSource)]
    offsets = None
    if folders:
        if options.image_fps is None:
            who = ", ".join(source.label for source in folders)
            notices.append(Notice(f"{who}: images carry no time; assuming 30 fps (--image-fps)"))
        numbered = time_by_number(folders)
        if numbered is None:
            notices += _uncounted_notice(folders)
        else:
            timed, starts = numbered
            by_path = {source.path: source for source in timed}
            sources = [by_path[s.path] if isinstance(s, ImageFolderSource) else s for s in sources]
            offsets = starts if len(folders) == len(sources) else None
    return tuple(sources), offsets, notices


def _uncounted_notice(folders: list[ImageFolderSource]) -> list[Notice]:
    if all(len(source.files) == 1 for source in folders):
        return []
    who = ", ".join(source.label for source in folders)
    text = f"{who}: the file names do not number the frames; images are counted, a missing one is not noticed"
    return [Notice(text)]


def _same_file_notices(sources: list[FrameSource]) -> list[Notice]:
    """Warn of the same recording under two names, which would make a rig of one camera."""
    first_with: dict[tuple[int, str], str] = {}
    notices = []
    for source in sources:
        if not isinstance(source, VideoSource):
            continue
        with source.path.open("rb") as file:
            key = (source.path.stat().st_size, hashlib.sha256(file.read(_FINGERPRINT_BYTES)).hexdigest())
        if key in first_with:
            notices.append(Notice(f"{first_with[key]} and {source.label} are the same file"))
        first_with.setdefault(key, source.label)
    return notices


def _with_calibration(scene: Scene, options: SceneOptions, all_names: tuple[str, ...]) -> Scene:
    if options.calibration is None:
        return scene
    calibration = read_calibration(options.calibration, options.calibration_unit)
    cameras = match_cameras(
        calibration,
        scene.view_names,
        all_names,
        options.calibration_match,
        views_were_named=isinstance(options.views, tuple),
    )
    requests = [
        RigRequest(
            name=view.name,
            source=view.source,
            indices=view.indices,
            frame_times=view.clock.to_common(view.source.frame_times[list(view.indices)]),
        )
        for view in scene.views
    ]
    placed, notices = place_cameras(cameras, requests, options.calibration_resize, options.calibration)
    return replace(
        scene,
        views=tuple(replace(view, camera=camera) for view, camera in zip(scene.views, placed, strict=True)),
        scale=calibration.scale,
        calibration=f"{calibration.path.name} ({calibration.format})",
        other_files=(*scene.other_files, options.calibration),
        notices=(
            *(notice for notice in scene.notices if not _speaks_of(notice, options.calibration)),
            *(Notice(text) for text in calibration.notices),
            *notices,
            *_scale_notice(placed, calibration.scale),
        ),
    )


def _speaks_of(notice: Notice, calibration: Path) -> bool:
    """Tell whether a notice says that the calibration in use was found and ignored."""
    return notice.text.startswith(f"ignored {calibration.name}:")


def _scale_notice(cameras: tuple[ViewCamera, ...], scale: Scale) -> tuple[Notice, ...]:
    undistorted = sum(camera.distortion is not None for camera in cameras)
    notices = []
    if undistorted:
        notices.append(Notice(f"{undistorted} of {len(cameras)} views are undistorted on load", Level.INFO))
    if scale is Scale.ARBITRARY:
        notices.append(Notice("the calibration's unit is not known; pass --calibration-unit for a metric result"))
    return tuple(notices)


def _with_companions(scene: Scene, options: SceneOptions) -> Scene:
    if options.masks is not None:
        masks, notices = find_companions("masks", options.masks, scene.views, options.max_megapixels)
        views = tuple(replace(view, mask=mask) for view, mask in zip(scene.views, masks, strict=True))
        scene = replace(scene, views=views, notices=(*scene.notices, *notices))
    if options.depth is not None:
        depths, notices = find_companions("depth maps", options.depth, scene.views, options.max_megapixels)
        views = tuple(replace(view, depth=depth) for view, depth in zip(scene.views, depths, strict=True))
        scene = replace(scene, views=views, notices=(*scene.notices, *notices))
    return scene
