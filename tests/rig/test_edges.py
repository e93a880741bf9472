"""Directions of straight edges in views, focal lengths from them, and rigs that they correct."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from page4d.rig import checks
from page4d.rig import edges as edges_module
from page4d.rig.assembly import Assembly
from page4d.rig.checks import refuse_unconfirmed
from page4d.rig.edges import Directions, ViewEdges, in_order, shared_directions, straight_segments
from page4d.rig.records import Evidence, FocalSource, Lens, PairPose, exp_rotation, rotation_angle_deg
from page4d.rig.register import placed_views
from page4d.scene.open import open_scene
from tests.rig.people_rig import FOCAL_PX, Filming, PeopleRig, errors_deg, film_people
from tests.rig.test_assemble import assembled, source

SIZE = (1080, 1920)
AXES = exp_rotation(np.array([0.02, 0.4, -0.03]))
"""Directions of the room in the world, which no camera is parallel to."""


def lens(focal: float = 1500.0, source: FocalSource = FocalSource.UNKNOWN) -> Lens:
    """Return a lens with the principal point at the centre."""
    matrix = np.array([[focal, 0, SIZE[1] / 2], [0, focal, SIZE[0] / 2], [0, 0, 1.0]])
    return Lens(intrinsics=matrix, image_size=SIZE, focal_source=source)


def room(rotation: np.ndarray, true: Lens, counts: tuple[int, ...] = (30, 30, 30), others: int = 20) -> ViewEdges:
    """Return edges along each axis of a frame, with an error of half a pixel at their ends, and others."""
    random = np.random.default_rng(0)
    height, width = true.image_size
    segments = []
    for axis, count in [*enumerate(counts), (None, others)]:
        start = random.uniform(0.1, 0.9, (count, 2)) * [width, height]
        towards = random.normal(size=(count, 2))
        if axis is not None:
            vanishing = true.intrinsics @ rotation[:, axis]
            towards = vanishing[:2] - vanishing[2] * start
        towards /= np.linalg.norm(towards, axis=1, keepdims=True)
        end = start + random.uniform(0.05, 0.2, (count, 1)) * width * towards
        segments.append(np.stack([start, end], 1) + random.normal(0, 0.5, (count, 2, 2)))
    return edges_of(np.concatenate(segments))


def edges_of(segments: np.ndarray) -> ViewEdges:
    """Return edges that were found."""
    edges: Any = ViewEdges(None, ())  # type: ignore[arg-type]
    vars(edges)["segments"] = segments
    return edges


@pytest.mark.parametrize("seed", range(2))
def test_a_room_shows_rotation_and_focal_length(seed: int):
    """Among a fifth of other edges, through known and unknown lenses of 1200 to 2600 px."""
    random = np.random.default_rng(seed)
    true, rotation = lens(random.uniform(1200, 2600)), exp_rotation(random.uniform(-0.5, 0.5, 3))
    edges = room(rotation, true)
    start = edges.start(lens())
    assert start is not None
    assert start.focal == pytest.approx(true.focal, rel=0.06)
    found = edges.directions(start)
    assert found is not None
    assert start.focal * np.exp(found.log_focal) == pytest.approx(true.focal, rel=0.01)
    assert in_order(found, rotation)[1] < 0.3
    known = edges.directions(replace(true, focal_source=FocalSource.OPTION))
    assert known is not None
    assert known.log_focal == 0.0
    assert not known.information[3].any()
    assert in_order(known, rotation)[1] < 0.2


@pytest.mark.parametrize("finds", ["rotation", "focal", "center"])
def test_derivatives_of_errors_are_their_differences(finds: str, monkeypatch: pytest.MonkeyPatch):
    """Away from the solution, by a rotation, a focal length and a principal point."""
    minimise, step, sizes = edges_module.least_squares, 1e-5, set()

    def checked(error: Any, values: np.ndarray, **options: Any) -> Any:
        place = values + 0.05 * np.arange(1, len(values) + 1)
        steps = step * np.eye(len(values))
        differences = np.stack([(error(place + one) - error(place - one)) / (2 * step) for one in steps], -1)
        assert options["jac"](place) == pytest.approx(differences, rel=1e-4, abs=1e-2)
        sizes.add(len(values))
        return minimise(error, values, **options)

    monkeypatch.setattr(edges_module, "least_squares", checked)
    true = lens(1800.0, FocalSource.OPTION if finds == "rotation" else FocalSource.UNKNOWN)
    edges = room(exp_rotation(np.array([0.3, -0.2, 0.1])), true)
    found = edges.crop(true) if finds == "center" else edges.directions(true)
    assert (found is None) == (finds == "center")
    assert {"rotation": 3, "focal": 4, "center": 6}[finds] in sizes


@pytest.mark.parametrize(
    ("counts", "others", "has_directions", "has_focal"),
    [
        ((30, 30, 30), 10, True, True),
        ((60, 0, 0), 25, False, False),  # one direction alone
        ((20, 20, 20), 200, False, False),
        ((0, 0, 0), 90, False, False),
        ((5, 5, 5), 0, False, False),
        ((0, 0, 0), 0, False, False),
    ],
)
def test_other_views_show_none(counts: tuple[int, ...], others: int, has_directions: bool, has_focal: bool):
    """Edges along one direction, in random ones, and too few of them show no rotation and no focal length."""
    edges = room(exp_rotation(np.array([0.3, 0.4, 0.2])), lens(), counts, others)
    assert (edges.directions(lens()) is not None) == has_directions
    assert (edges.start(lens()) is not None) == has_focal


@pytest.mark.parametrize(
    ("offset", "counts", "is_cropped"),
    [
        ((0.12, -0.05), (30, 30, 30), True),
        ((0.0, 0.2), (60, 20, 20), True),
        ((0.02, 0.02), (30, 30, 30), False),  # as lenses have
        ((0.12, -0.05), (60, 60, 6), False),  # few edges along one direction
    ],
)
def test_edges_show_the_principal_point_of_a_cropped_picture(
    offset: tuple[float, float], counts: tuple[int, ...], is_cropped: bool
):
    rotation = exp_rotation(np.array([0.3, 0.5, 0.1]))
    matrix = lens(1700.0).intrinsics + np.pad(np.array(offset)[:, None] * max(SIZE), ((0, 1), (2, 0)))
    found = room(rotation, replace(lens(), intrinsics=matrix), counts).crop(lens())
    assert (found is not None) == is_cropped
    if found is not None:
        np.testing.assert_allclose(found.intrinsics[:2], matrix[:2], atol=0.02 * max(SIZE))


def test_other_directions_that_explain_as_many_edges_are_rivals():
    """The axes of some edges are turned by 6 degrees: a few change little, as many leave the directions open."""
    true, rotation = lens(source=FocalSource.OPTION), exp_rotation(np.array([0.3, 0.4, 0.2]))
    turned = rotation @ exp_rotation(np.radians([4.0, 3.0, -3.0]))
    for count, is_found in ((14, True), (30, False)):
        both = [room(rotation, true, others=0), room(turned, true, (count,) * 3, others=0)]
        edges = edges_of(np.concatenate([edges.segments for edges in both]))
        for given in (true, lens(0.97 * true.focal)):
            found = edges.directions(given)
            assert (found is not None) == is_found
            assert found is None or in_order(found, rotation)[1] < 0.5


def test_segments_are_those_of_the_picture_not_of_its_borders():
    """A bright square is four segments, without the edge of the content."""
    picture = np.full((200, 300), 40, np.uint8)
    picture[60:140, 100:180] = 220
    picture[:, :30] = 0
    inside = np.ones(picture.shape, bool)
    inside[:, :30] = False
    found = straight_segments(picture, inside)
    assert len(found) == 4
    assert np.abs(np.abs(found - [140, 100]).max((1, 2)) - 40).max() < 1.5
    assert not len(straight_segments(np.zeros((50, 50), np.uint8), np.ones((50, 50), bool)))


@pytest.mark.parametrize(("orientation", "turns_left"), [(1, 0), (6, 1), (8, -1)])
def test_segments_are_those_of_the_upright_picture(orientation: int, turns_left: int, tmp_path: Path):
    """A camera that is held upright stores its picture turned; edges and cameras are those of the decoded one."""
    upright = np.full((320, 200), 40, np.uint8)
    upright[60:140, 40:160] = 220
    exif = Image.Exif()
    exif[0x0112] = orientation
    for view in ("a", "b"):
        (tmp_path / view).mkdir()
        Image.fromarray(np.rot90(upright, turns_left)).save(tmp_path / view / "0.jpg", exif=exif, quality=95)
    found = ViewEdges(open_scene(tmp_path).views[0], (0,)).segments
    assert len(found) == 4
    np.testing.assert_allclose([found.min((0, 1)), found.max((0, 1))], [[40, 60], [160, 140]], atol=4)


def test_directions_are_shared_by_views_in_whose_world_they_are_the_same():
    """Whatever their order and signs; one that is turned by 20 degrees is another, and one view shares with none."""
    views = [exp_rotation(np.array([0.0, angle, 0.0])) for angle in (0.0, 1.2, 2.5, 4.0)]
    other = np.array([[0, 0, 1.0], [1, 0, 0], [0, 1, 0]])
    turned = [np.eye(3), other, exp_rotation(np.radians([0, 5.0, 0])), exp_rotation(np.radians([0, 20.0, 0]))]
    found = {
        place: Directions(rotation=view @ AXES @ turn, log_focal=0.0, information=np.eye(4))
        for place, (view, turn) in enumerate(zip(views, turned, strict=True))
    }
    same = shared_directions(found, dict(enumerate(views)), limit_deg=10.0)
    assert same.keys() == {0, 1, 2}
    assert rotation_angle_deg(same[1].rotation, views[1] @ AXES) < 1e-6
    assert shared_directions({0: found[0]}, {0: views[0]}, limit_deg=10.0) == {}
    assert shared_directions({}, {}, limit_deg=10.0) == {}


RIG = film_people(
    Filming(angles_deg=(0.0, 70.0, 140.0), num_instants=30, num_people=1, noise_px=4.0, bias_px=8.0, seed=2)
)
UNKNOWN = [
    replace(one, focal_source=FocalSource.UNKNOWN, intrinsics=one.with_focal(1.4 * one.focal)) for one in RIG.lenses
]


def largest_turn(found: Assembly, rig: PeopleRig = RIG) -> float:
    """Return the largest error of rotation between placed cameras."""
    cameras = found.cameras()
    return errors_deg(rig, tuple(cameras), tuple(cameras.values()))[0]


def test_edges_correct_cameras_from_people_and_their_focal_lengths():
    """Their keypoints have a bias of 8 px."""
    edges = [room(pose[:3, :3] @ AXES, true) for pose, true in zip(RIG.world_to_camera, RIG.lenses, strict=True)]
    found = assembled(RIG.people, UNKNOWN, num_instants=RIG.num_instants, edges=edges)
    assert found.adjustment is not None
    assert found.adjustment.directed == (0, 1, 2)
    assert largest_turn(found) < 0.5
    for one, std in zip(placed_views(found)[0], found.adjustment.focal_std, strict=True):
        assert abs(np.log(one.focal / FOCAL_PX)) < min(3 * std, 0.02)


@pytest.mark.parametrize(
    ("share", "views", "is_placed"), [(0.2, (1,), True), (0.15, (1,), False), (0.15, (0, 1, 2), True)]
)
def test_cropped_views_are_placed_by_their_principal_points_or_refused(
    share: float, views: tuple[int, ...], is_placed: bool
):
    """A part of their pictures is missing on the left.

    Of a fifth in one view, people show that it is; of less, they fit both. In all views it is the same part.
    """
    height, width = RIG.lenses[1].image_size
    size, shift = (height, int((1 - share) * width)), np.array([share * width, 0.0])
    people, unknown, true = [*RIG.people], [*UNKNOWN], [*RIG.lenses]
    for view in views:
        matrix = RIG.lenses[view].intrinsics - np.pad(shift[:, None], ((0, 1), (2, 0)))
        true[view] = replace(RIG.lenses[view], intrinsics=matrix, image_size=size)
        unknown[view] = replace(UNKNOWN[view], intrinsics=UNKNOWN[view].intrinsics.copy(), image_size=size)
        unknown[view].intrinsics[:2, 2] = np.array(size[::-1]) / 2
        people[view] = tuple(replace(one, joints=one.joints - shift) for one in RIG.people[view])
    edges = [room(pose[:3, :3] @ AXES, one) for pose, one in zip(RIG.world_to_camera, true, strict=True)]
    found = assembled(people, unknown, num_instants=RIG.num_instants, edges=edges)
    assert found.cameras().keys() == ({0, 1, 2} if is_placed else {0, 2})
    assert largest_turn(found) < 1.0
    for view in views:
        center = true[view].intrinsics[0, 2]
        assert not is_placed or found.lenses[view].intrinsics[0, 2] == pytest.approx(center, abs=0.02 * width)
    expected = ": principal points are those of cropped pictures" if is_placed else "its edges fit a video that was"
    assert expected in (found.notes[0] if is_placed else found.reasons[1])


def test_edges_of_slanted_walls_turn_no_cameras():
    """They are 6 degrees from orthogonal: cameras that they correct are 4.8 degrees wrong."""
    filming = Filming(angles_deg=(0.0, 50.0, 100.0, 150.0), num_instants=40, noise_px=4.0, bias_px=8.0)
    rig, axes = film_people(filming), AXES.copy()
    axes[:, 0] = exp_rotation(np.radians(6.0) * AXES[:, 1]) @ AXES[:, 0]
    edges = [room(pose[:3, :3] @ axes, true) for pose, true in zip(rig.world_to_camera, rig.lenses, strict=True)]
    unknown = [replace(one, focal_source=FocalSource.UNKNOWN) for one in rig.lenses]
    found = Assembly(
        names=tuple("abcd"), lenses=unknown, people=rig.people, edges=edges, num_instants=rig.num_instants
    )
    found.run()
    assert not found.directed
    assert largest_turn(found, rig) < 1.5


@pytest.mark.parametrize(
    ("share", "views", "refused"), [(0.2, (0, 1, 2), {}), (0.08, (1,), {1: "far from its pairs"})]
)
def test_a_principal_point_with_which_evidence_does_not_fit_does_not_count(
    share: float, views: tuple[int, ...], refused: dict[int, str], monkeypatch: pytest.MonkeyPatch
):
    """Edges along oblique directions show one that is wrong: they do not fit people with it, or a view is refused."""

    def refuse(rig: Assembly) -> None:
        refuse_unconfirmed(rig)
        rig.reasons |= {} if rig.lenses[1].is_centered else refused

    shift = np.pad([[share * max(SIZE)], [0.0]], ((0, 1), (2, 0)))
    edges = [room(pose[:3, :3] @ AXES, true) for pose, true in zip(RIG.world_to_camera, RIG.lenses, strict=True)]
    shown = [edges[view] for view in views]

    def crop(own: ViewEdges, one: Lens) -> Lens | None:
        return replace(one, intrinsics=one.intrinsics + shift) if any(own is other for other in shown) else None

    monkeypatch.setattr(ViewEdges, "crop", crop)
    monkeypatch.setattr(checks, "refuse_unconfirmed", refuse)
    found = assembled(RIG.people, UNKNOWN, num_instants=RIG.num_instants, edges=edges)
    assert all(lens.is_centered for lens in found.lenses)
    assert found.cameras().keys() == {0, 1, 2}
    assert largest_turn(found) < 0.5
    names = ", ".join("abc"[view] for view in views)
    assert found.notes[-1].startswith(f"straight edges in {names} are not orthogonal, or")


def test_two_views_of_unknown_focal_lengths_are_placed_with_edges():
    """People alone do not determine them, nor do edges of another room, which is turned by 8 degrees."""
    people, lenses = RIG.people[:2], UNKNOWN[:2]
    true = [pose[:3, :3] @ AXES for pose in RIG.world_to_camera[:2]]
    wrong = [true[0], true[1] @ exp_rotation(np.radians([0, 8.0, 0]))]
    for rotations, is_placed in ((true, True), (wrong, False), (None, False)):
        edges = [] if rotations is None else [room(one, RIG.lenses[0]) for one in rotations]
        found = assembled(people, lenses, num_instants=RIG.num_instants, edges=edges)
        assert (len(found.cameras()) == 2) == is_placed
        assert not is_placed or largest_turn(found) < 0.6


@pytest.mark.parametrize(("turn_deg", "is_accepted"), [(4.5, True), (5.5, False), (10.0, False)])
def test_texture_that_edges_contradict_needs_a_loop(turn_deg: float, is_accepted: bool):
    """A pair 10 degrees off would be accepted by its own evidence; alone it is refused, in a right loop accepted."""
    edges = [room(pose[:3, :3] @ AXES, true) for pose, true in zip(RIG.world_to_camera, RIG.lenses, strict=True)]
    pairs = {
        views: PairPose(
            views=views,
            evidence=Evidence.TEXTURE,
            rotation=exp_rotation(np.radians([0, turn, 0])) @ RIG.relative_pose(*views)[0],
            direction=RIG.relative_pose(*views)[1],
            score=90,
        )
        for views, turn in (((0, 1), turn_deg), ((0, 2), 0.0), ((1, 2), 0.0))
    }
    texture = [source(registered=lambda views, _, **__: pairs[views], kind=Evidence.TEXTURE)]
    found = assembled(None, RIG.lenses, num_instants=RIG.num_instants, edges=edges, texture=texture)
    assert found.pairs[(0, 1), Evidence.TEXTURE].is_accepted == is_accepted
    assert is_accepted or found.pairs[(0, 1), Evidence.TEXTURE].needs_loop
    assert found.pairs[(0, 2), Evidence.TEXTURE].is_accepted
