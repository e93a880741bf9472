"""The nested checkpoint of Depth Anything 3: an any-view network, and the metric network that gives it metres."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from page4d.networks.config import NetworkConfig
from page4d.weights.conversion.accounting import Exemption
from page4d.weights.conversion.keymap import KeyMap
from page4d.weights.families.da3 import PUBLISHED as DA3
from page4d.weights.families.da3 import (
    DA3Settings,
    da3_assumed,
    da3_exemptions,
    da3_keys,
    da3_sizes,
    read_da3,
)
from page4d.weights.families.da3_mono import PUBLISHED as DA3_MONO
from page4d.weights.families.da3_mono import (
    DA3MonoSettings,
    da3_mono_assumed,
    da3_mono_keys,
    da3_mono_sizes,
    read_da3_mono,
)
from page4d.weights.families.da3_record import stated_settings
from page4d.weights.families.family import NetworkReader
from page4d.weights.families.settings import NetworkSettings
from page4d.weights.families.specs import Specs

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


def da3_nested_exemptions() -> tuple[Exemption, ...]:
    """Return the rules of tensors that are reshaped or that the network does not need."""
    return da3_exemptions(ANYVIEW)


def read_da3_nested(specs: Specs, settings: DA3NestedSettings) -> NetworkConfig:
    """Return the any-view network with its metric network."""
    metric = read_da3_mono(specs, settings.metric, METRIC)
    return replace(read_da3(specs, settings.anyview, ANYVIEW), metric_network=metric)


def _of_parts(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Join settings of the two networks, such as `anyview.net.name`."""
    named = zip(_PARTS, settings, strict=True)
    return {f"{part}.{name}": value for part, own in named for name, value in own.items()}


def _sizes(specs: Specs) -> dict[str, int]:
    return _of_parts(da3_sizes(specs, ANYVIEW), da3_mono_sizes(specs, METRIC))


def _stated(content: Mapping[str, Any]) -> dict[str, Any]:
    return _of_parts(*(stated_settings(content, part) for part in _PARTS))


def _assumed(settings: DA3NestedSettings) -> dict[str, Any]:
    return _of_parts(da3_assumed(settings.anyview), da3_mono_assumed(settings.metric))


READER = NetworkReader(
    published=(DA3NestedSettings(model="da3-nested", anyview=DA3["da3-giant"], metric=DA3_MONO["da3metric-large"]),),
    names=("da3nested-giant-large",),
    sizes=_sizes,
    build=read_da3_nested,
    stated=_stated,
    assumed=_assumed,
)
