"""Check of the calibration and the clocks of a scene against the people in it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from page4d.output.record import CalibrationCheckRecord
from page4d.rig.check.calibration import MIN_COMMON, check_calibration
from page4d.rig.clocks import check_clocks
from page4d.rig.instants import choose_instants
from page4d.rig.people.keypoints import FETCH_COMMAND, detect_people
from page4d.rig.people.model import is_fetched, model_sha256
from page4d.rig.records import FocalSource, Lens, RigCamera, StageProgress, ViewPeople, of_stage
from page4d.scene.records import Scene


def calibrated_cameras(scene: Scene) -> tuple[RigCamera, ...] | None:
    """Return the cameras of a scene of two or more static calibrated views; None for any other scene."""
    cameras = []
    for view in scene.views:
        if view.camera is None or view.camera.world_to_camera.ndim != 2:
            return None
        lens = Lens(
            intrinsics=view.camera.intrinsics.double().numpy(),
            image_size=view.source.size,
            distortion=view.camera.distortion,
            focal_source=FocalSource.CALIBRATION,
        )
        pose = np.asarray(view.camera.world_to_camera.double().numpy())
        cameras.append(RigCamera(lens=lens, world_to_camera=pose))
    return tuple(cameras) if len(cameras) > 1 else None


NO_POSE_MODEL = f"the model of body keypoints was not fetched ('{FETCH_COMMAND}')"


def check_scene(
    scene: Scene, progress: StageProgress = lambda _done, _total, _stage: None
) -> CalibrationCheckRecord | None:
    """Compare static calibrated cameras, and the clocks of their views, with body keypoints.

    Without the pose model, or with too few instants, only the calibration itself is checked. None for a scene without
    two or more static calibrated cameras.

    Raises:
        CapabilityError: if the pose model cannot run on this platform.
        InputError: if a frame cannot be decoded.
    """
    cameras = calibrated_cameras(scene)
    if cameras is None:
        return None
    instants = choose_instants(scene.times)
    reason = "" if is_fetched() else NO_POSE_MODEL
    if len(instants) < MIN_COMMON:
        reason = f"too few instants to compare people: {len(instants)}, need {MIN_COMMON}"
    if reason:
        nobody = (ViewPeople(tracklets=()),) * scene.num_views
        return check_calibration(scene.view_names, cameras, nobody).model_copy(update={"reason": reason})
    lenses = [camera.lens for camera in cameras]
    begin = time.perf_counter()
    people = detect_people(scene, instants, lenses, of_stage(progress, "checking: keypoints"))
    detected = time.perf_counter()
    record = check_calibration(scene.view_names, cameras, people, of_stage(progress, "checking: cameras"))
    compared = time.perf_counter()
    clocks = check_sampled_clocks(scene, instants, people, lenses)
    seconds = {
        "keypoints": detected - begin,
        "cameras": compared - detected,
        "clocks": time.perf_counter() - compared,
    }
    changes = {
        "clocks": clocks,
        "num_instants": len(instants),
        "pose_model": model_sha256(),
        "seconds": {stage: round(duration, 3) for stage, duration in seconds.items()},
    }
    return record.model_copy(update=changes)


def check_sampled_clocks(
    scene: Scene, instants: Sequence[int], people: Sequence[ViewPeople], lenses: Sequence[Lens]
) -> tuple[str, ...]:
    """Return the warnings of `check_clocks` for people at sampled instants, in runs or evenly spaced."""
    steps = np.diff(instants)
    if len(steps) == 0:
        return ()
    step = int(steps.min())
    numbers = np.asarray(instants) // step  # runs stay apart, so that offsets do not pair one with the next
    spaced = tuple(
        ViewPeople(tracklets=tuple(replace(one, instants=numbers[one.instants]) for one in view.tracklets))
        for view in people
    )
    frame_s = step * float(np.median(np.diff(scene.times)))
    return check_clocks(scene.view_names, spaced, lenses, frame_s)
