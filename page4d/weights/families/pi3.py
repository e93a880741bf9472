"""Checkpoints of Pi3: settings, key map and configuration."""

from typing import Literal

from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import FrameHeadConfig
from page4d.weights.conversion.keymap import KeyMap, Rule
from page4d.weights.families.dinov2 import read_dinov2
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.settings import LARGE_ENCODER, EncoderSettings, NetworkSettings
from page4d.weights.families.specs import Specs, count, shape_of

_ENCODER = "encoder."


class DecoderSettings(NetworkSettings):
    """The trunk of Pi3 or Pi3X; its width is that of the encoder."""

    depth: int
    num_heads: int
    block_norm_eps: float
    qk_norm_eps: float


class Pi3DecoderSettings(DecoderSettings):
    """Pi3's trunk."""

    embed_dim: int


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
    decoder: Pi3DecoderSettings


_PI3_DECODERS = {
    "point_decoder": "point_decoder",
    "conf_decoder": "confidence_decoder",
    "camera_decoder": "camera_decoder",
}

PI3: KeyMap = (
    Rule(pattern=r"image_(?:mean|std)", target=None),
    Rule(pattern=r"(encoder\..*)", target=r"\1"),
    Rule(pattern=r"register_token", target="aggregator.special.register_token"),
    *(
        Rule(pattern=rf"decoder\.{2 * layer + place}\.(.*)", target=rf"aggregator.blocks.{step}.{layer}.\1")
        for layer in range(18)
        for place, step in enumerate(("frame", "global"))
    ),
    *(
        rule
        for theirs, ours in _PI3_DECODERS.items()
        for rule in (
            Rule(pattern=rf"{theirs}\.projects\.(.*)", target=rf"frame_head.{ours}.project_in.\1"),
            Rule(pattern=rf"{theirs}\.(blocks\..*)", target=rf"frame_head.{ours}.\1"),
            Rule(pattern=rf"{theirs}\.linear_out\.(.*)", target=rf"frame_head.{ours}.project_out.\1"),
        )
    ),
    Rule(pattern=r"point_head\.proj\.(.*)", target=r"frame_head.point_out.\1"),
    Rule(pattern=r"conf_head\.proj\.(.*)", target=r"frame_head.confidence_out.\1"),
    *(
        Rule(
            pattern=rf"camera_head\.res_conv\.(\d)\.res_conv{place + 1}\.(.*)",
            target=rf"frame_head.pose.residuals.\1.layers.{place}.\2",
        )
        for place in range(3)
    ),
    Rule(pattern=r"camera_head\.more_mlps\.(.*)", target=r"frame_head.pose.perceptron.\1"),
    Rule(pattern=r"camera_head\.fc_t\.(.*)", target=r"frame_head.pose.translation.\1"),
    Rule(pattern=r"camera_head\.fc_rot\.(.*)", target=r"frame_head.pose.rotation.\1"),
)
"""The public Pi3 checkpoint; its normalization constants are built into page4d."""


def _sizes(specs: Specs) -> dict[str, int]:
    width = shape_of(specs, "register_token", 4)[-1]
    return {
        "decoder.embed_dim": width,
        "decoder.depth": count(specs, "decoder."),
        "decoder.num_heads": width // shape_of(specs, "decoder.0.attn.q_norm.weight", 1)[0],
        "encoder.depth": count(specs, f"{_ENCODER}blocks."),
    }


def pi3_network(specs: Specs, settings: Pi3BaseSettings) -> NetworkConfig:
    """Return the network of Pi3: the encoder, the trunk and the decoders of Pi3X as well."""
    width = shape_of(specs, "register_token", 4)[-1]
    head_width = shape_of(specs, "point_decoder.projects.weight", 2)[0]
    return NetworkConfig(
        encoder=read_dinov2(specs, _ENCODER, settings.encoder),
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


_PUBLISHED = Pi3Settings(
    model="pi3",
    encoder=LARGE_ENCODER,
    decoder=Pi3DecoderSettings(embed_dim=1024, depth=36, num_heads=16, block_norm_eps=1e-6, qk_norm_eps=1e-5),
    heads=FrameHeadSettings(dec_num_heads=16, block_norm_eps=1e-6),
    rope_freq=100,
)

READER = NetworkReader(published=(_PUBLISHED,), sizes=_sizes, build=pi3_network)
