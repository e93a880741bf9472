"""Checkpoints of the single-image networks of Depth Anything 3: settings, key map and configuration."""

import re
from dataclasses import replace
from typing import Literal

from page4d.geometry.pixels import DA3_SIDE
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import ResidualKind
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.attention import TableResampling
from page4d.weights.conversion.keymap import KeyMap, Rule, dpt_rules
from page4d.weights.families.da3_record import assumed_settings, stated_settings
from page4d.weights.families.dense_head import read_dense_head
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.settings import NetworkSettings
from page4d.weights.families.specs import Specs, count, shape_of, table_side

PREFIX = "model."
"""Of all tensor names; in the nested checkpoint it is `model.da3_metric.`."""

METRIC_FOCAL = 300.0
"""Focal length in pixels for which the metric network predicts metres."""


_BACKBONE = "backbone.pretrained."


class BackboneSettings(NetworkSettings):
    """The vision transformer, whose blocks `out_layers` the head reads."""

    embed_dim: int
    depth: int
    num_heads: int
    out_layers: tuple[int, int, int, int]
    alt_start: Literal[-1] = -1
    cat_token: Literal[False] = False


class DA3MonoSettings(NetworkSettings):
    """A single-image network of Depth Anything 3; without `metric_focal` its depth has no unit."""

    model: Literal["da3-mono"]
    encoder: BackboneSettings
    metric_focal: float | None = None


def da3_mono_keys(prefix: str = PREFIX) -> KeyMap:
    """Return the key map of a network whose tensor names begin with `prefix`."""
    names = re.escape(prefix)
    return (
        Rule(pattern=rf"{names}backbone\.pretrained\.(.*)", target=r"encoder.\1"),
        Rule(pattern=rf"{names}head\.scratch\.sky_output_conv2\.([02]\..*)", target=r"depth_head.sky.\1"),
        *dpt_rules("depth_head", rf"{names}head"),
    )


def read_da3_mono(specs: Specs, settings: DA3MonoSettings, prefix: str = PREFIX) -> NetworkConfig:
    """Return the network of tensors whose names begin with `prefix`."""
    name, own = prefix + _BACKBONE, settings.encoder
    dim, _, patch, _ = shape_of(specs, f"{name}patch_embed.proj.weight", 4)
    return NetworkConfig(
        encoder=DinoV2Config(
            image_size=table_side(specs, f"{name}pos_embed") * patch,
            patch_size=patch,
            embed_dim=dim,
            depth=own.depth,
            num_heads=own.num_heads,
            mlp_ratio=shape_of(specs, f"{name}blocks.0.mlp.fc1.weight", 2)[0] / dim,
            num_registers=0,
            norm_eps=1e-6,
            table_resampling=TableResampling.OFFSET,
            final_norm_eps=1e-5,
            levels=own.out_layers,
        ),
        depth=0,
        num_heads=own.num_heads,
        num_registers=0,
        camera_token=False,
        depth_head=replace(
            read_dense_head(specs, f"{prefix}head", own.out_layers),
            norm_eps=None,
            residual=ResidualKind.PLAIN,
            positions=False,
            confidence=False,
            sky=True,
        ),
        metric_focal=settings.metric_focal,
        default_long_side=DA3_SIDE,
    )


def da3_mono_sizes(specs: Specs, prefix: str = PREFIX) -> dict[str, int]:
    """Return the sizes that the tensors determine, by the name of the setting."""
    return {
        "encoder.embed_dim": shape_of(specs, f"{prefix}{_BACKBONE}cls_token", 3)[-1],
        "encoder.depth": count(specs, f"{prefix}{_BACKBONE}blocks."),
    }


_LARGE = BackboneSettings(embed_dim=1024, depth=24, num_heads=16, out_layers=(4, 11, 17, 23))

PUBLISHED: dict[str, DA3MonoSettings] = {
    "da3mono-large": DA3MonoSettings(model="da3-mono", encoder=_LARGE),
    "da3metric-large": DA3MonoSettings(model="da3-mono", encoder=_LARGE, metric_focal=METRIC_FOCAL),
}
"""Settings of the published checkpoints by name; their tensors have the same names and shapes."""


def da3_mono_assumed(settings: DA3MonoSettings) -> dict[str, object]:
    """Return the settings of a `config.json` as the conversion assumes them."""
    return assumed_settings(settings.encoder.embed_dim, settings.encoder.out_layers)


READER = NetworkReader(
    published=tuple(PUBLISHED.values()),
    names=tuple(PUBLISHED),
    sizes=da3_mono_sizes,
    build=read_da3_mono,
    stated=stated_settings,
    assumed=da3_mono_assumed,
)
