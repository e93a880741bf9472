"""Identities of the view x time network that hold for any weights, in float64."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from page4d.geometry.pose_encoding import decode_pose
from page4d.models.config import (
    PRESETS,
    BiasRows,
    MaskConfig,
    MaskFusion,
    MaskHeadKind,
    NetworkConfig,
    Streams,
)
from page4d.models.heads.dynamic import DynamicMask, external_log_odds
from page4d.models.limits import ForwardLimits
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.output import NetworkOutput
from page4d.models.schedule import FRAME_GLOBAL, TIME_VIEW, Step

MASK = PRESETS["mv-tiny"].mask
SINGLE = replace(MASK, streams=Streams.SINGLE)
OWN = replace(MASK, own_blocks=True)
SPECIAL = replace(MASK, bias_rows=BiasRows.SPECIAL)
EXACT = {"rtol": 0, "atol": 1e-12}


def capture(batch: int = 1, times: int = 2, views: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images of 2 x 3 patches and masks."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, times, views, 3, 28, 42, generator=generator, dtype=torch.float64)
    mask = torch.rand(batch, times, views, 28, 42, generator=generator, dtype=torch.float64)
    return images, (mask > 0.5).double()


def set_lambdas(network: ViewTimeNetwork, pose: float, geometry: float) -> ViewTimeNetwork:
    bias = network.aggregator.mask_bias
    with torch.no_grad():
        for parameter, value in (
            (bias.lambda_pose, pose),
            (bias.lambda_pose_t, pose / 2),
            (bias.lambda_geo, geometry),
            (bias.lambda_geo_t, geometry / 2),
        ):
            parameter.fill_(value)
    return network


def predict(network: ViewTimeNetwork, *inputs: Tensor, **options: object) -> NetworkOutput:
    with torch.no_grad():
        return network(*inputs, **options)


def assert_same(one: NetworkOutput, other: NetworkOutput, order: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    for name in ("pose_encoding", "depth", "depth_confidence", "points", "points_confidence"):
        scale = getattr(one, name).abs().max()
        torch.testing.assert_close(
            order(getattr(one, name)) / scale,
            getattr(other, name) / scale,
            **EXACT,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("mask", [MASK, SINGLE, SPECIAL], ids=["dual", "single", "special-rows"])
def test_zero_lambda_is_the_unbiased_path(lively: Callable, mask: MaskConfig) -> None:
    """Bit for bit when nothing is learned; to rounding when the streams are kept for lambda's gradient."""
    images, told = capture()
    network = lively(mask=mask)
    silent = lively(mask=mask)
    silent.aggregator.mask_bias.requires_grad_(False)
    for parameter in silent.aggregator.dynamic.head.last.parameters():
        torch.nn.init.zeros_(parameter)
    unbiased = predict(silent, images)
    masked = predict(network, images, told)
    assert torch.equal(masked.pose_encoding, unbiased.pose_encoding)
    assert torch.equal(masked.depth, unbiased.depth)
    assert_same(network(images, told), unbiased)


@pytest.mark.parametrize("mask", [MASK, SINGLE, SPECIAL, OWN], ids=["dual", "single", "special-rows", "own-blocks"])
def test_lambda_matters(lively: Callable, mask: MaskConfig) -> None:
    images, told = capture()
    network = lively(mask=mask)
    before = predict(network, images, told)
    after = predict(set_lambdas(network, 2.0, 2.0), images, told)
    assert (before.pose_encoding - after.pose_encoding).abs().max() > 1e-4
    assert (before.depth - after.depth).abs().max() > 1e-4


@pytest.mark.parametrize("mask", [MASK, OWN], ids=["tied", "own-blocks"])
def test_streams_do_not_touch_each_other(lively: Callable, mask: MaskConfig) -> None:
    images, told = capture()
    network = lively(mask=mask)
    runs = {
        (pose, geometry): predict(set_lambdas(network, pose, geometry), images, told)
        for pose, geometry in ((0.0, 0.0), (1.5, 0.0), (0.0, 1.5), (1.5, 1.5))
    }
    for other in (0.0, 1.5):
        assert torch.equal(runs[0.0, other].depth, runs[1.5, other].depth)
        assert torch.equal(runs[0.0, other].points, runs[1.5, other].points)
        assert not torch.equal(runs[0.0, other].pose_encoding, runs[1.5, other].pose_encoding)
        assert torch.equal(runs[other, 0.0].pose_encoding, runs[other, 1.5].pose_encoding)
        assert not torch.equal(runs[other, 0.0].depth, runs[other, 1.5].depth)


def test_own_blocks_start_as_the_trunk_and_belong_to_their_stream(tiny: NetworkConfig) -> None:
    images, told = capture()
    torch.manual_seed(0)
    tied = build_network(tiny).double().eval()
    torch.manual_seed(0)
    own = build_network(replace(tiny, mask=OWN)).double().eval()
    before = predict(own, images, told)
    assert_same(before, predict(tied, images, told))
    with torch.no_grad():
        for parameter in own.aggregator.stream_blocks["pose"].parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    after = predict(own, images, told)
    assert torch.equal(before.depth, after.depth)
    assert not torch.equal(before.pose_encoding, after.pose_encoding)


def test_one_instant_is_frame_and_global_attention(lively: Callable, tiny: NetworkConfig) -> None:
    images, _ = capture(times=1)
    network = lively(mask=None)
    other = build_network(replace(tiny, mask=None, schedule=FRAME_GLOBAL)).double().eval()
    names = {"blocks.time.": "blocks.frame.", "blocks.view.": "blocks.global."}
    state = {}
    for name, value in network.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        state[name] = value
    other.load_state_dict(state)
    one = predict(network, images)
    assert_same(one, predict(other, images))
    assert torch.equal(one.depth, predict(other, images).depth)


def test_one_view_is_global_attention_over_time(lively: Callable) -> None:
    patches = torch.randn(1, 3, 1, 6, 32, dtype=torch.float64)
    trunk = lively(mask=None).aggregator
    swapped = lively(mask=None, schedule=(Step.GLOBAL, Step.FRAME)).aggregator
    state = {
        name.replace("blocks.time.", "blocks.global.").replace("blocks.view.", "blocks.frame."): value
        for name, value in trunk.state_dict().items()
    }
    swapped.load_state_dict(state)
    with torch.no_grad():
        ours, theirs = trunk(patches, (2, 3)), swapped(patches, (2, 3))
    for layer, level in ours.levels.items():
        across, within = level.chunk(2, dim=-1)  # the halves are named by what exchanges
        torch.testing.assert_close(torch.cat([within, across], dim=-1), theirs.levels[layer], **EXACT)


@pytest.mark.parametrize("mask", [MASK, SINGLE], ids=["dual", "single"])
def test_repeated_frames_change_nothing(lively: Callable, mask: MaskConfig) -> None:
    """T equal instants attend as one: softmax over copies is softmax over one."""
    images, told = capture(times=1)
    network = set_lambdas(lively(mask=mask, token_slots=1, camera_head=None), 2.0, 1.0)
    one = predict(network, images, told)
    three = predict(network, images.expand(-1, 3, -1, -1, -1, -1), told.expand(-1, 3, -1, -1, -1))
    for time in range(3):
        torch.testing.assert_close(three.depth[:, time], one.depth[:, 0], rtol=1e-11, atol=0)


@pytest.mark.parametrize("mask", [MASK, SINGLE, OWN, SPECIAL], ids=["dual", "single", "own-blocks", "special-rows"])
def test_permuting_views_permutes_the_result(lively: Callable, mask: MaskConfig) -> None:
    """View 0 stays in place: it defines the world."""
    images, told = capture(batch=2, views=4)
    network = set_lambdas(lively(mask=mask), 2.0, 1.0)
    order = [0, 3, 1, 2]
    assert_same(
        predict(network, images, told),
        predict(network, images[:, :, order], told[:, :, order]),
        lambda x: x[:, :, order],
    )


def test_permuting_times_permutes_the_result(lively: Callable) -> None:
    images, told = capture(times=4, views=2)
    network = set_lambdas(lively(), 2.0, 1.0)
    order = [0, 2, 3, 1]
    assert_same(
        predict(network, images, told), predict(network, images[:, order], told[:, order]), lambda x: x[:, order]
    )


def test_first_view_is_special_only_with_two_slots(lively: Callable) -> None:
    images, told = capture(views=2)
    for slots in (1, 2):
        network = set_lambdas(lively(token_slots=slots), 2.0, 1.0)
        one, other = predict(network, images, told), predict(network, images.flip(2), told.flip(2))
        difference = (one.pose_encoding.flip(2) - other.pose_encoding).abs().max()
        assert difference < 1e-12 if slots == 1 else difference > 1e-6


@pytest.mark.parametrize("mask", [MASK, SINGLE], ids=["dual", "single"])
@pytest.mark.parametrize(
    "limits",
    [
        ForwardLimits(max_images=1),
        ForwardLimits(max_images=4, max_queries=7),
        ForwardLimits(max_tokens=1),
        ForwardLimits(max_tokens=60, max_queries=11),
    ],
    ids=str,
)
def test_limits_do_not_change_the_result(lively: Callable, mask: MaskConfig, limits: ForwardLimits) -> None:
    images, told = capture()
    network = set_lambdas(lively(mask=mask), 2.0, 1.0)
    assert_same(predict(network, images, told), predict(network, images, told, limits=limits))


def test_lambda_is_clamped(lively: Callable) -> None:
    images, told = capture()
    network = lively()
    at_limit = predict(set_lambdas(network, 8.0, -8.0), images, told)  # 8 across views, 4 within
    beyond = predict(set_lambdas(network, 9.0, -9.0), images, told)
    below = predict(set_lambdas(network, 3.0, -3.0), images, told)
    assert torch.equal(at_limit.pose_encoding, beyond.pose_encoding)
    assert torch.equal(at_limit.depth, beyond.depth)
    assert not torch.equal(at_limit.pose_encoding, below.pose_encoding)


def test_the_mask_follows_what_is_told(tiny: NetworkConfig) -> None:
    """With an untrained head, told probabilities come back, clipped, and a missing mask says one half."""
    images, _ = capture()
    network = build_network(tiny).double().eval()
    for told, expected in ((0.0, 0.02), (0.5, 0.5), (1.0, 0.98)):
        out = predict(network, images, torch.full((1, 2, 3, 28, 42), told, dtype=torch.float64))
        torch.testing.assert_close(out.dynamic, torch.full_like(out.dynamic, expected))
    out = predict(network, images)
    torch.testing.assert_close(out.dynamic, torch.full_like(out.dynamic, 0.5))


def test_the_mask_is_pooled_over_patches(tiny: NetworkConfig) -> None:
    images, _ = capture(times=1, views=1)
    told = torch.zeros(1, 1, 1, 28, 42, dtype=torch.float64)
    told[..., :14, 28:35] = 1  # half of the patch in row 0, column 2
    logit = predict(build_network(tiny).double(), images, told).dynamic_logit[0, 0, 0]
    expected = torch.full((2, 3), 0.02, dtype=torch.float64)
    expected[0, 2] = 0.5
    torch.testing.assert_close(logit.sigmoid(), expected)


@pytest.mark.parametrize("kind", list(MaskHeadKind))
def test_the_mask_rises_with_what_is_told(lively: Callable, kind: MaskHeadKind) -> None:
    images, _ = capture()
    network = lively(mask=replace(MASK, head=kind))
    shape = (1, 2, 3, 28, 42)
    masks = [
        predict(network, images, torch.full(shape, told, dtype=torch.float64)).dynamic
        for told in (0.1, 0.3, 0.5, 0.9)
    ]
    for lower, higher in pairwise(masks):
        assert (higher > lower).all()
    torch.testing.assert_close(masks[2], predict(network, images).dynamic)  # one half says nothing


def test_gates_weigh_every_image_by_itself(lively: Callable) -> None:
    images, told = capture()
    told = 0.2 + 0.1 * told
    network = lively(mask=replace(MASK, fusion=MaskFusion.GATED))
    mask = network.aggregator.dynamic
    seen, both = predict(network, images).dynamic_logit, predict(network, images, told).dynamic_logit
    said = external_log_odds(told, 14, MASK.external_floor)
    beta = (both - seen) / said
    torch.testing.assert_close(beta, beta[..., :1, :1].expand_as(beta))
    assert ((beta > 0) & (beta < 1)).all()
    assert beta.flatten(3)[..., 0].unique().numel() == 6
    assert mask.alpha_gate.fc1.out_features == 8
    fresh = DynamicMask(replace(MASK, fusion=MaskFusion.GATED), 32).double()
    features = torch.randn(1, 1, 1, 6, 32, dtype=torch.float64)
    out = fresh(features, (2, 3), said[:, :1, :1])
    torch.testing.assert_close(out, 0.982 * said[:, :1, :1], rtol=5e-3, atol=0)


def test_an_untrained_head_alone_does_not_bias(tiny: NetworkConfig) -> None:
    images, _ = capture()
    torch.manual_seed(0)
    network = build_network(tiny).double().eval()
    before = predict(network, images)
    after = predict(set_lambdas(network, 3.0, 3.0), images)
    assert torch.equal(before.pose_encoding, after.pose_encoding)
    assert torch.equal(before.depth, after.depth)


def test_cameras_are_the_decoded_encodings(lively: Callable) -> None:
    images, _ = capture()
    out = predict(lively(), images)
    cameras = decode_pose(out.pose_encoding, (28, 42))
    assert torch.equal(out.world_to_camera, cameras.world_to_camera)
    assert torch.equal(out.intrinsics, cameras.intrinsics)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 3), (1, 3, 1), (2, 2, 2)])
@pytest.mark.parametrize("schedule", [TIME_VIEW, (Step.VIEW, Step.TIME), FRAME_GLOBAL], ids="-".join)
@pytest.mark.parametrize("streams", list(Streams))
def test_every_shape_runs(lively: Callable, shape: tuple, schedule: tuple, streams: Streams) -> None:
    images, told = capture(*shape)
    network = set_lambdas(lively(schedule=schedule, mask=replace(MASK, streams=streams)), 1.0, 1.0)
    out = predict(network, images, told)
    assert out.pose_encoding.shape == (*shape, 9)
    assert out.points.shape == (*shape, 28, 42, 3)
    for value in (out.depth, out.depth_confidence, out.points_confidence, out.dynamic):
        assert value.shape == (*shape, 28, 42)
        assert value.isfinite().all()
        assert value.dtype is torch.float64
    assert (out.depth > 0).all()
    assert (out.depth_confidence >= 1).all()
