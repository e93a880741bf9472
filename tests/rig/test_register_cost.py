"""Registration of a scene: which evidence is used, which pairs and texture it takes, and notes of what is missing."""

from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
import pytest

from page4d.choices import Registration
from page4d.rig import assembly as assemble
from page4d.rig import evidence, register, texture, texture_pairs
from page4d.rig.assembly import Assembly
from page4d.rig.checks import refuse_unconfirmed
from page4d.rig.records import Evidence, Lens, PairPose, PointMatches, RigRegistration
from page4d.rig.register import placed_views
from page4d.rig.texture import InstantTexture
from tests.rig.people_rig import Filming, PeopleRig, evidence_of, film_people

RIG = film_people(Filming(angles_deg=(0.0, 50.0, 100.0), num_instants=30, noise_px=1.0, seed=1))


class NoFeatures(dict[int, InstantTexture]):
    """Those of a view, which can be referred to weakly."""


def with_texture(rig: PeopleRig, people: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Register from people and from texture without features; return the result and those of every extraction."""
    calls: list[Any] = []

    def extract(*_: object) -> tuple[NoFeatures, ...]:
        nowhere = NoFeatures()
        calls.append(ref(nowhere))
        return (nowhere,) * len(rig.lenses)

    monkeypatch.setattr(register, "is_fetched", lambda: True)
    monkeypatch.setattr(texture, "extract_texture", extract)
    monkeypatch.setattr(evidence, "with_content", lambda scene, _: scene)

    def nothing(_matches: object, pair: tuple[int, int], _seed: int, _method: object, **_: object) -> PairPose:
        return PairPose(views=pair, evidence=Evidence.TEXTURE, reason="none")

    monkeypatch.setattr(texture_pairs, "register_texture_pair", nothing)
    pixels = evidence_of(rig, Registration.AUTO)
    pixels.people, pixels.samples = people, ()
    record = register.register_rig(pixels, lambda _: None).record
    assert all(features() is None for features in calls), "features stay in memory"
    return record, calls


@pytest.mark.parametrize(
    ("is_known", "num_with_people", "num_placed", "num_calls"), [(False, 3, 3, 0), (True, 3, 3, 1), (True, 2, 2, 1)]
)
def test_texture_is_extracted_once_and_not_where_people_suffice_for_unknown_lenses(
    is_known: bool, num_with_people: int, num_placed: int, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = tuple(Lens(intrinsics=lens.intrinsics, image_size=lens.image_size) for lens in RIG.lenses)
    nobody = ()
    people = (*RIG.people[:num_with_people], *[nobody] * (3 - num_with_people))
    found, calls = with_texture(RIG if is_known else replace(RIG, lenses=unknown), people, monkeypatch)
    assert found.num_placed == num_placed
    assert len(calls) == num_calls
    assert ("texture" in found.seconds) == bool(num_calls)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_rig_of_16_views_tries_few_pairs_in_every_round(is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = film_people(Filming(angles_deg=tuple(22.5 * np.arange(16)), num_instants=30, noise_px=1.0, seed=2))
    tried: list[tuple[int, int]] = []

    def true_pair(
        first: object, second: object, lenses: tuple[Lens, Lens], indices: tuple[int, int], *_: object
    ) -> PairPose:
        del first, second, lenses
        tried.append(indices)
        rotation, direction = rig.relative_pose(*indices)
        return PairPose(
            views=indices,
            evidence=Evidence.PEOPLE,
            rotation=rotation,
            direction=direction,
            score=0.6,
            matches=matches(rig, indices),
        )

    monkeypatch.setattr(assemble, "register_people_pair", true_pair)
    lenses = [
        lens if is_known else Lens(intrinsics=lens.intrinsics, image_size=lens.image_size) for lens in rig.lenses
    ]
    assembly = Assembly(
        names=tuple(f"cam{view:02}" for view in range(16)),
        lenses=lenses,
        people=rig.people,
        num_instants=rig.num_instants,
    )
    assembly.run()
    refuse_unconfirmed(assembly)
    assert all(view.placed for view in placed_views(assembly)[0])
    assert len(set(tried)) <= 48
    assert len(tried) <= 3 * 48


def matches(rig: PeopleRig, indices: tuple[int, int]) -> PointMatches:
    """Return the joints that both views see at every third instant."""
    parts: list[list[np.ndarray]] = [[], []]
    ids = []
    for instant in range(0, rig.num_instants, 3):
        for part, view in zip(parts, indices, strict=True):
            part.append(rig.people[view][0].joints[instant])
        ids.append(instant * 33 + np.arange(33))
    first, second = (np.concatenate(part) for part in parts)
    one = np.concatenate(ids)
    return PointMatches(first=first, second=second, weights=np.ones(len(first)), first_ids=one, second_ids=one)


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
