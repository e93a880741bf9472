"""Clouds, frusta, velocities and tracks as nodes of viser's scene.

The browser holds the clouds of all instants if there is room for them, else the shown one and the next ones. Frusta
carry small compressed pictures of all instants and views.
"""

import colorsys
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import PointLayer
from page4d.exporters.points import PointFilter
from page4d.formats.maps import encode_image
from page4d.formats.ply import PointCloud
from page4d.formats.tracks import Tracks
from page4d.geometry.rotation import quaternion_from_matrix
from page4d.output.pictures import Pictures
from page4d.plotting.canvas import view_color
from page4d.viewer.content import ViewerContent

if TYPE_CHECKING:
    from viser import CameraFrustumHandle, LineSegmentsHandle, PointCloudHandle, SceneApi, ViserServer

Vector = tuple[float, float, float]

_FRUSTUM_SHARE = 0.06
"""Depth of a frustum as a share of the scene's diagonal."""

_FRUSTUM_REACH = 0.15
"""Largest depth of a frustum as a share of the cameras' distance from the scene."""

_BACK, _RISE = 1.4, 0.3
"""The first viewpoint, in distances of the cameras from the scene: how far back, and how far above them."""

_COMMON_SIDE = 0.3
"""Least length of the mean of the cameras' horizontal offsets, as a share of their mean length."""

_LEAST_TILT = 0.2
"""Least horizontal distance of the first viewpoint: straight down, the browser cannot keep the up direction."""


@dataclass(frozen=True, kw_only=True)
class ViewerCamera:
    """A camera of the viewer in the run's world, the point that it orbits, and its clipping planes."""

    position: Vector
    look_at: Vector
    near: float
    far: float


def frustum(intrinsics: NDArray[np.float64], size: tuple[int, int]) -> tuple[float, float]:
    """Return the vertical field of view in radians, and the tangents' ratio of width to height, of a camera.

    It has intrinsics [3, 3] and pictures of (height, width). The principal point is not represented: a frustum is
    symmetric.
    """
    height, width = size
    tangent_x, tangent_y = width / (2 * intrinsics[0, 0]), height / (2 * intrinsics[1, 1])
    return 2 * math.atan(tangent_y), float(tangent_x / tangent_y)


def quaternion(pose: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return the rotation of a pose [4, 4] as a unit quaternion (wxyz)."""
    w, x, y, z = quaternion_from_matrix(torch.from_numpy(pose[:3, :3].copy())).tolist()
    return w, x, y, z


def vector(values: NDArray[np.float64]) -> Vector:
    """Return a vector [3] as numbers of Python."""
    x, y, z = values.tolist()
    return x, y, z


def frustum_depth(content: ViewerContent) -> float:
    """Return the depth at which pictures of frusta lie: a share of the scene.

    It is less if cameras are close together, or close to what they see.
    """
    centers = content.camera_to_world[0, :, :3, 3]
    depth = min(_FRUSTUM_SHARE * content.diagonal, _FRUSTUM_REACH * _distance(content))
    if len(centers) > 1:
        distances = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
        nearest = np.median(np.where(np.eye(len(centers), dtype=bool), np.inf, distances).min(axis=1))
        depth = min(depth, max(0.5 * float(nearest), 0.2 * depth))
    return depth


def first_viewpoint(content: ViewerContent) -> ViewerCamera:
    """Return a viewpoint behind and above the cameras, at their mean height, towards the scene."""
    target, up, distance = _target(content), content.up, _distance(content)
    offsets = content.camera_to_world[0, :, :3, 3] - target
    heights = offsets @ up
    level = offsets - heights[:, None] * up
    radius = max(float(np.linalg.norm(level, axis=1).mean()), _LEAST_TILT * distance)
    toward = radius * _side(level, up, content.camera_to_world[0, 0], distance) + heights.mean() * up
    position = target + distance * (_BACK * toward / np.linalg.norm(toward) + _RISE * up)
    return ViewerCamera(
        position=vector(position),
        look_at=vector(target),
        near=min(content.diagonal / 1000, distance / 100),
        far=max(content.diagonal, distance) * 100,
    )


def _target(content: ViewerContent) -> NDArray[np.float64]:
    """Return the median [3] of the points."""
    return content.center + np.median(content.middle_points.astype(np.float64), axis=0)


def _distance(content: ViewerContent) -> float:
    """Return the mean distance of the cameras from the median of the points."""
    offsets = content.camera_to_world[0, :, :3, 3] - _target(content)
    return float(np.linalg.norm(offsets, axis=1).mean()) or content.diagonal


def _side(
    level: NDArray[np.float64], up: NDArray[np.float64], pose: NDArray[np.float64], distance: float
) -> NDArray[np.float64]:
    """Return a horizontal unit vector [3] to the side of the cameras, from their horizontal offsets [V, 3].

    Cameras all around the scene have no common side: then the first one counts, with its pose [4, 4]. If it is right
    above the scene, its side is that of the lower edge of its picture.
    """
    side, radius = level.mean(axis=0), np.linalg.norm(level, axis=1).mean()
    if np.linalg.norm(side) < _COMMON_SIDE * radius:
        side = level[0]
    if np.linalg.norm(side) < _LEAST_TILT / 10 * distance:
        side = pose[:3, 1] if abs(pose[:3, 2] @ up) > 0.9 else -pose[:3, 2]
        side = side - (side @ up) * up
    unit: NDArray[np.float64] = side / np.linalg.norm(side)
    return unit


LONG_SIDE = 160
"""Long side of a small picture in pixels."""

JPEG_QUALITY = 80


class Thumbnails:
    """Small pictures by place and view, as far as they have been read; for several threads."""

    def __init__(self, content: ViewerContent, pictures: Pictures) -> None:
        self._content = content
        self._pictures = pictures
        self._encoded: dict[tuple[int, int], bytes] = {}

    @property
    def total(self) -> int:
        """Number of pictures."""
        return self._content.num_times * len(self._content.views)

    def read(self) -> Iterator[int]:
        """Read all pictures, view by view; yield the number of pictures so far after each.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        for number, view in enumerate(self._content.views):
            for place, pixels in enumerate(self._pictures.read(view.name, self._content.instants)):
                self._encoded[place, number] = encode_image(
                    shrunk(pixels), ".jpg", [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
                )
                yield len(self._encoded)

    def has(self, place: int, view: int) -> bool:
        """Return whether a picture has been read; views are counted among the shown ones."""
        return (place, view) in self._encoded

    def get(self, place: int, view: int) -> NDArray[np.uint8] | None:
        """Return a picture [h, w, 3]; None if it has not been read."""
        encoded = self._encoded.get((place, view))
        if encoded is None:
            return None
        decoded = cv2.imdecode(np.frombuffer(encoded, dtype=np.uint8), cv2.IMREAD_COLOR)
        return np.ascontiguousarray(np.asarray(decoded, dtype=np.uint8)[..., ::-1])


def shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Resize a picture [H, W, 3] to the long side of small ones."""
    height, width = pixels.shape[:2]
    scale = min(LONG_SIDE / max(height, width), 1.0)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def prepare_scene(server: "ViserServer", content: ViewerContent) -> None:
    """Set the up direction and the first viewpoint."""
    viewpoint = first_viewpoint(content)
    server.scene.set_up_direction(vector(content.up))
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


class CameraNodes:
    """The frusta of all views, with pictures where there are any."""

    def __init__(self, scene: "SceneApi", content: ViewerContent, thumbnails: Thumbnails | None) -> None:
        self._content = content
        self._thumbnails = thumbnails
        depth = frustum_depth(content)
        self.handles: list[CameraFrustumHandle] = []
        for number, view in enumerate(content.views):
            pose = content.camera_to_world[0, number]
            handle = scene.add_camera_frustum(
                f"/cameras/{view.label}",
                *frustum(content.intrinsics[0, number], view.size),
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
        """Move the frusta to an instant, and show its pictures; viser sends what changes."""
        for number, (handle, view) in enumerate(zip(self.handles, self._content.views, strict=True)):
            pose = self._content.camera_to_world[place, number]
            handle.wxyz, handle.position = quaternion(pose), vector(pose[:3, 3])
            handle.fov, handle.aspect = frustum(self._content.intrinsics[place, number], view.size)
            if self._thumbnails is not None:
                handle.image = self._thumbnails.get(place, number)


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
    cloud = content.changing_points(place)
    speed = np.zeros(0) if cloud.velocity is None else np.linalg.norm(cloud.velocity, axis=1)
    speed = speed[speed > 0]
    if not len(speed):
        return 1.0
    steps = _SHARE * content.diagonal * content.frame_rate / float(np.percentile(speed, _FAST_PERCENTILE))
    return float(np.clip(round(2 * steps) / 2, 0.5, MOST_STEPS))


def velocity_segments(cloud: PointCloud, choice: PointFilter, seconds: float, limit: int = MAX_SEGMENTS) -> Segments:
    """Return the path of moving points during some seconds at their velocity, of at most `limit` points."""
    if cloud.velocity is None or choice.only is PointLayer.STATIC:
        return Segments(np.zeros((0, 2, 3), np.float32), np.zeros((0, 2, 3), np.uint8))
    chosen = np.flatnonzero((cloud.velocity != 0).any(axis=1) & choice.of(cloud))
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


def add_segments(scene: "SceneApi", name: str, content: ViewerContent, segments: Segments) -> "LineSegmentsHandle":
    """Add or replace line segments; a node without any is hidden."""
    (points, colors), visible = segments, len(segments.points) > 0
    if not visible:
        points, colors = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 3), np.uint8)
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

    def show(self, place: int, cloud: PointCloud, choice: PointFilter, steps: float, *, tracks: bool) -> None:
        """Show the velocities of a cloud during some steps (0: none), and the tracks."""
        if self._content.output.has_velocity:
            seconds = steps / self._content.frame_rate
            self._show(
                "/velocities", steps > 0, (place, choice, steps), lambda: velocity_segments(cloud, choice, seconds)
            )
        if (followed := self._content.tracks) is not None:
            self._show("/tracks", tracks, place, lambda: track_segments(followed, place))

    def _show(self, name: str, visible: bool, state: object, segments: Callable[[], Segments]) -> None:
        known = self._nodes.get(name)
        if visible and (known is None or known[0] != state):
            made = segments()
            self._nodes[name] = known = state, add_segments(self._scene, name, self._content, made), len(made.points)
        if known is not None:
            known[1].visible = visible and known[2] > 0


RESIDENT_POINTS = 5_000_000
"""Points that stay in the browser."""

_LEAST = 3
"""Instants that stay in the browser even if there is no room for them: the shown one and the next two."""


_Node = tuple["PointCloudHandle", PointFilter, int]
"""A cloud in the browser, with its choice and number of points."""


class ResidentClouds:
    """The nodes of clouds, by place; each is sent when it is first needed, or when its choice of points changes.

    Of a run with layers, points that never move are one node of their own while all views are chosen; points of one
    view alone would have holes there, and come from the merged clouds.
    """

    def __init__(self, scene: "SceneApi", content: ViewerContent, max_points: int = RESIDENT_POINTS) -> None:
        self._scene = scene
        self._content = content
        self._max_points = max_points
        self._clouds: OrderedDict[int, PointCloud] = OrderedDict()
        self._nodes: dict[int, _Node] = {}
        self._static_cloud: PointCloud | None = None
        self._static_node: _Node | None = None
        self._place = 0
        self._choice = content.choice
        self._size = content.point_size

    @property
    def places(self) -> tuple[int, ...]:
        """Instants in the browser."""
        return tuple(sorted(self._nodes))

    @property
    def capacity(self) -> int:
        """Number of instants for which there is room."""
        is_layered, clouds = self._is_layered(self._choice), self._content.clouds
        room, most = self._max_points, max(*clouds.most(PointLayer.MOVING if is_layered else PointLayer.ALL), 1)
        if is_layered:
            room = max(room - sum(clouds.most(PointLayer.STATIC)), 0)
        return min(max(room // most, _LEAST), self._content.num_times)

    def show(self, place: int, choice: PointFilter, size: float) -> int:
        """Show an instant instead of the one before, with points of a width; return the number of points."""
        if self._is_layered(choice) != self._is_layered(self._choice):
            self._clouds.clear()  # the others are sent again, as their choice is another one
        self._choice, self._size = choice, size
        node = self._sent(place)
        if place != self._place and self._place in self._nodes:
            self._nodes[self._place][0].visible = False
        self._place = place
        number = self._shown(node)
        self._evict()
        return number + self._show_static()

    def cloud(self, place: int) -> PointCloud:
        """Return the cloud of an instant that is in the browser."""
        return self._clouds[place]

    def prepare_next(self) -> bool:
        """Send one of the next instants, invisible; return False if all of them are there."""
        for ahead in range(1, self.capacity):
            place = (self._place + ahead) % self._content.num_times
            if place not in self._nodes or self._nodes[place][1] != self._choice:
                self._sent(place)
                self._evict()
                return True
        return False

    def _is_layered(self, choice: PointFilter) -> bool:
        return self._content.clouds.has_layers and set(choice.views) == set(self._content.choice.views)

    def _show_static(self) -> int:
        """Show or hide the points that never move; return their number."""
        if not self._is_layered(self._choice):
            if self._static_node is not None:
                self._static_node[0].visible = False
            return 0
        if self._static_cloud is None:
            self._static_cloud = self._content.points(0, PointLayer.STATIC)
        self._static_node = self._fresh(self._static_node, self._static_cloud, "/points/static", visible=True)
        return self._shown(self._static_node)

    def _sent(self, place: int) -> "_Node":
        """Return the node of an instant, sent if it is missing or out of date."""
        if place not in self._clouds:
            layer = PointLayer.MOVING if self._is_layered(self._choice) else PointLayer.ALL
            self._clouds[place] = self._content.points(place, layer)
        self._clouds.move_to_end(place)
        known, name = self._nodes.get(place), f"/points/{self._content.instants[place]:06d}"
        is_visible = known is not None and place == self._place
        node = self._nodes[place] = self._fresh(known, self._clouds[place], name, visible=is_visible)
        return node

    def _fresh(self, known: "_Node | None", cloud: PointCloud, name: str, *, visible: bool) -> "_Node":
        """Return the known node of a cloud, or if its choice of points is another one, a new node."""
        if known is not None and known[1] == self._choice:
            return known
        chosen = self._choice.of(cloud)
        points = cloud.xyz[chosen], cloud.rgb[chosen]
        handle = add_cloud(self._scene, name, self._content, points, size=self._size, visible=visible)
        return handle, self._choice, len(points[0])

    def _shown(self, node: "_Node") -> int:
        """Show a node with points of the chosen width; return their number."""
        handle, _, number = node
        handle.point_size, handle.visible = self._size, True
        return number

    def _evict(self) -> None:
        """Remove the instants that were needed longest ago."""
        while len(self._nodes) > self.capacity:
            others = [place for place in self._nodes if place not in self._clouds]  # of another choice of views
            oldest = next(place for place in (*others, *self._clouds) if place != self._place)
            self._clouds.pop(oldest, None)
            self._nodes.pop(oldest)[0].remove()
