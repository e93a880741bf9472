"""People of two views at common instants: which of them are the same person under a relative pose, and how well.

How well body keypoints of two views fit a pose, with an assignment of people per instant, and a quick estimate.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from page4d.rig.epipolar import (
    RelativePose,
    estimate_pose,
    in_front,
    normalized_points,
    refine_pose,
    relative_pose_of,
    sampson_errors,
)
from page4d.rig.records import Array, Lens, PointMatches, Tracklet, ViewPeople

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOLERANCE = 0.009
"""Sampson error without support, in units of the focal length: 15 px at 1920 pixels and 60 degrees."""

MIN_PERSON_SUPPORT = 0.3
"""Share of a person's weight that supports a pose, below which two people are not the same person."""

MIN_PERSON_WEIGHT = 4.0
"""Weight that a person's support is divided by at least: four joints in view are no evidence of a person."""

MIN_JOINT_WEIGHT = 0.1
"""Visibility below which a joint is not used; results do not change between 0.1 and 0.7."""


EXCHANGED_JOINTS = np.array(
    [0, 4, 5, 6, 1, 2, 3, 8, 7, 10, 9, *np.arange(11, 33).reshape(-1, 2)[:, ::-1].ravel()], dtype=np.int64
)
"""For every BlazePose landmark its counterpart on the other side of the body."""

MIN_EXCHANGE_GAIN = 0.2
"""Increase of the mean support of two tracklets by exchanging sides that indicates sides confused by the pose model.

On a real rig it is 0.33 to 0.49 for a tracklet filmed from behind, and negative for all others.
"""


@dataclass(frozen=True, kw_only=True)
class PersonPairs:
    """All C pairs of a person in the first view and a person in the second at one instant.

    Points are normalised image coordinates, weights in [0, 1] are zero for joints that are not used. `possible` is
    the largest number of people who can be paired: the sum over instants of the smaller number of people. Where
    `exchanged`, left joints of the first view are paired with right joints of the second.
    """

    instants: Int[Integers, " C"]
    first_tracklets: Int[Integers, " C"]
    second_tracklets: Int[Integers, " C"]
    first: Float[Floats, "C J 2"]
    second: Float[Floats, "C J 2"]
    weights: Float[Floats, "C J"]
    exchanged: Bool[NDArray[np.bool_], " C"]
    possible: int

    @property
    def common_instants(self) -> int:
        """Number of instants at which both views have people."""
        return len(np.unique(self.instants))

    def subset(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> "PersonPairs":
        """Return some of the pairs."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def at_instants(self, instants: Integers) -> "PersonPairs":
        """Return the pairs at some instants, with the number of people who can be paired there."""
        part = self.subset(np.isin(self.instants, instants))
        return replace(part, possible=_possible(part.instants, part.first_tracklets, part.second_tracklets))

    def points(self) -> tuple[Float[Floats, "K 2"], Float[Floats, "K 2"], Float[Floats, " K"]]:
        """Return the points of both views and their weights, without joints that are not used."""
        used = self.weights > 0
        return self.first[used], self.second[used], self.weights[used]

    def support(self, pose: RelativePose) -> Float[Floats, " C"]:
        """Return the support of a pose by every pair in [0, 1]: the weighted mean of 1 - (error / tolerance)^2."""
        first, second = self.first.reshape(-1, 2), self.second.reshape(-1, 2)
        errors = sampson_errors(pose.essential, first, second)
        supports = np.maximum(0.0, 1 - np.square(errors / TOLERANCE)) * in_front(pose, first, second)
        total = np.maximum(self.weights.sum(-1), MIN_PERSON_WEIGHT)
        support: Floats = (self.weights * supports.reshape(self.weights.shape)).sum(-1) / total
        return support

    def assign(self, pose: RelativePose) -> tuple[NDArray[np.intp], float]:
        """Return the pairs that are the same person under a pose, and the score of the pose in [0, 1].

        At every instant the assignment maximises the total support.

        Source: Kuhn, "The Hungarian method for the assignment problem", 1955.
        """
        support = self.support(pose)
        kept = np.flatnonzero(support >= MIN_PERSON_SUPPORT)
        chosen = kept[_without_conflicts(self, kept, support)]
        return chosen, float(support[chosen].sum()) / max(self.possible, 1)


_COLUMNS = ("instants", "first_tracklets", "second_tracklets", "first", "second", "weights", "exchanged")


def pair_people(
    first: ViewPeople,
    second: ViewPeople,
    lenses: tuple[Lens, Lens],
    num_instants: int,
    order: Integers | None = None,
) -> PersonPairs:
    """Return the people of two views at common instants; `order` [T] replaces the instants of the second view."""
    both = [
        [_normalized(tracklet, lens) for tracklet in people.tracklets]
        for people, lens in zip((first, second), lenses, strict=True)
    ]
    if order is not None:
        both[1] = [_reordered(tracklet, order) for tracklet in both[1]]
    num_joints = next((tracklet.joints.shape[1] for tracklets in both for tracklet in tracklets), 0)
    parts = []
    for index, one in enumerate(both[0]):
        for other_index, other in enumerate(both[1]):
            instants, here, there = np.intersect1d(one.instants, other.instants, return_indices=True)
            weights = np.sqrt(one.visibility[here] * other.visibility[there])
            weights = np.where(weights >= MIN_JOINT_WEIGHT, weights, 0.0)
            indices = (np.full(len(instants), index), np.full(len(instants), other_index))
            parts.append((instants, *indices, one.joints[here], other.joints[there], weights))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        points = np.zeros((0, num_joints, 2))
        parts = [(empty, empty, empty, points, points, np.zeros((0, num_joints)))]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    counts = [np.zeros(num_instants, dtype=np.int64) for _ in both]
    for count, tracklets in zip(counts, both, strict=True):
        for tracklet in tracklets:
            count[tracklet.instants] += 1
    return PersonPairs(
        instants=columns[0],
        first_tracklets=columns[1],
        second_tracklets=columns[2],
        first=columns[3],
        second=columns[4],
        weights=columns[5],
        exchanged=np.zeros(len(columns[0]), dtype=bool),
        possible=int(np.minimum(*counts).sum()),
    )


def resolve_sides(people: PersonPairs, exchanged: PersonPairs, pose: RelativePose) -> PersonPairs:
    """Exchange the sides of tracklets where that fits a pose clearly better.

    A pose model confuses left and right of people filmed from behind, mostly over a whole tracklet. `exchanged` are
    the same pairs with the sides of the second view exchanged.
    """
    gain = exchanged.support(pose) - people.support(pose)
    chosen = np.zeros(len(gain), dtype=bool)
    for rows in rows_of_tracklets(people):
        fits = float(exchanged.subset(rows).support(pose).mean()) >= MIN_PERSON_SUPPORT
        chosen[rows] = fits and float(gain[rows].mean()) >= MIN_EXCHANGE_GAIN
    columns = {}
    for name in ("second", "weights"):
        mask = chosen.reshape(-1, *[1] * (getattr(people, name).ndim - 1))
        columns[name] = np.where(mask, getattr(exchanged, name), getattr(people, name))
    return replace(people, exchanged=chosen, **columns)


def exchange_sides(people: ViewPeople) -> ViewPeople:
    """Exchange left and right joints of all people."""
    tracklets = (
        replace(
            tracklet,
            joints=tracklet.joints[:, EXCHANGED_JOINTS],
            visibility=tracklet.visibility[:, EXCHANGED_JOINTS],
        )
        for tracklet in people.tracklets
    )
    return ViewPeople(tracklets=tuple(tracklets))


def rows_of_tracklets(people: PersonPairs) -> list[NDArray[np.intp]]:
    """Return the rows of every pair of tracklets."""
    _, inverse = np.unique(np.stack([people.first_tracklets, people.second_tracklets]), axis=1, return_inverse=True)
    return [np.flatnonzero(inverse.ravel() == group) for group in range(inverse.max(initial=-1) + 1)]


def matches_of(
    people: PersonPairs, pose: RelativePose, lenses: tuple[Lens, Lens], num_instants: int
) -> tuple[PointMatches, float]:
    """Return the joints in pixels that support a pose, of pairs that are the same person, and their median error.

    The error is in pixels at the geometric mean of both focal lengths; it is zero without matches.
    """
    num_joints = people.weights.shape[1]
    errors = sampson_errors(pose.essential, people.first.reshape(-1, 2), people.second.reshape(-1, 2))
    errors = np.abs(errors).reshape(people.weights.shape)
    row, joint = np.nonzero((people.weights > 0) & (errors < TOLERANCE))
    other = np.where(people.exchanged[row], EXCHANGED_JOINTS[joint], joint)
    ids = [
        (tracklets[row] * num_instants + people.instants[row]) * num_joints + joints
        for tracklets, joints in ((people.first_tracklets, joint), (people.second_tracklets, other))
    ]
    matches = PointMatches(
        first=_pixels(people.first[row, joint], lenses[0]),
        second=_pixels(people.second[row, joint], lenses[1]),
        weights=people.weights[row, joint],
        first_ids=ids[0],
        second_ids=ids[1],
    )
    focal = np.sqrt(lenses[0].focal * lenses[1].focal)
    return matches, float(np.median(errors[row, joint]) * focal) if len(row) else 0.0


def _without_conflicts(people: PersonPairs, kept: NDArray[np.intp], support: Floats) -> NDArray[np.intp]:
    """Return positions in `kept` such that at no instant a person is in two pairs."""
    instants = people.instants[kept]
    conflicting = np.zeros(len(kept), dtype=bool)
    for tracklets in (people.first_tracklets, people.second_tracklets):
        _, inverse, counts = np.unique(
            np.stack([instants, tracklets[kept]]), axis=1, return_inverse=True, return_counts=True
        )
        conflicting |= counts[inverse.ravel()] > 1
    contested = np.isin(instants, instants[conflicting])
    chosen = [np.flatnonzero(~contested)]
    for instant in np.unique(instants[contested]):
        rows = np.flatnonzero(instants == instant)
        here, first = np.unique(people.first_tracklets[kept[rows]], return_inverse=True)
        there, second = np.unique(people.second_tracklets[kept[rows]], return_inverse=True)
        table = np.zeros((len(here), len(there)))
        place = np.full(table.shape, -1)
        table[first, second], place[first, second] = support[kept[rows]], rows
        found = place[linear_sum_assignment(table, maximize=True)]
        chosen.append(found[found >= 0])
    return np.sort(np.concatenate(chosen))


def _possible(instants: Integers, first: Integers, second: Integers) -> int:
    """Return the sum over instants of the smaller number of people; all pairs of an instant are given."""
    counts = []
    for tracklets in (first, second):
        people = np.unique(np.stack([instants, tracklets]), axis=1)[0]
        counts.append(np.unique(people, return_counts=True)[1])
    return int(np.minimum(*counts).sum())


def _normalized(tracklet: Tracklet, lens: Lens) -> Tracklet:
    return replace(tracklet, joints=normalized_points(tracklet.joints, lens))


def _pixels(points: Floats, lens: Lens) -> Floats:
    intrinsics = lens.intrinsics
    pixels: Floats = points @ intrinsics[:2, :2].T + intrinsics[:2, 2]
    return pixels


def _reordered(tracklet: Tracklet, order: Integers) -> Tracklet:
    instants = order[tracklet.instants]
    rows = np.argsort(instants)
    return Tracklet(instants=instants[rows], joints=tracklet.joints[rows], visibility=tracklet.visibility[rows])


MIN_PERSON_SCORE = 0.3
"""Share of supporting joints from which a person counts as the same one in both views."""

MIN_JOINTS = 4.0
"""Visible joints below which a person cannot reach a full score."""

MAX_COMBINATIONS = 4
"""Pairs of people that give a hypothesis: those seen longest together."""

MAX_SAMPLES = 500
"""Joints of one hypothesis: a score needs the pose to a degree only."""

MIN_WEIGHT = 0.3
"""Weight below which a joint is hidden rather than seen."""

_Indices = Int[NDArray[np.int64], " n"]


@dataclass(frozen=True, kw_only=True)
class RigCamera:
    """A calibrated camera of a static rig: lens and `world_to_camera` [4, 4]."""

    lens: Lens
    world_to_camera: Float[Array, "4 4"]

    @property
    def rotation(self) -> Float[Array, "3 3"]:
        """Rotation of the world into the camera."""
        return self.world_to_camera[:3, :3]

    @cached_property
    def center(self) -> Float[Array, " 3"]:
        """Position in the world."""
        return -self.rotation.T @ self.world_to_camera[:3, 3]

    def placed(self, rotation: Float[Array, "3 3"], center: Float[Array, " 3"]) -> "RigCamera":
        """Return a camera with the same lens at another pose."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ center
        return replace(self, world_to_camera=pose)


@dataclass(frozen=True, kw_only=True)
class PairTracks:
    """Joints of two views at n combinations of instant, person of the first view and person of the second.

    Rows are sorted by instant. `first` and `second` are undistorted original pixels. `num_possible` is the number of
    people that both views could share, summed over instants.
    """

    first: Float[Array, "n J 2"]
    second: Float[Array, "n J 2"]
    weights: Float[Array, "n J"]
    instants: _Indices
    first_person: _Indices
    second_person: _Indices
    num_possible: int

    @property
    def num_instants(self) -> int:
        """Number of instants at which both views show people."""
        return len(self.starts)

    @cached_property
    def starts(self) -> _Indices:
        """First row of each instant."""
        return np.flatnonzero(np.diff(self.instants, prepend=-1))

    def thinned(self, max_instants: int) -> "PairTracks":
        """Return at most `max_instants` instants, spread evenly."""
        present = self.instants[self.starts]
        if len(present) <= max_instants:
            return self
        kept = present[np.linspace(0, len(present) - 1, max_instants).round().astype(int)]
        return self.selected(np.isin(self.instants, kept))

    def shuffled(self, seed: int = 0) -> "PairTracks":
        """Return the rows of the first view with those of other instants of the second: nothing can agree."""
        order = np.random.default_rng(seed).permutation(len(self.instants))
        return replace(self, second=self.second[order], weights=np.sqrt(self.weights * self.weights[order]))

    def selected(self, rows: Bool[NDArray[np.bool_], " n"]) -> "PairTracks":
        """Return some instants; `rows` marks all rows of an instant or none."""
        persons = (self.instants[rows], self.first_person[rows], self.second_person[rows])
        return _with_count(self.first[rows], self.second[rows], self.weights[rows], *persons)


def pair_tracks(first: ViewPeople, second: ViewPeople, shift: int = 0) -> PairTracks:
    """Combine all people of two views at instants that both have.

    With `shift`, instant i of the first view is paired with instant i + shift of the second one; `instants` are
    those of the first.
    """
    parts: list[tuple[NDArray[Any], ...]] = []
    for a, one in enumerate(first.tracklets):
        for b, other in enumerate(second.tracklets):
            common, i, j = np.intersect1d(one.instants, other.instants - shift, return_indices=True)
            weights = np.sqrt(np.clip(one.visibility[i], 0, 1) * np.clip(other.visibility[j], 0, 1))
            numbers = (common, np.full_like(common, a), np.full_like(common, b))
            parts.append((one.joints[i], other.joints[j], weights, *numbers))
    if not parts:
        empty = np.zeros(0, np.int64)
        return _with_count(np.zeros((0, 1, 2)), np.zeros((0, 1, 2)), np.zeros((0, 1)), empty, empty, empty)
    arrays = [np.concatenate(part) for part in zip(*parts, strict=True)]
    order = np.argsort(arrays[3], kind="stable")
    return _with_count(*(array[order] for array in arrays))


def _with_count(
    first: Array, second: Array, weights: Array, instants: _Indices, first_person: _Indices, second_person: _Indices
) -> PairTracks:
    def people(persons: _Indices) -> dict[int, int]:
        shown = np.unique(np.stack([instants, persons]), axis=1)[0]
        return dict(zip(*np.unique(shown, return_counts=True), strict=True))

    ones, others = people(first_person), people(second_person)
    return PairTracks(
        first=first,
        second=second,
        weights=weights,
        instants=instants,
        first_person=first_person,
        second_person=second_person,
        num_possible=int(sum(min(ones[instant], others[instant]) for instant in ones)),
    )


def relative_pose(first: RigCamera, second: RigCamera) -> RelativePose | None:
    """Return the pose of the second camera relative to the first; None for cameras at one position."""
    return relative_pose_of(first.world_to_camera, second.world_to_camera)


def person_scores(errors: Float[Array, "n J"], weights: Float[Array, "n J"], tolerance: float) -> Float[Array, " n"]:
    """Return the weighted share of supporting joints of each combination, 0 below `MIN_PERSON_SCORE`."""
    support = (weights * np.maximum(0.0, 1 - np.square(errors / tolerance))).sum(-1)
    scores = support / np.maximum(weights.sum(-1), MIN_JOINTS)
    return np.where(scores >= MIN_PERSON_SCORE, scores, 0.0)


def assigned(tracks: PairTracks, scores: Float[Array, " n"]) -> Bool[NDArray[np.bool_], " n"]:
    """Pair people per instant, the best combination first, each person once."""
    chosen = np.zeros(len(scores), bool)
    left = scores.copy()
    starts = tracks.starts
    group = np.cumsum(np.isin(np.arange(len(scores)), starts)) - 1
    while len(left) and left.max() > 0:
        best = np.maximum.reduceat(left, starts)
        at_best = np.flatnonzero((left == best[group]) & (left > 0))
        rows = at_best[np.unique(group[at_best], return_index=True)[1]]
        chosen[rows] = True
        row_of = np.full(len(starts), -1)
        row_of[group[rows]] = rows
        row = row_of[group]
        taken = (tracks.first_person == tracks.first_person[row]) | (
            tracks.second_person == tracks.second_person[row]
        )
        left[(row >= 0) & taken] = 0.0
    return chosen


def pose_scores(
    tracks: PairTracks, lenses: tuple[Lens, Lens], pose: RelativePose, tolerance: float = TOLERANCE
) -> Float[Array, " n"]:
    """Return the scores of all combinations of people under a pose; 0 where most joints are behind a camera."""
    first, second = (
        normalized_points(points, lens).reshape(-1, 2)
        for points, lens in zip((tracks.first, tracks.second), lenses, strict=True)
    )
    errors = sampson_errors(pose.essential, first, second).reshape(tracks.weights.shape)
    scores = person_scores(errors, tracks.weights, tolerance)
    rows = np.flatnonzero(scores)
    joints = np.arange(len(first)).reshape(tracks.weights.shape)[rows].ravel()
    seen = in_front(pose, first[joints], second[joints]).reshape(len(rows), tracks.weights.shape[1])
    scores[rows[seen.mean(-1) < 0.5]] = 0.0
    return scores


def fit_score(
    tracks: PairTracks, lenses: tuple[Lens, Lens], pose: RelativePose | None, tolerance: float = TOLERANCE
) -> float:
    """Return the support of a pose per possible person and instant, in [0, 1]; 0 without common instants."""
    if tracks.num_possible == 0 or pose is None:
        return 0.0
    scores = pose_scores(tracks, lenses, pose, tolerance)
    return float(scores[assigned(tracks, scores)].sum() / tracks.num_possible)


def camera_score(tracks: PairTracks, first: RigCamera, second: RigCamera, tolerance: float = TOLERANCE) -> float:
    """Return `fit_score` of two calibrated cameras."""
    return fit_score(tracks, (first.lens, second.lens), relative_pose(first, second), tolerance)


def estimate_pair(
    tracks: PairTracks, lenses: tuple[Lens, Lens], tolerance: float = TOLERANCE, seed: int = 0, rounds: int = 2
) -> tuple[RelativePose | None, float]:
    """Estimate the pose of a pair quickly, without a gate; return it with its score.

    Hypotheses are those of the combinations of two people with the most common instants.
    """
    best, best_score = None, 0.0
    points = [normalized_points(p, lens) for p, lens in zip((tracks.first, tracks.second), lenses, strict=True)]
    people, counts = np.unique(np.stack([tracks.first_person, tracks.second_person]), axis=1, return_counts=True)
    for column in np.argsort(-counts, kind="stable")[:MAX_COMBINATIONS]:
        rows = (tracks.first_person == people[0, column]) & (tracks.second_person == people[1, column])
        usable = tracks.weights[rows] > MIN_WEIGHT
        pose = estimate_pose(
            points[0][rows][usable], points[1][rows][usable], tolerance / 2, seed, max_points=MAX_SAMPLES
        )
        score = fit_score(tracks, lenses, pose, tolerance)
        if score > best_score:
            best, best_score = pose, score
    for _ in range(rounds):
        if best is None:
            break
        scores = pose_scores(tracks, lenses, best, tolerance)
        rows = assigned(tracks, scores)
        flat = [p[rows].reshape(-1, 2) for p in points]
        pose = refine_pose(best, flat[0], flat[1], tracks.weights[rows].ravel(), tolerance / 3)
        score = fit_score(tracks, lenses, pose, tolerance)
        if score <= best_score:
            break
        best, best_score = pose, score
    return best, best_score
