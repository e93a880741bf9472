"""People of two views at common instants: which of them are the same person under a relative pose, and how well."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from page4d.geometry.time_axis import spread_places
from page4d.rig.epipolar import RelativePose, in_front, normalized_points, pixels_of, sampson_errors
from page4d.rig.records import EXCHANGED_JOINTS, Array, Indices, Lens, PointMatches, ViewPeople

TOLERANCE = 0.009
"""Sampson error without support, in units of the focal length: 15 px at 1920 pixels and 60 degrees."""

MIN_PERSON_SUPPORT = 0.3
"""Share of a person's weight that supports a pose, below which two people are not the same person."""

MIN_PERSON_WEIGHT = 4.0
"""Weight that a person's support is divided by at least: four joints in view are no evidence of a person."""

MIN_IN_FRONT = 0.5
"""Share of a person's joints in front of both cameras from which a person with `front_by_person` counts."""

MIN_JOINT_WEIGHT = 0.1
"""Visibility below which a joint is not used; results do not change between 0.1 and 0.7."""


MIN_EXCHANGE_GAIN = 0.2
"""Increase of the mean support of two tracklets by exchanging sides that indicates sides confused by the pose model.

On a real rig it is 0.33 to 0.49 for a tracklet filmed from behind, and negative for all others.
"""


@dataclass(frozen=True, kw_only=True)
class PersonPairs:
    """All C pairs of a person in the first view and a person in the second at one instant.

    Points are normalised image coordinates of both `lenses`, weights in [0, 1] are zero for joints that are not used.
    `possible` is the largest number of people who can be paired: the sum over instants of the smaller number of
    people. Where `exchanged`, left joints of the first view are paired with right joints of the second. Joints
    behind a camera do not support a pose; `front_by_person`, a person with most joints in front supports it with all
    joints, others with none: so scores of wrong clocks differ less, and the peak of the right one stands out more.
    """

    lenses: tuple[Lens, Lens]

    instants: Int[Indices, " C"]
    first_tracklets: Int[Indices, " C"]
    second_tracklets: Int[Indices, " C"]
    first: Float[Array, "C J 2"]
    second: Float[Array, "C J 2"]
    weights: Float[Array, "C J"]
    exchanged: Bool[NDArray[np.bool_], " C"]
    possible: int
    front_by_person: bool = False

    @property
    def common_instants(self) -> int:
        """Number of instants at which both views have people."""
        return len(np.unique(self.instants))

    @cached_property
    def _persons(self) -> tuple[Indices, Indices]:
        """Ranks of the persons of both views, in order of instants."""
        first, second = (
            np.unique(_numbered(self.instants, tracklets), return_inverse=True)[1]
            for tracklets in (self.first_tracklets, self.second_tracklets)
        )
        return first, second

    def subset(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> "PersonPairs":
        """Return some of the pairs."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def at_instants(self, instants: Indices) -> "PersonPairs":
        """Return the pairs at some instants, with the number of people who can be paired there."""
        part = self.subset(np.isin(self.instants, instants))
        return replace(part, possible=_possible(part.instants, part.first_tracklets, part.second_tracklets))

    def thinned(self, max_instants: int) -> "PersonPairs":
        """Return the pairs at no more than `max_instants` instants, spread evenly."""
        present = np.unique(self.instants)
        few = present[spread_places(len(present), max_instants)]
        return self if len(few) == len(present) else self.at_instants(few)

    def shuffled(self) -> "PersonPairs":
        """Return the people of the first view with those of other instants of the second: they agree by chance."""
        order = np.random.default_rng(0).permutation(len(self.instants))
        return replace(self, second=self.second[order], weights=np.sqrt(self.weights * self.weights[order]))

    def through(self, lenses: tuple[Lens, Lens]) -> "PersonPairs":
        """Return the pairs with the normalised coordinates that their pixels have in other lenses."""
        if all(lens is own for lens, own in zip(lenses, self.lenses, strict=True)):
            return self
        first, second = (
            normalized_points(pixels_of(points, own), lens)
            for points, own, lens in zip((self.first, self.second), self.lenses, lenses, strict=True)
        )
        return replace(self, first=first, second=second, lenses=lenses)

    def with_sides_exchanged(self) -> "PersonPairs":
        """Return the pairs with left and right joints of the first view exchanged, as in mirrored pictures."""
        weights = np.sqrt(self.weights * self.weights[:, EXCHANGED_JOINTS])
        return replace(self, first=self.first[:, EXCHANGED_JOINTS], weights=weights, exchanged=~self.exchanged)

    def points(self) -> tuple[Float[Array, "K 2"], Float[Array, "K 2"], Float[Array, " K"]]:
        """Return the points of both views and their weights, without joints that are not used."""
        used = self.weights > 0
        return self.first[used], self.second[used], self.weights[used]

    def support(self, pose: RelativePose, tolerance: float = TOLERANCE) -> Float[Array, " C"]:
        """Return the support of a pose by every pair in [0, 1]: the weighted mean of 1 - (error / tolerance)^2."""
        first, second = self.first.reshape(-1, 2), self.second.reshape(-1, 2)
        errors = sampson_errors(pose.essential, first, second)
        front = in_front(pose, first, second).reshape(self.weights.shape)
        if self.front_by_person:
            front = front.mean(-1, keepdims=True) >= MIN_IN_FRONT
        supports = np.maximum(0.0, 1 - np.square(errors / tolerance)).reshape(self.weights.shape) * front
        total = np.maximum(self.weights.sum(-1), MIN_PERSON_WEIGHT)
        support: Array = (self.weights * supports).sum(-1) / total
        return support

    def assign(self, pose: RelativePose | None, tolerance: float = TOLERANCE) -> tuple[NDArray[np.intp], float]:
        """Return the pairs that are the same person under a pose, and the score of the pose in [0, 1].

        At every instant the assignment maximises the total support; nobody supports the pose None of cameras at one
        position.

        Source: Kuhn, "The Hungarian method for the assignment problem", 1955.
        """
        if pose is None:
            return np.zeros(0, dtype=np.intp), 0.0
        support = self.support(pose, tolerance)
        kept = np.flatnonzero(support >= MIN_PERSON_SUPPORT)
        chosen = kept[_without_conflicts(self, kept, support)]
        return chosen, float(support[chosen].sum()) / max(self.possible, 1)


_COLUMNS = ("instants", "first_tracklets", "second_tracklets", "first", "second", "weights", "exchanged")


def pair_people(
    first: ViewPeople,
    second: ViewPeople,
    lenses: tuple[Lens, Lens],
    order: Indices | None = None,
    *,
    shift: int = 0,
    front_by_person: bool = False,
) -> PersonPairs:
    """Return the people of two views at common instants.

    `order` [T] replaces the instants of the second view. With `shift`, instant i of the first view is paired with
    instant i + shift of the second one; `instants` are those of the first.
    """
    both = [
        [replace(tracklet, joints=normalized_points(tracklet.joints, lens)) for tracklet in people]
        for people, lens in zip((first, second), lenses, strict=True)
    ]
    if order is not None:
        moved = [replace(tracklet, instants=order[tracklet.instants]) for tracklet in both[1]]
        both[1] = [tracklet.at(np.argsort(tracklet.instants)) for tracklet in moved]
    num_joints = next((tracklet.joints.shape[1] for tracklets in both for tracklet in tracklets), 0)
    none, points = np.zeros(0, dtype=np.int64), np.zeros((0, num_joints, 2))
    parts = [(none, none, none, points, points, points[..., 0], none > 0)]
    for index, one in enumerate(both[0]):
        for other_index, other in enumerate(both[1]):
            instants, here, there = np.intersect1d(one.instants, other.instants - shift, return_indices=True)
            weights = np.sqrt(one.visibility[here] * other.visibility[there])
            weights = np.where(weights >= MIN_JOINT_WEIGHT, weights, 0.0)
            indices = (np.full(len(instants), index), np.full(len(instants), other_index))
            exchanged = np.zeros(len(instants), dtype=bool)
            parts.append((instants, *indices, one.joints[here], other.joints[there], weights, exchanged))
    columns: dict[str, Any] = dict(zip(_COLUMNS, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    possible = _possible(*(columns[name] for name in _COLUMNS[:3]))
    return PersonPairs(lenses=lenses, possible=possible, front_by_person=front_by_person, **columns)


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
    return tuple(
        replace(one, joints=one.joints[:, EXCHANGED_JOINTS], visibility=one.visibility[:, EXCHANGED_JOINTS])
        for one in people
    )


def rows_of_tracklets(people: PersonPairs) -> list[NDArray[np.intp]]:
    """Return the rows of every pair of tracklets."""
    _, inverse = np.unique(_numbered(people.first_tracklets, people.second_tracklets), return_inverse=True)
    return [np.flatnonzero(inverse == group) for group in range(inverse.max(initial=-1) + 1)]


def matches_of(people: PersonPairs, pose: RelativePose, num_instants: int) -> tuple[PointMatches, float]:
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
        first=pixels_of(people.first[row, joint], people.lenses[0]),
        second=pixels_of(people.second[row, joint], people.lenses[1]),
        weights=people.weights[row, joint],
        first_ids=ids[0],
        second_ids=ids[1],
    )
    focal = np.sqrt(people.lenses[0].focal * people.lenses[1].focal)
    return matches, float(np.median(errors[row, joint]) * focal) if len(row) else 0.0


def _without_conflicts(people: PersonPairs, kept: NDArray[np.intp], support: Array) -> NDArray[np.intp]:
    """Return positions in `kept` such that at no instant a person is in two pairs."""
    first, second = (persons[kept] for persons in people._persons)
    conflicting = (np.bincount(first)[first] > 1) | (np.bincount(second)[second] > 1)
    instants = people.instants[kept]
    contested = np.isin(instants, instants[conflicting])
    chosen = [np.flatnonzero(~contested)]
    order = np.flatnonzero(contested)
    order = order[np.argsort(instants[order], kind="stable")]
    for rows in np.split(order, np.flatnonzero(np.diff(instants[order])) + 1):
        here, there = (persons[rows] - persons[rows].min(initial=len(people.instants)) for persons in (first, second))
        table = np.zeros((here.max(initial=-1) + 1, there.max(initial=-1) + 1))
        place = np.full(table.shape, -1)
        table[here, there], place[here, there] = support[kept[rows]], rows
        found = place[linear_sum_assignment(table, maximize=True)]
        chosen.append(found[found >= 0])
    return np.sort(np.concatenate(chosen))


def _possible(instants: Indices, first: Indices, second: Indices) -> int:
    """Return the sum over instants of the smaller number of people; all pairs of an instant are given."""
    counts = []
    for tracklets in (first, second):
        _, first_rows = np.unique(_numbered(instants, tracklets), return_index=True)
        counts.append(np.unique(instants[first_rows], return_counts=True)[1])
    return int(np.minimum(*counts).sum())


def _numbered(first: Indices, second: Indices) -> Indices:
    """Return a number for each pair of numbers: sorting it is faster than sorting pairs."""
    numbers: Indices = first * (second.max(initial=0) + 1) + second
    return numbers


def common_people(people: Sequence[ViewPeople], num_instants: int) -> Float[NDArray[np.float64], "V V"]:
    """Return, per pair of views, the number of people at common instants."""
    counts = np.zeros((len(people), num_instants))
    for view, found in enumerate(people):
        for tracklet in found:
            counts[view, tracklet.instants] += 1
    return np.asarray(np.minimum(counts[:, None], counts[None]).sum(-1))
