"""Training of networks: gradients of all parameters, falling losses, autocast."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import FrameHeadConfig, MaskFusion, Streams
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from tests.networks.small_networks import OMEGA_LIKE

TINY = PRESETS["mv-tiny"]
MASK = TINY.mask
FRAME_HEAD = FrameHeadConfig(dim=32, depth=1, num_heads=2, point_dim=16, camera_dim=16)
VARIANTS = {
    "dual": {"mask": MASK},
    "single": {"mask": replace(MASK, streams=Streams.SINGLE)},
    "gated": {"mask": replace(MASK, fusion=MaskFusion.GATED)},
    "own-blocks": {"mask": replace(MASK, own_blocks=True)},
    "frame-head": {
        **dict.fromkeys(("camera_head", "depth_head", "point_head", "mask")),
        "frame_head": FRAME_HEAD,
        "camera_token": False,
        "token_slots": 1,
    },
}


def capture(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(1, 2, 2, 3, 28, 42, generator=generator, dtype=dtype)
    return images, torch.rand(1, 2, 2, 28, 42, generator=generator, dtype=dtype)


def task_loss(network: ViewTimeNetwork, images: Tensor, external: Tensor | None) -> Tensor:
    out = network(images, None if network.config.mask is None else external)
    losses = [pose.square().mean() for pose in out.pose_encoding_iterations or (out.world_to_camera[..., :3, :],)]
    if out.local_points is None:  # depth of a frame head is positive where it is trained
        losses.append(out.depth.log().square().mean())
    losses.append(out.depth_confidence.log().mean())
    losses += [out.points.abs().mean(), out.points_confidence.log().mean()]
    return torch.stack(losses).sum()


@pytest.mark.parametrize("variant", ["dual", "single"])
def test_at_zero_lambda_only_lambda_gets_a_gradient_from_the_mask(randomized: Callable, variant: str) -> None:
    network = randomized(**VARIANTS[variant])
    task_loss(network, *capture()).backward()
    lambdas = dict(network.aggregator.mask_bias.named_parameters())
    assert len(lambdas) == 4
    assert all(parameter.grad.abs() > 0 for parameter in lambdas.values())
    assert not any(parameter.grad.any() for parameter in network.aggregator.dynamic.parameters())


def test_a_mask_loss_trains_the_mask_head(tiny: NetworkConfig) -> None:
    torch.manual_seed(0)
    network = build_network(tiny)
    images, _ = capture(torch.float32)
    moving = torch.zeros(1, 2, 2, 2, 3)
    moving[..., 1] = 1
    head = network.aggregator.dynamic
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(images).dynamic_logit, moving)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0] - 0.02
    assert not head.is_untrained()


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_step_lowers_the_loss(tiny: NetworkConfig, variant: str) -> None:
    torch.manual_seed(0)
    network = build_network(replace(tiny, **VARIANTS[variant]))
    inputs = capture(torch.float32)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    before = task_loss(network, *inputs)
    before.backward()
    optimizer.step()
    assert task_loss(network, *inputs) < before


def test_the_mask_sends_no_gradient_to_the_encoder(randomized: Callable) -> None:
    network = randomized()
    network(*capture()).dynamic_logit.sum().backward()
    assert all(parameter.grad is None for parameter in network.encoder.parameters())


def test_equal_seeds_give_equal_networks(tiny: NetworkConfig) -> None:
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        states.append(build_network(tiny).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["encoder.pos_embed"], states[2]["encoder.pos_embed"])


@pytest.mark.parametrize("config", [TINY, replace(TINY, **VARIANTS["frame-head"]), OMEGA_LIKE])
def test_an_untrained_network_predicts_valid_cameras(config: NetworkConfig) -> None:
    torch.manual_seed(0)
    images = torch.rand(1, 2, 2, 3, 2 * config.patch_size, 3 * config.patch_size)
    out = build_network(config)(images)
    assert (out.world_to_camera[..., :3, :3] - torch.eye(3, dtype=torch.float64)).abs().max() < 0.3
    assert (out.intrinsics.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert out.intrinsics.isfinite().all()
    if out.pose_encoding is not None:
        assert (out.pose_encoding[..., 3:7].norm(dim=-1) - 1).abs().max() < 0.2
        assert ((out.pose_encoding[..., 7:] > 0.5) & (out.pose_encoding[..., 7:] < 2)).all()
