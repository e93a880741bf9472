"""What a network says of one view, and where it finds the view's patches in other images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Matches, ViewMatches, patch_centers, target_images, to_pixels
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.models.size_groups import Grid

_MIDDLING = 2.0
"""Confidence of a network that says nothing of it: that of most patches is between 1 and 4."""

_MOST_OTHERS = 5
"""Views that one is compared with: all pairs of larger rigs would take too long."""


@dataclass(frozen=True, kw_only=True)
class MatchedView:
    """An output of V = 1 with depth, and the matches of its patches. Numbers are returned in float64, on the CPU."""

    output: NetworkOutput
    matches: ViewMatches
    patch_size: int

    @property
    def size(self) -> tuple[int, int]:
        """(Height, width) in px."""
        return self.depth.shape[-2], self.depth.shape[-1]

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def middles(self) -> Float[Tensor, "P 2"]:
        """Where the middles of patches are, in px."""
        return to_pixels(patch_centers(self.grid).double(), self.grid, self.patch_size)

    @property
    def depth_at_middles(self) -> Float[Tensor, "B T P"]:
        """Depth there: the mean logarithm of the four pixels that meet."""
        rows, columns = self.grid
        side = self.patch_size
        depth = self.depth[:, :, 0].double().cpu()
        around = depth.log().reshape(*depth.shape[:2], rows, side, columns, side)
        inner = inner_pixels(side)
        middles: Tensor = around[..., inner, :, inner].mean(dim=(-3, -1)).exp()
        return middles.flatten(-2)

    @property
    def confidence_of_pixels(self) -> Float[Tensor, "B T H W"]:
        """Confidence in depth, at least 1; middling where the network says nothing of it."""
        confidence = self.output.depth_confidence
        if confidence is None:
            return torch.full_like(self.depth[:, :, 0], _MIDDLING)
        return confidence[:, :, 0]

    @property
    def confidence(self) -> Float[Tensor, "B T P"]:
        """Its mean over every patch."""
        return functional.avg_pool2d(self.confidence_of_pixels.double().cpu(), self.patch_size).flatten(-2)

    def trust(self, target: MatchTarget) -> Float[Tensor, "B T P"]:
        """Return how probable it is of every patch that nothing in it has moved where it is looked for."""
        dynamic = self.output.dynamic
        if target.at_same_instant or dynamic is None:
            rows, columns = self.grid
            return torch.ones(*self.depth.shape[:2], rows * columns, dtype=torch.float64)
        moving = functional.max_pool2d(dynamic.double().cpu().flatten(0, 2)[:, None], self.patch_size)
        return 1 - moving.reshape(*dynamic.shape[:2], -1)

    @property
    def depth(self) -> Float[Tensor, "B T one H W"]:
        """Depth of every pixel."""
        assert self.output.depth is not None
        return self.output.depth


def inner_pixels(side: int) -> slice:
    """Return which rows, or columns, of a patch meet in its middle: two, or one if its side is odd."""
    return slice((side - 1) // 2, side // 2 + 1)


def matched_views(output: NetworkOutput | MixedOutput, patch_size: int) -> list[MatchedView]:
    """Return an output view by view; nothing if it has no matches or no depth."""
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
    if any(one.depth is None for one in outputs):
        return []
    pairs = zip(outputs, matches, strict=True)
    return [MatchedView(output=own, matches=found, patch_size=patch_size) for own, found in pairs]


def image_numbers(targets: Sequence[MatchTarget], num_times: int, num_views: int) -> Int[Tensor, "T V G"]:
    """Return which of all T*V images the patches of each are looked for in."""
    numbers = []
    for target in targets:
        times, views = target_images(target, num_times, num_views)
        numbers.append(times * num_views + views)
    return torch.stack(numbers, dim=-1)


def asked_views(views: Sequence[MatchedView], place: int) -> list[int]:
    """Return the other views in which a view's patches were looked for at the same instant."""
    targets = [target for target in views[place].matches.targets if target.at_same_instant]
    if not targets:
        return []
    numbers = image_numbers(targets, 1, len(views))[0, place].tolist()
    return sorted(set(numbers) - {place})


def nearby_views(views: Sequence[MatchedView], place: int) -> list[int]:
    """Return those, and then the nearest in line, as many as are worth the time."""
    asked, num_views = asked_views(views, place), len(views)

    def away(other: int) -> int:
        return min((other - place) % num_views, (place - other) % num_views)

    more = sorted((other for other in range(num_views) if other != place and other not in asked), key=away)
    return [*asked, *more][: min(num_views - 1, _MOST_OTHERS)]
