"""Attention biases from the dynamic mask: signed weights per stream and step, learned or fixed."""

from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.attention import LogitsBias
from page4d.models.config import BiasRows, MaskConfig, Streams
from page4d.models.schedule import Step, merge


class Stream(StrEnum):
    """Token states: one for all outputs, or one for cameras and one for geometry."""

    SHARED = "shared"
    POSE = "pose"
    GEOMETRY = "geometry"


class MaskBias(nn.Module):
    """Four learned scalars lambda: for pose and geometry, across views and (suffix _t) within a view.

    The motion mask M in [0, 1] adds -lambda_pose * M to the logits of keys in the pose stream, which suppresses
    moving patches for positive lambda, and +lambda_geo * M in the geometry stream. For special tokens M = 0.
    Parameters are stored unclamped and clamped to the limit when used.
    """

    def __init__(self, config: MaskConfig, num_special: int) -> None:
        super().__init__()
        self.config = config
        self.num_special = num_special
        self.lambda_pose = nn.Parameter(torch.zeros(()))
        self.lambda_geo = nn.Parameter(torch.zeros(()))
        self.lambda_pose_t = nn.Parameter(torch.zeros(()))
        self.lambda_geo_t = nn.Parameter(torch.zeros(()))

    def weight(self, stream: Stream, step: Step) -> Tensor:
        """Return the signed, clamped weight of the mask in the pose or geometry stream."""
        limit = self.config.lambda_limit
        if stream is Stream.POSE:
            return -(self.lambda_pose if step.across_views else self.lambda_pose_t).clamp(-limit, limit)
        return (self.lambda_geo if step.across_views else self.lambda_geo_t).clamp(-limit, limit)

    def forward(self, mask: Float[Tensor, "B T V P"], stream: Stream, step: Step) -> LogitsBias | None:
        """Return the bias of a step, or None if it is zero and has no gradient."""
        padded = functional.pad(mask, (self.num_special, 0))
        key = merge(padded, step)
        if self.config.streams is Streams.SINGLE:
            pose, geometry = self.weight(Stream.POSE, step), self.weight(Stream.GEOMETRY, step)
            if _is_zero(pose) and _is_zero(geometry):
                return None
            row = torch.where(_special_rows(padded, self.num_special), pose, geometry)
            return LogitsBias(key=key, row=merge(row, step))
        weight = self.weight(stream, step)
        if _is_zero(weight):
            return None
        if self.config.bias_rows is BiasRows.SPECIAL:
            row = _special_rows(padded, self.num_special).to(key.dtype)
            return LogitsBias(key=weight * key, row=merge(row, step))
        return LogitsBias(key=weight * key)


class ReleaseBias(nn.Module):
    """Bias the attention of special tokens towards static patches by a fixed weight, in steps across views.

    The key bias of a patch that moves with probability M is proportional to 1/2 - M, that of special tokens is 0.

    Source: the public PAGE-4D release (reference facts).
    """

    WEIGHT = 64.0

    def __init__(self, num_special: int) -> None:
        super().__init__()
        self.num_special = num_special

    def forward(self, mask: Float[Tensor, "B T V P"], stream: Stream, step: Step) -> LogitsBias | None:
        """Return the bias of a step, or None for steps within views."""
        assert stream is Stream.SHARED
        if not step.across_views:
            return None
        key = functional.pad(0.5 - mask, (self.num_special, 0))
        rows = _special_rows(key, self.num_special)
        return LogitsBias(key=merge(key, step), row=merge(self.WEIGHT * rows.to(key.dtype), step))


def _special_rows(padded: Float[Tensor, "B T V N"], num_special: int) -> Tensor:
    rows = torch.arange(padded.shape[-1], device=padded.device) < num_special
    return rows.expand(padded.shape)


def _is_zero(weight: Tensor) -> bool:
    return not weight.requires_grad and float(weight) == 0
