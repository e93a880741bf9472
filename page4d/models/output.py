"""What a network predicts, for views of one size and of several."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.models.conditioning import Memory
from page4d.models.inputs.matching import Matches, ViewMatches

_BEYOND = {"depth": 0.0, "depth_confidence": 1.0, "points": 0.0, "points_confidence": 1.0, "dynamic": 0.0}
"""What stands for predictions for pixels where there is no image."""


@dataclass(frozen=True, kw_only=True)
class NetworkOutput:
    """Predictions at network pixels; a part is None if the network has no head for it.

    `world_to_camera` and `intrinsics` are float64, so that rotations are orthonormal to the last digit of a file; a
    network without a head for fields of view fits intrinsics to its points. `pose_encoding` are the encodings that an
    iterative camera head predicts (see `geometry.pose_encoding`). Confidences are raw: 1 + exp, so at least 1 and
    unbounded. Points are in the world. A frame head says more of what it predicts: `local_points` in the frame of
    their camera, `confidence_logits` x of the confidence 1 + exp(x), and `camera_to_world`. `dynamic` is the
    probability that a pixel moves, 0.5 from a head that was never trained; `dynamic_logit` are the log-odds a patch,
    which act on the attention, and `motion_logit` those a pixel, of a network that refines them.
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
    rays: Float[Tensor, "B T V rows columns 3"] | None = None
    """Unit directions in the camera's frame, of a network that is trained with them."""
    matches: Matches | None = None
    memory: Memory | None = None
    """To be given as a hint with the next chunk of instants."""

    def at_instants(self, num_times: int) -> "NetworkOutput":
        """Return the predictions for images that were put into one instant at the instants where they belong."""

        def back(values: Tensor) -> Tensor:
            return torch.unflatten(values[:, 0], 1, (num_times, -1))

        parts: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                parts[name] = back(value)
        parts["pose_encoding_iterations"] = tuple(back(pose) for pose in self.pose_encoding_iterations)
        parts["matches"] = None  # their targets were those of images in one instant
        return replace(self, **parts)

    def of_view(self, view: int) -> "NetworkOutput":
        """Return the predictions for one view, V = 1, without matches and memory."""
        chosen = slice(view, view + 1)
        parts: dict[str, Any] = {
            name: value[:, :, chosen] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        parts["pose_encoding_iterations"] = tuple(pose[:, :, chosen] for pose in self.pose_encoding_iterations)
        return NetworkOutput(**parts)


@dataclass(frozen=True, kw_only=True)
class MixedOutput:
    """Predictions for views of different sizes: those of every view, V = 1, at its own size.

    Cameras, whose intrinsics are in pixels of the view's own image, are there for all views together as well.
    """

    views: tuple[NetworkOutput, ...]
    matches: tuple[ViewMatches, ...] | None = None

    @property
    def world_to_camera(self) -> Float[Tensor, "B T V 4 4"] | None:
        """World-to-camera poses of all views."""
        return self._stacked("world_to_camera")

    @property
    def intrinsics(self) -> Float[Tensor, "B T V 3 3"] | None:
        """Intrinsics of all views."""
        return self._stacked("intrinsics")

    @property
    def pose_encoding(self) -> Float[Tensor, "B T V 9"] | None:
        """Pose encodings of all views."""
        return self._stacked("pose_encoding")

    def on_canvas(self, size: tuple[int, int]) -> NetworkOutput:
        """Put what is predicted for pixels at the top left of maps of one (height, width), for all views together.

        Beyond a view nothing is known: depth is 0 and confidence the least. What belongs to patches is left out.
        """
        parts: dict[str, Any] = {name: self._stacked(name) for name in ("world_to_camera", "intrinsics")}
        for name, beyond in _BEYOND.items():
            maps = [getattr(view, name) for view in self.views]
            if maps[0] is not None:
                parts[name] = torch.cat([_at_top_left(part, size, beyond) for part in maps], dim=2)
        return NetworkOutput(**parts)

    def _stacked(self, name: str) -> Tensor | None:
        parts = [getattr(view, name) for view in self.views]
        return None if parts[0] is None else torch.cat(parts, dim=2)


def _at_top_left(
    maps: Float[Tensor, "B T V h w *C"], size: tuple[int, int], beyond: float
) -> Float[Tensor, "B T V H W *C"]:
    placed = maps.new_full((*maps.shape[:3], *size, *maps.shape[5:]), beyond)
    placed[:, :, :, : maps.shape[3], : maps.shape[4]] = maps
    return placed
