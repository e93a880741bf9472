"""Scene flow of a rig and tracks of points against the exact motion of synthetic worlds."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from page4d.choices import Subject
from page4d.geometry.camera import Cameras, pixel_grid, project
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.motion.flow import FlowView, ViewFlow, rig_flow
from page4d.motion.tracks import MAX_HIDDEN_STEPS, ActiveTracks, TrackFollower
from tests.synthetic.scenes import flow_between

CAPTURE = SyntheticCapture(
    seed=96, num_views=4, num_times=8, image_size=(96, 128), spacing_deg=20.0, subject=Subject.PEOPLE
)
"""Four static cameras around people, 12 fps."""


@cache
def exact_views(
    capture: SyntheticCapture, source: int, target: int
) -> tuple[list[FlowView], list[Tensor], list[Tensor]]:
    """Return the views at an instant with exact flow to another one, the true displacements, and visibility."""
    views, motions, visible = [], [], []
    for view in range(capture.num_views):
        frame, flow = capture.rendered(source, view), flow_between(capture, (source, view), (target, view))
        cameras = capture.cameras_of(view)
        optical = flow.optical[0]
        size = frame.depth.shape
        ends = pixel_grid(*size) + optical
        inside = (ends > 0).all(-1) & (ends[..., 0] < size[1]) & (ends[..., 1] < size[0])
        views.append(
            FlowView(
                depth=frame.depth,
                known=frame.depth > 0,
                moving=None,
                image=frame.image,
                flow=ViewFlow(optical, flow.visible[0] & inside, torch.ones_like(inside)),
                depth_camera=cameras[source],
                camera=cameras[source],
                target=cameras[target],
            )
        )
        motions.append(flow.scene[0])
        visible.append(flow.visible[0])
    return views, motions, visible


def test_exact_flow_and_depth_give_the_exact_motion() -> None:
    views, motions, _ = exact_views(CAPTURE, 2, 3)
    for view, motion, one in zip(views, motions, rig_flow(views, tolerance=0.02), strict=True):
        length = motion.norm(dim=-1)
        measured = (one.views >= 2) & (length > 0.02)
        error = (one.motion - motion).norm(dim=-1)
        assert measured.sum() > 100
        assert float(error[measured].median()) < 0.003  # flow is sampled bilinearly at pixels of other views
        assert float(error[measured].quantile(0.9)) < 0.02
        still = view.known & (length == 0)
        exact = (one.motion == 0).all(-1) & (one.views > 0)
        assert float(exact[still].float().mean()) > 0.99
        assert bool((one.sigma[one.views > 0] > 0).all())
        assert not one.sigma[one.views == 0].any()


def test_motion_along_the_ray_is_measured_by_the_other_views() -> None:
    views, motions, _ = exact_views(CAPTURE, 2, 3)
    alone = rig_flow(views[:1])[0]
    together = rig_flow(views)[0]
    chosen = (motions[0].norm(dim=-1) > 0.02) & (together.views >= 2) & (alone.views == 1)
    errors = [float((one.motion - motions[0]).norm(dim=-1)[chosen].mean()) for one in (together, alone)]
    assert errors[0] < errors[1] / 2
    # One view does not know the motion along its ray: sigma is at least the length of the motion.
    assert bool((alone.sigma >= alone.motion.norm(dim=-1))[chosen].all())


def test_motion_scales_with_the_unit_of_the_rig() -> None:
    views, _, _ = exact_views(CAPTURE, 2, 3)

    def doubled(camera: Cameras) -> Cameras:
        poses = camera.world_to_camera.clone()
        poses[:3, 3] *= 2
        return replace(camera, world_to_camera=poses)

    large = [
        replace(
            view,
            depth=2 * view.depth,
            depth_camera=doubled(view.depth_camera),
            camera=doubled(view.camera),
            target=doubled(view.target),
        )
        for view in views
    ]
    for one, other in zip(rig_flow(views), rig_flow(large), strict=True):
        assert torch.allclose(2 * one.motion, other.motion, atol=1e-6)
        assert torch.equal(one.views, other.views)


def test_the_motion_mask_makes_pixels_stand_still() -> None:
    views, motions, _ = exact_views(CAPTURE, 2, 3)
    masked = [replace(view, moving=torch.zeros_like(view.known)) for view in views]
    for one in rig_flow(masked):
        assert not one.motion.any()
    marked = [replace(view, moving=motion.norm(dim=-1) > 0) for view, motion in zip(views, motions, strict=True)]
    for view, motion, one in zip(views, motions, rig_flow(marked), strict=True):
        still = view.known & (motion.norm(dim=-1) == 0)
        assert float((one.motion[still] == 0).all(-1).float().mean()) > 0.995


def test_moving_cameras_are_compensated() -> None:
    moving = SyntheticCapture(seed=303, num_views=3, num_times=6, image_size=(96, 128), moving_cameras=True)
    views, motions, _ = exact_views(moving, 2, 3)
    assert not torch.equal(views[0].camera.world_to_camera, views[0].target.world_to_camera)
    for view, motion, one in zip(views, motions, rig_flow(views, 0.02), strict=True):
        still = view.known & (motion.norm(dim=-1) == 0) & view.flow.consistent
        assert float((one.motion[still] == 0).all(-1).float().mean()) > 0.99


def test_no_motion_is_answered_where_flow_is_inconsistent() -> None:
    views, motions, _ = exact_views(CAPTURE, 2, 3)
    lost = [replace(view, flow=view.flow._replace(consistent=torch.zeros_like(view.known))) for view in views]
    for motion, one in zip(motions, rig_flow(lost), strict=True):
        moving = motion.norm(dim=-1) > 0.1
        assert not one.views[moving].any() or float((one.views[moving] == 0).float().mean()) > 0.95
        assert not one.motion.any()


def test_tracks_follow_their_objects() -> None:
    follower, rows = TrackFollower(0.02, pull=False), []
    for index in range(5):
        views, motions, _ = exact_views(CAPTURE, index, index + 1)
        moving = [motion.norm(dim=-1) > 0.02 for motion in motions]
        rows.append(follower.observe(views, moving, 500, 500 if index == 0 else 0))
        follower.step(views)
    first, last = rows[0], rows[4]
    assert len(first.ids) == len(first.new_colors) > 20
    assert first.seen.any(1).all()
    poses = CAPTURE.world.object_to_world(torch.from_numpy(CAPTURE.times)[None])[0]
    objects, errors = [CAPTURE.rendered(0, view).objects for view in range(CAPTURE.num_views)], []
    for track in last.ids.tolist():
        start = first.world[first.ids == track][0]
        view = int(first.seen[first.ids == track][0].int().argmax())
        camera = CAPTURE.cameras_of(view)[0]
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


def test_tracks_end_when_nothing_is_known_of_the_next_instant_or_no_view_sees_them() -> None:
    views, motions, _ = exact_views(CAPTURE, 0, 1)
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


def test_no_more_tracks_live_or_begin_than_asked() -> None:
    views, motions, _ = exact_views(CAPTURE, 0, 1)
    moving = [motion.norm(dim=-1) > 0.02 for motion in motions]
    follower = TrackFollower(0.02, pull=False)
    assert len(follower.observe(views, moving, 20, 10).new_colors) == 10
    assert len(follower.observe(views, moving, 20, 100).new_colors) == 10
    again = TrackFollower(0.02, pull=False)
    whole = len(again.observe(views, moving, 10_000, 10_000).new_colors)
    assert len(again.observe(views, moving, 10_000, 10_000).new_colors) < whole / 4  # cells with a track stay free
