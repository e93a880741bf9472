"""Optional conditioning inputs of a network: cameras, times, keypoints, and the memory of the previous chunk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from page4d.errors import ShapeError, UsageError

Memory = Mapping[str, Tensor]
"""Memory tokens [B, M, C] passed from one chunk of instants to the next, by "layer.stream"."""

_OWNERS = {"known_intrinsics": "intrinsics", "known_poses": "world_to_camera", "known_depths": "depths"}
"""Masks of images, and the inputs that they select from."""


class _Groups(Protocol):
    def by_group(self, of_views: Sequence[Shaped[Tensor, "B T *_"]]) -> list[Shaped[Tensor, "B T W *_"]]: ...


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

    def by_group(self, groups: _Groups) -> "Conditioning":
        """Return the conditioning with depths as one tensor [B, T, W, H, W] per group of views of one size."""
        if self.depths is None:
            return self
        parts = [self.depths] if isinstance(self.depths, Tensor) else groups.by_group(self.depths)
        return replace(self, depths=parts)

    def as_one_instant(self) -> "Conditioning":
        """Return the conditioning of the same images as views of one instant; depths are those of groups."""
        return replace(
            self,
            keypoints=_as_one_instant(self.keypoints),
            times=None,
            world_to_camera=_as_one_instant(self.world_to_camera),
            intrinsics=_as_one_instant(self.intrinsics),
            depths=None if self.depths is None else [part.flatten(1, 2).unsqueeze(1) for part in self.depths],
            known_intrinsics=_as_one_instant(self.known_intrinsics),
            known_poses=_as_one_instant(self.known_poses),
            known_depths=_as_one_instant(self.known_depths),
        )


NO_CONDITIONING = Conditioning()
"""Images only."""


def _as_one_instant(values: Shaped[Tensor, "B T V *rest"] | None) -> Shaped[Tensor, "B one S *rest"] | None:
    return None if values is None else values.flatten(1, 2).unsqueeze(1)


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
