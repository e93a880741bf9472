"""Clouds and frusta as nodes of viser's scene."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page4d.plotting.canvas import view_color
from page4d.viewer.content import ViewerContent
from page4d.viewer.rig import first_viewpoint, frustum, frustum_depth, quaternion, up_vector, vector
from page4d.viewer.thumbnails import JPEG_QUALITY, Thumbnails

if TYPE_CHECKING:
    from viser import CameraFrustumHandle, PointCloudHandle, SceneApi, SceneNodeHandle, ViserServer


def prepare_scene(server: "ViserServer", content: ViewerContent) -> None:
    """Set the up direction and the first viewpoint."""
    viewpoint = first_viewpoint(content)
    server.scene.set_up_direction(up_vector(content.up))
    server.initial_camera.position = viewpoint.position
    server.initial_camera.look_at = viewpoint.look_at
    server.initial_camera.near = viewpoint.near
    server.initial_camera.far = viewpoint.far


def add_cloud(
    scene: "SceneApi",
    name: str,
    content: ViewerContent,
    points: tuple[NDArray[np.float32], NDArray[np.uint8]],
    *,
    size: float,
    visible: bool = True,
) -> "PointCloudHandle":
    """Add or replace a cloud: positions [N, 3] relative to the centre of the content, and colours [N, 3]."""
    xyz, rgb = points
    return scene.add_point_cloud(
        name,
        xyz,
        rgb,
        point_size=size,
        point_shape="circle",
        point_shading="flat",
        precision=content.precision,
        position=vector(content.center),
        visible=visible,
    )


def set_visible(node: "SceneNodeHandle", visible: bool) -> None:
    """Show or hide a node; nothing is sent if that changes nothing."""
    if node.visible != visible:
        node.visible = visible


class CameraNodes:
    """The frusta of all views, with pictures where there are any."""

    def __init__(self, scene: "SceneApi", content: ViewerContent, thumbnails: Thumbnails | None) -> None:
        self._content = content
        self._thumbnails = thumbnails
        self._place = 0
        depth = frustum_depth(content)
        self.handles: list[CameraFrustumHandle] = []
        for number, view in enumerate(content.views):
            shape = frustum(content.intrinsics[0, number], view.size)
            pose = content.camera_to_world[0, number]
            handle = scene.add_camera_frustum(
                f"/cameras/{view.label}",
                shape.fov,
                shape.aspect,
                thickness=0.02 * depth,
                color=view_color(view.index),
                format="jpeg",
                jpeg_quality=JPEG_QUALITY,
                wxyz=quaternion(pose),
                position=vector(pose[:3, 3]),
                image=None if thumbnails is None else thumbnails.get(0, number),
            )
            handle.scale = depth / handle.compute_canonical_frustum_size()[2]
            self.handles.append(handle)

    def show(self, place: int) -> None:
        """Move the frusta to an instant, and show its pictures."""
        for number, (handle, view) in enumerate(zip(self.handles, self._content.views, strict=True)):
            pose, before = (self._content.camera_to_world[index, number] for index in (place, self._place))
            matrix, matrix_before = (self._content.intrinsics[index, number] for index in (place, self._place))
            if not np.array_equal(pose, before):
                handle.wxyz, handle.position = quaternion(pose), vector(pose[:3, 3])
            if not np.array_equal(matrix, matrix_before):
                shape = frustum(matrix, view.size)
                handle.fov, handle.aspect = shape.fov, shape.aspect
            if self._thumbnails is not None:
                handle.image = self._thumbnails.get(place, number)
        self._place = place
