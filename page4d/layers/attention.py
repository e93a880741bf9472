"""Multi-head self-attention with rotary positions and one rank-one bias on the logits."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.errors import ShapeError
from page4d.layers.rope import RotaryTables

_ALIGNMENT = 8
"""Fused GPU kernels want head widths in multiples of this."""


@dataclass(frozen=True, kw_only=True)
class LogitsBias:
    """A bias `logits[i, j] += row[i] * key[j]`, the same for all heads; without `row` it is 1 for every query."""

    key: Float[Tensor, "batch N"]
    row: Float[Tensor, "batch N"] | None = None

    def of_groups(self, chosen: slice) -> "LogitsBias":
        """Return the bias of some entries of the batch."""
        return LogitsBias(key=self.key[chosen], row=None if self.row is None else self.row[chosen])


class Attention(nn.Module):
    """Self-attention with fused projections and, if `qk_norm_eps` is given, normalised queries and keys."""

    def __init__(self, dim: int, num_heads: int, *, qk_norm_eps: float | None = None) -> None:
        super().__init__()
        if dim % num_heads:
            raise ShapeError(f"width {dim} does not divide into {num_heads} heads", "change num_heads")
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = None if qk_norm_eps is None else nn.LayerNorm(head_dim, eps=qk_norm_eps)
        self.k_norm = None if qk_norm_eps is None else nn.LayerNorm(head_dim, eps=qk_norm_eps)
        self.proj = nn.Linear(dim, dim)

    def forward(
        self,
        tokens: Float[Tensor, "batch N C"],
        rope: RotaryTables | None = None,
        bias: LogitsBias | None = None,
        max_queries: int | None = None,
    ) -> Float[Tensor, "batch N C"]:
        """Mix the tokens; `max_queries` bounds how many queries are processed at once, with the same result."""
        qkv = torch.unflatten(self.qkv(tokens), -1, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, N, d]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if rope is not None:
            query, key = rope.rotate(query), rope.rotate(key)
        # Norms and rotary tables are float32 islands under autocast: back to the precision of the projections.
        query, key = query.to(value.dtype), key.to(value.dtype)
        mixed: Tensor = self.proj(attend(query, key, value, bias, max_queries).transpose(1, 2).flatten(2))
        return mixed


def attend(
    query: Float[Tensor, "batch heads M d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    bias: LogitsBias | None = None,
    max_queries: int | None = None,
) -> Float[Tensor, "batch heads M d"]:
    """Compute scaled dot-product attention under a bias without ever building a matrix of logits.

    A key bias without gradient is a broadcast additive mask. Any other bias becomes extra channels of queries and
    keys: fused kernels have no gradient for masks.
    """
    head_dim = query.shape[-1]
    mask = None
    if bias is not None and bias.row is None and not bias.key.requires_grad:
        mask = bias.key[:, None, None, :].to(query.dtype)
    elif bias is not None:
        query, key, value = fold_bias(query, key, value, bias)
    parts = [
        functional.scaled_dot_product_attention(part, key, value, attn_mask=mask, scale=head_dim**-0.5)
        for part in (torch.split(query, max_queries, dim=2) if max_queries else (query,))
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2))[..., :head_dim]


def fold_bias(
    query: Float[Tensor, "batch heads N d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    bias: LogitsBias,
) -> tuple[Tensor, Tensor, Tensor]:
    """Append channels to queries and keys whose product, scaled by 1/sqrt(d), is the bias.

    The key factor is split into a rounded part and its remainder, so that half precision does not coarsen it. Widths
    are padded with zeros; the caller keeps the first d channels of the result.
    """
    batch, heads, num_tokens, head_dim = query.shape
    scaled = bias.key * head_dim**0.5
    rounded = scaled.to(query.dtype)
    remainder = (scaled - rounded).to(query.dtype)
    row = torch.ones_like(rounded) if bias.row is None else bias.row.to(query.dtype)
    padding = -(head_dim + 2) % _ALIGNMENT

    def extended(tensor: Tensor, *channels: Tensor) -> Tensor:
        columns = torch.stack(channels, dim=-1)[:, None].expand(batch, heads, num_tokens, 2)
        return functional.pad(torch.cat([tensor, columns], dim=-1), (0, padding))

    return extended(query, row, row), extended(key, rounded, remainder), functional.pad(value, (0, 2 + padding))
