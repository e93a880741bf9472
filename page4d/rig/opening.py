"""Opening of a scene folder with all methods of synchronization, including those by people and motion.

For clocks from people, consecutive frames of static views are searched for body keypoints, then for offsets; for
clocks from motion, all frames of static calibrated views for moving points.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from page4d.choices import MEASURED_CLOCKS, SyncMode
from page4d.errors import InputError, Level, Notice, UsageError, WeightsError, listed
from page4d.keywords import SceneKeywords
from page4d.options import SceneOptions, split_options
from page4d.rig.clocks import WindowClocks
from page4d.rig.lens import lenses_of
from page4d.rig.motion_clocks import MAX_SPAN_S, estimate_motion_clocks, find_moving_points
from page4d.rig.people.keypoints import detect_people
from page4d.rig.people.model import POSE_MODEL, is_fetched
from page4d.rig.people_clocks import COARSE_STEP, estimate_clocks, refine_clocks, renumbered
from page4d.rig.records import Array, Lens, StageProgress, no_progress, of_stage
from page4d.scene.clocks import Synchronisation
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import SYNC_HINT, Clock, Scene
from page4d.scene.timeline import build_timeline

MAX_FRAMES = 10**9
"""Instants of the scene that is opened for its clocks: few of its frames are decoded."""


def open_scene(
    folder: Path | str,
    options: SceneOptions | None = None,
    *,
    progress: StageProgress = no_progress,
    **changes: Unpack[SceneKeywords],
) -> Scene:
    """Open a folder of synchronized videos or image folders.

    `changes` are fields of `SceneOptions`, as in `open_scene("rig", views=4, sync="audio")`. With `sync="people"` the
    clocks are estimated from body keypoints of static views, with `sync="motion"` from what moves in calibrated ones,
    before the scene is opened with them; `progress` takes the steps done of a stage, all its steps, and its name.

    Raises:
        UsageError: if an option is invalid or contradicts the folder.
        InputError: if a video, image, mask or calibration is unusable, or the evidence does not determine the clocks.
        WeightsError: if people are to determine the clocks, and the pose model was not fetched.
    """
    (given,) = split_options(changes, "open_scene", SceneOptions)
    options = replace(options or SceneOptions(), **given)
    if options.sync not in MEASURED_CLOCKS:
        return open_folder(folder, options)

    by_motion = options.sync == SyncMode.MOTION
    if not by_motion and not is_fetched():
        hint = f"run '{POSE_MODEL.command}', or pass ⟨sync=FILE⟩ or ⟨sync=none⟩"
        raise WeightsError("⟨sync=people⟩: the model of body keypoints was not fetched", hint)
    timeline: dict[str, Any] = {"fps": None, "stride": 1, "frames": (None, None), "max_frames": MAX_FRAMES}
    unused: dict[str, Any] = {"masks": None, "depth": None}
    if not by_motion:
        unused |= {"calibration": None, "calibration_unit": None, "again": ()}
    plain = replace(options, sync=SyncMode.NONE, **timeline, **unused)
    scene = open_folder(folder, plain)
    clocks = (
        synchronise_by_motion(scene, progress)
        if by_motion
        else synchronise_by_people(scene, options.calibration, progress)
    )
    return open_folder(folder, options, synchronisation=clocks)


def opened_scene(scene: Scene | Path | str, options: dict[str, Any], progress: StageProgress) -> Scene:
    """Return a scene that is open, which takes no `options`, or open that of a folder with them.

    Raises:
        UsageError: if there are options with a scene that is open, or they do not fit the folder.
        InputError: if a file of the folder is unusable.
    """
    if not isinstance(scene, Scene):
        return open_scene(scene, SceneOptions(**options), progress=progress)
    if options:
        raise UsageError(f"{', '.join(options)} with a scene that is open", "pass them to open_scene")
    return scene


def synchronise_by_motion(scene: Scene, progress: StageProgress) -> Synchronisation:
    """Return the clocks of views with calibrated cameras, of a scene that was opened as if they started together.

    Raises:
        UsageError: if a camera moves.
        InputError: if a view has no camera, what moves does not determine its clock, or a frame cannot be decoded.
    """
    cameras = [view.camera for view in scene.views]
    if unknown := [view.name for view in scene.views if view.camera is None]:
        raise InputError(f"⟨sync=motion⟩: the calibration has no camera of {listed(unknown)}", SYNC_HINT)
    if moving := [view.name for view in scene.views if view.camera is not None and not view.camera.is_static]:
        raise UsageError(f"⟨sync=motion⟩: the camera of {listed(moving)} moves", SYNC_HINT)
    if scene.num_views < 2:
        return Synchronisation(clocks=(Clock(),) * scene.num_views, method=SyncMode.MOTION)
    shortest = min(float(view.source.frame_times[-1]) for view in scene.views)
    start = max(0.0, (shortest - MAX_SPAN_S) / 2)
    points = [
        find_moving_points(
            view.source, lens, (start, start + MAX_SPAN_S), of_stage(progress, f"synchronizing: motion {view.name}")
        )
        for view, lens in zip(scene.views, lenses_of(scene), strict=True)
    ]
    poses = [np.asarray(camera.world_to_camera, dtype=np.float64) for camera in cameras if camera is not None]
    found = estimate_motion_clocks(scene.view_names, points, poses, of_stage(progress, "synchronizing: offsets"))
    return _synchronised(SyncMode.MOTION, scene, found, start)


def _synchronised(method: str, scene: Scene, found: WindowClocks, start: float) -> Synchronisation:
    """Return the clocks of a scene whose clocks have no rates; times of `found` are since a `start`."""
    rates = 1 / (1 + found.drifts)
    offsets = ((start + found.time) * found.drifts - found.ahead) * rates
    clocks = tuple(
        Clock(
            offset_s=float(round(offset + rate * view.clock.offset_s, 6)),
            rate=float(round(rate, 9)),
            std_seconds=float(round(deviation, 6)),
        )
        for view, offset, rate, deviation in zip(scene.views, offsets, rates, found.deviations, strict=True)
    )
    first = scene.view_names[0]
    notices = [
        Notice(
            f"{name} starts {clock.offset_s:+.3f} s after {first} by {method} (+-{clock.std_seconds:.3f} s)"
            + (f", with a rate of {clock.rate:.6f} (+-{drift:.6f})" if drift > 0 else ""),
            Level.INFO,
        )
        for name, clock, drift in list(zip(scene.view_names, clocks, found.drift_deviations, strict=True))[1:]
    ]
    return Synchronisation(clocks=clocks, method=method, notices=tuple(notices))


NUM_SAMPLES = 450
"""Consecutive sampled instants whose people are compared at all offsets: 30 s of a long capture."""

COARSE_RATE_HZ = 15.0
"""Rate at which longer captures are sampled for that."""

_WINDOW, _MAX_WINDOWS = 75, 5
"""Sampled instants of a window that has an offset of its own, and the number of windows."""

MAX_RATE_HZ = 60.0
"""Faster videos are sampled at about this rate: at 60 Hz an offset is found within one frame."""

_NUM_LOOKS, _LOOK = 8, 6
"""Runs of consecutive samples that show where in a longer capture people are; tracklets have 5 poses or more."""


def synchronise_by_people(scene: Scene, calibration: Path | None, progress: StageProgress) -> Synchronisation:
    """Return the clocks of views, of a scene that was opened as if all of them started together.

    The lenses are those of the `calibration`, whose poses are not used, of EXIF, or start values.

    Raises:
        InputError: if the people of a view fit those of the others at no offset, or at several; or a frame cannot be
            decoded.
        CapabilityError: if the pose model cannot run on this platform.
    """
    if scene.num_views < 2:
        return Synchronisation(clocks=(Clock(),) * scene.num_views, method=SyncMode.PEOPLE)
    lenses = lenses_of(scene, intrinsics=calibration, for_all=False)
    interval = float(np.median(np.diff(scene.times))) if scene.num_times > 1 else 1.0
    step = max(1, round(1 / (MAX_RATE_HZ * interval)))
    is_long = scene.num_times > NUM_SAMPLES * step
    coarse = max(step, int(1 / (COARSE_RATE_HZ * interval) + 1e-6)) if is_long else step
    (first,) = _windows(scene, range(0, scene.num_times, coarse), NUM_SAMPLES, 1, lenses, progress)
    people = detect_people(scene, first, lenses, of_stage(progress, "synchronizing: keypoints"))
    rate = 1 / (coarse * interval)
    ahead, reach = estimate_clocks(
        scene.view_names,
        people,
        lenses,
        of_stage(progress, "synchronizing: offsets"),
        step=min(COARSE_STEP, max(1, round(rate / COARSE_RATE_HZ))),
    )
    if is_long:
        scene = _aligned(scene, -ahead.astype(np.float64) * coarse * interval)
        ahead = np.zeros_like(ahead)
        instants = _windows(scene, range(0, scene.num_times, step), _WINDOW, _MAX_WINDOWS, lenses, progress)
        sampled = [instant for window in instants for instant in window]
        people = detect_people(scene, sampled, lenses, of_stage(progress, "synchronizing: keypoints in windows"))
        people = renumbered(people, np.array(sampled) // step)
        windows = [(window[0] // step, window[-1] // step) for window in instants]
    else:
        limits = np.linspace(0, len(first), min(_MAX_WINDOWS, max(1, len(first) // _WINDOW)) + 1).astype(int)
        windows = [(int(low), int(high) - 1) for low, high in pairwise(limits)]
    clocks = refine_clocks(scene.view_names, people, lenses, windows, ahead, reach * coarse / step, step * interval)
    return _synchronised(SyncMode.PEOPLE, scene, clocks, float(scene.times[0]))


def _aligned(scene: Scene, starts: Float[Array, " V"]) -> Scene:
    """Return the scene at the common instants of views that start at some times."""
    clocks = [Clock(offset_s=float(start)) for start in starts]
    times = [clock.to_common(view.source.frame_times) for clock, view in zip(clocks, scene.views, strict=True)]
    timeline = build_timeline(scene.view_names, times, max_frames=MAX_FRAMES)
    views = tuple(
        replace(view, clock=clock, indices=indices)
        for view, clock, indices in zip(scene.views, clocks, timeline.indices, strict=True)
    )
    return replace(scene, views=views, times=timeline.times)


def _windows(
    scene: Scene, samples: Sequence[int], length: int, number: int, lenses: Sequence[Lens], progress: StageProgress
) -> list[tuple[int, ...]]:
    """Return runs of consecutive samples in order: where the most views show people, and several do not overlap."""
    if len(samples) < length + _NUM_LOOKS * _LOOK:  # runs would overlap
        return [tuple(samples[:length])]
    places = _NUM_LOOKS if number == 1 else min(_NUM_LOOKS, len(samples) // length)
    starts = np.linspace(0, len(samples) - length, places).round().astype(int)
    looks = starts + (length - _LOOK) // 2
    instants = tuple(samples[int(look) + place] for look in looks for place in range(_LOOK))
    people = detect_people(scene, instants, lenses, of_stage(progress, "synchronizing: search for people"))
    shown = np.zeros((scene.num_views, len(instants)))
    for view, one in enumerate(people):
        for tracklet in one:
            shown[view, tracklet.instants] = 1
    best = np.argsort(-shown.sum(0).reshape(places, _LOOK).sum(1), kind="stable")[:number]
    return [tuple(samples[int(starts[one]) : int(starts[one]) + length]) for one in np.sort(best)]
