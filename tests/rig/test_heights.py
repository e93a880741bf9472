"""The standing height of people from triangulated joints."""

from dataclasses import replace

import numpy as np
import pytest

from page4d.rig.adjust import Observations
from page4d.rig.length import person_height
from page4d.rig.records import NUM_JOINTS, Array
from tests.rig.people_rig import PERSON_HEIGHT, Filming, film_people


def tracks_of(joints: Array) -> tuple[Array, Observations]:
    """Return the points of people [I, 33, 3], each seen by two views."""
    count = joints.shape[0] * NUM_JOINTS
    person, joint = (index.ravel() for index in np.indices(joints.shape[:2]))
    tracks = Observations(
        view=np.tile([0, 1], count),
        point=np.repeat(np.arange(count), 2),
        pixels=np.zeros((2 * count, 2)),
        weights=np.ones(2 * count),
        person=person,
        instant=person,
        joint=joint,
    )
    return joints.reshape(-1, 3), tracks


def test_height_scales_with_the_rig_and_tolerates_missing_and_wrong_joints() -> None:
    joints = film_people(Filming(num_instants=40, seed=2)).joints[0]
    points, tracks = tracks_of(joints)
    height, std = person_height(points, tracks)
    assert 0.03 < std < 0.04
    assert height == pytest.approx(PERSON_HEIGHT, rel=0.12)
    assert person_height(3 * points, tracks) == pytest.approx((3 * height, std))
    moved = joints.copy()
    moved[:8] *= 2
    legs = np.isin(tracks.joint, (13, 14, 15, 16)).repeat(2)
    fewer, _ = person_height(tracks_of(moved)[0], replace(tracks, view=tracks.view))
    assert fewer == pytest.approx(height, rel=0.03)
    kept = tracks.select(~legs)
    assert person_height(points[~np.isin(tracks.joint, (13, 14, 15, 16))], kept)[0] == pytest.approx(height, rel=0.1)


def test_height_is_unknown_without_complete_people() -> None:
    joints = film_people(Filming(num_instants=40, seed=2)).joints[0]
    points, tracks = tracks_of(joints)
    above = tracks.joint < 17
    assert person_height(points[above], tracks.select(above.repeat(2))) is None
    assert person_height(*tracks_of(joints[:5])) is None
