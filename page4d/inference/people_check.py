"""Check of a calibration against camera motion and people, as a stage of a run before the network."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from page4d.errors import CapabilityError, InputError, listed
from page4d.options import ReconstructSettings
from page4d.output.record import CalibrationCheckRecord, FindingRecord, PairFitRecord
from page4d.rig.camera_motion import calibrated_motion_notices, measure_camera_motion
from page4d.rig.check.scene import check_scene
from page4d.rig.people.model import model_sha256
from page4d.rig.register import StageProgress
from page4d.scene.records import Level, Notice, Scene

if TYPE_CHECKING:
    from page4d.rig.check.scene import SceneCheck


def will_check(scene: Scene, settings: ReconstructSettings) -> bool:
    """Return whether a run checks the calibration of a scene."""
    is_static = all(view.camera is not None and view.camera.world_to_camera.ndim == 2 for view in scene.views)
    return settings.check_calibration and is_static and scene.num_views > 1


def check_for_run(
    scene: Scene, notify: Callable[[Notice], None], progress: StageProgress
) -> CalibrationCheckRecord | None:
    """Check the calibration of a scene, and report faults as warnings; what prevents the check is one too.

    Without the pose model only camera motion and the calibration itself are checked.
    """
    motions = measure_camera_motion(scene, lambda done, total: progress(done, total, "checking: camera motion"))
    for notice in calibrated_motion_notices(scene, motions):
        notify(notice)
    try:
        found = check_scene(scene, progress)
    except (CapabilityError, InputError) as error:
        notify(Notice(f"the calibration is not checked: {error.message} ({error.hint})"))
        return None
    record = None if found is None else record_of(found)
    for notice in () if record is None else check_notices(scene, record):
        notify(notice)
    return record


def record_of(check: "SceneCheck") -> CalibrationCheckRecord:
    """Return the record of a check."""
    report = check.report
    return CalibrationCheckRecord(
        pairs=[
            PairFitRecord(
                views=(pair.first, pair.second), score=pair.score, num_instants=pair.num_instants, fits=pair.fits
            )
            for pair in report.pairs
        ],
        findings=[
            FindingRecord(
                fault=finding.fault.value,
                views=list(finding.views),
                certainty=finding.certainty.value,
                what=finding.what,
                fix=finding.fix,
                score=finding.score,
                better_score=finding.better_score,
                angle_deg=finding.angle_deg,
            )
            for finding in report.findings
        ],
        unchecked=list(report.unchecked),
        clocks=list(check.clocks),
        reason=report.reason,
        num_instants=check.num_instants,
        pose_model=model_sha256() if check.num_instants else None,
        seconds={stage: round(seconds, 3) for stage, seconds in check.seconds.items()},
    )


def check_notices(scene: Scene, record: CalibrationCheckRecord) -> tuple[Notice, ...]:
    """Report the faults of a calibration and its clocks as warnings, and what was not checked."""
    notices = [Notice(f"{scene.calibration}: {finding.text}") for finding in record.findings]
    notices += [Notice(text) for text in record.clocks]
    if not record.is_checked:
        notices.append(Notice(f"the calibration is not compared with people: {record.reason}", Level.INFO))
    elif not record.findings:
        lowest = min(pair.score for pair in record.pairs)
        left = f"; not compared: {listed(record.unchecked)}" if record.unchecked else ""
        text = f"no fault of the calibration is found from people (lowest score of a pair {lowest:.2f}){left}"
        notices.append(Notice(text, Level.INFO))
    return tuple(notices)
