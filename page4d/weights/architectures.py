"""Configurations of published networks and encoders, read from the shapes of their tensors."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from page4d.encoders.build import ENCODER_PRESETS, EncoderConfig
from page4d.encoders.dinov2 import DinoV2Config
from page4d.encoders.swin import SwinConfig
from page4d.encoders.twins import TwinsConfig
from page4d.encoders.vit import ViTConfig
from page4d.errors import UsageError, WeightsError
from page4d.models.config import CameraHeadConfig, DPTHeadConfig, FrameHeadConfig, MaskHeadKind, NetworkConfig
from page4d.models.schedule import FRAME_GLOBAL
from page4d.weights.families import FAMILIES, Family
from page4d.weights.published import PUBLISHED, EncoderSettings, Pi3Settings, Settings, VGGTSettings
from page4d.weights.store import TensorSpec

Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True, kw_only=True)
class PublishedNetwork:
    """The network of a source, as its authors run it."""

    family: Family
    settings: Settings
    config: NetworkConfig
    """Without any mask."""

    mask_head: MaskHeadKind | None
    """Structure of the mask head; PAGE-4D only."""


def read_network(family: Family, specs: Specs, where: str, configs: Mapping[str, Settings]) -> PublishedNetwork:
    """Read sizes from tensor shapes, and other settings from `configs` by family or from the published ones.

    Raises:
        WeightsError: if the tensors are incomplete or contradict the configuration.
        UsageError: if the sizes are not the published ones and no configuration is given.
    """
    settings = configs.get(family.value, PUBLISHED[family.value])
    if isinstance(settings, Pi3Settings):
        found, prefix = _pi3_sizes(specs), "encoder."
        expected = {
            "decoder.embed_dim": settings.decoder.embed_dim,
            "decoder.depth": settings.decoder.depth,
            "decoder.num_heads": settings.decoder.num_heads,
        }
    else:
        found, prefix = _vggt_sizes(specs), "aggregator.patch_embed."
        expected = {
            "embed_dim": settings.embed_dim,
            "depth": settings.depth,
            "num_heads": settings.num_heads,
            "camera_head.trunk_depth": settings.camera_head.trunk_depth,
        }
    found["encoder.depth"] = _count(specs, f"{prefix}blocks.")
    expected["encoder.depth"] = settings.encoder.depth
    for name, number in expected.items():
        if found[name] == number:
            continue
        if family.value not in configs:
            raise UsageError(
                f"'{where}' has {name} {found[name]} where the published {FAMILIES[family].title} has {number}",
                "describe it with --config FILE.json: tensor shapes do not determine its heads and layers",
            )
        raise WeightsError(
            f"'{where}' has {name} {found[name]} where its --config has {number}", "give the matching configuration"
        )
    encoder = _dinov2(specs, prefix, settings.encoder)
    if isinstance(settings, Pi3Settings):
        config, mask_head = _pi3_network(specs, settings, encoder), None
    else:
        config = _vggt_network(specs, settings, encoder)
        mask_head = _mask_head_kind(specs) if family is Family.PAGE4D else None
    return PublishedNetwork(family=family, settings=settings, config=config, mask_head=mask_head)


def read_encoder(family: Family, specs: Specs, where: str) -> EncoderConfig:
    """Read the configuration of a published encoder; settings that shapes do not determine are the published ones.

    Raises:
        UsageError: if the encoder has no published size.
        WeightsError: if the tensors are incomplete.
    """
    if family is Family.VIT:
        return _vit(specs, where)
    return _twins(specs, where) if family is Family.TWINS else _swin(specs)


def _vggt_sizes(specs: Specs) -> dict[str, int]:
    width = _shape(specs, "aggregator.camera_token", 4)[-1]
    return {
        "embed_dim": width,
        "depth": _count(specs, "aggregator.frame_blocks."),
        "num_heads": width // _shape(specs, "aggregator.frame_blocks.0.attn.q_norm.weight", 1)[0],
        "camera_head.trunk_depth": _count(specs, "camera_head.trunk."),
    }


def _pi3_sizes(specs: Specs) -> dict[str, int]:
    width = _shape(specs, "register_token", 4)[-1]
    return {
        "decoder.embed_dim": width,
        "decoder.depth": _count(specs, "decoder."),
        "decoder.num_heads": width // _shape(specs, "decoder.0.attn.q_norm.weight", 1)[0],
    }


def _mask_head_kind(specs: Specs) -> MaskHeadKind:
    """Return the structure of PAGE-4D's mask head from the shape of its second convolution."""
    shape = _shape(specs, "aggregator.spatial_mask_head.head0.2.weight", 4)
    return MaskHeadKind.CKPT150 if shape[1] == 1 else MaskHeadKind.RELEASE


def _vggt_network(specs: Specs, settings: VGGTSettings, encoder: DinoV2Config) -> NetworkConfig:
    dense = {
        name: DPTHeadConfig(
            layers=settings.dpt_head.intermediate_layer_idx,
            features=_shape(specs, f"{name}.scratch.layer1_rn.weight", 4)[0],
            out_channels=tuple(_shape(specs, f"{name}.projects.{level}.weight", 4)[0] for level in range(4)),  # type: ignore[arg-type]
            hidden=_shape(specs, f"{name}.scratch.output_conv2.0.weight", 4)[0],
        )
        for name in ("depth_head", "point_head")
    }
    camera_width = _shape(specs, "camera_head.token_norm.weight", 1)[0]
    camera_fc1 = _shape(specs, "camera_head.trunk.0.mlp.fc1.weight", 2)[0]
    return NetworkConfig(
        encoder=encoder,
        depth=settings.depth,
        num_heads=settings.num_heads,
        schedule=FRAME_GLOBAL,
        mlp_ratio=_shape(specs, "aggregator.frame_blocks.0.mlp.fc1.weight", 2)[0] / settings.embed_dim,
        norm_eps=settings.block_norm_eps,
        rope_base=settings.rope_freq,
        num_registers=_shape(specs, "aggregator.register_token", 4)[2],
        token_slots=_shape(specs, "aggregator.camera_token", 4)[1],
        camera_head=CameraHeadConfig(
            trunk_depth=settings.camera_head.trunk_depth,
            num_heads=settings.camera_head.num_heads,
            num_iterations=settings.camera_head.num_iterations,
            mlp_ratio=camera_fc1 / camera_width,
        ),
        depth_head=dense["depth_head"],
        point_head=dense["point_head"],
    )


def _pi3_network(specs: Specs, settings: Pi3Settings, encoder: DinoV2Config) -> NetworkConfig:
    width = settings.decoder.embed_dim
    head_width = _shape(specs, "point_decoder.projects.weight", 2)[0]
    return NetworkConfig(
        encoder=encoder,
        depth=settings.decoder.depth // 2,
        num_heads=settings.decoder.num_heads,
        schedule=FRAME_GLOBAL,
        mlp_ratio=_shape(specs, "decoder.0.mlp.fc1.weight", 2)[0] / width,
        norm_eps=settings.decoder.block_norm_eps,
        qk_norm_eps=settings.decoder.qk_norm_eps,
        rope_base=settings.rope_freq,
        num_registers=_shape(specs, "register_token", 4)[2],
        token_slots=_shape(specs, "register_token", 4)[1],
        camera_token=False,
        frame_head=FrameHeadConfig(
            dim=head_width,
            depth=_count(specs, "point_decoder.blocks."),
            num_heads=settings.heads.dec_num_heads,
            point_dim=_shape(specs, "point_decoder.linear_out.weight", 2)[0],
            camera_dim=_shape(specs, "camera_decoder.linear_out.weight", 2)[0],
            mlp_ratio=_shape(specs, "point_decoder.blocks.0.mlp.fc1.weight", 2)[0] / head_width,
            norm_eps=settings.heads.block_norm_eps,
        ),
    )


def _dinov2(specs: Specs, prefix: str, settings: EncoderSettings) -> DinoV2Config:
    dim, _, patch, _ = _shape(specs, f"{prefix}patch_embed.proj.weight", 4)
    return DinoV2Config(
        image_size=_table_side(specs, f"{prefix}pos_embed") * patch,
        patch_size=patch,
        embed_dim=dim,
        depth=settings.depth,
        num_heads=settings.num_heads,
        mlp_ratio=_shape(specs, f"{prefix}blocks.0.mlp.fc1.weight", 2)[0] / dim,
        num_registers=_shape(specs, f"{prefix}register_tokens", 3)[1],
        norm_eps=settings.norm_eps,
    )


def _vit(specs: Specs, where: str) -> ViTConfig:
    dim, _, patch, _ = _shape(specs, "patch_embed.proj.weight", 4)
    depth, side = _count(specs, "blocks."), _table_side(specs, "pos_embed")
    for config in ENCODER_PRESETS.values():
        if isinstance(config, ViTConfig) and (config.embed_dim, config.depth) == (dim, depth):
            return replace(
                config,
                patch_size=patch,
                image_size=side * patch,
                qkv_bias="blocks.0.attn.qkv.bias" in specs,
                num_classes=_num_classes(specs),
            )
    raise UsageError(
        f"'{where}' is a ViT of width {dim} and depth {depth}, which is not a published size",
        "its number of heads cannot be read from tensors: convert one of " + _presets(ViTConfig),
    )


def _swin(specs: Specs) -> SwinConfig:
    dim, _, patch, _ = _shape(specs, "patch_embed.proj.weight", 4)
    stages = _count(specs, "layers.")
    tables = [_shape(specs, f"layers.{i}.blocks.0.attn.relative_position_bias_table", 2) for i in range(stages)]
    position = specs.get("absolute_pos_embed")
    side = SwinConfig.image_size // patch if position is None else math.isqrt(position.shape[1])
    return SwinConfig(
        image_size=side * patch,
        first_patch=patch,
        dim=dim,
        depths=tuple(_count(specs, f"layers.{i}.blocks.") for i in range(stages)),
        num_heads=tuple(table[1] for table in tables),
        window=(math.isqrt(tables[0][0]) + 1) // 2,
        mlp_ratio=_shape(specs, "layers.0.blocks.0.mlp.fc1.weight", 2)[0] / dim,
        qkv_bias="layers.0.blocks.0.attn.qkv.bias" in specs,
        patch_norm="patch_embed.norm.weight" in specs,
        absolute_positions=position is not None,
        num_classes=_num_classes(specs),
    )


def _twins(specs: Specs, where: str) -> TwinsConfig:
    stages = _count(specs, "patch_embeds.")
    dims = tuple(_shape(specs, f"patch_embeds.{i}.proj.weight", 4)[0] for i in range(stages))
    depths = tuple(_count(specs, f"blocks.{i}.") for i in range(stages))
    for config in ENCODER_PRESETS.values():
        if isinstance(config, TwinsConfig) and (config.dims, config.depths) == (dims, depths):
            return replace(config, num_classes=_num_classes(specs))
    raise UsageError(
        f"'{where}' is a Twins-SVT of widths {dims} and depths {depths}, which is not a published size",
        "its heads and windows cannot be read from tensors: convert one of " + _presets(TwinsConfig),
    )


def _presets(kind: type) -> str:
    return ", ".join(name for name, config in ENCODER_PRESETS.items() if isinstance(config, kind))


def _num_classes(specs: Specs) -> int | None:
    found = [specs[name].shape[0] for name in ("head.weight", "head.fc.weight") if name in specs]
    return found[0] if found else None


def _table_side(specs: Specs, name: str) -> int:
    """Return the side in patches of the square that a position table with a class token covers."""
    patches = _shape(specs, name, 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side * side != patches:
        raise WeightsError(f"'{name}' covers {patches} patches, which is not a square", "check the weights")
    return side


def _count(specs: Specs, prefix: str) -> int:
    """Count the distinct numbers that follow a prefix."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
    return len({match[1] for name in specs if (match := pattern.match(name)) is not None})


def _shape(specs: Specs, name: str, num_axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that determines a size."""
    if name not in specs:
        raise WeightsError(
            f"the weights lack the tensor '{name}'", "they are incomplete, or their names were changed"
        )
    shape = specs[name].shape
    if len(shape) != num_axes or 0 in shape:
        raise WeightsError(
            f"tensor '{name}' is {list(shape)} where {num_axes} axes are expected", "these weights were changed"
        )
    return shape
