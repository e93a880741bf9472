"""Registration of a scene: which evidence is used, and notes about what is missing."""

from dataclasses import replace

import numpy as np
import pytest

from page4d.choices import Registration
from page4d.rig import register
from page4d.rig.records import RigRegistration
from tests.rig.people_rig import Filming, evidence_of, film_people

WORLD = film_people(Filming(angles_deg=(0.0, 80.0), num_instants=30, noise_px=1.0, seed=1))


def run() -> RigRegistration:
    return register.register_rig(evidence_of(WORLD, Registration.PEOPLE), lambda _: None)


def test_people_place_the_rig_the_same_way_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "is_fetched", lambda: True)
    first, second = run(), run()
    assert first.record.is_complete
    assert first.record.person_height > 0
    np.testing.assert_array_equal(first.cameras[0].world_to_camera, np.eye(4))
    for one, other in zip(first.cameras, second.cameras, strict=True):
        assert one.world_to_camera.tolist() == other.world_to_camera.tolist()


def test_the_clock_of_one_of_two_views_is_reported_if_they_fit_better_at_another_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(register, "is_fetched", lambda: True)
    monkeypatch.setattr(register, "late_views", lambda *_: {0: -1.2, 1: 1.2})
    (note,) = run().record.notes
    assert note.startswith("people in cam01 fit the other views 0.04 s later")


@pytest.mark.parametrize(("score", "late"), [(0.6, ["cam00"]), (0.3, ["cam01"])])
def test_people_of_a_view_that_is_not_placed_show_which_of_two_views_is_late(
    score: float, late: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pairs are witnesses unless people agree in them by chance: then the last of both views is named."""
    monkeypatch.setattr(register, "is_fetched", lambda: True)
    evidence = evidence_of(film_people(Filming(num_instants=40, delays=(2.0, 0.0, 0.0))), Registration.PEOPLE)
    rig = register.assembled(evidence)
    rig.reasons, rig.notes = {2: "not placed"}, []
    for key, pair in rig.pairs.items():
        if 2 in pair.views:
            rig.pairs[key] = replace(pair, score=score, reason="halves of the instants differ")
    register._note_clocks(rig, evidence)
    assert [note.split()[2] for note in rig.notes] == late


def test_a_missing_pose_model_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "is_fetched", lambda: False)
    found = run()
    assert found.record.num_placed == 0
    assert found.record.notes == [register.NO_POSE_MODEL]
