"""Clocks from people: offsets between instants are found, and ambiguous ones are refused."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from page4d.errors import InputError
from page4d.rig import people_clocks as clocks
from page4d.rig.clocks import PairEvidence, cut, joint_offsets, reaches
from page4d.rig.people.pose import register_people_pair
from page4d.rig.people_clocks import (
    MAX_OTHER,
    PairCurve,
    PairOffset,
    check_clocks,
    estimate_clocks,
    late_views,
    pair_offset,
    refine_clocks,
    renumbered,
)
from tests.rig.people_rig import Filming, film_people
from tests.rig.walkers import FRAME_S, Walk, observe, ring


@pytest.mark.parametrize(("seed", "delay", "max_offset"), [(2, 4.4, 12), (3, None, 30)])
def test_an_offset_between_instants_is_found_unless_motion_is_periodic(
    seed: int, delay: float | None, max_offset: int
) -> None:
    rng = np.random.default_rng(seed)
    cameras, delays = ring(2, rng), (0.0, -(delay or 0.0) * FRAME_S)
    people = observe(cameras, [Walk.random(rng, periodic=delay is None)], rng, step_s=FRAME_S, delays=delays)
    found = pair_offset(PairCurve(people, [camera.lens for camera in cameras], (0, 1), max_offset=max_offset))
    assert found.is_clear == (delay is not None)
    assert delay is None or found.instants == pytest.approx(delay, abs=0.5)


@pytest.mark.parametrize("num_instants", [pytest.param(160, marks=pytest.mark.slow), 100])
def test_motion_that_repeats_is_ambiguous(num_instants: int) -> None:
    rng = np.random.default_rng(5)
    cameras = ring(2, rng)
    exercise = replace(Walk.random(rng, periodic=True), phase=np.array([2 * np.pi * 0.3, 0.0]))  # every 50 instants
    people = observe(cameras, [exercise], rng, num_instants=num_instants, delays=(0.0, -40 * 2 * FRAME_S))
    with pytest.raises(InputError, match=r"no clear offset \(evidence .* at [+-](49|50|51) frames from there"):
        estimate_clocks(("cam01", "cam02"), people, [camera.lens for camera in cameras])


@pytest.mark.parametrize(("seed", "ahead"), [(7, 50), (0, 46)], ids=["beyond", "edge"])
def test_starts_further_apart_than_is_searched_are_refused(seed: int, ahead: int) -> None:
    rng, step_s = np.random.default_rng(seed), FRAME_S / 2
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, num_instants=90, step_s=step_s, delays=(0.0, -ahead * step_s))
    with pytest.raises(InputError, match=r"cam02: the starts may be more than 45 frames apart"):
        estimate_clocks(("cam01", "cam02"), people, [camera.lens for camera in cameras])


@pytest.mark.parametrize(("chance", "share"), [(0.4, 1.25 * 0.4**0.25), (0.9, 0.0)])
def test_larger_offsets_count_by_how_much_they_exceed_those_around_them(chance: float, share: float) -> None:
    rng, num_instants = np.random.default_rng(0), 100
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, num_instants=num_instants, step_s=FRAME_S)
    curve = PairCurve(people, [camera.lens for camera in cameras], (0, 1), max_offset=20, step=5)
    for offset in range(-75, 80, 5):
        curve.common[offset] = num_instants - abs(offset)
        curve.scores[offset] = 0.4 if abs(offset) <= 20 else chance
    curve.scores[0], curve.scores[60] = 0.8, 0.9
    assert curve.beyond(0) == pytest.approx(share)


@pytest.mark.parametrize("delay", [0.0, 0.4, 1.0, -2.0])
def test_views_that_lag_by_an_instant_or_more_are_late(delay: float) -> None:
    rig = film_people(Filming(num_instants=40, noise_px=2.0, delays=(0.0, delay, 0.0)))
    pairs = [
        register_people_pair(*(rig.people[view] for view in views), rig.lenses[:2], views, rig.num_instants)
        for views in combinations(range(3), 2)
    ]
    found = late_views(rig.people, rig.lenses, pairs, np.arange(rig.num_instants))
    assert found == ({} if abs(delay) < 1 else {1: pytest.approx(delay, abs=0.25)})


@pytest.mark.parametrize(
    ("pairs", "share", "last", "is_late"),
    [(3, 0.87, -2, True), (2, 0.87, -2, False), (2, 0.75, -2, True), (3, 0.87, 2, False), (3, 0.75, 2, False)],
)
def test_the_pairs_of_a_view_must_agree_and_its_only_one_needs_a_clearer_offset(
    pairs: int, share: float, last: int, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = film_people(Filming(num_instants=20))
    found = [
        register_people_pair(*(rig.people[view] for view in views), rig.lenses[:2], views, rig.num_instants)
        for views in ((0, 1), (0, 2), (1, 2))[:pairs]
    ]

    def score(curve: PairCurve, offset: int) -> float:
        best = {(0, 1): 2, (1, 2): last}.get(curve.views, 0)
        return 0.7 * (share if best and not offset else 1 - 0.04 * (offset - best) ** 2)

    monkeypatch.setattr(PairCurve, "fine_score", score)
    late = late_views(rig.people, rig.lenses, found, np.arange(rig.num_instants))
    assert late == ({1: pytest.approx(2.0, abs=0.1)} if is_late else {})


@pytest.mark.parametrize(("delay", "number"), [(0.0, 0), pytest.param(-7.0, 1, marks=pytest.mark.slow)])
def test_given_clocks_are_doubted_only_if_another_offset_fits_better(delay: float, number: int) -> None:
    rng = np.random.default_rng(2)
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, step_s=FRAME_S, delays=(0.0, delay * FRAME_S))
    times, instants = np.arange(120) * FRAME_S / 2, range(0, 120, 2)
    texts = check_clocks(("cam01", "cam02"), people, [camera.lens for camera in cameras], times, instants)
    assert len(texts) == number
    assert all("cam02 fits the people in cam01 better 0.23" in text and "later" in text for text in texts)


@pytest.mark.parametrize(
    ("offset", "parts", "witness", "are_stamped", "is_accused"),
    [
        (4.0, (4.0, 4.5), (0.0, 4.1), False, True),
        (4.0, (2.5, 5.0), (0.0, 4.0), False, False),
        (4.0, (4.0, 4.0), (0.0, 0.0), False, False),
        (4.0, (4.0, 4.0), (0.0, None), False, True),
        (4.0, (4.0, None), (0.0, 4.0), False, False),
        (2.5, (2.5, 2.5), (0.0, 2.5), False, True),
        (2.5, (2.5, 2.5), (0.0, 2.5), True, False),
        (0.9, (0.9, 0.9), (0.0, 0.9), False, False),
    ],
)
def test_a_clock_is_accused_beyond_the_uncertainty_of_its_offset_only(
    offset: float, parts: tuple, witness: tuple, are_stamped: bool, is_accused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([offset, *parts, *witness])

    def searched(_: PairCurve) -> PairOffset | None:
        value = next(found)
        return None if value is None else PairOffset(instants=value, score=0.8, is_clear=True)

    monkeypatch.setattr(clocks, "pair_offset", searched)
    monkeypatch.setattr(PairCurve, "score", lambda curve, _: 0.1 if curve.views == (0, 1) else 0.9)
    lenses = [camera.lens for camera in ring(3, np.random.default_rng(0))]
    people = ((),) * 3
    times = np.arange(120) * FRAME_S
    texts = check_clocks(("a", "b", "c"), people, lenses, times, range(120), are_stamped=are_stamped)
    assert len(texts) == is_accused
    assert all(text.startswith(f"b fits the people in a better {offset * FRAME_S:.3f} s later") for text in texts)


@pytest.mark.parametrize("ahead", [(0.0, 6.6), pytest.param((0.0, 7.0, -3.4), marks=pytest.mark.slow)])
def test_all_views_that_are_shifted_are_found(ahead: tuple[float, ...]) -> None:
    rng = np.random.default_rng(5)
    cameras = ring(len(ahead), rng)
    delays = tuple(-FRAME_S * one for one in ahead)
    people = observe(cameras, [Walk.random(rng)], rng, step_s=FRAME_S, delays=delays)
    found, reach = estimate_clocks(tuple("abc"[: len(ahead)]), people, [camera.lens for camera in cameras])
    assert found == pytest.approx(ahead, abs=0.6)
    assert all(0 < one <= 6 for one in reach[1:])


def test_offsets_in_windows_give_a_rate() -> None:
    rng = np.random.default_rng(5)
    cameras, walk, drift = ring(2, rng), Walk.random(rng), 2e-3
    starts, people = (0, 750, 1500), []
    for start in starts:
        delays = tuple(FRAME_S * (start - view * (2.3 + drift * start)) for view in range(2))
        people.append(observe(cameras, [walk], rng, num_instants=50, step_s=FRAME_S, delays=delays))
    views = [
        tuple(
            renumbered([window[view]], np.arange(50) + start)[0][0]
            for window, start in zip(people, starts, strict=True)
        )
        for view in range(2)
    ]
    windows = [(start, start + 49) for start in starts]
    lenses = [camera.lens for camera in cameras]
    found = refine_clocks(("a", "b"), views, lenses, windows, np.array([0, 4]), np.array([0, 1]), FRAME_S)
    assert found.drifts == pytest.approx([0, drift], abs=0.2 * drift)
    assert found.ahead[1] == pytest.approx(FRAME_S * (2.3 + drift * 775), abs=0.5 * FRAME_S)
    assert found.deviations[1] >= 0.5 * FRAME_S


@pytest.mark.parametrize(
    ("speed", "reach", "step_s", "least", "most"),
    [(1.0, 2, 0.1, 0.5, 0.55), (0.1, 4, 0.1, 1, 1.05), (0.03, 9, 0.1, 0, 0), (0.03, 9, 0.01, 2.25, 2.4)],
)
def test_the_deviation_of_a_clock_is_a_share_of_its_reach(speed, reach, step_s, least, most) -> None:
    rng = np.random.default_rng(5)
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, num_instants=100, step_s=speed * 2 * FRAME_S, bias=0.003)
    lenses = [camera.lens for camera in cameras]
    with nullcontext() if most else pytest.raises(InputError, match="clock of b: people move too slowly"):
        found = refine_clocks(("a", "b"), people, lenses, [(0, 99)], np.array([0, 0]), np.array([0, reach]), step_s)
        assert least <= found.deviations[1] / step_s <= most
        assert abs(found.ahead[1]) < 3 * found.deviations[1]


@pytest.mark.parametrize(
    ("score", "common", "reach", "is_refused"),
    [(0.5, 51, 3, True), (0.5, 51, 2, False), (0.5, 85, 3, False), (0.66, 51, 3, False), (0.35, 85, 2, True)],
)
def test_a_weak_view_needs_many_common_instants_or_a_narrow_peak(
    score: float, common: int, reach: int, is_refused: bool
) -> None:
    curve = PairCurve(((), ()), [camera.lens for camera in ring(2, np.random.default_rng(5))], (0, 1))
    curve.scores, curve.common = {-9: 0.1, 0: 0.1, 9: score}, dict.fromkeys((-9, 0, 9), common)
    curves, ahead = [curve], np.array([0, 9])
    text = rf"clock of cam02: no clear offset \(score {score:.2f} from {common} frames, need 0.65, or 0.4 from 85"
    with pytest.raises(InputError, match=text) if is_refused else nullcontext():
        clocks._check_scores(("cam01", "cam02"), curves, [curve.evidence()[1]], ahead, np.array([0, reach]))


@pytest.mark.parametrize("score", [0.0, 0.6], ids=["no people", "people at rest"])
def test_equal_scores_do_not_determine_a_clock(score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def scored(curve: PairCurve, offset: int) -> float:
        curve.common[offset] = 50
        return curve.scores.setdefault(offset, score)

    monkeypatch.setattr(PairCurve, "score", scored)
    monkeypatch.setattr(PairCurve, "fine_score", lambda curve, offset: curve.score(offset))
    rng = np.random.default_rng(5)
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, num_instants=50)
    with pytest.raises(InputError, match=r"clock of b: no clear offset \(no common people, or other offsets fit as"):
        estimate_clocks(("a", "b"), people, [camera.lens for camera in cameras])


def evidence(views: tuple[int, int], **peaks: float) -> PairEvidence:
    """Return evidence of offsets up to 20 with peaks, such as `at_7=0.5` and `before_3=0.2` of offset -3."""
    offsets, values = np.arange(-20, 21), np.zeros(41)
    for name, height in peaks.items():
        side, place = name.split("_")
        middle = int(place) if side == "at" else -int(place)
        values = np.maximum(values, height * np.clip(1 - np.abs(offsets - middle) / 5, 0, 1))
    return PairEvidence(views=views, values=values)


def test_joint_offsets_outvote_a_pair_that_fits_better_elsewhere() -> None:
    pairs = [evidence((0, 1), at_7=0.3, before_9=0.4), evidence((1, 2), at_4=0.5), evidence((0, 2), at_11=0.5)]
    assert joint_offsets(3, pairs).tolist() == [0, 7, 11]


@pytest.mark.parametrize(("other", "is_ambiguous"), [(0.2, False), (0.45, True)])
def test_a_view_that_fits_as_well_elsewhere_is_ambiguous(other: float, is_ambiguous: bool) -> None:
    pairs = [evidence((0, 1), at_3=0.5), evidence((1, 2), at_0=0.5, before_12=other)]
    ahead = joint_offsets(3, pairs)
    assert ahead.tolist() == [0, 3, 3]
    found = cut(pairs, ahead, (2,))
    assert (found.ratio > MAX_OTHER, found.by) == (is_ambiguous, -12)
    assert cut(pairs, ahead, (1, 2)).ratio == 0
    assert cut([], ahead, (1,)).ratio == 1


@pytest.mark.parametrize(("dip", "other"), [(0.05, 0), (0.2, 0.68)])
def test_the_slope_of_a_wide_peak_is_no_other_offset(dip: float, other: float) -> None:
    values = 0.5 * (1 - np.abs(np.arange(-20, 21)) / 25)
    values[[13, 27]] *= 1 - dip
    found = cut([PairEvidence(views=(0, 1), values=values)], np.array([0, 0]), (1,))
    assert found.ratio == pytest.approx(other, abs=0.01)


@pytest.mark.parametrize(("left", "right", "reach"), [(10, 10, 4), (10, 100, 8), (10, 15, 6)])
def test_views_reach_to_where_scores_fall(left: int, right: int, reach: int) -> None:
    offsets = np.arange(-20, 21)
    values = np.maximum(0.0, 1 - np.where(offsets < 3, (3 - offsets) / left, (offsets - 3) / right) * 0.4)
    narrow = np.maximum(0.0, 1 - np.abs(offsets))
    pairs = [PairEvidence(views=(0, 1), values=values), PairEvidence(views=(0, 2), values=narrow)]
    assert reaches(3, pairs, np.array([0, 3, 0])).tolist() == [0, reach, 1]


def test_a_short_capture_does_not_determine_the_clock_of_a_slow_person() -> None:
    rng = np.random.default_rng(200)
    cameras = ring(2, rng)
    step_s = 0.06 * FRAME_S
    people = observe(
        cameras, [Walk.random(rng)], rng, num_instants=45, step_s=step_s, delays=(0.0, -4 * step_s), bias=0.003
    )
    names, lenses = ("a", "b"), [camera.lens for camera in cameras]
    ahead, reach = estimate_clocks(names, people, lenses)
    with pytest.raises(InputError, match="clock of b: people move too slowly"):
        refine_clocks(names, people, lenses, [(0, 44)], ahead, reach, FRAME_S)
