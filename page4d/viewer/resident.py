"""Clouds in the browser: all instants if there is room for them, else the shown one and the next ones."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from page4d.viewer.content import PointChoice, SortedCloud, ViewerContent
from page4d.viewer.nodes import add_cloud, set_visible

if TYPE_CHECKING:
    from viser import PointCloudHandle, SceneApi

RESIDENT_POINTS = 5_000_000
"""Points that stay in the browser."""

_LEAST = 3
"""Instants that stay in the browser even if there is no room for them: the shown one and the next two."""


class ResidentClouds:
    """The nodes of clouds, by place; each is sent when it is first needed, or when its choice of points changes."""

    def __init__(self, scene: "SceneApi", content: ViewerContent, max_points: int = RESIDENT_POINTS) -> None:
        self._scene = scene
        self._content = content
        self.capacity = min(max(max_points // max(*content.num_points, 1), _LEAST), content.num_times)
        self._clouds: OrderedDict[int, SortedCloud] = OrderedDict()
        self._nodes: dict[int, tuple[PointCloudHandle, PointChoice, int]] = {}
        self._place = 0
        self._choice = content.choice
        self._size = content.point_size

    @property
    def places(self) -> tuple[int, ...]:
        """Instants in the browser."""
        return tuple(sorted(self._nodes))

    def show(self, place: int, choice: PointChoice, size: float) -> int:
        """Show an instant instead of the one before, with points of a width; return the number of points."""
        self._choice, self._size = choice, size
        handle, number = self._sent(place)
        if handle.point_size != size:
            handle.point_size = size
        if place != self._place and self._place in self._nodes:
            set_visible(self._nodes[self._place][0], False)
        set_visible(handle, True)
        self._place = place
        self._evict()
        return number

    def prepare_next(self) -> bool:
        """Send one of the next instants, invisible; return False if all of them are there."""
        for ahead in range(1, self.capacity):
            place = (self._place + ahead) % self._content.num_times
            if place not in self._nodes or self._nodes[place][1] != self._choice:
                self._sent(place)
                self._evict()
                return True
        return False

    def _sent(self, place: int) -> "tuple[PointCloudHandle, int]":
        """Return the node of an instant and its number of points, sent if it is missing or out of date."""
        cloud = self._clouds.get(place)
        if cloud is None:
            cloud = self._clouds[place] = SortedCloud(self._content.points(place))
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
            oldest = next(place for place in self._clouds if place != self._place)
            del self._clouds[oldest]
            self._nodes.pop(oldest)[0].remove()
