"""What describes a family of published checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig
from page4d.weights.conversion.accounting import Exemption, KeyMap
from page4d.weights.families.shapes import Specs


class Family(StrEnum):
    """Checkpoints of one architecture whose tensors one code base named."""

    VGGT = "vggt"
    PAGE4D = "page4d"
    PI3 = "pi3"
    PI3X = "pi3x"
    DA3 = "da3"
    DA3_MONO = "da3-mono"
    DA3_NESTED = "da3-nested"
    VGGT_OMEGA = "vggt-omega"
    VIT = "vit-timm"
    SWIN = "swin-timm"
    SWIN_MICROSOFT = "swin-microsoft"
    TWINS = "twins-timm"
    PAGE4D_ENCODER = "page4d-encoder"
    """An encoder file that page4d wrote."""


def _none(_: object) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class NetworkReader:
    """How the configuration of a network follows from its tensors and its settings."""

    published: tuple[Any, ...]
    """Settings of the published networks."""

    names: tuple[str, ...] = ()
    """Their names, as the authors call them, in the same order; required if there are several."""

    sizes: Callable[[Specs], dict[str, int]]
    """Sizes that the tensors determine, by the place of the setting, such as `encoder.depth`."""

    build: Callable[[Specs, Any], NetworkConfig]
    """The network of tensors and settings, without any mask."""

    stated: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _none
    """Settings that the content of a `config.json` states, by name; without those that it lacks."""

    assumed: Callable[[Any], Mapping[str, Any]] = _none
    """The same settings, by the same names, as the conversion assumes them."""


@dataclass(frozen=True, kw_only=True)
class FamilyData:
    """How checkpoints of a family are recognized and how their tensors map to page4d."""

    title: str
    licence: str = ""
    """As stated by the authors, to the best of our knowledge."""

    present: tuple[str, ...] = ()
    """Prefixes of tensor names: at least one tensor has each of them."""

    absent: tuple[str, ...] = ()
    """Prefixes that no tensor has."""

    keys: KeyMap | Callable[[NetworkConfig], KeyMap]
    """Where sizes change it, a function of the published network; its steps have the names of that schedule."""

    exemptions: tuple[Exemption, ...] | Callable[[NetworkConfig], tuple[Exemption, ...]] = ()
    network: NetworkReader | None = None
    """None for an encoder."""

    encoder: Callable[[Specs, str], EncoderConfig] | None = None
    """Reads the configuration of an encoder; the second argument is the file for messages."""

    notices: tuple[str, ...] = ()
