"""The optimizer: weight decay of parameter groups, gradient clipping, and the EMA."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from page4d.lab.training.checkpoint import EMA
from page4d.lab.training.engine import optimize
from page4d.lab.training.optimizers import OptimizerConfig, build_optimizer, set_rate
from page4d.lab.training.processes import ProcessGroup
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return build_network(PRESETS["mv-tiny"])


def test_every_parameter_is_optimized_and_only_matrices_have_weight_decay(network):
    groups = build_optimizer(network, OptimizerConfig()).param_groups
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
    optimizer = build_optimizer(network, OptimizerConfig())
    set_rate(optimizer, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.00025}


def test_the_gradient_is_clipped_and_its_norm_is_returned():
    layer = nn.Linear(2, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SGD([{"params": layer.weight, "full_lr": 1.0}])
    config = SimpleNamespace(seed=0, optimizer=OptimizerConfig(max_gradient_norm=0.5))
    state = SimpleNamespace(config=config, network=layer, optimizer=optimizer)
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
