"""Every network option on a non-square grid, with a batch of two and different numbers of instants and views."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from page4d.choices import FullAttention, SparseStrategy, TimeEncoding
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig, Step
from page4d.networks.config_parts import (
    BiasRows,
    EpipolarConfig,
    FrameHeadConfig,
    MaskFusion,
    MaskHeadKind,
    SparseConfig,
    Streams,
)
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.block import FeedForwardKind
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS
from page4d.weights.loading import LoadedNetwork
from tests.networks.small_networks import (
    EXPLICIT_INPUTS,
    OMEGA_LIKE,
    SMALL_DA3,
    SMALL_DA3_MONO,
    SMALL_DA3_NESTED,
    SMALL_PI3X,
    demo_like,
    randomized_network,
    without_gradient,
)

TINY = replace(PRESETS["mv-tiny"], point_head=None)  # it has the layers of the depth head
MASK = TINY.mask
BATCH, TIMES, VIEWS, GRID = 2, 3, 2, (2, 4)

MASKS = {
    "dual": MASK,
    "single": replace(MASK, streams=Streams.SINGLE),
    "special-rows": replace(MASK, bias_rows=BiasRows.SPECIAL),
    "own-blocks": replace(MASK, own_blocks=True),
    "gated": replace(MASK, fusion=MaskFusion.GATED),
    **{f"{kind}-head": replace(MASK, head=kind) for kind in MaskHeadKind},
}
FRAME_HEAD = FrameHeadConfig(dim=32, depth=1, num_heads=2, point_dim=16, camera_dim=16)
OPTIONS = {
    **{name: {"mask": mask} for name, mask in MASKS.items()},
    "point-head": {"point_head": TINY.depth_head},
    "page4d": {"mask": replace(PRESETS["page4d-mask"].mask, layers=(1, 2)), "schedule": FRAME_GLOBAL},
    **{f"{kind}-sparse": {"sparse": SparseConfig(layers=(2, 3), strategy=kind)} for kind in SparseStrategy},
    **{f"{kind}-time": {"time_encoding": kind} for kind in (TimeEncoding.ALIBI, TimeEncoding.ROPE)},
    "epipolar": {"epipolar": EpipolarConfig(layers=(1, 2), band=0.5)},
    "view-time": {"schedule": (Step.VIEW, Step.TIME)},
    "full": {"full_attention": FullAttention.ALWAYS},
    "one-slot": {"token_slots": 1},
    "swiglu": {"encoder": replace(TINY.encoder, feed_forward=FeedForwardKind.SWIGLU)},
    "frame-head": {
        **dict.fromkeys(("camera_head", "depth_head", "point_head", "mask")),
        "frame_head": FRAME_HEAD,
        "camera_token": False,
    },
    "pi3x": {
        **dict.fromkeys(("camera_head", "depth_head", "point_head", "mask")),
        "frame_head": SMALL_PI3X.frame_head,
        "known_geometry": SMALL_PI3X.known_geometry,
        "camera_token": False,
    },
}


ALL_OPTIONS = {
    "mask": MASK,
    "time_encoding": TimeEncoding.ALIBI,
    "sparse": SparseConfig(layers=(2,), strategy=SparseStrategy.LANDMARK, landmarks=2),
    "epipolar": EpipolarConfig(layers=(1, 2), band=0.5),
}
NETWORKS = {name: replace(TINY, **changes) for name, changes in OPTIONS.items()} | {
    "vggt-omega": OMEGA_LIKE,
    "da3": replace(SMALL_DA3, camera_encoder=None),
    "da3-nested": replace(SMALL_DA3_NESTED, camera_encoder=None),
    "da3-mono": SMALL_DA3_MONO,
}
LEARNING = NETWORKS | {
    "all-options": replace(TINY, **ALL_OPTIONS),
    "explicit-inputs": EXPLICIT_INPUTS,
    "pi3x-frame-global": SMALL_PI3X,
    "da3-cameras": SMALL_DA3,
}
UNUSED = {
    "own-blocks": tuple(f"aggregator.blocks.{step}.{layer}." for step in ("time", "view") for layer in MASK.layers),
    "da3-cameras": ("aggregator.special.camera_token",),  # known cameras take its place
}
"""Parameters without a gradient: the trunk's blocks of layers that have copies."""


@cache
def network_of(name: str) -> ViewTimeNetwork:
    return opened(randomized_network(LEARNING[name]))


def opened(network: ViewTimeNetwork) -> ViewTimeNetwork:
    """Open gates and weights that start at zero, and shift fields of view away from the clipping at 0."""
    with torch.no_grad():
        if hasattr(network.camera_head, "pose_branch"):
            network.camera_head.pose_branch.fc2.bias[7:] += 2
        for name, parameter in network.named_parameters():
            if "lambda_" in name or name.endswith((".gate", ".gates")):
                parameter.fill_(0.7)
    return network


def inputs(config: NetworkConfig, grid: tuple[int, int] = GRID, dtype: torch.dtype = torch.float64) -> dict:
    """Return images, masks and all conditioning inputs."""
    generator = torch.Generator().manual_seed(5)
    leading, size = (BATCH, TIMES, VIEWS), tuple(config.patch_size * side for side in grid)
    turn, move = 0.3 * torch.randn(2, *leading, 3, generator=generator, dtype=torch.float64)
    focal = torch.tensor([[2.0, 0, 0.5], [0, 2.0, 0.5], [0, 0, 0.0]], dtype=torch.float64) * size[1]
    focal[2, 2] = 1
    given = {
        "images": torch.rand(*leading, 3, *size, generator=generator, dtype=dtype),
        "keypoints": torch.rand(*leading, *grid, generator=generator, dtype=dtype),
        "times": torch.rand(*leading[:2], generator=generator, dtype=dtype).cumsum(1),
        "world_to_camera": rigid(matrix_from_rotation_vector(turn), move),
        "intrinsics": focal.expand(*leading, 3, 3),
    }
    if config.known_geometry is not None:
        given["depths"] = torch.rand(*leading, *size, generator=generator, dtype=dtype) - 0.2
        masks = torch.rand(3, *leading, generator=generator) < 0.6
        masks[1, 0] = torch.arange(TIMES * VIEWS).reshape(TIMES, VIEWS) == 3  # a single known pose is ignored
        given |= dict(zip(("known_intrinsics", "known_poses", "known_depths"), masks, strict=True))
    if config.mask is not None:
        given["mask_ext"] = torch.rand(*leading, *size, generator=generator, dtype=dtype)
    return given


def predict(network: ViewTimeNetwork, given: dict, **options: object) -> NetworkOutput:
    parts = dict(given)
    images, mask = parts.pop("images"), parts.pop("mask_ext", None)
    with torch.no_grad():
        return network(images, mask, conditioning=Conditioning(**parts), **options)


def numbers(out: NetworkOutput) -> dict[str, Tensor]:
    return {name: value for name, value in vars(out).items() if isinstance(value, Tensor)}


def assert_same(ours: NetworkOutput, theirs: dict[str, Tensor], tolerance: float) -> None:
    assert numbers(ours).keys() == theirs.keys()
    for name, value in numbers(ours).items():
        scale = 1 + theirs[name].abs().max()
        assert value.isfinite().all(), name
        torch.testing.assert_close(value / scale, theirs[name] / scale, rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_scenes_of_a_batch_are_independent_and_limits_change_nothing(name: str) -> None:
    network = network_of(name)
    given = inputs(network.config)
    together = predict(network, given)
    shape = (BATCH, TIMES, VIEWS, *given["images"].shape[-2:])
    assert together.depth.shape == shape
    assert together.points is None or together.points.shape == (*shape, 3)
    alone = predict(network, {name: value[1:] for name, value in given.items()})
    assert_same(alone, {name: value[1:] for name, value in numbers(together).items()}, 1e-11)
    limits = ForwardLimits(max_images=5, max_tokens=60, max_queries=7)
    assert_same(predict(network, given, limits=limits), numbers(together), 1e-9)


def assert_half_precision_is_close(network: ViewTimeNetwork, given: dict) -> None:
    """Outputs in half precision are float32 and close to those of float32; gradients under autocast are finite."""
    half = LoadedNetwork(network.config, torch.bfloat16).eval()
    half.load_state_dict(network.state_dict())
    exact, rounded = numbers(predict(network, given)), numbers(predict(half, given))
    assert rounded.keys() == exact.keys()
    for name in ("depth", "pose_encoding", "dynamic"):
        if name in exact:
            assert rounded[name].dtype is torch.float32
            assert not torch.equal(rounded[name], exact[name])
            torch.testing.assert_close(rounded[name], exact[name], rtol=0.1, atol=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = network(given["images"])
    out.depth.log().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)


IN_ANY_PRECISION = {"special-rows", "gated", "view-time", "full", "one-slot"}
"""Options that select the tokens of attention and keep its layers."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in IN_ANY_PRECISION else ())
        for name in (*NETWORKS, "da3-cameras")
    ],
)
def test_half_precision_is_close(name: str) -> None:
    network = copy.deepcopy(network_of(name)).float()
    assert_half_precision_is_close(network, inputs(network.config, dtype=torch.float32))


def test_half_precision_is_close_with_matches_rays_and_motion() -> None:
    network = demo_like().eval()
    given = inputs(network.config, dtype=torch.float32)
    del given["mask_ext"], given["keypoints"]  # an external mask replaces the motion head
    assert_half_precision_is_close(network, given)


def test_limits_do_not_change_the_result_in_single_precision(randomized: Callable) -> None:
    """On the grid of a 4:3 video; small patches keep the dense heads cheap."""
    encoder = DinoV2Config(image_size=10, patch_size=2, embed_dim=32, depth=1, num_heads=2)
    changes = {**ALL_OPTIONS, "encoder": encoder, "epipolar": None, "point_head": None}
    network = opened(randomized(**changes).float())
    given = {name: value[:1] for name, value in inputs(network.config, (18, 24), torch.float32).items()}
    limits = ForwardLimits(max_images=3, max_tokens=800, max_queries=200)
    assert_same(predict(network, given, limits=limits), numbers(predict(network, given)), 1e-5)


@pytest.mark.parametrize("name", list(LEARNING))
def test_every_parameter_gets_a_gradient_and_a_step_lowers_the_loss(name: str) -> None:
    network = copy.deepcopy(network_of(name))
    given = inputs(network.config)
    images, mask = given.pop("images"), given.pop("mask_ext", None)

    def parts() -> list[Tensor]:
        out = network(images, mask, conditioning=Conditioning(**given))
        expected = [out.matches.expected] if out.matches else []
        return [*numbers(out).values(), *out.pose_encoding_iterations, *expected]

    def loss(of: list[Tensor]) -> Tensor:
        return sum((weight * part).sum() for weight, part in zip(weights, of, strict=True))

    first, generator = parts(), torch.Generator().manual_seed(0)
    weights = [
        part.requires_grad * torch.rand(part.shape, generator=generator, dtype=torch.float64) for part in first
    ]
    before = loss(first)
    before.backward()
    assert [name_ for name_ in without_gradient(network) if not name_.startswith(UNUSED.get(name, "-"))] == []
    learned = [parameter for parameter in network.parameters() if parameter.grad is not None]
    slope = sum(parameter.grad.square().sum() for parameter in learned)
    torch.optim.SGD(learned, lr=float(1e-6 * before.detach().abs() / slope)).step()
    with torch.no_grad():
        assert loss(parts()) < before


def test_networks_with_equal_state_give_equal_outputs(tiny: NetworkConfig) -> None:
    config = replace(tiny, **ALL_OPTIONS)
    networks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        networks.append(opened(build_network(config).double().eval()))
    given = inputs(config)
    assert not torch.equal(*(predict(network, given).depth for network in networks))
    networks[1].load_state_dict(networks[0].state_dict())
    first, second = (numbers(predict(network, given)) for network in networks)
    assert all(torch.equal(first[name], second[name]) for name in first)
