"""Clocks of views from evidence of their pairs: joint offsets in instants, and a fit of offsets and rates to windows.

Joint offsets have the highest evidence of all pairs together. The evidence is that of people or of motion.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.errors import InputError, listed
from page4d.rig.records import Array
from page4d.scene.records import MAX_RATE_ERROR, MIN_RATE_SPAN_S, SYNC_HINT

PEAK_WIDTH = 6
"""Instants around the best offset that are attributed to its peak."""

_VALLEY = 0.9
"""Two offsets are separate peaks if evidence between them falls below this share of the weaker one: that of people
fluctuates by 3 to 6 %."""

_FALL = 0.85
"""Score, as a share of that as placed, below which an offset is excluded."""

ALL_GROUPS = 8
"""Views up to which all groups are moved; of more views, runs of consecutive ones."""

_STARTS = 3
"""Offsets of each pair from which a search starts."""

_TIE = 1e-6
"""Evidence that an instant of offset costs: it decides between equal offsets only."""

_ATTRACTION = 0.012
"""By how many instants offsets of windows are attracted to integers."""

_ROUNDS = 10

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


def paired_views(number: int) -> list[tuple[int, int]]:
    """Return all pairs of up to 8 views, of more the pairs of each view with its next two."""
    pairs = combinations(range(number), 2)
    return [(i, j) for i, j in pairs if number <= ALL_GROUPS or j - i <= 2 or i + number - j <= 2]


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
        total = sum(float(_moved(pairs, ahead, (view,), np.zeros(1, np.int64))[0]) for view in range(number))
        if total > best_sum:
            best, best_sum = ahead, total
    best = _ascend(pairs, best, list(groups(number)))
    return np.asarray(best - best[0])


def cut(pairs: Sequence[PairEvidence], ahead: Offsets, group: tuple[int, ...], peak_width: int | None = None) -> Cut:
    """Return the evidence of the pairs between a group and the other views, and that at its best other offset.

    Other offsets are those beyond `peak_width`, by default beyond a valley: the slope of a wide peak is no other one.
    """
    moves = _moves(pairs)
    evidence, middle = _moved(pairs, ahead, group, moves), len(moves) // 2
    placed = float(evidence[middle])
    if peak_width is None:
        before, after = (np.minimum.accumulate(side) for side in (evidence[middle::-1], evidence[middle:]))
        apart = np.append(before[:0:-1], after) < _VALLEY * np.minimum(evidence, placed)
    else:
        apart = np.abs(moves) > peak_width
    others = np.where(apart, evidence, 0.0)
    other = int(np.argmax(others))
    return Cut(group=group, placed=placed, other=max(0.0, float(others[other])), by=int(moves[other]))


def reaches(number: int, scores: Sequence[PairEvidence], ahead: Offsets) -> Offsets:
    """Return the instants by which each view, alone or in a group, moves until the sum of scores falls clearly."""
    found, moves = np.zeros(number, np.int64), _moves(scores)
    for group in groups(number):
        moved, middle = _moved(scores, ahead, group, moves), len(moves) // 2
        sides = moved[middle::-1], moved[middle:]
        # Peaks are about symmetric, and the search may show little of one side.
        near, far = sorted(int(np.argmax(np.append(side < _FALL * side[0], True))) for side in sides)
        found[list(group)] = np.maximum(found[list(group)], min(far, 2 * near))
    return found


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


def undetermined(what: str, names: Sequence[str], reason: str) -> InputError:
    """Return the error that `what` is not determined of some views for a reason."""
    return InputError(f"{what} {listed(names)}: {reason}", SYNC_HINT)


def check_cuts(
    what: str, names: Sequence[str], cuts: Sequence[Cut], max_ratio: float, reason: Callable[[Cut], str]
) -> None:
    """Refuse clocks if views or groups fit elsewhere with more than a share of the evidence; the smallest are named.

    Raises:
        InputError: with `what` is not determined, the views, and the `reason` of the worst one.
    """
    if not (failed := [one for one in cuts if one.ratio > max_ratio]):
        return
    smaller = {one: min(one.group, tuple(sorted({*range(len(names))} - {*one.group})), key=len) for one in failed}
    size = min(map(len, smaller.values()))
    failed = [one for one in failed if len(smaller[one]) == size]
    worst = max(failed, key=lambda one: one.ratio)
    views = sorted({view for one in (failed if size == 1 else [worst]) for view in smaller[one]})
    raise undetermined(what, [names[view] for view in views], reason(worst))


@dataclass(frozen=True, kw_only=True)
class WindowClocks:
    """By how many seconds each view is ahead of the first one at a `time` of that, with standard deviations.

    A view that is ahead by d shows at t + d of its own time what the first one shows at t. This grows by `drifts` per
    second, 0 where that is not determined; then both deviations include the drift that was found.
    """

    time: float
    ahead: Float[Array, " V"]
    deviations: Float[Array, " V"]
    drifts: Float[Array, " V"]
    drift_deviations: Float[Array, " V"]


@dataclass(frozen=True)
class Measured:
    """Offsets in s of pairs in N windows, times of the first view, weights, and whether a half is the second one."""

    pairs: Int[NDArray[np.int64], "N 2"]
    times: Float[Array, " N"]
    offsets: Float[Array, " N"]
    weights: Float[Array, " N"]
    are_late: Bool[NDArray[np.bool_], " N"]

    def __getitem__(self, chosen: Bool[NDArray[np.bool_], " N"]) -> "Measured":
        return Measured(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def design(self, number: int, time: float) -> Float[Array, "N P"]:
        """Return the derivatives by the offsets of views at a time, and by their drifts (P = 2 V)."""
        of_views = np.eye(number)[self.pairs[:, 1]] - np.eye(number)[self.pairs[:, 0]]
        return np.concatenate([of_views, of_views * (self.times - time)[:, None]], axis=1)


def _fitted(
    measured: Measured, number: int, time: float, drifts: Bool[NDArray[np.bool_], " V"], step_s: float, common: Array
) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
    """Fit offsets at a time and drifts, of the views that have them, relative to the first view; with deviations.

    Iteratively reweighted least squares with the Cauchy loss. Of the pairs of V views only V - 1 are independent.
    """
    free = np.concatenate([np.ones(number, bool), drifts]) & (np.arange(2 * number) % number > 0)
    design = measured.design(number, time)[:, free]
    weights, solution, spread = measured.weights / measured.weights.max(), np.zeros(design.shape[1]), step_s
    for _ in range(_ROUNDS):
        robust = weights / (1 + np.square((measured.offsets - design @ solution) / (2 * spread)))
        normal = design.T @ (design * robust[:, None]) + 1e-9 * np.diag(1 + np.square(design).sum(0))
        solution = np.linalg.solve(normal, design.T @ (robust * measured.offsets))
        squares = float((robust * np.square(measured.offsets - design @ solution)).sum())
        spread = max(np.sqrt(squares / robust.sum()), 1e-3 * step_s)
    variance = squares / max(1, len(design) - design.shape[1]) * number / 2
    span = float(np.ptp(measured.times)) + step_s
    least = np.append(common * step_s, np.full(number, 2 * _ATTRACTION * step_s / span))[free]
    found, deviations = np.zeros(2 * number), np.zeros(2 * number)
    found[free] = solution
    deviations[free] = np.sqrt(np.diag(np.linalg.inv(normal)) * variance + np.square(least))
    return found, deviations


def fitted_clocks(what: str, names: Sequence[str], measured: Measured, step_s: float, common: Array) -> WindowClocks:
    """Fit offsets, and the drifts that are significant.

    `common` [V] is the standard deviation, in instants, of an error of each view that all windows have.

    Raises:
        InputError: with `what` is not determined, if the halves of the capture differ by more than an instant and two
            standard deviations, or a standard deviation is above an instant or four common errors.
    """
    number = len(names)
    low, high = float(measured.times.min()), float(measured.times.max())
    time = (low + high) / 2
    drifts = np.full(number, high - low >= MIN_RATE_SPAN_S)
    unknown = np.zeros(number)
    while True:
        found, deviations = _fitted(measured, number, time, drifts, step_s, common)
        lost = drifts & (deviations[number:] >= MAX_RATE_ERROR * np.abs(found[number:]))
        if not lost[1:].any():
            break
        drifts &= ~lost
        unknown = np.where(lost, np.hypot(found, deviations)[number:], unknown)
    rest = replace(measured, offsets=measured.offsets - measured.design(number, time) @ found)
    early, late = (
        _fitted(rest[half], number, time, np.zeros(number, bool), step_s, common)[0][:number]
        if half.any()
        else np.zeros(number)
        for half in (~measured.are_late, measured.are_late)
    )
    apart, limits = np.abs(late - early), step_s + 2 * deviations[:number]
    if unclear := [name for name, one, limit in zip(names, apart, limits, strict=True) if one > limit]:
        raise undetermined(what, unclear, f"halves of the capture differ by {apart.max():.3f} s")
    limits = np.maximum(1.0, 4 * common) * step_s
    if unclear := [name for name, one, limit in zip(names, deviations[:number], limits, strict=True) if one > limit]:
        raise undetermined(what, unclear, f"it is known to {deviations[:number].max():.3f} s only")
    return WindowClocks(
        time=time,
        ahead=found[:number],
        deviations=np.hypot(np.maximum(deviations[:number], apart / 2), unknown * (high - low) / 12**0.5),
        drifts=found[number:],
        drift_deviations=np.maximum(deviations[number:], unknown),
    )
