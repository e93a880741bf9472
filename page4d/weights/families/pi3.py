"""Checkpoints of Pi3 and Pi3X: settings, key maps and configurations."""

from dataclasses import replace
from typing import Literal

from page4d.errors import UsageError
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import ConvHeadConfig, FrameHeadConfig, KnownGeometryConfig, MetricHeadConfig
from page4d.weights.conversion.accounting import KeyMap, Rule
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.shapes import LARGE_ENCODER, EncoderSettings, NetworkSettings, Specs, count, shape_of

_ENCODER = "encoder."


class DecoderSettings(NetworkSettings):
    """The trunk of Pi3 or Pi3X; its width is that of the encoder."""

    depth: int
    num_heads: int
    block_norm_eps: float
    qk_norm_eps: float


class FrameHeadSettings(NetworkSettings):
    """The decoders of Pi3 or Pi3X within images."""

    dec_num_heads: int
    block_norm_eps: float
    qk_norm: Literal[False] = False


class Pi3BaseSettings(NetworkSettings):
    """What Pi3 and Pi3X have in common."""

    encoder: EncoderSettings
    decoder: DecoderSettings
    heads: FrameHeadSettings
    rope_freq: float


class Pi3Settings(Pi3BaseSettings):
    """Pi3."""

    model: Literal["pi3"]


_PI3_DECODERS = {
    "point_decoder": "point_decoder",
    "conf_decoder": "confidence_decoder",
    "camera_decoder": "camera_decoder",
}

PI3: KeyMap = (
    Rule(r"image_(?:mean|std)", None),
    Rule(r"(encoder\..*)", r"\1"),
    Rule(r"register_token", "aggregator.special.register_token"),
    *(
        Rule(rf"decoder\.{2 * layer + place}\.(.*)", rf"aggregator.blocks.{step}.{layer}.\1")
        for layer in range(18)
        for place, step in enumerate(("frame", "global"))
    ),
    *(
        rule
        for theirs, ours in _PI3_DECODERS.items()
        for rule in (
            Rule(rf"{theirs}\.projects\.(.*)", rf"frame_head.{ours}.project_in.\1"),
            Rule(rf"{theirs}\.(blocks\..*)", rf"frame_head.{ours}.\1"),
            Rule(rf"{theirs}\.linear_out\.(.*)", rf"frame_head.{ours}.project_out.\1"),
        )
    ),
    Rule(r"point_head\.proj\.(.*)", r"frame_head.point_out.\1"),
    Rule(r"conf_head\.proj\.(.*)", r"frame_head.confidence_out.\1"),
    *(
        Rule(
            rf"camera_head\.res_conv\.(\d)\.res_conv{place + 1}\.(.*)",
            rf"frame_head.pose.residuals.\1.layers.{place}.\2",
        )
        for place in range(3)
    ),
    Rule(r"camera_head\.more_mlps\.(.*)", r"frame_head.pose.perceptron.\1"),
    Rule(r"camera_head\.fc_t\.(.*)", r"frame_head.pose.translation.\1"),
    Rule(r"camera_head\.fc_rot\.(.*)", r"frame_head.pose.rotation.\1"),
)
"""The public Pi3 checkpoint; its normalization constants are built into page4d."""


def _sizes(specs: Specs) -> dict[str, int]:
    width = shape_of(specs, "register_token", 4)[-1]
    return {
        "encoder.embed_dim": width,
        "encoder.depth": count(specs, f"{_ENCODER}blocks."),
        "decoder.depth": count(specs, "decoder."),
        "decoder.num_heads": width // shape_of(specs, "decoder.0.attn.q_norm.weight", 1)[0],
    }


def pi3_network(specs: Specs, settings: Pi3BaseSettings) -> NetworkConfig:
    """Return the network of Pi3: the encoder, the trunk and the decoders of Pi3X as well."""
    width = shape_of(specs, "register_token", 4)[-1]
    head_width = shape_of(specs, "point_decoder.projects.weight", 2)[0]
    return NetworkConfig(
        encoder=settings.encoder.read(specs, _ENCODER),
        depth=settings.decoder.depth // 2,
        num_heads=settings.decoder.num_heads,
        schedule=FRAME_GLOBAL,
        mlp_ratio=shape_of(specs, "decoder.0.mlp.fc1.weight", 2)[0] / width,
        norm_eps=settings.decoder.block_norm_eps,
        qk_norm_eps=settings.decoder.qk_norm_eps,
        rope_base=settings.rope_freq,
        num_registers=shape_of(specs, "register_token", 4)[2],
        token_slots=shape_of(specs, "register_token", 4)[1],
        camera_token=False,
        frame_head=FrameHeadConfig(
            dim=head_width,
            depth=count(specs, "point_decoder.blocks."),
            num_heads=settings.heads.dec_num_heads,
            point_dim=shape_of(specs, "point_decoder.linear_out.weight", 2)[0],
            camera_dim=shape_of(specs, "camera_decoder.linear_out.weight", 2)[0],
            mlp_ratio=shape_of(specs, "point_decoder.blocks.0.mlp.fc1.weight", 2)[0] / head_width,
            norm_eps=settings.heads.block_norm_eps,
        ),
    )


_PI3_PUBLISHED = Pi3Settings(
    model="pi3",
    encoder=LARGE_ENCODER,
    decoder=DecoderSettings(depth=36, num_heads=16, block_norm_eps=1e-6, qk_norm_eps=1e-5),
    heads=FrameHeadSettings(dec_num_heads=16, block_norm_eps=1e-6),
    rope_freq=100,
)

PI3_READER = NetworkReader(published=(_PI3_PUBLISHED,), sizes=_sizes, build=pi3_network)


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
    Rule(r"depth_encoder\.(.*)", r"known_geometry.depth_encoder.\1"),
    Rule("depth_emb", "known_geometry.depth_token"),
    Rule(r"ray_embed\.(proj\..*)", r"known_geometry.rays.\1"),
    Rule(r"pose_inject_blk\.(.*)", r"aggregator.pose_injection.blocks.\1"),
    *(
        rule
        for theirs, ours in (("point_head", "point_out"), ("conf_head", "confidence_out"))
        for rule in (
            *(
                Rule(rf"{theirs}\.upsample_blocks\.(\d)\.{part}(.*)", rf"frame_head.{ours}.stages.\1.{place}\2")
                for part, place in _CONV_STAGES
            ),
            Rule(rf"{theirs}\.output_block\.(.*)", rf"frame_head.{ours}.outputs.\1"),
        )
    ),
    Rule("metric_token", "metric_head.token"),
    Rule(r"metric_decoder\.projects_x\.(.*)", r"metric_head.project_token.\1"),
    Rule(r"metric_decoder\.projects_y\.(.*)", r"metric_head.project_context.\1"),
    *(
        Rule(rf"metric_decoder\.blocks\.(\d+)\.{theirs}\.(.*)", rf"metric_head.blocks.\1.{ours}.\2")
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
    Rule(r"metric_decoder\.linear_out\.(.*)", r"metric_head.project_out.\1"),
    Rule(r"metric_head\.(.*)", r"metric_head.log_scale.\1"),
    *PI3,
)
"""The public Pi3X checkpoint; the norms of the metric decoder are numbered without the one of self-attention."""


def _pi3x_network(specs: Specs, settings: Pi3XSettings) -> NetworkConfig:
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
    encoder, injection = settings.encoder.read(specs, _DEPTH_ENCODER), settings.pose_inject
    if any(block % 2 == 0 for block in injection.after_blocks):
        raise UsageError(
            f"⟨configs⟩: pose_inject.after_blocks {list(injection.after_blocks)} are not all odd",
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


_PI3X_PUBLISHED = Pi3XSettings(
    model="pi3x",
    encoder=Pi3XEncoderSettings(num_heads=16, embed_dim=1024, depth=24),
    decoder=Pi3XDecoderSettings(depth=36, num_heads=16),
    heads=Pi3XHeadSettings(dec_num_heads=16),
    rope_freq=100,
    metric=MetricSettings(num_heads=8),
    pose_inject=PoseInjectionSettings(num_heads=16, after_blocks=(1, 9, 17, 25, 33)),
)

PI3X_READER = NetworkReader(published=(_PI3X_PUBLISHED,), sizes=_sizes, build=_pi3x_network)
