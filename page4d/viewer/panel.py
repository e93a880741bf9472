"""The panel of the live viewer: widgets, hotkeys, and what they ask for.

A click on a frustum moves the browser's camera into it; the frustum is hidden until the camera leaves it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page4d.choices import PointLayer
from page4d.exporters.points import PointFilter
from page4d.viewer.content import SHOWN_AT_FIRST, ViewerContent
from page4d.viewer.scene import MOST_STEPS, TRAIL, default_steps, first_viewpoint, frustum, quaternion, vector

if TYPE_CHECKING:
    from viser import CameraFrustumHandle, CameraHandle, ClientHandle, ViserServer

_MIN_FPS, _MAX_FPS = 0.1, 120.0
_MANY_VIEWS = 8
"""Number of views from which their switches are folded up."""

_HELP = """\
**Mouse** left: orbit, right: pan, wheel: zoom. **Keys** W A S D Q E and arrows: move, space: play, page up and page \
down: one instant. A click on a camera shows its view."""


@dataclass(frozen=True)
class Wanted:
    """What the widgets ask for; `cameras` has one switch per shown view.

    Velocities are drawn as the path of `velocity_steps` steps (0: none).
    """

    place: int
    choice: PointFilter
    point_size: float
    cameras: tuple[bool, ...]
    velocity_steps: float = 0.0
    tracks: bool = False


class Panel:
    """Widgets of all browsers, which share one state; `on_change` is called for each change, in any thread."""

    def __init__(self, server: "ViserServer", content: ViewerContent, on_change: Callable[[], None]) -> None:
        self._content = content
        self._on_change = on_change
        gui, last = server.gui, content.num_times - 1
        has_time = last > 0
        self.description = gui.add_html(_framed(content.description(is_graded=False)))
        with gui.add_folder("Time"):
            self.instant = gui.add_slider(
                "instant", min=0, max=max(last, 1), step=1, initial_value=0, disabled=not has_time
            )
            self.time = gui.add_text("time", content.instant_text(0), disabled=True)
            self.play = gui.add_checkbox("play", False, disabled=not has_time)
            self.loop = gui.add_checkbox("loop", True, disabled=not has_time)
            rate = min(max(round(content.frame_rate, 2), _MIN_FPS), _MAX_FPS)
            self.fps = gui.add_number("fps", rate, min=_MIN_FPS, max=_MAX_FPS, step=0.1, disabled=not has_time)
        with gui.add_folder("Points"):
            self.layer = gui.add_dropdown(
                "show", [layer.value for layer in PointLayer], disabled=not content.output.has_moving_points
            )
            self.min_confidence = gui.add_slider("min confidence", min=0.0, max=1.0, step=0.01, initial_value=0.0)
            self.point_size = gui.add_slider("point size", min=0.1, max=5.0, step=0.1, initial_value=1.0)
            self.count = gui.add_text("shown", "", disabled=True)
        self.velocities = self.velocity_steps = self.tracks = None
        if content.output.has_velocity:
            with gui.add_folder("Motion"):
                self.velocities = gui.add_checkbox(
                    "velocities", SHOWN_AT_FIRST["velocities"], hint="paths of moving points"
                )
                self.velocity_steps = gui.add_slider(
                    "steps",
                    min=0.5,
                    max=MOST_STEPS,
                    step=0.5,
                    initial_value=default_steps(content),
                    hint="length of the paths",
                )
                if content.output.has_tracks:
                    hint = f"the last {TRAIL} steps of followed points"
                    self.tracks = gui.add_checkbox("tracks", SHOWN_AT_FIRST["tracks"], hint=hint)
        with gui.add_folder("Views", expand_by_default=len(content.views) < _MANY_VIEWS):
            self.frusta = gui.add_checkbox("cameras", SHOWN_AT_FIRST["cameras"])
            self.views = [gui.add_checkbox(view.name, True) for view in content.views]
        self.overview = gui.add_button("overview")
        with gui.add_folder("Help", expand_by_default=False):
            gui.add_markdown(_HELP)
        self._connect(server)

    @property
    def place(self) -> int:
        """The chosen instant; a typed number may be out of range."""
        return min(max(int(self.instant.value), 0), self._content.num_times - 1)

    @property
    def duration(self) -> float:
        """Seconds for which an instant is shown while playing; a typed rate may be 0."""
        return 1.0 / min(max(float(self.fps.value), _MIN_FPS), _MAX_FPS)

    def wanted(self) -> Wanted:
        """Return what the widgets ask for."""
        switches = [switch.value for switch in self.views]
        shown = [view.index for view, is_on in zip(self._content.views, switches, strict=True) if is_on]
        return Wanted(
            place=self.place,
            choice=PointFilter(
                views=tuple(shown), only=PointLayer(self.layer.value), min_confidence=self.min_confidence.value
            ),
            point_size=self.point_size.value * self._content.point_size,
            cameras=tuple(is_on and self.frusta.value for is_on in switches),
            velocity_steps=self._steps,
            tracks=self.tracks is not None and self.tracks.value,
        )

    @property
    def _steps(self) -> float:
        if self.velocities is None or self.velocity_steps is None or not self.velocities.value:
            return 0.0
        return float(self.velocity_steps.value)

    def describe(self, place: int, number: int) -> None:
        """Show the time of an instant, and the number of points."""
        self.time.value = self._content.instant_text(place)
        self.count.value = f"{number:,} points"

    def grade(self) -> None:
        """Measure the grade of the result and show it."""
        self.description.content = _framed(self._content.description(is_graded=True))

    def step(self, number: int) -> bool:
        """Go some instants ahead, or back; return False at an end without `loop`."""
        place, total = self.place + number, self._content.num_times
        if not self.loop.value and not 0 <= place < total:
            return False
        self.instant.value = place % total
        return True

    def _connect(self, server: "ViserServer") -> None:
        widgets = (
            *(self.instant, self.play, self.loop, self.fps, self.layer, self.min_confidence, self.point_size),
            *(self.frusta, *self.views),
            *(one for one in (self.velocities, self.velocity_steps, self.tracks) if one is not None),
        )

        for widget in widgets:
            widget.on_update(lambda _: self._on_change())
        if self._content.num_times > 1:
            server.gui.add_command("Play or pause", hotkey="space").on_trigger(self._toggle)
            server.gui.add_command("Next instant", hotkey="pagedown").on_trigger(lambda _: self.step(1))
            server.gui.add_command("Previous instant", hotkey="pageup").on_trigger(lambda _: self.step(-1))

    def _toggle(self, _: object) -> None:
        self.play.value = not self.play.value


def _framed(description: str) -> str:
    return f'<div style="padding:0 .9em;font-size:.85em">{description}</div>'


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
            handle.on_click(lambda event, view=view: self.enter(event.client, view))
        server.on_client_connect(lambda client: client.camera.on_update(self.moved))

    def enter(self, client: "ClientHandle", view: int) -> None:
        """Move the camera of a browser into that of a view, with the whole picture in sight."""
        pose = self._content.camera_to_world[self._place(), view]
        fov, aspect = frustum(self._content.intrinsics[self._place(), view], self._content.views[view].size)
        tangent = math.tan(fov / 2)
        position = pose[:3, 3]
        ahead = max(float((np.array(self._viewpoint.look_at) - position) @ pose[:3, 2]), self._content.diagonal / 10)
        self.view, self._client, self._position, self._has_arrived = view, client.client_id, position, False
        self._on_change()
        with client.atomic():
            client.camera.position = vector(position)
            client.camera.wxyz = quaternion(pose)
            client.camera.look_at = vector(position + ahead * pose[:3, 2])
            client.camera.fov = 2 * math.atan(tangent * max(1.0, aspect / client.camera.aspect))

    def overview(self, client: "ClientHandle") -> None:
        """Move the camera of a browser to the first viewpoint."""
        if client.client_id == self._client:
            self._leave()  # the browser may not have reported its arrival in a frustum yet
        with client.atomic():
            client.camera.up_direction = vector(self._content.up)
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
