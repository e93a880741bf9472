"""How well people of two views agree where one of the views is shifted in time: evidence on clocks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from page4d.rig.epipolar import RelativePose
from page4d.rig.people_pairs import MIN_INSTANTS, PeoplePose, best_people_pose, estimate_people_pose
from page4d.rig.person_pairs import PersonPairs, pair_people
from page4d.rig.records import Lens, Tracklet, ViewPeople

Array = NDArray[np.float64]

_MAX_HYPOTHESES = 4
"""Pairs of tracklets that give hypotheses at every offset; the pose at the best offset is tried at all others."""


def shifted_people(people: ViewPeople, shift: float, num_instants: int) -> ViewPeople:
    """Return people as seen by a view whose clock is ahead by `shift` instants: instant t shows t + shift.

    Keypoints between instants are interpolated between neighbouring instants, not over gaps of a tracklet, so the
    instants must be close in time. Instants outside [0, T) are left out.
    """
    shifted = (_shifted(tracklet, shift, num_instants) for tracklet in people.tracklets)
    return ViewPeople(tracklets=tuple(tracklet for tracklet in shifted if len(tracklet.instants)))


def score_offsets(
    first: ViewPeople,
    second: ViewPeople,
    lenses: tuple[Lens, Lens],
    shifts: Sequence[float],
    num_instants: int,
    pose: RelativePose | None = None,
    seed: int = 0,
) -> Float[Array, " S"]:
    """Return the pair score in [0, 1] at each of S offsets: where the second view lags by `shifts` instants.

    With a `pose` only its score is computed; without, a pose is estimated at every offset. The score is zero at
    offsets that leave fewer than `MIN_INSTANTS` common instants. The curve peaks at the true offset if people move.
    """
    pairs = [
        pair_people(first, shifted_people(second, shift, num_instants), lenses, num_instants) for shift in shifts
    ]
    usable = [index for index, people in enumerate(pairs) if people.common_instants >= MIN_INSTANTS]
    scores = np.zeros(len(pairs))
    if pose is not None:
        scores[usable] = [pairs[index].assign(pose)[1] for index in usable]
        return scores
    found = {index: estimate_people_pose(pairs[index], seed, max_singles=_MAX_HYPOTHESES) for index in usable}
    best = max((pose for pose in found.values() if pose is not None), key=lambda one: one.score, default=None)
    if best is not None:
        scores[usable] = [_best_score(pairs[index], found[index], best) for index in usable]
    return scores


def _best_score(people: PersonPairs, found: PeoplePose | None, best: PeoplePose) -> float:
    """Return the higher score of the pose found at an offset and the refined pose of the best offset."""
    again = best_people_pose(people, [best.pose])
    return max(one.score for one in (found, again) if one is not None)


def _shifted(tracklet: Tracklet, shift: float, num_instants: int) -> Tracklet:
    whole = int(np.floor(shift))
    part = shift - whole
    instants = tracklet.instants - whole
    if not part:
        kept = (instants >= 0) & (instants < num_instants)
        return Tracklet(instants=instants[kept], joints=tracklet.joints[kept], visibility=tracklet.visibility[kept])
    left = np.flatnonzero((np.diff(tracklet.instants) == 1) & (instants[:-1] >= 0) & (instants[:-1] < num_instants))
    return replace(
        tracklet,
        instants=instants[left],
        joints=(1 - part) * tracklet.joints[left] + part * tracklet.joints[left + 1],
        visibility=np.minimum(tracklet.visibility[left], tracklet.visibility[left + 1]),
    )
