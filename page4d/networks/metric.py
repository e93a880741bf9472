"""Metric scale: depth of single images transferred to predictions of arbitrary scale, and the metric head.

The head predicts one scale per sequence, from a learned token that attends to the tokens of all images.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.errors import UsageError
from page4d.geometry.transforms import scale_translations
from page4d.networks.conditioning import Grid, join
from page4d.networks.config_parts import MetricHeadConfig
from page4d.networks.layers.attention import RotaryTables, attend, rotary_tables
from page4d.networks.layers.block import INIT_STD, FeedForward, initialise_linears
from page4d.networks.layers.execution import in_chunks
from page4d.networks.output import NetworkOutput, farthest_depth, is_sky, quantile
from page4d.networks.tokens import token_positions

_MIN_METRIC = 1e-2
_MIN_DEPTH = 1e-3
_MAX_SKY = 200.0


def metric_depth(
    depth: Float[Tensor, "*batch H W"], intrinsics: Float[Tensor, "*batch 3 3"], metric_focal: float
) -> Float[Tensor, "*batch H W"]:
    """Return depth in metres from that for a focal length of `metric_focal` px, to which it is proportional.

    Source: Yin et al. (2023), Metric3D, section 3.1; the constant 300 px of the public Depth Anything 3 code
    (reference facts).
    """
    focal = (intrinsics[..., 0, 0] + intrinsics[..., 1, 1]) / 2
    return depth * (focal / metric_focal).to(depth)[..., None, None]


class MetricAlignment(NamedTuple):
    """Predictions in metres, and the factor to them of each scene."""

    depth: Float[Tensor, "B ..."]
    confidence: Float[Tensor, "B ..."]
    scale: Float[Tensor, " B"]


def align_to_metric(
    depth: Float[Tensor, "B ..."],
    confidence: Float[Tensor, "B ..."],
    metric: Float[Tensor, "B ..."],
    sky: Float[Tensor, "B ..."],
) -> MetricAlignment:
    """Scale depth of arbitrary unit to metric depth of the same images by least squares over all of a scene.

    Used are pixels outside the sky whose confidence is at least the median there, with a metric depth above 0.01 m
    and a depth above 0.001. The sky gets the 0.99 quantile of the depth outside it, at most 200 m, and confidence 1.
    A scene without such pixels keeps its unit.

    Source: the nested network of the public Depth Anything 3 code (reference facts).
    """
    groups = [_align_scene(*scene) for scene in zip(depth, confidence, metric, is_sky(sky), strict=True)]
    return MetricAlignment(*(torch.stack(parts) for parts in zip(*groups, strict=True)))


def _align_scene(depth: Tensor, confidence: Tensor, metric: Tensor, in_sky: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if depth.is_meta:  # which pixels count depends on values
        return depth, confidence, depth.new_ones(())
    solid = ~in_sky
    used = solid & (metric > _MIN_METRIC) & (depth > _MIN_DEPTH)
    if solid.any():
        used &= confidence >= quantile(confidence[solid], 0.5)
    known = depth[used].double()
    scale = (
        (metric[used].double() @ known) / (known @ known) if len(known) else depth.new_ones((), dtype=torch.float64)
    )
    scaled = depth * scale.to(depth)
    farthest = farthest_depth(scaled, in_sky)
    if farthest is not None:
        scaled = torch.where(in_sky, farthest.clamp(max=_MAX_SKY), scaled)
        confidence = torch.where(in_sky, 1.0, confidence)
    return scaled, confidence, scale.to(depth)


def scale_to_metric(
    outputs: Sequence[NetworkOutput], singles: Sequence[NetworkOutput], metric_focal: float
) -> list[NetworkOutput]:
    """Return predictions in metres, by the depth and sky that a metric network predicts for the same images.

    There is one output per group of views of one size; a scene has one factor for all groups. `singles` are the
    outputs of the metric network without known intrinsics; those of `outputs` give them their unit. Depth, points,
    cameras and the origins of ray maps are scaled by the factor of `align_to_metric`.

    Raises:
        UsageError: if `outputs` have no cameras or no depth with confidence, or `singles` no depth and sky.

    Source: the nested network of the public Depth Anything 3 code (reference facts).
    """
    maps = [_maps_to_align(*pair, metric_focal) for pair in zip(outputs, singles, strict=True)]
    # Views may differ in size: alignment does not depend on the places of pixels.
    rows = (torch.cat([part.flatten(1) for part in parts], dim=1) for parts in zip(*maps, strict=True))
    aligned = align_to_metric(*rows)
    shapes = [depth.shape for depth, *_ in maps]

    def in_views(row: Tensor) -> list[Tensor]:
        parts = torch.split(row, [prod(shape[1:]) for shape in shapes], dim=1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    groups = zip(outputs, singles, in_views(aligned.depth), in_views(aligned.confidence), strict=True)
    return [
        replace(_scaled(output, aligned.scale), depth=depth, depth_confidence=confidence, sky=single.sky)
        for output, single, depth, confidence in groups
    ]


def _maps_to_align(output: NetworkOutput, single: NetworkOutput, metric_focal: float) -> tuple[Tensor, ...]:
    """Return depth, confidence, metric depth and sky of views of one size."""
    depth, confidence, intrinsics = output.depth, output.depth_confidence, output.intrinsics
    if depth is None or confidence is None or output.world_to_camera is None or intrinsics is None:
        raise UsageError("the network predicts no cameras, or no depth with confidence", "use an any-view network")
    if single.depth is None or single.sky is None:
        raise UsageError("the metric network predicts no depth or no sky", "use da3-metric")
    return depth, confidence, metric_depth(single.depth, intrinsics, metric_focal), single.sky


def _scaled(output: NetworkOutput, scale: Float[Tensor, " B"]) -> NetworkOutput:
    """Scale cameras, points and the origins of the ray map."""
    assert output.world_to_camera is not None
    points, rays = output.points, output.ray_map
    if points is not None:
        points = points * scale[:, None, None, None, None, None].to(points)
    if rays is not None:
        factor = scale[:, None, None, None, None, None].to(rays)
        rays = torch.cat([rays[..., :3], rays[..., 3:] * factor], dim=-1)
    encodings = tuple(
        # The translation precedes the quaternion and the fields of view.
        torch.cat([encoding[..., :3] * scale[:, None, None, None].to(encoding), encoding[..., 3:]], dim=-1)
        for encoding in output.pose_encoding_iterations
    )
    return replace(
        output,
        world_to_camera=scale_translations(output.world_to_camera, scale[:, None, None]),
        points=points,
        ray_map=rays,
        metric_scale=scale,
        pose_encoding=encodings[-1] if encodings else None,
        pose_encoding_iterations=encodings,
    )


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
        return self.proj(attend(self._heads(self.query(tokens)), key, value).transpose(1, 2).flatten(2))

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
        return tokens + self.mlp(self.norm2(tokens))


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
        return self.log_scale(self.project_out(state))[:, 0, 0].exp()

    def _projected(self, tokens: Float[Tensor, "B N C"], at_once: int | None) -> Float[Tensor, "B N D"]:
        layer = self.project_context
        return in_chunks(lambda rows: layer(tokens[:, rows].to(layer.weight.dtype)), tokens.shape[1], at_once, dim=1)

    def _rope(self, levels: Sequence[Tensor], grids: Sequence[Grid], like: Tensor) -> RotaryTables:
        """Return the tables of all tokens of all images."""
        positions = [
            token_positions(grid, self.num_special, like.device).repeat(level.shape[1] * level.shape[2], 1)
            for level, grid in zip(levels, grids, strict=True)
        ]
        dtype = torch.promote_types(like.dtype, torch.float32)
        return rotary_tables(torch.cat(positions), self.config.dim // self.config.num_heads, self.rope_base, dtype)
