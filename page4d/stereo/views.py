"""Network predictions of one view, as refinement reads them, and the choice of views to compare."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.networks.conditioning import Grid
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.matching import Matches, patch_centers, target_images, to_pixels
from page4d.networks.output import NetworkOutput, RigOutput

_DEFAULT_CONFIDENCE = 2.0
"""Confidence of a network without confidence: that of most patches is between 1 and 4."""

MAX_NEIGHBOURS = 5
"""Views that each view is compared with: all pairs of a large rig would take too long."""


@dataclass(frozen=True, kw_only=True)
class ViewPrediction:
    """The output of one view, V = 1, with depth and matches. Patch values are float64."""

    output: NetworkOutput
    patch_size: int

    @property
    def matches(self) -> Matches:
        """Matches of the view's patches, W = 1."""
        assert self.output.matches is not None
        return self.output.matches

    @property
    def depth(self) -> Float[Tensor, "B T one H W"]:
        """Depth of every pixel."""
        assert self.output.depth is not None
        return self.output.depth

    @property
    def size(self) -> tuple[int, int]:
        """(Height, width) in px."""
        return self.depth.shape[-2], self.depth.shape[-1]

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def patch_centers(self) -> Float[Tensor, "P 2"]:
        """Patch centers in px."""
        return to_pixels(patch_centers(self.grid, self.depth.device).double(), self.grid, self.patch_size)

    @property
    def patch_depth(self) -> Float[Tensor, "B T P"]:
        """Depth at patch centers: the geometric mean of the pixels that meet there."""
        rows, columns = self.grid
        side = self.patch_size
        depth = self.depth[:, :, 0].double()
        around = depth.log().reshape(*depth.shape[:2], rows, side, columns, side)
        inner = center_pixels(side)
        centers: Tensor = around[..., inner, :, inner].mean(dim=(-3, -1)).exp()
        return centers.flatten(-2)

    @property
    def confidence(self) -> Float[Tensor, "B T H W"]:
        """Depth confidence of every pixel, at least 1."""
        confidence = self.output.depth_confidence
        if confidence is None:
            return torch.full_like(self.depth[:, :, 0], _DEFAULT_CONFIDENCE)
        return confidence[:, :, 0]

    @property
    def patch_confidence(self) -> Float[Tensor, "B T P"]:
        """Mean depth confidence of every patch."""
        return functional.avg_pool2d(self.confidence.double(), self.patch_size).flatten(-2)

    def static_probability(self, target: MatchTarget) -> Float[Tensor, "B T P"]:
        """Return the probability of every patch that no pixel of it moves until the target image."""
        dynamic = self.output.dynamic
        if target.at_same_instant or dynamic is None:
            rows, columns = self.grid
            return self.depth.new_ones(*self.depth.shape[:2], rows * columns, dtype=torch.float64)
        moving = functional.max_pool2d(dynamic.double().flatten(0, 2)[:, None], self.patch_size)
        return 1 - moving.reshape(*dynamic.shape[:2], -1)


def view_predictions(output: RigOutput, patch_size: int) -> list[ViewPrediction]:
    """Split an output into its views; empty if it has no matches or no depth."""
    views = output.views
    if any(view.matches is None or view.depth is None for view in views):
        return []
    return [ViewPrediction(output=view, patch_size=patch_size) for view in views]


def center_pixels(side: int) -> slice:
    """Return the rows, or columns, of a patch that meet in its center: two, or one if its side is odd."""
    return slice((side - 1) // 2, side // 2 + 1)


def target_indices(targets: Sequence[MatchTarget], num_times: int, num_views: int) -> Int[Tensor, "T V G"]:
    """Return the index, among all T * V images, of every target image of each; on the CPU, as sizes are."""
    images = (target_images(target, num_times, num_views) for target in targets)
    return torch.stack([times * num_views + views for times, views in images], dim=-1)


def matched_views(views: Sequence[ViewPrediction], place: int) -> list[int]:
    """Return the other views that the network matched with a view at the same instant."""
    targets = [target for target in views[place].matches.targets if target.at_same_instant]
    if not targets:
        return []
    indices = target_indices(targets, 1, len(views))[0, place].tolist()
    return sorted(set(indices) - {place})


def neighbour_views(views: Sequence[ViewPrediction], place: int) -> list[int]:
    """Return the matched views, then the nearest in cyclic order, up to a maximum number."""
    matched, number = matched_views(views, place), len(views)
    rest = [other for other in range(number) if other != place and other not in matched]
    rest.sort(key=lambda other: min((other - place) % number, (place - other) % number))
    return [*matched, *rest][:MAX_NEIGHBOURS]


def stack_views(
    of_views: Sequence[Float[Tensor, "B T *_"]], dim: int = -1, fill: float | None = None
) -> Float[Tensor, "B N *_"]:
    """Stack patch values of all views as [B, T*V, ...]; smaller views are padded by `fill` or their last patch."""
    most = max(part.shape[dim] for part in of_views)
    return torch.stack([pad_patches(part, most, dim, fill) for part in of_views], dim=2).flatten(1, 2)


def pad_patches(part: Tensor, count: int, dim: int, fill: float | None = 0.0) -> Tensor:
    """Pad patch values to `count` patches, by `fill` or by repeating the last patch."""
    last = part.narrow(dim, part.shape[dim] - 1, 1)
    shape = list(part.shape)
    shape[dim] = count - part.shape[dim]
    return torch.cat([part, last.expand(shape) if fill is None else part.new_full(shape, fill)], dim=dim)
