"""What a network, a depth sensor or a renderer says about a stretch of a capture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras, world_points
from page4d.geometry.pixels import PixelTransform
from page4d.geometry.similarity import Sim3

_MAPS = ("images", "valid", "depth", "depth_confidence", "points", "points_confidence", "dynamic")
"""The fields of `Predictions` that have one entry per instant, beside times and cameras."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Cameras, depth and what belongs to them for T instants of V views, at network pixels [H, W].

    `images` are the RGB pixels in [0, 1] that the values belong to. `valid` is False on padding and on pixels to
    ignore; depth there means nothing. Confidences and `dynamic` lie in [0, 1]. `points` are in the world. Views whose
    transforms have canvases of different sizes lie at the top left, and nothing beyond their own is valid.
    """

    times: Float[Tensor, " T"]
    view_names: tuple[str, ...]
    scale: Scale
    pixel_transforms: tuple[PixelTransform, ...]
    cameras: Cameras
    images: Float[Tensor, "B T V 3 H W"]
    valid: Bool[Tensor, "B T V H W"]
    depth: Float[Tensor, "B T V H W"]
    depth_confidence: Float[Tensor, "B T V H W"]
    points: Float[Tensor, "B T V H W 3"] | None = None
    points_confidence: Float[Tensor, "B T V H W"] | None = None
    dynamic: Float[Tensor, "B T V H W"] | None = None

    def __post_init__(self) -> None:
        maps = tuple(self.depth.shape)
        expected = {
            "times": (maps[1],),
            "cameras": maps[:3],
            "images": (*maps[:3], 3, *maps[3:]),
            "valid": maps,
            "depth_confidence": maps,
            "points": (*maps, 3),
            "points_confidence": maps,
            "dynamic": maps,
        }
        for name, shape in expected.items():
            value = getattr(self, name)
            found = tuple(value.world_to_camera.shape[:-2]) if name == "cameras" else value
            found = tuple(found.shape) if isinstance(found, Tensor) else found
            if found is not None and found != shape:
                raise ShapeError(f"predictions: {name} has shape {found}, depth {maps}", f"give {name} {shape}")
        if not len(self.view_names) == len(self.pixel_transforms) == maps[2]:
            raise ShapeError(f"predictions: {len(self.view_names)} names for {maps[2]} views", "name every view")

    @property
    def num_times(self) -> int:
        """Number of instants T."""
        return self.depth.shape[1]

    @property
    def view_sizes(self) -> tuple[tuple[int, int], ...]:
        """The (height, width) of every view's own canvas."""
        return tuple(transform.canvas_size for transform in self.pixel_transforms)

    def world_points(self) -> Float[Tensor, "B T V H W 3"]:
        """Lift the depth maps to points in the world."""
        return world_points(self.depth, self.cameras)

    def transformed(self, transform: Sim3, scale: Scale | None = None) -> "Predictions":
        """Move everything into another world at once: cameras, depth and points can never disagree."""
        poses = self.cameras.world_to_camera
        return replace(
            self,
            cameras=replace(self.cameras, world_to_camera=transform.like(poses).apply_to_cameras(poses)),
            depth=self.depth * transform.scale.to(self.depth),
            points=None if self.points is None else transform.like(self.points).apply(self.points),
            scale=self.scale if scale is None else scale,
        )

    def at_times(self, start: int, stop: int) -> "Predictions":
        """Cut out the instants from `start` to before `stop`."""
        chosen = slice(start, stop)
        cut: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[:, chosen] for name in _MAPS
        }
        return replace(self, times=self.times[chosen], cameras=self.cameras[:, chosen], **cut)

    def clone(self) -> "Predictions":
        """Copy the maps, so that keeping a few instants does not keep the chunk they were cut from."""
        maps: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name).clone() for name in _MAPS
        }
        return replace(self, **maps)


def join_times(parts: Sequence[Predictions]) -> Predictions:
    """Put consecutive stretches of one capture behind each other."""
    first = parts[0]

    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values, dim=1)

    cameras = Cameras(
        world_to_camera=torch.cat([part.cameras.world_to_camera for part in parts], dim=1),
        intrinsics=torch.cat([part.cameras.intrinsics for part in parts], dim=1),
        image_size=first.cameras.image_size,
    )
    times = torch.cat([part.times for part in parts])
    maps: dict[str, Any] = {name: joined(name) for name in _MAPS}
    return replace(first, times=times, cameras=cameras, **maps)
