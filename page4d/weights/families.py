"""Recognise which public network tensors are of, and read its sizes from them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from page4d.encoders.dinov2 import DinoV2Config
from page4d.errors import UsageError, WeightsError
from page4d.models.config import (
    CameraHeadConfig,
    DPTHeadConfig,
    FrameHeadConfig,
    MaskHeadKind,
    NetworkConfig,
)
from page4d.models.schedule import FRAME_GLOBAL
from page4d.weights.published import PUBLISHED, EncoderSettings, Pi3Settings, Settings, VGGTSettings
from page4d.weights.stream import TensorSpec

Specs = Mapping[str, TensorSpec]


class Family(StrEnum):
    """A public network."""

    VGGT = "vggt"
    PAGE4D = "page4d"
    PI3 = "pi3"


LICENCES: dict[Family, str] = {
    Family.VGGT: "VGGT License v1, 29 July 2025 (Meta); facebook/VGGT-1B is for non-commercial use",
    Family.PAGE4D: "none stated; derived from VGGT (VGGT License v1), for non-commercial use until clarified",
    Family.PI3: "CC BY-NC 4.0 (weights of Pi3; its code is BSD-3-Clause)",
}
"""What the authors say of their weights, to the best of our knowledge."""

TITLES: dict[Family, str] = {Family.VGGT: "VGGT", Family.PAGE4D: "PAGE-4D", Family.PI3: "Pi3"}

_MASK_HEAD = "aggregator.spatial_mask_head."


def recognise(names: Iterable[str], where: str) -> Family:
    """Tell the network by the names of its tensors.

    Raises:
        WeightsError: if they are of none that is known.
    """
    names = list(names)

    def some(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in names)

    if some("aggregator.blocks."):
        raise WeightsError(f"'{where}' is a network of page4d already", "use it as it is, with --weights")
    if some("aggregator.frame_blocks.") and some("aggregator.global_blocks."):
        return Family.PAGE4D if some(_MASK_HEAD) else Family.VGGT
    if some("decoder.") and some("encoder.blocks.") and "register_token" in names:
        return Family.PI3
    first = ", ".join(sorted(names)[:3])
    raise WeightsError(
        f"'{where}' is of no network that page4d knows ({len(names)} tensors: {first}, ...)",
        "give the weights of VGGT, PAGE-4D or Pi3 under the names that their authors use",
    )


def mask_head_kind(specs: Specs) -> MaskHeadKind:
    """Tell the structure of PAGE-4D's mask head by the shape of its second convolution."""
    shape = _shape(specs, f"{_MASK_HEAD}head0.2.weight", 4)
    return MaskHeadKind.CKPT150 if shape[1] == 1 else MaskHeadKind.RELEASE


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A source with what its network is."""

    family: Family
    settings: Settings
    network: NetworkConfig
    """As its authors run it, without any mask."""


def read_network(specs: Specs, where: str, configs: Mapping[str, Settings]) -> Recognised:
    """Read what the tensors tell, and the rest from a configuration of this family or from what is published.

    Raises:
        WeightsError: if the tensors are of no known network or contradict the configuration.
        UsageError: if they have other sizes than the published ones and no configuration is given.
    """
    family = recognise(specs, where)
    settings = configs.get(family.value, PUBLISHED[family.value])
    if isinstance(settings, Pi3Settings):
        found = _pi3_sizes(specs)
        said = {
            "decoder.embed_dim": settings.decoder.embed_dim,
            "decoder.depth": settings.decoder.depth,
            "decoder.num_heads": settings.decoder.num_heads,
        }
    else:
        found = _vggt_sizes(specs)
        said = {
            "embed_dim": settings.embed_dim,
            "depth": settings.depth,
            "num_heads": settings.num_heads,
            "camera_head.trunk_depth": settings.camera_head.trunk_depth,
        }
    found["encoder.depth"] = _count(specs, _encoder_prefix(family) + "blocks.")
    said["encoder.depth"] = settings.encoder.depth
    for name, number in said.items():
        if found[name] == number:
            continue
        if family.value not in configs:
            raise UsageError(
                f"'{where}' has {name} {found[name]} where the published {TITLES[family]} has {number}",
                "say with --config FILE.json how many heads and which layers it has: tensors cannot tell",
            )
        raise WeightsError(
            f"'{where}' has {name} {found[name]} where its --config says {number}", "give the configuration it has"
        )
    if isinstance(settings, Pi3Settings):
        return Recognised(family=family, settings=settings, network=_pi3_network(specs, settings))
    return Recognised(family=family, settings=settings, network=_vggt_network(specs, settings))


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


def _vggt_network(specs: Specs, settings: VGGTSettings) -> NetworkConfig:
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
        encoder=_encoder(specs, _encoder_prefix(Family.VGGT), settings.encoder),
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


def _pi3_network(specs: Specs, settings: Pi3Settings) -> NetworkConfig:
    width = settings.decoder.embed_dim
    head_width = _shape(specs, "point_decoder.projects.weight", 2)[0]
    return NetworkConfig(
        encoder=_encoder(specs, _encoder_prefix(Family.PI3), settings.encoder),
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


def _encoder_prefix(family: Family) -> str:
    return "encoder." if family is Family.PI3 else "aggregator.patch_embed."


def _encoder(specs: Specs, prefix: str, settings: EncoderSettings) -> DinoV2Config:
    projection = _shape(specs, f"{prefix}patch_embed.proj.weight", 4)
    patches = _shape(specs, f"{prefix}pos_embed", 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side * side != patches:
        raise WeightsError(f"'{prefix}pos_embed' covers {patches} patches, which is no square", "check the weights")
    return DinoV2Config(
        image_size=side * projection[-1],
        patch_size=projection[-1],
        embed_dim=projection[0],
        depth=settings.depth,
        num_heads=settings.num_heads,
        mlp_ratio=_shape(specs, f"{prefix}blocks.0.mlp.fc1.weight", 2)[0] / projection[0],
        num_registers=_shape(specs, f"{prefix}register_tokens", 3)[1],
        norm_eps=settings.norm_eps,
    )


def _shape(specs: Specs, name: str, num_axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that tells a size."""
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


def _count(specs: Specs, prefix: str) -> int:
    """Return how many numbered parts there are behind a prefix."""
    return len({name[len(prefix) :].split(".")[0] for name in specs if name.startswith(prefix)})
