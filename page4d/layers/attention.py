"""Multi-head attention with rotary positions and a bias on the logits, to all tokens, others or some parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.errors import ShapeError
from page4d.layers.rope import RotaryTables

_ALIGNMENT = 8
"""Fused GPU kernels want head widths in multiples of this."""

Neighbours = Sequence[Sequence[int]]
"""For every equal part of the tokens, the parts that it attends to."""


PairLogits = Float[Tensor, "#batch #heads M N"]
"""Numbers that are added to the logits of every pair of tokens; very negative ones forbid a pair."""


class PairBias(Protocol):
    """A bias of every pair of tokens, worked out for some queries at a time."""

    def rows(self, start: int, stop: int) -> Float[Tensor, "batch M N"]:
        """Return the bias of the queries from `start` to before `stop`; nothing is learned through it."""
        ...

    def of_groups(self, chosen: slice) -> "PairBias":
        """Return the bias of some entries of the batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class LogitsBias:
    """A bias `logits[i, j] += row[i] * key[j]`, the same for all heads; without `row` it is 1 for every query.

    `query_factors` and `key_factors` add their product over the last axis; `pairs` adds a number a pair of tokens.
    """

    key: Float[Tensor, "batch N"]
    row: Float[Tensor, "batch M"] | None = None
    query_factors: Float[Tensor, "batch heads M K"] | None = None
    key_factors: Float[Tensor, "batch heads N K"] | None = None
    pairs: PairBias | None = None

    def of_groups(self, chosen: slice) -> "LogitsBias":
        """Return the bias of some entries of the batch."""
        parts = {name: getattr(self, name) for name in ("row", "query_factors", "key_factors")}
        return LogitsBias(
            key=self.key[chosen],
            pairs=None if self.pairs is None else self.pairs.of_groups(chosen),
            **{name: None if value is None else value[chosen] for name, value in parts.items()},
        )

    @property
    def is_mask(self) -> bool:
        """Whether one row of numbers without gradient, the same for all queries, says everything but the pairs."""
        return self.row is None and self.query_factors is None and not self.key.requires_grad


@dataclass(frozen=True, kw_only=True)
class Context:
    """Other tokens that queries attend to, with their positions."""

    tokens: Float[Tensor, "batch M C"]
    rope: RotaryTables | None = None


class HeadNorm(nn.Module):
    """Divide queries or keys by their root mean square, with a learned gain a head and channel.

    Source: Dehghani et al. (2023), NaViT, section 2.1; Zhang & Sennrich (2019), eq. 4.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, num_heads, 1, head_dim))

    def forward(self, heads: Float[Tensor, "batch heads N d"]) -> Float[Tensor, "batch heads N d"]:
        """Normalise the last axis."""
        normed: Tensor = functional.normalize(heads, dim=-1) * heads.shape[-1] ** 0.5 * self.gamma
        return normed


class Attention(nn.Module):
    """Attention with fused projections and, if `qk_norm_eps` is given, normalised queries and keys.

    The heads share the width of the tokens unless `head_dim` is theirs. With `qk_rms`, queries and keys have a
    `HeadNorm` and their products are the logits, without a further factor.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        qk_norm_eps: float | None = None,
        qk_rms: bool = False,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % num_heads:
            raise ShapeError(f"width {dim} does not divide into {num_heads} heads", "change num_heads")
        self.num_heads = num_heads
        self.qk_rms = qk_rms
        head_dim = head_dim or dim // num_heads
        inner = num_heads * head_dim
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        if qk_rms:
            self.q_norm, self.k_norm = HeadNorm(num_heads, head_dim), HeadNorm(num_heads, head_dim)
        elif qk_norm_eps is not None:
            self.q_norm, self.k_norm = (nn.LayerNorm(head_dim, eps=qk_norm_eps) for _ in range(2))
        self.proj = nn.Linear(inner, dim, bias=out_bias)

    def forward(
        self,
        tokens: Float[Tensor, "batch N C"],
        rope: RotaryTables | None = None,
        bias: LogitsBias | None = None,
        max_queries: int | None = None,
        *,
        context: Context | None = None,
        neighbours: Neighbours | None = None,
        pair_logits: PairLogits | None = None,
    ) -> Float[Tensor, "batch N C"]:
        """Mix the tokens; `max_queries` bounds how many queries are processed at once, with the same result.

        With `context` the keys are its tokens only. With `neighbours` equal parts of the tokens attend to some.
        `pair_logits` are added to the logits of all tokens; they are not for neighbours.
        """
        if context is None:
            query, key, value = self._project(tokens, slice(None))
            key_rope = rope
        else:
            inner = self.proj.in_features
            (query,) = self._project(tokens, slice(0, inner))
            key, value = self._project(context.tokens, slice(inner, None))
            key_rope = context.rope
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.qk_rms:
            query = query * query.shape[-1] ** 0.5  # `attend` divides by it
        query = query if rope is None else rope.rotate(query)
        key = key if key_rope is None else key_rope.rotate(key)
        # Norms and rotary tables are float32 islands under autocast: back to the precision of the projections.
        query, key = query.to(value.dtype), key.to(value.dtype)
        if neighbours is None:
            heads = attend(query, key, value, bias, max_queries, pair_logits)
        else:
            heads = attend_parts(query, key, value, neighbours, bias, max_queries)
        mixed: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return mixed

    def _project(self, tokens: Tensor, channels: slice) -> tuple[Float[Tensor, "batch heads N d"], ...]:
        """Apply a part of the fused projection: queries, keys and values follow each other."""
        if channels == slice(None):
            projected = self.qkv(tokens)
        else:
            bias = None if self.qkv.bias is None else self.qkv.bias[channels]
            projected = functional.linear(tokens, self.qkv.weight[channels], bias)
        parts = torch.unflatten(projected, -1, (-1, self.num_heads, self.proj.in_features // self.num_heads))
        return parts.permute(2, 0, 3, 1, 4).unbind(0)


def attend(
    query: Float[Tensor, "batch heads M d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    bias: LogitsBias | None = None,
    max_queries: int | None = None,
    pair_logits: PairLogits | None = None,
) -> Float[Tensor, "batch heads M d"]:
    """Compute scaled dot-product attention under a bias; only `bias.pairs` builds logits, of `max_queries` at once.

    A key bias without gradient is a broadcast additive mask. Any other bias becomes extra channels of queries and
    keys: fused kernels have no gradient for masks. `pair_logits` are logits of few tokens, that may be learned.
    """
    head_dim, num_queries = query.shape[-1], query.shape[2]
    mask = None
    if bias is not None and bias.is_mask:
        mask = bias.key[:, None, None, :].to(query.dtype)
    elif bias is not None:
        query, key, value = fold_bias(query, key, value, bias)
    parts = []
    for start in range(0, num_queries, max_queries or num_queries):
        stop = min(start + (max_queries or num_queries), num_queries)
        part_mask = mask
        if bias is not None and bias.pairs is not None:
            pairs = bias.pairs.rows(start, stop)[:, None].to(query.dtype)
            part_mask = pairs if mask is None else pairs + mask
        if pair_logits is not None:
            added = pair_logits[:, :, start:stop].to(query.dtype)
            part_mask = added if part_mask is None else added + part_mask
        parts.append(
            functional.scaled_dot_product_attention(
                query[:, :, start:stop], key, value, attn_mask=part_mask, scale=head_dim**-0.5
            )
        )
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2))[..., :head_dim]


def attend_parts(
    query: Float[Tensor, "batch heads N d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    neighbours: Neighbours,
    bias: LogitsBias | None = None,
    max_queries: int | None = None,
) -> Float[Tensor, "batch heads N d"]:
    """Let every one of the equal parts of the tokens attend to the parts named, and to no others.

    The bias may not be of pairs of tokens.
    """
    if bias is not None and not bias.is_mask:
        head_dim = query.shape[-1]
        query, key, value = fold_bias(query, key, value, bias)
        query = query * (query.shape[-1] / head_dim) ** 0.5  # `attend` scales by the new width
        return attend_parts(query, key, value, neighbours, None, max_queries)[..., :head_dim]
    shape = (len(neighbours), -1)
    queries, keys, values = (torch.unflatten(tensor, 2, shape) for tensor in (query, key, value))
    biases = None if bias is None else torch.unflatten(bias.key, 1, shape)
    parts = []
    for part, others in enumerate(neighbours):
        chosen = list(others)
        part_bias = None if biases is None else LogitsBias(key=biases[:, chosen].flatten(1))
        gathered = (keys[:, :, chosen].flatten(2, 3), values[:, :, chosen].flatten(2, 3))
        parts.append(attend(queries[:, :, part], *gathered, part_bias, max_queries))
    return torch.cat(parts, dim=2)


def fold_bias(
    query: Float[Tensor, "batch heads M d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    bias: LogitsBias,
) -> tuple[Tensor, Tensor, Tensor]:
    """Append channels to queries and keys whose product, scaled by 1/sqrt(d), is the bias.

    The key factor is split into a rounded part and its remainder, so that half precision does not coarsen it. Widths
    are padded with zeros; the caller keeps the first d channels of the result.
    """
    head_dim = query.shape[-1]
    scaled = bias.key * head_dim**0.5
    rounded = scaled.to(query.dtype)
    remainder = (scaled - rounded).to(query.dtype)
    row = query.new_ones(query.shape[0], query.shape[2]) if bias.row is None else bias.row.to(query.dtype)
    query_parts = [torch.stack([row, row], dim=-1)[:, None]]
    key_parts = [torch.stack([rounded, remainder], dim=-1)[:, None]]
    if bias.query_factors is not None and bias.key_factors is not None:
        query_parts.append(bias.query_factors.to(query.dtype))
        key_parts.append((bias.key_factors * head_dim**0.5).to(query.dtype))
    added = sum(part.shape[-1] for part in query_parts)
    padding = -(head_dim + added) % _ALIGNMENT

    def extended(tensor: Tensor, channels: Sequence[Tensor]) -> Tensor:
        columns = [part.expand(*tensor.shape[:3], -1) for part in channels]
        return functional.pad(torch.cat([tensor, *columns], dim=-1), (0, padding))

    return extended(query, query_parts), extended(key, key_parts), functional.pad(value, (0, added + padding))
