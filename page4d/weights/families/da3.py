"""Checkpoints of the any-view networks of Depth Anything 3: settings, key map and configuration."""

import re
from dataclasses import replace
from typing import Literal

from torch import Tensor

from page4d.choices import FullAttention
from page4d.errors import UsageError, WeightsError
from page4d.geometry.pixels import DA3_SIDE
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import (
    CameraEncoderConfig,
    CameraMLPConfig,
    PatchPositions,
    ReferenceView,
    ResidualKind,
)
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.attention import TableResampling
from page4d.networks.layers.block import FeedForwardKind
from page4d.weights.conversion.accounting import Exemption
from page4d.weights.conversion.keymap import KeyMap, Rule, dpt_rules, fusion_rules
from page4d.weights.families.da3_record import assumed_settings, stated_settings
from page4d.weights.families.dense_head import read_dense_head
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.settings import NetworkSettings
from page4d.weights.families.specs import Specs, count, shape_of, table_side

PREFIX = "model."
"""Of all tensor names; in the nested checkpoint it is `model.da3.`."""


_BACKBONE = "backbone.pretrained."
_BLOCK_EPS = 1e-6
_REFERENCES = {
    "first": ReferenceView.FIRST,
    "middle": ReferenceView.MIDDLE,
    "saddle_balanced": ReferenceView.SADDLE_BALANCED,
    "saddle_sim_range": ReferenceView.SADDLE_SIMILARITY,
}


class BackboneSettings(NetworkSettings):
    """The vision transformer whose blocks from `alt_start` on alternate within and across views."""

    embed_dim: int
    depth: int
    num_heads: int
    alt_start: int
    out_layers: tuple[int, int, int, int]
    cat_token: Literal[True] = True


class CameraEncoderSettings(NetworkSettings):
    """The encoder of known cameras."""

    num_heads: int = 16
    trunk_depth: int = 4


class DA3Settings(NetworkSettings):
    """An any-view network of Depth Anything 3."""

    model: Literal["da3"]
    encoder: BackboneSettings
    cam_enc: CameraEncoderSettings = CameraEncoderSettings()
    ref_view_strategy: Literal["first", "middle", "saddle_balanced", "saddle_sim_range"] = "saddle_balanced"


def da3_keys(config: NetworkConfig, prefix: str = PREFIX) -> KeyMap:
    """Return the key map of a network for the schedule frame, global; its blocks depend on the size."""
    names, backbone = re.escape(prefix), re.escape(prefix + _BACKBONE)
    aux = rf"{names}head\.scratch\.output_conv"
    return (
        Rule(pattern=rf"{backbone}((?:cls_token|pos_embed|patch_embed\..*))", target=r"encoder.\1"),
        Rule(pattern=rf"{backbone}norm\.(.*)", target=r"aggregator.readout_norm.\1"),
        *_block_rules(config, rf"{backbone}blocks\."),
        Rule(pattern=rf"{names}cam_enc\.trunk\.(.*)", target=r"camera_encoder.blocks.\1"),
        Rule(pattern=rf"{names}cam_enc\.(.*)", target=r"camera_encoder.\1"),
        Rule(pattern=rf"{names}cam_dec\.backbone\.0\.(.*)", target=r"camera_head.hidden1.\1"),
        Rule(pattern=rf"{names}cam_dec\.backbone\.2\.(.*)", target=r"camera_head.hidden2.\1"),
        Rule(pattern=rf"{names}cam_dec\.fc_t\.(.*)", target=r"camera_head.translation.\1"),
        Rule(pattern=rf"{names}cam_dec\.fc_qvec\.(.*)", target=r"camera_head.quaternion.\1"),
        Rule(pattern=rf"{names}cam_dec\.fc_fov\.0\.(.*)", target=r"camera_head.field_of_view.\1"),
        *dpt_rules("depth_head", rf"{names}head"),
        *fusion_rules(rf"{names}head", "depth_head.ray_branch", "_aux"),
        Rule(pattern=rf"{aux}1_aux\.3\.(\d)\.(.*)", target=r"depth_head.ray_branch.fused_convs.\1.\2"),
        Rule(pattern=rf"{aux}2_aux\.3\.0\.(.*)", target=r"depth_head.ray_branch.out_conv1.\1"),
        Rule(pattern=rf"{aux}2_aux\.3\.5\.(.*)", target=r"depth_head.ray_branch.out_conv2.\1"),
        # One norm for all levels of the ray branch, published as that of the first.
        Rule(pattern=rf"{aux}2_aux\.0\.2\.(.*)", target=r"depth_head.ray_branch.norm.\1"),
    )


def da3_exemptions(prefix: str = PREFIX) -> tuple[Exemption, ...]:
    """Return the rules of tensors that are reshaped or that the network does not need."""
    names = re.escape(prefix)
    conv = rf"{names}head\.scratch\.output_conv"
    return (
        Exemption(
            rule="camera token",
            pattern=re.escape(prefix + _BACKBONE) + "camera_token",
            target="aggregator.special.camera_token",
            adapt=_with_token_axis,
        ),
        Exemption(rule="ray branches of levels 0 to 2: never read", pattern=rf"{conv}1_aux\.[012]\..*"),
        Exemption(rule="ray branches of levels 0 to 2: never read", pattern=rf"{conv}2_aux\.[012]\.[05]\..*"),
        Exemption(
            rule="further names of the norm that all ray branches share", pattern=rf"{conv}2_aux\.[123]\.2\..*"
        ),
        Exemption(rule="Gaussian head: not used", pattern=rf"{names}gs_head\..*"),
    )


def _with_token_axis(token: Tensor) -> Tensor:
    return token[:, :, None]


def _block_rules(config: NetworkConfig, blocks: str) -> KeyMap:
    """Return the rules of the blocks: the encoder's, then the steps of the trunk in turn.

    The first step of the trunk is missing where it starts across views. Blocks after the last that a head reads are
    dropped.
    """
    start = config.encoder.depth if isinstance(config.encoder, DinoV2Config) else 0
    steps = [(step, layer) for layer in range(config.depth) for step in config.schedule][config.starts_across :]
    return (
        *(Rule(pattern=rf"{blocks}({index}\..*)", target=r"encoder.blocks.\1") for index in range(start)),
        *(
            Rule(pattern=rf"{blocks}{start + place}\.(.*)", target=rf"aggregator.blocks.{step}.{layer}.\1")
            for place, (step, layer) in enumerate(steps)
        ),
        Rule(pattern=rf"{blocks}\d+\..*", target=None),
    )


def da3_sizes(specs: Specs, prefix: str = PREFIX) -> dict[str, int]:
    """Return the sizes that the tensors determine, by the name of the setting."""
    blocks = f"{prefix}{_BACKBONE}blocks."
    pattern = re.compile(re.escape(blocks) + r"(\d+)\.attn\.q_norm\.weight")
    with_norms = [int(match[1]) for name in specs if (match := pattern.fullmatch(name)) is not None]
    if not with_norms:
        raise WeightsError(f"no tensor is '{blocks}N.attn.q_norm.weight'", "these weights are of another network")
    width = shape_of(specs, f"{prefix}{_BACKBONE}cls_token", 3)[-1]
    return {
        "encoder.embed_dim": width,
        "encoder.depth": count(specs, blocks),
        "encoder.num_heads": width // shape_of(specs, f"{blocks}{min(with_norms)}.attn.q_norm.weight", 1)[0],
        "encoder.alt_start": min(with_norms),
        "cam_enc.trunk_depth": count(specs, f"{prefix}cam_enc.trunk."),
    }


def read_da3(specs: Specs, settings: DA3Settings, prefix: str = PREFIX) -> NetworkConfig:
    """Return the network of tensors whose names begin with `prefix`."""
    own, start = settings.encoder, settings.encoder.alt_start
    if any(index % 2 == 0 or not start <= index < own.depth for index in own.out_layers):
        raise UsageError(
            f"--config: {own.depth} blocks that are read after {own.out_layers}",
            "heads read odd blocks from alt_start on",
        )
    encoder = _encoder(specs, settings, prefix)
    return NetworkConfig(
        encoder=encoder,
        depth=(max(own.out_layers) + 2 - start) // 2,
        num_heads=own.num_heads,
        schedule=FRAME_GLOBAL,
        full_attention=FullAttention.ALWAYS,
        starts_across=start % 2 == 1,
        mlp_ratio=encoder.mlp_ratio,
        feed_forward=encoder.feed_forward,
        norm_eps=_BLOCK_EPS,
        layer_scale=encoder.layer_scale,
        across_positions=PatchPositions.SHARED,
        num_registers=0,
        reference_view=_REFERENCES[settings.ref_view_strategy],
        readout_norm_eps=1e-5,
        camera_encoder=CameraEncoderConfig(depth=settings.cam_enc.trunk_depth, num_heads=settings.cam_enc.num_heads),
        camera_head=CameraMLPConfig(),
        depth_head=replace(
            read_dense_head(specs, f"{prefix}head", tuple((index - start) // 2 for index in own.out_layers)),  # type: ignore[arg-type]
            residual=ResidualKind.PLAIN,
            ray_map=True,
        ),
        default_long_side=DA3_SIDE,
    )


def _encoder(specs: Specs, settings: DA3Settings, prefix: str) -> DinoV2Config:
    """Return the encoder: the blocks before `alt_start`, without a norm after them."""
    name, own = prefix + _BACKBONE, settings.encoder
    dim, _, patch, _ = shape_of(specs, f"{name}patch_embed.proj.weight", 4)
    swiglu = f"{name}blocks.0.mlp.w12.weight" in specs
    return DinoV2Config(
        image_size=table_side(specs, f"{name}pos_embed") * patch,
        patch_size=patch,
        embed_dim=dim,
        depth=own.alt_start,
        num_heads=own.num_heads,
        mlp_ratio=4.0 if swiglu else shape_of(specs, f"{name}blocks.0.mlp.fc1.weight", 2)[0] / dim,
        feed_forward=FeedForwardKind.SWIGLU if swiglu else FeedForwardKind.MLP,
        num_registers=0,
        norm_eps=_BLOCK_EPS,
        table_resampling=TableResampling.OFFSET,
        final_norm=False,
    )


def _published(
    embed_dim: int, depth: int, num_heads: int, alt_start: int, out_layers: tuple[int, int, int, int]
) -> DA3Settings:
    backbone = BackboneSettings(
        embed_dim=embed_dim, depth=depth, num_heads=num_heads, alt_start=alt_start, out_layers=out_layers
    )
    return DA3Settings(model="da3", encoder=backbone)


PUBLISHED: dict[str, DA3Settings] = {
    "da3-small": _published(384, 12, 6, 4, (5, 7, 9, 11)),
    "da3-base": _published(768, 12, 12, 4, (5, 7, 9, 11)),
    "da3-large": _published(1024, 24, 16, 8, (11, 15, 19, 23)),
    "da3-giant": _published(1536, 40, 24, 13, (19, 27, 33, 39)),
}
"""Settings of the published checkpoints by name."""


def da3_assumed(settings: DA3Settings) -> dict[str, object]:
    """Return the settings of a `config.json` as the conversion assumes them."""
    own = settings.encoder
    return assumed_settings(own.embed_dim, own.out_layers, own.alt_start)


READER = NetworkReader(
    published=tuple(PUBLISHED.values()),
    names=tuple(PUBLISHED),
    sizes=da3_sizes,
    build=read_da3,
    stated=stated_settings,
    assumed=da3_assumed,
)
