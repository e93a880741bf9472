"""How well body keypoints of two views fit a pose, with an assignment of people per instant, and a quick estimate."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.rig.epipolar import (
    RelativePose,
    estimate_pose,
    in_front,
    normalized_points,
    refine_pose,
    relative_pose_of,
    sampson_errors,
)
from page4d.rig.records import Array, Lens, ViewPeople

TOLERANCE = 0.009
"""Sampson error, in units of the focal length, at which a joint no longer supports a pose: 15 px at 1920 px."""

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
