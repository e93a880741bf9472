"""People in space: joints from several placed cameras, and their detection in blocks of instants."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from page4d.rig.people import placed
from page4d.rig.people.placed import PlacedPeople, placed_joints
from page4d.rig.records import Array, RigCamera, ViewPeople
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


def scene_of(rig: PeopleRig) -> Scene:
    cameras = [camera.lens.camera(camera.world_to_camera) for camera in cameras_of(rig)]
    views: Any = [SimpleNamespace(camera=camera, source=SimpleNamespace(size=IMAGE_SIZE)) for camera in cameras]
    return Scene(name="rig", views=tuple(views), times=np.arange(rig.num_instants) / 30)


def test_people_are_detected_in_blocks_of_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = film_people(Filming(num_instants=5))
    asked: list[list[int]] = []

    def detected(_: Scene, instants: range, *__: object, keeps_short: bool) -> list[ViewPeople]:
        assert keeps_short
        asked.append(list(instants))
        within = [people[0].at(np.isin(people[0].instants, asked[-1])) for people in rig.people]
        return [(replace(one, instants=one.instants - instants[0]),) for one in within]

    monkeypatch.setattr(placed, "detect_people", detected)
    monkeypatch.setattr(placed, "BLOCK", 2)
    people = PlacedPeople(scene_of(rig), range(3))
    for instant in range(5):
        found = people.at(instant)
        torch.testing.assert_close(found, torch.from_numpy(rig.joints[:, instant]), atol=1e-3, rtol=0)
    assert asked == [[0, 1], [2, 3], [4]]
