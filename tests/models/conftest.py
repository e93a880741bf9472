"""Golden numbers and networks with visible effects for the tests of the networks."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.models.config import PRESETS, NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network

INSIDE = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class Golden:
    """A fixture: recorded tensors and what they were recorded with."""

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
    """The criterion of the fixtures: rounding uses at most 0.3 of it, the smallest known mistake 4.7 times it."""
    assert ours.shape == reference.shape
    excess = (ours - reference).abs() / (1e-4 + 1e-4 * reference.abs())
    assert excess.max() <= 1, f"{excess.max():.2f} times the tolerance"


def lively_network(config: NetworkConfig, seed: int = 0) -> ViewTimeNetwork:
    """A float64 network whose every parameter matters: no zeros, residual branches of full size."""
    torch.manual_seed(seed)
    network = build_network(config).double().eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lambda_" in name or name.endswith((".alpha", ".beta")):
                continue
            if name.endswith("gamma"):
                parameter.fill_(1.0)
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


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
def lively() -> Callable[..., ViewTimeNetwork]:
    def build(seed: int = 0, **changes: object) -> ViewTimeNetwork:
        return lively_network(replace(PRESETS["mv-tiny"], **changes), seed)

    return build


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    return load_golden


@pytest.fixture(scope="session")
def agrees() -> Callable[[Tensor, Tensor], None]:
    return assert_golden
