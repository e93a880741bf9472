"""Relative poses of two views from people: exact, tolerant, refused where there is no agreement, repeatable."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from page4d.rig.epipolar import RelativePose
from page4d.rig.people.pairs import TOLERANCE, exchange_sides
from page4d.rig.people.pose import MIN_FIT, MIN_INSTANTS, STILL_SCORE, register_people_pair, share_of_people
from page4d.rig.records import PairPose, ViewPeople, direction_angle_deg, exp_rotation, rotation_angle_deg
from tests.rig.people_rig import SWAPPED_SIDES, Filming, PeopleRig, film_people, lens, with_instants

EXACT = Filming(angles_deg=(0.0, 65.0, 174.0), num_instants=40, seed=1)
REAL = replace(EXACT, noise_px=2.0, bias_px=5.0)
CROWD = replace(REAL, num_instants=50, num_people=2, missed=0.1, occluded=0.1, breaks=1, num_false=1)
NOBODY = ()


@cache
def filmed(filming: Filming) -> PeopleRig:
    return film_people(filming)


def registered(
    rig: PeopleRig, first: int, second: int, people: ViewPeople | None = None, initial: PairPose | None = None
) -> PairPose:
    """Register two views; `people` replaces those of the second."""
    views = (rig.people[first], rig.people[second] if people is None else people)
    lenses = (rig.lenses[first], rig.lenses[second])
    return register_people_pair(*views, lenses, (first, second), rig.num_instants, initial=initial)


@cache
def pair_of(filming: Filming, second: int) -> PairPose:
    """Register the first view and another one of a capture."""
    return registered(filmed(filming), 0, second)


def errors_deg(rig: PeopleRig, pair: PairPose) -> tuple[float, float]:
    """Return the errors of rotation and direction."""
    rotation, direction = rig.relative_pose(*pair.views)
    return rotation_angle_deg(pair.rotation, rotation), direction_angle_deg(pair.direction, direction)


@pytest.mark.parametrize("second", [1, 2])
def test_exact_keypoints_give_the_exact_pose(second: int) -> None:
    pair = pair_of(EXACT, second)
    assert pair.is_accepted, pair.reason
    assert max(errors_deg(filmed(EXACT), pair)) < 1e-3
    assert pair.score == pytest.approx(1, abs=1e-6)
    assert pair.num_instants == 40
    assert pair.residual_px == pytest.approx(0, abs=1e-6)
    assert pair.jackknife_deg == pytest.approx(0, abs=1e-2)


@pytest.mark.parametrize(("filming", "second"), [(REAL, 1), (REAL, 2), (CROWD, 1)])
def test_noise_bias_crowds_and_strangers_are_tolerated(filming: Filming, second: int) -> None:
    pair = pair_of(filming, second)
    assert pair.is_accepted, pair.reason
    rotation_deg, direction_deg = errors_deg(filmed(filming), pair)
    assert rotation_deg < 4
    assert direction_deg < 3


@pytest.mark.parametrize(
    ("turn_deg", "people", "fits"),
    [
        (0.5, {}, True),
        (6.0, {}, False),
        (6.0, {"reason": "halves of the instants differ by 4.9 degrees"}, False),
        (6.0, {"score": STILL_SCORE - 0.01, "control": 0.5}, None),
        (6.0, {"score": STILL_SCORE, "control": 0.5}, False),
        (6.0, {"score": STILL_SCORE, "control": 0.6}, None),
        (6.0, {"num_instants": MIN_INSTANTS - 1}, None),
    ],
)
def test_people_contradict_poses_where_they_agree_by_more_than_chance(turn_deg, people, fits) -> None:
    pair, rig = pair_of(REAL, 1), filmed(REAL)
    turned = RelativePose(
        rotation=exp_rotation(np.radians([turn_deg, 0, 0])) @ pair.rotation, direction=pair.direction
    )
    share = share_of_people(replace(pair, **people), turned, rig.lenses[:2])
    assert (None if share is None else share >= MIN_FIT) == fits


def test_people_without_agreement_are_refused() -> None:
    rig = filmed(REAL)
    instants = np.arange(rig.num_instants)
    people = rig.people[1]
    wrong = {
        "permuted": with_instants(people, np.random.default_rng(7).permutation(instants)),
        "reversed": with_instants(people, instants[::-1]),
        "shifted": with_instants(people, np.roll(instants, 13)),
        "swapped sides": exchange_sides(people),
        "of another capture": film_people(replace(REAL, seed=5)).people[1],
    }
    for name, other in wrong.items():
        pair = registered(rig, 0, 1, other)
        assert not pair.is_accepted, name
        assert "needs" in pair.reason or "allowed" in pair.reason, name


def test_a_person_who_walks_in_place_is_refused_with_permuted_instants() -> None:
    """A body that stays in place fits epipolar geometry at any instants in part; only the control separates it."""
    rig = filmed(replace(REAL, on_treadmill=True))
    permuted = with_instants(rig.people[1], np.random.default_rng(3).permutation(rig.num_instants))
    pair = registered(rig, 0, 1, permuted)
    assert pair.score > 0.43, "the score alone would accept it"
    assert "with permuted instants" in pair.reason
    assert registered(rig, 0, 1).is_accepted


def test_few_instants_and_no_people_are_refused_with_figures() -> None:
    rig = filmed(replace(EXACT, num_instants=MIN_INSTANTS - 1))
    assert f"24 common instants with people, needs {MIN_INSTANTS}" in registered(rig, 0, 1).reason
    for people in (NOBODY, with_instants(rig.people[1], np.arange(24) + 24)):
        apart = replace(rig, num_instants=48)
        pair = registered(apart, 0, 1, people)
        assert pair.rotation is None
        assert not pair.is_accepted
        assert pair.reason == f"0 common instants with people, needs {MIN_INSTANTS}"


def test_keypoints_without_depth_extent_or_parallax_are_refused() -> None:
    rig = filmed(EXACT)
    flat = [tuple(replace(t, joints=np.full_like(t.joints, 500.0)) for t in view) for view in rig.people]
    unseen = [tuple(replace(t, visibility=np.zeros_like(t.visibility)) for t in view) for view in rig.people]
    for people in (flat, unseen, [rig.people[0]] * 2):
        assert not registered(replace(rig, people=tuple(people)), 0, 1).is_accepted


def test_the_result_is_repeated_exactly() -> None:
    pairs = pair_of(REAL, 1), registered(filmed(REAL), 0, 1)
    np.testing.assert_array_equal(pairs[0].rotation, pairs[1].rotation)
    np.testing.assert_array_equal(pairs[0].direction, pairs[1].direction)
    assert (pairs[0].score, pairs[0].control) == (pairs[1].score, pairs[1].control)


def test_exchanged_views_give_the_inverse_pose() -> None:
    forward, backward = pair_of(REAL, 1), registered(filmed(REAL), 1, 0)
    assert rotation_angle_deg(forward.rotation, backward.rotation.T) < 0.1
    assert direction_angle_deg(forward.direction, -forward.rotation @ backward.direction) < 0.1
    assert forward.score == pytest.approx(backward.score, abs=0.01)


def test_matches_identify_joints_of_people_and_agree_with_the_pose() -> None:
    """The ids follow `records.PointMatches`: in an exact capture they identify the pixels of the match."""
    rig = filmed(replace(EXACT, num_people=2, breaks=1))
    matches = registered(rig, 0, 1).matches
    assert len(matches.weights) > 0.9 * 2 * 40 * 33
    assert ((matches.weights > 0) & (matches.weights <= 1)).all()
    for ids, points, people in (
        (matches.first_ids, matches.first, rig.people[0]),
        (matches.second_ids, matches.second, rig.people[1]),
    ):
        assert len(np.unique(ids)) == len(ids), "one match for every point"
        for row in range(0, len(ids), 97):
            joint, instant, number = ids[row] % 33, ids[row] // 33 % 40, ids[row] // 33 // 40
            tracklet = people[number]
            expected = tracklet.joints[np.searchsorted(tracklet.instants, instant), joint]
            np.testing.assert_allclose(points[row], expected, atol=1e-6)


def test_an_accepted_pair_is_estimated_again_for_another_focal_length() -> None:
    rig = filmed(REAL)
    start = registered(replace(rig, lenses=(lens(1800.0),) * 3), 0, 1)
    assert start.is_accepted, start.reason
    again, anew = registered(rig, 0, 1, initial=start), pair_of(REAL, 1)
    assert again.control == start.control
    assert rotation_angle_deg(again.rotation, anew.rotation) < 0.5
    refused = replace(start, reason="score 0.21, needs 0.43")
    far = replace(start, rotation=exp_rotation(np.array([0, 1.0, 0])) @ start.rotation)
    for initial in (refused, far):
        assert registered(rig, 0, 1, initial=initial).score == anew.score


def test_errors_beyond_the_tolerance_do_not_support_a_pose() -> None:
    rig = filmed(replace(EXACT, noise_px=1.0))
    pair = registered(rig, 0, 1)
    assert 0.3 < pair.residual_px < 1.0, "the median of one normal coordinate of 1 px"
    assert pair.residual_px < TOLERANCE * rig.lenses[0].focal


def test_tracklets_with_confused_sides_are_used_with_exchanged_joints() -> None:
    """One of two tracklets has left and right exchanged; matches pair the joints that are one point in space."""
    rig = filmed(replace(REAL, breaks=1))
    tracklets = sorted(rig.people[1], key=lambda tracklet: len(tracklet.instants))
    confused = exchange_sides(tuple(tracklets[:1]))
    pair = registered(rig, 0, 1, (*confused, *tracklets[1:]))
    assert pair.is_accepted, pair.reason
    assert errors_deg(rig, pair)[0] < 4
    matches = pair.matches
    joints = matches.first_ids % 33, matches.second_ids % 33
    of_confused = matches.second_ids // 33 // rig.num_instants == 0
    np.testing.assert_array_equal(joints[1], np.where(of_confused, SWAPPED_SIDES[joints[0]], joints[0]))
    assert of_confused.sum() > 0.8 * 33 * len(confused[0].instants)
