"""Bodies of people of known joints: what cameras see of them, and how they correct depth and masks of motion."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.warp import measure_agreement
from page4d.records import Predictions
from page4d.stereo import bodies
from page4d.stereo.background import Background
from page4d.stereo.bodies import BodyMaps, body_maps
from page4d.stereo.consensus import FusedBackground, clean, reach_moving_consensus
from tests.rig.people_rig import FOCAL_PX, IMAGE_SIZE, Filming, film_people
from tests.stereo.test_background import predictions_of

SIZE = (108, 192)
RIG = film_people(Filming(angles_deg=(0.0, 80.0, 150.0), num_instants=3))
JOINTS = torch.from_numpy(RIG.joints[:, 1])  # [1, 33, 3]
TRUNK = float((JOINTS[0, [11, 12]].mean(0) - JOINTS[0, [23, 24]].mean(0)).norm())


def cameras_of(scale: float = 1.0) -> Cameras:
    """Return the cameras of the rig at the pixels of small pictures, in a world of another unit."""
    factor = SIZE[0] / IMAGE_SIZE[0]
    matrix = torch.tensor([[FOCAL_PX * factor, 0, SIZE[1] / 2], [0, FOCAL_PX * factor, SIZE[0] / 2], [0, 0, 1]])
    pose = torch.from_numpy(RIG.world_to_camera).clone()
    pose[:, :3, 3] *= scale
    return Cameras(world_to_camera=pose, intrinsics=matrix.double().expand(3, 3, 3), image_size=SIZE)


CAMERAS = cameras_of()
SEEN = body_maps(JOINTS, CAMERAS, SIZE)


def in_view(points: Tensor, view: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column and depth of points in the world."""
    pose = CAMERAS.world_to_camera[view]
    inside = points @ pose[:3, :3].T + pose[:3, 3]
    pixels = inside @ CAMERAS.intrinsics[view].T
    column, row = (pixels[..., :2] / pixels[..., 2:]).unbind(-1)
    return row.long(), column.long(), inside[..., 2]


@pytest.mark.parametrize("view", range(3))
def test_a_body_is_in_front_of_its_joints_by_the_radius_of_its_parts(view: int) -> None:
    row, column, depth = in_view(JOINTS[0], view)
    nearer = depth - SEEN.log_depth[view, row, column].exp()
    visible = [11, 12, 13, 14, 23, 24, 25, 26, 27, 28]
    assert (SEEN.distance[view, row, column][visible] < 1).all()
    assert nearer[visible].min() > 0.02
    assert nearer[visible].median() < 0.2 * TRUNK
    assert nearer[visible].max() < 2 * TRUNK  # behind another part
    assert ((SEEN.sigma * depth.mean())[view, row, column][visible] < 0.1 * TRUNK).all()


def test_only_pixels_near_a_body_show_it() -> None:
    shows = SEEN.sigma.isfinite()
    assert torch.equal(shows, SEEN.distance.isfinite())
    assert 0.01 < shows.float().mean() < 0.15
    assert not body_maps(JOINTS[:0], CAMERAS, SIZE).sigma.isfinite().any()


def test_depth_has_the_unit_of_the_world_and_relative_deviations() -> None:
    scaled = body_maps(3 * JOINTS, cameras_of(3.0), SIZE)
    shows = SEEN.sigma.isfinite()
    assert torch.allclose(scaled.log_depth[shows], (SEEN.log_depth + torch.log(torch.tensor(3.0)))[shows], atol=1e-5)
    assert torch.allclose(scaled.sigma, SEEN.sigma, rtol=1e-4)


def changed(joints: list[int], value: float) -> Tensor:
    found = JOINTS.clone()
    found[:, joints] = value
    return found


def test_unknown_and_impossible_joints_leave_out_their_parts_alone() -> None:
    row, column, _ = in_view(JOINTS[0], 0)
    for value in (torch.nan, 30.0):
        lost = body_maps(changed([15, 17, 19], value), CAMERAS, SIZE)  # the left forearm and hand
        assert torch.equal(lost.log_depth[0, row[25:], column[25:]], SEEN.log_depth[0, row[25:], column[25:]])
        assert float(lost.distance[0, row[15], column[15]]) > float(SEEN.distance[0, row[15], column[15]])


@pytest.mark.parametrize(
    ("joints", "value", "is_body"),
    [([23, 24, 25, 26], torch.nan, True), ([11], torch.nan, False), ([11, 12], 0.0, False), ([12], 9.0, False)],
    ids=["a half body", "one shoulder unknown", "no width of shoulders", "shoulders far apart"],
)
def test_a_body_needs_shoulders_of_a_plausible_width(joints: list[int], value: float, is_body: bool) -> None:
    found = body_maps(changed(joints, value), CAMERAS, SIZE)
    row, column, _ = in_view(JOINTS[0, [11, 12]].mean(0), 0)
    assert bool(found.sigma.isfinite().any()) is is_body
    assert bool(found.distance[0, row, column] < 1) is is_body


def test_the_nearer_of_two_people_hides_the_other() -> None:
    toward = torch.from_numpy(RIG.world_to_camera[0, 2, :3])
    both = body_maps(torch.cat([JOINTS, JOINTS - 0.5 * toward]), CAMERAS, SIZE)
    near = body_maps(JOINTS - 0.5 * toward, CAMERAS, SIZE)
    hides = near.sigma[0].isfinite()
    assert torch.equal(both.log_depth[0][hides], near.log_depth[0][hides])


WALL = 8.0


def background_of(color: float = 0.0) -> Background:
    far = torch.full((3, *SIZE), WALL)
    return Background(
        log_depth=far.log(),
        spread=torch.full_like(far, 0.01),
        confidence=torch.full_like(far, 0.8),
        color=torch.full((3, 3, *SIZE), color),
        color_std=torch.full_like(far, 0.02),
        known=torch.ones_like(far, dtype=torch.bool),
    )


def true_depth(maps: BodyMaps) -> tuple[Tensor, Tensor]:
    body = maps.distance < 1
    return torch.where(body, maps.log_depth.exp(), WALL), body


@pytest.mark.parametrize("has_background", [True, False])
@pytest.mark.parametrize(
    ("error", "most"),
    [(0.7, 0.02), (1.4, 0.02), (1.0, 0.01)],
    ids=["too near", "too far", "right"],
)
def test_moving_depth_that_is_wrong_in_all_views_is_brought_to_the_bodies(
    error: float, most: float, has_background: bool
) -> None:
    truth, body = true_depth(SEEN)
    background = replace(background_of(), known=torch.full_like(body, has_background))
    wrong = torch.where(body, error * truth, truth)
    found = reach_moving_consensus(wrong, torch.full_like(truth, 0.3), body, background, CAMERAS, SEEN)
    assert (found / truth).log().abs()[body].median() < most
    assert torch.equal(found[~body], wrong[~body])


def test_nobody_is_seen_around_or_behind_a_camera() -> None:
    camera = CAMERAS.centers[0]
    hand = JOINTS.clone()
    hand[:, [15, 17, 19]] = camera + 0.3 * (JOINTS[:, 15:16] - camera) / 4  # the forearm is too long then
    around = JOINTS - JOINTS[:, 23:24] + camera
    behind = JOINTS + 2 * (camera - JOINTS[:, 23:24])
    for people in (hand, around, behind):
        found = body_maps(people, CAMERAS, SIZE)
        shows = found.sigma.isfinite()
        assert found.log_depth.isfinite().all()
        assert (found.sigma > 0).all()
        assert torch.equal(shows, found.person >= 0)
    assert not body_maps(around, CAMERAS, SIZE).sigma[0].isfinite().any()
    assert not body_maps(behind, CAMERAS, SIZE).sigma[0].isfinite().any()


def test_a_camera_within_a_hand_sees_the_rest() -> None:
    right, _, forward = CAMERAS.world_to_camera[0, :3, :3]
    hand = JOINTS.clone()
    hand[:, 15] = CAMERAS.centers[0] + 0.01 * forward
    hand[:, [17, 19]] = hand[:, [15]] + 0.03 * right
    found = body_maps(hand, CAMERAS, SIZE)
    assert found.log_depth.isfinite().all()
    assert (found.sigma > 0).all()


def test_ears_away_from_the_neck_are_no_head() -> None:
    away = JOINTS.clone()
    away[:, [7, 8]] += torch.tensor([0.8, 0.0, 0.0], dtype=torch.float64)
    lost = body_maps(changed([7, 8], torch.nan), CAMERAS, SIZE)
    assert torch.equal(body_maps(away, CAMERAS, SIZE).distance, lost.distance)


def test_bodies_are_sought_in_all_of_a_picture_that_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_box", lambda *_: (slice(0, SIZE[0]), slice(0, SIZE[1])))
    assert torch.equal(body_maps(JOINTS, CAMERAS, SIZE).sigma, SEEN.sigma)


def masks(marked: Tensor) -> tuple[Predictions, FusedBackground]:
    """Return predictions of the wall behind, with a mask of motion, and their background."""
    wall = torch.full((1, 3, *SIZE), WALL)
    missed = predictions_of(wall, torch.full((1, 3, 3, *SIZE), 0.5), marked[None].float())
    missed = replace(missed, cameras=CAMERAS.map(lambda matrices: matrices[None, None]))
    missed.images[0, 0].mul_(~marked[:, None])  # where the mask is right, colors are others, too
    agreement = measure_agreement(wall[0], wall[0] > 0, CAMERAS)
    return missed, FusedBackground(background=background_of(0.5), agreement=agreement, predicted=None)


def half_marked() -> Tensor:
    """Return a mask of the upper three quarters of the body in every view."""
    rows = torch.arange(SIZE[0])[:, None]
    body = SEEN.distance < 1
    return body & (
        rows < torch.tensor([float(rows[one.any(1)].float().quantile(0.75)) for one in body])[:, None, None]
    )


def test_a_body_that_moves_completes_masks_of_motion_in_views_without_given_ones() -> None:
    truth, _ = true_depth(SEEN)
    core = SEEN.distance < 0.5
    missed, fused = masks(half_marked())
    missed = replace(missed, depth_confidence=torch.ones_like(missed.depth))
    completed = clean(missed, fused, [JOINTS])
    assert completed.dynamic is not None
    assert (completed.dynamic[0, 0][core] == 1).all()
    assert (completed.depth[0, 0] / truth).log().abs()[core & ~half_marked()].median() < 0.02
    one = clean(missed, fused, [JOINTS], torch.tensor([True, False, True]))
    assert one.dynamic is not None
    assert (one.dynamic[0, 0, 0][core[0]] == 1).all()
    assert not (one.dynamic[0, 0, 1][core[1] & ~half_marked()[1]] > 0.5).any()


def test_people_who_stand_still_or_belong_to_the_background_do_not_move() -> None:
    missed, fused = masks(torch.zeros(3, *SIZE, dtype=torch.bool))
    assert torch.equal(clean(missed, fused, [JOINTS]).depth, clean(missed, fused).depth)
    missed, fused = masks(half_marked())
    depth, _ = true_depth(SEEN)
    still = replace(fused, background=replace(fused.background, log_depth=depth.log() + 0.1))
    cleaned = clean(missed, still, [JOINTS])
    assert cleaned.dynamic is not None
    assert not (cleaned.dynamic[0, 0][(SEEN.distance < 0.5) & ~half_marked()] > 0.5).any()
