"""Registration stays affordable: pairs of a large rig are chosen, and texture is extracted only where it can help."""

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
from page4d.rig.records import Evidence, Lens, PairPose, PointMatches
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
