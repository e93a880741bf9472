"""Sizes of a network or encoder, read from the names and shapes of its tensors."""

import math
import re
from collections.abc import Mapping

from page4d.errors import WeightsError
from page4d.weights.store import TensorSpec

Specs = Mapping[str, TensorSpec]
"""Shapes and types of tensors by name."""


def count(specs: Specs, prefix: str) -> int:
    """Count the distinct numbers that follow a prefix."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
    return len({match[1] for name in specs if (match := pattern.match(name)) is not None})


def shape_of(specs: Specs, name: str, num_axes: int) -> tuple[int, ...]:
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


def table_side(specs: Specs, name: str) -> int:
    """Return the side in patches of the square that a position table with a class token covers."""
    patches = shape_of(specs, name, 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side * side != patches:
        raise WeightsError(f"'{name}' covers {patches} patches, which is not a square", "check the weights")
    return side
