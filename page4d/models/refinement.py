"""What a network says of cameras and depth, made to agree with the matches that it found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.adjustment import adjust
from page4d.geometry.averaging import baseline_ratio
from page4d.geometry.bundle import Beliefs, Sightings
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.models.close_matches import match_closely
from page4d.models.hints import NO_HINTS, Hints
from page4d.models.matched_view import MatchedView, image_numbers, matched_views
from page4d.models.matching import to_pixels
from page4d.models.network import ViewTimeNetwork
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.models.photometry import look_closer
from page4d.models.sweep import sweep

_SIGMA_CELLS = 0.8
"""Standard deviation of where a sure match is found, in cells; a wide one, as errors of neighbours are alike."""

_SURENESS_POWER = 1.5
"""The less sure a match is, the further it is off, and the more often it is false."""

_BELIEFS = Beliefs(rotation_rad=0.2, position=0.2, log_focal=0.1, log_scale=0.1, log_depth=0.8, alike=0.1)
"""How a network's own answers are believed beside its matches: about the errors of the bundled one; that of depth is
where it is least sure."""

_CLOSER_LOOKS = 2
_CLOSENESS = 8.0
"""How often patches that look alike are looked for where what was found shows them, and how much more such a find
counts, at most, than the sure match of a patch."""

_CONFIDENCE_POWER = 1.25
"""With which errors of depth become smaller: the confidence is 1 at least."""

Images = Float[Tensor, "B T V 3 H W"] | Sequence[Float[Tensor, "B T 3 _ _"]]
"""Of views of one size, or of each view."""


class _Known(NamedTuple):
    """Cameras [B, N] that were told, and the unit of those that were found in theirs."""

    cameras: Cameras
    scale: Float[Tensor, "B one one"]


Output = TypeVar("Output", bound=NetworkOutput | MixedOutput)


def refine_by(network: ViewTimeNetwork, output: Output, images: Images, hints: Hints = NO_HINTS) -> Output:
    """Return what a network said of images, refined if it looked for matches."""
    matches = network.config.matches
    if matches is None:
        return output
    return refine(output, network.config.patch_size, matches.finer, hints, images)


@torch.no_grad()
def refine(
    output: Output,
    patch_size: int,
    finer: int,
    hints: Hints = NO_HINTS,
    images: Images | None = None,
    beliefs: Beliefs = _BELIEFS,
    sigma_cells: float = _SIGMA_CELLS,
) -> Output:
    """Return the output with better cameras and depth, as it is if there are no matches.

    It is worked out on the CPU, where sums always come in the same order, but for what is of pixels: numbers are few.
    If `images` are given and poses are not told, patches are looked for anew where what was found shows them.
    Known poses are not put in the place of what network and matches say, so that it can still be compared with them;
    but depth, in the unit of these predicted cameras, is the one that fits the known ones: it is looked for along the
    rays that they make sure, of patches and, if `images` are given, of pixels.
    """
    views = matched_views(output, patch_size)
    if not views or output.world_to_camera is None or output.intrinsics is None:
        return output
    num_times = output.world_to_camera.shape[1]
    sightings = _sightings(views, num_times, sigma_cells * patch_size / finer)
    depth = _beside_each_other([view.depth_at_middles for view in views])
    beliefs = _with_confidence(beliefs, views)
    if hints.intrinsics is not None:
        beliefs = replace(beliefs, log_focal=0.0)
    matrix = output.intrinsics if hints.intrinsics is None else hints.intrinsics
    guess = _cameras(output.world_to_camera, matrix, views)
    found = adjust(guess, depth, sightings, beliefs)
    if images is not None and hints.world_to_camera is None:
        for _ in range(_CLOSER_LOOKS):
            seen = _corrections(views, found.depth / depth)
            found = adjust(guess, depth, _sharpened(sightings, views, images, found.cameras, seen), beliefs)
    known = _known(hints, matrix, views, found.cameras)
    better = found.depth if known is None else _depth_for(known, found.depth, sightings, beliefs, views)
    corrections = _corrections(views, better / depth)
    if known is not None and images is not None:
        corrections = _closer(views, images, known, corrections)
    cameras = found.cameras.by_time(num_times)
    pose, intrinsics = (
        part.to(output.world_to_camera.device) for part in (cameras.world_to_camera, cameras.intrinsics)
    )
    refined = [
        _corrected(view, pose[:, :, place, None], intrinsics[:, :, place, None], corrections[place][:, :, None])
        for place, view in enumerate(views)
    ]
    if isinstance(output, MixedOutput):
        return replace(output, views=tuple(refined))
    points = [view.points for view in refined if view.points is not None]
    return replace(
        output,
        world_to_camera=pose,
        intrinsics=intrinsics,
        depth=torch.cat([view.depth for view in refined if view.depth is not None], dim=2),
        points=torch.cat(points, dim=2) if points else None,
    )


def _cameras(pose: Tensor, intrinsics: Tensor, views: Sequence[MatchedView]) -> Cameras:
    """Return all images' cameras [B, T*V] in float64; the size is that of an image that holds any view."""
    height, width = (max(view.size[axis] for view in views) for axis in (0, 1))
    return Cameras(
        world_to_camera=pose.flatten(1, 2).double().cpu(),
        intrinsics=intrinsics.flatten(1, 2).double().cpu(),
        image_size=(height, width),
    )


def _known(hints: Hints, matrix: Tensor, views: Sequence[MatchedView], found: Cameras) -> _Known | None:
    """Return the cameras that are told; None if none are, or if they show no unit."""
    if hints.world_to_camera is None:
        return None
    known = _cameras(hints.world_to_camera, matrix, views)
    scales = [baseline_ratio(*centers) for centers in zip(found.centers, known.centers, strict=True)]
    sizes = [scale for scale in scales if scale is not None]
    return _Known(known, torch.stack(sizes)[:, None, None]) if len(sizes) == len(scales) else None


def _depth_for(
    known: _Known,
    depth: Float[Tensor, "B N P"],
    sightings: Sightings,
    beliefs: Beliefs,
    views: Sequence[MatchedView],
) -> Float[Tensor, "B N P"]:
    """Return the depth that fits known cameras, in the unit of those found."""
    fixed = replace(beliefs, rotation_rad=0.0, position=0.0)
    return (
        sweep(views, known.cameras, adjust(known.cameras, depth * known.scale, sightings, fixed).depth) / known.scale
    )


def _closer(
    views: Sequence[MatchedView],
    images: Images,
    known: _Known,
    corrections: Sequence[Float[Tensor, "B T _ _"]],
) -> list[Float[Tensor, "B T _ _"]]:
    """Return corrections that agree with what the images show at these corrected depths."""
    depths, pictures = _pictures(views, images, corrections)
    depths = [depth * known.scale[..., None].to(depth) for depth in depths]
    closer = look_closer(views, pictures, known.cameras.by_time(depths[0].shape[1]), depths)
    return [one + more.to(one) for one, more in zip(corrections, closer, strict=True)]


def _sharpened(
    sightings: Sightings,
    views: Sequence[MatchedView],
    images: Images,
    cameras: Cameras,
    corrections: Sequence[Float[Tensor, "B T _ _"]],
) -> Sightings:
    """Return sightings in which patches that look alike take the place of what was found for their patches."""
    depths, pictures = _pictures(views, images, corrections)
    rig, found, sure = cameras.by_time(depths[0].shape[1]), [], []
    for place in range(len(views)):
        close = match_closely(views, place, pictures, rig, depths[place])
        found.append(close.found.double().cpu())
        sure.append(close.sure.double().cpu())
    weight = _CLOSENESS * _beside_each_other(sure, fill=0.0)
    there = weight > 0
    return replace(
        sightings,
        found=torch.where(there[..., None], _beside_each_other(found, dim=-2), sightings.found),
        weight=torch.where(there, weight, sightings.weight),
    )


def _pictures(
    views: Sequence[MatchedView], images: Images, corrections: Sequence[Float[Tensor, "B T _ _"]]
) -> tuple[list[Float[Tensor, "B T _ _"]], list[Float[Tensor, "B T 3 _ _"]]]:
    """Return corrected depths and the images beside them, view by view, in float32."""
    of_views = images.unbind(2) if isinstance(images, Tensor) else images
    depths, pictures = [], []
    for view, image, correction in zip(views, of_views, corrections, strict=True):
        assert view.output.depth is not None
        depths.append(view.output.depth[:, :, 0].float() * correction.float().exp())
        pictures.append(image.to(depths[-1]))
    return depths, pictures


def _corrections(views: Sequence[MatchedView], ratio: Float[Tensor, "B N P"]) -> list[Float[Tensor, "B T _ _"]]:
    """Return the logarithms of factors that were found for the middles of patches, for every pixel of every view."""
    of_views = torch.unflatten(ratio, 1, (-1, len(views)))
    return [_enlarged(view, of_views[:, :, place]) for place, view in enumerate(views)]


def _enlarged(view: MatchedView, ratio: Float[Tensor, "B T P"]) -> Float[Tensor, "B T H W"]:
    """Return the logarithm of what was found for the middles of patches, for every pixel."""
    rows, columns = view.grid
    assert view.output.depth is not None
    of_patches = ratio[..., : rows * columns].log().reshape(-1, 1, rows, columns).to(view.output.depth)
    correction = functional.interpolate(of_patches, size=view.size, mode="bilinear", align_corners=False)
    return torch.unflatten(correction[:, 0], 0, ratio.shape[:2])


def _corrected(
    view: MatchedView,
    pose: Float[Tensor, "B T one 4 4"],
    intrinsics: Float[Tensor, "B T one 3 3"],
    correction: Float[Tensor, "B T one H W"],
) -> NetworkOutput:
    """Multiply depth by a factor whose logarithm is given; points follow their depth and camera."""
    output = view.output
    assert output.depth is not None
    assert output.world_to_camera is not None
    factor, points = correction.exp(), output.points
    if points is not None:
        local = transform_points(output.world_to_camera.to(points.dtype), points) * factor[..., None]
        points = transform_points(invert_rigid(pose).to(points.dtype), local)
    return replace(output, world_to_camera=pose, intrinsics=intrinsics, depth=output.depth * factor, points=points)


def _with_confidence(beliefs: Beliefs, views: Sequence[MatchedView]) -> Beliefs:
    """Believe the depth of a patch the more the surer the network is of it."""
    doubt = _beside_each_other([view.confidence for view in views]) ** -_CONFIDENCE_POWER
    return replace(beliefs, log_depth=beliefs.log_depth * doubt)


def _sightings(views: Sequence[MatchedView], num_times: int, sigma_px: float) -> Sightings:
    images = image_numbers(views[0].matches.targets, num_times, len(views))
    pixels, found, weight = [], [], []
    for place, view in enumerate(views):
        expected, confidence = view.matches.expected.double().cpu(), view.matches.confidence.double().cpu()
        pixels.append(view.middles.expand(len(expected), num_times, -1, 2))
        there, sure = [], []
        for index, target in enumerate(view.matches.targets):
            other = views[int(images[0, place, index]) % len(views)]
            there.append(to_pixels(expected[:, :, index], other.grid, other.patch_size))
            sure.append(confidence[:, :, index] ** _SURENESS_POWER * view.trust(target))
        found.append(torch.stack(there, dim=2))
        weight.append(torch.stack(sure, dim=2))
    return Sightings(
        pixels=_beside_each_other(pixels, dim=-2),
        images=images.flatten(0, 1),
        found=_beside_each_other(found, dim=-2),
        weight=_beside_each_other(weight, fill=0.0),
        sigma_px=sigma_px,
    )


def _beside_each_other(
    of_views: Sequence[Float[Tensor, "B T *_"]], dim: int = -1, fill: float | None = None
) -> Float[Tensor, "B N *_"]:
    """Stack what views have of their patches as [B, T*V, ...]; smaller ones are filled up, or repeat their last."""
    most = max(part.shape[dim] for part in of_views)
    full = []
    for part in of_views:
        last = part.narrow(dim, part.shape[dim] - 1, 1)
        shape = list(part.shape)
        shape[dim] = most - part.shape[dim]
        more = last.expand(shape) if fill is None else part.new_full(shape, fill)
        full.append(torch.cat([part, more], dim=dim))
    return torch.stack(full, dim=2).flatten(1, 2)
