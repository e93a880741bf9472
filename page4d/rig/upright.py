"""Gravity and floor from people in placed cameras.

Somebody who stands or walks does not fall: on average over time, the centre of mass is above the supporting feet. So
bodies that lean, such as on one leg, show the vertical too.

Source: Winter, "Human balance and posture control during standing and walking", 1995: the centre of pressure moves to
both sides of the projected centre of mass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from page4d.choices import Registration, UpAxis, WorldFrame
from page4d.conventions import Scale
from page4d.errors import InputError, Level, Notice, Notify
from page4d.geometry.rotation import turn_up
from page4d.options import ReconstructSettings, RegisterSettings
from page4d.output.rig_record import WorldRecord
from page4d.rig.adjust import CORRELATED_POSES
from page4d.rig.evidence import PixelEvidence
from page4d.rig.floor import MAX_STD_DEG, Vertical
from page4d.rig.length import has_unit
from page4d.rig.people.keypoints import ideal_people
from page4d.rig.people.model import NO_POSE_MODEL, is_fetched
from page4d.rig.people.placed import placed_joints
from page4d.rig.records import Array, RigCamera, RigRegistration, ViewPeople, direction_angle_deg
from page4d.rig.survey import floor_world
from page4d.scene.records import Scene, ViewCamera

MIN_POSES = 10
"""Poses of standing people, a person at an instant each, below which the vertical is unknown."""

_BIAS_DEG = 1.5
"""Standard deviation from what does not average out: bias of keypoints, and loads of feet."""

_LEAN_DEG = (2.5, 0.7)
"""Standard deviations of a constant lean of all bodies forward and to a side, which people who turn reveal."""

_RESIDUAL = 0.05
"""Residual of an axis in radians from which its weight falls."""

_SUPPORTS = (0.12, 10.0)
"""Heights of an ankle above the lower one, in leg lengths, at which its foot bears 1/e of the other's load: the first
holds for balancing on a leg, the second, equal loads, for walking. The one under which axes vary less is taken. Below
0.07 the vertical and the load depend on each other too much."""

_MIN_EXTENSION = 0.88
"""Distance from hip to ankle of the more extended leg of a standing person, in lengths of the leg."""

_MAX_BEND_DEG = 30.0
"""Angle between trunk and supporting leg of a standing person."""

_UPRIGHT_DEG = 60.0
"""Angle to the vertical of the upward axes of most cameras; if more are beyond it, people lie, or cameras do."""

_LOWEST = 0.25
"""Quantile, over poses, of the heights of the lowest keypoint of the feet that is taken for those on the floor."""

_SOLE = 0.012
"""Height of these keypoints above the sole, and its standard deviation, in leg lengths: 1 cm. It is 0 to 2 cm."""

_SIDES = ((11, 13, 0.028, 0.436), (13, 15, 0.022, 0.682), (23, 25, 0.1, 0.433), (25, 27, 0.0465, 0.433))
_SEGMENTS = (
    ((7, 8), (7, 8), 0.081, 0.0),
    ((23, 24), (11, 12), 0.497, 0.5),
    *(((first + side,), (last + side,), mass, at) for first, last, mass, at in _SIDES for side in (0, 1)),
    ((29, 30), (31, 32), 0.029, 0.5),
)
"""Head, trunk, upper arms, forearms with hands, thighs, shanks and both feet: landmarks of BlazePose at their ends
(the mean of several), the share of the mass of the body, and the place of its centre from the first end to the last.

Source: Winter, "Biomechanics and motor control of human movement", 2009, table 4.1.
"""

_MIN_MASS = 0.7
"""Share of the mass in known segments below which the centre of mass is unknown."""


def placed_rig(pixels: PixelEvidence, cameras: Sequence[ViewCamera | None]) -> dict[int, RigCamera]:
    """Return the static cameras of views that have one, with their lenses."""
    return {
        view: RigCamera(
            lens=replace(pixels.lenses[view], intrinsics=camera.intrinsics.numpy(), distortion=camera.distortion),
            world_to_camera=camera.world_to_camera.double().numpy(),
        )
        for view, camera in enumerate(cameras)
        if camera is not None
    }


def upright_world(pixels: PixelEvidence, rig: Mapping[int, RigCamera], up: UpAxis) -> WorldRecord:
    """Return the upright world of static cameras whose people stand or walk; else one that states why it is not.

    Raises:
        CapabilityError: if the pose model cannot run on this platform.
        InputError: if a frame cannot be decoded.
    """
    found = _vertical_of_people(pixels, rig)
    if isinstance(found, str):
        return WorldRecord(frame=WorldFrame.FIRST_CAMERA, reason=found)
    return found.world(np.stack([camera.world_to_camera for camera in rig.values()]), up)


def _vertical_of_people(pixels: PixelEvidence, rig: Mapping[int, RigCamera]) -> Vertical | str:
    if not is_fetched():
        return NO_POSE_MODEL
    people = [ideal_people(pixels.people[view], camera.lens) for view, camera in rig.items()]
    return find_vertical(list(rig.values()), people, len(pixels.instants))


def find_vertical(cameras: Sequence[RigCamera], people: Sequence[ViewPeople], num_instants: int) -> Vertical | str:
    """Find gravity and floor from the people in static cameras, in their world and unit; else return why not."""
    joints, _ = placed_joints(cameras, people, num_instants)
    known = np.isfinite(joints[:, [11, 12, *range(23, 29)]]).all((1, 2))
    if known.sum() < MIN_POSES:
        return f"{known.sum()} poses of people from head to foot are seen in two views, {MIN_POSES} are needed"
    found = [_fit(joints[known], load) for load in _SUPPORTS]
    fits = [fit for fit in found if isinstance(fit, Vertical)]
    if not fits:
        return f"{max(fit for fit in found if isinstance(fit, int))} poses of people stand, {MIN_POSES} are needed"
    best = min(fits, key=lambda fit: fit.std_deg)
    if best.std_deg > MAX_STD_DEG:
        return f"the vertical from {best.num_poses} poses of people is uncertain by {best.std_deg:.0f} degrees"
    tilts = direction_angle_deg(-np.stack([camera.rotation[1] for camera in cameras]), best.up)
    if 2 * (tilts < _UPRIGHT_DEG).sum() < len(cameras):
        return "people lie, or most cameras do not stand upright"
    return best


def _fit(joints: Float[Array, "N J 3"], load: float) -> Vertical | int:
    """Fit the vertical and a common lean of bodies to the axes of people who stand; or return how many do.

    A horizontal change of the vertical [2] and the lean [2], forward and to the right, are estimated by weighted
    least squares with a prior on the lean.
    """
    axis = joints[:, [11, 12]].mean(1) - joints[:, [27, 28]].mean(1)
    up = np.median(axis / np.linalg.norm(axis, axis=1, keepdims=True), axis=0)
    up, lean = up / np.linalg.norm(up), np.zeros(2)
    for _ in range(8):
        axis, stands = _supported(joints, up, load)
        if (count := int(stands.sum())) < MIN_POSES:
            return count
        body = joints[stands]
        forward = np.cross(up, body[:, 12] - body[:, 11] + body[:, 24] - body[:, 23])
        forward /= np.linalg.norm(forward, axis=1, keepdims=True)
        level = np.linalg.svd(up[None])[2][1:]
        by_lean = np.stack([forward @ level.T, np.cross(forward, up) @ level.T], axis=-1)
        design = np.concatenate([np.broadcast_to(np.eye(2), by_lean.shape), by_lean], axis=-1)
        slope = axis[stands] @ level.T / (axis[stands] @ up)[:, None]
        residual = np.linalg.norm(slope - by_lean @ lean, axis=1)
        weight = 1 / np.maximum(residual / _RESIDUAL, 1)
        variance = weight @ residual**2 / (2 * weight.sum()) + np.radians(1.0) ** 2
        weight /= variance * CORRELATED_POSES
        precision = np.einsum("n,nri,nrj->ij", weight, design, design)
        precision[[2, 3], [2, 3]] += np.radians(_LEAN_DEG) ** -2.0
        change = np.linalg.solve(precision, np.einsum("n,nri,nr->i", weight, design, slope))
        up, lean = up + change[:2] @ level, change[2:]
        up /= np.linalg.norm(up)
    std = np.degrees(np.sqrt(np.trace(np.linalg.inv(precision)[:2, :2])))
    lowest, sole = np.nanmin(joints[stands][:, 29:] @ up, axis=1), _SOLE * float(np.median(_leg_lengths(joints)))
    spread = float(np.diff(np.quantile(lowest, [0.16, 0.84]))[0]) / 2
    return Vertical(
        up=up,
        std_deg=float(np.hypot(std, _BIAS_DEG)),
        floor=float(np.quantile(lowest, _LOWEST)) - sole,
        floor_std=float(np.hypot(spread * np.sqrt(CORRELATED_POSES / max(count, CORRELATED_POSES)), sole)),
        num_poses=count,
    )


def _leg_lengths(joints: Float[Array, "N J 3"]) -> Float[Array, "N 2"]:
    knees = joints[:, [25, 26]]
    parts = (joints[:, [23, 24]] - knees, knees - joints[:, [27, 28]])
    return np.asarray(sum(np.linalg.norm(part, axis=-1) for part in parts))


def _supported(
    joints: Float[Array, "N J 3"], up: Float[Array, " 3"], load: float
) -> tuple[Float[Array, "N 3"], Bool[NDArray[np.bool_], " N"]]:
    """Return unit axes from the supporting feet to the centre of mass, and whether people stand or walk on them."""
    hips, ankles, trunk = joints[:, [23, 24]], joints[:, [27, 28]], joints[:, [11, 12]].mean(1)
    height = ankles @ up
    share = np.exp((height.min(axis=1, keepdims=True) - height) / (load * np.median(_leg_lengths(joints))))
    share /= share.sum(axis=1, keepdims=True)
    feet = (joints[:, [29, 30]] + joints[:, [31, 32]]) / 2
    support = np.where((share > 0.05)[..., None], share[..., None] * feet, 0.0).sum(1)
    axis = _centre_of_mass(joints) - support
    extension = (np.linalg.norm(hips - ankles, axis=-1) / _leg_lengths(joints)).max(axis=1)
    bend = direction_angle_deg(trunk - hips.mean(1), hips.mean(1) - support)
    stands = np.isfinite(axis).all(1) & (extension >= _MIN_EXTENSION) & (bend <= _MAX_BEND_DEG)
    return axis / np.linalg.norm(axis, axis=1, keepdims=True), stands


def _centre_of_mass(joints: Float[Array, "N J 3"]) -> Float[Array, "N 3"]:
    """Return the centre of mass of the known segments, NaN where they are too few."""
    total, known = np.zeros((len(joints), 3)), np.zeros((len(joints), 1))
    for first, last, mass, at in _SEGMENTS:
        center = (1 - at) * joints[:, first].mean(1) + at * joints[:, last].mean(1)
        has = np.isfinite(center[:, :1])
        total, known = total + np.where(has, mass * center, 0.0), known + mass * has
    return np.where(known >= _MIN_MASS, total / np.maximum(known, _MIN_MASS), np.nan)


def upright_option(settings: ReconstructSettings | RegisterSettings) -> str:
    """Return the option that requests an upright world; empty if none does."""
    if settings.world is WorldFrame.UPRIGHT:
        return "⟨world=upright⟩"
    if settings.world is not WorldFrame.AUTO or (settings.floor_at is None and settings.up is UpAxis.AUTO):
        return ""
    return f"⟨up={settings.up}⟩" if settings.floor_at is None else "⟨floor_at⟩"


def chosen_world(
    pixels: PixelEvidence,
    cameras: Sequence[ViewCamera | None],
    settings: ReconstructSettings | RegisterSettings,
    *,
    is_metric: bool,
) -> WorldRecord:
    """Return the world of the first camera or an upright one: from points, the axis of a calibration, or people.

    `is_metric` states whether the cameras are in metres.

    Raises:
        InputError: if the points determine no floor.
    """
    up = pixels.scene.up
    if settings.world is WorldFrame.FIRST_CAMERA:
        first = next(camera for camera in cameras if camera is not None).world_to_camera.double().reshape(-1, 4, 4)[0]
        return WorldRecord(frame=settings.world, transform=first.tolist())
    rig = placed_rig(pixels, cameras)
    if pixels.floor is not None:
        return floor_world(
            pixels.floor,
            {pixels.scene.view_names[view]: camera for view, camera in rig.items()},
            settings.up,
            is_metric=is_metric,
            other_vertical=lambda: _vertical_of_people(pixels, rig),
        )
    if up is None:
        return upright_world(pixels, rig, settings.up)
    axis = UpAxis.Z if settings.up is UpAxis.AUTO else settings.up
    turn = torch.eye(4, dtype=torch.float64)
    turn[:3, :3] = torch.from_numpy(turn_up(up.vector, axis.vector))
    return WorldRecord(frame=settings.world, up=axis, transform=turn.tolist(), vertical=list(up.vector))


def notify_world(world: WorldRecord | None, settings: ReconstructSettings | RegisterSettings, notify: Notify) -> None:
    """Report a world that was chosen.

    Raises:
        InputError: if an upright world is requested, and no people show it.
    """
    asked = upright_option(settings)
    if asked and (world is None or world.frame is not WorldFrame.UPRIGHT):
        reason = "the cameras are the network's" if world is None else world.reason
        hint = "film people who stand or walk in two views or more, give ⟨floor_at⟩, or leave it out"
        raise InputError(f"{asked}: {reason}", hint)
    if world is not None:
        notify(Notice(f"the world is {world.text}", Level.INFO))


def upright_rig(found: RigRegistration, pixels: PixelEvidence) -> RigRegistration:
    """Bring registered cameras into an upright world, if people show one and the settings do not refuse it.

    With calibrated cameras it is another world than theirs only on request.
    """
    settings, is_known = pixels.settings, found.record.num_known > 0
    uses_people = settings.register is not Registration.TEXTURE and is_fetched()
    wants = settings.world is (WorldFrame.FIRST_CAMERA if is_known else WorldFrame.AUTO) and (is_known or uses_people)
    if found.record.num_placed < 2 or not (wants or upright_option(settings)):
        return found
    is_metric = pixels.scene.scale is Scale.METRIC and has_unit(pixels.scene)
    world = chosen_world(pixels, found.cameras, settings, is_metric=is_metric)
    if world.transform is None:
        return found.model_copy(update={"world": world})
    cameras = [None if camera is None else camera_in_world(camera, world) for camera in found.cameras]
    return found.model_copy(update={"world": world, "cameras": cameras})


def camera_in_world(camera: ViewCamera, world: WorldRecord | None) -> ViewCamera:
    """Bring a camera into a world."""
    if world is None or world.transform is None:
        return camera
    return camera.in_world(torch.tensor(world.transform, dtype=torch.float64))


def scene_in_world(scene: Scene, world: WorldRecord) -> Scene:
    """Bring the cameras of a scene into another world, near its origin."""
    views = tuple(
        replace(view, camera=None if view.camera is None else camera_in_world(view.camera, world))
        for view in scene.views
    )
    return replace(scene, views=views, up=world.up, world_offset=None, surveyed={})
