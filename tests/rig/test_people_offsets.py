"""Pair scores at offsets of time: the curve peaks at the lag of the second view."""

from dataclasses import replace

import numpy as np
import pytest
from people_rig import Filming, film_people

from page4d.rig.epipolar import RelativePose
from page4d.rig.people_offsets import score_offsets, shifted_people
from page4d.rig.people_pairs import pair_score
from page4d.rig.records import ViewPeople

SMOOTH = Filming(angles_deg=(0.0, 75.0), num_instants=48, bias_px=4.0, seed=3)


@pytest.mark.parametrize("lag", [0.0, 5.0, -7.0])
def test_the_score_peaks_at_the_lag_of_the_second_view(lag: float) -> None:
    rig = film_people(replace(SMOOTH, delays=(0.0, lag)))
    shifts = [lag + step for step in (-12, -4, -1, 0, 1, 4, 12)]
    scores = score_offsets(*rig.people, (rig.lenses[0], rig.lenses[1]), shifts, rig.num_instants)
    assert shifts[int(np.argmax(scores))] == lag
    assert scores.max() > 1.4 * max(scores[0], scores[-1])


def test_with_a_given_pose_only_its_score_is_computed() -> None:
    rig = film_people(replace(SMOOTH, bias_px=0.0, delays=(0.0, 2.5)))
    rotation, direction = rig.relative_pose(0, 1)
    pose = RelativePose(rotation=rotation, direction=direction)
    lenses = (rig.lenses[0], rig.lenses[1])
    scores = score_offsets(*rig.people, lenses, [0, 2.5, 5, 40], rig.num_instants, pose=pose)
    assert scores[1] > 0.95
    assert max(scores[0], scores[2]) < 0.8 * scores[1]
    assert scores[3] == 0, "8 common instants are too few"
    assert scores[0] == pair_score(*rig.people, lenses, pose, rig.num_instants)


def test_offsets_without_people_score_zero() -> None:
    nobody = ViewPeople(tracklets=())
    rig = film_people(SMOOTH)
    scores = score_offsets(rig.people[0], nobody, (rig.lenses[0], rig.lenses[1]), [-1, 0], rig.num_instants)
    np.testing.assert_array_equal(scores, [0, 0])


@pytest.mark.parametrize("shift", [-3.0, 0.25, 4.0])
def test_shifted_people_are_those_of_another_clock(shift: float) -> None:
    """Keypoints at t + shift are found at t, within the curvature of paths between two instants."""
    still = replace(SMOOTH, bias_px=0.0, missed=0.2)
    rig, later = film_people(still), film_people(replace(still, missed=0.0, delays=(0.0, -shift)))
    for tracklet in shifted_people(rig.people[1], shift, rig.num_instants).tracklets:
        assert ((tracklet.instants >= 0) & (tracklet.instants < rig.num_instants)).all()
        assert (np.diff(tracklet.instants) > 0).all()
        expected = later.people[1].tracklets[0].joints[tracklet.instants]
        assert np.abs(tracklet.joints - expected).max() < (1e-6 if shift == int(shift) else 15)
        gaps = np.diff(rig.people[1].tracklets[0].instants) > 1
        assert gaps.any()
