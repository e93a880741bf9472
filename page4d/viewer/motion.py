"""Velocities and tracks as line segments of viser's scene."""

import colorsys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from page4d.choices import PointLayer
from page4d.formats.ply import PointCloud
from page4d.formats.tracks import Tracks
from page4d.viewer.content import PointChoice, ViewerContent
from page4d.viewer.nodes import set_visible
from page4d.viewer.rig import vector

if TYPE_CHECKING:
    from viser import LineSegmentsHandle, SceneApi

MAX_SEGMENTS = 400
"""Velocities of an instant that are shown; more of them cover what moves."""

MAX_TRACKS = 400

MOST_STEPS = 20.0
"""Largest number of steps between instants during which a point moves along its segment."""

_SHARE = 0.04
"""Length of the segments of fast points in diagonals of the scene, from which the default number of steps follows."""

_FAST_PERCENTILE = 90

TRAIL = 10
"""Steps of a track that are shown behind its point."""

_TAIL, _HEAD = (120, 0, 60), (255, 160, 0)
"""Colours of a velocity at the point, and where it moves to."""

_THICKNESS = 0.75
"""Of a segment, in distances between points."""

_GOLDEN_RATIO = 0.618034
_OLDEST = 0.25
"""Brightness of the end of a trail."""


class Segments(NamedTuple):
    """Line segments [N, 2, 3] relative to the centre of the content, and the colours [N, 2, 3] of their ends."""

    points: NDArray[np.float32]
    colors: NDArray[np.uint8]


def default_steps(content: ViewerContent) -> float:
    """Return the steps, a multiple of 0.5, after which fast points of the middle instant have gone a visible way."""
    place = content.num_times // 2
    cloud = content.moving_points(place) if content.has_layers else content.points(place)
    speed = np.zeros(0) if cloud.velocity is None else np.linalg.norm(cloud.velocity, axis=1)
    speed = speed[speed > 0]
    if not len(speed):
        return 1.0
    steps = _SHARE * content.diagonal * content.frame_rate / float(np.percentile(speed, _FAST_PERCENTILE))
    return float(np.clip(round(2 * steps) / 2, 0.5, MOST_STEPS))


def velocity_segments(cloud: PointCloud, choice: PointChoice, seconds: float, limit: int = MAX_SEGMENTS) -> Segments:
    """Return the path of moving points during some seconds at their velocity, of at most `limit` points."""
    if cloud.velocity is None or choice.layer is PointLayer.STATIC:
        return Segments(np.zeros((0, 2, 3), np.float32), np.zeros((0, 2, 3), np.uint8))
    shown = (cloud.velocity != 0).any(axis=1) & np.isin(cloud.view, choice.views)
    shown &= cloud.confidence >= np.float32(choice.min_confidence)
    if choice.layer is PointLayer.MOVING:
        shown &= cloud.dynamic != 0
    chosen = np.flatnonzero(shown)
    if len(chosen) > limit:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, limit, replace=False))
    start = cloud.xyz[chosen]
    points = np.stack([start, start + np.float32(seconds) * cloud.velocity[chosen]], axis=1)
    colors = np.broadcast_to(np.array([_TAIL, _HEAD], np.uint8), points.shape)
    return Segments(points, np.ascontiguousarray(colors))


def track_segments(tracks: Tracks, place: int, limit: int = MAX_TRACKS, trail: int = TRAIL) -> Segments:
    """Return the last steps of the tracks that exist at an instant, darker the older they are.

    Every track has a hue of its own, the same at all instants.
    """
    step = max(-(-tracks.num_tracks // limit), 1)
    coords, ids = tracks.coords[max(place - trail, 0) : place + 1, ::step], tracks.ids[::step]
    hues = (ids * _GOLDEN_RATIO) % 1.0
    colors = np.array([colorsys.hsv_to_rgb(hue, 0.75, 1.0) for hue in hues]).reshape(-1, 3) * 255
    number = len(coords)
    brightness = np.linspace(1.0 - (1.0 - _OLDEST) * (number - 1) / trail, 1.0, number)
    ends = np.stack([coords[:-1], coords[1:]], axis=2)
    shades = brightness[:, None, None] * colors
    kept = np.isfinite(ends).all(axis=(2, 3)) & np.isfinite(coords[-1]).all(axis=-1)
    of_ends = np.stack([shades[:-1], shades[1:]], axis=2)
    return Segments(ends[kept].astype(np.float32), np.rint(of_ends[kept]).astype(np.uint8))


def add_segments(
    scene: "SceneApi", name: str, content: ViewerContent, segments: Segments, *, visible: bool = True
) -> "LineSegmentsHandle":
    """Add or replace line segments; a node without any is hidden."""
    points, colors = segments
    if len(points) == 0:
        points, colors, visible = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 3), np.uint8), False
    thickness = _THICKNESS * content.point_size
    return scene.add_line_segments(
        name, points, colors, thickness=thickness, position=vector(content.center), visible=visible
    )


class MotionNodes:
    """The velocities and tracks of the shown instant; each is sent when something about it changes."""

    def __init__(self, scene: "SceneApi", content: ViewerContent) -> None:
        self._scene = scene
        self._content = content
        self._nodes: dict[str, tuple[object, LineSegmentsHandle, int]] = {}

    def show(self, place: int, cloud: PointCloud, choice: PointChoice, steps: float, *, tracks: bool) -> None:
        """Show the velocities of a cloud during some steps (0: none), and the tracks."""
        if self._content.has_velocity:
            seconds = steps / self._content.frame_rate
            self._show(
                "/velocities", steps > 0, (place, choice, steps), lambda: velocity_segments(cloud, choice, seconds)
            )
        if (followed := self._content.tracks) is not None:
            self._show("/tracks", tracks, place, lambda: track_segments(followed, place))

    def num_shown(self, name: str) -> int:
        """Return the number of visible segments of a node."""
        _, handle, number = self._nodes.get(name, (None, None, 0))
        return number if handle is not None and handle.visible else 0

    def _show(self, name: str, visible: bool, state: object, segments: Callable[[], Segments]) -> None:
        known = self._nodes.get(name)
        if visible and (known is None or known[0] != state):
            made = segments()
            self._nodes[name] = known = state, add_segments(self._scene, name, self._content, made), len(made.points)
        if known is not None:
            set_visible(known[1], visible and known[2] > 0)
