"""Network outputs, of views of one size and of a rig of mixed sizes, and the depth of the sky."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.networks.conditioning import Memory, ViewGroups
from page4d.networks.inputs.matching import Matches

_FILL = {"depth": 0.0, "depth_confidence": 1.0, "points": 0.0, "points_confidence": 1.0, "dynamic": 0.0, "sky": 0.0}
"""Values outside a view's image on a larger canvas."""


@dataclass(frozen=True, kw_only=True)
class NetworkOutput:
    """Predictions at network pixels; a part is None if the network has no head for it.

    `world_to_camera` and `intrinsics` are float64. A network without a field-of-view head fits intrinsics to its
    points. `pose_encoding` is of `world_to_camera` (see `geometry.pose_encoding`). Confidences are raw: 1 + exp(x),
    at least 1. Points are in the world. A frame head also returns `local_points` in the camera frame,
    `confidence_logits` x and `camera_to_world`. `dynamic` is the probability that a pixel moves, 0.5 from an
    untrained head; `dynamic_logit` are the log-odds per patch that bias the attention, `motion_logit` those per pixel
    of a motion head.
    """

    world_to_camera: Float[Tensor, "B T V 4 4"] | None = None
    intrinsics: Float[Tensor, "B T V 3 3"] | None = None
    pose_encoding: Float[Tensor, "B T V 9"] | None = None
    pose_encoding_iterations: tuple[Float[Tensor, "B T V 9"], ...] = ()
    depth: Float[Tensor, "B T V H W"] | None = None
    depth_confidence: Float[Tensor, "B T V H W"] | None = None
    points: Float[Tensor, "B T V H W 3"] | None = None
    points_confidence: Float[Tensor, "B T V H W"] | None = None
    local_points: Float[Tensor, "B T V H W 3"] | None = None
    confidence_logits: Float[Tensor, "B T V H W"] | None = None
    camera_to_world: Float[Tensor, "B T V 4 4"] | None = None
    dynamic: Float[Tensor, "B T V H W"] | None = None
    dynamic_logit: Float[Tensor, "B T V rows columns"] | None = None
    motion_logit: Float[Tensor, "B T V H W"] | None = None
    sky: Float[Tensor, "B T V H W"] | None = None
    """0 or more, `models.sky.SKY_THRESHOLD` or more in the sky."""
    rays: Float[Tensor, "B T V rows columns 3"] | None = None
    """Unit ray directions of patches in the camera frame, of a ray head."""
    ray_map: Float[Tensor, "B T V h w 6"] | None = None
    """[Direction | origin] of rays in the world on a grid 8 times finer than the patches, of a dense head with a ray
    map. Directions are not normalized; their z in the camera frame is 1, up to the scale of the scene."""
    ray_confidence: Float[Tensor, "B T V h w"] | None = None
    metric_scale: Float[Tensor, " B"] | None = None
    """Factor that a metric head or network applied to all lengths: they are approximately metres."""
    reference: Int[Tensor, " B"] | None = None
    """Image whose camera is the world frame, counted by instants, then views; None for the first."""
    matches: Matches | None = None
    memory: Memory | None = None
    """Conditioning input of the next chunk of instants."""

    def at_instants(self, num_times: int) -> "NetworkOutput":
        """Reshape predictions [B, 1, T * V, ...] of images as one instant to [B, T, V, ...], without matches."""
        return self._mapped(lambda values: torch.unflatten(values[:, 0], 1, (num_times, -1)), matches=None)

    def of_view(self, view: int) -> "NetworkOutput":
        """Return the predictions of one view, V = 1, without memory."""
        matches = None if self.matches is None else self.matches.of_view(view)
        return self._mapped(lambda values: values[:, :, view : view + 1], matches=matches, memory=None)

    def _mapped(self, function: Callable[[Tensor], Tensor], **others: Any) -> "NetworkOutput":
        """Apply a function to all tensors, and replace `others`."""
        parts: dict[str, Any] = {
            name: function(value)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name not in ("metric_scale", "reference")  # one per sequence
        }
        iterations = tuple(map(function, self.pose_encoding_iterations))
        return replace(self, **parts, pose_encoding_iterations=iterations, **others)


@dataclass(frozen=True, kw_only=True)
class RigOutput:
    """Predictions for a rig whose views may differ in size: one output per group of views of one size."""

    outputs: tuple[NetworkOutput, ...]
    groups: ViewGroups

    @staticmethod
    def of(output: NetworkOutput) -> "RigOutput":
        """Wrap an output of views of one size."""
        maps = output.depth if output.world_to_camera is None else output.world_to_camera
        num_views = 0 if maps is None else maps.shape[2]
        return RigOutput(outputs=(output,), groups=ViewGroups(members=(tuple(range(num_views)),)))

    @property
    def views(self) -> tuple[NetworkOutput, ...]:
        """The predictions of every view, V = 1, at its own size."""
        return tuple(self.outputs[group].of_view(place) for group, place in self.groups.places)

    @property
    def world_to_camera(self) -> Float[Tensor, "B T V 4 4"] | None:
        """World-to-camera poses of all views."""
        return self._stacked("world_to_camera")

    @property
    def intrinsics(self) -> Float[Tensor, "B T V 3 3"] | None:
        """Intrinsics of all views, in pixels of each view's own image."""
        return self._stacked("intrinsics")

    @property
    def pose_encoding(self) -> Float[Tensor, "B T V 9"] | None:
        """Pose encodings of all views."""
        return self._stacked("pose_encoding")

    @property
    def metric_scale(self) -> Float[Tensor, " B"] | None:
        """Factor that a metric head or network applied to all lengths."""
        return self.outputs[0].metric_scale

    @property
    def memory(self) -> Memory | None:
        """Conditioning input of the next chunk of instants."""
        return self.outputs[0].memory

    def on_canvas(self, size: tuple[int, int]) -> NetworkOutput:
        """Place the maps of all views at the top left of canvases of one (height, width).

        Outside a view's image depth is 0 and confidence 1. Predictions of patches are left out.
        """
        parts: dict[str, Any] = {name: self._stacked(name) for name in ("world_to_camera", "intrinsics")}
        for name, fill in _FILL.items():
            maps = [getattr(output, name) for output in self.outputs]
            if maps[0] is not None:
                parts[name] = self.groups.stacked([_at_top_left(part, size, fill) for part in maps])
        return NetworkOutput(**parts, metric_scale=self.metric_scale)

    def _stacked(self, name: str) -> Tensor | None:
        parts = [getattr(output, name) for output in self.outputs]
        return None if parts[0] is None else self.groups.stacked(parts)


def _at_top_left(
    maps: Float[Tensor, "B T V h w *C"], size: tuple[int, int], fill: float
) -> Float[Tensor, "B T V H W *C"]:
    if (maps.shape[3], maps.shape[4]) == size:
        return maps
    placed = maps.new_full((*maps.shape[:3], *size, *maps.shape[5:]), fill)
    placed[:, :, :, : maps.shape[3], : maps.shape[4]] = maps
    return placed


SKY_THRESHOLD = 0.3
"""Pixels whose sky is at least this are in the sky."""

_MIN_PIXELS = 10
_MAX_PIXELS = 2**24
"""Maximum number of values of `torch.quantile`."""


def is_sky(sky: Float[Tensor, "*batch H W"]) -> Bool[Tensor, "*batch H W"]:
    """Return the mask of the sky."""
    return sky >= SKY_THRESHOLD


def farthest_depth(
    depth: Float[Tensor, "*batch H W"], in_sky: Bool[Tensor, "*batch H W"]
) -> Float[Tensor, ""] | None:
    """Return the 0.99 quantile of the depth outside the sky.

    None unless more than 10 pixels are in the sky and more than 10 are not.

    Source: the public Depth Anything 3 code (reference facts).
    """
    return quantile(depth[~in_sky], 0.99) if has_both(in_sky) else None


def has_both(in_sky: Bool[Tensor, "*pixels"]) -> bool:
    """Return whether more than 10 pixels are in the sky and more than 10 are not."""
    inside = int(in_sky.sum())
    return min(inside, in_sky.numel() - inside) > _MIN_PIXELS


def quantile(values: Float[Tensor, " N"], share: float) -> Float[Tensor, ""]:
    """Return a quantile; of every n-th value above 16.8 million, where the public code draws 100,000 at random."""
    return torch.quantile(values[:: -(-len(values) // _MAX_PIXELS)].float(), share).to(values)
