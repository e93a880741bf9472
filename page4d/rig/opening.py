"""Opening of a scene folder with all methods of synchronization, including that by people.

For clocks from people, consecutive frames of static views are searched for body keypoints, then for offsets.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from page4d.errors import UsageError, WeightsError
from page4d.keywords import SceneKeywords
from page4d.options import SceneOptions, split_options
from page4d.rig.clocks import estimate_clocks
from page4d.rig.lens import lenses_of
from page4d.rig.people.keypoints import detect_people
from page4d.rig.people.model import POSE_MODEL, is_fetched
from page4d.rig.records import Lens, StageProgress, no_progress, of_stage
from page4d.scene.clocks import BY_PEOPLE, Synchronisation
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import Clock, Level, Notice, Scene

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
    clocks are estimated from body keypoints of static views, before the scene is opened with them; `progress` takes
    the steps done of a stage, all its steps, and its name.

    Raises:
        UsageError: if an option is invalid or contradicts the folder.
        InputError: if a video, image, mask or calibration is unusable, or people do not determine the clocks.
        WeightsError: if people are to determine the clocks, and the pose model was not fetched.
    """
    (given,) = split_options(changes, "open_scene", SceneOptions)
    options = replace(options or SceneOptions(), **given)
    if options.sync != BY_PEOPLE:
        return open_folder(folder, options)

    check_pose_model()
    plain = SceneOptions(
        views=options.views,
        sync="none",
        image_fps=options.image_fps,
        max_frames=MAX_FRAMES,
        calibration_match=options.calibration_match,
        calibration_resize=options.calibration_resize,
        allow_damaged=options.allow_damaged,
        max_megapixels=options.max_megapixels,
    )
    clocks = synchronise_by_people(open_folder(folder, plain), options.calibration, progress)
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


NUM_SAMPLES = 150
"""Consecutive sampled instants: at an offset of 44 they leave 106 common ones, enough for varied poses."""

MAX_RATE_HZ = 60.0
"""Faster videos are sampled at about this rate: at 60 Hz an offset is found within one frame."""

_NUM_LOOKS, _LOOK = 8, 6
"""Runs of consecutive samples that show where in a longer capture people are; tracklets have 5 poses or more."""


def check_pose_model() -> None:
    """Refuse to search for people without the model of body keypoints.

    Raises:
        WeightsError: if it was not fetched.
    """
    if not is_fetched():
        hint = f"run '{POSE_MODEL.command}', or pass ⟨sync=FILE⟩ or ⟨sync=none⟩"
        raise WeightsError("⟨sync=people⟩: the model of body keypoints was not fetched", hint)


def synchronise_by_people(scene: Scene, calibration: Path | None, progress: StageProgress) -> Synchronisation:
    """Return the clocks of views, of a scene that was opened as if all of them started together.

    The lenses are those of the `calibration`, whose poses are not used, of EXIF, or start values.

    Raises:
        InputError: if the people of a view fit those of the others at no offset, or at several; or a frame cannot be
            decoded.
        CapabilityError: if the pose model cannot run on this platform.
    """
    if scene.num_views < 2:
        return Synchronisation(clocks=(Clock(),) * scene.num_views, method=BY_PEOPLE)
    lenses = lenses_of(scene, intrinsics=calibration, for_all=False)
    interval = float(np.median(np.diff(scene.times))) if scene.num_times > 1 else 1.0
    step = max(1, round(1 / (MAX_RATE_HZ * interval)))
    instants = _window(scene, range(0, scene.num_times, step), lenses, progress)
    people = detect_people(scene, instants, lenses, of_stage(progress, "synchronizing: keypoints"))
    found = estimate_clocks(scene.view_names, people, lenses, of_stage(progress, "synchronizing: offsets"))
    # A view that is ahead shows an event at a later time of its own: its recording began earlier.
    starts = -found.ahead * step * interval
    clocks = tuple(Clock(offset_s=float(round(start, 6))) for start in starts)
    first = scene.view_names[0]
    notices = tuple(
        Notice(f"{name} starts {clock.offset_s:+.3f} s after {first} by people (score {score:.2f})", Level.INFO)
        for name, clock, score in list(zip(scene.view_names, clocks, found.scores, strict=True))[1:]
    )
    return Synchronisation(clocks=clocks, method=BY_PEOPLE, notices=notices)


def _window(scene: Scene, samples: Sequence[int], lenses: Sequence[Lens], progress: StageProgress) -> tuple[int, ...]:
    """Return consecutive samples at which the most views show people."""
    if len(samples) < NUM_SAMPLES + _NUM_LOOKS * _LOOK:  # runs would overlap
        return tuple(samples[:NUM_SAMPLES])
    starts = np.linspace(0, len(samples) - NUM_SAMPLES, _NUM_LOOKS).round().astype(int)
    looks = starts + (NUM_SAMPLES - _LOOK) // 2
    instants = tuple(samples[int(look) + place] for look in looks for place in range(_LOOK))
    people = detect_people(scene, instants, lenses, of_stage(progress, "synchronizing: search for people"))
    shown = np.zeros((scene.num_views, len(instants)))
    for view, one in enumerate(people):
        for tracklet in one.tracklets:
            shown[view, tracklet.instants] = 1
    best = int(np.argmax(shown.sum(0).reshape(_NUM_LOOKS, _LOOK).sum(1)))
    return tuple(samples[int(starts[best]) : int(starts[best]) + NUM_SAMPLES])
