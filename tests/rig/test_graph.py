"""The graph of pairs and the adjustment of a rig, on simulated pairs of walking people."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from page4d.geometry.transforms import camera_centers
from page4d.rig import adjust as adjustment
from page4d.rig.adjust import Adjustment, Observations, adjust, merge_tracks, triangulate
from page4d.rig.edges import Directions
from page4d.rig.epipolar import pixels_of
from page4d.rig.graph import (
    Placement,
    _depths,
    choose_links,
    choose_pairs,
    confirmed,
    connected_parts,
    main_parts,
    place,
    views_in_loops,
)
from page4d.rig.records import (
    NUM_JOINTS,
    Array,
    Evidence,
    FocalSource,
    Lens,
    PairPose,
    PointMatches,
    exp_rotation,
    rotation_angle_deg,
)
from tests.rig.people_rig import FOCAL_PX, IMAGE_SIZE, Filming, PeopleRig, errors_deg, film_people, lens


def rig(**changes: object) -> PeopleRig:
    return film_people(replace(Filming(angles_deg=(0.0, 70.0, 140.0, 230.0), num_instants=12, seed=3), **changes))


def matches(world: PeopleRig, first: int, second: int) -> PointMatches:
    here, there = world.people[first][0], world.people[second][0]
    count = NUM_JOINTS * len(here.instants)
    ids = (here.instants[:, None] * NUM_JOINTS + np.arange(NUM_JOINTS)).reshape(-1)
    return PointMatches(
        first=here.joints.reshape(-1, 2),
        second=there.joints.reshape(-1, 2),
        weights=np.ones(count),
        first_ids=ids,
        second_ids=ids,
    )


def pair(world: PeopleRig, first: int, second: int, turn_deg: float = 0.0, score: float = 0.6) -> PairPose:
    rotation, direction = world.relative_pose(first, second)
    wrong = exp_rotation(np.radians([0.0, turn_deg, 0.0]))
    return PairPose(
        views=(first, second),
        evidence=Evidence.PEOPLE,
        rotation=wrong @ rotation,
        direction=wrong @ direction,
        score=score,
        matches=matches(world, first, second),
    )


def all_pairs(world: PeopleRig) -> list[PairPose]:
    return [pair(world, first, second) for first, second in combinations(range(len(world.people)), 2)]


def adjusted(world: PeopleRig, placement: Placement, lenses: tuple[Lens, ...]) -> Adjustment:
    tracks, placed = merge_tracks(placement.pairs, world.num_instants), [lenses[view] for view in placement.views]
    result = adjust(placement.world_to_camera, placed, tracks, np.full(len(placed), -1))
    assert result is not None
    return result


def test_exact_pairs_give_the_exact_rig():
    world = rig()
    placement = place(range(4), all_pairs(world), world.lenses)
    assert placement.views == (0, 1, 2, 3)
    assert max(errors_deg(world, placement.views, placement.world_to_camera)) < 1e-4
    result = adjusted(world, placement, world.lenses)
    assert max(errors_deg(world, placement.views, result.world_to_camera)) < 1e-4
    assert result.residual_px.max() < 1e-2


def test_distances_follow_from_shared_points_in_a_chain():
    world = rig()
    placement = place(range(4), [pair(world, 0, 1), pair(world, 1, 2), pair(world, 2, 3)], world.lenses)
    assert placement.undetermined == ()
    assert max(errors_deg(world, placement.views, placement.world_to_camera)) < 1e-3


def test_long_and_short_baselines_of_a_dense_ring_determine_all_views():
    count = 72
    world = rig(angles_deg=tuple(360 / count * np.arange(count)))
    chosen = choose_pairs(np.ones((count, count)))
    assert {min(second - first, count - second + first) for first, second in chosen} == {1, 9}
    placement = place(range(count), [pair(world, *views) for views in chosen], world.lenses)
    assert placement.undetermined == ()
    assert max(errors_deg(world, placement.views, placement.world_to_camera)) < 1e-3


def test_a_chain_without_shared_points_is_not_determined():
    world = rig()
    pairs = [replace(pair(world, 0, 1), matches=None), replace(pair(world, 1, 2), matches=None)]
    placement = place((0, 1, 2), pairs, world.lenses)
    assert (len(placement.undetermined), len(placement.views)) == (1, 2)


def test_adjustment_improves_noisy_pairs():
    world = rig(noise_px=4.0)
    turns = (2.0, -2.0, 1.5, -1.5, 2.0, 1.0)
    pairs = [pair(world, *views, turn_deg=t) for views, t in zip(combinations(range(4), 2), turns, strict=True)]
    placement = place(range(4), pairs, world.lenses)
    result = adjusted(world, placement, world.lenses)
    before = errors_deg(world, placement.views, placement.world_to_camera)
    after = errors_deg(world, placement.views, result.world_to_camera)
    assert after[0] < 0.5 < before[0]
    assert after[1] < 0.5


@pytest.mark.parametrize("wrong", [(0, 1), (1, 3)])
def test_a_wrong_pair_is_dropped(wrong: tuple[int, int]):
    world = rig()
    pairs = [pair(world, *views, turn_deg=40.0 if views == wrong else 0.0) for views in combinations(range(4), 2)]
    placement = place(range(4), pairs, world.lenses)
    assert [dropped.views for dropped in placement.dropped] == [wrong]
    assert max(errors_deg(world, placement.views, placement.world_to_camera)) < 1e-3


def test_the_weakest_pair_of_a_contradicting_triangle_is_dropped():
    world = rig()
    pairs = [pair(world, 0, 1), pair(world, 1, 2), pair(world, 0, 2, turn_deg=40.0, score=0.45)]
    placement = place((0, 1, 2), pairs, world.lenses)
    assert [dropped.views for dropped in placement.dropped] == [(0, 2)]
    assert placement.views == (0, 1, 2)


@pytest.mark.parametrize(("kind", "share"), [(Evidence.PEOPLE, 0.6), (Evidence.TEXTURE, 0.8)])
def test_epipolar_lines_are_as_uncertain_as_they_are_wrong(
    kind: Evidence, share: float, monkeypatch: pytest.MonkeyPatch
):
    """Independent errors; those of keypoints are expected to be common to parts of the body."""
    world, rng = rig(num_instants=6), np.random.default_rng(0)
    placement = place(range(4), all_pairs(world), world.lenses)
    tracks = merge_tracks(placement.pairs, world.num_instants)
    if kind is Evidence.TEXTURE:
        tracks = replace(tracks, person=np.full_like(tracks.person, -1), joint=np.full_like(tracks.joint, -1))

    def one(tracks: Observations) -> Adjustment:
        found = adjust(
            placement.world_to_camera, world.lenses, tracks, np.full(4, 0 if kind is Evidence.TEXTURE else -1)
        )
        assert found is not None
        return found

    monkeypatch.setattr(adjustment, "_held", lambda _: (0.0, 0.0))
    monkeypatch.setattr(adjustment, "_HELD_FOCAL", 0.0)
    expected, found, lengths = [], [], []
    for _ in range(10):
        noisy = replace(tracks, pixels=tracks.pixels + rng.normal(scale=0.5, size=tracks.pixels.shape))
        result = one(noisy)
        expected.append(result.epipolar_std_px([IMAGE_SIZE] * 4))
        found.append(epipolar_errors(world, result))
        centers = camera_centers(torch.from_numpy(result.world_to_camera)).numpy()
        lengths.append(
            [np.linalg.norm(centers[first] - centers[second]) for first, second in combinations(range(4), 2)]
        )
    ratio = np.sqrt(np.mean(np.square(found), axis=0)) / np.mean(expected, axis=0)
    assert np.nanmedian(ratio) == pytest.approx(share, abs=0.3)
    assert np.nanmin(ratio) > 0.25
    assert np.nanmax(ratio) < 2.0
    spread = np.std(lengths, axis=0, ddof=1) / np.mean(lengths, axis=0)
    stated = [result.distance_std(first, second) for first, second in combinations(range(4), 2)]
    assert np.median(spread / stated) == pytest.approx(share, abs=0.3)


@pytest.mark.parametrize("shift_px", [0.0, 25.0])
def test_rotations_are_as_uncertain_as_they_are_wrong(shift_px: float):
    """Errors of keypoints are biases, and with a shift the principal points of unknown lenses are off the centre."""
    ratios, focal_ratios = [], []
    for seed in range(6):
        world = rig(angles_deg=(0.0, 70.0, 140.0), noise_px=3.0, bias_px=6.0, num_instants=40, seed=seed)
        pairs = [pair(world, *views) for views in combinations(range(3), 2)]
        tracks = merge_tracks(pairs, world.num_instants)
        shift = shift_px * np.random.default_rng(seed).normal(size=(3, 2))
        tracks = replace(tracks, pixels=tracks.pixels + shift[tracks.view])
        lenses = [one if shift_px else replace(one, focal_source=FocalSource.CALIBRATION) for one in world.lenses]
        found = adjust(world.world_to_camera, lenses, tracks, np.arange(3) if shift_px else np.full(3, -1))
        turns, true = found.world_to_camera[:, :3, :3], world.world_to_camera[:, :3, :3]
        for one, other in combinations(range(3), 2):
            error = rotation_angle_deg(turns[other] @ turns[one].T, true[other] @ true[one].T)
            ratios.append(error / found.rotation_std_deg()[one, other])
        focal_ratios += (found.log_focal / found.focal_std).tolist() if shift_px else []
    assert 0.5 < np.sqrt(np.mean(np.square(ratios))) < 1.5
    assert np.max(ratios) < 3
    assert not shift_px or 0.3 < np.sqrt(np.mean(np.square(focal_ratios))) < 1.5


def test_points_behind_a_camera_do_not_count_for_its_epipolar_lines():
    world = rig(num_instants=6)
    placement = place(range(4), all_pairs(world), world.lenses)
    tracks = merge_tracks(placement.pairs, 6)
    found = adjust(placement.world_to_camera, world.lenses, tracks, np.full(4, -1))
    expected = found.epipolar_std_px([IMAGE_SIZE] * 4)[0]
    mirror = np.linalg.inv(found.world_to_camera[0]) @ np.diag([1.0, 1, -1, 1]) @ found.world_to_camera[0]
    behind = found.points @ mirror[:3, :3].T + mirror[:3, 3]
    both = replace(found, points=np.concatenate([found.points, behind])).epipolar_std_px([IMAGE_SIZE] * 4)
    np.testing.assert_allclose(both[0], expected)
    assert np.isnan(replace(found, points=behind).epipolar_std_px([IMAGE_SIZE] * 4)[0]).all()


def epipolar_errors(world: PeopleRig, result: Adjustment) -> Array:
    """Return rms distances of true images from the epipolar lines of pixels that are spread over every picture."""
    size = np.array(IMAGE_SIZE[::-1])
    cells = np.stack(np.meshgrid(*(np.arange(0.1, 1, 0.2),) * 2), -1).reshape(-1, 2)
    pixels, errors = np.pad(cells * size, ((0, 0), (0, 1)), constant_values=1.0), np.full((4, 4), np.nan)
    for first, second in np.argwhere(~np.eye(4, dtype=bool)):
        camera, lens = world.world_to_camera[first], world.lenses[first]
        depths = np.quantile(world.joints.reshape(-1, 3) @ camera[2, :3] + camera[2, 3], (0.25, 0.75))
        local = (depths[:, None, None] * (pixels @ np.linalg.inv(lens.intrinsics).T)).reshape(-1, 3)
        relative = world.world_to_camera[second] @ np.linalg.inv(camera)
        seen = (local @ relative[:3, :3].T + relative[:3, 3]) @ world.lenses[second].intrinsics.T
        seen /= seen[:, 2:]
        moved = result.world_to_camera[second] @ np.linalg.inv(result.world_to_camera[first])
        rays = np.tile(pixels, (2, 1)) @ np.linalg.inv(result.intrinsics[first]).T @ moved[:3, :3].T
        lines = np.cross(moved[:3, 3], rays) @ np.linalg.inv(result.intrinsics[second])
        distance = (lines * seen).sum(-1) / np.linalg.norm(lines[:, :2], axis=-1)
        inside = ((seen[:, :2] > 0) & (seen[:, :2] < size)).all(-1)
        errors[first, second] = np.sqrt(np.mean(distance[inside] ** 2))
    return errors


@pytest.mark.parametrize(
    ("factors", "groups"),
    [((1.2,) * 4, (0,) * 4), ((1.1, 1.2, 1.0, 0.95), (0, 1, 2, 3)), ((1.15, 1.15, 1.0, 1.0), (0, 0, -1, -1))],
)
@pytest.mark.parametrize("k1", [(), (-0.25, 0.1, -0.1, 0.0)])
def test_unknown_lenses_are_recovered(factors: tuple[float, ...], groups: tuple[int, ...], k1: tuple[float, ...]):
    world = rig(noise_px=0.3)
    placement = place(range(4), all_pairs(world), world.lenses)
    both = zip(world.lenses, factors, strict=True)
    lenses = [replace(one, intrinsics=one.with_focal(factor * one.focal)) for one, factor in both]
    people = merge_tracks(all_pairs(world), world.num_instants)
    texture = replace(people, joint=np.full_like(people.joint, -1))
    unknown = np.array(groups) >= 0
    bent = dict.fromkeys(np.flatnonzero(unknown).tolist() if k1 else [], 0.0)
    center, pixels = np.array(IMAGE_SIZE[::-1]) / 2, texture.pixels.copy()
    for view in bent:
        seen = texture.view == view
        plane = torch.from_numpy((pixels[seen] - center) / FOCAL_PX)
        pixels[seen] = pixels_of(lens(FOCAL_PX, k1[groups[view]] or 1e-9).distortion.distort(plane).numpy(), lens())
    texture = replace(texture, pixels=pixels)
    result = adjust(placement.world_to_camera, lenses, texture, np.array(groups), k1=bent)
    np.testing.assert_allclose(result.k1[[*bent]], [k1[groups[view]] for view in bent], atol=0.03)
    assert ((result.k1_std > 0) == np.isin(range(4), [*bent])).all()
    np.testing.assert_allclose(result.log_focal, np.where(unknown, -np.log(factors), 0.0), atol=0.01)
    assert ((result.focal_std > 0) == unknown).all()
    assert result.evidence_std.max() < 0.02


@pytest.mark.parametrize("fixed", [(0, 1), (3, 1, 2)])
def test_fixed_cameras_stay_and_give_the_others_their_place_and_unit(fixed: tuple[int, ...]):
    world = rig(noise_px=0.3)
    truth, free = world.world_to_camera.copy(), np.setdiff1d(range(4), fixed)
    truth[:, :3, 3] *= 2
    start = truth.copy()
    start[free, :3] = exp_rotation(np.array([[0.02, -0.03, 0.01]])) @ start[free, :3]
    start[free, :3, 3] += 0.1
    tracks = merge_tracks(all_pairs(world), world.num_instants)
    result = adjust(start, world.lenses, tracks, np.full(4, -1), fixed=fixed)
    np.testing.assert_array_equal(result.world_to_camera[list(fixed)], truth[list(fixed)])
    np.testing.assert_allclose(result.world_to_camera, truth, atol=0.01)
    variance = np.diag(result.covariance).reshape(4, 10)[:, :6]
    assert (variance[list(fixed)] == 0).all()
    assert (variance[free] > 0).all()


def test_a_lens_that_is_not_determined_has_the_focal_length_of_the_others():
    """One of the views has a single keypoint left, of each person."""
    world = rig(noise_px=1.0, num_instants=40)
    scale = np.array([[1.2, 1, 1], [1, 1.2, 1], [1, 1, 1]])
    lenses = tuple(replace(lens, intrinsics=lens.intrinsics * scale) for lens in world.lenses)
    placement = place(range(4), all_pairs(world), lenses)
    tracks = merge_tracks(placement.pairs, world.num_instants)
    tracks = tracks.select((tracks.view < 3) | (tracks.joint[tracks.point] == 0))
    result = adjust(placement.world_to_camera, lenses, tracks, np.arange(4))
    np.testing.assert_allclose(result.log_focal, -np.log(1.2), atol=0.03)
    assert result.focal_std[3] > 2 * result.focal_std[:3].max()


@pytest.mark.parametrize("cluster", ["heads", "ten instants"])
def test_deviations_are_right_where_one_cluster_has_all_observations_of_a_view(cluster: str):
    """No other cluster of this view shows which errors are common."""
    ratios, stated = [], []
    for seed in range(6):
        world = rig(noise_px=3.0, num_instants=40, seed=seed)
        tracks = merge_tracks(place(range(4), all_pairs(world), world.lenses).pairs, world.num_instants)
        is_seen = tracks.joint <= 10 if cluster == "heads" else tracks.instant // 10 == 1
        tracks = tracks.select((tracks.view < 3) | is_seen[tracks.point])
        found = adjust(world.world_to_camera, world.lenses, tracks, np.full(4, -1))
        turns, true = found.world_to_camera[:, :3, :3], world.world_to_camera[:, :3, :3]
        error = rotation_angle_deg(turns[3] @ turns[0].T, true[3] @ true[0].T)
        stated.append(found.rotation_std_deg(of_evidence=True)[3, 0])
        ratios.append(error / stated[-1])
    assert 0.3 < np.sqrt(np.mean(np.square(ratios))) < 1.5
    assert np.max(stated) < 2.0


def test_the_result_repeats_bit_by_bit():
    world = rig(noise_px=3.0)
    results = [adjusted(world, place(range(4), all_pairs(world), world.lenses), world.lenses) for _ in range(2)]
    assert results[0].world_to_camera.tobytes() == results[1].world_to_camera.tobytes()


def test_jacobians_match_finite_differences():
    world = rig(noise_px=3.0)
    placement = place(range(4), all_pairs(world), world.lenses)
    matrices = np.stack([lens.intrinsics for lens in world.lenses])
    tracks = merge_tracks(placement.pairs, world.num_instants)
    points, _ = triangulate(placement.world_to_camera, matrices, tracks)
    problem = adjustment._Problem(tracks, world.lenses, np.array([0, 1, 1, -1]), (0, 1), 0.001, (0,), {})
    state = adjustment._State(placement.world_to_camera, points, np.array([[0.05, -0.2], [-0.02, 0.1]]), np.eye(3))
    _, by_camera, by_point = problem.linearized(state)
    step = 1e-6
    for column in range(3):
        moved = replace(state, points=points + step * np.eye(3)[column])
        slope = (problem.residuals(moved) - problem.residuals(state)) / step
        np.testing.assert_allclose(slope, by_point[..., column], atol=1e-2, rtol=1e-4)
    for column in range(6):
        motion = step * np.eye(6)[column]
        cameras = state.cameras.copy()
        cameras[:, :3] = exp_rotation(motion[None, :3]) @ cameras[:, :3]
        cameras[:, :3, 3] += motion[3:6]
        slope = (problem.residuals(replace(state, cameras=cameras)) - problem.residuals(state)) / step
        np.testing.assert_allclose(slope, by_camera[..., column], atol=1e-2, rtol=1e-4)
    unknown = np.array([True, True, True, False])[tracks.view, None]
    for column in range(2):
        moved = replace(state, lenses=state.lenses + step * np.eye(2)[column])
        slope = (problem.residuals(moved) - problem.residuals(state)) / step
        np.testing.assert_allclose(slope, by_camera[..., 6 + column] * unknown, atol=1e-2, rtol=1e-4)
    axes, information = exp_rotation(np.array([0.1, 0.4, -0.3])), np.diag([4.0, 9.0, 16.0, 25.0]) + 1.0
    problem.directions = {
        view: Directions(rotation=camera[:3, :3] @ axes, log_focal=0.1, information=information)
        for view, camera in enumerate(placement.world_to_camera[1:], 1)
    }
    state, still = replace(state, axes=axes), np.zeros_like(points)
    for change, slope in zip(step * np.eye(len(problem.free)), problem.prior(state)[1].T, strict=True):
        moved = [problem.prior(problem.moved(state, sign * change, still))[0] for sign in (1, -1)]
        np.testing.assert_allclose((moved[0] - moved[1]) / (2 * step), slope, atol=1e-6)


def test_tracks_merge_and_keep_one_person_per_view():
    world = rig()
    tracks: Observations = merge_tracks(all_pairs(world), world.num_instants)
    assert tracks.num_points == 12 * NUM_JOINTS
    assert len(tracks.view) == 4 * tracks.num_points
    mixed = all_pairs(world)
    other = matches(world, 0, 2)  # a person of the wrong tracklet in one pair, of a lower score
    shifted = replace(other, first_ids=other.first_ids + world.num_instants * NUM_JOINTS)
    mixed[1] = replace(mixed[1], matches=shifted, score=0.1)
    merged = merge_tracks(mixed, world.num_instants)
    assert merged.num_points == 12 * NUM_JOINTS
    assert np.unique(np.stack([merged.point, merged.view]), axis=1).shape[1] == len(merged.view)


def test_parts_and_links():
    assert connected_parts(5, [(3, 4), (0, 3)]) == ((0, 3, 4), (1,), (2,))
    world = rig()
    strong, weak = pair(world, 2, 3), pair(world, 0, 1)
    few = replace(weak.matches, **{name: value[:9] for name, value in vars(weak.matches).items()})
    assert main_parts(4, [replace(weak, matches=few), strong]) == ((2, 3), (0, 1))
    assert main_parts(4, [weak, replace(strong, matches=few)]) == ((0, 1), (2, 3))
    assert main_parts(4, [replace(weak, matches=few), strong], known=[0]) == ((0, 1), (2, 3))
    affinity = np.ones((16, 16))
    affinity[15] = affinity[:, 15] = 0.0
    pairs = choose_pairs(affinity)
    assert len(pairs) < 45
    assert connected_parts(16, pairs) == (tuple(range(15)), (15,))
    assert len(choose_pairs(np.ones((4, 4)))) == 6
    links = choose_links(np.ones((4, 4)), {(0, 1), (2, 3), (1, 2)}, [(0, 1), (2, 3)])
    assert links
    assert (1, 2) not in links
    assert all((first < 2) != (second < 2) for first, second in links)
    assert len(choose_links(np.ones((6, 6)), set(), [(0, 1), (1, 2), (3, 4), (4, 5)])) == 3


def test_a_match_behind_one_of_two_cameras_has_no_depth() -> None:
    """The camera of the second view is turned by half a circle; the rays meet before the first and behind it."""
    first, second = (pixels_of(np.array([[x, 0.0]]), lens()) for x in (0.5, -0.5))
    match = PointMatches(
        first=first, second=second, weights=np.ones(1), first_ids=np.arange(1), second_ids=np.arange(1)
    )
    turned = PairPose(
        views=(0, 1),
        evidence=Evidence.TEXTURE,
        rotation=np.diag([-1.0, 1.0, -1.0]),
        direction=np.array([1.0, 0.0, 0.0]),
        matches=match,
    )
    assert [len(ids) for ids, _ in _depths(turned, (lens(), lens())).values()] == [0, 0]


@pytest.mark.parametrize(
    ("links", "views"),
    [
        ([(0, 1), (1, 2)], set()),
        ([(0, 1), (1, 2), (0, 2)], {0, 1, 2}),
        ([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)], {0, 1, 2}),
        ([(0, 1), (1, 2), (2, 3), (0, 3)], {0, 1, 2, 3}),
        ([(0, 1), (0, 1)], set()),
    ],
)
def test_views_at_the_end_of_a_chain_are_in_no_loop(links: list[tuple[int, int]], views: set[int]) -> None:
    assert views_in_loops(links) == views


@pytest.mark.parametrize(
    ("turns_deg", "reasons", "are_confirmed"),
    [
        ((0.0, 2.0, 0.0), ("", "small", "small"), True),
        ((0.0, 8.0, 0.0), ("", "small", "small"), False),
        ((0.0, 0.0, 0.0), ("small", "small", "small"), False),
    ],
)
def test_pairs_that_need_a_loop_are_confirmed_by_one_with_an_accepted_pair(
    turns_deg: tuple[float, ...], reasons: tuple[str, ...], are_confirmed: bool
):
    world = rig()
    pairs = [
        replace(pair(world, *views, turn), reason=reason, needs_loop=bool(reason))
        for views, turn, reason in zip(((0, 1), (1, 2), (0, 2)), turns_deg, reasons, strict=True)
    ]
    found = confirmed([*pairs, replace(pairs[1], views=(3, 2), reason="few", needs_loop=False)])
    assert [one.views for one in found] == ([(1, 2), (0, 2)] if are_confirmed else [])
    assert all(one.is_accepted for one in found)
