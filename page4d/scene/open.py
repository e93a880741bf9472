"""Opening of a scene folder: views, clocks, instants, cameras, masks and depth, without decoding frames."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from page4d.choices import CalibrationMatch
from page4d.conventions import METRIC_DEPTH_SCALE, Scale
from page4d.errors import InputError, Level, Notice, UsageError, listed, one_per_fact, unknown_name
from page4d.formats.calibrations import read_calibration
from page4d.io.folders import given_path
from page4d.io.input_files import composed
from page4d.options import SceneOptions
from page4d.scene.batches import depth_scale_notices
from page4d.scene.calibration import (
    as_moving_camera,
    match_cameras,
    named_as_views,
    near_origin,
    place_cameras,
    seconds_later,
    views_of_names,
)
from page4d.scene.clocks import Synchronisation, start_of_clock, synchronise
from page4d.scene.discover import discover, select_views
from page4d.scene.identity import FileIdentity, identify
from page4d.scene.images import ImageFolderSource, content_notices, probe_image_folder, time_by_name, time_by_number
from page4d.scene.layout import SHOWN, Candidate, takes_notice
from page4d.scene.probe import probe_video
from page4d.scene.records import Clock, FrameSource, Scene, View, ViewCamera
from page4d.scene.sidecar_values import check_depth, check_masks
from page4d.scene.sidecars import DEPTH_MAPS, MASKS, find_sidecars
from page4d.scene.timeline import build_timeline, timing

_SAME_RATE = 0.05
"""Relative difference of the rate of time stamps and a stated rate that is not reported."""


def open_scene(
    folder: Path | str,
    options: SceneOptions | None = None,
    *,
    synchronisation: Synchronisation | None = None,
    **changes: Any,
) -> Scene:
    """Open a folder of synchronized videos or image folders.

    `changes` are fields of `SceneOptions`, as in `open_scene("rig", views=4, sync="audio")`.
    Clocks that were determined before are given as `synchronisation`, one per view in order.

    Raises:
        UsageError: if an option is invalid or contradicts the folder.
        InputError: if a video, image, mask or calibration is unusable.
    """
    folder = given_path(folder, "scene")
    options = replace(options or SceneOptions(), **changes)
    found = discover(folder, options.calibration, options.sync)
    by_name = options.calibration_match is CalibrationMatch.NAME and not isinstance(options.views, tuple)
    if by_name and options.calibration is not None and any(one.kind == SHOWN for one in found.left_out):
        alone = [candidate.name for candidate in found.candidates]
        cameras = read_calibration(options.calibration, options.calibration_unit, alone).names
        found = found.with_cameras([composed(name) for name in cameras])
    chosen, view_notices = select_views(found, options.views, folder)
    names = tuple(candidate.name for candidate in chosen)
    all_names = tuple(dict.fromkeys((*(candidate.name for candidate in found.candidates), *names)))
    sources, offsets, source_notices = open_sources(chosen, options)
    sync = synchronisation or synchronise(
        names, sources, options.sync, found.sync_file, folder=folder, all_names=all_names, number_offsets=offsets
    )
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
        options=options,
        mask_meaning=options.mask_meaning,
        synchronisation=sync.method,
        clock_origin=sync.origin,
        start_ns=start_of_clock(sources, sync.clocks) if sync.start_ns is None else sync.start_ns,
        notices=(
            *found.notices,
            *view_notices,
            *takes_notice(chosen, [float(source.frame_times[-1]) for source in sources]),
            *source_notices,
            *_rate_notices(sources, sync.clocks, options.image_fps),
            *sync.notices,
            *timeline.notices,
        ),
    )
    scene = _with_sidecars(_with_calibration(scene, options, all_names), options)
    return replace(scene, notices=one_per_fact(scene.notices, names))


def open_sources(
    chosen: tuple[Candidate, ...], options: SceneOptions
) -> tuple[tuple[FrameSource, ...], tuple[float | None, ...], list[Notice]]:
    """Probe every view; image folders are timed jointly by times or frame numbers in their file names.

    Returns the sources, the start times of numbered image folders (None for other views), and notices.

    Raises:
        InputError: if a video or image is unusable.
    """
    image_fps = options.image_fps or 30.0
    sources = [_probe(candidate, options, image_fps) for candidate in chosen]
    notices = [notice for source in sources for notice in getattr(source, "notices", ())]
    notices += _same_file_notices(sources)
    folders = [source for source in sources if isinstance(source, ImageFolderSource)]
    notices += content_notices(folders)
    folders = time_by_name(folders)
    untimed = [source for source in folders if source.stamps is None]
    numbered = {source.path: (source, start) for source, start in time_by_number(untimed)}
    unnumbered = [source for source in untimed if source.path not in numbered]
    if any(len(source.files) > 1 for source in unnumbered):
        text = "file names without regular frame numbers; images are counted, lost ones are not detected"
        notices.append(Notice(f"{listed([source.label for source in unnumbered])}: {text}"))
    timed = {source.path: (source, None) for source in folders} | numbered
    placed = [timed[source.path] if isinstance(source, ImageFolderSource) else (source, None) for source in sources]
    return tuple(source for source, _ in placed), tuple(start for _, start in placed), notices


def _probe(candidate: Candidate, options: SceneOptions, image_fps: float) -> FrameSource:
    """Open a view; messages name the view of a file that is not directly in the scene."""
    of: dict[str, Any] = {"label": candidate.label, "max_megapixels": options.max_megapixels}
    is_below = "/" in candidate.label.rstrip("/")
    if is_below:
        of["name"] = candidate.name
    try:
        if candidate.files:
            return probe_image_folder(candidate.path, files=candidate.files, fps=image_fps, **of)
        return probe_video(candidate.path, allow_damaged=options.allow_damaged, **of)
    except InputError as error:
        if not is_below:
            raise
        raise InputError(f"{candidate.name}: {error.marked_message}", error.marked_hint) from error


def _rate_notices(
    sources: Sequence[FrameSource], clocks: Sequence[Clock], image_fps: float | None
) -> Iterator[Notice]:
    """Report image folders whose rate is assumed, or is another one than stated."""
    assumed = []
    for source, clock in zip(sources, clocks, strict=True):
        if not isinstance(source, ImageFolderSource) or len(source.files) < 2:
            continue
        rate = timing(np.array(clock.frame_times or source.frame_times)).fps
        if source.stamps is None and not clock.frame_times:
            assumed.append(source.label)
        elif image_fps is not None and abs(image_fps / rate - 1) > _SAME_RATE:
            yield Notice(f"{source.label}: the time stamps give {rate:.4g} fps, not ⟨image_fps={image_fps:g}⟩")
    if assumed and image_fps is None:
        yield Notice(f"{listed(assumed)}: images have no time stamps; assuming 30 fps (⟨image_fps⟩)")


def _same_file_notices(sources: list[FrameSource]) -> list[Notice]:
    """Warn about copies of a recording, which would be two cameras at one position."""
    copies: dict[FileIdentity | None, list[str]] = {}
    for source in sources:
        copies.setdefault(identify(source), []).append(source.label)
    return [
        Notice(f"{listed(labels, separator=' and ')} are the same {'images' if labels[0].endswith('/') else 'file'}")
        for labels in copies.values()
        if len(labels) > 1
    ]


def _with_calibration(scene: Scene, options: SceneOptions, all_names: tuple[str, ...]) -> Scene:
    if options.calibration is None:
        return scene
    by_name = options.calibration_match is CalibrationMatch.NAME
    calibration = read_calibration(
        options.calibration, options.calibration_unit, scene.view_names if by_name else None
    )
    if by_name:
        calibration = named_as_views(as_moving_camera(calibration, scene.views), all_names)
    cameras = match_cameras(
        calibration,
        scene.view_names,
        all_names,
        options.calibration_match,
        views_were_named=isinstance(options.views, tuple),
        notices=scene.notices,
    )
    if unknown := [name for name in options.again if name not in scene.view_names]:
        raise unknown_name("view", unknown[0], scene.view_names, "⟨again⟩: ")
    known = [
        (camera, view)
        for camera, view in zip(cameras, scene.views, strict=True)
        if camera is not None and view.name not in options.again
    ]
    if not known:
        raise UsageError("⟨again⟩ names all calibrated views", "leave one out, or pass the file as ⟨intrinsics⟩")
    kept, views = zip(*known, strict=True)
    late = seconds_later(scene, known, calibration)
    placed, notices = place_cameras(kept, views, options.calibration_resize, options.calibration, late)
    of_name = {view.name: camera for view, camera in zip(views, placed, strict=True)}
    lacking = [view.name for view, camera in zip(scene.views, cameras, strict=True) if camera is None]
    if lacking:
        notices = (*notices, Notice(f"{calibration.path.name} has no camera for {listed(lacking)}", Level.INFO))
    if not by_name:
        by_names = views_of_names(calibration.names, scene.view_names)
        differ = any(by_names.get(camera.name, view.name) != view.name for camera, view in known)
        doubt, level = ("; their names pair otherwise", Level.WARNING) if differ else ("", Level.INFO)
        pairs = [f"{camera.name} is {view.name}" for camera, view in known]
        text = f"cameras of {calibration.path.name} in its order: {listed(pairs)}{doubt}"
        notices = (*notices, Notice(text, level))
    calibrated = replace(
        scene,
        views=tuple(replace(view, camera=of_name.get(view.name)) for view in scene.views),
        scale=calibration.scale,
        up=calibration.up,
        calibration=name
        if (name := calibration.path.name) == calibration.format
        else f"{name} ({calibration.format})",
        other_files=(*scene.other_files, options.calibration),
        notices=(
            *scene.notices,
            *(Notice(text) for text in calibration.notices),
            *notices,
            *_scale_notices(placed, calibration.scale),
        ),
    )
    return near_origin(calibrated)


UNKNOWN_UNIT = Notice("the unit of the calibration is unknown; pass ⟨calibration_unit⟩ for a metric result")
"""Notice of a scene whose lengths are arbitrary."""


def _scale_notices(cameras: Sequence[ViewCamera], scale: Scale) -> Iterator[Notice]:
    if undistorted := sum(camera.distortion is not None for camera in cameras):
        yield Notice(f"{undistorted} of {len(cameras)} views are undistorted on load", Level.INFO)
    if scale is Scale.ARBITRARY:
        yield UNKNOWN_UNIT


def _with_sidecars(scene: Scene, options: SceneOptions) -> Scene:
    if options.masks is not None:
        masks, notices = find_sidecars(MASKS, options.masks, scene.views, options.max_megapixels)
        views = tuple(replace(view, mask=mask) for view, mask in zip(scene.views, masks, strict=True))
        scene = check_masks(replace(scene, views=views, notices=(*scene.notices, *notices)))
    if options.depth is not None:
        depths, notices = find_sidecars(DEPTH_MAPS, options.depth, scene.views, options.max_megapixels)
        views = tuple(replace(view, depth=depth) for view, depth in zip(scene.views, depths, strict=True))
        default = 1.0 if any(depth is not None and depth.is_float for depth in depths) else METRIC_DEPTH_SCALE
        levels = options.depth_levels or default
        scene = replace(scene, views=views, notices=(*scene.notices, *notices), depth_levels=levels)
        scene = replace(scene, notices=(*scene.notices, *check_depth(scene), *depth_scale_notices(scene)))
    return scene
