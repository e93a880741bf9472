"""The panel of the live viewer: widgets, hotkeys, and what they ask for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from page4d.choices import PointLayer
from page4d.viewer.content import PointChoice, ViewerContent
from page4d.viewer.motion import MOST_STEPS, TRAIL, default_steps

if TYPE_CHECKING:
    from viser import GuiEvent, ViserServer

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
    choice: PointChoice
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
        with gui.add_folder("Time"):
            self.instant = gui.add_slider(
                "instant", min=0, max=max(last, 1), step=1, initial_value=0, disabled=not has_time
            )
            self.time = gui.add_text("time", self._seconds(0), disabled=True)
            self.play = gui.add_checkbox("play", False, disabled=not has_time)
            self.loop = gui.add_checkbox("loop", True, disabled=not has_time)
            rate = min(max(round(content.frame_rate, 2), _MIN_FPS), _MAX_FPS)
            self.fps = gui.add_number("fps", rate, min=_MIN_FPS, max=_MAX_FPS, step=0.1, disabled=not has_time)
        with gui.add_folder("Points"):
            self.layer = gui.add_dropdown(
                "show", [layer.value for layer in PointLayer], disabled=not content.has_motion
            )
            self.min_confidence = gui.add_slider("min confidence", min=0.0, max=1.0, step=0.01, initial_value=0.0)
            self.point_size = gui.add_slider("point size", min=0.1, max=5.0, step=0.1, initial_value=1.0)
            self.count = gui.add_text("shown", "", disabled=True)
            self.unit = gui.add_text("unit", content.unit, disabled=True)
        self.velocities = self.velocity_steps = self.tracks = None
        if content.has_velocity:
            with gui.add_folder("Motion"):
                self.velocities = gui.add_checkbox("velocities", False, hint="paths of moving points")
                self.velocity_steps = gui.add_slider(
                    "steps",
                    min=0.5,
                    max=MOST_STEPS,
                    step=0.5,
                    initial_value=default_steps(content),
                    hint="length of the paths",
                )
                if content.output.has_tracks:
                    self.tracks = gui.add_checkbox("tracks", False, hint=f"the last {TRAIL} steps of followed points")
        with gui.add_folder("Views", expand_by_default=len(content.views) < _MANY_VIEWS):
            self.frusta = gui.add_checkbox("cameras", True)
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
            choice=PointChoice(
                views=tuple(shown), layer=PointLayer(self.layer.value), min_confidence=self.min_confidence.value
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
        self.time.value = self._seconds(place)
        self.count.value = f"{number:,} points"

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

        def changed(_: "GuiEvent[Any]") -> None:
            self._on_change()

        for widget in widgets:
            widget.on_update(changed)
        if self._content.num_times > 1:
            server.gui.add_command("Play or pause", hotkey="space").on_trigger(self._toggle)
            server.gui.add_command("Next instant", hotkey="pagedown").on_trigger(self._go_ahead)
            server.gui.add_command("Previous instant", hotkey="pageup").on_trigger(self._go_back)

    def _toggle(self, _: object) -> None:
        self.play.value = not self.play.value

    def _go_ahead(self, _: object) -> None:
        self.step(1)

    def _go_back(self, _: object) -> None:
        self.step(-1)

    def _seconds(self, place: int) -> str:
        return f"{self._content.seconds[place]:.3f} s"
