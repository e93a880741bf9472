"""Optional conditioning inputs of a network, and views of a rig grouped by size.

Inputs are cameras, times, keypoints, and the memory of the previous chunk. Views with one patch grid pass through the
network as one tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from page4d.errors import ShapeError, UsageError
from page4d.networks.config import NetworkConfig

Memory = Mapping[str, Tensor]
"""Memory tokens [B, M, C] passed from one chunk of instants to the next, by "layer.stream"."""

_OWNERS = {"known_intrinsics": "intrinsics", "known_poses": "world_to_camera", "known_depths": "depths"}
"""Masks of images, and the inputs that they select from."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Inputs besides images and masks; all are optional.

    `keypoints` in [0, 1] are weights of patches. `times` are in frames with any origin, for networks with a time
    encoding; by default they count from 0. `memory` is the output of the previous chunk. Cameras, in pixels of the
    network's images and in any world, condition an epipolar prior and known-camera inputs; intrinsics may come alone,
    poses only for networks with known geometry as input.

    Networks with known geometry as input also take `depths`, z-depth in the unit of the poses and in the form of the
    images: one tensor, or one per view. Values that are not finite or not above 0 are invalid. `known_intrinsics`,
    `known_poses` and `known_depths` mark the images whose values are used; None for all that are given. Depths and
    poses of the other images have a part in the unit of length, so that poses must be finite.
    """

    keypoints: Float[Tensor, "B T V rows columns"] | None = None
    times: Float[Tensor, "B T"] | None = None
    memory: Memory | None = None
    world_to_camera: Float[Tensor, "B T V 4 4"] | None = None
    intrinsics: Float[Tensor, "B T V 3 3"] | None = None
    depths: Float[Tensor, "B T V H W"] | Sequence[Float[Tensor, "B T *_"]] | None = None
    known_intrinsics: Bool[Tensor, "B T V"] | None = None
    known_poses: Bool[Tensor, "B T V"] | None = None
    known_depths: Bool[Tensor, "B T V"] | None = None

    def by_group(self, groups: "ViewGroups") -> "Conditioning":
        """Return the conditioning with depths as one tensor [B, T, W, H, W] per group of views of one size."""
        if self.depths is None:
            return self
        parts = [self.depths] if isinstance(self.depths, Tensor) else groups.by_group(self.depths)
        return replace(self, depths=parts)

    def as_one_instant(self) -> "Conditioning":
        """Return the conditioning of the same images as views of one instant; depths are those of groups."""
        whole = replace(self, times=None)
        parts: dict[str, Any] = {
            name: as_one_instant(value) for name, value in vars(whole).items() if isinstance(value, Tensor)
        }
        depths = None if self.depths is None else [as_one_instant(part) for part in self.depths]
        return replace(whole, **parts, depths=depths)


NO_CONDITIONING = Conditioning()
"""Images only."""


def as_one_instant(values: Shaped[Tensor, "B T V *rest"]) -> Shaped[Tensor, "B one S *rest"]:
    """Return the values of all images as those of views of one instant."""
    return values.flatten(1, 2).unsqueeze(1)


def check_conditioning(conditioning: Conditioning, images: tuple[int, ...], grid: tuple[int, int] | None) -> None:
    """Compare the shapes of conditioning inputs with the images (B, T, V); `grid` is None where views differ in size.

    Raises:
        ShapeError: if they do not fit.
    """
    expected = {
        "keypoints": None if grid is None else (*images, *grid),
        "times": images[:2],
        "world_to_camera": (*images, 4, 4),
        "intrinsics": (*images, 3, 3),
    }
    for name, shape in expected.items():
        value = getattr(conditioning, name)
        if value is not None and shape is not None and tuple(value.shape) != shape:
            raise ShapeError(f"{name} have shape {tuple(value.shape)}, images {images}", f"give {shape}")


def check_known(conditioning: Conditioning, images: Tensor | Sequence[Tensor], *, accepted: bool) -> None:
    """Compare depths, and the masks of images with known values, with images in the same form.

    Raises:
        ShapeError: if they do not fit, or a mask comes without the values that it selects from, or poses without
            intrinsics to a network that takes no known geometry.
        UsageError: if the network does not take them.
    """
    if not accepted and conditioning.world_to_camera is not None and conditioning.intrinsics is None:
        raise ShapeError("poses of cameras without their intrinsics", "give intrinsics too, or neither")
    masks = {name: mask for name in _OWNERS if (mask := getattr(conditioning, name)) is not None}
    depths = conditioning.depths
    if not accepted and (masks or depths is not None):
        raise UsageError(
            "this network takes no depth maps and no masks of known images", "leave depths and known_* out"
        )
    views = [images] if isinstance(images, Tensor) else list(images)
    maps = [depths] if isinstance(depths, Tensor) else list(depths or ())
    expected = [(*view.shape[:-3], *view.shape[-2:]) for view in views]
    found = [tuple(part.shape) for part in maps]
    if depths is not None and (found != expected or isinstance(depths, Tensor) != isinstance(images, Tensor)):
        raise ShapeError(f"depths have shapes {found}", f"give {expected}, in the form of the images")
    leading = tuple(images.shape[:3]) if isinstance(images, Tensor) else (*views[0].shape[:2], len(views))
    for name, mask in masks.items():
        if getattr(conditioning, _OWNERS[name]) is None:
            raise ShapeError(f"{name} without {_OWNERS[name]}", "give both, or neither")
        if mask.dtype is not torch.bool or tuple(mask.shape) != leading:
            raise ShapeError(f"{name} is {mask.dtype} of shape {tuple(mask.shape)}", f"give bool of shape {leading}")


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
    found = {"sparse layers": config.sparse is not None, "an epipolar prior": config.epipolar is not None}
    return [name for name, is_there in found.items() if is_there]
