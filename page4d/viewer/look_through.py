"""A click on a frustum moves the browser's camera into it; the frustum is hidden until the camera leaves it."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page4d.viewer.content import ViewerContent
from page4d.viewer.rig import first_viewpoint, frustum, quaternion, up_vector, vector

if TYPE_CHECKING:
    from viser import CameraFrustumHandle, CameraHandle, ClientHandle, SceneNodePointerEvent, ViserServer

_FOV = math.radians(75)
"""Vertical field of view of the overview, viser's default."""


class LookThrough:
    """The `view` whose frustum a browser's camera is in, or None; `on_change` is called when it changes."""

    def __init__(
        self,
        server: "ViserServer",
        content: ViewerContent,
        frusta: "Sequence[CameraFrustumHandle]",
        place: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        self.view: int | None = None
        self._content = content
        self._place = place
        self._on_change = on_change
        self._position: NDArray[np.float64] = np.zeros(3)
        self._has_arrived = False
        self._client = -1
        self._viewpoint = first_viewpoint(content)
        for view, handle in enumerate(frusta):
            handle.on_click(self._entering(view))
        server.on_client_connect(self._follow)

    def _entering(self, view: int) -> "Callable[[SceneNodePointerEvent[CameraFrustumHandle]], None]":
        return lambda event: self.enter(event.client, view)

    def _follow(self, client: "ClientHandle") -> None:
        client.camera.on_update(self.moved)

    def enter(self, client: "ClientHandle", view: int) -> None:
        """Move the camera of a browser into that of a view, with the whole picture in sight."""
        pose = self._content.camera_to_world[self._place(), view]
        shape = frustum(self._content.intrinsics[self._place(), view], self._content.views[view].size)
        tangent = math.tan(shape.fov / 2)
        position = pose[:3, 3]
        ahead = max(float((np.array(self._viewpoint.look_at) - position) @ pose[:3, 2]), self._content.diagonal / 10)
        self.view, self._client, self._position, self._has_arrived = view, client.client_id, position, False
        self._on_change()
        with client.atomic():
            client.camera.position = vector(position)
            client.camera.wxyz = quaternion(pose)
            client.camera.look_at = vector(position + ahead * pose[:3, 2])
            client.camera.fov = 2 * math.atan(tangent * max(1.0, shape.aspect / client.camera.aspect))

    def overview(self, client: "ClientHandle") -> None:
        """Move the camera of a browser to the first viewpoint."""
        if client.client_id == self._client:
            self._leave()  # the browser may not have reported its arrival in a frustum yet
        with client.atomic():
            client.camera.up_direction = up_vector(self._content.up)
            client.camera.position = self._viewpoint.position
            client.camera.look_at = self._viewpoint.look_at
            client.camera.fov = _FOV

    def moved(self, camera: "CameraHandle") -> None:
        """Show the frustum again when the browser's camera has been in it and leaves it."""
        if self.view is None or camera.client.client_id != self._client:
            return
        distance = float(np.linalg.norm(camera.position - self._position))
        is_there = distance < 1e-3 * self._content.diagonal
        if self._has_arrived and not is_there:
            self._leave()
        self._has_arrived = is_there

    def _leave(self) -> None:
        if self.view is not None:
            self.view = None
            self._on_change()
