"""Standing height of people from the lengths of their bones, in units of the rig."""

import numpy as np
from jaxtyping import Float

from page4d.rig.adjust import NUM_JOINTS, Observations
from page4d.rig.records import Array

BONES = (
    ((11, 12), (23, 24), 0.288),
    ((23,), (25,), 0.245),
    ((24,), (26,), 0.245),
    ((25,), (27,), 0.246),
    ((26,), (28,), 0.246),
    ((11,), (13,), 0.186),
    ((12,), (14,), 0.186),
    ((13,), (15,), 0.146),
    ((14,), (16,), 0.146),
)
"""Trunk, thighs, shanks, upper arms and forearms: landmarks of BlazePose at both ends (their mean), and the length in
standing heights.

Source: Drillis & Contini (1966), in Winter, "Biomechanics and motor control of human movement", 2009, figure 4.1.
"""

_MIN_KNOWN = 0.7
"""Sum of the ratios of known bones below which a person at an instant is left out: trunk and one leg are 0.78."""

_MIN_SAMPLES = 10
"""People at instants below which the height is unknown."""


def person_height(points: Float[Array, "P 3"], tracks: Observations) -> float | None:
    """Return the median standing height over people and instants; None without enough complete people.

    The height at one instant is the summed length of known bones divided by their summed ratio to the height.
    """
    people = tracks.joint >= 0
    if not people.any():
        return None
    joints = np.full((int(tracks.person.max()) + 1, NUM_JOINTS, 3), np.nan)
    joints[tracks.person[people], tracks.joint[people]] = points[people]
    ends = [(joints[:, list(one)].mean(1), joints[:, list(other)].mean(1)) for one, other, _ in BONES]
    lengths = np.stack([np.linalg.norm(one - other, axis=-1) for one, other in ends])
    ratios = np.array([ratio for _, _, ratio in BONES])[:, None] * np.isfinite(lengths)
    known = ratios.sum(0) >= _MIN_KNOWN
    if known.sum() < _MIN_SAMPLES:
        return None
    return float(np.median(np.nansum(lengths, axis=0)[known] / ratios.sum(0)[known]))
