"""Instants of higher resolution: static parts from a background that is refined once, moving ones per instant."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.fusion.background import MAD_TO_STD, Background, weighted_median
from page4d.fusion.clean import FusedBackground
from page4d.fusion.confidence import recalibrated
from page4d.fusion.regions import Region, covering_regions
from page4d.fusion.resolution import CoarseView, raise_resolution
from page4d.fusion.subtraction import sharpen_motion, without_specks
from page4d.geometry.camera import Cameras, pixel_grid
from page4d.geometry.pixels import PixelTransform, shared_canvas
from page4d.geometry.warp import measure_agreement, sample
from page4d.records import Predictions
from page4d.scene.records import FrameBatch

_STILL = 1e-3
"""Weight of static pixels for the depth of moving ones: they count where there are no others."""

_STATIC_STD = 3.0
"""Deviation of an instant from the color of the background, in standard deviations, up to which it shows it."""

_MIN_COLOR_STD = 0.01
_MIN_WEIGHT = 1e-3

Samples = Callable[[int], Float[Tensor, "N 3 _ _"]]
"""Pictures of a view, by its index, at some instants, in [0, 1]."""


@torch.no_grad()
def fine_background(
    fused: FusedBackground,
    coarse: Predictions,
    samples: Samples,
    transforms: Sequence[PixelTransform],
    *,
    sweeps: bool,
) -> FusedBackground:
    """Return a background at the pixels of larger pictures.

    `coarse` has its cameras and network pixels, `transforms` place the original images on the pictures. With `sweeps`
    the cameras are known well enough to compare pictures.
    """
    background, size = fused.background, shared_canvas(transforms)
    static = [view for view, known in enumerate(background.known) if bool(known.any())]
    placed = [(coarse.pixel_transforms[view], transforms[view]) for view in static]
    cameras = fine_cameras(coarse, transforms)[0, 0]
    colors = [
        _background_color(samples(view), background, view, *pair) for view, pair in zip(static, placed, strict=True)
    ]
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
        [[_whole(transform)] for _, transform in placed],
        sweeps=sweeps,
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
    return FusedBackground(background=raised, agreement=agreement)


@torch.no_grad()
def fine_instant(
    coarse: Predictions, batch: FrameBatch, fused: FusedBackground | None, *, sweeps: bool
) -> Predictions:
    """Return one cleaned instant [1, 1, V, h, w] at the pixels of larger pictures of the same instant.

    Static pixels take the depth of the background `fused`, which has the pixels of the pictures; without one, or
    where it is not known, depth is upsampled and refined for the instant. The motion mask is sharpened by the colors
    of the background. Points of a point head are left out.
    """
    transforms, size = batch.pixel_transforms, (batch.images.shape[-2], batch.images.shape[-1])
    cameras = fine_cameras(coarse, transforms)
    dynamic = _fine_motion(coarse, batch, fused)
    static = torch.zeros(size, dtype=torch.bool).expand(len(transforms), *size)
    if fused is not None:
        static = fused.background.known
        if dynamic is not None:
            static = static & (dynamic <= DYNAMIC_THRESHOLD)
    places = zip(coarse.valid[0, 0], coarse.pixel_transforms, transforms, strict=True)
    valid = batch.valid[0, 0] & _padded([_nearest(*place) for place in places], size)
    own = valid & ~static
    views = [_coarse_view(coarse, view, is_static=fused is not None) for view in range(len(transforms))]
    regions = [covering_regions(mask) for mask in own]
    pictures = [
        batch.images[0, 0, view, :, : transform.canvas_size[0], : transform.canvas_size[1]]
        for view, transform in enumerate(transforms)
    ]
    fine = raise_resolution(views, pictures, transforms, cameras[0, 0], regions, sweeps=sweeps)
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
        points=None,
        points_confidence=None,
        dynamic=None if dynamic is None else dynamic[None, None],
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
    known = coarse.valid[0, 0, view] & depth.isfinite() & (depth > 0)
    weight = known.to(depth)
    if is_static and coarse.dynamic is not None:
        weight = weight * torch.where(coarse.dynamic[0, 0, view] > DYNAMIC_THRESHOLD, 1.0, _STILL)
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
    """Return the probability of motion: of masks, or upsampled, with outlines sharpened by background colors."""
    if coarse.dynamic is None:
        return None
    if batch.dynamic is not None:
        return batch.dynamic[0, 0]
    size = (batch.images.shape[-2], batch.images.shape[-1])
    places = list(zip(coarse.pixel_transforms, batch.pixel_transforms, strict=True))
    upsampled = [_bilinear(one, *place) for one, place in zip(coarse.dynamic[0, 0], places, strict=True)]
    dynamic = _padded(upsampled, size)
    if fused is None:
        return dynamic
    dynamic = sharpen_motion(dynamic[None], batch.images[0], fused.background)[0]
    # Colors were evidence at network pixels already: beyond one of these from an outline they count no more.
    highest = functional.max_pool2d(coarse.dynamic[0, 0][:, None], 3, stride=1, padding=1)[:, 0]
    lowest = -functional.max_pool2d(-coarse.dynamic[0, 0][:, None], 3, stride=1, padding=1)[:, 0]
    bounds = (
        _padded([_nearest(one, *place) for one, place in zip(maps, places, strict=True)], size)
        for maps in (lowest, highest)
    )
    dynamic = dynamic.clamp(*bounds)
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
    limit = _STATIC_STD * _bilinear(background.color_std[view].clamp(min=_MIN_COLOR_STD), network, transform)
    smooth = functional.avg_pool2d(pictures, 3, stride=1, padding=1, count_include_pad=False)
    weight = ((smooth - color).abs().mean(dim=1) <= limit).to(pictures) + _MIN_WEIGHT
    fused = weighted_median(pictures, weight[:, None].expand(pictures.shape))
    deviation = weighted_median((pictures - fused).abs().mean(dim=1), weight)
    return fused, MAD_TO_STD * deviation


def _whole(transform: PixelTransform) -> Region:
    return slice(0, transform.canvas_size[0]), slice(0, transform.canvas_size[1])


def _network_positions(network: PixelTransform, transform: PixelTransform) -> Float[Tensor, "H W 2"]:
    """Return the positions of the pixels of a picture at network pixels."""
    return network.to_network(transform.to_original(pixel_grid(*transform.canvas_size, dtype=torch.float64)))


def _bilinear(
    values: Float[Tensor, "h w"], network: PixelTransform, transform: PixelTransform
) -> Float[Tensor, "H W"]:
    positions = _network_positions(network, transform).to(values)
    return sample(values[None, None], positions[None])[0, 0]


def _nearest(values: Tensor, network: PixelTransform, transform: PixelTransform) -> Tensor:
    positions = _network_positions(network, transform).floor().long()
    column = positions[..., 0].clamp(0, values.shape[-1] - 1)
    row = positions[..., 1].clamp(0, values.shape[-2] - 1)
    return values[row, column]


def _padded(maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Stack maps [..., h, w] of views at the top left of a shared canvas."""
    return torch.stack(
        [functional.pad(one, (0, size[1] - one.shape[-1], 0, size[0] - one.shape[-2])) for one in maps]
    )
