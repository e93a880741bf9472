"""Offsets between the clocks of static views from body keypoints: the offset at which people fit one pose best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from page4d.errors import InputError
from page4d.rig.people_fit import estimate_pair, pair_tracks
from page4d.rig.records import Array, Lens, ViewPeople

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

PEAK_WIDTH = 6
"""Offsets that are attributed to the best one."""

MIN_COMMON = 25
"""Common instants below which an offset is not scored: few instants fit some pose at any offset."""

MAX_DISAGREEMENT = 3.0
"""Instants by which the offset of a pair may differ from the clocks of all: right ones differ by 1.4 at most."""

MAX_SCORED = 25
"""Instants of a score."""

_HINT = "pass --sync FILE or --sync none"


@dataclass(frozen=True, kw_only=True)
class PairOffset:
    """Instants by which the second view is ahead: its instant i + `instants` shows what the first shows at i.

    `second` is the best score of offsets that are not part of the peak, `given` the score without an offset.
    """

    views: tuple[int, int]
    instants: float
    score: float
    second: float
    given: float

    @property
    def is_clear(self) -> bool:
        """Whether the peak is high, and higher than all others."""
        return self.score >= MIN_PEAK and self.second <= MAX_SECOND * self.score


def pair_offset(
    people: Sequence[ViewPeople], lenses: Sequence[Lens], views: tuple[int, int], max_offset: int = MAX_OFFSET
) -> PairOffset | None:
    """Search the offset of a pair; the pose is estimated again at each. None without enough common instants."""
    first, second = views
    scores: dict[int, float] = {}

    def score(offset: int) -> float:
        if offset not in scores:
            tracks = pair_tracks(people[first], people[second], offset)
            enough = tracks.num_instants >= MIN_COMMON and abs(offset) <= max_offset
            pair = (lenses[first], lenses[second])
            scores[offset] = estimate_pair(tracks.thinned(MAX_SCORED), pair)[1] if enough else 0.0
        return scores[offset]

    coarse = range(-(max_offset // COARSE_STEP) * COARSE_STEP, max_offset + 1, COARSE_STEP)
    best = max(coarse, key=score)
    for offset in range(best - COARSE_STEP - 1, best + COARSE_STEP + 2):
        score(offset)
    best = max(scores, key=lambda offset: (scores[offset], -abs(offset)))
    if scores[best] == 0.0:
        return None
    left, right = score(best - 1), score(best + 1)
    bend = left - 2 * scores[best] + right
    vertex = 0.5 * (left - right) / bend if bend < 0 and min(left, right) > 0 else 0.0
    apart = [value for offset, value in scores.items() if abs(offset - best) > PEAK_WIDTH]
    return PairOffset(
        views=views, instants=best + vertex, score=scores[best], second=max(apart, default=0.0), given=score(0)
    )


def check_clocks(
    names: Sequence[str], people: Sequence[ViewPeople], lenses: Sequence[Lens], frame_s: float
) -> tuple[str, ...]:
    """Return a warning for each view whose people fit the first view clearly better at another offset.

    `frame_s` are the seconds between two sampled instants.
    """
    texts = []
    for view in range(1, len(names)):
        tracks = pair_tracks(people[0], people[view])
        enough = tracks.num_instants >= MIN_COMMON
        if enough and estimate_pair(tracks.thinned(MAX_SCORED), (lenses[0], lenses[view]))[1] >= GOOD_SCORE:
            continue
        found = pair_offset(people, lenses, (0, view))
        if found is None or not found.is_clear or found.given > MAX_GIVEN * found.score:
            continue
        when = "later" if found.instants > 0 else "earlier"
        texts.append(
            f"{names[view]} fits the people in {names[0]} better {abs(found.instants) * frame_s:.3f} s {when} "
            f"(score {found.score:.2f} instead of {found.given:.2f}); check the clocks"
        )
    return tuple(texts)


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

    Up to 8 views all pairs are searched, else each view with its next two.

    Raises:
        InputError: if a view shares no clear peak with the others, directly or through them, or pairs contradict.
    """
    number = len(names)
    pairs = [(i, j) for i, j in combinations(range(number), 2) if number <= 8 or j - i <= 2 or i + number - j <= 2]
    clear = []
    for done, pair in enumerate(pairs, start=1):
        found = pair_offset(people, lenses, pair)
        if found is not None and found.is_clear:
            clear.append(found)
        if progress is not None:
            progress(done, len(pairs))
    _check_connected(names, clear)
    if number < 2:
        return PeopleClocks(ahead=np.zeros(number), scores=(1.0,) * number)

    def residuals(offsets: Array) -> Array:
        ahead = np.concatenate([[0.0], offsets])
        return np.array([p.score * (ahead[p.views[1]] - ahead[p.views[0]] - p.instants) for p in clear])

    solved = least_squares(residuals, np.zeros(number - 1), loss="soft_l1", f_scale=1.0)
    wrong = [
        p for p, error in zip(clear, residuals(solved.x), strict=True) if abs(error) > MAX_DISAGREEMENT * p.score
    ]
    if wrong:
        pairs_text = ", ".join(f"{names[p.views[0]]}-{names[p.views[1]]}" for p in wrong)
        raise InputError(
            f"people do not determine the clocks: the offset of {pairs_text} contradicts the others", _HINT
        )
    scores = tuple(max(p.score for p in clear if view in p.views) for view in range(number))
    return PeopleClocks(ahead=np.concatenate([[0.0], solved.x]), scores=scores)


def _check_connected(names: Sequence[str], clear: Sequence[PairOffset]) -> None:
    reached = {0}
    for _ in names:
        for offset in clear:
            if reached & set(offset.views):
                reached |= set(offset.views)
    missing = [name for view, name in enumerate(names) if view not in reached]
    if missing:
        raise InputError(f"people do not determine the clock of {', '.join(missing)}: no clear offset", _HINT)
