"""People in space: joints from several placed cameras, and their detection in blocks of instants."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from page4d.rig.people import placed
from page4d.rig.people.keypoints import undistorted_tracklet
from page4d.rig.people.placed import PlacedPeople, placed_joints
from page4d.rig.records import Array, Lens, RigCamera, ViewPeople
from page4d.scene.records import Scene
from tests.rig.people_rig import IMAGE_SIZE, Filming, PeopleRig, film_people


def cameras_of(rig: PeopleRig) -> list[RigCamera]:
    return [
        RigCamera(lens=lens, world_to_camera=pose) for lens, pose in zip(rig.lenses, rig.world_to_camera, strict=True)
    ]


def known(joints: Array) -> NDArray[np.bool_]:
    return np.isfinite(joints[:, [11, 12, 23, 24]]).all((1, 2))


def test_joints_are_where_several_cameras_see_them_at_the_instants_of_the_people() -> None:
    rig = film_people(Filming(num_people=2, num_false=1, missed=0.1, noise_px=2.0, seed=4))
    joints, instants = placed_joints(cameras_of(rig), rig.people, rig.num_instants)
    seen = known(joints)
    assert 1.6 * rig.num_instants < seen.sum() < 2.1 * rig.num_instants
    errors = [
        np.nanmedian(np.linalg.norm(person - rig.joints[:, instant], axis=-1), axis=1).min()
        for person, instant in zip(joints[seen], instants[seen], strict=True)
    ]
    assert np.quantile(errors, 0.95) < 0.02


def test_nobody_is_placed_whom_one_camera_alone_sees() -> None:
    rig = film_people(Filming(num_instants=20))
    joints, _ = placed_joints(cameras_of(rig), (rig.people[0], (), ()), rig.num_instants)
    assert not len(joints)


@pytest.mark.parametrize(("baseline_deg", "is_placed"), [(2.0, False), (20.0, True)])
def test_joints_need_rays_that_are_not_nearly_parallel(baseline_deg: float, is_placed: bool) -> None:
    rig = film_people(Filming(angles_deg=(0.0, baseline_deg), num_instants=8))
    joints, _ = placed_joints(cameras_of(rig), rig.people, rig.num_instants, 12.0)
    assert bool(known(joints).any()) is is_placed


def scene_of(rig: PeopleRig) -> Scene:
    cameras = [camera.lens.camera(camera.world_to_camera) for camera in cameras_of(rig)]
    views: Any = [SimpleNamespace(camera=camera, source=SimpleNamespace(size=IMAGE_SIZE)) for camera in cameras]
    return Scene(name="rig", views=tuple(views), times=np.arange(rig.num_instants) / 30)


def test_somebody_half_as_tall_as_others_is_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joints of two people in a row, each hidden in one of two views, meet at half the distance."""
    rig = film_people(Filming(num_instants=4, num_people=2))
    monkeypatch.setattr(placed, "detect_people", lambda *_, **__: rig.people)
    whole = PlacedPeople(scene_of(rig), range(3)).at(2)
    assert len(whole) == 2
    joints, instants = placed_joints(cameras_of(rig), rig.people, 4)
    joints[instants == 2] *= np.where(np.arange((instants == 2).sum()) == 0, 0.5, 1.0)[:, None, None]
    monkeypatch.setattr(placed, "placed_joints", lambda *_: (joints, instants))
    assert len(PlacedPeople(scene_of(rig), range(3)).at(2)) == 1


def test_people_are_detected_in_blocks_of_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = film_people(Filming(num_instants=5, k1=(-0.1, 0.0, 0.1)))
    asked: list[list[int]] = []

    def detected(_: Scene, instants: range, lenses: list[Lens], *__: object, keeps_short: bool) -> list[ViewPeople]:
        assert keeps_short
        asked.append(list(instants))
        within = [people[0].at(np.isin(people[0].instants, asked[-1])) for people in rig.people]
        ideal = [undistorted_tracklet(one, lens) for one, lens in zip(within, lenses, strict=True)]
        return [(replace(one, instants=one.instants - instants[0]),) for one in ideal]

    monkeypatch.setattr(placed, "detect_people", detected)
    monkeypatch.setattr(placed, "_MIN_LENGTH", 2)
    monkeypatch.setattr(placed, "BLOCK", 6)
    people = PlacedPeople(scene_of(rig), range(3))
    for instant in range(5):
        found = people.at(instant)
        torch.testing.assert_close(found, torch.from_numpy(rig.joints[:, instant]), atol=1e-3, rtol=0)
    assert asked == [[0, 1], [2, 3], [4]]
