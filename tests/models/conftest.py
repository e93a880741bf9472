"""Golden tensors and configurations of networks."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.presets import PRESETS
from tests.models.small_networks import randomized_network

INSIDE = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class Golden:
    """Recorded tensors, and the metadata of their recording."""

    tensors: dict[str, Tensor]
    meta: dict

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


def load_golden(name: str) -> Golden:
    folder = INSIDE if (INSIDE / f"{name}.safetensors").exists() else SHARED
    if not (folder / f"{name}.safetensors").exists():
        pytest.skip(f"{name} is not in tests/golden nor in {SHARED}")
    return Golden(load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_text()))


def assert_golden(ours: Tensor, reference: Tensor) -> None:
    """Compare by the tolerance of the fixtures: rounding reaches 0.3 of it, the smallest known bug 4.7 times it."""
    assert ours.shape == reference.shape
    excess = (ours - reference).abs() / (1e-4 + 1e-4 * reference.abs())
    assert excess.max() <= 1, f"{excess.max():.2f} times the tolerance"


@pytest.fixture(autouse=True)
def _few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> NetworkConfig:
    return PRESETS["mv-tiny"]


@pytest.fixture(scope="session")
def randomized() -> Callable[..., ViewTimeNetwork]:
    def build(seed: int = 0, **changes: object) -> ViewTimeNetwork:
        return randomized_network(replace(PRESETS["mv-tiny"], **changes), seed)

    return build


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    return load_golden


@pytest.fixture(scope="session")
def agrees() -> Callable[[Tensor, Tensor], None]:
    return assert_golden
