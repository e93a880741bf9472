"""Correspondences of patches: the network's matches, and their replacement by guided matches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, resize_intrinsics
from page4d.networks.inputs.matching import to_pixels
from page4d.refinement.guided_matching import match_guided
from page4d.refinement.normal_equations import Correspondences
from page4d.refinement.view_prediction import (
    ViewPrediction,
    neighbour_views,
    pad_patches,
    stack_views,
    target_indices,
)

_CONFIDENCE_POWER = 1.5
"""Weight of a match as a power of its confidence: matches of low confidence are less accurate."""

_GUIDED_WEIGHT = 8.0
"""Maximum weight of a guided match, in units of that of a network match of confidence 1."""


class _Slot(NamedTuple):
    """Correspondences of one view's patches with one target image per instant."""

    targets: Int[Tensor, " T"]
    positions: Float[Tensor, "B T P 2"]
    weight: Float[Tensor, "B T P"]


def network_correspondences(views: Sequence[ViewPrediction], num_times: int, sigma_px: float) -> Correspondences:
    """Return the network's matches; a match of confidence 1 has a standard deviation of `sigma_px`."""
    targets = target_indices(views[0].matches.targets, num_times, len(views))
    pixels, positions, weight = [], [], []
    for place, view in enumerate(views):
        matches = view.matches
        expected, confidence = matches.expected[:, :, 0].double(), matches.confidence[:, :, 0].double()
        pixels.append(view.patch_centers.expand(len(expected), num_times, -1, 2))
        of_targets, weights = [], []
        for index, target in enumerate(matches.targets):
            other = views[int(targets[0, place, index]) % len(views)]
            of_targets.append(to_pixels(expected[:, :, index], other.grid, other.patch_size))
            weights.append(confidence[:, :, index] ** _CONFIDENCE_POWER * view.static_probability(target))
        positions.append(torch.stack(of_targets, dim=2))
        weight.append(torch.stack(weights, dim=2))
    return Correspondences(
        pixels=stack_views(pixels, dim=-2),
        targets=targets.flatten(0, 1),
        positions=stack_views(positions, dim=-2),
        weight=stack_views(weight, fill=0.0),
        sigma_px=sigma_px,
    )


def guided_correspondences(
    correspondences: Correspondences,
    views: Sequence[ViewPrediction],
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "B T _ _"]],
    reduction: int = 1,
) -> Correspondences:
    """Replace correspondences between views of one instant by guided matches where these were found.

    `cameras` are [B, T, V], in the unit of depth. Images are compared at 1 / `reduction` of their size, over windows
    of about as many pixels: reach and windows are wider by this factor. Patches whose size is not divisible by it are
    compared at full size. The first slots are neighbouring views at the same instant, matched by the network or not,
    the last those of other instants, unchanged. A single view has no neighbours: between instants a camera that
    hardly moves gives no parallax.
    """
    num_times, num_views, num_patches = depth[0].shape[1], len(views), correspondences.positions.shape[-2]
    if num_views == 1:
        return correspondences
    reduction = reduction if all(view.patch_size % reduction == 0 for view in views) else 1
    images = [_reduced(image.mean(dim=2, keepdim=True), reduction) for image in images]
    depth = [_reduced(one[:, :, None], reduction)[:, :, 0] for one in depth]
    cameras = replace(
        cameras,
        intrinsics=resize_intrinsics(cameras.intrinsics, 1 / reduction, 1 / reduction),
        image_size=(cameras.image_size[0] // reduction, cameras.image_size[1] // reduction),
    )
    slots = []
    for place, view in enumerate(views):
        side = view.patch_size // reduction
        margin = (view.patch_size - side) // 2
        same_instant, other_instants = _slots_of_view(correspondences, place, num_times, num_views)
        guided = []
        for other in neighbour_views(views, place):
            pair = cameras[:, :, place], cameras[:, :, other]
            found = match_guided(images[place], images[other], *pair, depth[place], side, margin)
            slot = _Slot(
                targets=torch.arange(num_times) * num_views + other,
                positions=pad_patches(reduction * found.positions.double(), num_patches, dim=-2),
                weight=_GUIDED_WEIGHT * pad_patches(found.score.double(), num_patches, dim=-1),
            )
            guided.append(_with_fallback(slot, same_instant.get(other)))
        slots.append(guided + other_instants)
    return replace(
        correspondences,
        targets=_stacked([[slot.targets for slot in of_view] for of_view in slots], dim=1),
        positions=_stacked([[slot.positions for slot in of_view] for of_view in slots], dim=2),
        weight=_stacked([[slot.weight for slot in of_view] for of_view in slots], dim=2),
    )


def _reduced(maps: Float[Tensor, "B T C H W"], factor: int) -> Float[Tensor, "B T C h w"]:
    """Return the means over squares of pixels."""
    return torch.unflatten(functional.avg_pool2d(maps.flatten(0, 1), factor), 0, maps.shape[:2])


def _stacked(parts: Sequence[Sequence[Tensor]], dim: int) -> Tensor:
    """Stack values of all views and slots: views after the T before `dim`, flattened to N, then slots G."""
    of_views = [torch.stack(list(of_slots), dim=dim) for of_slots in parts]
    return torch.stack(of_views, dim=dim).flatten(dim - 1, dim)


def _slots_of_view(
    correspondences: Correspondences, place: int, num_times: int, num_views: int
) -> tuple[dict[int, _Slot], list[_Slot]]:
    """Return a view's slot for each other view at the same instant, and its slots for other instants."""
    size = (num_times, num_views)
    indices = torch.unflatten(correspondences.targets, 0, size)[:, place]
    positions, weight = (
        torch.unflatten(part, 1, size)[:, :, place] for part in (correspondences.positions, correspondences.weight)
    )
    same_instant: dict[int, _Slot] = {}
    other_instants: list[_Slot] = []
    for index in range(indices.shape[-1]):
        slot = _Slot(targets=indices[:, index], positions=positions[:, :, index], weight=weight[:, :, index])
        other = int(slot.targets[0])
        if not torch.equal(slot.targets, torch.arange(num_times) * num_views + other):
            other_instants.append(slot)
        elif other != place:
            same_instant.setdefault(other, slot)
    return same_instant, other_instants


def _with_fallback(guided: _Slot, before: _Slot | None) -> _Slot:
    """Return guided matches, and the earlier correspondences where there are none."""
    if before is None:
        return guided
    found = guided.weight > 0
    return guided._replace(
        positions=torch.where(found[..., None], guided.positions, before.positions),
        weight=torch.where(found, guided.weight, before.weight),
    )
