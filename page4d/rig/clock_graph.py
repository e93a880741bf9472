"""Joint offsets between the clocks of all views: those at which the evidence of all pairs together is highest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from page4d.rig.records import Array

PEAK_WIDTH = 6
"""Instants around the best offset that are attributed to its peak."""

ALL_GROUPS = 8
"""Views up to which all groups are moved; of more views, runs of consecutive ones."""

_STARTS = 3
"""Offsets of each pair from which a search starts."""

_TIE = 1e-6
"""Evidence that an instant of offset costs: it decides between equal offsets only."""

Offsets = Int[NDArray[np.int64], " V"]


@dataclass(frozen=True, kw_only=True)
class PairEvidence:
    """Evidence [2 M + 1], 0 or more, that the second view is ahead of the first one by -M .. M instants."""

    views: tuple[int, int]
    values: Float[Array, " N"]

    @property
    def max_offset(self) -> int:
        """Largest offset M."""
        return len(self.values) // 2

    def at(self, offsets: Int[NDArray[np.int64], " n"]) -> Float[Array, " n"]:
        """Return the evidence of offsets, 0 for those beyond M."""
        places = offsets + self.max_offset
        inside = (places >= 0) & (places < len(self.values))
        return np.where(inside, self.values[np.clip(places, 0, len(self.values) - 1)], 0.0)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Evidence of the pairs between `group` and the other views: as placed, and at the best other offset `by`."""

    group: tuple[int, ...]
    placed: float
    other: float
    by: int

    @property
    def ratio(self) -> float:
        """Evidence of the other offset as a share of that as placed, 1 without evidence."""
        return self.other / self.placed if self.placed > 1e-3 else 1.0


def groups(number: int) -> Iterator[tuple[int, ...]]:
    """Return groups of views without the first one, the smallest first: their complements are cuts too."""
    for size in range(1, number):
        if number <= ALL_GROUPS:
            yield from combinations(range(1, number), size)
        else:
            yield from (tuple(range(start, start + size)) for start in range(1, number - size + 1))


def joint_offsets(number: int, pairs: Sequence[PairEvidence]) -> Offsets:
    """Return the instants by which views are ahead of the first one that maximise the sum of the evidence.

    Views are placed one after the other, from the best offsets of each pair, then single views and groups of views
    are moved while that increases the sum.
    """
    best, best_sum = np.zeros(number, np.int64), -np.inf
    for start in _starts(number, pairs):
        ahead = _ascend(pairs, start, [(view,) for view in range(number)])
        total = _total(pairs, ahead)
        if total > best_sum:
            best, best_sum = ahead, total
    best = _ascend(pairs, best, list(groups(number)))
    return np.asarray(best - best[0])


def cut(pairs: Sequence[PairEvidence], ahead: Offsets, group: tuple[int, ...]) -> Cut:
    """Return the evidence of the pairs between a group and the other views, and that at its best other offset."""
    moves = _moves(pairs)
    evidence = _moved(pairs, ahead, group, moves)
    apart = np.abs(moves) > PEAK_WIDTH
    other = int(np.argmax(np.where(apart, evidence, -np.inf)))
    placed = float(evidence[len(moves) // 2])
    return Cut(group=group, placed=placed, other=max(0.0, float(evidence[other])), by=int(moves[other]))


def _moves(pairs: Sequence[PairEvidence]) -> Int[NDArray[np.int64], " n"]:
    limit = 2 * max((pair.max_offset for pair in pairs), default=0)
    return np.arange(-limit, limit + 1)


def _moved(
    pairs: Sequence[PairEvidence], ahead: Offsets, group: tuple[int, ...], moves: Int[NDArray[np.int64], " n"]
) -> Float[Array, " n"]:
    """Return the evidence of the pairs between a group and the other views after each move of the group."""
    total = np.zeros(len(moves))
    for pair in pairs:
        first, second = pair.views
        if (first in group) != (second in group):
            offsets = ahead[second] - ahead[first] + (moves if second in group else -moves)
            total += pair.at(offsets) - _TIE * np.abs(offsets)
    return total


def _ascend(pairs: Sequence[PairEvidence], start: Offsets, group_list: Sequence[tuple[int, ...]]) -> Offsets:
    ahead, moves = start.copy(), _moves(pairs)
    improved = True
    while improved:
        improved = False
        for group in group_list:
            evidence = _moved(pairs, ahead, group, moves)
            best = int(np.argmax(evidence))
            if evidence[best] > evidence[len(moves) // 2] + 1e-9:
                ahead[list(group)] += moves[best]
                improved = True
    return ahead


def _total(pairs: Sequence[PairEvidence], ahead: Offsets) -> float:
    offsets = [np.array([ahead[pair.views[1]] - ahead[pair.views[0]]]) for pair in pairs]
    return float(sum(pair.at(one)[0] - _TIE * abs(one[0]) for pair, one in zip(pairs, offsets, strict=True)))


def _starts(number: int, pairs: Sequence[PairEvidence]) -> Iterator[Offsets]:
    yield np.zeros(number, np.int64)
    moves = _moves(pairs)
    for pair in pairs:
        left = pair.values.copy()
        for _ in range(_STARTS):
            peak = int(np.argmax(left))
            if left[peak] <= 0:
                break
            left[max(0, peak - PEAK_WIDTH) : peak + PEAK_WIDTH + 1] = 0.0
            ahead = np.zeros(number, np.int64)
            ahead[pair.views[1]] = peak - pair.max_offset
            placed = set(pair.views)
            while len(placed) < number:
                options = []
                for view in set(range(number)) - placed:
                    known = [p for p in pairs if view in p.views and placed & set(p.views)]
                    evidence = _moved(known, ahead, (view,), moves)
                    options.append((float(evidence.max()), -view, int(moves[np.argmax(evidence)])))
                _, view, move = max(options)
                ahead[-view] += move
                placed.add(-view)
            yield ahead
