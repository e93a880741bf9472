"""Where patches are found in other images: as a network says, and close to where an adjustment shows them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.models.inputs.matching import to_pixels
from page4d.refinement.guided_matching import match_closely
from page4d.refinement.matched_view import MatchedView, image_numbers, nearby_views
from page4d.refinement.normal_equations import Sightings

_SURENESS_POWER = 1.5
"""The less sure a match is, the further it is off, and the more often it is false."""

_CLOSENESS = 8.0
"""How much more a find of something that looks alike counts, at most, than the sure match of a patch."""


class _Slot(NamedTuple):
    """Where one view's patches are found in one other image at each instant, and how much that counts."""

    images: Int[Tensor, " T"]
    found: Float[Tensor, "B T P 2"]
    weight: Float[Tensor, "B T P"]


def network_sightings(views: Sequence[MatchedView], num_times: int, sigma_px: float) -> Sightings:
    """Return what a network found, by target; finds that it is sure of have a standard deviation of `sigma_px`."""
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
        pixels=beside_each_other(pixels, dim=-2),
        images=images.flatten(0, 1),
        found=beside_each_other(found, dim=-2),
        weight=beside_each_other(weight, fill=0.0),
        sigma_px=sigma_px,
    )


def close_sightings(
    sightings: Sightings,
    views: Sequence[MatchedView],
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "B T _ _"]],
) -> Sightings:
    """Return sightings in which patches that look alike take the place of what was found for their patches.

    `cameras` are [B, T, V], with the unit of depth. Slots are those of other views at the same instant, whether the
    network looked there or not, and then those of other instants, as they are. A view alone has no such others, as a
    camera that hardly moves shows itself little that is new.
    """
    num_times, num_views = depth[0].shape[1], len(views)
    if num_views == 1:
        return sightings
    slots = []
    for place, view in enumerate(views):
        there, later = _by_view(sightings, place, num_times, num_views)
        anew = []
        for other in nearby_views(views, place):
            rigs = cameras[:, :, place], cameras[:, :, other]
            close = match_closely(images[place], images[other], *rigs, depth[place], view.patch_size)
            looked = _Slot(
                images=torch.arange(num_times) * num_views + other,
                found=_filled(close.found.double().cpu(), sightings.found.shape[-2], dim=-2),
                weight=_CLOSENESS * _filled(close.sure.double().cpu(), sightings.found.shape[-2], dim=-1),
            )
            anew.append(_in_place_of(there.get(other), looked))
        slots.append(anew + later)
    return replace(
        sightings,
        images=_stacked([[slot.images for slot in of_view] for of_view in slots], dim=1),
        found=_stacked([[slot.found for slot in of_view] for of_view in slots], dim=2),
        weight=_stacked([[slot.weight for slot in of_view] for of_view in slots], dim=2),
    )


def _stacked(parts: Sequence[Sequence[Tensor]], dim: int) -> Tensor:
    """Stack what views have in their slots: V behind the T before `dim`, together N, and then G."""
    of_views = [torch.stack(list(of_slots), dim=dim) for of_slots in parts]
    return torch.stack(of_views, dim=dim).flatten(dim - 1, dim)


def _by_view(
    sightings: Sightings, place: int, num_times: int, num_views: int
) -> tuple[dict[int, _Slot], list[_Slot]]:
    """Return one slot for each other view at the same instant, and those of other instants."""
    size = (num_times, num_views)
    numbers = torch.unflatten(sightings.images, 0, size)[:, place]
    found, weight = (torch.unflatten(part, 1, size)[:, :, place] for part in (sightings.found, sightings.weight))
    there: dict[int, _Slot] = {}
    later: list[_Slot] = []
    for index in range(numbers.shape[-1]):
        slot = _Slot(images=numbers[:, index], found=found[:, :, index], weight=weight[:, :, index])
        other = int(slot.images[0])
        if not torch.equal(slot.images, torch.arange(num_times) * num_views + other):
            later.append(slot)
        elif other != place:
            there.setdefault(other, slot)
    return there, later


def _in_place_of(before: _Slot | None, looked: _Slot) -> _Slot:
    """Return what was found anew, and where nothing was, what was there before."""
    if before is None:
        return looked
    there = looked.weight > 0
    return looked._replace(
        found=torch.where(there[..., None], looked.found, before.found),
        weight=torch.where(there, looked.weight, before.weight),
    )


def beside_each_other(
    of_views: Sequence[Float[Tensor, "B T *_"]], dim: int = -1, fill: float | None = None
) -> Float[Tensor, "B N *_"]:
    """Stack what views have of their patches as [B, T*V, ...]; smaller ones are filled up, or repeat their last."""
    most = max(part.shape[dim] for part in of_views)
    return torch.stack([_filled(part, most, dim, fill) for part in of_views], dim=2).flatten(1, 2)


def _filled(part: Tensor, count: int, dim: int, fill: float | None = 0.0) -> Tensor:
    """Fill up what a smaller view has of its patches, or repeat the last of them."""
    last = part.narrow(dim, part.shape[dim] - 1, 1)
    shape = list(part.shape)
    shape[dim] = count - part.shape[dim]
    return torch.cat([part, last.expand(shape) if fill is None else part.new_full(shape, fill)], dim=dim)
