"""Selection of points for an export: filters, bounds against outliers, static points once, budgets.

Formats derive the size of drawn points from distances between points, exports that of voxels. Clouds are read instant
by instant; memory does not grow with their number.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from page4d.choices import PointLayer
from page4d.errors import InputError, UsageError
from page4d.exporters.formats import BudgetScope
from page4d.formats.ply import PointCloud, join_clouds, read_ply_header
from page4d.geometry.time_axis import spread_places
from page4d.output.points import voxel_subset
from page4d.output.reader import Output


def point_spacing(xyz: NDArray[np.float32]) -> float:
    """Return the median distance from a point [N, 3] to its third neighbour, or the farthest of fewer; 0 without one.

    It is measured from points at regular steps through the cloud.
    """
    if len(xyz) < 2:
        return 0.0
    return _median_distance(xyz, xyz, min(3, len(xyz) - 1) + 1)  # the nearest is the point itself


_SAMPLE = 10_000
"""Points, at regular steps through a cloud, from which a distance is measured."""


def _median_distance(xyz: NDArray[np.float32], queries: NDArray[np.float32], neighbour: int) -> float:
    places = np.linspace(0, len(queries) - 1, min(_SAMPLE, len(queries))).astype(np.int64)
    tree = cKDTree(xyz, balanced_tree=False, compact_nodes=False)  # built faster, for few queries
    distances, _ = tree.query(queries[places], k=[neighbour])
    return float(np.median(distances))


_LOWEST, _HIGHEST = 0.1, 99.9
"""Percentiles of the positions along an axis between which the bounds lie."""

_GROWTH = 0.05
"""Share of their extent by which the bounds are grown on either side."""

_BOUNDS_INSTANTS = 32
_BOUNDS_POINTS = 600_000
"""Instants, and about the points of all of them, from which the bounds are measured."""

_SPACINGS = 2.0
"""Width of the voxels in which static points of instants are compared, in distances between points: narrower ones are
empty between pixels, or filled by the noise of depth."""

_VOXELS = 500
"""Number of voxels along the diagonal of the bounds where there are too few points for a distance."""

_LONGEST_SIDE = 2**20
"""Largest number of voxels along the diagonal: their numbers are integers of 64 bits."""


@dataclass(frozen=True, kw_only=True)
class PointFilter:
    """Which points of a run are exported. `views` are indices of the run's views, `voxel` is in its unit (0: off)."""

    views: tuple[int, ...]
    min_confidence: float = 0.0
    only: PointLayer = PointLayer.ALL
    voxel: float = 0.0

    def of(self, cloud: PointCloud) -> NDArray[np.bool_]:
        """Return which points [N] have a chosen view, confidence and layer."""
        chosen = np.isin(cloud.view, self.views) & (cloud.confidence >= self.min_confidence)
        if self.only is not PointLayer.ALL:
            chosen &= (cloud.dynamic != 0) == (self.only is PointLayer.MOVING)
        return chosen


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """An axis-aligned box of the run's world."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    @property
    def diagonal(self) -> float:
        """Length of the diagonal."""
        return float(np.linalg.norm(self.upper - self.lower))

    def contains(self, xyz: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which points [N, 3] lie inside."""
        inside = np.ones(len(xyz), dtype=bool)
        for values, lower, upper in zip(xyz.T, self.lower, self.upper, strict=True):
            inside &= (values >= lower) & (values <= upper)
        return inside


@dataclass(frozen=True, kw_only=True)
class ModelPoints:
    """Points of several instants in one model: static ones once, moving ones of every instant.

    `place` [N] is the exported instant at which a point was observed, counted from 0; `cloud.dynamic` is 1 where the
    point exists only then.
    """

    cloud: PointCloud
    place: NDArray[np.int32]


class _Layer(NamedTuple):
    """A part of a model: the points of `cloud` that `is_new`; `read` reads the cloud again."""

    place: int
    read: Callable[[], PointCloud]
    cloud: PointCloud
    is_new: NDArray[np.bool_]


class CloudReader:
    """The clouds of a run's instants (`indices`) after filters, in the run's world.

    `num_cut` counts the points outside the bounds, of the files that were read. `has_layers` is whether the run has a
    static layer that serves the selection.

    Raises:
        UsageError: if the filters leave no point.
    """

    def __init__(
        self, output: Output, indices: Sequence[int], selection: PointFilter, *, cuts_outliers: bool, seed: int
    ) -> None:
        self.indices = tuple(indices)
        self.seed = seed
        self.limit, self._scope = 0, BudgetScope.INSTANT
        self._output = output
        self._selection = selection
        self._highest = 0.0
        self._num_cut: dict[tuple[PointLayer, int], int] = {}
        self._cuts = cuts_outliers
        # What several views show has the view of one of them in the static layer: some views have holes there.
        self.has_layers = output.has_layers and set(selection.views) == set(range(len(output.view_names)))
        spread = [self.indices[place] for place in spread_places(len(self.indices), _BOUNDS_INSTANTS)]
        self._measured = spread if self._have_points(spread) else list(self.indices)
        if self._measured is not spread and not self._have_points(self._measured):
            raise self._no_points()

    def _have_points(self, indices: Sequence[int]) -> bool:
        return any(self._filtered(index).num_points for index in indices)

    @cached_property
    def bounds(self) -> Bounds:
        """Bounds of the scene, from samples of some instants; measured when they are used first."""
        samples = []
        for index in self._measured:
            xyz = self._filtered(index).xyz
            step = max(len(xyz) * len(self._measured) // _BOUNDS_POINTS, 1)
            samples.append(xyz[::step].T.copy())  # a slice would keep the whole cloud
        along = (np.concatenate(values).astype(np.float64) for values in zip(*samples, strict=True))
        limits = [np.percentile(values, [_LOWEST, _HIGHEST], overwrite_input=True) for values in along]
        lower, upper = np.transpose(limits)
        margin = _GROWTH * (upper - lower)
        return Bounds(lower=lower - margin, upper=upper + margin)

    @property
    def num_cut(self) -> int:
        """Number of points outside the bounds."""
        return sum(self._num_cut.values())

    def limited(self, limit: int, scope: BudgetScope = BudgetScope.INSTANT) -> "CloudReader":
        """Return a reader with a limit (0: none) of the points of all instants together, or of each."""
        reader = copy(self)
        reader.limit, reader._scope = limit, scope
        return reader

    @cached_property
    def sizes(self) -> list[int]:
        """Number of points of every instant before the filters, from the headers of the files."""
        return [read_ply_header(self._output.layout.points(index)).num_points for index in self.indices]

    @cached_property
    def layer_sizes(self) -> tuple[int, list[int]]:
        """Number of static points of a run with layers, and of moving ones of every instant, as `sizes`."""
        layout = self._output.layout
        files = (layout.static_points, *(layout.moving_points(index) for index in self.indices))
        static, *moving = (read_ply_header(file).num_points for file in files)
        return static, moving

    def limit_of(self, layer: PointLayer = PointLayer.ALL) -> int:
        """Return the largest number of points of an instant, or of a layer of it (0: any)."""
        number, is_shared = len(self.indices), self._scope is BudgetScope.CAPTURE
        if layer is PointLayer.ALL:
            return max(self.limit // number, 1) if self.limit and is_shared else self.limit
        static, moving = self.layer_sizes
        is_divided = is_shared and 0 < self.limit < static + sum(moving)
        most_moving = sum(moving) if is_divided else max(moving)
        of_static, of_moving = max(static, 1), max(most_moving, 1)
        if 0 < self.limit < static + most_moving:  # in proportion, and both get at least one
            of_static = min(max(self.limit * static // (static + most_moving), 1), max(self.limit - 1, 1))
            of_moving = max(self.limit - of_static, 1)
        if layer is PointLayer.STATIC:
            return of_static
        return max(of_moving // number, 1) if is_divided else of_moving

    def most(self, layer: PointLayer = PointLayer.ALL) -> list[int]:
        """Return the number of points within the limit of every instant, or once for the static layer, at most."""
        if layer is PointLayer.ALL:
            sizes = self.sizes
        else:
            static, moving = self.layer_sizes
            sizes = [static] if layer is PointLayer.STATIC else moving
        limit = self.limit_of(layer)
        return [min(size, limit) if limit else size for size in sizes]

    def read(self, place: int, layer: PointLayer = PointLayer.ALL) -> PointCloud:
        """Return the filtered cloud of an instant, given by its place among the exported ones, or a layer of a run.

        Points outside the bounds are dropped and counted where the format needs it.
        """
        index = self.indices[place]
        if layer is PointLayer.STATIC:  # the same at all places
            cloud, place = self._select(self._output.static_points(), "the static layer"), 0
        elif layer is PointLayer.MOVING:
            cloud = self._select(self._output.moving_points(index), f"instant {index}")
        else:
            cloud = self._filtered(index)
        if self._cuts and cloud.num_points:
            inside = self.bounds.contains(cloud.xyz)
            self._num_cut[layer, place] = int((~inside).sum())
            cloud = cloud if inside.all() else cloud[inside]
        return cloud

    def sampled(self, place: int, layer: PointLayer = PointLayer.ALL) -> PointCloud:
        """Return the points that `read` returns within the limit, drawn from every view in proportion."""
        cloud, limit = self.read(place, layer), self.limit_of(layer)
        if not 0 < limit < cloud.num_points:
            return cloud
        return cloud[stratified_subset(cloud.view, limit, self._rng(place))]

    def model(self) -> ModelPoints:
        """Return the points of all instants as one model, within the limit of all together."""
        layers = (
            self._drawn(self.limit) if self.limit else ((one.place, one.cloud[one.is_new]) for one in self._layers())
        )
        places, clouds = zip(*layers, strict=True)
        numbers = [cloud.num_points for cloud in clouds]
        return ModelPoints(cloud=join_clouds(clouds), place=np.repeat(np.array(places, dtype=np.int32), numbers))

    def _drawn(self, limit: int) -> Iterator[tuple[int, PointCloud]]:
        """Yield at most `limit` of the new points of all instants.

        If there are more, the clouds that have any are read again once the total is known. Until then a compressed
        bit per point is held, about a thousandth of the clouds.
        """
        held: list[tuple[int, PointCloud]] = []
        layers: list[tuple[int, Callable[[], PointCloud], bytes]] = []
        total = 0
        for place, read, cloud, new in self._layers():
            total += int(new.sum())
            layers.append((place, read, zlib.compress(np.packbits(new).tobytes(), 1) if new.any() else b""))
            held.append((place, cloud[new]))
            if total > limit:
                held.clear()
        if total <= limit:
            yield from held
            return
        seen = 0
        for place, read, packed in layers:
            if packed:
                cloud = read()
                bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
                chosen = np.flatnonzero(np.unpackbits(bits, count=cloud.num_points))
                # Differences of rounded sums: they add up to the limit, and small layers are not all rounded to 0.
                quota = limit * (seen + len(chosen)) // total - limit * seen // total
                seen += len(chosen)
                yield place, cloud[chosen[stratified_subset(cloud.view[chosen], quota, self._rng(place))]]

    def _layers(self) -> "Iterator[_Layer]":
        """Yield the points of the model, static ones first, instant by instant."""
        return self._written_layers() if self.has_layers else self._derived_layers()

    def _written_layers(self) -> "Iterator[_Layer]":
        """Yield the static points that the run wrote, as of the middle instant, and all moving ones."""
        files = [(len(self.indices) // 2, PointLayer.STATIC)]
        files += [(place, PointLayer.MOVING) for place in range(len(self.indices))]
        for place, layer in files:
            read = partial(self.read, place, layer)
            cloud = read()
            yield _Layer(place, read, cloud, np.ones(cloud.num_points, dtype=bool))

    def _derived_layers(self) -> "Iterator[_Layer]":
        """Yield the clouds of all instants, and which points are new; first the static ones of the middle.

        Static points of other instants are new in voxels that are empty so far, with empty neighbours: depth noise
        moves a point to a neighbouring voxel.
        """
        middle = len(self.indices) // 2
        cloud = self.read(middle)
        is_static = cloud.dynamic == 0
        first = cloud.xyz[is_static]
        yield _Layer(middle, partial(self.read, middle), cloud, is_static)
        grid: _Grid | None = None
        for place in range(len(self.indices)):
            cloud = self.read(place)
            is_new = cloud.dynamic != 0
            if place != middle:
                static = np.flatnonzero(~is_new)
                if grid is None:
                    grid = self._grid(first, cloud.xyz[static])
                static = static[grid.is_empty_around(cloud.xyz[static])]
                grid.add(cloud.xyz[static])
                is_new[static] = True
            yield _Layer(place, partial(self.read, place), cloud, is_new)

    def _grid(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> "_Grid":
        """Return voxels that hold the first points, of a size that suits both measurements of a surface."""
        distance = point_spacing(first)
        if len(first) and len(second):
            # Of two measurements of one surface: the larger of their noise and about half the spacing of points.
            distance = max(distance, _median_distance(first, second, 1))
        grid = _Grid(self.bounds, _SPACINGS * distance or self.bounds.diagonal / _VOXELS)
        grid.add(first)
        return grid

    def _rng(self, place: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.indices[place]))

    def _filtered(self, index: int) -> PointCloud:
        return self._select(self._output.points(index), f"instant {index}")

    def _select(self, cloud: PointCloud, source: str) -> PointCloud:
        """Apply the filters to a cloud; `source` names it in messages."""
        selection = self._selection
        if not (np.isfinite(cloud.xyz).all() and np.isfinite(cloud.confidence).all()):
            raise InputError(
                f"{source} of the run has points that are not finite",
                "restore its file in points/, or run page4d again",
            )
        if cloud.num_points:
            self._highest = max(self._highest, float(cloud.confidence.max()))
        keep = selection.of(cloud)
        if not keep.all():
            cloud = cloud[keep]
        if selection.voxel > 0:
            cloud = cloud[voxel_subset(cloud.xyz, cloud.confidence, selection.voxel)]
        return cloud

    def _no_points(self) -> UsageError:
        selection = self._selection
        if selection.min_confidence > self._highest:
            return UsageError(
                f"no point is left with ⟨min_confidence={selection.min_confidence:g}⟩ (highest: {self._highest:.2f})",
                "lower it",
            )
        kind = "" if selection.only is PointLayer.ALL else f"{selection.only} "
        return UsageError(
            f"there are no {kind}points in the chosen views and instants", "choose other views, instants or filters"
        )


class _Grid:
    """Voxels of a box that are occupied, or have an occupied neighbour; points outside count for its border.

    Memory grows with the number of such voxels, not with the box.
    """

    def __init__(self, bounds: Bounds, size: float) -> None:
        self._origin = bounds.lower
        self._size = max(size, bounds.diagonal / _LONGEST_SIDE, 1e-12)
        shape = np.ceil((bounds.upper - bounds.lower) / self._size).astype(np.int64) + 1
        self._last = shape - 1
        depth, row = (shape + 2)[1:].tolist()  # a border of one voxel for the neighbours
        self._strides = (depth * row, row, 1)
        self._near = np.empty(0, dtype=np.int64)

    def add(self, xyz: NDArray[np.float32]) -> None:
        """Mark the voxels of points [N, 3] and their neighbours."""
        cells = np.unique(self._cells(xyz))
        for stride in self._strides:  # axis by axis: fewer voxels than all neighbours of all
            cells = np.unique(np.concatenate([cells - stride, cells, cells + stride]))
        self._near = np.union1d(self._near, cells)

    def is_empty_around(self, xyz: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return for points [N, 3] whether their voxel and all its neighbours are empty."""
        if not len(self._near):
            return np.ones(len(xyz), dtype=bool)
        cells = self._cells(xyz)
        found = np.searchsorted(self._near, cells).clip(0, len(self._near) - 1)
        return np.asarray(self._near[found] != cells)

    def _cells(self, xyz: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the numbers [N] of the voxels of points."""
        cells = np.zeros(len(xyz), dtype=np.int64)
        for axis, stride in enumerate(self._strides):  # one by one: less memory
            along = np.floor((xyz[:, axis].astype(np.float64) - self._origin[axis]) / self._size)
            cells += stride * (along.clip(0, self._last[axis]).astype(np.int64) + 1)
        return cells


def stratified_subset(view: NDArray[np.uint8], number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `number` indices, increasing, drawn at random from every view in proportion to its points."""
    views, counts = np.unique(view, return_counts=True)
    least = 1 if number >= len(views) else 0
    exact = counts * (number / len(view))
    quotas = np.maximum(np.floor(exact).astype(np.int64), least)
    while missing := number - int(quotas.sum()):
        step = 1 if missing > 0 else -1
        changeable = np.flatnonzero((step > 0) | (quotas > least))
        order = np.argsort(step * (quotas - exact)[changeable], kind="stable")
        quotas[changeable[order[: abs(missing)]]] += step
    drawn = [
        rng.choice(np.flatnonzero(view == value), size=int(quota), replace=False)
        for value, quota in zip(views, quotas, strict=True)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=np.int64)
