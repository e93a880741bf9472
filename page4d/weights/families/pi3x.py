"""Checkpoints of Pi3X: settings, key map and configuration."""

from dataclasses import replace
from typing import Literal

from page4d.errors import UsageError
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import ConvHeadConfig, KnownGeometryConfig, MetricHeadConfig
from page4d.weights.conversion.keymap import KeyMap, Rule
from page4d.weights.families.dinov2 import read_dinov2
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.pi3 import (
    PI3,
    DecoderSettings,
    FrameHeadSettings,
    Pi3BaseSettings,
    pi3_network,
)
from page4d.weights.families.settings import EncoderSettings, NetworkSettings
from page4d.weights.families.specs import Specs, count, shape_of


class Pi3XEncoderSettings(EncoderSettings):
    """Pi3X's encoder of images, and of depth maps."""

    norm_eps: float = 1e-6


class Pi3XDecoderSettings(DecoderSettings):
    """Pi3X's trunk."""

    block_norm_eps: float = 1e-6
    qk_norm_eps: float = 1e-5


class Pi3XHeadSettings(FrameHeadSettings):
    """Pi3X's decoders within images."""

    block_norm_eps: float = 1e-6


class MetricSettings(NetworkSettings):
    """Pi3X's metric decoder."""

    num_heads: int
    block_norm_eps: float = 1e-6


class PoseInjectionSettings(NetworkSettings):
    """Pi3X's blocks of known poses, after some blocks of the trunk; those attend across images."""

    num_heads: int
    after_blocks: tuple[int, ...]
    block_norm_eps: float = 1e-6
    qk_norm_eps: float = 1e-5


class Pi3XSettings(Pi3BaseSettings):
    """Pi3X."""

    model: Literal["pi3x"]
    encoder: Pi3XEncoderSettings
    decoder: Pi3XDecoderSettings
    heads: Pi3XHeadSettings
    metric: MetricSettings
    pose_inject: PoseInjectionSettings


_DEPTH_ENCODER = "depth_encoder."

_CONV_STAGES = (
    *((rf"0\.{place}\.", f"{place}.") for place in (0, 1)),
    *((rf"{place}\.", f"{place + 1}.") for place in (1, 2)),
)
"""Parts of an upsampling stage: transposed convolution, convolution, two residual units."""

PI3X: KeyMap = (
    Rule(pattern=r"depth_encoder\.(.*)", target=r"known_geometry.depth_encoder.\1"),
    Rule(pattern="depth_emb", target="known_geometry.depth_token"),
    Rule(pattern=r"ray_embed\.(proj\..*)", target=r"known_geometry.rays.\1"),
    Rule(pattern=r"pose_inject_blk\.(.*)", target=r"aggregator.pose_injection.blocks.\1"),
    *(
        rule
        for theirs, ours in (("point_head", "point_out"), ("conf_head", "confidence_out"))
        for rule in (
            *(
                Rule(
                    pattern=rf"{theirs}\.upsample_blocks\.(\d)\.{part}(.*)",
                    target=rf"frame_head.{ours}.stages.\1.{place}\2",
                )
                for part, place in _CONV_STAGES
            ),
            Rule(pattern=rf"{theirs}\.output_block\.(.*)", target=rf"frame_head.{ours}.outputs.\1"),
        )
    ),
    Rule(pattern="metric_token", target="metric_head.token"),
    Rule(pattern=r"metric_decoder\.projects_x\.(.*)", target=r"metric_head.project_token.\1"),
    Rule(pattern=r"metric_decoder\.projects_y\.(.*)", target=r"metric_head.project_context.\1"),
    *(
        Rule(pattern=rf"metric_decoder\.blocks\.(\d+)\.{theirs}\.(.*)", target=rf"metric_head.blocks.\1.{ours}.\2")
        for theirs, ours in (
            ("norm2", "norm1"),
            ("norm_y", "context_norm"),
            ("norm3", "norm2"),
            (r"cross_attn\.q_proj", "attn.query"),
            (r"cross_attn\.k_proj", "attn.key"),
            (r"cross_attn\.v_proj", "attn.value"),
            (r"cross_attn\.proj", "attn.proj"),
            ("mlp", "mlp"),
        )
    ),
    Rule(pattern=r"metric_decoder\.linear_out\.(.*)", target=r"metric_head.project_out.\1"),
    Rule(pattern=r"metric_head\.(.*)", target=r"metric_head.log_scale.\1"),
    *PI3,
)
"""The public Pi3X checkpoint; the norms of the metric decoder are numbered without the one of self-attention."""


def _sizes(specs: Specs) -> dict[str, int]:
    width = shape_of(specs, "register_token", 4)[-1]
    return {
        "encoder.embed_dim": width,
        "encoder.depth": count(specs, "encoder.blocks."),
        "decoder.depth": count(specs, "decoder."),
        "decoder.num_heads": width // shape_of(specs, "decoder.0.attn.q_norm.weight", 1)[0],
    }


def _network(specs: Specs, settings: Pi3XSettings) -> NetworkConfig:
    config = pi3_network(specs, settings)
    assert config.frame_head is not None
    widths = tuple(shape_of(specs, f"point_head.upsample_blocks.{k}.0.1.weight", 4)[0] for k in range(3))
    conv = ConvHeadConfig(
        widths=widths,  # type: ignore[arg-type]
        hidden=shape_of(specs, "point_head.output_block.0.0.weight", 4)[0],
    )
    dim = shape_of(specs, "metric_decoder.projects_x.weight", 2)[0]
    metric = MetricHeadConfig(
        dim=dim,
        depth=count(specs, "metric_decoder.blocks."),
        num_heads=settings.metric.num_heads,
        out_dim=shape_of(specs, "metric_head.weight", 2)[1],
        mlp_ratio=shape_of(specs, "metric_decoder.blocks.0.mlp.fc1.weight", 2)[0] / dim,
        norm_eps=settings.metric.block_norm_eps,
    )
    head = replace(config.frame_head, conv=conv, metric=metric)
    return replace(config, frame_head=head, known_geometry=_known_geometry(specs, settings))


def _known_geometry(specs: Specs, settings: Pi3XSettings) -> KnownGeometryConfig | None:
    """Return the configuration of the inputs of known geometry; files for images alone lack them."""
    if not any(name.startswith(_DEPTH_ENCODER) for name in specs):
        return None
    encoder, injection = read_dinov2(specs, _DEPTH_ENCODER, settings.encoder), settings.pose_inject
    if any(block % 2 == 0 for block in injection.after_blocks):
        raise UsageError(
            f"--config: pose_inject.after_blocks {list(injection.after_blocks)} are not all odd",
            "page4d injects poses after blocks that attend across images, which have odd numbers",
        )
    return KnownGeometryConfig(
        depth_encoder=encoder,
        pose_layers=tuple(block // 2 for block in injection.after_blocks),
        num_heads=injection.num_heads,
        mlp_ratio=shape_of(specs, "pose_inject_blk.0.mlp.fc1.weight", 2)[0] / encoder.embed_dim,
        norm_eps=injection.block_norm_eps,
        qk_norm_eps=injection.qk_norm_eps,
    )


_PUBLISHED = Pi3XSettings(
    model="pi3x",
    encoder=Pi3XEncoderSettings(num_heads=16, embed_dim=1024, depth=24),
    decoder=Pi3XDecoderSettings(depth=36, num_heads=16),
    heads=Pi3XHeadSettings(dec_num_heads=16),
    rope_freq=100,
    metric=MetricSettings(num_heads=8),
    pose_inject=PoseInjectionSettings(num_heads=16, after_blocks=(1, 9, 17, 25, 33)),
)

READER = NetworkReader(published=(_PUBLISHED,), sizes=_sizes, build=_network)
