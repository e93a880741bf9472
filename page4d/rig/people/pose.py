"""The relative pose of two static views from people who move in both, with a gate that refuses chance agreement."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from page4d.rig import epipolar
from page4d.rig.epipolar import RelativePose
from page4d.rig.people.pairs import (
    TOLERANCE,
    PersonPairs,
    exchange_sides,
    matches_of,
    pair_people,
    resolve_sides,
    rows_of_tracklets,
)
from page4d.rig.records import Evidence, Lens, Pair, PairPose, ViewPeople, direction_angle_deg, rotation_angle_deg

MIN_SCORE = 0.43
"""Score of accepted pairs: wrong poses of rigs in the laboratory reach 0.4, true ones 0.5 to 0.8."""

MIN_RATIO = 1.4
"""Score of accepted pairs divided by that of permuted instants: right pairs have 1.6 to 4.9."""

MAX_JACKKNIFE_DEG = 3.0
"""Change of rotation between halves of the instants: the bias of keypoints is 1 to 3 degrees."""

MIN_PARALLAX_DEG = 1.0
"""Median angle between the rays of a joint below which any direction fits: views at one place have up to 0.5."""

MIN_INSTANTS = 25
"""Common instants of accepted pairs: 25 register a rig, 13 lose a camera."""

MIN_COMMON_INSTANTS = 8
"""Common instants of two tracklets that give a hypothesis."""

STILL_SCORE, STILL_RATIO = 0.65, 1.15
"""Score, and its ratio to that of permuted instants, from which people who hardly move are the same in two views:
different ones of `sports3` and `treadmill` score at most 0.51; one who never moves agrees on a wrong pose, at 1.05.
"""

MIN_FIT = 0.5
"""Share of the joints that fit a right pose from texture: 0.85 and more, wrong ones of simulated rigs up to 0.05."""

NUM_CONTROLS = 3
"""Random permutations of the instants."""

_ROUNDS = 3
"""Rounds of assignment and refinement; more do not change the assignment."""

_MAX_SINGLES = 12
_MAX_DOUBLES = 8
_NUM_REFINED = 2
"""Bounds of the cost: hypotheses from pairs of tracklets and from two such pairs, and how many are refined."""

_QUICK_SINGLES, _QUICK_POINTS, _QUICK_ITERATIONS, _QUICK_ROUNDS, _QUICK_STEPS = 4, 500, 100, 2, 8
"""Bounds of a quick estimate: hypotheses, joints and iterations of each, rounds, and steps of each; a score needs the
pose to a degree only."""

_HYPOTHESIS_TOLERANCE = TOLERANCE / 2
_CAUCHY_SCALE = TOLERANCE / 3


@dataclass(frozen=True, kw_only=True)
class PeoplePose:
    """A relative pose, its score, and the pairs of people that agree with it."""

    pose: RelativePose
    score: float
    matched: PersonPairs


def register_people_pair(
    first: ViewPeople,
    second: ViewPeople,
    lenses: tuple[Lens, Lens],
    views: Pair,
    num_instants: int,
    seed: int = 0,
    initial: PairPose | None = None,
) -> PairPose:
    """Estimate the relative pose of two views from people, with its evidence.

    `num_instants` is the number T of sampled instants. `initial`, an accepted pair of another focal length, replaces
    the control, which hardly depends on it, and the search for hypotheses unless people fit its pose no more. Where
    the pose model confuses left and right over a tracklet, pose and matches use the exchanged sides; the score does
    not. The result depends only on the arguments. A pair without common people has no pose.
    """
    people = pair_people(first, second, lenses)
    known = initial if initial is not None and initial.is_accepted else None
    found = None if known is None else _estimated_again(people, known, seed)
    if found is None or found.score < MIN_SCORE:
        found = estimate_people_pose(people, seed)
    common = people.common_instants
    pair = PairPose(views=views, evidence=Evidence.PEOPLE, num_instants=common)
    if found is None:
        reason = f"{common} common instants with people, needs {MIN_INSTANTS}" if common < MIN_INSTANTS else "no pose"
        return replace(pair, reason=reason)
    control = _control(first, second, lenses, num_instants, seed) if known is None else known.control
    exchanged = pair_people(first, exchange_sides(second), lenses)
    resolved = resolve_sides(people, exchanged, found.pose)
    final = _refined(resolved, _assigned(resolved, found.pose))
    jackknife = _jackknife_deg(final, seed)
    matches, residual = matches_of(final.matched, final.pose, num_instants)
    return replace(
        pair,
        rotation=final.pose.rotation,
        direction=final.pose.direction,
        score=found.score,
        control=control,
        jackknife_deg=jackknife,
        residual_px=residual,
        matches=matches,
        reason=_refusal(found.score, control, jackknife, common) or _without_parallax(final),
    )


def estimate_people_pose(people: PersonPairs, seed: int = 0) -> PeoplePose | None:
    """Return the pose with the highest score; None if no two people have enough common instants.

    Hypotheses come from pairs of tracklets, each assumed to be one person, and from two such pairs together.
    """
    singles = []
    groups = [rows for rows in rows_of_tracklets(people) if len(rows) >= MIN_COMMON_INSTANTS]
    for rows in sorted(groups, key=lambda rows: -float(people.weights[rows].sum()))[:_MAX_SINGLES]:
        pose = _hypothesis(people.subset(rows), seed)
        if pose is not None:
            singles.append((float(people.support(pose)[rows].sum()), rows, pose))
    singles.sort(key=lambda single: -single[0])
    poses = [pose for _, _, pose in singles]
    doubles = [
        (left + right, np.concatenate([rows, other]))
        for index, (left, rows, _) in enumerate(singles)
        for right, other, _ in singles[:index]
        if _compatible(people, rows, other)
    ]
    doubles.sort(key=lambda double: -double[0])
    for _, rows in doubles[:_MAX_DOUBLES]:
        pose = _hypothesis(people.subset(rows), seed)
        if pose is not None:
            poses.append(pose)
    return best_people_pose(people, poses)


def quick_people_pose(people: PersonPairs, start: RelativePose | None = None) -> PeoplePose | None:
    """Estimate the pose of a pair quickly, without a gate; None if no pose has support.

    Hypotheses are those of the pairs of tracklets with the most common instants, and a `start`.
    """
    poses = [] if start is None else [start]
    for rows in sorted(rows_of_tracklets(people), key=lambda rows: -len(rows))[:_QUICK_SINGLES]:
        first, second, _ = people.subset(rows).points()
        pose = epipolar.estimate_pose(first, second, _HYPOTHESIS_TOLERANCE, 0, _QUICK_POINTS, _QUICK_ITERATIONS)
        poses += [] if pose is None else [pose]
    if not poses:
        return None
    best = max((_assigned(people, pose) for pose in poses), key=lambda found: found.score)
    found = _refined(people, best, _QUICK_ROUNDS, _QUICK_STEPS)
    return found if found.score > 0 else None


def best_people_pose(people: PersonPairs, poses: list[RelativePose]) -> PeoplePose | None:
    """Refine the best of some poses by rounds of assignment and adjustment; None without poses."""
    ranked = sorted((_assigned(people, pose) for pose in poses), key=lambda found: -found.score)
    refined = [_refined(people, found) for found in ranked[:_NUM_REFINED]]
    return max(refined, key=lambda found: found.score, default=None)


def _assigned(people: PersonPairs, pose: RelativePose) -> PeoplePose:
    chosen, score = people.assign(pose)
    return PeoplePose(pose=pose, score=score, matched=people.subset(chosen))


def _refined(
    people: PersonPairs, start: PeoplePose, rounds: int = _ROUNDS, max_steps: int = epipolar.MAX_STEPS
) -> PeoplePose:
    best = found = start
    for _ in range(rounds):
        if not len(found.matched.instants):
            break
        found = _assigned(people, epipolar.refine_pose(found.pose, *found.matched.points(), _CAUCHY_SCALE, max_steps))
        best = max(best, found, key=lambda one: one.score)
    return best


def _hypothesis(people: PersonPairs, seed: int) -> RelativePose | None:
    first, second, _ = people.points()
    return epipolar.estimate_pose(first, second, _HYPOTHESIS_TOLERANCE, seed)


def _compatible(people: PersonPairs, rows: NDArray[np.intp], other: NDArray[np.intp]) -> bool:
    """Return whether two pairs of tracklets can both be right: at no instant one person is two."""
    same_first = people.first_tracklets[rows[0]] == people.first_tracklets[other[0]]
    same_second = people.second_tracklets[rows[0]] == people.second_tracklets[other[0]]
    return not ((same_first or same_second) and np.isin(people.instants[rows], people.instants[other]).any())


def _estimated_again(people: PersonPairs, known: PairPose, seed: int) -> PeoplePose | None:
    pose = epipolar.pose_of(known)
    chosen, _ = people.assign(pose)
    again = _hypothesis(people.subset(chosen), seed)
    return best_people_pose(people, [pose] if again is None else [pose, again])


def _control(first: ViewPeople, second: ViewPeople, lenses: tuple[Lens, Lens], num_instants: int, seed: int) -> float:
    """Return the best score of the same estimation with permuted instants, where people agree only by chance."""
    rng = np.random.default_rng(seed)
    best = 0.0
    for _ in range(NUM_CONTROLS):
        people = pair_people(first, second, lenses, rng.permutation(num_instants))
        found = estimate_people_pose(people, seed)
        best = max(best, found.score if found is not None else 0.0)
    return best


def _jackknife_deg(found: PeoplePose, seed: int) -> float:
    """Return the median change of rotation where the pose is estimated from halves of the instants."""
    instants = np.unique(found.matched.instants)
    middle = len(instants) // 2
    halves = (instants[:middle], instants[middle:], instants[::2], instants[1::2])
    changes = []
    for half in halves:
        people = found.matched.at_instants(half)
        pose = _hypothesis(people, seed)
        if pose is None:
            return 180.0
        pose = epipolar.refine_pose(pose, *people.points(), scale=_CAUCHY_SCALE)
        changes.append(rotation_angle_deg(pose.rotation, found.pose.rotation))
    return float(np.median(changes))


def _without_parallax(found: PeoplePose) -> str:
    """Return why a pose has no direction, empty if it has one."""
    first, second = map(epipolar.unit_rays, found.matched.points()[:2])
    parallax = float(np.median(direction_angle_deg(first @ found.pose.rotation.T, second)))
    if parallax >= MIN_PARALLAX_DEG:
        return ""
    return f"a median parallax of {parallax:.1f} degrees: the views are at one place"


def are_agreed(pair: PairPose) -> bool:
    """Return whether people agree on some pose of a pair, not by chance; its precision is of no account."""
    return pair.rotation is not None and not _refusal(pair.score, pair.control, 0.0, pair.num_instants)


def share_of_people(people: PairPose | None, pose: RelativePose | None, lenses: tuple[Lens, Lens]) -> float | None:
    """Return the share of joints that fit a pose; None unless people agree on a pose of their own, not by chance.

    The precision of their own pose is of no account.
    """
    if people is None or people.matches is None or pose is None:
        return None
    are_still = people.score >= max(STILL_SCORE, STILL_RATIO * (people.control or 0.0))
    if _refusal(people.score, None if are_still else people.control, 0.0, people.num_instants):
        return None
    first, second = (
        epipolar.normalized_points(points, lens)
        for points, lens in zip((people.matches.first, people.matches.second), lenses, strict=True)
    )
    errors = np.abs(epipolar.sampson_errors(pose.essential, first, second))
    return float(np.average(errors < TOLERANCE, weights=people.matches.weights))


def _refusal(score: float, control: float | None, jackknife_deg: float, num_instants: int) -> str:
    """Return why a pair is not accepted, with figures; empty for accepted pairs."""
    reasons = []
    if num_instants < MIN_INSTANTS:
        reasons.append(f"{num_instants} common instants with people, needs {MIN_INSTANTS}")
    if score < MIN_SCORE:
        reasons.append(f"score {score:.2f}, needs {MIN_SCORE:.2f}")
    if control is not None and score < MIN_RATIO * control:
        reasons.append(f"score {score:.2f} against {control:.2f} with permuted instants, needs {MIN_RATIO:.1f} times")
    if jackknife_deg > MAX_JACKKNIFE_DEG:
        reasons.append(
            f"halves of the instants differ by {jackknife_deg:.1f} degrees, allowed are {MAX_JACKKNIFE_DEG:.0f}"
        )
    return "; ".join(reasons)
