"""Cameras before the network runs: registration of a rig from evidence, and the check of a given calibration.

Registration runs in a reconstruction, or alone, where it writes a calibration for other programs. The check compares
a calibration with camera motion, people and texture.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import torch

from page4d.choices import CameraMotion, Poses, Registration, UpAxis, WorldFrame
from page4d.conventions import Scale, ScaleSource
from page4d.errors import (
    ON_STDERR,
    CapabilityError,
    InputError,
    Observer,
    SilentObserver,
    UsageError,
    WeightsError,
    counted,
    listed,
    one_per_fact,
)
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.geometry.rotation import turn_up
from page4d.geometry.transforms import move_origin
from page4d.io.json_records import readable
from page4d.io.limits import limits_named
from page4d.keywords import RegisterKeywords
from page4d.options import ReconstructSettings, RegisterSettings, SceneOptions, in_options, split_options
from page4d.output.record import CalibrationCheckRecord, RegistrationRecord, WorldRecord
from page4d.rig.calibration_check import check_scene
from page4d.rig.camera_motion import ViewMotion, calibrated_motion_notices
from page4d.rig.evidence import PixelEvidence
from page4d.rig.learned import TEXTURE_MODEL
from page4d.rig.length import (
    KnownDistance,
    KnownHeight,
    KnownLength,
    has_unit,
    known_length,
    metric_around,
    metric_rig,
    metric_scene,
    scene_in_metres,
)
from page4d.rig.opening import opened_scene
from page4d.rig.people.model import is_fetched, model_sha256
from page4d.rig.records import RigRegistration, StageProgress, no_progress, placed_record
from page4d.rig.register import register_rig
from page4d.rig.samples import with_content
from page4d.rig.trajectory import follow_rig
from page4d.rig.upright import upright_world
from page4d.scene.clocks import BY_PEOPLE
from page4d.scene.records import Level, Notice, Scene, ViewCamera
from page4d.weights.wheels import PEOPLE, TEXTURE

Notify = Callable[[Notice], None]

CAMERA_MOVES = "the camera moves"
OTHERS_MOVE = "the other cameras move"
MOTION = (CAMERA_MOVES, OTHERS_MOVE)
"""Reasons why views are left out of a static rig."""

EXPLICIT = (Registration.PEOPLE, Registration.TEXTURE)
"""Evidence that a user requests by name: a rig that it does not place is an error, not a warning."""


@dataclass(frozen=True, kw_only=True)
class SceneEvidence:
    """The evidence of a scene before the network runs: pixels, a known length, and registered cameras.

    `registration` is None where there is none, or none yet: then the cameras are pending. `will_check` is whether a
    new run compares its calibration with the pixels. `given_world` is another world of given cameras. `with_cameras`
    gives the scene registered and metric cameras, `scale_source` the origin of their metre, and `distance` one that
    the result must have.
    """

    scene: Scene
    pixels: PixelEvidence
    length: KnownLength | None
    is_pending: bool
    will_check: bool
    registration: RigRegistration | None = None
    given_world: WorldRecord | None = None
    distance: KnownDistance | None = None
    scale_source: ScaleSource | None = None

    @property
    def motions(self) -> Sequence[ViewMotion]:
        """Motion of the cameras, as registration measured it, or at the instants of the run."""
        return (self.registration and self.registration.motions) or self.pixels.motions

    @property
    def world(self) -> WorldRecord | None:
        """The world of the result, if it is neither that of the calibration nor the network's."""
        if self.registration is not None and self.registration.record.gives_cameras:
            return self.registration.world
        return self.given_world

    def with_content(self) -> "SceneEvidence":
        """Return it with what the pictures of the scene usually show, so that its frames are judged."""
        return replace(self, scene=with_content(self.scene, self.pixels.samples))

    def with_cameras(self) -> "SceneEvidence":
        """Return it with the cameras that are known, in their world.

        Raises:
            UsageError: if the height of people is known and the rig is not registered.
            InputError: if people do not place the cameras.
        """
        found = self._with_metric_cameras()
        return found if self.given_world is None else replace(found, scene=_in_world(found.scene, self.given_world))

    def _with_metric_cameras(self) -> "SceneEvidence":
        scene, length, registration = self.scene, self.length, self.registration
        is_whole = registration is None or (registration.record.is_complete and not registration.record.num_known)
        if registration is not None:
            scene = registered_scene(scene, registration)
        if scene.scale is Scale.METRIC and (self.is_pending or scene.is_calibrated or has_unit(scene)):
            if isinstance(length, KnownHeight) and scene.is_calibrated:
                _metres_of_people(scene, None)
            # A distance was compared with the calibration.
            return replace(self, scene=scene, scale_source=ScaleSource.CALIBRATION)
        if isinstance(length, KnownDistance):
            if registration is not None and registration.record.is_used and not is_whole:
                metric, length = scene_in_metres(scene, registration.record.metres_per_unit or 1.0), None
            else:
                metric = metric_scene(scene, length)
            return replace(self, scene=metric, distance=length, scale_source=ScaleSource.DISTANCE)
        if self.is_pending or length is None:
            return replace(self, scene=scene)
        metric = scene_in_metres(scene, _metres_of_people(scene, registration))
        return replace(self, scene=metric, scale_source=ScaleSource.PERSON)


def evidence_of(scene: Scene, settings: ReconstructSettings, progress: StageProgress = no_progress) -> SceneEvidence:
    """Resolve what the settings of a run give of a scene; pixels are measured where they are needed.

    Raises:
        UsageError: if the settings do not fit the scene.
    """
    scene.options.check_resize(settings.intrinsics)
    is_moving = moves_as_one(scene, settings)
    is_pending = is_moving or will_register(scene, settings)
    length = known_length(scene, settings.scale_from)
    _check_known(scene, settings, length, is_pending=is_pending)
    if not (is_pending or scene.is_calibrated or has_unit(scene)) and (known := calibrated_views(scene)):
        raise UsageError(
            f"{listed(known)} alone in {scene.calibration} gives the cameras of the network no scale",
            "register the other views (⟨register=auto⟩), or leave out ⟨calibration⟩",
        )
    _check_world(scene, settings, is_pending=is_pending)
    return SceneEvidence(
        scene=scene,
        pixels=PixelEvidence(scene, settings.registration, progress),
        length=length,
        is_pending=is_pending,
        will_check=settings.check_calibration and scene.has_static_rig and not is_moving,
    )


def moves_as_one(scene: Scene, settings: ReconstructSettings) -> bool:
    """Return whether a calibration with one pose per view is that of a rig that moves."""
    is_asked = settings.camera_motion is CameraMotion.MOVING and settings.poses is Poses.INPUT
    return is_asked and all(view.camera is not None and view.camera.is_static for view in scene.views)


def calibrated_views(scene: Scene) -> list[str]:
    """Return the names of the views with a camera."""
    return [view.name for view in scene.views if view.camera is not None]


def _check_known(
    scene: Scene,
    settings: ReconstructSettings | RegisterSettings,
    length: KnownLength | None,
    *,
    is_pending: bool,
) -> None:
    """Refuse a calibration of some views that cannot be completed.

    Raises:
        UsageError: if its cameras move, or a length contradicts its unit or the predicted cameras it.
    """
    known_names = calibrated_views(scene)
    if len(known_names) in (0, scene.num_views):
        return
    if moving := [view.name for view in scene.views if view.camera is not None and not view.camera.is_static]:
        raise UsageError(
            f"{moving[0]} moves in {scene.calibration}, which lacks other views",
            "select the views that it has by ⟨views⟩",
        )
    if isinstance(settings, ReconstructSettings) and settings.poses is Poses.PREDICTED:
        raise UsageError(f"⟨poses=predicted⟩, and {scene.calibration} lacks views", "leave one of them out")
    if length is None or (isinstance(length, KnownDistance) and {length.first, length.second} <= {*known_names}):
        return
    if scene.scale is Scale.METRIC and has_unit(scene):
        raise UsageError(f"⟨scale_from⟩, and {scene.calibration} is in metres", "leave ⟨scale_from⟩ out")
    if not is_pending:
        raise UsageError(
            f"⟨scale_from⟩ of views that are not in {scene.calibration}",
            "name two calibrated views, or register the others",
        )


def _check_world(scene: Scene, settings: ReconstructSettings, *, is_pending: bool) -> None:
    """Refuse a world that the cameras cannot have."""
    cameras = [view.camera for view in scene.views if view.camera is not None]
    if settings.world is WorldFrame.CALIBRATION and not cameras:
        raise UsageError("⟨world=calibration⟩ without a calibration", "give ⟨calibration⟩, or leave it out")
    asked = _upright_option(settings)
    if moves_as_one(scene, settings):
        if asked or settings.world is WorldFrame.FIRST_CAMERA:
            raise UsageError(f"{asked or '⟨world=first-camera⟩'} of a rig that moves", "leave it out")
        if not has_unit(scene):
            raise UsageError(
                f"⟨camera_motion=moving⟩, and the cameras of {scene.calibration} are at one point",
                "give the poses of every instant",
            )
    if asked and settings.world is WorldFrame.AUTO and cameras:
        raise UsageError(f"{asked} in the world of the calibration", "pass ⟨world=upright⟩ too")
    if not asked or is_pending:
        return
    if not cameras:
        raise UsageError(
            f"{asked} with the cameras of a network", "give ⟨calibration⟩, or register two views or more"
        )
    if scene.up is None and not all(camera.is_static for camera in cameras):
        raise UsageError("⟨world=upright⟩ with moving cameras", "leave it out")


def _upright_option(settings: ReconstructSettings | RegisterSettings) -> str:
    """Return the option that requests an upright world; empty if none does."""
    if settings.world is WorldFrame.UPRIGHT:
        return "⟨world=upright⟩"
    is_asked = settings.world is WorldFrame.AUTO and settings.up is not UpAxis.AUTO
    return f"⟨up={settings.up}⟩" if is_asked else ""


def _in_world(scene: Scene, world: WorldRecord) -> Scene:
    """Bring the cameras of a scene into another world, near its origin."""
    views = tuple(
        replace(view, camera=None if view.camera is None else _moved(view.camera, world)) for view in scene.views
    )
    return replace(scene, views=views, up=world.up, world_offset=None)


def in_chosen_world(evidence: SceneEvidence, settings: ReconstructSettings, notify: Notify) -> SceneEvidence:
    """Return it with the world that the settings choose for given cameras; registered ones have theirs.

    Raises:
        InputError: if an upright world is requested, and no people show it.
    """
    scene = evidence.with_cameras().scene
    cameras = [view.camera for view in scene.views]
    is_kept = settings.world in (WorldFrame.AUTO, WorldFrame.CALIBRATION)
    if evidence.registration is not None or not any(cameras) or is_kept:
        return evidence
    world = _chosen_world(evidence.pixels.whole(), cameras, settings)
    _notify_world(world, settings, notify)
    return replace(evidence, given_world=world)


def _chosen_world(
    pixels: PixelEvidence, cameras: Sequence[ViewCamera | None], settings: ReconstructSettings | RegisterSettings
) -> WorldRecord:
    """Return the world of the first camera or an upright one, from the axis of a calibration or from people."""
    up = pixels.scene.up
    if settings.world is WorldFrame.FIRST_CAMERA:
        first = next(camera for camera in cameras if camera is not None).world_to_camera.double().reshape(-1, 4, 4)[0]
        return WorldRecord(frame=settings.world, transform=first.tolist())
    if up is None:
        return upright_world(pixels, cameras, settings.up)
    axis = UpAxis.Z if settings.up is UpAxis.AUTO else settings.up
    turn = torch.eye(4, dtype=torch.float64)
    turn[:3, :3] = torch.from_numpy(turn_up(up.vector, axis.vector))
    return WorldRecord(frame=settings.world, up=axis, transform=turn.tolist(), vertical=list(up.vector))


def _notify_world(
    world: WorldRecord | None, settings: ReconstructSettings | RegisterSettings, notify: Notify
) -> None:
    """Report a world that was chosen.

    Raises:
        InputError: if an upright world is requested, and no people show it.
    """
    asked = _upright_option(settings)
    if asked and (world is None or world.frame is not WorldFrame.UPRIGHT):
        reason = "the cameras are the network's" if world is None else world.reason
        raise InputError(f"{asked}: {reason}", "film people who stand or walk in two views or more, or leave it out")
    if world is not None:
        notify(Notice(f"the world is {world.text}", Level.INFO))


def will_register(scene: Scene, settings: ReconstructSettings) -> bool:
    """Return whether a run registers the scene before the network runs.

    Raises:
        UsageError: if registration is requested where it cannot apply.
    """
    is_explicit = settings.register in EXPLICIT
    reason = _obstacle(scene, settings)
    lens = "focal" if settings.focal is not None else "intrinsics" if settings.intrinsics is not None else None
    if reason is not None and (is_explicit or lens is not None):
        option = f"⟨register={settings.register}⟩" if is_explicit else f"⟨{lens}⟩"
        raise UsageError(f"{option} {reason}", "leave one of them out" if "with" in reason else "leave it out")
    wanted = is_explicit or (settings.register is Registration.AUTO and settings.poses is Poses.INPUT)
    return reason is None and wanted


def _obstacle(scene: Scene, settings: ReconstructSettings) -> str | None:
    """Return why a rig cannot be registered."""
    if scene.is_calibrated:
        return "with a calibration"
    if scene.num_views < 2:
        return "for a single view"
    if settings.camera_motion is CameraMotion.MOVING:
        return "with ⟨camera_motion=moving⟩"
    return None


def register_for_run(evidence: SceneEvidence, settings: ReconstructSettings, notify: Notify) -> SceneEvidence:
    """Register the rig of a run: from all instants of the capture, or from those of the run if a camera moves.

    Raises:
        InputError: if requested evidence places no view, or texture does not show the motion of a rig.
        WeightsError: if it is people, and the pose model was not fetched.
    """
    if moves_as_one(evidence.scene, settings):
        return replace(evidence, registration=_moving_rig(evidence.pixels, notify), is_pending=False)
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
    _notify_world(found.world if found.record.gives_cameras else None, settings, notify)
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


def _moving_rig(pixels: PixelEvidence, notify: Notify) -> RigRegistration:
    """Return the cameras of a rig that moves as one; the world is that of its calibration at the first instant."""
    given = [(view.name, view.camera) for view in pixels.scene.views if view.camera is not None]
    found = follow_rig(pixels, np.stack([camera.world_to_camera.double().numpy() for _, camera in given]))
    cameras = [
        replace(camera, world_to_camera=camera.world_to_camera.double() @ torch.from_numpy(found.world_to_rig))
        for _, camera in given
    ]
    records = [
        placed_record(name, lens, residual_px=found.error * lens.focal).model_copy(update={"source": "calibration"})
        for (name, _), lens in zip(given, pixels.lenses, strict=True)
    ]
    text = f"the rig moves as one, from texture of {counted(len(found.world_to_rig), 'instant')}"
    notify(Notice(text, Level.INFO))
    record = RegistrationRecord(asked=pixels.settings.register, cameras=records, num_instants=len(found.world_to_rig))
    return RigRegistration(record=record, cameras=[*cameras])


def _moving(motions: Sequence[ViewMotion]) -> set[str]:
    """Return the views whose camera moves."""
    return {motion.view for motion in motions if motion.is_static is False}


def register_scene(
    pixels: PixelEvidence,
    length: KnownLength | None,
    notify: Notify,
    *,
    is_static: bool = False,
    in_run: bool = True,
) -> RigRegistration:
    """Register the views of a scene that do not move, all if it `is_static`; a known length gives the unit.

    Views with a camera keep it, and the others are placed in its world.

    Advice on views that are not placed is that of a run, or of a registration alone.

    Raises:
        InputError: if a known height is given and no people are registered.
        WeightsError: if people are requested and the pose model was not fetched.
    """
    if pixels.settings.register is Registration.PEOPLE and not is_fetched():
        raise WeightsError("the model of body keypoints was not fetched", f"run {PEOPLE.offer}")
    moving = set() if is_static else _moving(pixels.motions)
    left = dict.fromkeys(sorted(moving), CAMERA_MOVES) | pixels.obstacles
    static = [index for index, name in enumerate(pixels.scene.view_names) if name not in left]
    asked, known = pixels.settings.register, calibrated_views(pixels.scene)
    num_known = sum(pixels.scene.view_names[view] in known for view in static)
    if len(static) > max(num_known, 1) and (num_known or not known):
        found = _upright(register_rig(part := pixels.of_views(static), notify), part)
    else:
        static, found = [], RigRegistration(record=RegistrationRecord(asked=asked), cameras=[])
    if len(static) < pixels.scene.num_views:
        found = _with_left_views(found, pixels, static, left)
    used_people = any(pair.evidence == "people" for pair in found.record.pairs)
    advice = in_options(_advice(found.record, pixels.scene, left, in_run=in_run))
    found = found.with_record(advice=advice, pose_model=model_sha256() if used_people else None)
    if known and has_unit(pixels.scene) and pixels.scene.scale is Scale.METRIC:
        return found.with_record(metres_per_unit=1.0)
    has_rig = found.record.num_placed >= 2
    if known and has_rig and length is None and not has_unit(pixels.scene):
        text = f"a single place of cameras in {pixels.scene.calibration} gives no scale"
        notify(Notice(f"{text}: lengths are in an arbitrary unit (⟨scale_from⟩)"))
    if length is None or not has_rig:
        return found
    found = metric_rig(found, pixels.scene.view_names, length)
    is_around = known and found.record.metres_per_unit is not None and not has_unit(pixels.scene)
    return metric_around(found) if is_around else found


def _upright(found: RigRegistration, pixels: PixelEvidence) -> RigRegistration:
    """Bring registered cameras into an upright world, if people show one and the settings do not refuse it.

    With calibrated cameras it is another world than theirs only on request.
    """
    settings, is_known = pixels.settings, found.record.num_known > 0
    uses_people = settings.register is not Registration.TEXTURE and is_fetched()
    wants = settings.world is (WorldFrame.FIRST_CAMERA if is_known else WorldFrame.AUTO) and (is_known or uses_people)
    if found.record.num_placed < 2 or not (wants or _upright_option(settings)):
        return found
    world = _chosen_world(pixels, found.cameras, settings)
    if world.transform is None:
        return found.model_copy(update={"world": world})
    cameras = [None if camera is None else _moved(camera, world) for camera in found.cameras]
    return found.model_copy(update={"world": world, "cameras": cameras})


def _moved(camera: ViewCamera, world: WorldRecord | None) -> ViewCamera:
    """Bring a camera into a world."""
    if world is None or world.transform is None:
        return camera
    return camera.in_world(torch.tensor(world.transform, dtype=torch.float64))


def _with_left_views(
    found: RigRegistration, pixels: PixelEvidence, static: list[int], left: dict[str, str]
) -> RigRegistration:
    """Add the views that were left out to the registration of the static ones."""
    records = [
        placed_record(name, lens, left.get(name, OTHERS_MOVE))
        for name, lens in zip(pixels.scene.view_names, pixels.lenses, strict=True)
    ]
    cameras = [None if view.camera is None else _moved(view.camera, found.world) for view in pixels.scene.views]
    for view, camera in enumerate(cameras):
        if camera is not None:
            records[view] = placed_record(records[view].view, pixels.lenses[view]).model_copy(
                update={"source": "calibration"}
            )
    for view, record, camera in zip(static, found.record.cameras, found.cameras, strict=True):
        records[view], cameras[view] = record, camera
    with_all = found.record.model_copy(update={"cameras": records})
    return RigRegistration(record=with_all, cameras=cameras, world=found.world)


def _advice(record: RegistrationRecord, scene: Scene, obstacles: Collection[str] = (), *, in_run: bool = True) -> str:
    """Return what to try for views that are not placed: the clock of a single view, missing models, cameras."""
    given = ["⟨calibration⟩"] * in_run + ["⟨focal⟩ or ⟨intrinsics⟩"] * (not _knows_lenses(record))
    others = [f"give {', or '.join(given)}"] * bool(given) + ["film people in all views"] * (not in_run)
    if offers := missing_models(record, obstacles):
        others = [f"run {' and '.join(offers)}", *others]
    # People move: a view that alone fits none of the others may show them at other times.
    left = [camera.view for camera in record.cameras if not camera.placed]
    if len(left) == 1 and not obstacles and "people" in record.evidence and scene.options.sync != BY_PEOPLE:
        others = [f"the clock of {left[0]} may be wrong: try ⟨sync=people⟩ or ⟨sync=FILE⟩ first", *others]
    return ", or ".join(others)


def missing_models(record: RegistrationRecord, obstacles: Collection[str] = ()) -> list[str]:
    """Return the commands that fetch missing models which may place more views; none helps those with `obstacles`."""
    if all(camera.placed or camera.reason in MOTION or camera.view in obstacles for camera in record.cameras):
        return []
    missing = [PEOPLE] if record.asked is not Registration.TEXTURE and not is_fetched() else []
    if record.asked is not Registration.PEOPLE and _knows_lenses(record) and not TEXTURE_MODEL.are_present:
        missing.append(TEXTURE)
    return [model.offer for model in missing]


def _knows_lenses(record: RegistrationRecord) -> bool:
    return all(camera.focal_source != "unknown" for camera in record.cameras)


def registered_scene(scene: Scene, found: RigRegistration) -> Scene:
    """Return the scene with the cameras that the run takes from the evidence, as if calibrated."""
    record = found.record
    if not record.gives_cameras:
        return scene
    views = tuple(replace(view, camera=camera) for view, camera in zip(scene.views, found.cameras, strict=True))
    origin = f"registered from {record.evidence}"
    if not record.num_known:
        origin += f" ({record.num_placed} of {scene.num_views} views)"
    elif record.is_used:
        origin = f"{scene.calibration}; {listed(_sources(record, 'evidence'), 4)} {origin}"
    else:
        moves = any(camera is not None and not camera.is_static for camera in found.cameras)
        origin = f"{scene.calibration}{'; its motion is from texture' if moves else ''}"
    is_moved = found.world is not None and found.world.transform is not None
    return replace(
        scene,
        views=views,
        scale=scene.scale if has_unit(scene) else Scale.ARBITRARY,
        up=scene.up if found.world is None else found.world.up,
        world_offset=None if is_moved else scene.world_offset,
        calibration=origin,
    )


def _sources(record: RegistrationRecord, source: str) -> list[str]:
    """Return the views whose camera in the result is from a source."""
    return [camera.view for camera in record.cameras if camera.source == source]


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

    With `Registration.AUTO` it is none where nothing is placed although no model is missing, or where only moving
    cameras are not: then the run is the same as without registration, and its report names the reason.
    """
    total = len(record.cameras)
    left = [camera for camera in record.cameras if not camera.placed]
    placed = _sources(record, "evidence")
    views = f"of {listed(placed)} in the world of the calibration " if record.num_known else ""
    count = "" if record.num_known else f" ({total} of {total} views)"
    registered = Notice(f"cameras {views}registered from {record.evidence}{count}", Level.INFO)
    if not left:
        return (registered,)
    networks = _sources(record, "network")
    names = "all views" if len(networks) == total else listed(networks)
    used = f"; those of the network are used for {names}" if in_run else ""
    is_expected = len(left) == total or all(camera.reason in MOTION for camera in left)
    is_expected = is_expected and record.asked is Registration.AUTO and not missing_models(record)
    level = Level.INFO if in_run and is_expected else Level.WARNING
    text = f"cameras of {len(left)} of {total} views are not placed ({reasons(record)}){used}; {record.advice}"
    return (*((registered,) if record.num_known and placed else ()), Notice(text, level))


def _metres_of_people(scene: Scene, found: RigRegistration | None) -> float:
    """Return the metres per unit of a rig whose people have a known height.

    Raises:
        UsageError: if the rig is not registered.
        InputError: if people do not place the cameras.
    """
    if found is None:
        raise UsageError(
            "⟨scale_from=person=...⟩ without registration from people", "give a distance between two cameras"
        )
    if found.record.metres_per_unit is None or not found.record.is_used:
        raise InputError(
            f"⟨scale_from=person=...⟩: people place {found.record.num_placed} of {scene.num_views} cameras",
            "give a distance between two cameras, or leave it out",
        )
    return found.record.metres_per_unit


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
    _check_known(scene, settings, length, is_pending=True)
    found = register_scene(PixelEvidence(scene, settings, observer.progress), length, observer.notice, in_run=False)
    if found.record.is_used:
        _notify_world(found.world, settings, observer.notice)
    return found


def placed_cameras(found: RigRegistration, scene: Scene) -> Calibration:
    """Return the placed cameras of a scene as a calibration, in metres if a length is known.

    Raises:
        InputError: naming the reasons, if evidence places no view.
    """
    if not found.record.is_used:
        raise InputError(
            f"evidence places no camera: {reasons(found.record)}",
            _advice(found.record, scene, in_run=False),
        )
    is_moved = found.world is not None and found.world.transform is not None
    offset = None if is_moved or scene.world_offset is None else torch.tensor(scene.world_offset, dtype=torch.float64)
    factor = torch.ones(4, 4, dtype=torch.float64)
    factor[:3, 3] = found.record.metres_per_unit or 1.0
    cameras = tuple(
        CalibratedCamera(
            name=view.name,
            image_size=view.source.size,
            intrinsics=camera.intrinsics,
            world_to_camera=(
                camera.world_to_camera if offset is None else move_origin(camera.world_to_camera, -offset)
            )
            * factor,
            distortion=camera.distortion,
        )
        for view, camera in zip(scene.views, found.cameras, strict=True)
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
