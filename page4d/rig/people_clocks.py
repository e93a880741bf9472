"""Clocks of static views from body keypoints, per pair of views and jointly.

The offset of a pair is the one at which people fit one relative pose best.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from page4d.errors import Progress
from page4d.rig.clocks import (
    PEAK_WIDTH,
    Cut,
    Measured,
    Offsets,
    PairEvidence,
    WindowClocks,
    check_cuts,
    cut,
    fitted_clocks,
    groups,
    joint_offsets,
    paired_views,
    reaches,
    undetermined,
)
from page4d.rig.epipolar import RelativePose, pose_of
from page4d.rig.people.pairs import pair_people
from page4d.rig.people.pose import PeoplePose, quick_people_pose
from page4d.rig.records import Array, Lens, PairPose, ViewPeople, no_progress

MAX_OFFSET = 44
"""Largest offset at which given clocks are checked, in sampled instants."""

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

_NEAR = 50
"""Offsets on each side whose median score is that of chance: people who hardly move for a while fit all of them."""

_MIN_SHARE, _OVERLAP_POWER = 1 / 2, 0.25
"""Least share of common instants, and its power by which evidence counts: few fit some pose at any offset."""

FINE = 4
"""Offsets on each side of the best coarse ones that are scored from all instants."""

MAX_ASCENTS = 5

MAX_SCORED = 25
"""Instants of a score."""

WEAK_PEAK, MIN_WEAK_COMMON, NARROW = 0.65, 85, 2
"""Score of a view below which it needs this many common instants, or a reach of so few: with 80 common instants at 60
fps, the offset of such a view can be wrong by 3 to 7 instants in all its pairs."""

_WHAT = "people do not determine the clock of"


class PairCurve:
    """Scores of a pair at offsets, estimated when they are asked for; the pose is estimated again at each.

    At offset o, instant i + o of the second view is paired with instant i of the first one.
    """

    def __init__(
        self,
        people: Sequence[ViewPeople],
        lenses: Sequence[Lens],
        views: tuple[int, int],
        max_offset: int = MAX_OFFSET,
        step: int = COARSE_STEP,
        start: RelativePose | None = None,
    ) -> None:
        first, second = views
        self.views, self.max_offset, self.step, self.start = views, max_offset, step, start
        self.scores: dict[int, float] = {}
        self.common: dict[int, int] = {}
        self._fine: dict[int, float] = {}
        self._people = people[first], people[second]
        self._lenses = lenses[first], lenses[second]

    def offset(self, ahead: Offsets) -> int:
        """Return the offset of the pair if views are ahead by some instants."""
        return int(ahead[self.views[1]] - ahead[self.views[0]])

    def score(self, offset: int) -> float:
        """Return the score of an offset, 0 with fewer than `MIN_COMMON` common instants."""
        if offset not in self.scores:
            found = self.pose(offset, MAX_SCORED)
            self.scores[offset] = 0.0 if found is None else found.score
        return self.scores[offset]

    def search(self) -> None:
        """Score offsets in coarse steps."""
        last = self.max_offset // self.step * self.step
        for offset in range(-last, last + 1, self.step):
            self.score(offset)

    def evidence(self) -> tuple[PairEvidence, PairEvidence]:
        """Return the scores of all offsets, and by how much they exceed those of the offsets around them."""
        offsets, scores, excess = self._excess()
        every = np.arange(-self.max_offset, self.max_offset + 1)
        # Offsets that were not scored may score as the next one that was.
        of_all = np.interp(every, offsets, scores), np.interp(every, offsets, excess, left=0.0, right=0.0)
        first, second = (PairEvidence(views=self.views, values=values) for values in of_all)
        return first, second

    def _excess(self) -> tuple[NDArray[np.int64], Float[Array, " n"], Float[Array, " n"]]:
        """Return the offsets that were scored, their scores, and by how much these exceed chance."""
        offsets = np.array(sorted(offset for offset, score in self.scores.items() if score > 0) or [0])
        scores = np.array([self.score(offset) for offset in offsets])
        common = np.array([self.common[offset] for offset in offsets])
        is_coarse = offsets % self.step == 0
        chance = [np.median(scores[is_coarse & (np.abs(offsets - one) <= _NEAR)]) for one in offsets]
        return offsets, scores, np.maximum(0.0, scores - chance) * (common / max(1, common.max())) ** _OVERLAP_POWER

    def beyond(self, offset: int) -> float:
        """Return the most evidence of larger offsets than those of the search, as a share of that of an offset."""
        last = max((int(one.instants[-1]) for people in self._people for one in people), default=0)
        for larger in range((self.max_offset // self.step + 1) * self.step, last - MIN_COMMON + 1, self.step):
            self.score(larger)
            self.score(-larger)
        offsets, _, excess = self._excess()
        own = float(np.interp(offset, offsets, excess))
        return float(excess[np.abs(offsets) > self.max_offset].max(initial=0.0)) / max(own, 1e-9)

    def fine_score(self, offset: int) -> float:
        """Return the score of an offset from all common instants, 0 beyond the largest one."""
        if offset not in self._fine:
            found = self.pose(offset) if abs(offset) <= self.max_offset else None
            self._fine[offset] = 0.0 if found is None else found.score
        return self._fine[offset]

    def part(self, low: float, high: float, start: RelativePose | None = None) -> "PairCurve":
        """Return the curve of the people whom the first view shows from one instant to another one."""
        part = copy(self)
        within = tuple(one.at((one.instants >= low) & (one.instants <= high)) for one in self._people[0])
        part._people, part.start = (within, self._people[1]), start
        part.scores, part.common, part._fine = {}, {}, {}
        return part

    def pose(self, offset: int, max_instants: int | None = None) -> PeoplePose | None:
        """Return the pose that fits people best at an offset; None with fewer than `MIN_COMMON` common instants."""
        people = pair_people(*self._people, self._lenses, shift=offset, front_by_person=True)
        self.common[offset] = people.common_instants
        if people.common_instants < MIN_COMMON:
            return None
        return quick_people_pose(people if max_instants is None else people.thinned(max_instants), self.start)

    def vertex(self, offset: int, score: Callable[[int], float] | None = None) -> tuple[float, float]:
        """Return the peak of a parabola through the scores next to `offset`, and its curvature, 0 without a peak.

        Scores are those of all instants by default. Peaks are pointed and skewed: a wider parabola misses them by two
        instants.
        """
        left, middle, right = (float((score or self.fine_score)(offset + step)) for step in (-1, 0, 1))
        curvature = 2 * middle - left - right
        if min(left, right) == 0.0 or curvature <= 0.0:
            return float(offset), 0.0
        return offset + float(np.clip(0.5 * (right - left) / curvature, -1, 1)), curvature


@dataclass(frozen=True, kw_only=True)
class PairOffset:
    """Instants by which the second view is ahead: its instant i + `instants` shows what the first shows at i.

    It `is_clear` if the peak of the scores is high, higher than all others, and not at the edge of the search.
    """

    instants: float
    score: float
    is_clear: bool


def pair_offset(curve: PairCurve) -> PairOffset | None:
    """Search the offset of a pair by itself. None without enough common instants."""
    curve.search()
    best = max(curve.scores, key=curve.score)
    for offset in range(best - curve.step - 1, best + curve.step + 2):
        curve.score(offset)
    best = max(curve.scores, key=lambda offset: (curve.score(offset), -abs(offset)))
    highest = curve.score(best)
    if highest == 0.0:
        return None
    second = max((value for offset, value in curve.scores.items() if abs(offset - best) > PEAK_WIDTH), default=0.0)
    is_inside = abs(best) < curve.max_offset and min(curve.score(best - 1), curve.score(best + 1)) > 0.0
    return PairOffset(
        instants=curve.vertex(best, curve.score)[0],
        score=highest,
        is_clear=is_inside and highest >= MIN_PEAK and second <= MAX_SECOND * highest,
    )


MAX_WITNESSES = 3
"""Other views that must agree with the offset of a doubted view."""

CERTAIN_RATIO = 2.0
"""Offset of a doubted view in its uncertainties, above which its clock is accused."""

_FREE, _STAMPED = 0.5, 1.5
"""Uncertainty of an offset in sampled instants, at least: half of one, and that of clocks with a time stamp of each
frame, which cameras or their computer wrote, one more."""


LATE, _MAX_LATE, _EQUAL, _EQUAL_ALONE = 0.75, 3, 0.95, 0.8
"""Instants by which a placed view is late, the most that are tried, and the share of the best score from which the
given clock is as good, in several pairs of a view and in the only one: half an instant is how views are paired. On
`treadmill` right clocks are up to 0.35 off, and one instant turns a camera by 4 degrees; of one second, the only pair
of a view with a right clock fits 1.9 instants off, where the given one has 0.87 of the score."""


def late_views(
    people: Sequence[ViewPeople], lenses: Sequence[Lens], pairs: Sequence[PairPose], numbers: NDArray[np.int64]
) -> dict[int, float]:
    """Return by how many instants views are ahead of most of the others in their pairs, if they clearly are.

    `people` are those at sampled instants with these `numbers`. Scores are those of all: of 25 they vary by up to a
    tenth. Poses are estimated again at each offset, as wrong ones fit the clocks that they were estimated with, also
    from that of the pair, which a quick estimate can miss.
    """
    people = renumbered(people, numbers)
    offsets: defaultdict[int, list[float]] = defaultdict(list)
    counts = Counter(view for pair in pairs for view in pair.views)
    for pair in pairs:
        first, second = pair.views
        if min(len(offsets[first]), len(offsets[second])) >= MAX_WITNESSES:
            continue
        curve = PairCurve(people, lenses, pair.views, start=pose_of(pair))
        best = max(sorted(range(-_MAX_LATE, _MAX_LATE + 1), key=abs), key=curve.fine_score)
        apart, curvature = curve.vertex(best)
        limit = _EQUAL if min(counts[first], counts[second]) > 1 else _EQUAL_ALONE
        is_clear = curve.fine_score(best) >= MIN_PEAK and 0 < curve.fine_score(0) < limit * curve.fine_score(best)
        apart = apart if is_clear and curvature > 0 else 0.0
        offsets[first].append(-apart)
        offsets[second].append(apart)
    found = {}
    for view, own in sorted(offsets.items()):
        own.sort()  # the median, of two middle values the one nearer to 0, and 0 where these differ in sign
        found[view] = float(np.clip(0.0, own[(len(own) - 1) // 2], own[len(own) // 2]))
    return {view: apart for view, apart in found.items() if abs(apart) >= LATE}


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
    people = renumbered(people, numbers)
    interval_s = step * float(np.median(np.diff(times)))
    texts = []
    for view in range(1, len(names)):
        curve = PairCurve(people, lenses, (0, view))
        given = curve.score(0)
        if given >= GOOD_SCORE:
            continue
        found = pair_offset(curve)
        if found is None or not found.is_clear or given > MAX_GIVEN * found.score:
            continue
        thirds = np.quantile(numbers, (0, 1 / 3, 2 / 3, 1))
        disagreement = _disagreement(people, lenses, curve, found.instants, thirds)
        uncertain = disagreement + (_STAMPED if are_stamped else _FREE)
        if abs(found.instants) <= CERTAIN_RATIO * uncertain:
            continue
        texts.append(
            f"{names[view]} fits the people in {names[0]} better {abs(found.instants) * interval_s:.3f} s "
            f"{'later' if found.instants > 0 else 'earlier'}, within {uncertain * interval_s:.3f} s "
            f"(score {found.score:.2f} instead of {given:.2f}); check the clocks"
        )
    return tuple(texts)


def _disagreement(
    people: Sequence[ViewPeople], lenses: Sequence[Lens], curve: PairCurve, offset: float, thirds: Float[Array, "4"]
) -> float:
    """Return by how many instants parts of the capture and other views disagree on an offset to the first view.

    Infinite where the first or last two thirds, or another view with common people, show no offset. `thirds` are the
    limits of the instants.
    """
    early, late = (pair_offset(curve.part(low, high)) for low, high in (thirds[[0, 2]], thirds[[1, 3]]))
    if early is None or late is None:
        return np.inf
    loops, view = [], curve.views[1]
    for other in (place for place in range(1, len(people)) if place != view):
        to, back = (pair_offset(PairCurve(people, lenses, pair)) for pair in ((0, other), (other, view)))
        if to is not None and back is not None:
            loops.append(abs(to.instants + back.instants - offset) if to.is_clear and back.is_clear else np.inf)
        if len(loops) == MAX_WITNESSES:
            break
    return abs(early.instants - late.instants) + (float(np.median(loops)) if loops else 0.0)


def renumbered(people: Sequence[ViewPeople], numbers: NDArray[np.int64]) -> tuple[ViewPeople, ...]:
    """Return people at other numbers of their sampled instants."""
    return tuple(tuple(replace(one, instants=numbers[one.instants]) for one in view) for view in people)


def estimate_clocks(
    names: Sequence[str],
    people: Sequence[ViewPeople],
    lenses: Sequence[Lens],
    progress: Progress = no_progress,
    step: int = COARSE_STEP,
) -> tuple[Offsets, Offsets]:
    """Return by how many sampled instants each static view is ahead of the first one, from body keypoints.

    Offsets that differ by at least the second result are excluded, per view. Instants are consecutive. Offsets with
    `MIN_COMMON` common instants, and half of all, are searched, every `step` instants first.

    Up to 8 views all pairs are searched, else each view with its next two. A pair by itself may fit better at a
    wrong offset, above all with little overlap: the clocks are those with the most evidence of all pairs together.

    Raises:
        InputError: if a view or group of views fits the others nowhere, or at another offset almost as well.
    """
    number = len(names)
    pairs = paired_views(number)
    last = max((int(one.instants[-1]) for view in people for one in view), default=0)
    max_offset = max(0, last - max(MIN_COMMON, round(_MIN_SHARE * last)))
    curves = [PairCurve(people, lenses, pair, max_offset, step) for pair in pairs]
    for done, curve in enumerate(curves, start=1):
        curve.search()
        progress(done, len(pairs))
    ahead = _ascended(curves, joint_offsets(number, [curve.evidence()[1] for curve in curves]))
    scores, evidence = zip(*(curve.evidence() for curve in curves), strict=True)
    reach = reaches(number, scores, ahead)
    check_cuts(_WHAT, names, [cut(evidence, ahead, group) for group in groups(number)], MAX_OTHER, _unclear)
    _check_scores(names, curves, evidence, ahead, reach)
    return ahead, reach


def _ascended(curves: Sequence[PairCurve], ahead: Offsets) -> Offsets:
    """Move views one after the other to the highest sum of the scores of all instants; coarse offsets are near it."""
    for _ in range(MAX_ASCENTS):
        before = ahead
        for view in range(1, len(ahead)):
            own = [one for one in curves if view in one.views]
            moved = [ahead + step * (np.arange(len(ahead)) == view) for step in range(-FINE, FINE + 1)]
            ahead = max(moved, key=lambda one: sum(curve.fine_score(curve.offset(one)) for curve in own))
        if np.array_equal(ahead, before):
            break
    return ahead


def _unclear(worst: Cut) -> str:
    if worst.other == 0:
        return "no clear offset (no common people, or other offsets fit as well)"
    return f"no clear offset (evidence {worst.placed:.2f}, and {worst.other:.2f} at {worst.by:+d} frames from there)"


def _check_scores(
    names: Sequence[str],
    curves: Sequence[PairCurve],
    evidence: Sequence[PairEvidence],
    ahead: Offsets,
    reach: Offsets,
) -> None:
    """Refuse low scores of a view in its best pair, and starts that may be further apart than is searched."""
    evident = [pair.at(np.array([curve.offset(ahead)]))[0] for curve, pair in zip(curves, evidence, strict=True)]
    best = {}
    for view, name in enumerate(names):
        best[max((place for place, one in enumerate(curves) if view in one.views), key=evident.__getitem__)] = name
    for number, name in best.items():
        curve, offset = curves[number], curves[number].offset(ahead)
        score, common = curve.score(offset), curve.common[offset]
        is_sure = score >= WEAK_PEAK or common >= MIN_WEAK_COMMON or reach[list(curve.views)].max() <= NARROW
        if score < MIN_PEAK or not is_sure:
            needed = f"need {WEAK_PEAK}, or {MIN_PEAK} from {MIN_WEAK_COMMON}"
            raise undetermined(_WHAT, [name], f"no clear offset (score {score:.2f} from {common} frames, {needed})")
        if abs(offset) > curve.max_offset - curve.step or curve.beyond(offset) > MAX_OTHER:
            raise undetermined(_WHAT, [name], f"the starts may be more than {curve.max_offset} frames apart")


_COMMON_ERROR, _SHARE_OF_REACH = 0.5, 0.25
"""Standard deviation of an error that all windows have, of the bias of keypoints, in instants: the first one, or a
share of the instants to excluded offsets if this is more: 98 % of simulated errors are below 0.42 of those."""

_MAX_COMMON, _MAX_COMMON_S = 2.0, 0.1
"""Such errors, in instants and in seconds, that determine nothing if they are above both."""


def refine_clocks(
    names: Sequence[str],
    people: Sequence[ViewPeople],
    lenses: Sequence[Lens],
    windows: Sequence[tuple[int, int]],
    ahead: Offsets,
    reach: Float[Array, " V"],
    step_s: float,
) -> WindowClocks:
    """Fit offsets and rates near given offsets to people at sampled instants in windows of the first view's clock.

    Offsets of a view that differ by its `reach` in instants are excluded: a share of it is the least deviation.

    Raises:
        InputError: if the windows do not determine the clock of a view.
    """
    common = np.maximum(_COMMON_ERROR, _SHARE_OF_REACH * reach)
    most = max(_MAX_COMMON, _MAX_COMMON_S / step_s)
    if slow := [name for name, one in zip(names, common, strict=True) if one > most]:
        raise undetermined(_WHAT, slow, f"people move too slowly: it is known to {common.max() * step_s:.3f} s only")
    curves, middles = [], []
    limit = int(np.abs(ahead).max()) + MAX_OFFSET
    for first, second in paired_views(len(names)):
        # The pose is that of all windows: in a few instants it is not always found.
        whole = PairCurve(people, lenses, (first, second), limit)
        offset = whole.offset(ahead)
        poses = [pose for step in (-1, 0, 1) if (pose := whole.pose(offset + step)) is not None]
        start = max(poses, key=lambda pose: pose.score).pose if poses else None
        for low, high in windows:
            curves.append(whole.part(low + ahead[first], high + ahead[first], start))
            middles.append((low + high) / 2)
    ahead = _ascended(curves, ahead)
    measured = []
    for curve, middle in zip(curves, middles, strict=True):
        offset = curve.offset(ahead)
        vertex, curvature = curve.vertex(max(range(offset - FINE, offset + FINE + 1), key=curve.fine_score))
        if curvature > 0:
            measured.append((curve.views, middle, vertex, curvature))
    if missing := [name for view, name in enumerate(names) if not any(view in one[0] for one in measured)]:
        raise undetermined(_WHAT, missing, "no clear offset in any part of the capture")
    pairs, times, offsets, weights = (np.array(column) for column in zip(*measured, strict=True))
    middle = (windows[0][0] + windows[-1][1]) / 2
    found = Measured(pairs, times * step_s, offsets * step_s, weights, times > middle)
    return fitted_clocks(_WHAT, names, found, step_s, common)
