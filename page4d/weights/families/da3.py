"""Checkpoints of Depth Anything 3 (any-view, single-image, nested): key maps, sizes and stated settings.

Source: Depth Anything 3, configuration files of the models; the published `config.json` files were not available.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from page4d.errors import WeightsError
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import KeyMap, Rule, dpt_rules, fusion_rules
from page4d.weights.families.family import NetworkReader, Specs, count, shape_of

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


def da3_keys(config: NetworkConfig, prefix: str = PREFIX) -> KeyMap:
    """Return the key map of a network for the schedule frame, global; its blocks depend on the size."""
    names, backbone = re.escape(prefix), re.escape(prefix + _BACKBONE)
    aux = rf"{names}head\.scratch\.output_conv"
    return (
        Rule(
            rf"{backbone}camera_token",
            "aggregator.special.camera_token",
            "camera token",
            adapt=lambda token: token[:, :, None],
        ),
        Rule(rf"{aux}1_aux\.[012]\..*", None, "ray branches of levels 0 to 2: never read"),
        Rule(rf"{aux}2_aux\.[012]\.[05]\..*", None, "ray branches of levels 0 to 2: never read"),
        Rule(rf"{aux}2_aux\.[123]\.2\..*", None, "further names of the norm that all ray branches share"),
        Rule(rf"{names}gs_head\..*", None, "Gaussian head: not used"),
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


def _block_rules(config: NetworkConfig, blocks: str) -> KeyMap:
    """Return the rules of the blocks: the encoder's, then the steps of the trunk in turn.

    The first step of the trunk is missing where it starts across views.
    """
    assert isinstance(config.encoder, DinoV2Config)
    start = config.encoder.depth
    steps = [(step, layer) for layer in range(config.depth) for step in config.schedule][config.starts_across :]
    return (
        *(Rule(rf"{blocks}({index}\..*)", r"encoder.blocks.\1") for index in range(start)),
        *(
            Rule(rf"{blocks}{start + place}\.(.*)", rf"aggregator.blocks.{step}.{layer}.\1")
            for place, (step, layer) in enumerate(steps)
        ),
    )


def da3_sizes(specs: Specs, prefix: str = PREFIX) -> dict[str, int]:
    """Return the sizes that the tensors determine, by the name of the setting."""
    blocks = f"{prefix}{_BACKBONE}blocks."
    pattern = re.compile(re.escape(blocks) + r"(\d+)\.attn\.q_norm\.weight")
    with_norms = [int(match[1]) for name in specs if (match := pattern.fullmatch(name)) is not None]
    if not with_norms:
        raise WeightsError(f"no tensor is '{blocks}N.attn.q_norm.weight'", "these weights are of another network")
    width, start = shape_of(specs, f"{prefix}{_BACKBONE}cls_token", 3)[-1], min(with_norms)
    return {
        "encoder.embed_dim": width,
        "encoder.depth": start,
        "starts_across": start % 2,
        "encoder.num_heads": width // shape_of(specs, f"{blocks}{start}.attn.q_norm.weight", 1)[0],
        "depth": (count(specs, blocks) - start + 1) // 2,
        "camera_encoder.depth": count(specs, f"{prefix}cam_enc.trunk."),
    }


def assumed_settings(config: NetworkConfig) -> dict[str, Any]:
    """Return the settings of a `config.json` as the conversion assumes them.

    `alt_start` is -1 for a network without steps across views.
    """
    encoder, any_view = config.encoder, config.depth > 0
    assert isinstance(encoder, DinoV2Config)
    start, last = (encoder.depth, encoder.depth - config.starts_across + 1) if any_view else (-1, 0)
    return {
        "net.name": _BACKBONES.get(encoder.embed_dim),
        "net.out_layers": tuple(last + 2 * layer if any_view else layer for layer in config.dense_layers),
        **dict.fromkeys(("net.alt_start", "net.qknorm_start", "net.rope_start"), start),
        "net.cat_token": any_view,
        "head.dim_in": config.head_width,
        "head.output_dim": 2 if any_view else 1,
    }


DA3_READER = NetworkReader(
    published={name: PRESETS[name] for name in ("da3-small", "da3-base", "da3-large", "da3-giant")},
    sizes=da3_sizes,
    stated=stated_settings,
    assumed=assumed_settings,
)


def da3_mono_keys(prefix: str = PREFIX) -> KeyMap:
    """Return the key map of a network whose tensor names begin with `prefix`."""
    names = re.escape(prefix)
    return (
        Rule(rf"{names}backbone\.pretrained\.(.*)", r"encoder.\1"),
        Rule(rf"{names}head\.scratch\.sky_output_conv2\.([02]\..*)", r"depth_head.sky.\1"),
        *dpt_rules("depth_head", rf"{names}head"),
    )


def da3_mono_sizes(specs: Specs, prefix: str = PREFIX) -> dict[str, int]:
    """Return the sizes that the tensors determine, by the name of the setting."""
    return {
        "encoder.embed_dim": shape_of(specs, f"{prefix}{_BACKBONE}cls_token", 3)[-1],
        "encoder.depth": count(specs, f"{prefix}{_BACKBONE}blocks."),
    }


DA3_MONO_READER = NetworkReader(
    published={"da3mono-large": PRESETS["da3-mono"], "da3metric-large": PRESETS["da3-metric"]},
    sizes=da3_mono_sizes,
    stated=stated_settings,
    assumed=assumed_settings,
)

ANYVIEW, METRIC = "model.da3.", "model.da3_metric."
"""Prefixes of the tensor names of the two networks."""

_PARTS = ("anyview", "metric")
"""The names of the two networks in settings."""


def da3_nested_keys(config: NetworkConfig) -> KeyMap:
    """Return the key map of both networks."""
    metric = (replace(rule, target=f"metric_network.{rule.target}") for rule in da3_mono_keys(METRIC))
    return (*da3_keys(config, ANYVIEW), *metric)


def _nested_sizes(specs: Specs) -> dict[str, int]:
    metric = da3_mono_sizes(specs, METRIC)
    return da3_sizes(specs, ANYVIEW) | {f"metric_network.{name}": size for name, size in metric.items()}


def _nested_assumed(config: NetworkConfig) -> dict[str, Any]:
    assert config.metric_network is not None
    return _of_parts(assumed_settings(config), assumed_settings(config.metric_network))


def _of_parts(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Join settings of the two networks, such as `anyview.net.name`."""
    named = zip(_PARTS, settings, strict=True)
    return {f"{part}.{name}": value for part, own in named for name, value in own.items()}


DA3_NESTED_READER = NetworkReader(
    published={"da3nested-giant-large": PRESETS["da3-nested"]},
    sizes=_nested_sizes,
    stated=lambda content: _of_parts(*(stated_settings(content, part) for part in _PARTS)),
    assumed=_nested_assumed,
)
