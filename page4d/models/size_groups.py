"""Views of different sizes: those that share a patch grid pass through the network as one tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from page4d.errors import UsageError
from page4d.models.conditioning import Conditioning
from page4d.models.config import NetworkConfig
from page4d.models.schedule import Step

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True, kw_only=True)
class SizeGroups:
    """The views of a rig by their patch grids; `members` are the views of each group, counted over the rig.

    What is known of all views is either one tensor [B, T, V, ...] in the order of the rig, or a list of one tensor
    [B, T, W, ...] for the W views of each group, in the order of `members`.
    """

    grids: tuple[Grid, ...]
    members: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(grids: Sequence[Grid]) -> "SizeGroups":
        """Group views by their grids, the first view's first."""
        kinds = tuple(dict.fromkeys(grids))
        members = (tuple(view for view, grid in enumerate(grids) if grid == kind) for kind in kinds)
        return SizeGroups(grids=kinds, members=tuple(members))

    @property
    def are_one(self) -> bool:
        """Whether all views have one grid."""
        return len(self.grids) == 1

    @property
    def num_views(self) -> int:
        """Number of views of the rig."""
        return sum(len(views) for views in self.members)

    @property
    def grid_of_views(self) -> tuple[Grid, ...]:
        """The grid of every view of the rig."""
        found = {view: grid for grid, views in zip(self.grids, self.members, strict=True) for view in views}
        return tuple(found[view] for view in range(self.num_views))

    def as_one_instant(self, num_times: int) -> "SizeGroups":
        """Return the groups of the same images when they are views of one instant, instant by instant."""
        count = self.num_views
        members = (tuple(time * count + view for time in range(num_times) for view in own) for own in self.members)
        return SizeGroups(grids=self.grids, members=tuple(members))

    def chosen(self, values: Shaped[Tensor, "B T V *rest"]) -> list[Shaped[Tensor, "B T W *rest"]]:
        """Give every group what belongs to its views."""
        return [values] if self.are_one else [values[:, :, list(views)] for views in self.members]

    def stacked(self, parts: Sequence[Shaped[Tensor, "B T W *rest"]]) -> Shaped[Tensor, "B T V *rest"]:
        """Undo `chosen`."""
        if self.are_one:
            return parts[0]
        order = torch.tensor([view for views in self.members for view in views]).argsort()
        return torch.cat(list(parts), dim=2)[:, :, order.to(parts[0].device)]

    def by_group(self, of_views: Sequence[Shaped[Tensor, "B T *_"]]) -> list[Shaped[Tensor, "B T W *_"]]:
        """Stack what every view of the rig has by itself."""
        return [torch.stack([of_views[view] for view in views], dim=2) for views in self.members]

    def by_view(self, parts: Sequence[Shaped[Tensor, "B T W *_"]]) -> list[Shaped[Tensor, "B T *_"]]:
        """Undo `by_group`."""
        of_views: dict[int, Tensor] = {}
        for part, views in zip(parts, self.members, strict=True):
            of_views.update(zip(views, part.unbind(2), strict=True))
        return [of_views[view] for view in range(self.num_views)]


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Put the tokens of all groups behind each other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def parts_for_one_size(config: NetworkConfig) -> list[str]:
    """Name the parts of a network that need images of one size: with any of them it does not take mixed rigs."""
    found = {
        "sparse layers": config.sparse is not None,
        "an epipolar prior": config.epipolar is not None,
        "attention along rows and columns of images": Step.CROSS in config.schedule,
    }
    return [name for name, is_there in found.items() if is_there]


def check_mixed(config: NetworkConfig, conditioning: Conditioning) -> None:
    """Refuse views of different sizes where a part of the network, or a hint, is for one size.

    Raises:
        UsageError: naming the part.
    """
    parts = parts_for_one_size(config) or (["keypoints"] if conditioning.keypoints is not None else [])
    if parts:
        raise UsageError(f"views of different sizes with {' and '.join(parts)}", "give images of one size")
