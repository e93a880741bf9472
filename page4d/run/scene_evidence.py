"""What scene and settings of a run give before the network runs: evidence, a length, cameras and their world."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from page4d.choices import CameraMotion, Poses, Registration, WorldFrame
from page4d.conventions import Scale, ScaleSource
from page4d.errors import InputError, Notify, UsageError, listed
from page4d.options import ReconstructSettings, RegisterSettings
from page4d.output.rig_record import RegistrationRecord, WorldRecord
from page4d.rig.camera_motion import ViewMotion
from page4d.rig.evidence import PixelEvidence
from page4d.rig.length import (
    KnownDistance,
    KnownHeight,
    KnownLength,
    has_unit,
    known_length,
    metric_scene,
    scene_in_metres,
)
from page4d.rig.records import RigRegistration, StageProgress, no_progress
from page4d.rig.samples import with_content, without_blank_views
from page4d.rig.upright import chosen_world, notify_world, scene_in_world, upright_option
from page4d.scene.calibration import near_origin
from page4d.scene.records import Scene

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

    def with_cameras(self) -> "SceneEvidence":
        """Return it with the cameras that are known, in their world.

        Raises:
            UsageError: if the height of people is known and the rig is not registered.
            InputError: if people do not place the cameras.
        """
        found, world = self._with_metric_cameras(), self.world
        if self.given_world is not None:
            found = replace(found, scene=scene_in_world(found.scene, self.given_world))
        if world is None or world.metres_per_unit is None:
            return found
        if found.scene.scale is not Scale.METRIC:
            metric = scene_in_metres(found.scene, world.metres_per_unit)
            found = replace(found, scene=metric, scale_source=ScaleSource.POINTS)
        return replace(found, scene=near_origin(found.scene))

    def _with_metric_cameras(self) -> "SceneEvidence":
        scene, length, registration = self.scene, self.length, self.registration
        if registration is not None and self.world is not None and self.world.metres_per_unit is not None:
            length = None
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
    check_known(scene, settings, length, is_pending=is_pending)
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


def evidence_in_pictures(
    scene: Scene, settings: ReconstructSettings, progress: StageProgress, notify: Notify
) -> SceneEvidence:
    """Resolve the same for the views that show something, with what they usually show: their frames are judged.

    Raises:
        UsageError: if the settings do not fit the scene.
    """
    found = evidence_of(scene, settings, progress)
    shown = without_blank_views(scene, found.pixels.samples, notify)
    found = found if shown is scene else evidence_of(shown, settings, progress)
    return replace(found, scene=with_content(shown, found.pixels.samples))


def moves_as_one(scene: Scene, settings: ReconstructSettings) -> bool:
    """Return whether a calibration with one pose per view is that of a rig that moves."""
    is_asked = settings.camera_motion is CameraMotion.MOVING and settings.poses is Poses.INPUT
    return is_asked and all(view.camera is not None and view.camera.is_static for view in scene.views)


def calibrated_views(scene: Scene) -> list[str]:
    """Return the names of the views with a camera."""
    return [view.name for view in scene.views if view.camera is not None]


def check_known(
    scene: Scene, settings: ReconstructSettings | RegisterSettings, length: KnownLength | None, *, is_pending: bool
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
    cameras = [view.camera for view in scene.views if view.camera is not None]
    if settings.world is WorldFrame.CALIBRATION and not cameras:
        raise UsageError("⟨world=calibration⟩ without a calibration", "give ⟨calibration⟩, or leave it out")
    asked, has_points = upright_option(settings), settings.floor_at is not None
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
    if (scene.up is None or has_points) and not all(camera.is_static for camera in cameras):
        raise UsageError(f"{'⟨floor_at⟩' if has_points else '⟨world=upright⟩'} with moving cameras", "leave it out")


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
    is_metric = scene.scale is Scale.METRIC
    world = chosen_world(evidence.pixels.whole(), cameras, settings, is_metric=is_metric)
    notify_world(world, settings, notify)
    return replace(evidence, given_world=world)


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
    if scene.is_calibrated:
        return "with a calibration"
    if scene.num_views < 2:
        return "for a single view"
    if settings.camera_motion is CameraMotion.MOVING:
        return "with ⟨camera_motion=moving⟩"
    return None


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
        origin = f"{scene.calibration}; {listed(views_from(record, 'evidence'), 4)} {origin}"
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
        surveyed={} if is_moved else scene.surveyed,
        calibration=origin,
    )


def views_from(record: RegistrationRecord, source: str) -> list[str]:
    """Return the views whose camera in the result is from a source."""
    return [camera.view for camera in record.cameras if camera.source == source]


_OTHER_LENGTH = "give a distance between two cameras, or leave it out"


def _metres_of_people(scene: Scene, found: RigRegistration | None) -> float:
    """Return the metres per unit of a rig whose people have a known height.

    Raises:
        UsageError: if the rig is not registered.
        InputError: if people do not place the cameras.
    """
    if found is None:
        raise UsageError("⟨scale_from=person=...⟩ without registration from people", _OTHER_LENGTH)
    if found.record.metres_per_unit is None or not found.record.is_used:
        raise InputError(
            f"⟨scale_from=person=...⟩: people place {found.record.num_placed} of {scene.num_views} cameras",
            _OTHER_LENGTH,
        )
    return found.record.metres_per_unit
