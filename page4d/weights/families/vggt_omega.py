"""Checkpoints of VGGT-Omega: settings, key map, adaptation of attention weights, and configuration."""

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import CameraTransformerConfig
from page4d.networks.encoders.dino import DinoV3Config
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import Exemption, KeyMap, Rule, dpt_rules
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.shapes import NetworkSettings, Specs, read_dense_head, shape_of
from page4d.weights.families.vggt import read_sizes

_ENCODER = "aggregator.patch_embed."
_TEXT_HEAD = "text_alignment_head."
_OMEGA = PRESETS["vggt-omega"]
"""The published network: settings that neither tensors nor settings determine are its."""

_IMAGE_SIZE, _TEXT_IMAGE_SIZE = 512, 256
"""Long sides of the images that the two published checkpoints were trained on."""


class OmegaEncoderSettings(NetworkSettings):
    """The DINOv3 encoder; options with a single supported value are checked."""

    kind: Literal["dinov3"] = "dinov3"
    depth: int
    num_heads: int
    norm_eps: float = 1e-5
    qk_norm: Literal[False] = False


class RotarySettings(NetworkSettings):
    """Rotary positions of encoder and steps within images."""

    base: float = 100.0
    normalize: Literal["max"] = "max"


class CameraTransformerSettings(NetworkSettings):
    """The camera head."""

    num_heads: int
    trunk_depth: int
    norm_eps: float = 1e-5
    fov_offset: float = Field(default=0.01, ge=0.01, le=0.01)


class OmegaDenseSettings(NetworkSettings):
    """The dense head."""

    intermediate_layer_idx: tuple[int, int, int, int]
    norm_eps: float = 1e-5


class OmegaSettings(NetworkSettings):
    """VGGT-Omega; `text_head` is true for the checkpoint with a text head, which page4d leaves out."""

    model: Literal["vggt-omega", "vggt_omega"]
    embed_dim: int
    depth: int
    num_heads: int
    register_attention_blocks: tuple[int, ...]
    block_norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    rope: RotarySettings = RotarySettings()
    encoder: OmegaEncoderSettings
    camera_head: CameraTransformerSettings
    dense_head: OmegaDenseSettings
    text_head: bool = False

    @field_validator("model")
    @classmethod
    def _as_family(cls, model: str) -> str:
        return model.replace("_", "-")


VGGT_OMEGA: KeyMap = (
    Rule(r"aggregator\.patch_embed\.storage_tokens", "encoder.register_tokens"),
    Rule(r"aggregator\.patch_embed\.(.*)", r"encoder.\1"),
    Rule(r"aggregator\.((?:camera|register)_token)", r"aggregator.special.\1"),
    Rule(r"aggregator\.frame_blocks\.(.*)", r"aggregator.blocks.frame.\1"),
    Rule(r"aggregator\.inter_frame_blocks\.(.*)", r"aggregator.blocks.global.\1"),
    Rule(r"camera_head\.camera_branch\.0\.(.*)", r"camera_head.pose_branch.fc1.\1"),
    Rule(r"camera_head\.camera_branch\.2\.(.*)", r"camera_head.pose_branch.fc2.\1"),
    Rule(r"(camera_head\.(?:token_norm|trunk|trunk_norm)\..*)", r"\1"),
    Rule(r"dense_head\.proj\.(.*)", r"depth_head.shuffled.value.\1"),
    Rule(r"dense_head\.proj_conf\.(.*)", r"depth_head.shuffled.confidence.\1"),
    *dpt_rules("depth_head", "dense_head"),
)
"""Names of the public VGGT-Omega checkpoints, after `exemptions`."""


def by_axis(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the channels of each head from [half, axis, frequency] to [axis, half, frequency].

    Rotary positions rotate pairs of channels of the two halves. In DINOv3 the halves are those of the whole head, in
    page4d those of each axis.
    """
    return torch.unflatten(rows, 0, (-1, 2, 2, head_dim // 4)).transpose(1, 2).flatten(0, 3)


def queries_and_keys_by_axis(rows: Tensor, mask: Tensor | None = None, *, head_dim: int) -> Tensor:
    """Apply `by_axis` to the queries and keys of a fused projection, after multiplication by the mask if given."""
    rows = rows if mask is None else rows * mask
    queries, keys, values = rows.chunk(3)
    return torch.cat([by_axis(queries, head_dim), by_axis(keys, head_dim), values])


def exemptions(config: NetworkConfig) -> tuple[Exemption, ...]:
    """Return the rules of tensors that are dropped, or changed for the order of rotary channels and the bias masks.

    Published files hold a mask of every bias of a fused projection, with which the public code multiplies it.
    """
    encoder = config.encoder
    assert isinstance(encoder, DinoV3Config)
    encoder_dim, trunk_dim = encoder.embed_dim // encoder.num_heads, encoder.embed_dim // config.num_heads
    rotary = (
        (r"aggregator\.patch_embed\.(blocks)", r"encoder.\1", encoder_dim),
        (r"aggregator\.(frame)_blocks", r"aggregator.blocks.\1", trunk_dim),
    )
    unordered = (
        (r"aggregator\.inter_(frame)_blocks", "aggregator.blocks.global"),
        (r"(camera_head)\.trunk", r"\1.trunk"),
    )
    return (
        Exemption(rule="mask token: used in pretraining only", pattern=r"aggregator\.patch_embed\.mask_token"),
        Exemption(rule="text head: not used", pattern=r"text_alignment_head\..*"),
        _wavelengths(r"aggregator\.patch_embed\.rope_embed\.periods", encoder.rope_base, encoder_dim),
        _wavelengths(r"aggregator\.rope_embed\.periods", config.rope_base, trunk_dim),
        *(rule for theirs, ours, head_dim in rotary for rule in _reordered(theirs, ours, head_dim)),
        *(
            Exemption(
                rule="biases of queries, keys and values: multiplied by their masks",
                pattern=rf"{theirs}\.(\d+\.attn\.qkv\.bias)",
                target=rf"{ours}.\2",
                adapt=torch.mul,
                companion=r"\g<0>_mask",
            )
            for theirs, ours in unordered
        ),
    )


def _wavelengths(pattern: str, base: float, head_dim: int) -> Exemption:
    quarter = head_dim // 4
    periods = tuple(base ** (place / quarter) for place in range(quarter))
    return Exemption(rule="wavelengths of rotary positions: built in", pattern=pattern, constant=periods)


def _reordered(theirs: str, ours: str, head_dim: int) -> tuple[Exemption, ...]:
    """Return the rules of blocks with rotary positions."""
    return (
        Exemption(
            rule="weights of queries and keys: channels in the order of axes",
            pattern=rf"{theirs}\.(\d+\.attn\.qkv\.weight)",
            target=rf"{ours}.\2",
            adapt=partial(queries_and_keys_by_axis, head_dim=head_dim),
        ),
        Exemption(
            rule="biases of queries, keys and values: multiplied by their masks, channels in the order of axes",
            pattern=rf"{theirs}\.(\d+\.attn\.qkv\.bias)",
            target=rf"{ours}.\2",
            adapt=partial(queries_and_keys_by_axis, head_dim=head_dim),
            companion=r"\g<0>_mask",
        ),
        Exemption(
            rule="norms of queries and keys: channels in the order of axes",
            pattern=rf"{theirs}\.(\d+\.attn\.[qk]_norm\.(?:weight|bias))",
            target=rf"{ours}.\2",
            adapt=partial(by_axis, head_dim=head_dim),
        ),
    )


def _sizes(specs: Specs) -> dict[str, int]:
    return {**read_sizes(specs), "text_head": int(any(name.startswith(_TEXT_HEAD) for name in specs))}


def _encoder(specs: Specs, settings: OmegaSettings) -> DinoV3Config:
    dim, _, patch, _ = shape_of(specs, f"{_ENCODER}patch_embed.proj.weight", 4)
    return DinoV3Config(
        image_size=_TEXT_IMAGE_SIZE if settings.text_head else _IMAGE_SIZE,
        patch_size=patch,
        embed_dim=dim,
        depth=settings.encoder.depth,
        num_heads=settings.encoder.num_heads,
        mlp_ratio=shape_of(specs, f"{_ENCODER}blocks.0.mlp.fc1.weight", 2)[0] / dim,
        num_registers=shape_of(specs, f"{_ENCODER}storage_tokens", 3)[1],
        norm_eps=settings.encoder.norm_eps,
        rope_base=settings.rope.base,
    )


def _network(specs: Specs, settings: OmegaSettings) -> NetworkConfig:
    camera, dense = settings.camera_head, settings.dense_head
    camera_width = shape_of(specs, "camera_head.token_norm.weight", 1)[0]
    return replace(
        _OMEGA,
        encoder=_encoder(specs, settings),
        depth=settings.depth,
        num_heads=settings.num_heads,
        register_layers=settings.register_attention_blocks,
        mlp_ratio=shape_of(specs, "aggregator.frame_blocks.0.mlp.fc1.weight", 2)[0] / settings.embed_dim,
        norm_eps=settings.block_norm_eps,
        qk_norm_eps=settings.qk_norm_eps,
        rope_base=settings.rope.base,
        num_registers=shape_of(specs, "aggregator.register_token", 4)[2],
        token_slots=shape_of(specs, "aggregator.camera_token", 4)[1],
        camera_head=CameraTransformerConfig(
            depth=camera.trunk_depth,
            num_heads=camera.num_heads,
            mlp_ratio=shape_of(specs, "camera_head.trunk.0.mlp.fc1.weight", 2)[0] / camera_width,
            norm_eps=camera.norm_eps,
        ),
        depth_head=replace(
            read_dense_head(specs, "dense_head", dense.intermediate_layer_idx, _OMEGA.depth_head),
            norm_eps=dense.norm_eps,
        ),
    )


_PUBLISHED = OmegaSettings(
    model="vggt-omega",
    embed_dim=1024,
    depth=24,
    num_heads=16,
    register_attention_blocks=(2, 6, 9, 14, 20),
    encoder=OmegaEncoderSettings(depth=24, num_heads=16),
    camera_head=CameraTransformerSettings(num_heads=16, trunk_depth=4),
    dense_head=OmegaDenseSettings(intermediate_layer_idx=(4, 11, 17, 23)),
)

READER = NetworkReader(
    published=(_PUBLISHED, _PUBLISHED.model_copy(update={"text_head": True})),
    names=("vggt_omega_1b_512", "vggt_omega_1b_256_text"),
    sizes=_sizes,
    build=_network,
)
