"""What a viewer shows of a run: clouds within a budget, cameras, and sizes that suit the scene."""

import html
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from page4d.choices import PointLayer
from page4d.errors import Page4DError, counted
from page4d.exporters.job import ExportView, frame_rate
from page4d.exporters.plan import exported_instants, exported_views
from page4d.exporters.points import CloudReader, PointFilter, point_spacing
from page4d.formats.ply import PointCloud
from page4d.formats.tracks import Tracks
from page4d.geometry.transforms import invert_rigid
from page4d.options import ExportSettings
from page4d.output.reader import Output
from page4d.output.upward import upward_of
from page4d.plotting.canvas import BANNER, view_color
from page4d.quality.measure import FEW_INSTANTS
from page4d.quality.page import inspect

Precision = Literal["float16", "float32"]

DEFAULT_MAX_POINTS = 200_000
"""Points of an instant, unless another number is asked for."""

SHOWN_AT_FIRST = {"static": True, "moving": True, "velocities": False, "tracks": False, "cameras": True}
"""What the switches of a viewer show before anyone uses them."""

MAX_PAGE_POINTS = 5_000_000
"""Points of all instants of a page, unless another number per instant is asked for."""

_FLOAT16_BITS = 10
_FLOAT16_RANGE = 60_000.0


@dataclass(frozen=True, kw_only=True)
class ViewerContent:
    """T instants and V views of a run, in its world; a `place` counts the shown instants from 0.

    `camera_to_world` [T, V, 4, 4] and `intrinsics` [T, V, 3, 3] belong to the original pictures, `seconds` [T] is on
    the common clock, `up` [3] a unit vector. `clouds` have a largest number of points of an instant.
    `scene` is the folder of the run's videos, if it is known.
    """

    output: Output
    views: tuple[ExportView, ...]
    instants: tuple[int, ...]
    seconds: NDArray[np.float64]
    up: NDArray[np.float64]
    camera_to_world: NDArray[np.float64]
    intrinsics: NDArray[np.float64]
    clouds: CloudReader
    scene: Path | None = None

    @property
    def num_times(self) -> int:
        """Number of instants T."""
        return len(self.instants)

    @property
    def frame_rate(self) -> float:
        """Instants per second, from the median step; 1 for a single instant."""
        return frame_rate(self.seconds)

    @property
    def durations(self) -> NDArray[np.float64]:
        """Seconds [T] for which each instant is shown: until the next one, the last for a median step."""
        return np.append(np.diff(self.seconds), 1.0 / self.frame_rate)

    @property
    def choice(self) -> PointFilter:
        """All points of the shown views."""
        return PointFilter(views=tuple(view.index for view in self.views))

    def instant_text(self, place: int) -> str:
        """Return the time and the index of an instant."""
        return f"{self.seconds[place]:.3f} s (instant {self.instants[place]})"

    def description(self, *, is_graded: bool) -> str:
        """Return what the result is as HTML: its warning, size, unit, cameras by colour and, if asked, its grade."""
        run, lines = self.output.run, []
        if run.banner:
            style = f"background:rgb{BANNER};color:#fff;padding:.4em .6em;border-radius:4px"
            lines.append(f'<div style="{style}">{html.escape(run.banner)}</div>')
        size = f"{counted(len(self.views), 'view')}, {counted(self.num_times, 'instant')}, unit: {run.unit}"
        names = (
            f'<span style="color:rgb{view_color(view.index)}">&#9632;</span>&nbsp;{html.escape(view.name)}'
            for view in self.views
        )
        source = html.escape(run.scene.calibration or "predicted by the network")
        lines += [size, f"cameras: {source}<br>{' '.join(names)}", f"network: {html.escape(run.network.name)}"]
        if is_graded and self.grade:
            lines.append(f"grade {self.grade}")
        return "".join(f'<div style="margin:.4em 0">{line}</div>' for line in lines)

    @cached_property
    def grade(self) -> str:
        """The grade of the result in one line; empty if it cannot be measured."""
        scene = None if self.scene is None else str(self.scene)
        basis = " (without the pictures)" if scene is None else ""  # they change the grade
        try:
            return inspect(self.output.layout.folder, scene, None, FEW_INSTANTS).report.grade.text + basis
        except Page4DError:  # a viewer shows points without maps and videos as well
            return ""

    @cached_property
    def tracks(self) -> Tracks | None:
        """Tracks of the shown instants, positions relative to the centre; None if the run has none."""
        if not self.output.has_tracks:
            return None
        tracks = self.output.tracks().selected(self.instants, self.choice.views)
        return replace(tracks, coords=(tracks.coords - self.center).astype(np.float32))

    @cached_property
    def center(self) -> NDArray[np.float64]:
        """Centre [3] of the scene: positions are kept relative to it, as small numbers have more digits."""
        return (self.clouds.bounds.lower + self.clouds.bounds.upper) / 2

    @property
    def diagonal(self) -> float:
        """Diagonal of the scene without outliers, at least a small positive number."""
        return max(self.clouds.bounds.diagonal, 1e-9)

    @cached_property
    def middle_points(self) -> NDArray[np.float32]:
        """Positions [N, 3] relative to the centre, from which sizes are derived.

        They are those of the middle instant, or of the next one to it that has points.
        """
        middle = self.num_times // 2
        nearest = sorted(range(self.num_times), key=lambda place: abs(place - middle))
        clouds = (self.points(place).xyz for place in nearest)
        return next(xyz for xyz in clouds if len(xyz))  # the bounds were measured from points

    @cached_property
    def point_size(self) -> float:
        """Default width of a point: the distance between neighbours."""
        return point_spacing(self.middle_points) or self.diagonal / 500

    @cached_property
    def precision(self) -> Precision:
        """Number type of positions: half precision unless its error would be visible, or its range too small."""
        extent = float(np.abs(self.clouds.bounds.upper - self.center).max())
        largest = float(np.abs(self.middle_points).max(initial=0.0))
        error = 2.0 ** (np.floor(np.log2(max(extent, 1e-30))) - _FLOAT16_BITS - 1)
        return "float16" if error <= self.point_size / 5 and largest < _FLOAT16_RANGE else "float32"

    @property
    def num_sent(self) -> int:
        """Number of points of all instants, static ones once in a run with layers, at most."""
        layers = (PointLayer.STATIC, PointLayer.MOVING) if self.clouds.has_layers else (PointLayer.ALL,)
        return sum(sum(self.clouds.most(layer)) for layer in layers)

    def points(self, place: int, layer: PointLayer = PointLayer.ALL) -> PointCloud:
        """Read the points of an instant, or a layer of a run with layers, in the order of the file.

        Positions are relative to the centre. If there are more points than the limit, they are drawn at random from
        every view in proportion.

        Raises:
            InputError: if the file cannot be read.
        """
        cloud, limit = self.clouds.sampled(place, layer), np.finfo(np.float32).max
        xyz = (cloud.xyz.astype(np.float64) - self.center).clip(-limit, limit)
        return replace(cloud, xyz=xyz.astype(np.float32))

    def changing_points(self, place: int) -> PointCloud:
        """Read the points of an instant that move, or all of a run without layers, as `points`."""
        return self.points(place, PointLayer.MOVING if self.clouds.has_layers else PointLayer.ALL)


def viewer_content(output: Output, settings: ExportSettings, *, is_page: bool = False) -> ViewerContent:
    """Choose views, instants and the number of points of an instant, by the settings' fields of these names.

    By default the number of points is that of the live viewer or, with `is_page`, of an HTML page.

    Raises:
        UsageError: if there are no such views or instants, or they have no points.
        InputError: if a file of the run cannot be read.
    """
    views = exported_views(output, settings)
    instants = exported_instants(output, settings)
    indices = tuple(view.index for view in views)
    chosen = np.ix_(instants, indices)
    clouds = CloudReader(output, instants, PointFilter(views=indices), cuts_outliers=False, seed=settings.seed)
    return ViewerContent(
        output=output,
        views=views,
        instants=instants,
        seconds=output.cameras.times.numpy()[list(instants)],
        up=upward_of(output, settings.up).vector,
        camera_to_world=invert_rigid(output.cameras.world_to_camera).numpy()[chosen],
        intrinsics=output.cameras.intrinsics.numpy()[chosen],
        clouds=clouds.limited(_limit(settings.max_points, clouds, is_page=is_page)),
        scene=settings.scene,
    )


def _limit(max_points: int | None, clouds: CloudReader, *, is_page: bool) -> int:
    if max_points is not None:
        return max_points
    if not is_page:
        return DEFAULT_MAX_POINTS
    if clouds.has_layers:
        static, moving = clouds.layer_sizes
        if static + sum(moving) <= MAX_PAGE_POINTS:
            return DEFAULT_MAX_POINTS
    return min(DEFAULT_MAX_POINTS, max(MAX_PAGE_POINTS // len(clouds.indices), 1))
