"""Optional conditioning inputs of a network: cameras, times, keypoints, and the memory of the previous chunk."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Float, Shaped
from torch import Tensor

from page4d.errors import ShapeError

Memory = Mapping[str, Tensor]
"""Memory tokens [B, M, C] passed from one chunk of instants to the next, by "layer.stream"."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Inputs besides images and masks; all are optional.

    `keypoints` in [0, 1] are weights of patches. `times` are in frames with any origin, for networks with a time
    encoding; by default they count from 0. `memory` is the output of the previous chunk. Cameras, in pixels of the
    network's images and in any world, condition an epipolar prior and known-camera inputs; intrinsics may come alone.
    """

    keypoints: Float[Tensor, "B T V rows columns"] | None = None
    times: Float[Tensor, "B T"] | None = None
    memory: Memory | None = None
    world_to_camera: Float[Tensor, "B T V 4 4"] | None = None
    intrinsics: Float[Tensor, "B T V 3 3"] | None = None

    def as_one_instant(self) -> "Conditioning":
        """Return the conditioning of the same images as views of one instant."""
        return replace(
            self,
            keypoints=_as_one_instant(self.keypoints),
            times=None,
            world_to_camera=_as_one_instant(self.world_to_camera),
            intrinsics=_as_one_instant(self.intrinsics),
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
    if conditioning.world_to_camera is not None and conditioning.intrinsics is None:
        raise ShapeError("poses of cameras without their intrinsics", "give intrinsics too, or neither")
    for name, shape in expected.items():
        value = getattr(conditioning, name)
        if value is not None and shape is not None and tuple(value.shape) != shape:
            raise ShapeError(f"{name} have shape {tuple(value.shape)}, images {images}", f"give {shape}")
