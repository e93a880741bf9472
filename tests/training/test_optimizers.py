"""Optimizers: orthogonal updates of Muon, weight decay of parameter groups, gradient clipping, and the EMA."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from page4d.lab.training.checkpoint import EMA
from page4d.lab.training.engine import optimize
from page4d.lab.training.optimizers import (
    Muon,
    OptimizerConfig,
    OptimizerKind,
    ProcessGroup,
    build_optimizers,
    orthogonalize,
    set_rate,
)
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return build_network(PRESETS["mv-tiny"])


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_muon_orthogonalizes_matrices(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalize(matrix)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.nn.functional.cosine_similarity(found.flatten(), (u @ vh).flatten(), dim=0) > 0.97


def test_muon_minimizes_a_squared_error():
    torch.manual_seed(0)
    weight, goal = nn.Parameter(torch.randn(6, 4)), torch.randn(6, 4)
    optimizer = Muon([weight], lr=0.05)
    start = (weight - goal).norm().item()
    for _ in range(60):
        optimizer.zero_grad()
        (weight - goal).square().sum().backward()
        optimizer.step()
    assert (weight - goal).norm().item() < 0.25 * start


@pytest.mark.parametrize("kind", OptimizerKind)
def test_every_parameter_has_one_optimizer_and_only_matrices_have_weight_decay(network, kind):
    optimizers = build_optimizers(network, OptimizerConfig(kind=kind))
    assert len(optimizers) == (2 if kind is OptimizerKind.MUON else 1)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    optimized = [id(value) for group in groups for value in group["params"]]
    assert sorted(optimized) == sorted(id(value) for value in network.parameters())
    decay = {id(value): group["weight_decay"] for group in groups for value in group["params"]}
    layers = [
        module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)
    ]
    assert all(decay[id(layer.weight)] > 0 for layer in layers if len(layer.weight) > 1)
    undecayed = [
        name for name, _ in network.named_parameters() if re.search(r"bias|norm|token|pos_embed|lambda", name)
    ]
    assert undecayed
    assert not any(decay[id(network.get_parameter(name))] for name in undecayed)


def test_a_rate_scales_every_learning_rate(network):
    optimizers = build_optimizers(network, OptimizerConfig(kind=OptimizerKind.MUON))
    set_rate(optimizers, 0.25)
    assert {group["lr"] for optimizer in optimizers for group in optimizer.param_groups} == {0.00025, 0.005}


def test_the_gradient_is_clipped_and_its_norm_is_returned():
    layer = nn.Linear(2, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizers = [torch.optim.SGD([{"params": layer.weight, "full_lr": 1.0}])]
    config = SimpleNamespace(seed=0, optimizer=OptimizerConfig(max_gradient_norm=0.5))
    state = SimpleNamespace(config=config, network=layer, optimizers=optimizers)
    batch = torch.tensor([[3.0, 4.0]])
    step = SimpleNamespace(step=0, rate=1.0)
    found = optimize(state, step, [batch], lambda batch: {"total": layer(batch).sum()}, ProcessGroup())
    assert found.gradient_norm == pytest.approx(5.0)
    assert (before - layer.weight).tolist() == [pytest.approx([0.3, 0.4], abs=1e-5)]


def test_the_ema_decay_warms_up():
    layer = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(layer.weight)
    average = EMA(layer, 0.999)
    nn.init.ones_(layer.weight)
    average.update(layer, 0)
    assert torch.allclose(average.network.weight, torch.tensor(0.9))
    nn.init.zeros_(layer.weight)
    average.update(layer, 10**6)
    assert torch.allclose(average.network.weight, torch.tensor(0.9 * 0.999))
    assert not average.network.weight.requires_grad
