"""Opening of a scene folder with all methods of synchronization, including that by people."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from page4d.options import SceneOptions
from page4d.scene.clocks import BY_PEOPLE
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import Scene

MAX_FRAMES = 10**9
"""Instants of the scene that is opened for its clocks: few of its frames are decoded."""


def open_scene(
    folder: Path | str,
    options: SceneOptions | None = None,
    *,
    progress: Callable[[int, int, str], None] = lambda _done, _total, _stage: None,
    **changes: Any,
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
    options = replace(options or SceneOptions(), **changes)
    if options.sync != BY_PEOPLE:
        return open_folder(folder, options)
    from page4d.rig.people_clocks import check_pose_model, synchronise_by_people

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
