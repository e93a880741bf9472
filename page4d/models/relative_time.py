"""How far apart two instants are, told to the attention across time; learned from nothing."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.layers.attention import LogitsBias
from page4d.layers.rope import RotaryTables, rotary_tables
from page4d.models.config import NetworkConfig, TimeEncoding

_SLOWEST = 8.0
"""The last head's slope is 2 to the power of minus this."""


def time_factors(
    times: Float[Tensor, "B T"], slopes: Float[Tensor, " heads"]
) -> tuple[Float[Tensor, "B one T K"], Float[Tensor, "B heads T K"]]:
    """Return factors of queries and keys whose product is -slope * |difference of times|, up to a query's constant.

    Times may lie anywhere, in any order: |a - b| = a + b - 2 min(a, b), and the smaller of two is a sum of the gaps
    that both are beyond.
    """
    ordered = times.sort(dim=-1).values
    gaps = ordered.diff(dim=-1)  # [B, T - 1]
    beyond = (times[..., :, None] >= ordered[..., None, 1:]).to(times.dtype)  # [B, T, T - 1]
    middle = times - times.mean(dim=-1, keepdim=True)
    query = torch.cat([beyond, torch.ones_like(middle)[..., None]], dim=-1)
    key = torch.cat([2 * gaps[..., None, :] * beyond, -middle[..., None]], dim=-1)
    return query[:, None], slopes[:, None, None] * key[:, None]


class RelativeTime(nn.Module):
    """One gate a layer, zero at first: how strongly the distance in time weighs.

    ALiBi subtracts from the logits of head h of H the gate times 2^(-8h/H) times the distance. RoPE turns queries
    and keys further, as if every token moved by the gate times its time along both axes of the image.

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
        """Add ALiBi to the bias of a layer; `images` are the number of views and of tokens an image."""
        gate = self.gates[layer].clamp(min=0)
        if self.encoding is not TimeEncoding.ALIBI or (not gate.requires_grad and float(gate) == 0):
            return bias
        heads = torch.arange(1, self.num_heads + 1, dtype=times.dtype, device=times.device)
        query, key = time_factors(times, gate.to(times.dtype) * 2 ** (-_SLOWEST * heads / self.num_heads))
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
        """Return the tables of tokens that stand at a place and a time, or None where time turns nothing."""
        gate = self.gates[layer]
        if self.encoding is not TimeEncoding.ROPE or (not gate.requires_grad and float(gate) == 0):
            return None
        moved = positions.to(times.dtype) + (gate.to(times.dtype) * times)[..., None, None]  # [B, T, N, 2]
        tables = rotary_tables(moved.flatten(1, 2), head_dim, self.rope_base, times.dtype)
        views = images[0]
        cos, sin = (table[:, None].repeat_interleave(views, dim=0) for table in (tables.cos, tables.sin))
        return RotaryTables(cos=cos, sin=sin)


def _of_tokens(factors: Float[Tensor, "B heads T K"], images: tuple[int, int]) -> Float[Tensor, "G heads N K"]:
    """Give all tokens of an instant its factors, for every view."""
    views, tokens = images
    return factors.repeat_interleave(tokens, dim=2).repeat_interleave(views, dim=0)
