"""Cameras before the network runs: registration of a rig from evidence, and the check of a given calibration.

Registration runs in a reconstruction, or alone, where it writes a calibration for other programs. The check compares
a calibration with camera motion, people and texture.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch

from page4d.choices import CameraMotion, Poses, Registration, SyncMode, WorldFrame
from page4d.conventions import Scale
from page4d.errors import (
    ON_STDERR,
    CapabilityError,
    InputError,
    Level,
    Notice,
    Notify,
    Observer,
    SilentObserver,
    UsageError,
    WeightsError,
    listed,
    one_per_fact,
)
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.io.exhaustion import limits_named
from page4d.io.json_records import readable
from page4d.keywords import RegisterKeywords
from page4d.options import ReconstructSettings, RegisterSettings, SceneOptions, in_options, split_options
from page4d.output.rig_record import CalibrationCheckRecord, Evidence, FocalSource, RegistrationRecord
from page4d.rig.calibration_check import check_scene
from page4d.rig.camera_motion import ViewMotion, calibrated_motion_notices
from page4d.rig.evidence import PixelEvidence
from page4d.rig.learned import TEXTURE_MODEL
from page4d.rig.length import TOLERANCE as METRE_TOLERANCE
from page4d.rig.length import KnownDistance, KnownLength, has_unit, known_length, metric_around, metric_rig
from page4d.rig.lens import lenses_of
from page4d.rig.opening import opened_scene
from page4d.rig.people.model import is_fetched, model_sha256
from page4d.rig.people.pose import MIN_INSTANTS, MIN_SCORE
from page4d.rig.records import RigRegistration, placed_record
from page4d.rig.register import register_rig
from page4d.rig.trajectory import moving_rig
from page4d.rig.upright import camera_in_world, notify_world, upright_rig
from page4d.run.scene_evidence import EXPLICIT, SceneEvidence, calibrated_views, check_known, moves_as_one, views_from
from page4d.scene.clocks import SAME_START
from page4d.scene.records import Scene
from page4d.weights.wheels import PEOPLE, TEXTURE

CAMERA_MOVES = "the camera moves"
OTHERS_MOVE = "the other cameras move"
MOTION = (CAMERA_MOVES, OTHERS_MOVE)
"""Reasons why views are left out of a static rig."""


def register_for_run(evidence: SceneEvidence, settings: ReconstructSettings, notify: Notify) -> SceneEvidence:
    """Register the rig of a run: from all instants of the capture, or from those of the run if a camera moves.

    Raises:
        InputError: if requested evidence places no view, or texture does not show the motion of a rig.
        WeightsError: if it is people, and the pose model was not fetched.
    """
    if moves_as_one(evidence.scene, settings):
        return replace(evidence, registration=moving_rig(evidence.pixels, notify), is_pending=False)
    length = evidence.length
    pixels = evidence.pixels.whole()
    is_static = settings.camera_motion is CameraMotion.STATIC
    if not is_static and _moving(pixels.motions):
        pixels = evidence.pixels
    found = register_scene(pixels, length, notify, is_static=is_static)
    record = found.record
    # The placed cameras must have the unit that a known distance requires.
    is_measured = not isinstance(length, KnownDistance) or record.metres_per_unit is not None
    if record.num_known:
        lacks = settings.register in EXPLICIT or not has_unit(evidence.scene)
        if not is_measured or (lacks and not record.is_used):
            raise InputError(
                f"registration in the world of {evidence.scene.calibration} fails: {reasons(record)}",
                record.advice or "leave out ⟨calibration⟩",
            )
    elif not record.is_complete and (record.num_placed < 2 or settings.poses is not Poses.INPUT or not is_measured):
        cameras = [camera.model_copy(update={"source": "network"}) for camera in record.cameras]
        found = found.with_record(cameras=cameras)
    notify_world(found.world if found.record.gives_cameras else None, settings, notify)
    motions = [] if is_static else [replace(motion, view=readable(motion.view)) for motion in pixels.motions]
    found = found.model_copy(update={"motions": motions})
    if not record.num_known and record.num_placed < 2 and settings.register in EXPLICIT:
        raise InputError(
            f"⟨register={settings.register}⟩ places no camera: {reasons(record)}",
            f"{_advice(record, evidence.scene)}, or try ⟨register=auto⟩",
        )
    for notice in registration_notices(found.record):
        notify(notice)
    return replace(evidence, registration=found, is_pending=False)


def _moving(motions: Sequence[ViewMotion]) -> set[str]:
    """Return the views whose camera moves."""
    return {motion.view for motion in motions if motion.is_static is False}


def register_scene(
    pixels: PixelEvidence, length: KnownLength | None, notify: Notify, *, is_static: bool = False, in_run: bool = True
) -> RigRegistration:
    """Register the views of a scene that do not move, all if it `is_static`; a known length gives the unit.

    Views with a camera keep it, and the others are placed in its world.

    Advice on views that are not placed is that of a run, or of a registration alone.

    Raises:
        InputError: if a known height is given and no people are registered.
        WeightsError: if people are requested and the pose model was not fetched.
    """
    settings = pixels.settings
    if settings.register is Registration.PEOPLE and not is_fetched():
        raise WeightsError("the model of body keypoints was not fetched", f"run {PEOPLE.offer}")
    if settings.intrinsics is not None or pixels.scene.options.again:
        pixels.lenses = lenses_of(pixels.scene, settings.focal, settings.intrinsics, notify=notify)
    moving = set() if is_static else _moving(pixels.motions)
    left = dict.fromkeys(sorted(moving), CAMERA_MOVES) | pixels.obstacles
    static = [index for index, name in enumerate(pixels.scene.view_names) if name not in left]
    asked, known = settings.register, calibrated_views(pixels.scene)
    num_known = sum(pixels.scene.view_names[view] in known for view in static)
    if len(static) > max(num_known, 1) and (num_known or not known):
        found = upright_rig(register_rig(part := pixels.of_views(static), notify), part)
    else:
        static, found = [], RigRegistration(record=RegistrationRecord(asked=asked), cameras=[])
    if len(static) < pixels.scene.num_views:
        found = _with_left_views(found, pixels, static, left)
    used_people = any(pair.evidence is Evidence.PEOPLE for pair in found.record.pairs)
    is_assumed = pixels.scene.synchronisation == SAME_START and pixels.scene.options.sync == SyncMode.AUTO
    in_doubt = is_assumed and not left and _fits_no_people(found.record)
    found = found.with_record(clocks_in_doubt=in_doubt, pose_model=model_sha256() if used_people else None)
    found = found.with_record(advice=in_options(_advice(found.record, pixels.scene, left, in_run=in_run)))
    if known and has_unit(pixels.scene) and pixels.scene.scale is Scale.METRIC:
        return found.with_record(metres_per_unit=1.0)
    has_rig = found.record.num_placed >= 2
    is_measured = length is not None or (found.world is not None and found.world.metres_per_unit is not None)
    if known and has_rig and not is_measured and not has_unit(pixels.scene):
        text = f"a single place of cameras in {pixels.scene.calibration} gives no scale"
        notify(Notice(f"{text}: lengths are in an arbitrary unit (⟨scale_from⟩)"))
    if has_rig and found.world is not None and found.world.metres_per_unit is not None:
        return _in_metres_of_points(found, pixels, length, notify)
    if length is None or not has_rig:
        return found
    found = metric_rig(found, pixels.scene.view_names, length)
    in_given_world = found.world is None or found.world.transform is None  # others are scaled about their origin
    is_around = known and in_given_world and found.record.metres_per_unit is not None and not has_unit(pixels.scene)
    return metric_around(found) if is_around else found


_HEIGHTS = (0.3, 3.0)
"""Heights of people in metres beyond which coordinates have another unit."""


def _in_metres_of_points(
    found: RigRegistration, pixels: PixelEvidence, length: KnownLength | None, notify: Notify
) -> RigRegistration:
    """Record the metres that coordinates of points give, and report how a known length differs.

    Raises:
        InputError: if the people would be no people.
    """
    world, height = found.world, found.record.person_height
    assert world is not None
    assert world.metres_per_unit is not None
    label = "" if pixels.floor is None else pixels.floor.label
    metres = world.metres_per_unit
    if height is not None and not _HEIGHTS[0] < height * metres < _HEIGHTS[1]:
        raise InputError(
            f"by the coordinates of {label} people are {height * metres:.4g} m tall", "give coordinates in metres"
        )
    if length is not None:
        other = metric_rig(found, pixels.scene.view_names, length).record
        if other.metres_per_unit is not None:
            change = metres / other.metres_per_unit - 1
            stds = [other.metres_std or 0.0, world.metres_std or 0.0]
            is_far = abs(change) > max(METRE_TOLERANCE, 2 * math.hypot(*stds))
            text = f"lengths are those of the coordinates of {label}, {change:+.1%} from those of ⟨scale_from⟩"
            notify(Notice(text, Level.WARNING if is_far else Level.INFO))
    return found.with_record(metres_per_unit=metres, metres_std=world.metres_std)


def _with_left_views(
    found: RigRegistration, pixels: PixelEvidence, static: list[int], left: dict[str, str]
) -> RigRegistration:
    """Add the views that were left out to the registration of the static ones."""
    records = [
        placed_record(view.name, lens, left.get(view.name, OTHERS_MOVE))
        if view.camera is None
        else placed_record(view.name, lens, source="calibration")
        for view, lens in zip(pixels.scene.views, pixels.lenses, strict=True)
    ]
    cameras = [
        None if view.camera is None else camera_in_world(view.camera, found.world) for view in pixels.scene.views
    ]
    for view, record, camera in zip(static, found.record.cameras, found.cameras, strict=True):
        records[view], cameras[view] = record, camera
    with_all = found.record.model_copy(update={"cameras": records})
    return RigRegistration(record=with_all, cameras=cameras, world=found.world)


def _advice(record: RegistrationRecord, scene: Scene, obstacles: Collection[str] = (), *, in_run: bool = True) -> str:
    """Return what to try for views that are not placed: the clock of a single view, missing models, cameras."""
    if not in_run and all(camera.placed or camera.reason in MOTION for camera in record.cameras):
        return "film with cameras on tripods, or take those of the network: `page4d reconstruct`"
    of_all = " of all views" if calibrated_views(scene) else ""
    given = [f"⟨calibration⟩{of_all}"] * in_run + ["⟨focal⟩ or ⟨intrinsics⟩"] * (not _knows_lenses(record))
    others = [f"give {', or '.join(given)}"] * bool(given) + ["film people in all views"] * (not in_run)
    if offers := missing_models(record, obstacles):
        others = [f"run {' and '.join(offers)}", *others]
    # People move: a view that alone fits none of the others may show them at other times.
    left = [camera.view for camera in record.cameras if not camera.placed]
    late = [f"clock of {left[0]}"] if len(left) == 1 and Evidence.PEOPLE in record.evidence else []
    late = ["clocks of all views"] if record.clocks_in_doubt else late
    if late and not obstacles and scene.options.sync != SyncMode.PEOPLE:
        others = [f"the {late[0]} may be wrong: try ⟨sync=people⟩ or ⟨sync=FILE⟩ first", *others]
    return ", or ".join(others)


def _fits_no_people(record: RegistrationRecord) -> bool:
    """Return whether no view is placed, although a pair shows people long enough, who fit no pose of its cameras."""
    of_people = [pair for pair in record.pairs if pair.evidence is Evidence.PEOPLE and not pair.accepted]
    is_seen = any(pair.num_instants >= MIN_INSTANTS and pair.score < MIN_SCORE for pair in of_people)
    return is_seen and not any(camera.placed for camera in record.cameras)


def missing_models(record: RegistrationRecord, obstacles: Collection[str] = ()) -> list[str]:
    """Return the commands that fetch missing models which may place more views; none helps those with `obstacles`."""
    if all(camera.placed or camera.reason in MOTION or camera.view in obstacles for camera in record.cameras):
        return []
    missing = [PEOPLE] if record.asked is not Registration.TEXTURE and not is_fetched() else []
    if record.asked is not Registration.PEOPLE and _knows_lenses(record) and not TEXTURE_MODEL.are_present:
        missing.append(TEXTURE)
    return [model.offer for model in missing]


def _knows_lenses(record: RegistrationRecord) -> bool:
    return all(camera.focal_source is not FocalSource.UNKNOWN for camera in record.cameras)


def reasons(record: RegistrationRecord) -> str:
    """Return why views are not placed: the reason of all, or the first four reasons, each with its views."""
    views: dict[str, list[str]] = {}
    for camera in record.cameras:
        if not camera.placed:
            views.setdefault(camera.reason, []).append(camera.view)
    if [len(names) for names in views.values()] == [len(record.cameras)]:
        return next(iter(views))
    texts = [f"{listed(names, 4)}: {reason}" for reason, names in views.items()]
    return "; ".join(texts[:4] + [f"... ({len(texts)} reasons in all)"] * (len(texts) > 4))


def registration_notices(record: RegistrationRecord, *, in_run: bool = True) -> tuple[Notice, ...]:
    """Report the placed cameras; views that are not placed are a warning.

    With `Registration.AUTO` it is none where nothing is placed although no model is missing and no clock is in doubt,
    or where only moving cameras are not: then the run is as without registration, and its report names the reason.
    """
    total = len(record.cameras)
    left = [camera for camera in record.cameras if not camera.placed]
    placed = views_from(record, "evidence")
    views = f"of {listed(placed)} in the world of the calibration " if record.num_known else ""
    count = "" if record.num_known else f" ({total} of {total} views)"
    registered = Notice(f"cameras {views}registered from {record.evidence}{count}", Level.INFO)
    if not left:
        return (registered,)
    networks = views_from(record, "network")
    names = "all views" if len(networks) == total else listed(networks)
    used = f"; those of the network are used for {names}" if in_run else ""
    is_expected = len(left) == total or all(camera.reason in MOTION for camera in left)
    is_expected = is_expected and not (missing_models(record) or record.clocks_in_doubt)
    is_expected = is_expected and record.asked is Registration.AUTO
    level = Level.INFO if in_run and is_expected else Level.WARNING
    text = f"cameras of {len(left)} of {total} views are not placed ({reasons(record)}){used}; {record.advice}"
    return (*((registered,) if record.num_known and placed else ()), Notice(text, level))


_EVIDENCE = (Registration.AUTO, Registration.PEOPLE, Registration.TEXTURE)


@limits_named()
def register(
    scene: Scene | Path | str,
    *,
    settings: RegisterSettings | None = None,
    observer: Observer | None = ON_STDERR,
    **options: Unpack[RegisterKeywords],
) -> RigRegistration:
    """Determine the cameras of a static rig from people and texture, without a network of page4d.

    Cameras of the scene's calibration are kept, and the others are placed in their world. Views whose camera moves
    are left out.

    Args:
        scene: an open scene, or the folder of one.
        settings: of the registration; the defaults if None.
        observer: receives notices and progress; None is silent.
        **options: fields of `SceneOptions` (if `scene` is a folder) and of `RegisterSettings` by name, such as
            `register="people"` and `focal="26mm"`.

    Raises:
        UsageError: if options are unknown or do not fit the scene.
        InputError: if a video, image or calibration cannot be used.
        WeightsError: if people are requested and the pose model was not fetched.
    """
    of_scene, of_settings = split_options(options, "register", SceneOptions, RegisterSettings)
    settings = replace(settings or RegisterSettings(), **of_settings)
    if settings.register not in _EVIDENCE:
        raise UsageError(
            f"no evidence is called '{settings.register}'",
            "use auto, people or texture; the network's cameras are in the result of `page4d reconstruct`",
        )
    observer = observer or SilentObserver()
    scene = opened_scene(scene, of_scene, observer.progress)
    scene.options.check_resize(settings.intrinsics)
    if scene.num_views < 2:
        raise UsageError("a single view cannot be registered", "give a scene of two views or more")
    known = calibrated_views(scene)
    if len(known) == scene.num_views:
        raise UsageError(
            f"{scene.calibration} has cameras of all views",
            "name those to register with ⟨again⟩, or pass it as ⟨intrinsics⟩, without its poses",
        )
    if settings.world is WorldFrame.CALIBRATION and not known:
        raise UsageError("⟨world=calibration⟩ of cameras that are registered", "use auto, upright or first-camera")
    length = known_length(scene, settings.scale_from)
    check_known(scene, settings, length, is_pending=True)
    found = register_scene(PixelEvidence(scene, settings, observer.progress), length, observer.notice, in_run=False)
    if found.record.is_used:
        notify_world(found.world, settings, observer.notice)
    return found


def placed_cameras(found: RigRegistration, scene: Scene) -> Calibration:
    """Return the placed cameras of a scene as a calibration, in metres if a length is known.

    Raises:
        InputError: naming the reasons, if evidence places no view.
    """
    if not found.record.is_used:
        raise InputError(
            f"evidence places no camera: {reasons(found.record)}", _advice(found.record, scene, in_run=False)
        )
    is_moved = found.world is not None and found.world.transform is not None
    factor = torch.ones(4, 4, dtype=torch.float64)
    factor[:3, 3] = found.record.metres_per_unit or 1.0
    cameras = tuple(
        CalibratedCamera(
            name=view.name,
            image_size=view.source.size,
            intrinsics=camera.intrinsics,
            world_to_camera=factor
            * (camera.world_to_camera if is_moved else scene.in_files(index, camera.world_to_camera)),
            distortion=camera.distortion,
        )
        for index, (view, camera) in enumerate(zip(scene.views, found.cameras, strict=True))
        if camera is not None
    )
    scale = Scale.ARBITRARY if found.record.metres_per_unit is None else Scale.METRIC
    up = scene.up if found.world is None else found.world.up
    return Calibration(path=Path("registration"), scale=scale, cameras=cameras, up=up)


def check_for_run(pixels: PixelEvidence, notify: Notify) -> CalibrationCheckRecord | None:
    """Check the calibration of a scene, and report faults as warnings; what prevents the check is one too."""
    scene = pixels.scene
    for notice in one_per_fact(calibrated_motion_notices(scene, pixels.motions), scene.view_names):
        notify(notice)
    try:
        record = check_scene(pixels)
    except (CapabilityError, InputError) as error:
        notify(Notice(f"the calibration is not checked: {error.marked_message} ({error.marked_hint})"))
        return None
    for notice in check_notices(scene, record):
        notify(notice)
    return record


def check_notices(scene: Scene, record: CalibrationCheckRecord) -> tuple[Notice, ...]:
    """Report the faults of a calibration and its clocks as warnings, and what is confirmed."""
    texts = [*(f"{scene.calibration}: {finding.text}" for finding in record.findings), *record.clocks]
    notices = [*one_per_fact(map(Notice, texts), scene.view_names)]
    if record.verdict:
        notices.append(Notice(f"{scene.calibration}: {record.verdict}", Level.INFO))
    return tuple(notices)
