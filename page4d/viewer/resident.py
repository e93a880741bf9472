"""Clouds in the browser: all instants if there is room for them, else the shown one and the next ones."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from page4d.formats.ply import PointCloud
from page4d.viewer.content import PointChoice, SortedCloud, ViewerContent
from page4d.viewer.nodes import add_cloud, set_visible

if TYPE_CHECKING:
    from viser import PointCloudHandle, SceneApi

RESIDENT_POINTS = 5_000_000
"""Points that stay in the browser."""

_LEAST = 3
"""Instants that stay in the browser even if there is no room for them: the shown one and the next two."""


class ResidentClouds:
    """The nodes of clouds, by place; each is sent when it is first needed, or when its choice of points changes.

    Of a run with layers, points that never move are one node of their own while all views are chosen; points of one
    view alone would have holes there, and come from the merged clouds.
    """

    def __init__(self, scene: "SceneApi", content: ViewerContent, max_points: int = RESIDENT_POINTS) -> None:
        self._scene = scene
        self._content = content
        self._max_points = max_points
        self._clouds: OrderedDict[int, SortedCloud] = OrderedDict()
        self._nodes: dict[int, tuple[PointCloudHandle, PointChoice, int]] = {}
        self._static_cloud: SortedCloud | None = None
        self._static_node: tuple[PointCloudHandle, PointChoice, int] | None = None
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
        room, most = self._max_points, max(*self._content.num_points, 1)
        if self._is_layered(self._choice):
            static, moving = self._content.num_layer_points
            room, most = max(room - static, 0), max(*moving, 1)
        return min(max(room // most, _LEAST), self._content.num_times)

    def show(self, place: int, choice: PointChoice, size: float) -> int:
        """Show an instant instead of the one before, with points of a width; return the number of points."""
        if self._is_layered(choice) != self._is_layered(self._choice):
            self._clouds.clear()  # the others are sent again, as their choice is another one
        self._choice, self._size = choice, size
        handle, number = self._sent(place)
        if handle.point_size != size:
            handle.point_size = size
        if place != self._place and self._place in self._nodes:
            set_visible(self._nodes[self._place][0], False)
        set_visible(handle, True)
        self._place = place
        self._evict()
        return number + self._show_static()

    def cloud(self, place: int) -> PointCloud:
        """Return the cloud of an instant that is in the browser, in order of falling confidence."""
        return self._clouds[place].cloud

    def prepare_next(self) -> bool:
        """Send one of the next instants, invisible; return False if all of them are there."""
        for ahead in range(1, self.capacity):
            place = (self._place + ahead) % self._content.num_times
            if place not in self._nodes or self._nodes[place][1] != self._choice:
                self._sent(place)
                self._evict()
                return True
        return False

    def _is_layered(self, choice: PointChoice) -> bool:
        return self._content.has_layers and set(choice.views) == set(self._content.choice.views)

    def _show_static(self) -> int:
        """Show or hide the points that never move; return their number."""
        if not self._is_layered(self._choice):
            if self._static_node is not None:
                set_visible(self._static_node[0], False)
            return 0
        if self._static_cloud is None:
            self._static_cloud = SortedCloud(self._content.static_points())
        if self._static_node is None or self._static_node[1] != self._choice:
            points = self._static_cloud.select(self._choice)
            handle = add_cloud(self._scene, "/points/static", self._content, points, size=self._size)
            self._static_node = (handle, self._choice, len(points[0]))
        handle, _, number = self._static_node
        if handle.point_size != self._size:
            handle.point_size = self._size
        set_visible(handle, True)
        return number

    def _sent(self, place: int) -> "tuple[PointCloudHandle, int]":
        """Return the node of an instant and its number of points, sent if it is missing or out of date."""
        cloud = self._clouds.get(place)
        if cloud is None:
            read = self._content.moving_points if self._is_layered(self._choice) else self._content.points
            cloud = self._clouds[place] = SortedCloud(read(place))
        self._clouds.move_to_end(place)
        if place not in self._nodes or self._nodes[place][1] != self._choice:
            points = cloud.select(self._choice)
            name = f"/points/{self._content.instants[place]:06d}"
            is_visible = place == self._place and place in self._nodes
            handle = add_cloud(self._scene, name, self._content, points, size=self._size, visible=is_visible)
            self._nodes[place] = (handle, self._choice, len(points[0]))
        handle, _, number = self._nodes[place]
        return handle, number

    def _evict(self) -> None:
        """Remove the instants that were needed longest ago."""
        while len(self._nodes) > self.capacity:
            others = [place for place in self._nodes if place not in self._clouds]  # of another choice of views
            oldest = next(place for place in (*others, *self._clouds) if place != self._place)
            self._clouds.pop(oldest, None)
            self._nodes.pop(oldest)[0].remove()
