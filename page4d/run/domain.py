"""Warnings of footage unlike a network's training set: what is likely wrong, how badly, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal, NamedTuple

import torch

from page4d.choices import CameraMotion
from page4d.errors import Notice
from page4d.geometry.alignment import disagreement_deg
from page4d.networks.ood import OOD_MESSAGES
from page4d.output.record import OOD_WARNING, DomainRecord
from page4d.run.plan import RunPlan
from page4d.run.predictor import PredictedChunk
from page4d.run.rig_residuals import compared_instants
from page4d.weights.catalogue import CatalogueEntry, licence_and_size

_GRADES = ((1.0, 5.0, "slightly"), (1.3, 15.0, "clearly"), (2.0, 45.0, "far"))
"""Grades, above an indicator in units of its limit or above an angle of the cameras in degrees.

Limits are quantiles over scenes like those of the training set, which exceed them by a few percent at most. Cameras
within 5 degrees are usable; from 45 on, the views of a rig are not even in order.
"""

_VERDICTS = {"slightly": "{} may be wrong", "clearly": "{} {} probably wrong", "far": "do not trust {}"}
"""What a grade means for parts of the result."""

_REJECTED = 1.5
"""Grade of a rejected refinement of several views, in units of the limits of indicators.

Indicators alone grade too mildly: on a rig whose pairs are 50 degrees off, the worst is 1.1 times its limit.
"""

_LIKELY_WRONG = {
    "doubt": ("depth", "masks"),
    "ray_gap_deg": ("cameras",),
    "match_doubt": ("cameras", "depth"),
    "depth_gap": ("cameras", "depth"),
}
"""Parts of the result that an indicator above its limit makes doubtful."""

_MAX_REASONS = 2
"""Largest number of indicators that a warning names, the worst first; none besides a comparison of cameras.

Warnings stay within three lines; `run.json` holds all indicators.
"""


class KnownCameras(NamedTuple):
    """Cameras from elsewhere than the network.

    `are_used` states that they are those of the result. `disagreement_deg` is the median angle between rotations of
    pairs of the network's cameras and of them, None if the network predicts none or if there is no pair.
    """

    source: Literal["calibrated", "registered"]
    are_used: bool
    disagreement_deg: float | None = None


@dataclass(frozen=True, kw_only=True)
class Domain:
    """How well a chunk's footage fits the network.

    `ratios` are out-of-distribution indicators in units of their limits; `kept` are the parts of cameras whose
    refinement held-out evidence supports, None without such a comparison; `camera_options` provide other cameras.
    """

    ratios: Mapping[str, float] | None = None
    known: KnownCameras | None = None
    kept: tuple[str, ...] | None = None
    num_views: int = 2
    camera_options: str = "⟨register=people⟩ or ⟨calibration=FILE⟩"

    @property
    def refined(self) -> list[Literal["poses", "focal"]] | None:
        """The parts of cameras whose refinement was kept, for `run.json`."""
        kept = self.kept
        return None if kept is None else [part for part in ("poses", "focal") if part in kept]

    @property
    def record(self) -> DomainRecord | None:
        """The record for `run.json`; None if nothing was measured."""
        angle = None if self.known is None else self.known.disagreement_deg
        if self.ratios is None and angle is None:
            return None
        return DomainRecord(
            indicators={name: ratio if isfinite(ratio) else None for name, ratio in (self.ratios or {}).items()},
            camera_disagreement_deg=angle,
        )

    def notices(self, suggestion: CatalogueEntry | None = None) -> tuple[Notice, ...]:
        """Warn of the footage, with a checkpoint for it, and of a refinement of cameras that was rejected."""
        footage = self._footage_notice(suggestion)
        refinement = self._refinement_notice(with_options=footage is None)
        return tuple(notice for notice in (footage, refinement) if notice is not None)

    @property
    def _exceeded(self) -> dict[str, float]:
        """The indicators above their limits, the worst first."""
        ratios = (self.ratios or {}).items()
        return {name: ratio for name, ratio in sorted(ratios, key=lambda item: -item[1]) if ratio > 1}

    def _footage_notice(self, suggestion: CatalogueEntry | None) -> Notice | None:
        exceeded, known = self._exceeded, self.known
        angle = 0.0 if known is None or known.disagreement_deg is None else known.disagreement_deg
        by_angle = next((grade for _, limit, grade in reversed(_GRADES) if angle > limit), None)
        # Accepted evidence shows wrong cameras by itself; where a calibration disagrees, either may be wrong.
        registered = known is not None and known.source == "registered" and not known.are_used
        if not exceeded and not (registered and by_angle is not None):
            return None
        parts = self._doubtful_parts(cameras_are_wrong=by_angle is not None or self._rejects_cameras)
        worst = max([*exceeded.values(), _REJECTED * self._rejects_cameras], default=0.0)
        grade = next((name for ratio, limit, name in reversed(_GRADES) if worst > ratio or angle > limit), "slightly")
        verdict = _VERDICTS[grade].format(_joined(parts), "is" if parts == ["depth"] else "are")
        comparison = self._comparison()
        reasons = ", ".join(OOD_MESSAGES[name] for name in list(exceeded)[:_MAX_REASONS])
        start = f"{OOD_WARNING} ({grade if comparison else f'{grade}: {reasons}'}): " if exceeded else ""
        options = {"cameras": f"{self.camera_options} for cameras"}
        if known is not None and known.source == "calibrated":  # without a calibration measured depth is refused
            options["depth"] = "⟨depth=FOLDER⟩ for depth"
        remedy = ", ".join(options[part] for part in parts if part in options)
        text = f"{start}{comparison}{verdict}" + (f"; give {remedy}" if remedy else "")
        if suggestion is not None:
            option = f"⟨weights={suggestion.name}⟩ ({licence_and_size(suggestion)})"
            text += f"; use a network for real footage: {option}"
        return Notice(text)

    def _doubtful_parts(self, *, cameras_are_wrong: bool) -> list[str]:
        """Name the parts of the result that may be wrong: depth and masks with wrong cameras of the network."""
        found = {part for name in self._exceeded for part in _LIKELY_WRONG[name]}
        if cameras_are_wrong:
            found |= {"cameras", "depth", "masks"}
        if self.known is not None and (self.known.are_used or self._cameras_are_confirmed):
            found = (found - {"cameras"}) or {"depth"}
        return [part for part in ("cameras", "depth", "masks") if part in found]

    @property
    def _rejects_cameras(self) -> bool:
        """Whether held-out pixels contradict cameras of the result that nothing else confirms."""
        return self.kept == () and self.num_views > 1 and not self._cameras_are_confirmed

    @property
    def _cameras_are_confirmed(self) -> bool:
        angle = None if self.known is None else self.known.disagreement_deg
        return angle is not None and angle <= _GRADES[0][1]

    def _comparison(self) -> str:
        """State what the comparison with known cameras found; empty without one, or if it has no consequence."""
        known = self.known
        if known is None or known.disagreement_deg is None or (known.are_used and self._cameras_are_confirmed):
            return ""
        angle = f"{known.disagreement_deg:.0f} degrees"
        if self._cameras_are_confirmed:
            return f"cameras are within {max(known.disagreement_deg, 1):.0f} degrees of the {known.source} ones, "
        if known.are_used:
            return f"the network's own cameras differ by {angle} from the {known.source} ones: "
        return f"cameras differ by {angle} from the {known.source} ones: "

    def _refinement_notice(self, *, with_options: bool) -> Notice | None:
        if self.kept != ():
            return None
        text = "held-out pixels do not support the refined cameras: those of the network are kept"
        if self.num_views == 1:
            return Notice(text)
        options = f"; give {self.camera_options}" if with_options else ""
        return Notice(f"{text}, and depth is not refined between views{options}")


def _joined(parts: list[str]) -> str:
    """Join words: "cameras, depth and masks"."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def domain_of(predicted: PredictedChunk, plan: RunPlan) -> Domain:
    """Return how well a predicted chunk fits its network."""
    return Domain(
        ratios=predicted.ood,
        known=_known_cameras(predicted, plan),
        kept=predicted.kept,
        num_views=plan.scene.num_views,
        camera_options=_camera_options(plan),
    )


def _known_cameras(predicted: PredictedChunk, plan: RunPlan) -> KnownCameras | None:
    found, registration = predicted.predictions.cameras.world_to_camera[0], plan.evidence.registration
    if predicted.rig is not None:
        known, views = predicted.rig[0].world_to_camera, list(range(plan.scene.num_views))
    elif registration is not None:
        placed = {i: camera for i, camera in enumerate(registration.cameras) if camera is not None}
        if len(placed) < 2:
            return None
        views = list(placed)
        poses = torch.stack([camera.world_to_camera.reshape(-1, 4, 4)[0] for camera in placed.values()])
        known = poses.expand(len(found), -1, -1, -1)
    else:
        return None
    used = [place for place, view in enumerate(views) if view in predicted.predictions.shown_views]
    few, is_compared = compared_instants(len(found)), len(used) > 1 and not plan.predictor.uses_rig_cameras
    pairs = (found[few][:, [views[place] for place in used]], known[few][:, used])
    return KnownCameras(
        source="calibrated" if registration is None else "registered",
        are_used=plan.world.is_fixed,
        disagreement_deg=disagreement_deg(*pairs) if is_compared else None,
    )


def _camera_options(plan: RunPlan) -> str:
    """Name the options that provide other cameras than the network's."""
    scene, tried = plan.scene, plan.evidence.registration is not None
    has_cameras = [view.camera is not None for view in scene.views]
    if all(has_cameras):
        return "⟨poses=input⟩"
    moves = plan.settings.camera_motion is CameraMotion.MOVING
    if tried or moves or any(has_cameras) or scene.num_views == 1:
        return "⟨calibration=FILE⟩"
    return "⟨register=people⟩ or ⟨calibration=FILE⟩"
