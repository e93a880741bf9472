"""Metric head: one scale per sequence, from a learned token that attends to the tokens of all images."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.layers.attention import attend
from page4d.layers.block import INIT_STD, FeedForward, initialise_linears
from page4d.layers.execution import in_chunks
from page4d.layers.positions import RotaryTables, rotary_tables
from page4d.models.config import MetricHeadConfig
from page4d.models.size_groups import Grid, join
from page4d.models.tokens import token_positions


class CrossAttention(nn.Module):
    """Attention of queries at position (0, 0) to a context, with separate projections."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(
        self,
        tokens: Float[Tensor, "batch M C"],
        context: Float[Tensor, "batch N C"],
        norm: nn.Module,
        rope: RotaryTables,
        at_once: int | None = None,
    ) -> Float[Tensor, "batch M C"]:
        """Attend; the context is normalized, and projected `at_once` tokens at a time."""

        def keys(rows: slice) -> Tensor:
            return rope.of_tokens(rows).rotate(self._heads(self.key(norm(context[:, rows]))))

        def values(rows: slice) -> Tensor:
            return self._heads(self.value(norm(context[:, rows])))

        length = context.shape[1]
        key, value = (in_chunks(function, length, at_once, dim=2) for function in (keys, values))
        mixed: Tensor = self.proj(attend(self._heads(self.query(tokens)), key, value).transpose(1, 2).flatten(2))
        return mixed

    def _heads(self, tokens: Float[Tensor, "batch N C"]) -> Float[Tensor, "batch heads N d"]:
        return torch.unflatten(tokens, -1, (self.num_heads, -1)).transpose(1, 2)


class CrossBlock(nn.Module):
    """Cross-attention and a feed-forward network, each with a pre-norm and a residual connection."""

    def __init__(self, config: MetricHeadConfig) -> None:
        super().__init__()
        self.norm1, self.context_norm, self.norm2 = (nn.LayerNorm(config.dim, eps=config.norm_eps) for _ in range(3))
        self.attn = CrossAttention(config.dim, config.num_heads)
        self.mlp = FeedForward(config.dim, int(config.dim * config.mlp_ratio))

    def forward(
        self,
        tokens: Float[Tensor, "batch M C"],
        context: Float[Tensor, "batch N C"],
        rope: RotaryTables,
        at_once: int | None = None,
    ) -> Float[Tensor, "batch M C"]:
        """Transform the tokens; the context stays as it is."""
        tokens = tokens + self.attn(self.norm1(tokens), context, self.context_norm, rope, at_once)
        refined: Tensor = tokens + self.mlp(self.norm2(tokens))
        return refined


class MetricHead(nn.Module):
    """Predict the factor that converts the lengths of a sequence to approximately metres.

    Source: the metric decoder of the public Pi3X code (reference facts).
    """

    def __init__(self, config: MetricHeadConfig, dim: int, num_special: int, rope_base: float) -> None:
        super().__init__()
        self.config = config
        self.num_special = num_special
        self.rope_base = rope_base
        self.token = nn.Parameter(torch.empty(1, 1, dim))
        self.project_token = nn.Linear(dim, config.dim)
        self.project_context = nn.Linear(dim, config.dim)
        self.blocks = nn.ModuleList(CrossBlock(config) for _ in range(config.depth))
        self.project_out = nn.Linear(config.dim, config.out_dim)
        self.log_scale = nn.Linear(config.out_dim, 1)
        initialise_linears(self)
        nn.init.trunc_normal_(self.token, std=INIT_STD)

    def forward(
        self, levels: Sequence[Float[Tensor, "B T W _ C"]], grids: Sequence[Grid], at_once: int | None = None
    ) -> Float[Tensor, " B"]:
        """Return the scale, from all tokens of each group of views of one size; `at_once` tokens are projected."""
        context = join([self._projected(level.flatten(1, 3), at_once) for level in levels], dim=1)
        rope = self._rope(levels, grids, context)
        state = self.project_token(self.token.expand(len(context), -1, -1))
        for block in self.blocks:
            state = block(state, context, rope, at_once)
        scale: Tensor = self.log_scale(self.project_out(state))[:, 0, 0].exp()
        return scale

    def _projected(self, tokens: Float[Tensor, "B N C"], at_once: int | None) -> Float[Tensor, "B N D"]:
        weight = self.project_context.weight

        def project(rows: slice) -> Tensor:
            projected: Tensor = self.project_context(tokens[:, rows].to(weight.dtype))
            return projected

        return in_chunks(project, tokens.shape[1], at_once, dim=1)

    def _rope(self, levels: Sequence[Tensor], grids: Sequence[Grid], like: Tensor) -> RotaryTables:
        """Return the tables of all tokens of all images."""
        positions = [
            token_positions(grid, self.num_special, like.device).repeat(level.shape[1] * level.shape[2], 1)
            for level, grid in zip(levels, grids, strict=True)
        ]
        dtype = torch.promote_types(like.dtype, torch.float32)
        return rotary_tables(torch.cat(positions), self.config.dim // self.config.num_heads, self.rope_base, dtype)
