"""What may be known besides images and masks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Float, Shaped
from torch import Tensor

from page4d.errors import ShapeError

Memory = Mapping[str, Tensor]
"""Tokens [B, M, C] that carry what was seen from one chunk of instants to the next, by "layer.stream"."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Everything is optional.

    `keypoints` says how much of a keypoint a patch is, from 0 to 1. `times` tell a network that encodes
    time when the instants were, in frames (any common origin); by default they count from 0. `memory` is what the
    chunk before returned. Cameras, in pixels of the network's images and in any world, tell a network with an
    epipolar prior where to look, and one with known cameras as input along which rays; intrinsics may come alone.
    """

    keypoints: Float[Tensor, "B T V rows columns"] | None = None
    times: Float[Tensor, "B T"] | None = None
    memory: Memory | None = None
    world_to_camera: Float[Tensor, "B T V 4 4"] | None = None
    intrinsics: Float[Tensor, "B T V 3 3"] | None = None

    def as_one_instant(self) -> "Conditioning":
        """Return the conditioning for the same images as views of one instant."""
        return replace(
            self,
            keypoints=as_one_instant(self.keypoints),
            times=None,
            world_to_camera=as_one_instant(self.world_to_camera),
            intrinsics=as_one_instant(self.intrinsics),
        )


NO_CONDITIONING = Conditioning()
"""Nothing is known."""


def as_one_instant(values: Shaped[Tensor, "B T V *rest"] | None) -> Shaped[Tensor, "B one S *rest"] | None:
    """Put all images into one instant, view by view inside every instant."""
    return None if values is None else values.flatten(1, 2).unsqueeze(1)


def check_conditioning(conditioning: Conditioning, images: tuple[int, ...], grid: tuple[int, int] | None) -> None:
    """Compare conditioning with the images (B, T, V) that they are about; without a grid views have different ones.

    Raises:
        ShapeError: if they do not fit.
    """
    expected = {
        "keypoints": None if grid is None else (*images, *grid),
        "times": images[:2],
        "world_to_camera": (*images, 4, 4),
        "intrinsics": (*images, 3, 3),
    }
    if conditioning.world_to_camera is not None and conditioning.intrinsics is None:
        raise ShapeError("poses of cameras without their intrinsics", "give intrinsics too, or neither")
    for name, shape in expected.items():
        value = getattr(conditioning, name)
        if value is not None and shape is not None and tuple(value.shape) != shape:
            raise ShapeError(f"{name} have shape {tuple(value.shape)}, images {images}", f"give {shape}")
