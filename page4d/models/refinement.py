"""What a network says of cameras and depth, made to agree with the matches that it found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.adjustment import adjust
from page4d.geometry.averaging import baseline_ratio
from page4d.geometry.bundle import Beliefs, Sightings
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.models.hints import NO_HINTS, Hints
from page4d.models.input_config import MatchTarget
from page4d.models.matching import Matches, ViewMatches, patch_centers, target_images
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.models.sizes import Grid

_SIGMA_CELLS = 1.0
"""Standard deviation of where a sure match is found, in cells; a wide one, as errors of neighbours are alike."""

_BELIEFS = Beliefs(rotation_rad=0.2, position=0.2, log_focal=0.1, log_scale=0.1, log_depth=0.2)
"""How a network's own answers are believed beside its matches: about the errors of the bundled one."""

Output = TypeVar("Output", bound=NetworkOutput | MixedOutput)


class _View(NamedTuple):
    """What is said of one view, V = 1."""

    output: NetworkOutput
    matches: ViewMatches
    grid: Grid
    size: tuple[int, int]

    @property
    def scale(self) -> tuple[float, Float[Tensor, " 2"]]:
        """The unit of positions of matches, in px, and where it is counted from."""
        height, width = self.size
        return max(self.size) / 2, torch.tensor([width / 2, height / 2], dtype=torch.float64)


@torch.no_grad()
def refine(
    output: Output,
    patch_size: int,
    finer: int,
    hints: Hints = NO_HINTS,
    beliefs: Beliefs = _BELIEFS,
    sigma_cells: float = _SIGMA_CELLS,
) -> Output:
    """Return the output with better cameras and depth, as it is if there are no matches.

    It is worked out on the CPU: the numbers are few, and sums there always come in the same order.
    Known poses are not put in the place of what network and matches say, so that it can still be compared with them;
    but depth, in the unit of these predicted cameras, is the one that fits the known ones.
    """
    views = _views_of(output, patch_size)
    if not views or output.world_to_camera is None or output.intrinsics is None:
        return output
    num_times, num_views = output.world_to_camera.shape[1:3]
    sightings = _sightings(views, num_times, sigma_cells * patch_size / finer)
    depth = _beside_each_other([_at_middles(view) for view in views])
    if hints.intrinsics is not None:
        beliefs = replace(beliefs, log_focal=0.0)
    matrix = output.intrinsics if hints.intrinsics is None else hints.intrinsics
    found = adjust(_cameras(output.world_to_camera, matrix, views), depth, sightings, beliefs)
    better = found.depth
    if hints.world_to_camera is not None:
        known = _cameras(hints.world_to_camera, matrix, views)
        better = _depth_for(known, found.cameras, better, sightings, beliefs)
    ratio = torch.unflatten(better / depth, 1, (num_times, num_views))
    pose, intrinsics = (
        torch.unflatten(part, 1, (num_times, num_views)).to(output.world_to_camera.device)
        for part in (found.cameras.world_to_camera, found.cameras.intrinsics)
    )
    refined = [
        _corrected(view, pose[:, :, place, None], intrinsics[:, :, place, None], ratio[:, :, place])
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


def _views_of(output: NetworkOutput | MixedOutput, patch_size: int) -> list[_View]:
    """Return what is said view by view; nothing if it is too little to be refined."""
    matches = output.matches
    if matches is None:
        return []
    if isinstance(matches, Matches):
        matches = tuple(matches.of_view(view) for view in range(matches.expected.shape[2]))
    outputs = (
        output.views
        if isinstance(output, MixedOutput)
        else tuple(output.of_view(view) for view in range(len(matches)))
    )
    views = []
    for own, found in zip(outputs, matches, strict=True):
        if own.depth is None:
            return []
        size = (own.depth.shape[-2], own.depth.shape[-1])
        views.append(_View(own, found, (size[0] // patch_size, size[1] // patch_size), size))
    return views


def _cameras(pose: Tensor, intrinsics: Tensor, views: Sequence[_View]) -> Cameras:
    """Return all images' cameras [B, T*V] in float64; the size is that of an image that holds any view."""
    height, width = (max(view.size[axis] for view in views) for axis in (0, 1))
    return Cameras(
        world_to_camera=pose.flatten(1, 2).double().cpu(),
        intrinsics=intrinsics.flatten(1, 2).double().cpu(),
        image_size=(height, width),
    )


def _depth_for(
    known: Cameras, found: Cameras, depth: Float[Tensor, "B N P"], sightings: Sightings, beliefs: Beliefs
) -> Float[Tensor, "B N P"]:
    """Return the depth that fits known cameras, in the unit of those found; as it is if they show no scale."""
    scales = [baseline_ratio(*centers) for centers in zip(found.centers, known.centers, strict=True)]
    if any(scale is None for scale in scales):
        return depth
    scale = torch.stack([one for one in scales if one is not None])[:, None, None]
    fixed = replace(beliefs, rotation_rad=0.0, position=0.0)
    return adjust(known, depth * scale, sightings, fixed).depth / scale


def _corrected(
    view: _View,
    pose: Float[Tensor, "B T one 4 4"],
    intrinsics: Float[Tensor, "B T one 3 3"],
    ratio: Float[Tensor, "B T P"],
) -> NetworkOutput:
    """Multiply depth by what was found for the middles of patches; points follow their depth and camera."""
    output, rows, columns = view.output, *view.grid
    assert output.depth is not None
    assert output.world_to_camera is not None
    of_patches = ratio[..., : rows * columns].log().reshape(-1, 1, rows, columns).to(output.depth)
    correction = functional.interpolate(of_patches, size=view.size, mode="bilinear", align_corners=False).exp()
    correction = correction.reshape(output.depth.shape)
    points = output.points
    if points is not None:
        local = transform_points(output.world_to_camera.to(points.dtype), points) * correction[..., None]
        points = transform_points(invert_rigid(pose).to(points.dtype), local)
    return replace(
        output, world_to_camera=pose, intrinsics=intrinsics, depth=output.depth * correction, points=points
    )


def _at_middles(view: _View) -> Float[Tensor, "B T P"]:
    """Return the depth at the middles of patches: the mean logarithm of the four pixels that meet there."""
    assert view.output.depth is not None
    depth, grid = view.output.depth[:, :, 0].double().cpu(), view.grid
    sides = (view.size[0] // grid[0], view.size[1] // grid[1])
    around = depth.log().reshape(*depth.shape[:2], grid[0], sides[0], grid[1], sides[1])
    rows, columns = (slice((side - 1) // 2, side // 2 + 1) for side in sides)
    middles: Tensor = around[..., rows, :, columns].mean(dim=(-3, -1)).exp()
    return middles.flatten(-2)


def _sightings(views: Sequence[_View], num_times: int, sigma_px: float) -> Sightings:
    pixels, found, weight = [], [], []
    for place, view in enumerate(views):
        expected, confidence = view.matches.expected.double().cpu(), view.matches.confidence.double().cpu()
        unit, middle = view.scale
        centers = patch_centers(view.grid).double() * unit + middle
        pixels.append(centers.expand(len(expected), num_times, -1, 2))
        there, sure = [], []
        for index, target in enumerate(view.matches.targets):
            other = int(target_images(target, num_times, len(views))[1][0, place])
            unit, middle = views[other].scale
            there.append(expected[:, :, index] * unit + middle)
            still = target.at_same_instant or view.output.dynamic is None
            sure.append(confidence[:, :, index] * (1.0 if still else _still(view)))
        found.append(torch.stack(there, dim=2))
        weight.append(torch.stack(sure, dim=2))
    others = [_numbers(target, num_times, len(views)) for target in views[0].matches.targets]
    return Sightings(
        pixels=_beside_each_other(pixels, dim=-2),
        images=torch.stack(others, dim=1),
        found=_beside_each_other(found, dim=-2),
        weight=_beside_each_other(weight, fill=0.0),
        sigma_px=sigma_px,
    )


def _numbers(target: MatchTarget, num_times: int, num_views: int) -> Int[Tensor, " N"]:
    """Return which of all images each one's patches are looked for in."""
    times, views = target_images(target, num_times, num_views)
    return (times * num_views + views).flatten()


def _still(view: _View) -> Float[Tensor, "B T P"]:
    """Return how probable it is of every patch that nothing in it moves."""
    dynamic = view.output.dynamic
    assert dynamic is not None
    sides = (view.size[0] // view.grid[0], view.size[1] // view.grid[1])
    moving = functional.max_pool2d(dynamic.double().cpu().flatten(0, 2)[:, None], sides)
    return 1 - moving.reshape(*dynamic.shape[:2], -1)


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
