"""Views of a rig grouped by size: views with one patch grid pass through the network as one tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from page4d.errors import UsageError
from page4d.models.conditioning import Conditioning
from page4d.models.config import NetworkConfig
from page4d.models.schedule import Step

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True, kw_only=True)
class ViewGroups:
    """The views of a rig in groups of one size; `members` are the indices of each group's views in the rig.

    Values of all views are one tensor [B, T, V, ...] in the order of the rig, or a list of one tensor
    [B, T, W, ...] per group, W views in the order of `members`.
    """

    members: tuple[tuple[int, ...], ...]

    @property
    def are_one(self) -> bool:
        """Whether there is one group."""
        return len(self.members) == 1

    @property
    def num_views(self) -> int:
        """Number of views of the rig."""
        return sum(len(views) for views in self.members)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The group of every view of the rig, and its index in that group."""
        found = {view: (group, place) for group, own in enumerate(self.members) for place, view in enumerate(own)}
        return tuple(found[view] for view in range(self.num_views))

    def chosen(self, values: Shaped[Tensor, "B T V *rest"]) -> list[Shaped[Tensor, "B T W *rest"]]:
        """Split values of all views into those of every group."""
        return [values] if self.are_one else [values[:, :, list(views)] for views in self.members]

    def stacked(self, parts: Sequence[Shaped[Tensor, "B T W *rest"]]) -> Shaped[Tensor, "B T V *rest"]:
        """Undo `chosen`."""
        if self.are_one:
            return parts[0]
        order = torch.tensor([view for views in self.members for view in views]).argsort()
        return torch.cat(list(parts), dim=2)[:, :, order.to(parts[0].device)]

    def by_group(self, of_views: Sequence[Shaped[Tensor, "B T *_"]]) -> list[Shaped[Tensor, "B T W *_"]]:
        """Stack tensors of single views group by group."""
        return [torch.stack([of_views[view] for view in views], dim=2) for views in self.members]


@dataclass(frozen=True, kw_only=True)
class SizeGroups(ViewGroups):
    """Views grouped by patch grid: one grid per group."""

    grids: tuple[Grid, ...]

    @staticmethod
    def of(grids: Sequence[Grid]) -> "SizeGroups":
        """Group views by their grids, in the order of first occurrence."""
        kinds = tuple(dict.fromkeys(grids))
        members = (tuple(view for view, grid in enumerate(grids) if grid == kind) for kind in kinds)
        return SizeGroups(grids=kinds, members=tuple(members))

    def grid_of_views(self, device: torch.device) -> Int[Tensor, "V 2"]:
        """Return rows and columns of every view of the rig."""
        return torch.tensor([self.grids[group] for group, _ in self.places], device=device)

    def as_one_instant(self, num_times: int) -> "SizeGroups":
        """Return the groups of the same images as views of one instant, ordered by time, then view."""
        count = self.num_views
        members = (tuple(time * count + view for time in range(num_times) for view in own) for own in self.members)
        return SizeGroups(grids=self.grids, members=tuple(members))


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate the tokens of all groups."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def parts_for_one_size(config: NetworkConfig) -> list[str]:
    """Name the parts of a network that need images of one size; with any of them mixed rigs are refused."""
    found = {
        "sparse layers": config.sparse is not None,
        "an epipolar prior": config.epipolar is not None,
        "attention along rows and columns of images": Step.CROSS in config.schedule,
    }
    return [name for name, is_there in found.items() if is_there]


def check_mixed(config: NetworkConfig, conditioning: Conditioning) -> None:
    """Refuse views of different sizes where a part of the network, or a conditioning input, needs one size.

    Raises:
        UsageError: naming the part.
    """
    parts = parts_for_one_size(config) or (["keypoints"] if conditioning.keypoints is not None else [])
    if parts:
        raise UsageError(f"views of different sizes with {' and '.join(parts)}", "give images of one size")
