"""Offsets between the clocks of static views from body keypoints, per pair of views and jointly.

The offset of a pair is the one at which people fit one relative pose best; joint offsets have the highest evidence of
all pairs together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.errors import InputError, listed
from page4d.rig.people.pairs import PersonPairs, pair_people
from page4d.rig.people.pose import quick_people_pose
from page4d.rig.records import Array, Lens, Tracklet, ViewPeople

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
        total = _total(pairs, ahead)
        if total > best_sum:
            best, best_sum = ahead, total
    best = _ascend(pairs, best, list(groups(number)))
    return np.asarray(best - best[0])


def cut(pairs: Sequence[PairEvidence], ahead: Offsets, group: tuple[int, ...], peak_width: int = PEAK_WIDTH) -> Cut:
    """Return the evidence of the pairs between a group and the other views, and that at its best other offset."""
    moves = _moves(pairs)
    evidence = _moved(pairs, ahead, group, moves)
    apart = np.abs(moves) > peak_width
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


MAX_OFFSET = 44
"""Largest offset that is searched, in sampled instants."""

COARSE_STEP = 3
"""Instants between offsets of the first search: the peak of a walking person is about 10 instants wide at 60 fps."""

MIN_PEAK = 0.4
"""Smallest score at the best offset: right ones reach 0.5 to 0.8."""

MAX_SECOND = 0.9
"""Score of another offset, as a share of the best, above which the offset is ambiguous."""

MAX_GIVEN = 0.8
"""Score without an offset, as a share of the best one, below which given clocks are doubted."""

GOOD_SCORE = 0.66
"""Score without an offset from which given clocks are right: no other offset can exceed 0.85 by enough."""

MIN_COMMON = 25
"""Common instants below which an offset is not scored: few instants fit some pose at any offset."""

MAX_OTHER = 0.75
"""Evidence of another offset of a view or group, as a share of the best, above which its clock is ambiguous."""

FINE = 4
"""Offsets on each side of the best coarse ones that are scored from all instants."""

MAX_ASCENTS = 5

MAX_SCORED = 25
"""Instants of a score."""

WEAK_PEAK = 0.65
MIN_WEAK_COMMON = 85
"""Score of a view below which it needs this many common instants: with 80, the offset of such a view can be wrong by
3 to 7 instants in all its pairs."""

_WHAT = "people do not determine the clock of"

HINT = "pass ⟨sync=FILE⟩ or ⟨sync=none⟩, or leave the view out (⟨views⟩)"


class PairCurve:
    """Scores of a pair at offsets, estimated when they are asked for; the pose is estimated again at each.

    At offset o, instant i + o of the second view is paired with instant i of the first one.
    """

    def __init__(self, people: Sequence[ViewPeople], lenses: Sequence[Lens], views: tuple[int, int]) -> None:
        first, second = views
        self.views = views
        self.scores: dict[int, float] = {}
        self.common: dict[int, int] = {}
        self._fine: dict[int, float] = {}
        self._people = people[first], people[second]
        self._lenses = lenses[first], lenses[second]

    def score(self, offset: int) -> float:
        """Return the score of an offset, 0 with fewer than `MIN_COMMON` common instants."""
        if offset not in self.scores:
            people = pair_people(*self._people, self._lenses, shift=offset, front_by_person=True)
            self.common[offset] = people.common_instants
            self.scores[offset] = _best_score(people, MAX_SCORED)
        return self.scores[offset]

    def search(self, max_offset: int = MAX_OFFSET) -> None:
        """Score offsets in coarse steps."""
        for offset in range(-(max_offset // COARSE_STEP) * COARSE_STEP, max_offset + 1, COARSE_STEP):
            self.score(offset)

    def evidence(self, max_offset: int = MAX_OFFSET) -> PairEvidence:
        """Return by how much scores exceed the median, which people reach at wrong offsets, at all offsets.

        A short overlap shows few poses, which fit some camera pose at any offset: it counts less.
        """
        offsets = np.array(sorted(offset for offset, score in self.scores.items() if score > 0))
        values = np.zeros(2 * max_offset + 1)
        if len(offsets):
            scores = np.array([self.scores[offset] for offset in offsets])
            common = np.array([self.common[offset] for offset in offsets])
            coarse = scores[offsets % COARSE_STEP == 0]
            excess = np.maximum(0.0, scores - np.median(coarse if len(coarse) else scores))
            excess *= np.sqrt(common / common.max())
            every = np.arange(-max_offset, max_offset + 1)
            values = np.interp(every, offsets, excess, left=0.0, right=0.0)
        return PairEvidence(views=self.views, values=values)

    def fine_score(self, offset: int) -> float:
        """Return the score of an offset from all common instants, 0 beyond `MAX_OFFSET`."""
        if offset not in self._fine:
            people = pair_people(*self._people, self._lenses, shift=offset, front_by_person=True)
            self._fine[offset] = _best_score(people) if abs(offset) <= MAX_OFFSET else 0.0
        return self._fine[offset]

    def vertex(self, offset: int) -> tuple[float, float]:
        """Return the peak of a parabola through the scores of all instants next to `offset`, and its curvature.

        The curvature is 0 without a peak. Peaks are pointed and skewed: a wider parabola misses them by two instants.
        """
        left, middle, right = (self.fine_score(offset + step) for step in (-1, 0, 1))
        curvature = 2 * middle - left - right
        if min(left, right) == 0.0 or curvature <= 0.0:
            return float(offset), 0.0
        return offset + float(np.clip(0.5 * (right - left) / curvature, -1, 1)), curvature


def _best_score(people: PersonPairs, max_instants: int | None = None) -> float:
    """Return the score of the best pose, 0 with fewer than `MIN_COMMON` common instants."""
    if people.common_instants < MIN_COMMON:
        return 0.0
    found = quick_people_pose(people if max_instants is None else people.thinned(max_instants))
    return 0.0 if found is None else found.score


@dataclass(frozen=True, kw_only=True)
class PairOffset:
    """Instants by which the second view is ahead: its instant i + `instants` shows what the first shows at i.

    `second` is the best score of offsets that are not part of the peak, `given` the score without an offset.
    `at_edge` states that the best offset is the last one searched, where a peak cannot be seen.
    """

    instants: float
    score: float
    second: float
    given: float
    at_edge: bool = False

    @property
    def is_clear(self) -> bool:
        """Whether the peak is high, and higher than all others."""
        return not self.at_edge and self.score >= MIN_PEAK and self.second <= MAX_SECOND * self.score


def pair_offset(curve: PairCurve, max_offset: int = MAX_OFFSET) -> PairOffset | None:
    """Search the offset of a pair by itself. None without enough common instants."""
    curve.search(max_offset)
    best = max(curve.scores, key=curve.score)
    for offset in range(best - COARSE_STEP - 1, best + COARSE_STEP + 2):
        curve.score(offset)
    best = max(curve.scores, key=lambda offset: (curve.score(offset), -abs(offset)))
    highest = curve.score(best)
    if highest == 0.0:
        return None
    left, right = curve.score(best - 1), curve.score(best + 1)
    bend = left - 2 * highest + right
    vertex = 0.5 * (left - right) / bend if bend < 0 and min(left, right) > 0 else 0.0
    apart = [value for offset, value in curve.scores.items() if abs(offset - best) > PEAK_WIDTH]
    return PairOffset(
        instants=best + vertex,
        score=highest,
        second=max(apart, default=0.0),
        given=curve.score(0),
        at_edge=abs(best) >= max_offset or min(left, right) == 0.0,
    )


MAX_WITNESSES = 3
"""Other views that must agree with the offset of a doubted view."""

CERTAIN_RATIO = 2.0
"""Offset of a doubted view in its uncertainties, above which its clock is accused."""

_FREE, _STAMPED = 0.5, 1.5
"""Uncertainty of an offset in sampled instants, at least: half of one, and that of clocks with a time stamp of each
frame, which cameras or their computer wrote, one more."""


def check_clocks(
    names: Sequence[str],
    people: Sequence[ViewPeople],
    lenses: Sequence[Lens],
    times: Float[Array, " T"],
    instants: Sequence[int],
    *,
    are_stamped: bool = False,
) -> tuple[str, ...]:
    """Return a warning for each view whose people fit the first view clearly better at another offset.

    An offset within its uncertainty is none: the sum of half a sampled instant, the difference between the first and
    the last two thirds of the instants, and the disagreement with offsets to and from other views. People are those
    at sampled instants of times in seconds; these are evenly spaced, apart from gaps between runs.
    """
    if len(instants) < 2:
        return ()
    step = int(np.diff(instants).min())
    numbers = np.asarray(instants) // step  # runs stay apart, so that offsets do not pair one with the next
    people = [
        ViewPeople(tracklets=tuple(replace(one, instants=numbers[one.instants]) for one in view.tracklets))
        for view in people
    ]
    interval_s = step * float(np.median(np.diff(times)))
    texts = []
    for view in range(1, len(names)):
        curve = PairCurve(people, lenses, (0, view))
        if curve.score(0) >= GOOD_SCORE:
            continue
        found = pair_offset(curve)
        if found is None or not found.is_clear or found.given > MAX_GIVEN * found.score:
            continue
        least = _STAMPED if are_stamped else _FREE
        uncertain = least + _disagreement(
            people, lenses, view, found.instants, np.quantile(numbers, (0, 1 / 3, 2 / 3, 1))
        )
        if abs(found.instants) <= CERTAIN_RATIO * uncertain:
            continue
        texts.append(
            f"{names[view]} fits the people in {names[0]} better {abs(found.instants) * interval_s:.3f} s "
            f"{'later' if found.instants > 0 else 'earlier'}, within {uncertain * interval_s:.3f} s "
            f"(score {found.score:.2f} instead of {found.given:.2f}); check the clocks"
        )
    return tuple(texts)


def _disagreement(
    people: Sequence[ViewPeople], lenses: Sequence[Lens], view: int, offset: float, thirds: Float[Array, "4"]
) -> float:
    """Return by how many instants parts of the capture and other views disagree on an offset to the first view.

    Infinite where the first or last two thirds, or another view with common people, show no offset. `thirds` are the
    limits of the instants.
    """
    parts = []
    for low, high in (thirds[[0, 2]], thirds[[1, 3]]):
        part = tuple(_selected(one, (one.instants >= low) & (one.instants <= high)) for one in people[0].tracklets)
        parts.append(pair_offset(PairCurve([ViewPeople(tracklets=part), *people[1:]], lenses, (0, view))))
    known = [part.instants for part in parts if part is not None]
    if len(known) < 2:
        return np.inf
    loops = []
    for other in (place for place in range(1, len(people)) if place != view):
        to, back = (pair_offset(PairCurve(people, lenses, pair)) for pair in ((0, other), (other, view)))
        if to is not None and back is not None:
            loops.append(abs(to.instants + back.instants - offset) if to.is_clear and back.is_clear else np.inf)
        if len(loops) == MAX_WITNESSES:
            break
    return abs(known[0] - known[1]) + (float(np.median(loops)) if loops else 0.0)


def _selected(tracklet: Tracklet, chosen: Bool[NDArray[np.bool_], " n"]) -> Tracklet:
    fields = {name: getattr(tracklet, name)[chosen] for name in ("instants", "joints", "visibility")}
    return replace(tracklet, **fields)


@dataclass(frozen=True, kw_only=True)
class PeopleClocks:
    """By how many sampled instants each view is ahead of the first one, which is 0, and its best score with another.

    The score is 1 for a single view.
    """

    ahead: Float[Array, " V"]
    scores: tuple[float, ...]


def estimate_clocks(
    names: Sequence[str],
    people: Sequence[ViewPeople],
    lenses: Sequence[Lens],
    progress: Callable[[int, int], None] | None = None,
) -> PeopleClocks:
    """Determine the clocks of static views from body keypoints at consecutive sampled instants.

    Up to 8 views all pairs are searched, else each view with its next two. A pair by itself may fit better at a
    wrong offset, above all with little overlap: the clocks are those with the most evidence of all pairs together.

    Raises:
        InputError: if a view or group of views fits the others nowhere, or at another offset almost as well.
    """
    number = len(names)
    if number < 2:
        return PeopleClocks(ahead=np.zeros(number), scores=(1.0,) * number)
    pairs = paired_views(number)
    curves = [PairCurve(people, lenses, pair) for pair in pairs]
    for done, curve in enumerate(curves, start=1):
        curve.search()
        if progress is not None:
            progress(done, len(pairs))
    ahead = joint_offsets(number, [curve.evidence() for curve in curves])
    ahead = _ascended(curves, ahead)
    refined = _refined(curves, ahead)
    evidence = [curve.evidence() for curve in curves]
    check_cuts(_WHAT, names, [cut(evidence, ahead, group) for group in groups(number)], MAX_OTHER, _unclear)
    return PeopleClocks(ahead=refined, scores=_checked_scores(names, curves, evidence, ahead))


def _ascended(curves: Sequence[PairCurve], ahead: Offsets) -> Offsets:
    """Move views one after the other to the highest sum of the scores of all instants; coarse offsets are near it."""
    ahead = ahead.copy()
    for _ in range(MAX_ASCENTS):
        before = ahead.copy()
        for view in range(1, len(ahead)):
            sums = []
            for step in range(-FINE, FINE + 1):
                moved = ahead.copy()
                moved[view] += step
                own = (curve for curve in curves if view in curve.views)
                sums.append(sum(one.fine_score(int(moved[one.views[1]] - moved[one.views[0]])) for one in own))
            ahead[view] += int(np.argmax(sums)) - FINE
        if np.array_equal(ahead, before):
            break
    return ahead


def _refined(curves: Sequence[PairCurve], ahead: Offsets) -> Float[Array, " V"]:
    """Return offsets in parts of an instant: the maximum of the sum of the parabolas of all pairs."""
    rows, targets = [], []
    for curve in curves:
        first, second = curve.views
        offset = int(ahead[second] - ahead[first])
        vertex, curvature = curve.vertex(offset)
        row = np.zeros(len(ahead))
        row[first], row[second] = -1.0, 1.0
        rows.append(np.sqrt(curvature) * row)
        targets.append(np.sqrt(curvature) * (vertex - offset))
    # The first view has offset 0, and a view without a peak stays.
    rows += [*np.diag([1e3, *np.full(len(ahead) - 1, 1e-3)])]
    targets += [0.0] * len(ahead)
    moved, *_ = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)
    return np.asarray(ahead + np.clip(moved, -1, 1))


def check_cuts(
    what: str, names: Sequence[str], cuts: Sequence[Cut], max_ratio: float, reason: Callable[[Cut], str]
) -> None:
    """Refuse clocks if views or groups fit elsewhere with more than a share of the evidence; the smallest are named.

    Raises:
        InputError: with `what` is not determined, the views, and the `reason` of the worst one.
    """
    failed = [one for one in cuts if one.ratio > max_ratio]
    if not failed:
        return
    smaller = {one: min(one.group, tuple(sorted({*range(len(names))} - {*one.group})), key=len) for one in failed}
    size = min(map(len, smaller.values()))
    failed = [one for one in failed if len(smaller[one]) == size]
    worst = max(failed, key=lambda one: one.ratio)
    views = sorted({view for one in (failed if size == 1 else [worst]) for view in smaller[one]})
    raise InputError(f"{what} {listed([names[view] for view in views])}: {reason(worst)}", HINT)


def _unclear(worst: Cut) -> str:
    if worst.placed <= 0:
        return "no clear offset (no common people)"
    return f"no clear offset (evidence {worst.placed:.2f}, and {worst.other:.2f} at {worst.by:+d} frames from there)"


def _checked_scores(
    names: Sequence[str],
    curves: Sequence[PairCurve],
    evidence: Sequence[PairEvidence],
    ahead: Offsets,
) -> tuple[float, ...]:
    """Return the score of each view in its best pair; refuse low ones, and offsets at the edge of the search."""
    scores = []
    for view, name in enumerate(names):
        best = (0.0, 0.0, 0, 0)
        for curve, pair in zip(curves, evidence, strict=True):
            offset = int(ahead[curve.views[1]] - ahead[curve.views[0]])
            if view in curve.views and abs(offset) <= MAX_OFFSET:
                evident = float(pair.at(np.array([offset]))[0])
                best = max(best, (evident, curve.score(offset), abs(offset), curve.common[offset]))
        _, score, offset, common = best
        where = ""
        if score < MIN_PEAK or offset > MAX_OFFSET - COARSE_STEP:
            where = f"score {score:.2f} at {offset} frames, of at most {MAX_OFFSET}"
        elif score < WEAK_PEAK and common < MIN_WEAK_COMMON:
            where = f"score {score:.2f} from {common} frames, need {WEAK_PEAK} or {MIN_WEAK_COMMON} frames"
        if where:
            raise InputError(f"{_WHAT} {name}: no clear offset ({where})", HINT)
        scores.append(score)
    return tuple(scores)
