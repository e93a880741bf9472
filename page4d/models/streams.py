"""How the dynamic mask enters the attention: a signed weight a stream and step, learned from zero, or fixed."""

from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.attention import LogitsBias
from page4d.models.config import BiasRows, MaskConfig, Streams
from page4d.models.schedule import Step, merge


class Stream(StrEnum):
    """A state of the tokens: one for everything, or one for cameras and one for geometry."""

    SHARED = "shared"
    POSE = "pose"
    GEOMETRY = "geometry"


class MaskBias(nn.Module):
    """Four scalars lambda: for pose and geometry, across views and (suffix t) within a view.

    A mask M in [0, 1] of what moves adds -lambda_pose * M to the logits of its keys in the pose stream, which
    suppresses them for positive lambda, and +lambda_geo * M in the geometry stream. Camera and register tokens
    count as M = 0. The raw values are stored; what acts is clamped to the limit.
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
        """Return the signed, clamped weight of the mask in a stream of its own."""
        limit = self.config.lambda_limit
        if stream is Stream.POSE:
            return -(self.lambda_pose if step.across_views else self.lambda_pose_t).clamp(-limit, limit)
        return (self.lambda_geo if step.across_views else self.lambda_geo_t).clamp(-limit, limit)

    def forward(self, mask: Float[Tensor, "B T V P"], stream: Stream, step: Step) -> LogitsBias | None:
        """Return the bias of a step, or None where it is zero and nothing is to be learned from it."""
        padded = functional.pad(mask, (self.num_special, 0))
        key = merge(padded, step)
        if self.config.streams is Streams.SINGLE:
            pose, geometry = self.weight(Stream.POSE, step), self.weight(Stream.GEOMETRY, step)
            if _is_silent(pose) and _is_silent(geometry):
                return None
            row = torch.where(_special_rows(padded, self.num_special), pose, geometry)
            return LogitsBias(key=key, row=merge(row, step))
        weight = self.weight(stream, step)
        if _is_silent(weight):
            return None
        if self.config.bias_rows is BiasRows.SPECIAL:
            row = _special_rows(padded, self.num_special).to(key.dtype)
            return LogitsBias(key=weight * key, row=merge(row, step))
        return LogitsBias(key=weight * key)


class ReleaseBias(nn.Module):
    """Turn special tokens towards what is static with a fixed weight, in steps across views.

    A patch that moves with probability M counts 1/2 - M as a key, special tokens count 0.

    Source: the public PAGE-4D release (reference facts).
    """

    WEIGHT = 64.0

    def __init__(self, num_special: int) -> None:
        super().__init__()
        self.num_special = num_special

    def forward(self, mask: Float[Tensor, "B T V P"], stream: Stream, step: Step) -> LogitsBias | None:
        """Return the bias of a step of the one stream, or None within views."""
        assert stream is Stream.SHARED
        if not step.across_views:
            return None
        key = functional.pad(0.5 - mask, (self.num_special, 0))
        rows = _special_rows(key, self.num_special)
        return LogitsBias(key=merge(key, step), row=merge(self.WEIGHT * rows.to(key.dtype), step))


def _special_rows(padded: Float[Tensor, "B T V N"], num_special: int) -> Tensor:
    rows = torch.arange(padded.shape[-1], device=padded.device) < num_special
    return rows.expand(padded.shape)


def _is_silent(weight: Tensor) -> bool:
    return not weight.requires_grad and float(weight) == 0
