"""Tracks: observations of one scene point in several views, merged from the matches of accepted pairs of views."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.rig.records import Array, Evidence, PairPose

NUM_JOINTS = 33
"""Landmarks of BlazePose."""

_Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Tracks:
    """N observations of P scene points, ordered by point, at most one per point and view.

    `pixels` are undistorted original pixels, `weights` in (0, 1]. Per point, `person` is the index of the person at
    one instant that it belongs to, `instant` and `joint` those of the keypoint; all three are -1 for texture.
    """

    view: Int[_Indices, " N"]
    point: Int[_Indices, " N"]
    pixels: Float[Array, "N 2"]
    weights: Float[Array, " N"]
    person: Int[_Indices, " P"]
    instant: Int[_Indices, " P"]
    joint: Int[_Indices, " P"]

    @property
    def num_points(self) -> int:
        """Number of scene points P."""
        return len(self.person)

    @property
    def is_people(self) -> Bool[NDArray[np.bool_], " N"]:
        """Whether each observation is a body keypoint."""
        people: NDArray[np.bool_] = self.joint[self.point] >= 0
        return people

    def select(self, observations: Bool[NDArray[np.bool_], " N"]) -> "Tracks":
        """Keep some observations; points with fewer than two of them are dropped."""
        count = np.bincount(self.point[observations], minlength=self.num_points)
        kept = observations & (count >= 2)[self.point]
        points, renumbered = np.unique(self.point[kept], return_inverse=True)
        return Tracks(
            view=self.view[kept],
            point=renumbered,
            pixels=self.pixels[kept],
            weights=self.weights[kept],
            person=self.person[points],
            instant=self.instant[points],
            joint=self.joint[points],
        )


def merge_tracks(pairs: Sequence[PairPose], num_instants: int) -> Tracks:
    """Merge the matches of pairs into tracks.

    Persons (per instant) and texture features that are matched in several pairs become one, in order of the pairs'
    scores; a match that would join two persons or features of one view is ignored.
    """
    ranked = sorted(pairs, key=lambda pair: (-pair.score, pair.first, pair.second))
    parts = [_merge(ranked, evidence, num_instants) for evidence in Evidence]
    sizes = np.cumsum([0, *(part.num_points for part in parts)])
    persons = np.cumsum([0, *(part.person.max(initial=-1) + 1 for part in parts)])
    return Tracks(
        view=np.concatenate([part.view for part in parts]),
        point=np.concatenate([part.point + size for part, size in zip(parts, sizes[:-1], strict=True)]),
        pixels=np.concatenate([part.pixels for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
        person=np.concatenate(
            [
                np.where(part.person >= 0, part.person + offset, -1)
                for part, offset in zip(parts, persons[:-1], strict=True)
            ]
        ),
        instant=np.concatenate([part.instant for part in parts]),
        joint=np.concatenate([part.joint for part in parts]),
    )


def _merge(pairs: Sequence[PairPose], evidence: Evidence, num_instants: int) -> Tracks:
    matches = [(pair, pair.matches) for pair in pairs if pair.evidence is evidence and pair.matches is not None]
    joints = NUM_JOINTS if evidence is Evidence.PEOPLE else 1
    groups = _Groups()
    for pair, match in matches:
        linked, count = np.unique(
            np.stack([match.first_ids // joints, match.second_ids // joints]), axis=1, return_counts=True
        )
        for index in np.argsort(-count, kind="stable"):
            groups.join((pair.first, int(linked[0, index])), (pair.second, int(linked[1, index])))
    sides = [
        (np.full(len(ids), view), ids, pixels, match.weights)
        for pair, match in matches
        for view, ids, pixels in (
            (pair.first, match.first_ids, match.first),
            (pair.second, match.second_ids, match.second),
        )
    ]
    empty = np.zeros(0, np.int64)
    if not sides:
        none = np.zeros(0)
        return Tracks(
            view=empty, point=empty, pixels=np.zeros((0, 2)), weights=none, person=empty, instant=empty, joint=empty
        )
    views, ids, pixels, weights = (np.concatenate(column) for column in zip(*sides, strict=True))
    (view, identity), first, inverse = np.unique(
        np.stack([views, ids]), axis=1, return_index=True, return_inverse=True
    )
    inverse = inverse.reshape(-1)
    weight = np.bincount(inverse, weights=weights) / np.bincount(inverse)
    group = np.array([groups.number((int(v), int(i))) for v, i in zip(view, identity // joints, strict=True)])
    key, point = np.unique(group * joints + identity % joints, return_inverse=True)
    order = np.lexsort((view, point))
    people = evidence is Evidence.PEOPLE
    instant = np.zeros(len(key), np.int64)
    instant[point] = (identity // joints) % max(num_instants, 1)
    minus = np.full(len(key), -1)
    return Tracks(
        view=view[order],
        point=point[order],
        pixels=pixels[first][order],
        weights=weight[order],
        person=key // joints if people else minus,
        instant=instant if people else minus,
        joint=key % joints if people else minus,
    ).select(np.ones(len(order), bool))


_Member = tuple[int, int]
"""A view, and a person or feature in it."""


class _Groups:
    """Disjoint sets of members with at most one member per view."""

    def __init__(self) -> None:
        self._group: dict[_Member, int] = {}
        self._members: list[list[_Member]] = []

    def number(self, member: _Member) -> int:
        """Return the number of the member's group."""
        if member not in self._group:
            self._group[member] = len(self._members)
            self._members.append([member])
        return self._group[member]

    def join(self, first: _Member, second: _Member) -> None:
        """Join two groups unless both have a member of one view."""
        one, other = self.number(first), self.number(second)
        views = {view for view, _ in self._members[one]}
        if one == other or any(view in views for view, _ in self._members[other]):
            return
        for member in self._members[other]:
            self._group[member] = one
        self._members[one] += self._members[other]
        self._members[other] = []
