"""A rig from keypoints of people: known and unknown focal length, views without evidence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from page4d.rig import checks
from page4d.rig.adjust import Adjustment
from page4d.rig.assembly import Assembly
from page4d.rig.checks import confirmed_rig, refuse_unconfirmed
from page4d.rig.epipolar import pixels_of, undistorted_pixels
from page4d.rig.graph import Placement
from page4d.rig.records import (
    Evidence,
    FocalSource,
    Lens,
    PairPose,
    PointMatches,
    ViewPeople,
    exp_rotation,
    rotation_angle_deg,
)
from page4d.rig.register import assumed_centers, placed_views
from page4d.rig.texture import ROOT_SIFT, TextureMatches, match_textures
from tests.rig.people_rig import FOCAL_PX, Filming, errors_deg, film_people
from tests.rig.people_rig import lens as people_lens

WORLD = film_people(
    Filming(angles_deg=(0.0, 70.0, 140.0), num_instants=30, num_people=1, noise_px=2.0, bias_px=2.0, seed=1)
)


NOBODY = ()


def assembled(
    people: Sequence[ViewPeople] | None = WORLD.people, lenses: Sequence[Lens] = WORLD.lenses, **options: Any
) -> Assembly:
    """Register views a, b, c ... of `WORLD`, from people alone by default."""
    options = {"num_instants": WORLD.num_instants} | options
    names = tuple(ascii_lowercase[: len(lenses)])
    return confirmed_rig(lambda lenses: Assembly(names=names, lenses=lenses, people=people, **options), lenses)


def of_texture(views: tuple[int, int], turn_deg: float = 0.0, **changes: Any) -> PairPose:
    """Return the true pose of a pair of views, turned by an angle."""
    wrong = exp_rotation(np.radians([0.0, turn_deg, 0.0]))
    rotation, direction = (wrong @ part for part in WORLD.relative_pose(*views))
    found = {"evidence": Evidence.TEXTURE, "rotation": rotation, "direction": direction, "score": 90} | changes
    return PairPose(views=views, **found)


def source(**changes: Any) -> Any:
    """Return a source of texture, without matches near epipolar lines by default."""

    def near(_pair: object, lenses: tuple[Lens, Lens], _pose: object, **_: object) -> TextureMatches:
        return match_textures({}, {}, lenses, ROOT_SIFT)

    default = {"method": ROOT_SIFT, "kind": Evidence.TEXTURE, "is_extracted": False, "near": near}
    return SimpleNamespace(**default | changes)


MILLIMETRES = np.diag([1e3, 1e3, 1e3, 1.0]) @ np.array([[0, -1, 0, 4], [0, 0, -1, -9], [1, 0, 0, 2], [0, 0, 0, 1]])


def in_millimetres(pose: np.ndarray) -> np.ndarray:
    """Return a camera in another world, whose unit is the millimetre."""
    moved = pose @ np.linalg.inv(MILLIMETRES)
    moved[:3] *= 1e3
    return moved


@pytest.mark.parametrize(("known", "focal"), [((2,), FocalSource.OPTION), ((0, 1), FocalSource.UNKNOWN)])
def test_views_are_placed_in_the_world_of_known_cameras_which_stay(known: tuple[int, ...], focal: FocalSource):
    """Two known cameras determine the unit, one leaves it open."""
    given = {view: WORLD.lenses[view].camera(in_millimetres(WORLD.world_to_camera[view])) for view in known}
    lenses = [lens if view in known else replace(lens, focal_source=focal) for view, lens in enumerate(WORLD.lenses)]
    assembly = assembled(lenses=lenses, known=given)
    records, cameras = placed_views(assembly)
    assert [record.source for record in records] == [
        "calibration" if view in known else "evidence" for view in range(3)
    ]
    assert all(cameras[view] is given[view] for view in known)
    poses = [camera.world_to_camera.numpy() for camera in cameras if camera is not None]
    true = [in_millimetres(pose) for pose in WORLD.world_to_camera]
    turns = [float(rotation_angle_deg(pose[:3, :3], one[:3, :3])) for pose, one in zip(poses, true, strict=True)]
    assert 0 < max(turns) < 4
    found, expected = (np.stack([np.linalg.inv(pose)[:3, 3] for pose in side]) for side in (poses, true))
    found, expected = found - found[known[0]], expected - expected[known[0]]
    extent = np.linalg.norm(found, axis=-1).max()
    unit = 1.0 if len(known) > 1 else extent / np.linalg.norm(expected, axis=-1).max()
    assert 0 < np.linalg.norm(found - unit * expected, axis=-1).max() < 0.1 * extent
    assert assembly.person_height[0] == pytest.approx(1700 * unit, rel=0.1)


def test_the_reason_of_a_view_without_accepted_pairs_is_what_its_best_pair_lacks():
    short = film_people(Filming(angles_deg=(0.0, 70.0), num_instants=20))
    records, _ = placed_views(assembled(short.people, short.lenses, num_instants=20))
    few = "no accepted pair, the best: 20 common instants with people, needs 25"
    assert [record.reason for record in records] == [few] * 2


@pytest.mark.parametrize("has_texture", [True, False])
def test_texture_alone_places_no_view_where_people_contradict_that_of_others(has_texture: bool):
    """Equal parts of a room match in a loop. People that contradict a part of it need neither be precise nor move."""
    assembly = assembled()
    people = replace(assembly.pairs[(0, 1), Evidence.PEOPLE], control=0.6, reason="0.60 with permuted instants")
    texture = of_texture((0, 2)), of_texture((1, 2))
    assembly.pairs = {pair.key: pair for pair in (people, *texture)}
    if has_texture:
        pair = assembly._fitting(of_texture((0, 1), 40.0))
        assembly.pairs[pair.key] = pair
    else:
        turned = assembly.placement.world_to_camera.copy()
        turned[1, :3] = exp_rotation(np.radians([0.0, 40.0, 0.0])) @ turned[1, :3]
        assembly.adjustment = replace(assembly.adjustment, world_to_camera=turned)
    assembly.placement = replace(assembly.placement, pairs=texture)
    checks._check_people(assembly)
    assert assembly.reasons == dict.fromkeys(range(3), "people in a and b contradict texture, which may repeat")


@pytest.mark.parametrize("check", ["_check_turns", "_check_focals"])
def test_cameras_that_only_a_refused_one_links_are_not_placed(check: str, monkeypatch: pytest.MonkeyPatch):
    assembly = assembled()
    monkeypatch.setattr(checks, check, lambda rig, *_: rig.reasons.update({1: "not stable"}))
    pairs = tuple(pair for pair in assembly.placement.pairs if 1 in pair.views)
    assembly.placement = replace(assembly.placement, pairs=pairs)
    refuse_unconfirmed(assembly)
    reasons = [record.reason for record in placed_views(assembly)[0]]
    assert reasons == ["no other camera is placed", "not stable", "only refused cameras link it to the others"]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_rotations_count_from_a_known_camera(known: int, monkeypatch: pytest.MonkeyPatch):
    """The new ones are well determined relative to each other, but not in the calibrated world."""
    assembly = assembled(known={known: WORLD.lenses[known].camera(WORLD.world_to_camera[known])})
    std = np.full((3, 3), 0.3)
    std[known], std[:, known] = 9.0, 9.0
    monkeypatch.setattr(Adjustment, "rotation_std_deg", lambda *_, **__: std * (1 - np.eye(3)))
    refuse_unconfirmed(assembly)
    assert assembly.reasons.keys() == {0, 1, 2} - {known}
    assert all("uncertain by 9 degrees" in reason for reason in assembly.reasons.values())


def test_two_unknown_lenses_are_not_left_by_the_refusal_of_a_third(monkeypatch: pytest.MonkeyPatch):
    lenses = tuple(replace(lens, focal_source=FocalSource.UNKNOWN) for lens in WORLD.lenses)
    assembly = assembled(lenses=lenses)
    std = np.array([[0.0, 0.3, 5.0], [0.3, 0.0, 5.0], [5.0, 5.0, 0.0]])
    monkeypatch.setattr(Adjustment, "rotation_std_deg", lambda *_, **__: std)
    refuse_unconfirmed(assembly)
    assert "uncertain by 5 degrees" in assembly.reasons[2]
    assert "two views do not determine" in assembly.reasons[0] == assembly.reasons[1]
    assert not assumed_centers(assembly)


def test_a_calibration_that_contradicts_the_evidence_is_reported():
    """A known camera that was turned by 25 degrees does not move; its pair is no evidence of the others."""
    turned = WORLD.world_to_camera.copy()
    turned[1, :3] = exp_rotation(np.radians([0.0, 25.0, 0.0])) @ turned[1, :3]
    given = {view: WORLD.lenses[view].camera(turned[view]) for view in (0, 1)}
    assembly = assembled(known=given)
    assert placed_views(assembly)[1][1] is given[1]
    assert "the calibration does not fit a and b: people shows them" in assembly.notes[0]


def test_a_rig_with_an_unknown_focal_length_is_registered(monkeypatch: pytest.MonkeyPatch):
    scale = np.array([[1.3, 1, 1], [1, 1.3, 1], [1, 1, 1]])
    lenses = tuple(
        replace(lens, intrinsics=lens.intrinsics * scale, focal_source=FocalSource.UNKNOWN) for lens in WORLD.lenses
    )
    found = assembled(lenses=lenses)
    views, cameras = placed_views(found)
    assert all(view.placed for view in views)
    assert "a, b, c: the principal point" in assumed_centers(found)
    assert not found.notes
    monkeypatch.setattr(checks, "_TURN_LIMITS_DEG", (0.1, np.inf))
    refuse_unconfirmed(found)
    assert len(found.notes) == 2, "all but the best view"
    assert all("may be turned by" in note for note in found.notes)
    monkeypatch.setattr(checks, "_TURN_LIMITS_DEG", (0.1, 0.1))
    refuse_unconfirmed(found)
    assert found.reasons.keys() == {1, 2}
    assert views[0].focal == pytest.approx(WORLD.lenses[0].focal, rel=0.05)
    assert errors_deg(WORLD, range(3), [camera.world_to_camera.numpy() for camera in cameras])[0] < 4


def test_distortion_of_unknown_lenses_is_estimated_where_people_show_it(monkeypatch):
    """The start value of the focal lengths is 50 % too large: three rounds do not suffice."""
    monkeypatch.setattr("page4d.rig.people.pose.NUM_CONTROLS", 0)
    k1 = (-0.25, 0.0, 0.2)
    world = film_people(
        Filming(
            angles_deg=(0.0, 60.0, 120.0),
            num_instants=40,
            num_people=2,
            noise_px=1.0,
            ratios=(1.0, 0.93, 1.05),
            k1=k1,
            seed=3,
        )
    )
    start = WORLD.lenses[0].intrinsics * [[1.5, 1, 1], [1, 1.5, 1], [1, 1, 1]]
    unknown = [Lens(intrinsics=start, image_size=lens.image_size) for lens in world.lenses]
    _, cameras = placed_views(assembled(world.people, unknown, num_instants=world.num_instants))
    for view, (camera, bent) in enumerate(zip(cameras, k1, strict=True)):
        assert float(camera.intrinsics[0, 0]) == pytest.approx(world.lenses[view].focal, rel=0.02)
        assert (camera.distortion.coefficients[0] if bent else camera.distortion or 0) == pytest.approx(
            bent, abs=0.05
        )
    assert errors_deg(world, range(3), [camera.world_to_camera.numpy() for camera in cameras])[0] < 0.5


def test_a_view_without_people_is_named_and_two_unknown_views_are_refused():
    views, _ = placed_views(assembled((*WORLD.people[:2], NOBODY)))
    assert [view.placed for view in views] == [True, True, False]
    assert views[2].reason == "no pair with common evidence"
    unknown = tuple(replace(lens, focal_source=FocalSource.UNKNOWN) for lens in WORLD.lenses[:2])
    for view in placed_views(assembled(WORLD.people[:2], unknown))[0]:
        assert "unknown focal length" in view.reason


def test_a_rig_without_evidence_is_not_placed():
    assert not any(view.placed for view in placed_views(assembled((NOBODY,) * 3))[0])


@pytest.mark.parametrize(("turn_deg", "is_kept"), [(2.0, True), (30.0, False)])
def test_texture_that_contradicts_the_people_is_refused(monkeypatch, turn_deg: float, is_kept: bool):
    monkeypatch.setattr(Assembly, "_people_suffice", lambda _: False)

    further: list[object] = []

    def learned(views: tuple[int, int], _lenses: object, **_: object) -> PairPose:
        further.append(views)
        return of_texture(views, turn_deg, evidence=Evidence.LEARNED)

    sift = source(registered=lambda views, _lenses, **_: of_texture(views, turn_deg))
    assembly = assembled(texture=(sift, source(registered=learned)))
    assert all(view.placed for view in placed_views(assembly)[0])
    found = [pair for pair in assembly.pairs.values() if pair.evidence is Evidence.TEXTURE]
    assert [pair.views for pair in found] == [(0, 1), (1, 2)]
    assert all(pair.is_accepted == is_kept for pair in found)
    assert not further, "the next method is for rigs that are not whole"


def seen(count: int, noise_px: float) -> Callable[..., TextureMatches]:
    """Return the matches of points in the room that all views see."""
    rng = np.random.default_rng(0)
    points = rng.uniform([-2, -2.5, -2], [2, 0, 2], (count, 3))
    local = np.einsum("vij,nj->vni", WORLD.world_to_camera[:, :3, :3], points) + WORLD.world_to_camera[:, None, :3, 3]
    pixels = np.einsum("vij,vnj->vni", np.stack([lens.intrinsics for lens in WORLD.lenses]), local)
    pixels = pixels[..., :2] / pixels[..., 2:] + rng.normal(scale=noise_px, size=(3, count, 2))

    def near(
        pair: tuple[int, int], lenses: tuple[Lens, Lens], _pose: object, *, are_alone: bool = False
    ) -> TextureMatches:
        assert not are_alone or pair == (0, 1)
        ids = np.arange(count)
        first, second = pixels[list(pair)]
        sides = {"first": first, "second": second, "first_ids": ids, "second_ids": ids, "keys": ids}
        return TextureMatches(**sides, lenses=lenses, instants=0 * ids, tolerance=0.002)

    return near


@pytest.mark.parametrize("kind", [Evidence.LEARNED, Evidence.TEXTURE])
def test_two_views_are_adjusted_to_more_matches_of_the_learned_texture_that_placed_them(kind: Evidence):
    few = seen(60, 2.0)((0, 1), (WORLD.lenses[0], WORLD.lenses[1]), None)
    matches = PointMatches(
        first=few.first, second=few.second, weights=np.ones(60), first_ids=few.keys, second_ids=few.keys
    )

    def registered(views: tuple[int, int], _lenses: object, **_: object) -> PairPose:
        return of_texture(views, 0.5, evidence=kind, matches=matches)

    method = replace(ROOT_SIFT, evidence=kind)
    texture = source(registered=registered, near=seen(400, 0.2), kind=kind, method=method, is_extracted=True)
    assembly = assembled(None, WORLD.lenses[:2], texture=(texture,))
    error = float(rotation_angle_deg(assembly.cameras()[1][:3, :3], WORLD.relative_pose(0, 1)[0]))
    assert (error < 0.02) == (kind is Evidence.LEARNED), error
    assert assembly.accepted()[0].score == (400 if kind is Evidence.LEARNED else 90)


@pytest.mark.parametrize("noise_px", [0.3, 300.0])
def test_matches_near_epipolar_lines_improve_cameras_from_people_or_are_not_used(noise_px: float):
    stages: tuple[set[str], ...] = (set(), set())
    assemblies = [
        assembled(texture=sources, progress=lambda _, __, stage, own=own: own.add(stage))
        for sources, own in zip(((), (source(near=seen(400, noise_px)),)), stages, strict=True)
    ]
    assert ["registering: matches near epipolar lines" in own for own in stages] == [False, True]
    errors = [errors_deg(WORLD, range(3), assembly.cameras())[0] for assembly in assemblies]
    used = {views for views, evidence in assemblies[1].pairs if evidence is Evidence.TEXTURE}
    if noise_px < 1:
        assert used == {(0, 1), (1, 2)}, "the third pair is too far apart"
        assert errors[1] < 0.1 < errors[0]
    else:
        assert not used
        assert errors[0] == errors[1]


def test_views_of_large_rigs_are_matched_with_the_nearest_ones():
    """A ring of 24 cameras, 15 degrees apart: 24 x 8 / 2 pairs are within 75 degrees."""
    cameras = np.tile(np.eye(4), (24, 1, 1))
    cameras[:, :3, :3] = exp_rotation(np.radians(15.0) * np.arange(24)[:, None] * [[0.0, 1.0, 0.0]])
    cameras[:, 2, 3] = 3.0
    assembly = Assembly(names=tuple(map(str, range(24))), lenses=[WORLD.lenses[0]] * 24, people=None, num_instants=1)
    assembly.placement = Placement(views=tuple(range(24)), world_to_camera=cameras, pairs=())
    assembly.adjustment = SimpleNamespace(world_to_camera=cameras, intrinsics=[WORLD.lenses[0].intrinsics] * 24)
    pairs = assembly._near_pairs()
    gaps = {min(other - one, 24 - other + one) for one, other in pairs}
    assert gaps == {1, 2}
    assert len(pairs) == 48


@pytest.mark.parametrize(
    ("focal", "texture_alone", "is_used"),
    [(FocalSource.OPTION, False, True), (FocalSource.UNKNOWN, False, False), (FocalSource.UNKNOWN, True, True)],
)
def test_texture_needs_known_focal_lengths_unless_it_is_to_determine_them_alone(
    focal: FocalSource, texture_alone: bool, is_used: bool
):
    tried = []

    def texture(views: tuple[int, int], _lenses: tuple[Lens, Lens], *, is_rough: bool, **_: object) -> PairPose:
        tried.append(is_rough)
        return of_texture(views, score=12.0, reason="few")

    assembly = assembled(
        (NOBODY,) * 3,
        [replace(lens, focal_source=focal) for lens in WORLD.lenses],
        texture=(source(registered=texture),),
        texture_alone=texture_alone,
    )
    assert tried == [texture_alone] * 3 * is_used
    reasons = [view.reason for view in placed_views(assembly)[0]]
    expected = "no accepted pair, the best: few" if is_used else "texture needs known focal lengths"
    assert all(expected in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("ratios", "k1", "depth", "turn_deg", "reason"),
    [
        ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), 1.0, 0.0, ""),
        ((1.0, 1.2, 0.9), (0.0, 0.0, 0.0), 1.0, 0.0, ""),
        ((1.0, 1.2, 0.9), (-0.3, 0.1, 0.0), 1.0, 0.0, ""),
        ((1.0, 1.2, 0.9), (0.0, 0.0, 0.0), 0.02, 0.0, "texture determines its focal length to"),
        ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), 1.0, 9.0, "9 degrees from the nearest of its pairs"),
    ],
)
def test_texture_alone_places_views_whose_lenses_it_determines(
    ratios: tuple[float, ...], k1: tuple[float, ...], depth: float, turn_deg: float, reason: str
):
    random = np.random.default_rng(0)
    points = depth * random.uniform(-1, 1, (150, 3)) - [0, 1, 0]
    pixels = []
    for pose, ratio, bent in zip(WORLD.world_to_camera, ratios, k1, strict=True):
        seen = points @ pose[:3, :3].T + pose[:3, 3]
        plane = seen[:, :2] / seen[:, 2:]
        plane = plane * (1 + bent * (plane**2).sum(-1, keepdims=True))
        pixels.append(pixels_of(plane, people_lens(ratio * FOCAL_PX)) + random.normal(scale=0.3, size=plane.shape))

    rough = []

    def texture(views: tuple[int, int], lenses: tuple[Lens, Lens], *, is_rough: bool, **_: object) -> PairPose:
        rough.append(is_rough)
        ids = np.arange(len(points))
        first, second = (undistorted_pixels(pixels[view], lens) for view, lens in zip(views, lenses, strict=True))
        return of_texture(
            views,
            turn_deg * (views == (1, 2)),
            score=len(points),
            reason="refused" if turn_deg and views == (0, 2) else "",
            matches=PointMatches(
                first=first, second=second, weights=np.ones(len(ids)), first_ids=ids, second_ids=ids
            ),
        )

    unknown = [replace(lens, focal_source=FocalSource.UNKNOWN) for lens in WORLD.lenses]
    assembly = assembled(None, unknown, texture=(source(registered=texture),), texture_alone=True, num_instants=1)
    records, cameras = placed_views(assembly)
    assert [record.placed for record in records] == [not reason] * 3
    assert rough[0], "focal lengths are start values"
    assert not rough[-1], "the last poses pass all gates, even if the start values are right"
    if reason:
        assert reason in records[-1].reason
        return
    for record, ratio, bent, camera in zip(records, ratios, k1, cameras, strict=True):
        assert record.focal == pytest.approx(ratio * FOCAL_PX, rel=0.01)
        found = 0.0 if camera.distortion is None else camera.distortion.coefficients[0]
        assert found == pytest.approx(bent, abs=0.03)
    assert errors_deg(WORLD, range(3), [camera.world_to_camera.numpy() for camera in cameras])[0] < 0.5


def test_an_unknown_lens_keeps_its_start_where_only_known_ones_are_placed():
    lenses = [*WORLD.lenses[:2], replace(WORLD.lenses[2], focal_source=FocalSource.UNKNOWN)]
    records, cameras = placed_views(assembled([*WORLD.people[:2], NOBODY], lenses, texture_alone=True))
    assert [camera is not None for camera in cameras] == [True, True, False]
    assert [record.focal for record in records] == [FOCAL_PX] * 3


def test_pairs_are_tried_by_every_method_and_those_of_large_rigs_by_common_texture():
    tried: list[tuple[Evidence, tuple[int, int]]] = []

    def texture(evidence: Evidence) -> Any:
        def register(views: tuple[int, int], _lenses: tuple[Lens, Lens], **_: object) -> PairPose:
            tried.append((evidence, views))
            return PairPose(views=views, evidence=evidence, reason="few")

        return source(registered=register, affinity=lambda: np.where(distance < 3, 100.0 - distance, 1.0))

    order = np.random.default_rng(0).permutation(16)
    distance = np.abs(order[:, None] - order[None])
    assembled(
        None, [WORLD.lenses[0]] * 16, texture=(texture(Evidence.TEXTURE), texture(Evidence.LEARNED)), num_instants=1
    )
    learned = {views for evidence, views in tried if evidence is Evidence.LEARNED}
    assert learned == {views for evidence, views in tried if evidence is Evidence.TEXTURE}
    assert learned >= {(a, b) for a, b in combinations(range(16), 2) if distance[a, b] == 1}
    assert len(learned) < 48
