"""Registration of a scene: which evidence is used, and notes about what is missing."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from page4d.choices import Registration
from page4d.errors import Notice
from page4d.options import RegisterSettings
from page4d.rig import register
from tests.rig.people_rig import Filming, film_people

WORLD = film_people(Filming(angles_deg=(0.0, 80.0), num_instants=30, noise_px=1.0, seed=1))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what registration reads of a scene: names and times; lenses and keypoints are those of `WORLD`."""
    monkeypatch.setattr(register, "lenses_of", lambda *_: WORLD.lenses)
    monkeypatch.setattr(register, "choose_instants", lambda *_: tuple(range(WORLD.num_instants)))
    monkeypatch.setattr(register, "detect_people", lambda *_: WORLD.people)
    return SimpleNamespace(view_names=("a", "b"), times=np.arange(WORLD.num_instants) / 30)


def run(scene: Any, notices: list[Notice]) -> Any:
    settings = RegisterSettings(register=Registration.PEOPLE)
    return register.register_rig(scene, settings, notices.append, lambda _done, _total, _stage: None)


def test_people_place_the_rig_the_same_way_twice(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "is_fetched", lambda: True)
    first, second = run(scene, []), run(scene, [])
    assert first.is_complete
    assert first.person_height > 0
    np.testing.assert_array_equal(first.views[0].world_to_camera, np.eye(4))
    for one, other in zip(first.views, second.views, strict=True):
        assert one.world_to_camera.tobytes() == other.world_to_camera.tobytes()


def test_a_missing_pose_model_is_noted(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "is_fetched", lambda: False)
    found = run(scene, [])
    assert found.num_placed == 0
    assert found.notes == (register.NO_POSE_MODEL,)
