"""Depth of higher resolution than a network's: upsampled along color edges and refined by the pictures, by levels.

Static parts come from a background that is refined once, moving ones from each instant, in few boxes that cover the
mask of motion.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.geometry.camera import Cameras, has_depth, pixel_grid, resize_intrinsics
from page4d.geometry.pixels import PixelTransform, shared_canvas
from page4d.geometry.statistics import MAD_TO_STD
from page4d.geometry.warp import compared_views, measure_agreement, sample
from page4d.records import Predictions
from page4d.scene.batches import FrameBatch
from page4d.stereo.background import (
    MIN_COLOR_STD,
    Background,
    color_deviation,
    median_of_maps,
    sharpen_motion,
    without_specks,
)
from page4d.stereo.consensus import FusedBackground, recalibrated
from page4d.stereo.edges import upsample
from page4d.stereo.regions import Region, covering_regions, resized_region
from page4d.stereo.sweep import match_on_lines, sweep_around

Compared = Mapping[tuple[int, int], int] | None
"""Long side in px, of the larger picture, up to which pairs of views (the lower index first) are compared; others are
not. None: all are, at any size."""

_FIRST_REACH, _REACH = 8, 5
"""Pixels in another image by which depth is refined: at the first level the error of the network counts."""

_MIN_RATIO = 1.2
"""Smallest ratio of the first level to the network's size."""


@dataclass(frozen=True, kw_only=True)
class CoarseView:
    """One view at network pixels, placed by `transform`. Pixels count by `weight`, 0 without depth."""

    log_depth: Float[Tensor, "h w"]
    confidence: Float[Tensor, "h w"]
    weight: Float[Tensor, "h w"]
    image: Float[Tensor, "3 h w"]
    transform: PixelTransform


@dataclass(frozen=True, kw_only=True)
class FineView:
    """One view at fine pixels, within regions of its image; elsewhere nothing is `known`."""

    log_depth: Float[Tensor, "H W"]
    confidence: Float[Tensor, "H W"]
    known: Bool[Tensor, "H W"]


@torch.no_grad()
def raise_resolution(
    coarse: Sequence[CoarseView],
    images: Sequence[Float[Tensor, "3 _ _"]],
    transforms: Sequence[PixelTransform],
    cameras: Cameras,
    regions: Sequence[Sequence[Region]],
    compared: Compared,
) -> list[FineView]:
    """Return depth and confidence of the views of one instant at the pixels of larger images.

    Args:
        coarse: the views at network pixels.
        images: pictures of the views in [0, 1].
        transforms: placement of the original images on these pictures, which they cover.
        cameras: [V] cameras, each at the pixels of its picture.
        regions: regions of each picture that are needed, which may be none.
        compared: pairs of views whose pictures are compared.

    The size doubles from level to level. At every level depth is upsampled along color edges, then refined by a plane
    sweep within a few pixels of other pictures, where these show evidence.
    """
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    by_level = _sizes_by_level(coarse, sizes)
    current: list[FineView | None] = [None] * len(coarse)
    guides = [view.image for view in coarse]
    for level, level_sizes in enumerate(by_level):
        pictures = [_resized(image, size) for image, size in zip(images, level_sizes, strict=True)]
        rig = _at_sizes(cameras, sizes, level_sizes)
        found: list[FineView | None] = []
        for view, (needed, size) in enumerate(zip(regions, level_sizes, strict=True)):
            previous = current[view]
            if not needed or (previous is not None and previous.known.shape == size):
                found.append(previous)
                continue
            maps, weight, positions = _source(coarse[view], transforms[view], previous, size)
            raised = _empty(size, like=weight)
            for region in needed:
                part = resized_region(region, sizes[view], size)
                sampled, known = upsample(maps, weight, guides[view], pictures[view][:, *part], positions[part])
                log_depth = sampled[0]
                if others := [other for other in range(len(coarse)) if _compares(compared, view, other, level_sizes)]:
                    reach = _FIRST_REACH if level == 0 else _REACH
                    log_depth = sweep_around(log_depth, known, pictures, rig, view, part, reach, others)
                raised.log_depth[part], raised.confidence[part], raised.known[part] = log_depth, sampled[1], known
            found.append(raised)
        current, guides = found, pictures
    return [_empty(size) if view is None else view for view, size in zip(current, sizes, strict=True)]


def _compares(compared: Compared, view: int, other: int, sizes: Sequence[tuple[int, int]]) -> bool:
    if view == other or compared is None:
        return view != other
    return max(*sizes[view], *sizes[other]) <= compared.get((min(view, other), max(view, other)), 0)


_MIN_MATCH = 0.2
"""Smallest result of `match_on_lines` at which pictures are compared. With cameras of a synthetic room turned by 0.8
and 1.6 degrees, which moves epipolar lines by 2 and 4 px, F of the cloud at 2 cm is 0.268 and 0.210; it is 0.255 and
0.196 if all pictures are compared, and 0.255 and 0.180 if none are."""


@torch.no_grad()
def choose_compared(coarse: Predictions, batch: FrameBatch) -> dict[tuple[int, int], int]:
    """Choose the sizes up to which pictures of overlapping views with uncertain cameras are compared; 0 for none.

    `coarse` is an instant at network pixels, `batch` has its larger pictures: they decide, up to the first level at
    which they do not match along epipolar lines.
    """
    transforms = batch.pixel_transforms
    views = [_coarse_view(coarse, view, is_static=False) for view in range(len(transforms))]
    sizes = [transform.canvas_size for transform in transforms]
    images = [batch.images[0, 0, view, :, : size[0], : size[1]] for view, size in enumerate(sizes)]
    cameras = fine_cameras(coarse, transforms)[0, 0]
    near = {
        (min(view, other), max(view, other)) for view in range(len(views)) for other in compared_views(cameras, view)
    }
    chosen, matching = dict[tuple[int, int], int](), sorted(near)
    for level, level_sizes in enumerate(_sizes_by_level(views, sizes)):
        pictures = [_resized(image, size) for image, size in zip(images, level_sizes, strict=True)]
        rig = _at_sizes(cameras, sizes, level_sizes)
        reach, still = _FIRST_REACH if level == 0 else _REACH, []
        for first, pairs in groupby(matching, key=lambda pair: pair[0]):
            view = views[first]
            maps, weight, positions = _source(view, transforms[first], None, level_sizes[first])
            (log_depth, _), known = upsample(maps, weight, view.image, pictures[first], positions)
            for pair in pairs:
                match = match_on_lines(log_depth, known, pictures, rig, pair, reach)
                if match is None:
                    continue
                chosen.setdefault(pair, 0)
                if match >= _MIN_MATCH:
                    chosen[pair] = max(max(level_sizes[one]) for one in pair)
                    still.append(pair)
        matching = still
    return chosen


def _sizes_by_level(coarse: Sequence[CoarseView], sizes: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return the sizes of all views at every level; views with fewer levels stay at their first one meanwhile."""
    pyramids = [_level_sizes(view.transform.content_size, size) for view, size in zip(coarse, sizes, strict=True)]
    num_levels = max(len(pyramid) for pyramid in pyramids)
    return [
        [pyramid[max(0, len(pyramid) - num_levels + level)] for pyramid in pyramids] for level in range(num_levels)
    ]


def _level_sizes(network: tuple[int, int], size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the sizes of the levels from just above the network's to the full one, each twice the previous one."""
    sizes, factor = [size], 2
    while max(size) / factor >= _MIN_RATIO * max(network):
        sizes.insert(0, (max(1, round(size[0] / factor)), max(1, round(size[1] / factor))))
        factor *= 2
    return sizes


def _resized(image: Float[Tensor, "3 H W"], size: tuple[int, int]) -> Float[Tensor, "3 h w"]:
    if image.shape[-2:] == size:
        return image
    return functional.interpolate(image[None], size, mode="area")[0]


def _at_sizes(cameras: Cameras, full: Sequence[tuple[int, int]], sizes: Sequence[tuple[int, int]]) -> Cameras:
    """Return the cameras at the pixels of resized pictures."""
    scaled = [
        resize_intrinsics(matrix, size[1] / whole[1], size[0] / whole[0])
        for matrix, whole, size in zip(cameras.intrinsics, full, sizes, strict=True)
    ]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    return Cameras(
        world_to_camera=cameras.world_to_camera, intrinsics=torch.stack(scaled), image_size=(height, width)
    )


def _source(
    coarse: CoarseView, transform: PixelTransform, previous: FineView | None, size: tuple[int, int]
) -> tuple[Float[Tensor, "2 h w"], Float[Tensor, "h w"], Float[Tensor, "H W 2"]]:
    """Return the maps to upsample to a level, the weight of their pixels, and the positions of its pixels in them.

    They are those of the previous level, or of the network.
    """
    grid = pixel_grid(*size, dtype=torch.float64, device=coarse.log_depth.device)
    height, width = transform.canvas_size if previous is None else previous.log_depth.shape
    positions = grid * grid.new_tensor([width / size[1], height / size[0]])
    if previous is None:
        maps = torch.stack([coarse.log_depth, coarse.confidence])
        return maps, coarse.weight, coarse.transform.to_network(transform.to_original(positions)).float()
    maps = torch.stack([previous.log_depth, previous.confidence])
    return maps, previous.known.to(maps), positions.float()


def _empty(size: tuple[int, int], like: Tensor | None = None) -> FineView:
    zeros = torch.zeros(size) if like is None else like.new_zeros(size)
    return FineView(log_depth=zeros, confidence=zeros.clone(), known=torch.zeros_like(zeros, dtype=torch.bool))


_STILL = 1e-3
"""Weight of static pixels for the depth of moving ones: they count where there are no others."""

_STATIC_STD = 3.0
"""Deviation of an instant from the color of the background, in standard deviations, up to which it shows it."""

_MIN_WEIGHT = 1e-3

Samples = Callable[[int], Float[Tensor, "N 3 _ _"]]
"""Pictures of a view, by its index, at some instants, in [0, 1]."""


@torch.no_grad()
def fine_background(
    fused: FusedBackground,
    coarse: Predictions,
    samples: Samples,
    transforms: Sequence[PixelTransform],
    compared: Compared,
) -> FusedBackground:
    """Return a background at the pixels of larger pictures.

    `coarse` has its cameras and network pixels, `transforms` place the original images on the pictures.
    """
    background, size = fused.background, shared_canvas(transforms)
    static = [view for view, known in enumerate(background.known) if bool(known.any())]
    placed = [(coarse.pixel_transforms[view], transforms[view]) for view in static]
    cameras = fine_cameras(coarse, transforms)[0, 0]
    colors = [
        _background_color(samples(view), background, view, *pair) for view, pair in zip(static, placed, strict=True)
    ]
    between = compared and {
        (static.index(first), static.index(second)): side
        for (first, second), side in compared.items()
        if first in static and second in static
    }
    views = [
        CoarseView(
            log_depth=background.log_depth[view],
            confidence=background.confidence[view],
            weight=background.known[view].to(background.log_depth),
            image=background.color[view],
            transform=network,
        )
        for view, (network, _) in zip(static, placed, strict=True)
    ]
    fine = raise_resolution(
        views,
        [color for color, _ in colors],
        [transform for _, transform in placed],
        cameras[static],
        [[(slice(0, transform.canvas_size[0]), slice(0, transform.canvas_size[1]))] for _, transform in placed],
        between,
    )
    near = [_nearest(background.known[view], *pair) for view, pair in zip(static, placed, strict=True)]
    spread = [_nearest(background.spread[view], *pair) for view, pair in zip(static, placed, strict=True)]

    def stacked(maps: Sequence[Tensor]) -> Tensor:
        whole = maps[0].new_zeros(len(transforms), *maps[0].shape[:-2], *size)
        whole[static] = _padded(maps, size)
        return whole

    raised = Background(
        log_depth=stacked([view.log_depth for view in fine]),
        spread=stacked(spread),
        confidence=stacked([view.confidence for view in fine]),
        color=stacked([color for color, _ in colors]),
        color_std=stacked([deviation for _, deviation in colors]),
        known=stacked([view.known & shown for view, shown in zip(fine, near, strict=True)]),
    )
    agreement = measure_agreement(raised.log_depth.exp(), raised.known, cameras, raised.spread)
    return FusedBackground(
        background=raised, agreement=agreement, predicted=None if fused.predicted is None else raised.log_depth
    )


@torch.no_grad()
def fine_instant(
    coarse: Predictions, batch: FrameBatch, fused: FusedBackground | None, compared: Compared
) -> Predictions:
    """Return one cleaned instant [1, 1, V, h, w] at the pixels of larger pictures of the same instant.

    Static pixels take the depth of the background `fused`, which has the pixels of the pictures; without one, or
    where it is not known, depth is upsampled and refined for the instant. The motion mask is sharpened by the colors
    of the background; where masks are not trusted, static pixels have these. Points of a point head are left out.
    """
    transforms, size = batch.pixel_transforms, (batch.images.shape[-2], batch.images.shape[-1])
    cameras = fine_cameras(coarse, transforms)
    dynamic = _fine_motion(coarse, batch, fused)
    places = list(zip(coarse.pixel_transforms, transforms, strict=True))
    static = torch.zeros(size, dtype=torch.bool, device=batch.images.device).expand(len(transforms), *size)
    if fused is not None:
        static = fused.background.known
        if fused.predicted is not None and coarse.static is not None:
            has_color = color_deviation(batch.images[0, 0], fused.background) <= 1
            static = static & has_color & _on_pictures(coarse.static[0, 0], places, size)
        if dynamic is not None:
            static = static & (dynamic <= DYNAMIC_THRESHOLD)
    valid = batch.valid[0, 0] & _on_pictures(coarse.valid[0, 0], places, size)
    own = valid & ~static
    views = [_coarse_view(coarse, view, is_static=fused is not None) for view in range(len(transforms))]
    regions = [covering_regions(mask) for mask in own]
    pictures = [
        batch.images[0, 0, view, :, : transform.canvas_size[0], : transform.canvas_size[1]]
        for view, transform in enumerate(transforms)
    ]
    fine = raise_resolution(views, pictures, transforms, cameras[0, 0], regions, compared)
    has_depth = _padded([view.known for view in fine], size)
    depth = torch.where(has_depth, _padded([view.log_depth for view in fine], size).exp(), 0.0)
    confidence = _padded([view.confidence for view in fine], size)
    if fused is not None:
        depth = torch.where(static, fused.background.log_depth.exp(), depth)
        confidence = torch.where(static, recalibrated(fused.background.confidence, fused.agreement), confidence)
    known = valid & (static | has_depth)
    agreement = None
    if coarse.agreement is not None:
        agreement = measure_agreement(depth, known, cameras[0, 0], compared=own)
        if fused is not None:
            agreement = fused.agreement.where(static, agreement)
        agreement = agreement.map(lambda counts: counts[None, None])
    return replace(
        coarse,
        pixel_transforms=transforms,
        cameras=cameras,
        images=batch.images,
        valid=known[None, None],
        depth=depth[None, None],
        depth_confidence=confidence[None, None],
        dynamic=None if dynamic is None else dynamic[None, None],
        static=static[None, None],
        agreement=agreement,
    )


def fine_cameras(coarse: Predictions, transforms: Sequence[PixelTransform]) -> Cameras:
    """Return the cameras of predictions at the pixels of larger pictures."""
    intrinsics = [
        fine.intrinsics_to_network(network.intrinsics_to_original(coarse.cameras.intrinsics[:, :, view]))
        for view, (fine, network) in enumerate(zip(transforms, coarse.pixel_transforms, strict=True))
    ]
    return Cameras(
        world_to_camera=coarse.cameras.world_to_camera,
        intrinsics=torch.stack(intrinsics, dim=2),
        image_size=shared_canvas(transforms),
    )


def _coarse_view(coarse: Predictions, view: int, *, is_static: bool) -> CoarseView:
    """Return a view of an instant; if a background is known, for the depth of what moves."""
    depth = coarse.depth[0, 0, view]
    known = coarse.valid[0, 0, view] & has_depth(depth)
    weight = known.to(depth)
    still = coarse.static if coarse.dynamic is None else coarse.dynamic <= DYNAMIC_THRESHOLD
    if is_static and still is not None:
        weight = weight * torch.where(still[0, 0, view], _STILL, 1.0)
    return CoarseView(
        log_depth=torch.where(known, depth, 1.0).log(),
        confidence=coarse.depth_confidence[0, 0, view].nan_to_num(),
        weight=weight,
        image=coarse.images[0, 0, view],
        transform=coarse.pixel_transforms[view],
    )


def _fine_motion(
    coarse: Predictions, batch: FrameBatch, fused: FusedBackground | None
) -> Float[Tensor, "V H W"] | None:
    """Return the probability of motion: of given masks, or upsampled and sharpened by colors of the background."""
    if coarse.dynamic is None:
        return None
    if batch.dynamic is not None and not bool((unmasked := batch.unmasked).all()):
        own = _fine_motion(coarse, replace(batch, dynamic=None), fused) if bool(unmasked.any()) else None
        return batch.dynamic[0, 0] if own is None else torch.where(unmasked[:, None, None], own, batch.dynamic[0, 0])
    size = (batch.images.shape[-2], batch.images.shape[-1])
    places = list(zip(coarse.pixel_transforms, batch.pixel_transforms, strict=True))
    dynamic = _on_pictures(coarse.dynamic[0, 0], places, size, _bilinear)
    if fused is None:
        return dynamic
    dynamic = sharpen_motion(dynamic[None], batch.images[0], fused.background)[0]
    # Colors were evidence at network pixels already: beyond one of these from an outline they count no more.
    highest = functional.max_pool2d(coarse.dynamic[0, 0][:, None], 3, stride=1, padding=1)[:, 0]
    lowest = -functional.max_pool2d(-coarse.dynamic[0, 0][:, None], 3, stride=1, padding=1)[:, 0]
    dynamic = dynamic.clamp(*(_on_pictures(maps, places, size) for maps in (lowest, highest)))
    areas = [(max(fine.content_size) / max(network.content_size)) ** 2 for network, fine in places]
    return torch.stack([without_specks(one, area) for one, area in zip(dynamic, areas, strict=True)])


def _background_color(
    pictures: Float[Tensor, "N 3 H W"],
    background: Background,
    view: int,
    network: PixelTransform,
    transform: PixelTransform,
) -> tuple[Float[Tensor, "3 H W"], Float[Tensor, "H W"]]:
    """Return the color of a view's background and its standard deviation over instants.

    An instant counts where it has the color of the background at network pixels.
    """
    color = torch.stack([_bilinear(channel, network, transform) for channel in background.color[view]])
    limit = _STATIC_STD * _bilinear(background.color_std[view].clamp(min=MIN_COLOR_STD), network, transform)
    smooth = functional.avg_pool2d(pictures, 3, stride=1, padding=1, count_include_pad=False)
    weight = ((smooth - color).abs().mean(dim=1) <= limit).to(pictures) + _MIN_WEIGHT
    fused = median_of_maps(pictures, weight[:, None])
    deviation = median_of_maps((pictures - fused).abs().mean(dim=1), weight)
    return fused, MAD_TO_STD * deviation


def _network_axes(
    network: PixelTransform, transform: PixelTransform
) -> tuple[Float[Tensor, " H"], Float[Tensor, " W"]]:
    """Return the rows and columns of the pixels of a picture at network pixels."""
    height, width = transform.canvas_size
    across, down = (
        network.to_network(transform.to_original(pixel_grid(*size, dtype=torch.float64)))
        for size in ((1, width), (height, 1))
    )
    return down[:, 0, 1], across[0, :, 0]


def _bilinear(
    values: Float[Tensor, "h w"], network: PixelTransform, transform: PixelTransform
) -> Float[Tensor, "H W"]:
    rows, columns = (axis.to(values) for axis in _network_axes(network, transform))
    positions = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)
    return sample(values[None, None], positions[None])[0, 0]


def _nearest(values: Tensor, network: PixelTransform, transform: PixelTransform) -> Tensor:
    rows, columns = (
        axis.floor().long().clamp(0, side - 1).to(values.device)
        for axis, side in zip(_network_axes(network, transform), values.shape, strict=True)
    )
    return values[rows[:, None], columns]


def _on_pictures(
    maps: Tensor,
    places: Sequence[tuple[PixelTransform, PixelTransform]],
    size: tuple[int, int],
    resample: Callable[[Tensor, PixelTransform, PixelTransform], Tensor] = _nearest,
) -> Tensor:
    """Bring maps [V, h, w] from network pixels to those of pictures, by the transforms of both, on one canvas."""
    return _padded([resample(one, *place) for one, place in zip(maps, places, strict=True)], size)


def _padded(maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Stack maps [..., h, w] of views at the top left of a shared canvas."""
    return torch.stack(
        [functional.pad(one, (0, size[1] - one.shape[-1], 0, size[0] - one.shape[-2])) for one in maps]
    )
