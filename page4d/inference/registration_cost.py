"""Forecast of registration: seconds and memory of its stages, before a frame is decoded."""

from dataclasses import dataclass

import numpy as np

from page4d.choices import Registration
from page4d.options import ReconstructSettings
from page4d.rig.graph import choose_pairs
from page4d.rig.people.model import is_fetched
from page4d.rig.texture import MAX_INSTANTS, MAX_SIDE_PX
from page4d.scene.records import Scene

_KEYPOINT_S = 0.07
"""CPU seconds per frame: detection and landmarks of up to three people."""

_TEXTURE_S = 0.55
"""CPU seconds per frame and megapixel of SIFT, with decoding."""

_PAIR_S = 1.0
"""CPU seconds per pair from people, in each of up to two rounds."""

_TEXTURE_PAIR_S = 1.5

_KEYPOINT_BYTES = 150e6
_TEXTURE_BYTES = 300e6
"""Memory per megapixel of SIFT: its pyramid of scales in 32 bits, of a doubled image."""


@dataclass(frozen=True, kw_only=True)
class RegistrationStage:
    """A stage of registration: CPU seconds and peak memory in addition to what is in use."""

    name: str
    seconds: float
    num_bytes: float


def registration_stages(scene: Scene, settings: ReconstructSettings) -> tuple[RegistrationStage, ...]:
    """Return upper bounds for the stages; texture is not extracted where people place all views."""
    register, views = settings.registration, scene.num_views
    num_pairs = len(choose_pairs(np.ones((views, views))))
    stages = []
    if register.register is Registration.PEOPLE or (register.register is Registration.AUTO and is_fetched()):
        seconds = _KEYPOINT_S * register.max_instants * views
        stages.append(RegistrationStage(name="keypoints", seconds=seconds, num_bytes=_KEYPOINT_BYTES))
        stages.append(RegistrationStage(name="pairs", seconds=2 * _PAIR_S * num_pairs, num_bytes=_KEYPOINT_BYTES))
    if register.register is not Registration.PEOPLE:
        sizes = [
            np.prod(view.source.size) * min(1.0, MAX_SIDE_PX / max(view.source.size)) ** 2 for view in scene.views
        ]
        instants = min(MAX_INSTANTS, scene.num_times)
        seconds = float(sum(sizes)) / 1e6 * instants * _TEXTURE_S + _TEXTURE_PAIR_S * num_pairs
        memory = float(max(sizes)) / 1e6 * _TEXTURE_BYTES
        stages.append(RegistrationStage(name="texture", seconds=seconds, num_bytes=memory))
    return tuple(stages)
