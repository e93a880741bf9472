"""Scene flow of a rig against the exact motion of synthetic worlds."""

from dataclasses import replace

import torch

from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.motion.flow import rig_flow
from tests.motion.exact import exact_views


def test_exact_flow_and_depth_give_the_exact_motion(capture: SyntheticCapture) -> None:
    views, motions, _ = exact_views(capture, 2, 3)
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


def test_motion_along_the_ray_is_measured_by_the_other_views(capture: SyntheticCapture) -> None:
    views, motions, _ = exact_views(capture, 2, 3)
    alone = rig_flow(views[:1])[0]
    together = rig_flow(views)[0]
    chosen = (motions[0].norm(dim=-1) > 0.02) & (together.views >= 2) & (alone.views == 1)
    errors = [float((one.motion - motions[0]).norm(dim=-1)[chosen].mean()) for one in (together, alone)]
    assert errors[0] < errors[1] / 2
    # One view does not know the motion along its ray: sigma is at least the length of the motion.
    assert bool((alone.sigma >= alone.motion.norm(dim=-1))[chosen].all())


def test_motion_scales_with_the_unit_of_the_rig(capture: SyntheticCapture) -> None:
    views, _, _ = exact_views(capture, 2, 3)

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


def test_the_motion_mask_makes_pixels_stand_still(capture: SyntheticCapture) -> None:
    views, motions, _ = exact_views(capture, 2, 3)
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


def test_no_motion_is_answered_where_flow_is_inconsistent(capture: SyntheticCapture) -> None:
    views, motions, _ = exact_views(capture, 2, 3)
    lost = [replace(view, flow=view.flow._replace(consistent=torch.zeros_like(view.known))) for view in views]
    for motion, one in zip(motions, rig_flow(lost), strict=True):
        moving = motion.norm(dim=-1) > 0.1
        assert not one.views[moving].any() or float((one.views[moving] == 0).float().mean()) > 0.95
        assert not one.motion.any()
