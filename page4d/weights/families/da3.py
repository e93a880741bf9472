"""Checkpoints of Depth Anything 3 (any-view, single-image, nested): settings, key maps and configurations.

Source: Depth Anything 3, configuration files of the models; the published `config.json` files were not available.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from page4d.errors import UsageError, WeightsError
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import CameraEncoderConfig, ReferenceView
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import Exemption, KeyMap, Rule, dpt_rules, fusion_rules
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.shapes import NetworkSettings, Specs, count, read_dense_head, read_dinov2, shape_of

_STATED = {
    "net": ("name", "out_layers", "alt_start", "qknorm_start", "rope_start", "cat_token"),
    "head": ("dim_in", "output_dim"),
}
_BACKBONES = {384: "vits", 768: "vitb", 1024: "vitl", 1536: "vitg"}


def stated_settings(content: Mapping[str, Any], part: str | None = None) -> dict[str, Any]:
    """Return the settings that a `config.json` states, such as `net.alt_start`; without those that it lacks.

    They are read at its top or below `config`, and there below `part` if the network is one of two.
    """
    inner = _record(content, "config") or content
    inner = inner if part is None else _record(inner, part)
    return {
        f"{module}.{name}": record[name]
        for module, names in _STATED.items()
        for record in (_record(inner, module),)
        for name in names
        if name in record
    }


def _record(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


PREFIX = "model."
"""Of all tensor names; in the nested checkpoint it is `model.da3.`."""


_BACKBONE = "backbone.pretrained."
_DA3, _MONO = PRESETS["da3-large"], PRESETS["da3-mono"]
"""Published networks: settings that neither tensors nor settings determine are theirs."""

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
        Rule(rf"{backbone}((?:cls_token|pos_embed|patch_embed\..*))", r"encoder.\1"),
        Rule(rf"{backbone}norm\.(.*)", r"aggregator.readout_norm.\1"),
        *_block_rules(config, rf"{backbone}blocks\."),
        Rule(rf"{names}cam_enc\.trunk\.(.*)", r"camera_encoder.blocks.\1"),
        Rule(rf"{names}cam_enc\.(.*)", r"camera_encoder.\1"),
        Rule(rf"{names}cam_dec\.backbone\.0\.(.*)", r"camera_head.hidden1.\1"),
        Rule(rf"{names}cam_dec\.backbone\.2\.(.*)", r"camera_head.hidden2.\1"),
        Rule(rf"{names}cam_dec\.fc_t\.(.*)", r"camera_head.translation.\1"),
        Rule(rf"{names}cam_dec\.fc_qvec\.(.*)", r"camera_head.quaternion.\1"),
        Rule(rf"{names}cam_dec\.fc_fov\.0\.(.*)", r"camera_head.field_of_view.\1"),
        *dpt_rules("depth_head", rf"{names}head"),
        *fusion_rules(rf"{names}head", "depth_head.ray_branch", "_aux"),
        Rule(rf"{aux}1_aux\.3\.(\d)\.(.*)", r"depth_head.ray_branch.fused_convs.\1.\2"),
        Rule(rf"{aux}2_aux\.3\.0\.(.*)", r"depth_head.ray_branch.out_conv1.\1"),
        Rule(rf"{aux}2_aux\.3\.5\.(.*)", r"depth_head.ray_branch.out_conv2.\1"),
        # One norm for all levels of the ray branch, published as that of the first.
        Rule(rf"{aux}2_aux\.0\.2\.(.*)", r"depth_head.ray_branch.norm.\1"),
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
            adapt=lambda token: token[:, :, None],
        ),
        Exemption(rule="ray branches of levels 0 to 2: never read", pattern=rf"{conv}1_aux\.[012]\..*"),
        Exemption(rule="ray branches of levels 0 to 2: never read", pattern=rf"{conv}2_aux\.[012]\.[05]\..*"),
        Exemption(
            rule="further names of the norm that all ray branches share", pattern=rf"{conv}2_aux\.[123]\.2\..*"
        ),
        Exemption(rule="Gaussian head: not used", pattern=rf"{names}gs_head\..*"),
    )


def _block_rules(config: NetworkConfig, blocks: str) -> KeyMap:
    """Return the rules of the blocks: the encoder's, then the steps of the trunk in turn.

    The first step of the trunk is missing where it starts across views. Blocks after the last that a head reads are
    dropped.
    """
    start = config.encoder.depth if isinstance(config.encoder, DinoV2Config) else 0
    steps = [(step, layer) for layer in range(config.depth) for step in config.schedule][config.starts_across :]
    return (
        *(Rule(rf"{blocks}({index}\..*)", r"encoder.blocks.\1") for index in range(start)),
        *(
            Rule(rf"{blocks}{start + place}\.(.*)", rf"aggregator.blocks.{step}.{layer}.\1")
            for place, (step, layer) in enumerate(steps)
        ),
        Rule(rf"{blocks}\d+\..*", None),
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
            f"⟨configs⟩: {own.depth} blocks that are read after {own.out_layers}",
            "heads read odd blocks from alt_start on",
        )
    sizes = {"depth": start, "num_heads": own.num_heads}
    encoder = read_dinov2(specs, prefix + _BACKBONE, _DA3.encoder, **sizes)  # without a norm after its blocks
    layers = tuple((index - start) // 2 for index in own.out_layers)
    return replace(
        _DA3,
        encoder=encoder,
        depth=(max(own.out_layers) + 2 - start) // 2,
        num_heads=own.num_heads,
        starts_across=start % 2 == 1,
        mlp_ratio=encoder.mlp_ratio,
        feed_forward=encoder.feed_forward,
        reference_view=_REFERENCES[settings.ref_view_strategy],
        camera_encoder=CameraEncoderConfig(depth=settings.cam_enc.trunk_depth, num_heads=settings.cam_enc.num_heads),
        depth_head=read_dense_head(specs, f"{prefix}head", layers, _DA3.depth_head),
    )


def _published(
    embed_dim: int, depth: int, num_heads: int, alt_start: int, out_layers: tuple[int, int, int, int]
) -> DA3Settings:
    backbone = BackboneSettings(
        embed_dim=embed_dim, depth=depth, num_heads=num_heads, alt_start=alt_start, out_layers=out_layers
    )
    return DA3Settings(model="da3", encoder=backbone)


DA3_PUBLISHED: dict[str, DA3Settings] = {
    "da3-small": _published(384, 12, 6, 4, (5, 7, 9, 11)),
    "da3-base": _published(768, 12, 12, 4, (5, 7, 9, 11)),
    "da3-large": _published(1024, 24, 16, 8, (11, 15, 19, 23)),
    "da3-giant": _published(1536, 40, 24, 13, (19, 27, 33, 39)),
}
"""Settings of the published checkpoints by name."""


def assumed_settings(settings: "DA3Settings | DA3MonoSettings") -> dict[str, Any]:
    """Return the settings of a `config.json` as the conversion assumes them.

    `alt_start` is -1 for a network without steps across views.
    """
    own = settings.encoder
    any_view = own.alt_start >= 0
    return {
        "net.name": _BACKBONES.get(own.embed_dim),
        "net.out_layers": own.out_layers,
        **dict.fromkeys(("net.alt_start", "net.qknorm_start", "net.rope_start"), own.alt_start),
        "net.cat_token": any_view,
        "head.dim_in": 2 * own.embed_dim if any_view else own.embed_dim,
        "head.output_dim": 2 if any_view else 1,
    }


DA3_READER = NetworkReader(
    published=tuple(DA3_PUBLISHED.values()),
    names=tuple(DA3_PUBLISHED),
    sizes=da3_sizes,
    build=read_da3,
    stated=stated_settings,
    assumed=assumed_settings,
)

METRIC_FOCAL = 300.0
"""Focal length in pixels for which the metric network predicts metres."""


class MonoBackboneSettings(NetworkSettings):
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
    encoder: MonoBackboneSettings
    metric_focal: float | None = None


def da3_mono_keys(prefix: str = PREFIX) -> KeyMap:
    """Return the key map of a network whose tensor names begin with `prefix`."""
    names = re.escape(prefix)
    return (
        Rule(rf"{names}backbone\.pretrained\.(.*)", r"encoder.\1"),
        Rule(rf"{names}head\.scratch\.sky_output_conv2\.([02]\..*)", r"depth_head.sky.\1"),
        *dpt_rules("depth_head", rf"{names}head"),
    )


def read_da3_mono(specs: Specs, settings: DA3MonoSettings, prefix: str = PREFIX) -> NetworkConfig:
    """Return the network of tensors whose names begin with `prefix`."""
    own = settings.encoder
    sizes = {"depth": own.depth, "num_heads": own.num_heads, "levels": own.out_layers}
    return replace(
        _MONO,
        encoder=read_dinov2(specs, prefix + _BACKBONE, _MONO.encoder, **sizes),
        num_heads=own.num_heads,
        depth_head=read_dense_head(specs, f"{prefix}head", own.out_layers, _MONO.depth_head),
        metric_focal=settings.metric_focal,
    )


def da3_mono_sizes(specs: Specs, prefix: str = PREFIX) -> dict[str, int]:
    """Return the sizes that the tensors determine, by the name of the setting."""
    return {
        "encoder.embed_dim": shape_of(specs, f"{prefix}{_BACKBONE}cls_token", 3)[-1],
        "encoder.depth": count(specs, f"{prefix}{_BACKBONE}blocks."),
    }


_LARGE = MonoBackboneSettings(embed_dim=1024, depth=24, num_heads=16, out_layers=(4, 11, 17, 23))

DA3_MONO_PUBLISHED: dict[str, DA3MonoSettings] = {
    "da3mono-large": DA3MonoSettings(model="da3-mono", encoder=_LARGE),
    "da3metric-large": DA3MonoSettings(model="da3-mono", encoder=_LARGE, metric_focal=METRIC_FOCAL),
}
"""Settings of the published checkpoints by name; their tensors have the same names and shapes."""


DA3_MONO_READER = NetworkReader(
    published=tuple(DA3_MONO_PUBLISHED.values()),
    names=tuple(DA3_MONO_PUBLISHED),
    sizes=da3_mono_sizes,
    build=read_da3_mono,
    stated=stated_settings,
    assumed=assumed_settings,
)

ANYVIEW, METRIC = "model.da3.", "model.da3_metric."
"""Prefixes of the tensor names of the two networks."""

_PARTS = ("anyview", "metric")
"""The names of the two networks in settings."""


class DA3NestedSettings(NetworkSettings):
    """An any-view network and a metric network of Depth Anything 3."""

    model: Literal["da3-nested"]
    anyview: DA3Settings
    metric: DA3MonoSettings


def da3_nested_keys(config: NetworkConfig) -> KeyMap:
    """Return the key map of both networks."""
    metric = (replace(rule, target=f"metric_network.{rule.target}") for rule in da3_mono_keys(METRIC))
    return (*da3_keys(config, ANYVIEW), *metric)


def read_da3_nested(specs: Specs, settings: DA3NestedSettings) -> NetworkConfig:
    """Return the any-view network with its metric network."""
    metric = read_da3_mono(specs, settings.metric, METRIC)
    return replace(read_da3(specs, settings.anyview, ANYVIEW), metric_network=metric)


def _of_parts(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Join settings of the two networks, such as `anyview.net.name`."""
    named = zip(_PARTS, settings, strict=True)
    return {f"{part}.{name}": value for part, own in named for name, value in own.items()}


DA3_NESTED_READER = NetworkReader(
    published=(
        DA3NestedSettings(
            model="da3-nested", anyview=DA3_PUBLISHED["da3-giant"], metric=DA3_MONO_PUBLISHED["da3metric-large"]
        ),
    ),
    names=("da3nested-giant-large",),
    sizes=lambda specs: _of_parts(da3_sizes(specs, ANYVIEW), da3_mono_sizes(specs, METRIC)),
    build=read_da3_nested,
    stated=lambda content: _of_parts(*(stated_settings(content, part) for part in _PARTS)),
    assumed=lambda settings: _of_parts(assumed_settings(settings.anyview), assumed_settings(settings.metric)),
)
