"""Relative time encodings of attention across time (ALiBi, RoPE), with gates that start at zero."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.layers.attention import LogitsBias
from page4d.layers.positions import RotaryTables, rotary_tables
from page4d.models.config import NetworkConfig, TimeEncoding

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
        if self.encoding is not TimeEncoding.ALIBI or (not gate.requires_grad and float(gate) == 0):
            return bias
        heads = torch.arange(1, self.num_heads + 1, dtype=times.dtype, device=times.device)
        query, key = time_factors(times, gate.to(times.dtype) * 2 ** (-_MAX_EXPONENT * heads / self.num_heads))
        query, key = _of_tokens(query, images), _of_tokens(key, images)
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
        if self.encoding is not TimeEncoding.ROPE or (not gate.requires_grad and float(gate) == 0):
            return None
        shifted = positions.to(times.dtype) + (gate.to(times.dtype) * times)[..., None, None]  # [B, T, N, 2]
        tables = rotary_tables(shifted.flatten(1, 2), head_dim, self.rope_base, times.dtype)
        views = images[0]
        cos, sin = (table[:, None].repeat_interleave(views, dim=0) for table in (tables.cos, tables.sin))
        return RotaryTables(cos=cos, sin=sin)


def _of_tokens(factors: Float[Tensor, "B heads T K"], images: tuple[int, int]) -> Float[Tensor, "G heads N K"]:
    """Repeat the factors of an instant for all of its tokens, and for every view."""
    views, tokens = images
    return factors.repeat_interleave(tokens, dim=2).repeat_interleave(views, dim=0)
