"""Profiles of networks on the meta device against runs on the CPU."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from page4d.choices import FullAttention, SparseStrategy, TimeEncoding
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import (
    BiasRows,
    EpipolarConfig,
    FrameHeadConfig,
    MaskConfig,
    MaskFusion,
    MaskHeadKind,
    MaskRule,
    SparseConfig,
    Streams,
)
from page4d.networks.inputs import matching
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.profile.network import forward_cost, profile_network
from page4d.networks.profile.table import Profile
from tests.fuzzing import bounded
from tests.networks.small_networks import OMEGA_LIKE, SMALL_DA3, SMALL_DA3_MONO, SMALL_DA3_NESTED, SMALL_PI3X
from tests.profiling.test_encoder_profile import Shapes

TINY = PRESETS["mv-tiny"]
PAGE4D = MaskConfig(
    layers=(1, 2), head=MaskHeadKind.RELEASE, rule=MaskRule.PAGE4D, streams=Streams.SINGLE, bias_rows=BiasRows.SPECIAL
)
NO_HEADS = {"camera_head": None, "depth_head": None, "point_head": None}
BASE = replace(TINY, point_head=None)  # it has the layers of the depth head
NETWORKS = {
    "two streams": TINY,
    "cameras only": replace(BASE, depth_head=None),
    "streams with blocks of their own": replace(BASE, mask=MaskConfig(layers=(1, 2), own_blocks=True)),
    "one stream": replace(BASE, mask=MaskConfig(layers=(1, 2), streams=Streams.SINGLE, fusion=MaskFusion.GATED)),
    "vggt": replace(BASE, schedule=FRAME_GLOBAL, mask=None),
    "page4d with its mask": replace(BASE, schedule=FRAME_GLOBAL, mask=PAGE4D),
    "pi3": replace(
        BASE,
        schedule=FRAME_GLOBAL,
        mask=None,
        camera_token=False,
        frame_head=FrameHeadConfig(dim=16, depth=1, num_heads=2, point_dim=16, camera_dim=8),
        **NO_HEADS,
    ),
    "pi3x": SMALL_PI3X,
    "landmarks": replace(BASE, sparse=SparseConfig(layers=(2, 3), landmarks=4)),
    "dilated": replace(BASE, sparse=SparseConfig(layers=(3,), strategy=SparseStrategy.DILATED, dilations=(1,))),
    "memory": replace(BASE, sparse=SparseConfig(layers=(3,), strategy=SparseStrategy.MEMORY, memory_tokens=3)),
    "alibi": replace(BASE, time_encoding=TimeEncoding.ALIBI),
    "epipolar prior": replace(BASE, depth_head=None, epipolar=EpipolarConfig(layers=(1,))),
    "all images as one instant": replace(BASE, mask=None, full_attention=FullAttention.ALWAYS),
    "da3, known cameras": SMALL_DA3,
    "da3 with a metric network": SMALL_DA3_NESTED,
    "da3": replace(SMALL_DA3, camera_encoder=None),
    "da3 of single images, metres": replace(SMALL_DA3_MONO, metric_focal=300.0),
    "vggt-omega": OMEGA_LIKE,
    "matches, cameras, fine maps": PRESETS["mv-demo"],
}
BATCH, TIMES, VIEWS = 2, 3, 2
LIMITS = ForwardLimits(max_images=2, max_tokens=60, max_queries=16)
FUSED = {"4 register tokens", "5 concatenated tokens", "6 tokens per image"}
"""Stages that the code fuses into one."""


def size_of(config: NetworkConfig) -> tuple[int, int]:
    return 2 * config.patch_size, 3 * config.patch_size


@cache
def with_open_gates(config: NetworkConfig) -> ViewTimeNetwork:
    torch.manual_seed(0)
    network = build_network(config).eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        if "lambda_" in name or name.endswith((".gate", ".gates", "mask_head.4.bias", "head0.4.bias")):
            parameter.fill_(0.5)
    return network


def run(network: ViewTimeNetwork, limits: ForwardLimits = NO_LIMITS) -> None:
    """Run a network with all inputs that it uses."""
    config, (height, width) = network.config, size_of(network.config)
    leading = (BATCH, TIMES, VIEWS)
    images = torch.rand(*leading, 3, height, width)
    mask = torch.rand(*leading, height, width) if config.mask is not None and config.motion_head is None else None
    conditioning: dict[str, torch.Tensor] = {}
    if config.sparse is not None:
        conditioning["keypoints"] = torch.rand(*leading, 2, 3)
    if config.known_geometry is not None:
        conditioning["depths"] = 1 + torch.rand(*leading, height, width)
    if config.takes_cameras:
        conditioning["world_to_camera"] = torch.eye(4).repeat(*leading, 1, 1)
        conditioning["world_to_camera"][..., 0, 3] = torch.rand(leading)
        conditioning["intrinsics"] = torch.tensor([[40.0, 0, 20], [0, 40, 20], [0, 0, 1]]).repeat(*leading, 1, 1)
    with torch.no_grad():
        network(images, mask, conditioning=Conditioning(**conditioning), limits=limits)


@cache
def profile(config: NetworkConfig, limits: ForwardLimits = NO_LIMITS) -> Profile:
    return profile_network(config, times=TIMES, views=VIEWS, size=size_of(config), batch=BATCH, limits=limits)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_shapes_and_peak_memory_equal_those_of_a_run(name: str) -> None:
    """Memory within 1%; as measured it was equal to the byte."""
    network = with_open_gates(NETWORKS[name])
    for limits in (LIMITS, NO_LIMITS) if name == "two streams" else (NO_LIMITS,):
        with LiveBytes() as counted, Shapes() as shapes:
            run(network, limits)
        assert profile(network.config, limits).computed_bytes == pytest.approx(counted.peak, rel=0.01)
    seen = {squeezed(shape) for shape in shapes.seen}
    for stage in profile(network.config).stages:
        if stage.name not in FUSED:
            assert squeezed(stage.shape) in seen, (stage.name, stage.shape)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_flops_and_parameters_equal_those_of_a_run(name: str) -> None:
    """FLOPs as counted by torch, with unfused attention."""
    network = with_open_gates(NETWORKS[name])
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        run(network)
    profiled = profile(network.config)
    parts = counted.get_flop_counts()
    inside = sum(sum(flops.values()) for part, flops in parts.items() if part.count(".") == 1)
    relative = network.config.epipolar is not None or network.config.known_geometry is not None
    geometry = 1e-3 * inside if relative else 0  # epipolar lines and relative poses belong to no stage
    assert 0 <= inside - profiled.flops <= geometry
    outside = counted.get_total_flops() - profiled.flops  # geometry, after the heads
    assert 0 <= outside < 0.02 * profiled.flops
    total = sum(parameter.numel() for parameter in network.parameters())
    assert profiled.parameters == total == sum(stage.parameters for stage in profiled.stages)


@pytest.mark.parametrize("parts", [2, 5])
def test_equal_parts_of_the_matching_are_profiled_once(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and FLOPs are those of all parts; at 1920 x 1080 px there are thousands."""
    config = PRESETS["mv-demo"]
    patches, cells = 6, 6 * config.matches.finer**2
    monkeypatch.setattr(matching, "_MAX_PAIRS", -(-BATCH * TIMES * VIEWS * patches * cells // parts))
    network = with_open_gates(config)
    with LiveBytes() as counted:
        run(network)
    with FlopCounterMode(display=False) as flops, sdpa_kernel(SDPBackend.MATH):
        run(network)
    profiled = profile_network(config, times=TIMES, views=VIEWS, size=size_of(config), batch=BATCH)
    assert profiled.computed_bytes == counted.peak
    assert profiled.flops == sum(
        sum(part.values()) for name, part in flops.get_flop_counts().items() if name.count(".") == 1
    )


@pytest.mark.parametrize(("name", "left_out"), [("da3", "predicts_ray_map"), ("two streams", "predicts_points")])
def test_the_cost_of_a_pass_is_without_maps_that_runs_do_not_use(
    name: str, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = with_open_gates(NETWORKS[name])
    size = size_of(network.config)
    images = torch.rand(1, TIMES, VIEWS, 3, *size)
    costs = []
    for predicts in (False, True):
        monkeypatch.setattr(network, left_out, predicts)
        with FlopCounterMode(display=False) as flops, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            network(images)
        costs.append(flops.get_total_flops())
    assert forward_cost(network.config, times=TIMES, sizes=[size] * VIEWS)[1] == costs[0] < costs[1]


def test_images_of_many_patches_are_profiled_within_seconds() -> None:
    with bounded(seconds=10):
        large = profile_network(PRESETS["mv-demo"], times=8, views=4, size=(1920, 1080))
    assert large.symbols["P"] == 240 * 135
    assert large.flops > 8 * 4 * 5 * 2 * 64 * large.symbols["P"] * large.symbols["Q"]


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)


def test_limits_lower_the_memory_peak_only() -> None:
    whole, parts = profile(TINY), profile(TINY, LIMITS)
    assert parts.computed_bytes < 0.7 * whole.computed_bytes
    assert (parts.stages, parts.flops) == (whole.stages, whole.flops)
    assert whole.peak_bytes == whole.computed_bytes + 4 * whole.parameters
    assert whole.peak_part == "point_head"
    pi3 = profile_network(PRESETS["pi3"], times=8, views=4, size=(518, 518), limits=LIMITS)
    assert pi3.peak_part == "frame_head", "intrinsics are fitted after it"


def test_one_view_is_profiled_as_views_of_one_instant() -> None:
    config = replace(TINY, full_attention=FullAttention.ONE_VIEW)
    profiles = [profile_network(config, times=6, views=views, size=(28, 42)) for views in (1, 2)]
    assert [(found.symbols["T"], found.symbols["V"]) for found in profiles] == [(1, 6), (6, 2)]
    shapes = [{stage.name: stage.shape for stage in found.stages} for found in profiles]
    assert [found["view-attention (fixed t), 4 layers"] for found in shapes] == [(1, 66, 32), (6, 22, 32)]


def test_special_tokens_alone_are_a_stage() -> None:
    profile = profile_network(OMEGA_LIKE, times=1, views=2, batch=1, size=(16, 24))
    (special,) = [stage for stage in profile.stages if "special tokens alone, layers 1, 2" in stage.name]
    assert special.shape == (1, 1, 2, 3, 16)


def test_live_bytes_are_counted_until_freed() -> None:
    given = torch.ones(1000)
    with LiveBytes() as counted:
        kept = given[:500] * 2
        del given
        (kept[None] + torch.ones(3, 500)).sum()
    assert (counted.live, counted.peak) == (2000, 2000 + 6000 + 6000)
