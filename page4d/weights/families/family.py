"""What describes a family of published checkpoints, and sizes from the names and shapes of tensors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from page4d.errors import WeightsError
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig
from page4d.weights.conversion.accounting import KeyMap
from page4d.weights.store import TensorSpec

Specs = Mapping[str, TensorSpec]
"""Shapes and types of tensors by name."""


def count(specs: Specs, prefix: str) -> int:
    """Count the distinct numbers that follow a prefix."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
    return len({match[1] for name in specs if (match := pattern.match(name)) is not None})


def shape_of(specs: Specs, name: str, num_axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that determines a size.

    Raises:
        WeightsError: if the tensor is missing, or has another number of axes or none of its values.
    """
    if name not in specs:
        raise WeightsError(
            f"the weights lack the tensor '{name}'", "they are incomplete, or their names were changed"
        )
    shape = specs[name].shape
    if len(shape) != num_axes or 0 in shape:
        raise WeightsError(
            f"tensor '{name}' is {list(shape)} where {num_axes} axes are expected",
            "the weights were modified: fetch them again",
        )
    return shape


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
    """How a published network is found from its tensors."""

    published: Mapping[str, NetworkConfig]
    """The published networks by their authors' names; "" for a single one without a name."""

    sizes: Callable[[Specs], dict[str, int]]
    """Sizes that the tensors determine, by their place in the configuration, such as `encoder.depth`."""

    stated: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _none
    """Settings that the content of a `config.json` states, by name; without those that it lacks."""

    assumed: Callable[[NetworkConfig], Mapping[str, Any]] = _none
    """The same settings, by the same names, of a network."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the published networks."""
        return tuple(filter(None, self.published))


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

    network: NetworkReader | None = None
    """None for an encoder."""

    encoder: Callable[[Specs, str], EncoderConfig] | None = None
    """Reads the configuration of an encoder; the second argument is the file for messages."""

    notices: tuple[str, ...] = ()
