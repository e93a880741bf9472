"""Recorded numbers of public encoders, and our names for their parameters."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

INSIDE = Path(__file__).parents[1] / "golden" / "encoders"
SHARED = Path(__file__).parents[3] / "shared" / "golden" / "encoders"


@dataclass(frozen=True)
class Recorded:
    """A fixture: tensors and what they were recorded with."""

    tensors: dict[str, Tensor]
    meta: dict

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}

    @property
    def config(self) -> dict:
        return self.meta["config"]


def load_recorded(name: str) -> Recorded:
    folder = INSIDE if (INSIDE / f"{name}.safetensors").exists() else SHARED
    if not (folder / f"{name}.safetensors").exists():
        pytest.skip(f"{name} is not in tests/golden/encoders nor in {SHARED}")
    return Recorded(load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_text()))


def assert_recorded(ours: Tensor, reference: Tensor) -> None:
    """The criterion of the fixtures; rounding uses at most 0.13 of it."""
    assert ours.shape == reference.shape
    excess = (ours - reference).abs() / (1e-4 + 1e-4 * reference.abs())
    assert excess.max() <= 1, f"{excess.max():.2f} times the tolerance"


def pair(value: int | list[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def translated(weights: dict[str, Tensor], rules: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    """Rename by the first rule that matches; a name that no rule matches is a mistake."""
    named = {}
    for name, value in weights.items():
        target = next((re.sub(theirs, ours, name) for theirs, ours in rules if re.fullmatch(theirs, name)), None)
        assert target is not None, name
        named[target] = value
    return named


def channels_last(values: Tensor, patch: tuple[int, int]) -> Tensor:
    """Reorder a last axis of (channel, row, column) as (row, column, channel)."""
    return values.unflatten(-1, (-1, *patch)).movedim(-3, -1).flatten(-3)
