"""Measurement of a result without ground truth, instant by instant: memory does not grow with the capture.

Depth maps of two views of an instant are compared (agreement, contradiction, occlusion, residuals), and
photo-consistency is whether the depth of a view maps its picture onto that of another.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import Progress
from page4d.geometry import camera, warp
from page4d.geometry.camera import Cameras, camera_rays, normalize_pixels, pixel_grid, project, resize_intrinsics
from page4d.geometry.statistics import median
from page4d.geometry.time_axis import spread_places
from page4d.geometry.transforms import is_constant, transform_points
from page4d.geometry.warp import WarpedPixels
from page4d.output.reader import Output
from page4d.quality.record import REGIONS, PairQuality, ViewQuality
from page4d.scene.images import resize


@dataclass(frozen=True, kw_only=True)
class DepthMap:
    """The depth map of a view, 0 where there is none, with its camera [] on the pixel grid of the map."""

    depth: Float[Tensor, "H W"]
    camera: Cameras

    @property
    def known(self) -> Bool[Tensor, "H W"]:
        """Where there is depth."""
        return self.depth > 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.depth.shape[-2], self.depth.shape[-1]


@dataclass(frozen=True, kw_only=True)
class PairComparison:
    """The points of the pixels of one view, compared with the depth map of another.

    `visible` points project into the other image, onto a pixel with depth. Of these, `confirmed` ones lie on its
    surface within `TOLERANCE` of log depth, `contradicted` ones in front of it (the other view sees through them),
    and the others behind it: occluded, or wrong. `difference` is the log depth of the point minus that of the
    surface; `residual_px` the distance between a pixel and the projection of the surface that the other view sees
    there, in pixels of the first map. Both are NaN where a point is not visible.
    """

    visible: Bool[Tensor, "H W"]
    confirmed: Bool[Tensor, "H W"]
    contradicted: Bool[Tensor, "H W"]
    difference: Float[Tensor, "H W"]
    residual_px: Float[Tensor, "H W"]


def warp_into(view: DepthMap, other: DepthMap, factor: float = 1.0) -> WarpedPixels:
    """Project the points of a view, with depth times `factor`, into another; meaningless without depth."""
    depth = torch.where(view.known, view.depth * factor, 1.0)
    rays = camera_rays(view.camera.intrinsics, view.size)
    return warp.ray_warp(rays, view.camera, other.camera).to(depth).at(depth)


def compare_pair(view: DepthMap, other: DepthMap) -> PairComparison:
    """Compare the points of `view` with the depth map of `other`.

    Of the 3x3 pixels around a projection the one with the most similar depth counts. The residual is the symmetric
    reprojection error of multi-view stereo: a pixel is projected into the other view with its own depth, and back
    with the depth found there.

    Source: Yao et al. (2018), "MVSNet: Depth Inference for Unstructured Multi-view Stereo", section 4.2 (geometric
    constraint).
    """
    warped = warp_into(view, other)
    column, row = warp.pixel_indices(warped.pixels, other.size)
    inside = warped.visible(other.size) & view.known
    found = torch.unflatten(warp.around(other.depth, column.flatten(), row.flatten()), 1, view.size)
    own, surface = (depth.clamp(min=camera.MIN_DEPTH).log() for depth in (warped.depth, found))
    differences = torch.where(found > 0, own - surface, torch.inf)
    best = differences.gather(0, differences.abs().argmin(dim=0, keepdim=True))[0]
    visible = inside & best.isfinite()
    difference = torch.where(visible, best, torch.nan)
    return PairComparison(
        visible=visible,
        confirmed=visible & (difference.abs() <= warp.TOLERANCE),
        contradicted=visible & (difference < -warp.TOLERANCE),
        difference=difference,
        residual_px=torch.where(visible, _residual(view, other, warped, best), torch.nan),
    )


def _residual(
    view: DepthMap, other: DepthMap, warped: WarpedPixels, difference: Float[Tensor, "H W"]
) -> Float[Tensor, "H W"]:
    """Return the distance of each pixel to the projection of the surface that the other view has there."""
    surface = warped.depth.clamp(min=camera.MIN_DEPTH) * torch.exp(-torch.nan_to_num(difference, posinf=0.0))
    rays = normalize_pixels(warped.pixels.double(), other.camera.intrinsics.double())
    points = torch.cat([rays, torch.ones_like(rays[..., :1])], dim=-1) * surface.double()[..., None]
    relative = view.camera.world_to_camera.double() @ other.camera.camera_to_world.double()
    pixels, _ = project(transform_points(relative, points), view.camera.intrinsics.double())
    distance: Tensor = (pixels - pixel_grid(*view.size, dtype=pixels.dtype)).norm(dim=-1)
    return distance.to(view.depth)


_WINDOW = 7
"""Side of the correlated windows in pixels of the maps."""

_MIN_VARIANCE = 1e-4
"""Variance of intensities in [0, 1] that is added to that of windows, so that noise correlates with nothing."""

_MIN_TEXTURE = 4e-4
"""Smallest variance of a window that counts: a standard deviation of 2 % of the range."""

MAX_ANGLE_DEG = 60.0
"""Largest angle between the rays of two views at a point: beyond, surfaces look different from both."""

CONTROL_FACTOR = 1.2
"""Factor of the wrong depths, in both directions, that the photo-consistency is compared with."""


def photo_consistency(
    view: DepthMap,
    other: DepthMap,
    pictures: tuple[Float[Tensor, "3 H W"], Float[Tensor, "3 h w"]],
    comparison: PairComparison,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return the NCC of windows of `view` with those of `other`, warped by depth, and its excess over wrong depths.

    The excess is over the larger one of the NCC at two depths that are `CONTROL_FACTOR` off; intensities are in
    [0, 1]. Windows are those with texture, around points that are visible, not behind the other view's surface, and
    seen by both views from directions at most `MAX_ANGLE_DEG` apart.

    Source: Szeliski (2010), "Computer Vision: Algorithms and Applications", eq. 8.11 (NCC).
    """
    own, target = pictures
    mean = warp.window_means(own, _WINDOW)
    variance = warp.window_means(own.square(), _WINDOW).sum(dim=0) - mean.square().sum(dim=0)
    counted = (comparison.confirmed | comparison.contradicted) & (variance > _MIN_TEXTURE)
    counted &= warp.viewing_angles(view.depth, view.camera, other.camera) <= MAX_ANGLE_DEG
    found = []
    for factor in (1.0, CONTROL_FACTOR, 1.0 / CONTROL_FACTOR):
        warped = warp_into(view, other, factor)
        inside = warped.visible(other.size)
        image = warp.sample(target[None], warped.pixels[None])[0]
        image_mean = warp.window_means(image, _WINDOW)
        image_variance = warp.window_means(image.square(), _WINDOW).sum(dim=0) - image_mean.square().sum(dim=0)
        covariance = warp.window_means(own * image, _WINDOW).sum(dim=0) - (mean * image_mean).sum(dim=0)
        found.append((warp.ncc(covariance, variance, image_variance, _MIN_VARIANCE) * inside)[counted])
    return found[0], found[0] - found[1].maximum(found[2])


MAX_INSTANTS = 24
"""Instants that are measured, spread evenly over the capture."""

FEW_INSTANTS = 4
"""Instants that are measured for a grade without a report, as many as a contact sheet shows."""

MAX_SIDE = 512
"""Longest side of the maps that are compared; larger ones are sampled at every nth pixel."""

_SAMPLES = 4096
"""Residuals that a pair of views keeps of an instant, for medians."""

_MIN_COMPARED = 50
"""Pixels that a share or a median needs."""

Picture = Float[Tensor, "3 H W"]


@dataclass(frozen=True, kw_only=True)
class ComparedFrame:
    """One view at one instant, at the size of the comparison. `moving` and `picture` are None without them."""

    view: DepthMap
    confidence: Float[Tensor, "H W"]
    moving: Bool[Tensor, "H W"] | None
    picture: Picture | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Pixels of a frame by what the other views have at their points; pixels without depth are in none."""

    confirmed: Bool[Tensor, "H W"]
    contradicted: Bool[Tensor, "H W"]
    single: Bool[Tensor, "H W"]


@dataclass(frozen=True, kw_only=True)
class Example:
    """The frames of the middle instant with their verdicts, and the flicker maps, for pictures."""

    instant: int
    frames: tuple[ComparedFrame, ...]
    verdicts: tuple[Verdict, ...]
    flicker: tuple[Float[Tensor, "H W"] | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Everything that maps, cameras and pictures show."""

    instants: tuple[int, ...]
    views: tuple[ViewQuality, ...]
    pairs: tuple[PairQuality, ...]
    example: Example


@dataclass
class _PairSums:
    known: int = 0
    visible: int = 0
    confirmed: int = 0
    contradicted: int = 0
    differences: list[Tensor] = field(default_factory=list)
    residuals: list[Tensor] = field(default_factory=list)
    correlations: list[Tensor] = field(default_factory=list)
    gains: list[Tensor] = field(default_factory=list)


@dataclass
class _ViewSums:
    pixels: int = 0
    known: int = 0
    confirmed: int = 0
    contradicted: int = 0
    single: int = 0
    confidence: float = 0.0
    regions: Int[Tensor, "2 R R"] = field(default_factory=lambda: torch.zeros(2, REGIONS, REGIONS, dtype=torch.long))
    depth: "_Spread | None" = None


class _Spread:
    """Streaming mean and variance of log depth over the instants at which a pixel is static and has depth.

    Source: Welford (1962), "Note on a Method for Calculating Corrected Sums of Squares and Products".
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._count, self._mean, self._squares = (torch.zeros(size, dtype=torch.float64) for _ in range(3))

    def add(self, depth: Float[Tensor, "H W"], used: Bool[Tensor, "H W"]) -> None:
        """Add a map."""
        value = torch.where(used, depth, 1.0).double().log()
        self._count += used
        change = torch.where(used, value - self._mean, 0.0)
        self._mean += change / self._count.clamp(min=1)
        self._squares += change * torch.where(used, value - self._mean, 0.0)

    def deviation(self) -> Float[Tensor, "H W"]:
        """Return the relative standard deviation, NaN at pixels with fewer than two values."""
        found = (self._squares / (self._count - 1).clamp(min=1)).sqrt().float()
        return torch.where(self._count >= 2, found, torch.nan)


def measure(
    output: Output, scene: str | None = None, progress: Progress | None = None, max_instants: int = MAX_INSTANTS
) -> Measurements:
    """Compare the views of a result with each other at each measured instant; `scene` is the folder of its videos."""
    instants = tuple(spread_places(output.num_times, max_instants))
    pictures = None if scene is None else _pictures(output, scene, instants)
    pairs: dict[tuple[int, int], _PairSums] = defaultdict(_PairSums)
    views = [_ViewSums() for _ in output.view_names]
    poses = output.cameras.world_to_camera.unbind(1)
    steady = [is_constant(of_view) and len(instants) > 1 for of_view in poses]
    example: Example | None = None
    for number, instant in enumerate(instants):
        shown = None if pictures is None else next(pictures)
        frames = tuple(_frame(output, instant, index, shown) for index in range(len(views)))
        verdicts = []
        for index, frame in enumerate(frames):
            verdict = _compare(frames, index, pairs)
            verdicts.append(verdict)
            _add_view(views[index], frame, verdict, is_steady=steady[index])
        if number <= len(instants) // 2:
            example = Example(instant=instant, frames=frames, verdicts=tuple(verdicts))
        if progress is not None:
            progress(number + 1, len(instants))
    assert example is not None
    spreads = tuple(None if sums.depth is None else sums.depth.deviation() for sums in views)
    found = tuple(_pair_quality(output, key, sums) for key, sums in sorted(pairs.items()))
    return Measurements(
        instants=instants,
        views=tuple(
            _view_quality(output, index, sums, spread, found)
            for index, (sums, spread) in enumerate(zip(views, spreads, strict=True))
        ),
        pairs=found,
        example=replace(example, flicker=spreads),
    )


def _pictures(output: Output, scene: str, instants: Sequence[int]) -> Iterator[list[NDArray[np.uint8]]]:
    """Yield the pictures of all views at each instant; each video is decoded once."""
    opened = output.pictures(scene)
    readers = [opened.read(view, instants) for view in output.view_names]
    for _ in instants:
        yield [next(reader) for reader in readers]


def _frame(output: Output, instant: int, index: int, pictures: list[NDArray[np.uint8]] | None) -> ComparedFrame:
    """Read a frame, without depth below the confidence of points; large maps are sampled at every nth pixel."""
    name = output.view_names[index]
    confidence = torch.from_numpy(output.confidence(instant, name))
    points: Any = output.run.settings.get("points") or {}
    depth = torch.from_numpy(output.depth(instant, name)) * (confidence >= points.get("min_confidence", 0.0))
    height, width = depth.shape
    step = -(-max(height, width) // MAX_SIDE)
    first = step // 2

    def sampled(values: Tensor) -> Tensor:
        return values[first::step, first::step].contiguous()

    small = sampled(depth)
    size = (small.shape[0], small.shape[1])
    intrinsics = output.intrinsics_at_maps(name)[instant]
    placed = Cameras(
        world_to_camera=output.cameras.world_to_camera[instant, index],
        intrinsics=resize_intrinsics(intrinsics, 1 / step, 1 / step),
        image_size=size,
    )
    moving = output.dynamic(instant, name)
    picture = None
    if pictures is not None:
        pixels = torch.from_numpy(resize(pictures[index], size).copy())
        picture = pixels.permute(2, 0, 1).float() / 255
    return ComparedFrame(
        view=DepthMap(depth=small, camera=placed),
        confidence=sampled(confidence),
        moving=None if moving is None else sampled(torch.from_numpy(moving)),
        picture=picture,
    )


def _compare(frames: Sequence[ComparedFrame], index: int, pairs: dict[tuple[int, int], _PairSums]) -> Verdict:
    """Compare a view with the nearest other ones, add to the sums of these pairs, and return the verdict."""
    own = frames[index]
    known = own.view.known
    poses = torch.stack([frame.view.camera.world_to_camera for frame in frames])
    matrices = torch.stack([frame.view.camera.intrinsics for frame in frames])
    rig = Cameras(world_to_camera=poses, intrinsics=matrices, image_size=own.view.size)
    confirmed, contradicted = torch.zeros_like(known), torch.zeros_like(known)
    for other in warp.compared_views(rig, index):
        comparison = compare_pair(own.view, frames[other].view)
        _add_pair(pairs[index, other], own, frames[other], comparison)
        confirmed |= comparison.confirmed
        contradicted |= comparison.contradicted
    return Verdict(
        confirmed=confirmed, contradicted=contradicted & ~confirmed, single=known & ~confirmed & ~contradicted
    )


def _add_pair(sums: _PairSums, own: ComparedFrame, other: ComparedFrame, comparison: PairComparison) -> None:
    visible = comparison.visible
    sums.known += int(own.view.known.sum())
    sums.visible += int(visible.sum())
    sums.confirmed += int(comparison.confirmed.sum())
    sums.contradicted += int(comparison.contradicted.sum())
    sums.differences.append(_thinned(comparison.difference[visible].abs()))
    sums.residuals.append(_thinned(comparison.residual_px[visible]))
    if own.picture is not None and other.picture is not None:
        correlations, gains = photo_consistency(own.view, other.view, (own.picture, other.picture), comparison)
        sums.correlations.append(_thinned(correlations))
        sums.gains.append(_thinned(gains))


def _thinned(values: Float[Tensor, " N"]) -> Float[Tensor, " n"]:
    """Return at most `_SAMPLES` values, spread evenly."""
    return values[:: max(1, -(-len(values) // _SAMPLES))].clone()


def _add_view(sums: _ViewSums, frame: ComparedFrame, verdict: Verdict, *, is_steady: bool) -> None:
    known = frame.view.known
    sums.pixels += known.numel()
    sums.known += int(known.sum())
    sums.confirmed += int(verdict.confirmed.sum())
    sums.contradicted += int(verdict.contradicted.sum())
    sums.single += int(verdict.single.sum())
    sums.confidence += float(frame.confidence[known].sum())
    for row, rows in enumerate(torch.stack([verdict.confirmed, known]).tensor_split(REGIONS, dim=1)):
        for column, cells in enumerate(rows.tensor_split(REGIONS, dim=2)):
            sums.regions[:, row, column] += cells.sum(dim=(1, 2))
    if is_steady:
        if sums.depth is None:
            sums.depth = _Spread(frame.view.size)
        sums.depth.add(frame.view.depth, known if frame.moving is None else known & ~frame.moving)


def _pair_quality(output: Output, key: tuple[int, int], sums: _PairSums) -> PairQuality:
    view, other = (output.view_names[index] for index in key)
    found = sums.visible >= _MIN_COMPARED
    width, map_width = output.run.views[key[0]].original_size[0], output.run.views[key[0]].map_size[0]
    step = -(-max(output.map_size(view)) // MAX_SIDE)
    residual_px = _median(sums.residuals) if found else None
    correlation = _median(sums.correlations)
    gains = torch.cat(sums.gains) if sums.gains else torch.empty(0)
    return PairQuality(
        views=(view, other),
        overlap=sums.visible / max(sums.known, 1),
        confirmed=sums.confirmed / sums.visible if found else None,
        contradicted=sums.contradicted / sums.visible if found else None,
        residual=_median(sums.differences) if found else None,
        residual_px=None if residual_px is None else residual_px * step * width / map_width,
        photo=correlation,
        photo_gain=float(gains.mean()) if len(gains) >= _MIN_COMPARED else None,
    )


def _median(parts: Sequence[Tensor]) -> float | None:
    values = torch.cat(list(parts)) if parts else torch.empty(0)
    return median(values) if len(values) >= _MIN_COMPARED else None


def _view_quality(
    output: Output, index: int, sums: _ViewSums, spread: Float[Tensor, "H W"] | None, pairs: Sequence[PairQuality]
) -> ViewQuality:
    name, known = output.view_names[index], max(sums.known, 1)
    own = [pair for pair in pairs if name in pair.views]
    agreed, there = sums.regions
    deviations = torch.empty(0) if spread is None else spread[spread.isfinite()]
    return ViewQuality(
        view=name,
        with_depth=sums.known / max(sums.pixels, 1),
        confirmed=sums.confirmed / known,
        contradicted=sums.contradicted / known,
        single=sums.single / known,
        regions=tuple(tuple(None if isnan(share) else share for share in row) for row in (agreed / there).tolist()),
        confidence=sums.confidence / known,
        residual_px=median_of(pair.residual_px for pair in own),
        photo_gain=median_of(pair.photo_gain for pair in own),
        flicker=median(deviations),
    )


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None without any."""
    found = [value for value in values if value is not None]
    return float(np.median(found)) if found else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without any."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None
