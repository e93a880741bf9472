"""Special tokens (camera and registers), token positions, attention biases, and the choice of the reference image.

Biases from the dynamic mask are signed weights per stream and step. Relative time encodings (ALiBi, RoPE) have gates
that start at zero. The reference image, whose camera defines the world, is found by class tokens of the encoder.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from page4d.choices import TimeEncoding
from page4d.networks.conditioning import SizeGroups
from page4d.networks.config import NetworkConfig, Step, merge
from page4d.networks.config_parts import BiasRows, MaskConfig, PatchPositions, ReferenceView, Streams
from page4d.networks.encoders.base import PatchTokens
from page4d.networks.layers.attention import (
    LogitsBias,
    RotaryTables,
    after_special,
    centered_positions,
    rotary_tables,
)
from page4d.networks.layers.block import INIT_STD
from page4d.networks.layers.execution import full_precision


class SpecialTokens(nn.Module):
    """Learned tokens that precede the patches of every image: an optional camera token and registers.

    With two slots, the first is used for the reference image, which defines the world, the second for all others.
    With one slot all images share it.
    """

    def __init__(self, dim: int, num_registers: int, slots: int, *, camera: bool = True) -> None:
        super().__init__()
        self.camera_token = nn.Parameter(torch.empty(1, slots, 1, dim)) if camera else None
        self.register_token = nn.Parameter(torch.empty(1, slots, num_registers, dim)) if num_registers else None
        for token in self.parameters():
            nn.init.trunc_normal_(token, std=INIT_STD)

    @property
    def count(self) -> int:
        """Number of special tokens per image."""
        return sum(token.shape[2] for token in (self.camera_token, self.register_token) if token is not None)

    def forward(
        self,
        batch: int,
        num_times: int,
        num_views: int,
        reference: Int[Tensor, " B"] | None = None,
        camera_tokens: Float[Tensor, "B T V C"] | None = None,
    ) -> Float[Tensor, "B T V S C"]:
        """Return the special tokens of every image, camera token first.

        `reference` is the index of the reference image, in the order of instants, then views; the first image by
        default. `camera_tokens`, of known cameras, replace the learned camera token.
        """
        kinds: list[Tensor] = [token for token in (self.camera_token, self.register_token) if token is not None]
        tokens = torch.cat(kinds, dim=2)[0]
        if reference is None:
            reference = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
        slot = torch.full((batch, num_times * num_views), tokens.shape[0] - 1, device=tokens.device)
        slot.scatter_(1, reference[:, None], 0)
        chosen = torch.unflatten(tokens[slot], 1, (num_times, num_views))
        if camera_tokens is None or self.camera_token is None:
            return chosen
        return torch.cat([camera_tokens[..., None, :].to(chosen.dtype), chosen[..., 1:, :]], dim=-2)


def token_positions(
    grid: tuple[int, int], num_special: int, device: torch.device | str = "cpu"
) -> Int[Tensor, "N 2"]:
    """Return (row, column) of every token of an image: special tokens at (0, 0), patches counted from 1."""
    rows = torch.arange(1, grid[0] + 1, device=device)
    columns = torch.arange(1, grid[1] + 1, device=device)
    patches = torch.cartesian_prod(rows, columns).reshape(-1, 2)
    return after_special(patches, num_special)


def patch_rotary_tables(
    rule: PatchPositions,
    grid: tuple[int, int],
    num_special: int,
    head_dim: int,
    base: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> RotaryTables | None:
    """Return the rotary tables of all tokens of an image under a rule of positions."""
    if rule is PatchPositions.NONE:
        return None
    positions: Tensor = token_positions(grid, num_special, device)
    if rule is PatchPositions.SHARED:
        positions = positions.clamp(max=1)
    elif rule is PatchPositions.CENTERED:
        positions = after_special(centered_positions(grid, device), num_special)
    return rotary_tables(positions, head_dim, base, dtype)


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


_MAX_EXPONENT = 8.0
"""The slope of the last head is 2^-8."""


def time_factors(
    times: Float[Tensor, "B T"], slopes: Float[Tensor, " heads"]
) -> tuple[Float[Tensor, "B one T K"], Float[Tensor, "B heads T K"]]:
    """Return query and key factors whose product is -slope * |time difference|, up to a constant per query.

    Times are arbitrary and unordered: |a - b| = a + b - 2 min(a, b), and the minimum is the sum of the gaps between
    sorted times that both exceed.
    """
    ordered = times.sort(dim=-1).values
    gaps = ordered.diff(dim=-1)  # [B, T - 1]
    exceeds = (times[..., :, None] >= ordered[..., None, 1:]).to(times.dtype)  # [B, T, T - 1]
    centered = times - times.mean(dim=-1, keepdim=True)
    query = torch.cat([exceeds, torch.ones_like(centered)[..., None]], dim=-1)
    key = torch.cat([2 * gaps[..., None, :] * exceeds, -centered[..., None]], dim=-1)
    return query[:, None], slopes[:, None, None] * key[:, None]


class RelativeTime(nn.Module):
    """One learned gate per layer, initially zero, that scales the effect of time.

    ALiBi subtracts gate * 2^(-8h/H) * |time difference| from the logits of head h of H. RoPE shifts the position of
    every token by gate * time along both image axes.

    Source: Press et al. (2022), ALiBi, section 3; Su et al. (2021), RoFormer.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.encoding = config.time_encoding
        self.num_heads = config.num_heads
        self.rope_base = config.rope_base
        self.gates = nn.Parameter(torch.zeros(config.depth))

    def bias(
        self, layer: int, times: Float[Tensor, "B T"], images: tuple[int, int], bias: LogitsBias | None
    ) -> LogitsBias | None:
        """Add ALiBi to the bias of a layer; `images` are the number of views and of tokens per image."""
        gate = self.gates[layer].clamp(min=0)
        if self.encoding is not TimeEncoding.ALIBI or _is_zero(gate):
            return bias
        heads = torch.arange(1, self.num_heads + 1, dtype=times.dtype, device=times.device)
        factors = time_factors(times, gate.to(times.dtype) * 2 ** (-_MAX_EXPONENT * heads / self.num_heads))
        views, tokens = images  # an instant's factors are those of all of its tokens, and of every view
        query, key = (part.repeat_interleave(tokens, dim=2).repeat_interleave(views, dim=0) for part in factors)
        if bias is None:
            bias = LogitsBias(key=key.new_zeros(key.shape[0], key.shape[2]))
        return replace(bias, query_factors=query, key_factors=key)

    def rope(
        self,
        layer: int,
        times: Float[Tensor, "B T"],
        images: tuple[int, int],
        positions: Int[Tensor, "N 2"],
        head_dim: int,
    ) -> RotaryTables | None:
        """Return the rotary tables of token positions shifted by time, or None if the encoding has no effect."""
        gate = self.gates[layer]
        if self.encoding is not TimeEncoding.ROPE or _is_zero(gate):
            return None
        shifted = positions.to(times.dtype) + (gate.to(times.dtype) * times)[..., None, None]  # [B, T, N, 2]
        tables = rotary_tables(shifted.flatten(1, 2), head_dim, self.rope_base, times.dtype)
        views = images[0]
        cos, sin = (table[:, None].repeat_interleave(views, dim=0) for table in (tables.cos, tables.sin))
        return RotaryTables(cos=cos, sin=sin)


_MIN_IMAGES = 3
_MIN_RANGE = 1e-8


def select_reference(class_tokens: Float[Tensor, "B S C"]) -> Int[Tensor, " B"]:
    """Return the index of the reference image of every scene; the first of fewer than 3 images, or of equal scores.

    Otherwise it does not depend on the order of the images.

    Source: the public Depth Anything 3 code (reference facts).
    """
    if class_tokens.shape[1] < _MIN_IMAGES:
        return torch.zeros(len(class_tokens), dtype=torch.int64, device=class_tokens.device)
    return saddle_scores(class_tokens.to(torch.promote_types(class_tokens.dtype, torch.float32))).argmin(dim=1)


def reference_of_images(
    rule: ReferenceView, encoded: Sequence[PatchTokens], sizes: SizeGroups, batch: int
) -> Int[Tensor, " B"] | None:
    """Select the image that gets the first slot of the special tokens; None for the first image.

    `encoded` are the images of every group of views of one size.
    """
    if rule is ReferenceView.FIRST:
        return None
    tokens = [own.class_tokens for own in encoded if own.class_tokens is not None]
    shapes = [(batch, -1, len(views)) for views in sizes.members]
    together = sizes.stacked([torch.unflatten(own, 0, shape) for own, shape in zip(tokens, shapes, strict=True)])
    return select_reference(together.flatten(1, 2))


def saddle_scores(class_tokens: Float[Tensor, "B S C"]) -> Float[Tensor, "B S"]:
    """Return the distance of every image from the middle of the ranges of three measures, summed.

    The measures of a class token are its mean cosine similarity to the others, its norm, and the variance of its
    channels at unit norm; each is scaled to the range 0 to 1 over the images of a scene.
    """
    unit = functional.normalize(class_tokens, dim=2)
    with full_precision(unit.device):  # near ties would be decided by rounding
        similarities = unit @ unit.transpose(1, 2)
    measures = torch.stack(
        [
            (similarities.sum(dim=2) - 1) / (similarities.shape[2] - 1),
            class_tokens.norm(dim=2),
            unit.var(dim=2),
        ]
    )
    least, most = measures.amin(dim=2, keepdim=True), measures.amax(dim=2, keepdim=True)
    scaled = (measures - least) / (most - least + _MIN_RANGE)
    return (scaled - 0.5).abs().sum(dim=0)
