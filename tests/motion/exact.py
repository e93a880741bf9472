"""Views of a synthetic rig with exact depth and exact optical flow."""

from functools import cache

import torch
from torch import Tensor

from page4d.geometry.camera import pixel_grid
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.motion.flow import FlowView, ViewFlow
from tests.synthetic.scenes import flow_between


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
