"""Tracks of points against the exact motion of their objects."""

import torch
from torch import Tensor

from page4d.geometry.camera import project
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.motion.tracks import MAX_HIDDEN_STEPS, ActiveTracks, TrackFollower
from tests.motion.exact import exact_views


def test_tracks_follow_their_objects(capture: SyntheticCapture) -> None:
    follower, rows = TrackFollower(0.02, pull=False), []
    for index in range(5):
        views, motions, _ = exact_views(capture, index, index + 1)
        moving = [motion.norm(dim=-1) > 0.02 for motion in motions]
        rows.append(follower.observe(views, moving, 500, 500 if index == 0 else 0))
        follower.step(views)
    first, last = rows[0], rows[4]
    assert len(first.ids) == len(first.new_colors) > 20
    assert first.seen.any(1).all()
    poses = capture.world.object_to_world(torch.from_numpy(capture.times)[None])[0]
    objects, errors = [capture.rendered(0, view).objects for view in range(capture.num_views)], []
    for track in last.ids.tolist():
        start = first.world[first.ids == track][0]
        view = int(first.seen[first.ids == track][0].int().argmax())
        camera = capture.cameras_of(view)[0]
        pixel = project(transform_points(camera.world_to_camera, start[None]), camera.intrinsics)[0][0].floor().long()
        own = int(objects[view][pixel[1], pixel[0]])
        rigid = poses[4, own] @ invert_rigid(poses[0, own])
        errors.append(float((last.world[last.ids == track][0] - transform_points(rigid, start[None])[0]).norm()))
    assert len(errors) > 10
    assert float(torch.tensor(errors).median()) < 0.02
    assert all(len(set(row.ids.tolist())) == len(row.ids) for row in rows)


def lonely(world: Tensor) -> ActiveTracks:
    """Return one track that moves by 1 cm a step."""
    zero = torch.zeros(1, dtype=torch.int64)
    motion = torch.tensor([[0.01, 0.0, 0.0]], dtype=torch.float64)
    return ActiveTracks(
        ids=zero, world=world, motion=motion, variance=motion[:, 1], hidden=zero, view=zero - 1, row=zero - 1
    )


def test_tracks_end_when_nothing_is_known_of_the_next_instant_or_no_view_sees_them(capture: SyntheticCapture) -> None:
    views, motions, _ = exact_views(capture, 0, 1)
    follower = TrackFollower(0.02, pull=False)
    follower.observe(views, [motion.norm(dim=-1) > 0.02 for motion in motions], 500, 500)
    follower.step(None)
    assert len(follower.active) == 0
    # A point behind all surfaces is hidden, and goes on along a straight line for a few steps.
    depth = [view.depth for view in views]
    behind = views[0].lift(torch.tensor([[64, 48]]))
    behind = views[0].camera.centers + 1.5 * (behind - views[0].camera.centers)
    follower.active = lonely(behind)
    none = [torch.zeros_like(one, dtype=torch.bool) for one in depth]
    lived = []
    for _ in range(MAX_HIDDEN_STEPS + 2):
        lived.append(len(follower.observe(views, none, 500, 0).ids))
        follower.step(views)
    assert (lived[0], lived[-1]) == (1, 0)
    # In front of all surfaces it is not hidden but lost.
    front = views[0].camera.centers + 0.2 * (behind - views[0].camera.centers)
    follower.active = lonely(front)
    assert len(follower.observe(views, none, 500, 0).ids) == 0


def test_no_more_tracks_live_or_begin_than_asked(capture: SyntheticCapture) -> None:
    views, motions, _ = exact_views(capture, 0, 1)
    moving = [motion.norm(dim=-1) > 0.02 for motion in motions]
    follower = TrackFollower(0.02, pull=False)
    assert len(follower.observe(views, moving, 20, 10).new_colors) == 10
    assert len(follower.observe(views, moving, 20, 100).new_colors) == 10
    again = TrackFollower(0.02, pull=False)
    whole = len(again.observe(views, moving, 10_000, 10_000).new_colors)
    assert len(again.observe(views, moving, 10_000, 10_000).new_colors) < whole / 4  # cells with a track stay free
