"""Checkpoints of VGGT and PAGE-4D: settings, key maps and configurations."""

from typing import Literal

from pydantic import Field

from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import CameraHeadConfig, MaskHeadKind
from page4d.weights.conversion.accounting import KeyMap, Rule, dpt_rules
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.shapes import (
    LARGE_ENCODER,
    EncoderSettings,
    NetworkSettings,
    Specs,
    count,
    read_dense_head,
    shape_of,
)

_ENCODER = "aggregator.patch_embed."


class CameraHeadSettings(NetworkSettings):
    """The iterative camera head."""

    num_heads: int
    num_iterations: int
    trunk_depth: int
    trans_act: Literal["linear"] = "linear"
    quat_act: Literal["linear"] = "linear"
    fl_act: Literal["relu"] = "relu"


class DenseHeadSettings(NetworkSettings):
    """The dense heads."""

    intermediate_layer_idx: tuple[int, int, int, int]
    pos_embed: Literal[True] = True


class DepthSettings(NetworkSettings):
    """Output activations of the depth head."""

    activation: Literal["exp"] = "exp"
    conf_activation: Literal["expp1"] = "expp1"


class PointSettings(NetworkSettings):
    """Output activations of the point head."""

    activation: Literal["inv_log"] = "inv_log"
    conf_activation: Literal["expp1"] = "expp1"


class MaskSettings(NetworkSettings):
    """PAGE-4D's mask."""

    layers_masked: tuple[int, ...] = tuple(range(10, 20))
    mask_after_frame_block: tuple[int] = (9,)
    scale: float = Field(default=64.0, ge=64, le=64)


class VGGTSettings(NetworkSettings):
    """VGGT, or PAGE-4D (VGGT with a mask)."""

    model: Literal["vggt", "page4d"]
    embed_dim: int
    depth: int
    num_heads: int
    block_norm_eps: float
    rope_freq: float
    encoder: EncoderSettings
    camera_head: CameraHeadSettings
    dpt_head: DenseHeadSettings
    depth_head: DepthSettings = DepthSettings()
    point_head: PointSettings = PointSettings()
    mask: MaskSettings = MaskSettings()
    aa_order: tuple[Literal["frame"], Literal["global"]] = ("frame", "global")
    aa_block_size: Literal[1] = 1


VGGT: KeyMap = (
    Rule(r"aggregator\.patch_embed\.mask_token", None),
    Rule(r"aggregator\.patch_embed\.(.*)", r"encoder.\1"),
    Rule(r"aggregator\.((?:camera|register)_token)", r"aggregator.special.\1"),
    Rule(r"aggregator\.frame_blocks\.(.*)", r"aggregator.blocks.frame.\1"),
    Rule(r"aggregator\.global_blocks\.(.*)", r"aggregator.blocks.global.\1"),
    Rule(r"camera_head\.empty_pose_tokens", "camera_head.empty_pose"),
    Rule(r"camera_head\.poseLN_modulation\.1\.(.*)", r"camera_head.modulation.\1"),
    Rule(r"(camera_head\.(?:token_norm|trunk_norm|embed_pose|pose_branch|trunk)\..*)", r"\1"),
    *dpt_rules("depth_head"),
    *dpt_rules("point_head"),
    Rule(r"track_head\..*", None),
)
"""The public VGGT checkpoint, for the schedule frame, global."""

PAGE4D: KeyMap = (Rule(r"aggregator\.spatial_mask_head\.(head0\..*)", r"aggregator.dynamic.head.\1"), *VGGT)
"""The public PAGE-4D checkpoint that runs with its mask."""


def read_mask_head(specs: Specs) -> MaskHeadKind:
    """Return the structure of PAGE-4D's mask head from the shape of its second convolution."""
    shape = shape_of(specs, "aggregator.spatial_mask_head.head0.2.weight", 4)
    return MaskHeadKind.CKPT150 if shape[1] == 1 else MaskHeadKind.RELEASE


def read_sizes(specs: Specs) -> dict[str, int]:
    """Return the sizes that the tensors determine, by the name of the setting."""
    width = shape_of(specs, "aggregator.camera_token", 4)[-1]
    return {
        "embed_dim": width,
        "depth": count(specs, "aggregator.frame_blocks."),
        "num_heads": width // shape_of(specs, "aggregator.frame_blocks.0.attn.q_norm.weight", 1)[0],
        "camera_head.trunk_depth": count(specs, "camera_head.trunk."),
        "encoder.depth": count(specs, f"{_ENCODER}blocks."),
    }


def _network(specs: Specs, settings: VGGTSettings) -> NetworkConfig:
    dense = {
        name: read_dense_head(specs, name, settings.dpt_head.intermediate_layer_idx)
        for name in ("depth_head", "point_head")
    }
    camera_width = shape_of(specs, "camera_head.token_norm.weight", 1)[0]
    camera_fc1 = shape_of(specs, "camera_head.trunk.0.mlp.fc1.weight", 2)[0]
    return NetworkConfig(
        encoder=settings.encoder.read(specs, _ENCODER),
        depth=settings.depth,
        num_heads=settings.num_heads,
        schedule=FRAME_GLOBAL,
        mlp_ratio=shape_of(specs, "aggregator.frame_blocks.0.mlp.fc1.weight", 2)[0] / settings.embed_dim,
        norm_eps=settings.block_norm_eps,
        rope_base=settings.rope_freq,
        num_registers=shape_of(specs, "aggregator.register_token", 4)[2],
        token_slots=shape_of(specs, "aggregator.camera_token", 4)[1],
        camera_head=CameraHeadConfig(
            trunk_depth=settings.camera_head.trunk_depth,
            num_heads=settings.camera_head.num_heads,
            num_iterations=settings.camera_head.num_iterations,
            mlp_ratio=camera_fc1 / camera_width,
        ),
        depth_head=dense["depth_head"],
        point_head=dense["point_head"],
    )


def _published(model: Literal["vggt", "page4d"]) -> VGGTSettings:
    return VGGTSettings(
        model=model,
        embed_dim=1024,
        depth=24,
        num_heads=16,
        block_norm_eps=1e-5,
        rope_freq=100,
        encoder=LARGE_ENCODER,
        camera_head=CameraHeadSettings(num_heads=16, num_iterations=4, trunk_depth=4),
        dpt_head=DenseHeadSettings(intermediate_layer_idx=(4, 11, 17, 23)),
    )


VGGT_READER = NetworkReader(published=(_published("vggt"),), sizes=read_sizes, build=_network)
PAGE4D_READER = NetworkReader(published=(_published("page4d"),), sizes=read_sizes, build=_network)
