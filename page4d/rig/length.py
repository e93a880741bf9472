"""One known length, from which metres follow: the distance between two cameras, or the standing height of people.

The height of people in units of the rig is that of their bones.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import InputError, Notice, UsageError, listed, shortened
from page4d.formats.camera_model import METRES
from page4d.geometry.statistics import MAD_TO_STD
from page4d.geometry.transforms import camera_centers
from page4d.rig.adjust import CORRELATED_POSES, Observations, joints_of
from page4d.rig.records import Array, RigRegistration, extent_of
from page4d.scene.open import UNKNOWN_UNIT
from page4d.scene.records import Scene, ViewCamera

_METRES = METRES | {"ft": 0.3048}
"""Metres per unit of a distance."""

TOLERANCE = 0.02
"""Maximum relative difference of a known distance from a metric calibration, and maximum variation over time."""

_MIN_METRES, _MAX_METRES = 1e-6, 1e6
"""Distances of cameras, from those of microscopes to those of satellites."""

_FORM = "give it as view1-view2=1.25m or person=1.75m; units are m, cm, mm and ft"
_OTHER = "give a distance between two cameras that are apart, or leave ⟨scale_from⟩ out"


@dataclass(frozen=True, kw_only=True)
class KnownDistance:
    """The distance between the cameras of two views."""

    first: str
    second: str
    metres: float


@dataclass(frozen=True, kw_only=True)
class KnownHeight:
    """The median height of the people in a scene."""

    metres: float


KnownLength = KnownDistance | KnownHeight


def known_length(scene: Scene, text: str | None) -> KnownLength | None:
    """Parse `scale_from`, such as `cam01-cam02=1.25m` or `person=1.75m`.

    Raises:
        UsageError: if it is not of that form, names a view that does not exist, or contradicts a metric calibration.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(?P<subject>.+)=\s*(?P<number>[^\s=]+?)\s*(?P<unit>mm|cm|m|ft)", text.strip())
    if match is None:
        raise UsageError(f"⟨scale_from='{text}'⟩ is not a pair of views and a distance", _FORM)
    subject = match["subject"].strip()
    pair = None if subject == "person" else _pair(subject, scene.view_names)
    metres = _metres(match["number"], match["unit"])
    if pair is None:
        return KnownHeight(metres=metres)
    known = KnownDistance(first=pair[0], second=pair[1], metres=metres)
    found = _calibrated_distance(scene, known)
    if scene.scale is not Scale.METRIC or found is None:
        return known
    if abs(found[0] - metres) > TOLERANCE * metres:
        raise UsageError(
            f"⟨scale_from⟩: {known.first} and {known.second} are {metres:.4g} m apart, "
            f"but {found[0]:.4g} m in {scene.calibration}",
            "leave it out, or correct the calibration or its ⟨calibration_unit⟩",
        )
    return known


def _metres(number: str, unit: str) -> float:
    try:
        metres = float(number) * _METRES[unit]
    except ValueError:
        raise UsageError(f"⟨scale_from⟩: '{number}' is not a number", _FORM) from None
    if not _MIN_METRES <= metres <= _MAX_METRES:
        raise UsageError(
            f"⟨scale_from⟩: a distance of {shortened(number)} {unit}",
            f"give a distance of {_MIN_METRES:g} m to {_MAX_METRES:,.0f} m",
        )
    return metres


def _pair(text: str, names: tuple[str, ...]) -> tuple[str, str]:
    """Split at the dash between two names, which may contain dashes themselves."""
    cuts = [(text[:place], text[place + 1 :]) for place, character in enumerate(text) if character == "-"]
    pairs = [(first, second) for first, second in cuts if first in names and second in names]
    if len(pairs) != 1:
        raise UsageError(f"⟨scale_from⟩ names '{text}', the views are {listed(names)}", _FORM)
    if pairs[0][0] == pairs[0][1]:
        raise UsageError(f"⟨scale_from⟩ names '{pairs[0][0]}' twice", "name two views")
    return pairs[0]


def _calibrated_distance(scene: Scene, known: KnownDistance) -> tuple[float, float] | None:
    """Return the distance in the calibration's unit, if it has both, and its variation over time."""
    cameras = [view.camera for view in scene.views if view.name in (known.first, known.second)]
    centers = [camera_centers(camera.world_to_camera) for camera in cameras if camera is not None]
    if len(centers) < 2:
        return None
    return median_distance((centers[0] - centers[1]).norm(dim=-1).reshape(-1))


def median_distance(apart: Float[Tensor, " T"]) -> tuple[float, float]:
    """Return the median of distances, and their relative deviation from it, as a standard deviation."""
    distance = apart.quantile(0.5)
    return float(distance), MAD_TO_STD * float((apart / distance - 1).abs().quantile(0.5))


def varying_distance(first: str, second: str, variation: float, instants: str) -> Notice:
    """Return the warning of a known distance that varies over time, although one value gives the scale."""
    text = f"the distance between {first} and {second} varies by {variation:.1%} over {instants}"
    return Notice(f"{text}; its median is used. Is the rig rigid?")


def has_unit(scene: Scene) -> bool:
    """Return whether the calibrated cameras of a scene are apart, so that its world has their unit of length."""
    centers = [camera_centers(view.camera.world_to_camera) for view in scene.views if view.camera is not None]
    return bool(centers) and extent_of(torch.cat([center.reshape(-1, 3) for center in centers]).double().numpy()) > 0


def metric_scene(scene: Scene, known: KnownDistance) -> Scene:
    """Scale a calibration of unknown unit to metres by a known distance; other scenes are returned unchanged.

    Raises:
        UsageError: if the two calibrated cameras coincide.
    """
    found = _calibrated_distance(scene, known)
    if scene.scale is Scale.METRIC or found is None:
        return scene
    distance, variation = found
    if distance == 0:
        raise UsageError(f"{known.first} and {known.second} coincide in {scene.calibration}", _OTHER)
    metric = scene_in_metres(scene, known.metres / distance)
    if variation <= TOLERANCE:
        return metric
    notice = varying_distance(known.first, known.second, variation, f"the poses of {scene.calibration}")
    return replace(metric, notices=(*metric.notices, notice))


def scene_in_metres(scene: Scene, metres_per_unit: float) -> Scene:
    """Scale the cameras of a scene to metres."""
    views = tuple(
        replace(view, camera=None if view.camera is None else _scaled(view.camera, metres_per_unit))
        for view in scene.views
    )
    x, y, z = (value * metres_per_unit for value in scene.world_offset or (0.0, 0.0, 0.0))
    levels = scene.depth_levels / metres_per_unit
    return replace(
        scene,
        views=views,
        scale=Scale.METRIC,
        depth_levels=levels,
        world_offset=scene.world_offset and (x, y, z),
        surveyed={},
        notices=tuple(notice for notice in scene.notices if notice != UNKNOWN_UNIT),
    )


def metric_rig(found: RigRegistration, view_names: Sequence[str], known: KnownLength) -> RigRegistration:
    """Record the metres per unit of a registered rig, unless a camera of the known distance is not placed.

    Raises:
        InputError: if the height of people is known, and none are registered, or if the cameras coincide.
    """
    if isinstance(known, KnownHeight):
        height = found.record.person_height
        if height is None:
            raise InputError("⟨scale_from=person=...⟩: no standing people are registered", _OTHER)
        return found.with_record(metres_per_unit=known.metres / height, metres_std=found.record.person_height_std)
    first, second = (found.cameras[view_names.index(name)] for name in (known.first, known.second))
    if first is None or second is None:
        return found
    centers = [-pose[:3, :3].T @ pose[:3, 3] for pose in (one.world_to_camera.numpy() for one in (first, second))]
    apart = float(np.linalg.norm(centers[0] - centers[1]))
    if apart <= 0:
        raise InputError(f"the registered cameras of {known.first} and {known.second} coincide", _OTHER)
    both = {known.first, known.second}
    std = next((pair.distance_std for pair in found.record.pairs if set(pair.views) == both), None)
    return found.with_record(metres_per_unit=known.metres / apart, metres_std=std)


def metric_around(found: RigRegistration) -> RigRegistration:
    """Scale registered cameras about the calibrated ones, all at one point, by the metres per unit of the record."""
    record, factor = found.record, found.record.metres_per_unit or 1.0
    both = list(zip(found.cameras, (camera.source for camera in record.cameras), strict=True))
    known = next(camera for camera, source in both if camera is not None and source == "calibration")
    center = camera_centers(known.world_to_camera)
    origin, back = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    origin[:3, 3], back[:3, 3] = -center, center
    cameras = [
        _scaled(camera.in_world(origin), factor).in_world(back)
        if camera is not None and source == "evidence"
        else camera
        for camera, source in both
    ]
    height = record.person_height and record.person_height * factor
    return found.model_copy(update={"cameras": cameras}).with_record(metres_per_unit=1.0, person_height=height)


def _scaled(camera: ViewCamera, factor: float) -> ViewCamera:
    poses = camera.world_to_camera.clone()
    poses[..., :3, 3] *= factor
    return replace(camera, world_to_camera=poses)


_SIDES = ((23, 25, 0.245), (25, 27, 0.246), (11, 13, 0.186), (13, 15, 0.146))
BONES = (
    ((11, 12), (23, 24), 0.288),
    *(((first + side,), (last + side,), ratio) for first, last, ratio in _SIDES for side in (0, 1)),
)
"""Trunk, thighs, shanks, upper arms and forearms: landmarks of BlazePose at both ends (their mean), and the length in
standing heights.

Source: Drillis & Contini (1966), in Winter, "Biomechanics and motor control of human movement", 2009, figure 4.1.
"""

_MIN_KNOWN = 0.7
"""Sum of the ratios of known bones below which a person at an instant is left out: trunk and one leg are 0.78."""

_PROPORTIONS = 0.03
"""Relative standard deviation of the height from bones, as proportions of people differ."""

_MIN_SAMPLES = 10
"""People at instants below which the height is unknown."""


def person_height(points: Float[Array, "P 3"], tracks: Observations) -> tuple[float, float] | None:
    """Return the median standing height over people and instants, and its relative standard deviation.

    It is None without enough complete people.

    The height at one instant is the summed length of known bones divided by their summed ratio to the height.
    """
    joints = joints_of(points, tracks)
    ends = [(joints[:, list(one)].mean(1), joints[:, list(other)].mean(1)) for one, other, _ in BONES]
    lengths = np.stack([np.linalg.norm(one - other, axis=-1) for one, other in ends])
    ratios = np.array([ratio for _, _, ratio in BONES])[:, None] * np.isfinite(lengths)
    known = ratios.sum(0) >= _MIN_KNOWN
    if known.sum() < _MIN_SAMPLES:
        return None
    heights = np.nansum(lengths, axis=0)[known] / ratios.sum(0)[known]
    height = float(np.median(heights))
    spread = MAD_TO_STD * float(np.median(np.abs(heights / height - 1)))
    return height, float(np.hypot(_PROPORTIONS, spread * np.sqrt(CORRELATED_POSES / len(heights))))
