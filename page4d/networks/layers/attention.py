"""Multi-head attention with logit biases, over all tokens, a context or listed parts, and the positions of patches.

Positions are grids, learned tables, and two-dimensional rotary positions (RoPE).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from page4d.errors import ShapeError
from page4d.networks.layers.execution import in_chunks

DEFAULT_BASE = 100.0
_TABLE_OFFSET = 0.1


def grid_positions(grid: tuple[int, int], device: torch.device | str = "cpu") -> Int[Tensor, "P 2"]:
    """Return the (row, column) of every cell of a grid of (rows, columns), row by row."""
    rows, columns = (torch.arange(count, device=device) for count in grid)
    return torch.cartesian_prod(rows, columns).reshape(-1, 2)


class TableResampling(StrEnum):
    """Bicubic resampling of a position table to another grid."""

    ANTIALIASED = "antialiased"
    """With antialiasing, whose kernel differs from the plain one also for upsampling."""

    OFFSET = "offset"
    """Without antialiasing, at coordinates scaled by (side + 0.1) / learned side: the first DINOv2 release."""


def centered_positions(grid: tuple[int, int], device: torch.device | str = "cpu") -> Float[Tensor, "P 2"]:
    """Return 2 pi times (y, x) of the patch centers: from -1 at the top left, to 1 along the longer side.

    Source: Simeoni et al. (2025), DINOv3; division of both axes by the longer side as in the public VGGT-Omega code
    (reference facts).
    """
    centers = [torch.arange(count, dtype=torch.float64, device=device) + 0.5 for count in grid]
    y, x = (2 * center / max(grid) - 1 for center in centers)
    return 2 * math.pi * torch.cartesian_prod(y, x).reshape(-1, 2)


def after_special(positions: Shaped[Tensor, "P 2"], num_special: int) -> Shaped[Tensor, "N 2"]:
    """Prepend special tokens, which are at (0, 0)."""
    return torch.cat([positions.new_zeros(num_special, 2), positions])


def resample_positions(
    table: Float[Tensor, "one P C"],
    learned: tuple[int, int],
    grid: tuple[int, int],
    num_special: int = 0,
    rule: TableResampling = TableResampling.ANTIALIASED,
) -> Float[Tensor, "one P1 C"]:
    """Resample a position table from the grid `learned` to another one; the leading special entries are kept.

    In at least float32.

    Source: Dosovitskiy et al. (2021), ViT, section 3.2; the kernels of the public DINOv2 and timm code (reference
    facts).
    """
    if grid == learned:
        return table
    exact = table.to(torch.promote_types(table.dtype, torch.float32))
    maps = torch.unflatten(exact[:, num_special:], 1, learned).permute(0, 3, 1, 2)
    if rule is TableResampling.ANTIALIASED:
        resampled = functional.interpolate(maps, size=grid, mode="bicubic", align_corners=False, antialias=True)
    else:
        scales = tuple((side + _TABLE_OFFSET) / old for side, old in zip(grid, learned, strict=True))
        resampled = functional.interpolate(maps, scale_factor=scales, mode="bicubic", align_corners=False)
    return torch.cat([exact[:, :num_special], resampled.flatten(2).transpose(1, 2)], dim=1)


@dataclass(frozen=True, kw_only=True)
class RotaryTables:
    """Cosines and sines of the angles of every token, shared by all heads and blocks of a forward pass."""

    cos: Float[Tensor, "*groups N d"]
    sin: Float[Tensor, "*groups N d"]

    def repeat(self, count: int) -> "RotaryTables":
        """Return the tables of `count` concatenated images with the same positions."""
        if count == 1:
            return self
        return RotaryTables(cos=self.cos.repeat(count, 1), sin=self.sin.repeat(count, 1))

    def at(self, places: Int[Tensor, "*groups K"]) -> "RotaryTables":
        """Return the tables of the tokens at `places`; batched places give tables [batch, 1, K, d]."""
        cos, sin = self.cos[places], self.sin[places]
        return (
            RotaryTables(cos=cos, sin=sin) if places.ndim == 1 else RotaryTables(cos=cos[:, None], sin=sin[:, None])
        )

    def of_groups(self, chosen: slice) -> "RotaryTables":
        """Return the tables of a slice of the batch; unbatched tables are shared."""
        return self if self.cos.ndim == 2 else RotaryTables(cos=self.cos[chosen], sin=self.sin[chosen])

    def of_tokens(self, rows: slice) -> "RotaryTables":
        """Return the tables of a range of tokens."""
        return RotaryTables(cos=self.cos[..., rows, :], sin=self.sin[..., rows, :])

    def rotate(self, heads: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*batch N d"]:
        """Rotate queries or keys by their angles; channel i pairs with channel i + d/4 inside each half."""
        first, second = _pairs(heads)
        if heads.requires_grad:
            return heads * self.cos + torch.stack([-second, first], dim=-2).flatten(-3) * self.sin
        rotated = heads * self.cos
        own, other = _pairs(rotated)  # in place: runs on every query and key of every block
        first_sine, second_sine = _pairs(self.sin)
        own.addcmul_(second.to(rotated.dtype), first_sine, value=-1)
        other.addcmul_(first.to(rotated.dtype), second_sine)
        return rotated


def rotary_tables(
    positions: Int[Tensor, "*batch N 2"] | Float[Tensor, "*batch N 2"],
    head_dim: int,
    base: float = DEFAULT_BASE,
    dtype: torch.dtype = torch.float32,
) -> RotaryTables:
    """Compute the tables of (row, column) positions; position (0, 0) is the identity.

    Raises:
        ShapeError: if `head_dim` is not a multiple of 4.

    Source: Su et al. (2021), RoFormer, eq. 15, once per axis; base 100 and the order row, column are those of the
    public VGGT code (reference facts).
    """
    if head_dim % 4:
        raise ShapeError(f"rotary positions need a head width in multiples of 4, not {head_dim}", "change num_heads")
    quarter = head_dim // 4
    exponents = torch.arange(quarter, dtype=dtype, device=positions.device) / quarter
    angles = positions.to(dtype)[..., None] * base**-exponents  # [N, 2, d/4]
    angles = torch.stack([angles, angles], dim=-2).flatten(-3)  # [N, d]
    return RotaryTables(cos=angles.cos(), sin=angles.sin())


def _pairs(heads: Float[Tensor, "*batch N d"]) -> tuple[Float[Tensor, "*batch N 2 d4"], ...]:
    """Return the first and the second channels of the pairs, by axis (row, column) and frequency."""
    return torch.unflatten(heads, -1, (2, 2, -1)).unbind(-2)


_ALIGNMENT = 8
"""Fused GPU kernels need head widths that are multiples of this."""

Neighbours = Sequence[Sequence[int]]
"""For each of the equal parts of the tokens, the indices of the parts that it attends to."""

PairLogits = Float[Tensor, "#batch #heads M N"]
"""Additive logits per (query, key) pair; large negative values mask a pair."""


class PairBias(Protocol):
    """A bias per (query, key) pair, computed for some queries at a time."""

    def rows(self, start: int, stop: int) -> Float[Tensor, "batch M N"]:
        """Return the bias of the queries `start` to `stop` (exclusive), without gradient."""
        ...

    def of_groups(self, chosen: slice) -> "PairBias":
        """Return the bias of a slice of the batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class LogitsBias:
    """A bias `logits[i, j] += row[i] * key[j]`, shared by all heads; `row` defaults to 1 for every query.

    `query_factors` and `key_factors` add their product over the last axis; `pairs` adds a bias per pair of tokens.
    """

    key: Float[Tensor, "batch N"]
    row: Float[Tensor, "batch M"] | None = None
    query_factors: Float[Tensor, "batch heads M K"] | None = None
    key_factors: Float[Tensor, "batch heads N K"] | None = None
    pairs: PairBias | None = None

    def of_groups(self, chosen: slice) -> "LogitsBias":
        """Return the bias of a slice of the batch."""
        parts = {name: getattr(self, name) for name in ("row", "query_factors", "key_factors")}
        return LogitsBias(
            key=self.key[chosen],
            pairs=None if self.pairs is None else self.pairs.of_groups(chosen),
            **{name: None if value is None else value[chosen] for name, value in parts.items()},
        )

    @property
    def is_mask(self) -> bool:
        """Whether the bias, apart from `pairs`, is one row without gradient that all queries share."""
        return self.row is None and self.query_factors is None and not self.key.requires_grad


@dataclass(frozen=True, kw_only=True)
class Context:
    """Tokens that queries attend to in cross-attention, with their positions."""

    tokens: Float[Tensor, "batch M C"]
    rope: RotaryTables | None = None


class HeadNorm(nn.Module):
    """RMS normalization of queries or keys, with a learned gain per head and channel.

    Source: Dehghani et al. (2023), NaViT, section 2.1; Zhang & Sennrich (2019), eq. 4.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, num_heads, 1, head_dim))

    def forward(self, heads: Float[Tensor, "batch heads N d"]) -> Float[Tensor, "batch heads N d"]:
        """Normalize the last axis."""
        return functional.normalize(heads, dim=-1) * heads.shape[-1] ** 0.5 * self.gamma


class Attention(nn.Module):
    """Attention with fused projections and, with `qk_norm_eps`, layer-normalized queries and keys.

    `head_dim` defaults to the token width divided by `num_heads`. With `qk_rms`, queries and keys pass through
    `HeadNorm` and their products are the logits, without the factor 1 / sqrt(head_dim).
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
        """Attend; `max_queries` limits the number of queries processed at once without changing the result.

        With `context`, keys are its tokens only. With `neighbours`, each part of the tokens attends to its listed
        parts. `pair_logits` are added to the logits; they cannot be combined with `neighbours`.
        """
        source = Context(tokens=tokens, rope=rope) if context is None else context
        at_once = max_queries or tokens.shape[1]
        if neighbours is None and (context is not None or at_once < tokens.shape[1]):
            return self._mix_by_queries(tokens, rope, source, bias, at_once, pair_logits)
        query, key, value = self._project(tokens, slice(None))
        query, key = self._positioned(query, self.q_norm, rope), self._positioned(key, self.k_norm, rope)
        # Norms and rotary tables stay in float32 under autocast: cast back to the precision of the projections.
        query, key = query.to(value.dtype), key.to(value.dtype)
        if neighbours is None:
            heads = attend(query, key, value, bias, None, pair_logits)
        else:
            heads = attend_parts(query, key, value, neighbours, bias, max_queries)
        return self._joined(heads)

    def _mix_by_queries(
        self,
        tokens: Tensor,
        rope: RotaryTables | None,
        source: Context,
        bias: LogitsBias | None,
        at_once: int,
        pair_logits: PairLogits | None,
    ) -> Float[Tensor, "batch N C"]:
        """Hold all keys and values, but queries and their outputs of at most `at_once` tokens."""
        inner, num_keys = self.proj.in_features, source.tokens.shape[1]

        def keys_at(rows: slice) -> Tensor:
            (key,) = self._project(source.tokens[:, rows], slice(inner, 2 * inner))
            positions = None if source.rope is None else source.rope.of_tokens(rows)
            return self._positioned(key, self.k_norm, positions).to(key.dtype)

        def mixed_at(rows: slice) -> Tensor:
            (query,) = self._project(tokens[:, rows], slice(0, inner))
            positions = None if rope is None else rope.of_tokens(rows)
            query = self._positioned(query, self.q_norm, positions)
            return self._joined(keys.attend(query.to(keys.value.dtype), rows))

        keys = BiasedKeys.of(
            in_chunks(keys_at, num_keys, at_once, dim=2),
            self._project(source.tokens, slice(2 * inner, None))[0],
            bias,
            pair_logits,
        )
        return in_chunks(mixed_at, tokens.shape[1], at_once, dim=1)

    def _positioned(self, heads: Tensor, norm: nn.Module | None, rope: RotaryTables | None) -> Tensor:
        """Normalize queries or keys and apply their rotary positions."""
        if norm is not None:
            heads = norm(heads)
        if self.qk_rms and norm is self.q_norm:
            heads = heads * heads.shape[-1] ** 0.5  # attention divides by it
        return heads if rope is None else rope.rotate(heads)

    def _joined(self, heads: Float[Tensor, "batch heads N d"]) -> Float[Tensor, "batch N C"]:
        return self.proj(heads.transpose(1, 2).flatten(2))

    def _project(self, tokens: Tensor, channels: slice) -> tuple[Float[Tensor, "batch heads N d"], ...]:
        """Apply a slice of the fused projection, whose channels are queries, keys, values in this order."""
        if channels == slice(None):
            projected = self.qkv(tokens)
        else:
            bias = None if self.qkv.bias is None else self.qkv.bias[channels]
            projected = functional.linear(tokens, self.qkv.weight[channels], bias)
        parts = torch.unflatten(projected, -1, (-1, self.num_heads, self.proj.in_features // self.num_heads))
        return parts.permute(2, 0, 3, 1, 4).unbind(0)


@dataclass(frozen=True, kw_only=True)
class BiasedKeys:
    """Keys and values of scaled dot-product attention, with the logit bias folded in.

    A key bias without gradient is a broadcast additive mask. Any other bias becomes extra channels of queries and
    keys, because fused kernels have no gradient for masks. Only `bias.pairs` materializes logits, for the current
    queries.
    """

    key: Float[Tensor, "batch heads N wide"]
    value: Float[Tensor, "batch heads N wide"]
    head_dim: int
    bias: LogitsBias | None
    pair_logits: PairLogits | None

    @classmethod
    def of(
        cls,
        key: Float[Tensor, "batch heads N d"],
        value: Float[Tensor, "batch heads N d"],
        bias: LogitsBias | None = None,
        pair_logits: PairLogits | None = None,
    ) -> "BiasedKeys":
        """Prepare keys and values once for all queries; `pair_logits` may be learned."""
        head_dim = key.shape[-1]
        if bias is not None and not bias.is_mask:
            key, value = fold_keys(key, value, bias)
        return cls(key=key, value=value, head_dim=head_dim, bias=bias, pair_logits=pair_logits)

    def attend(self, query: Float[Tensor, "batch heads M d"], rows: slice) -> Float[Tensor, "batch heads M d"]:
        """Return the attention output of the queries at `rows`."""
        masks = []
        if self.bias is not None and self.bias.is_mask:
            masks.append(self.bias.key[:, None, None, :])
        elif self.bias is not None:
            query = fold_queries(query, self.bias, rows, self.key.shape[-1])
        if self.bias is not None and self.bias.pairs is not None:
            masks.append(self.bias.pairs.rows(rows.start, rows.stop)[:, None])
        if self.pair_logits is not None:
            masks.append(self.pair_logits[:, :, rows])
        mask = sum(masks[1:], start=masks[0]).to(query.dtype) if masks else None
        scale = self.head_dim**-0.5
        heads = functional.scaled_dot_product_attention(query, self.key, self.value, attn_mask=mask, scale=scale)
        return heads[..., : self.head_dim]


def attend(
    query: Float[Tensor, "batch heads M d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    bias: LogitsBias | None = None,
    max_queries: int | None = None,
    pair_logits: PairLogits | None = None,
) -> Float[Tensor, "batch heads M d"]:
    """Compute scaled dot-product attention with a bias, at most `max_queries` queries at once."""
    keys = BiasedKeys.of(key, value, bias, pair_logits)
    return in_chunks(lambda rows: keys.attend(query[:, :, rows], rows), query.shape[2], max_queries, dim=2)


def attend_parts(
    query: Float[Tensor, "batch heads N d"],
    key: Float[Tensor, "batch heads N d"],
    value: Float[Tensor, "batch heads N d"],
    neighbours: Neighbours,
    bias: LogitsBias | None = None,
    max_queries: int | None = None,
) -> Float[Tensor, "batch heads N d"]:
    """Let each of the equal parts of the tokens attend to its listed parts only.

    The bias must not have `pairs`.
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

    Widths are padded with zeros; the caller keeps the first d channels of the result.
    """
    key, value = fold_keys(key, value, bias)
    return fold_queries(query, bias, slice(0, query.shape[2]), key.shape[-1]), key, value


def fold_keys(
    key: Float[Tensor, "batch heads N d"], value: Float[Tensor, "batch heads N d"], bias: LogitsBias
) -> tuple[Float[Tensor, "batch heads N wide"], Float[Tensor, "batch heads N wide"]]:
    """Append the key factors of the bias to keys, and as many zeros to values.

    The key factor is split into a rounded part and its remainder, so that half precision keeps its value.
    """
    scaled = bias.key * key.shape[-1] ** 0.5
    rounded = scaled.to(key.dtype)
    remainder = (scaled - rounded).to(key.dtype)
    parts = [torch.stack([rounded, remainder], dim=-1)[:, None]]
    if bias.key_factors is not None:
        parts.append((bias.key_factors * key.shape[-1] ** 0.5).to(key.dtype))
    added = sum(part.shape[-1] for part in parts)
    wide = key.shape[-1] + added + -(key.shape[-1] + added) % _ALIGNMENT
    return _widened(key, parts, wide), functional.pad(value, (0, wide - value.shape[-1]))


def fold_queries(
    query: Float[Tensor, "batch heads M d"], bias: LogitsBias, rows: slice, wide: int
) -> Float[Tensor, "batch heads M wide"]:
    """Append the query factors of the bias to the queries at `rows`."""
    row = query.new_ones(query.shape[0], query.shape[2]) if bias.row is None else bias.row[:, rows].to(query.dtype)
    parts = [torch.stack([row, row], dim=-1)[:, None]]
    if bias.query_factors is not None:
        parts.append(bias.query_factors[:, :, rows].to(query.dtype))
    return _widened(query, parts, wide)


def _widened(heads: Tensor, parts: Sequence[Tensor], wide: int) -> Tensor:
    """Append channels, broadcast over the heads, then zeros up to a width."""
    together = torch.cat([heads, *(part.expand(*heads.shape[:3], -1) for part in parts)], dim=-1)
    return functional.pad(together, (0, wide - together.shape[-1]))
