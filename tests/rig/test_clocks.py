"""Clocks from people: offsets between instants are found, and ambiguous ones are refused."""

import numpy as np
import pytest

from page4d.errors import InputError
from page4d.rig import clocks
from page4d.rig.clocks import PairOffset, check_clocks, estimate_clocks, pair_offset
from page4d.rig.records import ViewPeople
from tests.rig.walkers import FRAME_S, Walk, observe, ring


def test_an_offset_between_instants_is_found() -> None:
    rng = np.random.default_rng(2)
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, step_s=FRAME_S, delays=(0.0, -4.4 * FRAME_S))
    found = pair_offset(people, [camera.lens for camera in cameras], (0, 1), max_offset=12)
    assert found is not None
    assert found.is_clear
    assert found.instants == pytest.approx(4.4, abs=0.5)


def test_periodic_motion_is_ambiguous() -> None:
    rng = np.random.default_rng(3)
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng, periodic=True)], rng, step_s=FRAME_S)
    found = pair_offset(people, [camera.lens for camera in cameras], (0, 1), max_offset=30)
    assert found is not None
    assert not found.is_clear


def test_views_without_people_are_named() -> None:
    rng = np.random.default_rng(4)
    lenses = [camera.lens for camera in ring(2, rng)]
    with pytest.raises(InputError, match="clock of cam02"):
        estimate_clocks(("cam01", "cam02"), (ViewPeople(tracklets=()),) * 2, lenses)


@pytest.mark.parametrize(("delay", "number"), [(0.0, 0), pytest.param(-7.0, 1, marks=pytest.mark.slow)])
def test_given_clocks_are_doubted_only_if_another_offset_fits_better(delay: float, number: int) -> None:
    rng = np.random.default_rng(2)
    cameras = ring(2, rng)
    people = observe(cameras, [Walk.random(rng)], rng, step_s=FRAME_S, delays=(0.0, delay * FRAME_S))
    texts = check_clocks(("cam01", "cam02"), people, [camera.lens for camera in cameras], FRAME_S)
    assert len(texts) == number
    assert all("cam02 fits the people in cam01 better 0.23" in text and "later" in text for text in texts)


def test_offsets_of_pairs_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {(0, 1): 7.0, (1, 2): 13.0, (0, 2): 20.5}

    def fake(_people: object, _lenses: object, views: tuple[int, int]) -> PairOffset:
        return PairOffset(views=views, instants=measured[views], score=0.7, second=0.3, given=0.1)

    monkeypatch.setattr(clocks, "pair_offset", fake)
    names, nobody = ("cam01", "cam02", "cam03"), (ViewPeople(tracklets=()),) * 3
    assert estimate_clocks(names, nobody, []).ahead == pytest.approx([0, 7, 20], abs=0.5)
    measured[0, 2] = -30.0
    with pytest.raises(InputError, match="contradicts the others"):
        estimate_clocks(names, nobody, [])
