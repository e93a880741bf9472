"""Identities of the view x time network for any weights, mask biases, and training of the mask."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from page4d.geometry.camera import decode_pose
from page4d.networks.config import FRAME_GLOBAL, TIME_VIEW, NetworkConfig, Step
from page4d.networks.config_parts import (
    BiasRows,
    CameraTransformerConfig,
    MaskConfig,
    MaskFusion,
    MaskHeadKind,
    Streams,
)
from page4d.networks.heads.camera import CameraTransformer
from page4d.networks.heads.motion import MASK_HEADS, DynamicMask, external_log_odds
from page4d.networks.layers.attention import attend
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import MaskBias, Stream
from tests.networks.small_networks import OMEGA_LIKE, randomized_network
from tests.networks.test_every_option import OPTIONS
from tests.networks.test_recorded_tensors import Recorder

TINY = PRESETS["mv-tiny"]
MASK = TINY.mask
SINGLE = replace(MASK, streams=Streams.SINGLE)
OWN = replace(MASK, own_blocks=True)
SPECIAL = replace(MASK, bias_rows=BiasRows.SPECIAL)
FRAME_HEAD = OPTIONS["frame-head"] | {"token_slots": 1}
EXACT = {"rtol": 0, "atol": 1e-12}


def capture(batch: int = 1, times: int = 2, views: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return images of 2 x 3 patches, and motion masks."""
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
def test_zero_lambda_equals_unbiased_attention(randomized: Callable, mask: MaskConfig) -> None:
    """Exactly without gradients; up to rounding if the streams are split for the gradient of lambda."""
    images, external = capture()
    network = randomized(mask=mask)
    unmasked = randomized(mask=mask)
    unmasked.aggregator.mask_bias.requires_grad_(False)
    for parameter in unmasked.aggregator.dynamic.last_layer.parameters():
        torch.nn.init.zeros_(parameter)
    unbiased = predict(unmasked, images)
    masked = predict(network, images, external)
    assert torch.equal(masked.pose_encoding, unbiased.pose_encoding)
    assert torch.equal(masked.depth, unbiased.depth)
    assert_same(network(images, external), unbiased)


@pytest.mark.parametrize("mask", [MASK, SINGLE, SPECIAL, OWN], ids=["dual", "single", "special-rows", "own-blocks"])
def test_lambda_changes_cameras_and_depth(randomized: Callable, mask: MaskConfig) -> None:
    images, external = capture()
    network = randomized(mask=mask)
    before = predict(network, images, external)
    after = predict(set_lambdas(network, 2.0, 2.0), images, external)
    assert (before.pose_encoding - after.pose_encoding).abs().max() > 1e-4
    assert (before.depth - after.depth).abs().max() > 1e-4


@pytest.mark.parametrize("mask", [MASK, OWN], ids=["tied", "own-blocks"])
def test_streams_are_independent(randomized: Callable, mask: MaskConfig) -> None:
    images, external = capture()
    network = randomized(mask=mask)
    runs = {
        (pose, geometry): predict(set_lambdas(network, pose, geometry), images, external)
        for pose, geometry in ((0.0, 0.0), (1.5, 0.0), (0.0, 1.5), (1.5, 1.5))
    }
    for other in (0.0, 1.5):
        assert torch.equal(runs[0.0, other].depth, runs[1.5, other].depth)
        assert torch.equal(runs[0.0, other].points, runs[1.5, other].points)
        assert not torch.equal(runs[0.0, other].pose_encoding, runs[1.5, other].pose_encoding)
        assert torch.equal(runs[other, 0.0].pose_encoding, runs[other, 1.5].pose_encoding)
        assert not torch.equal(runs[other, 0.0].depth, runs[other, 1.5].depth)


def test_own_blocks_start_as_copies_and_affect_their_stream_only(tiny: NetworkConfig) -> None:
    images, external = capture()
    torch.manual_seed(0)
    tied = build_network(tiny).double().eval()
    torch.manual_seed(0)
    own = build_network(replace(tiny, mask=OWN)).double().eval()
    before = predict(own, images, external)
    assert_same(before, predict(tied, images, external))
    with torch.no_grad():
        for parameter in own.aggregator.stream_blocks["pose"].parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    after = predict(own, images, external)
    assert torch.equal(before.depth, after.depth)
    assert not torch.equal(before.pose_encoding, after.pose_encoding)


@pytest.mark.parametrize("mask", [MASK, SINGLE], ids=["dual", "single"])
def test_repeated_instants_change_nothing(randomized: Callable, mask: MaskConfig) -> None:
    """Attention over copies of one key equals attention to one of them."""
    images, external = capture(times=1)
    network = set_lambdas(randomized(mask=mask, token_slots=1, camera_head=None), 2.0, 1.0)
    one = predict(network, images, external)
    three = predict(network, images.expand(-1, 3, -1, -1, -1, -1), external.expand(-1, 3, -1, -1, -1))
    for time in range(3):
        torch.testing.assert_close(three.depth[:, time], one.depth[:, 0], rtol=1e-11, atol=0)


@pytest.mark.parametrize(
    ("axis", "mask"),
    [(2, MASK), (2, SINGLE), (2, OWN), (2, SPECIAL), (1, MASK)],
    ids=["dual", "single", "own-blocks", "special-rows", "instants"],
)
def test_the_network_is_equivariant_to_the_order_of_views_and_instants(
    randomized: Callable, axis: int, mask: MaskConfig
) -> None:
    """View 0 is not moved, as it defines the world."""
    given = capture(batch=2, views=4) if axis == 2 else capture(times=4, views=2)
    network, order = set_lambdas(randomized(mask=mask), 2.0, 1.0), torch.tensor([0, 3, 1, 2])
    moved = [values.index_select(axis, order) for values in given]
    assert_same(predict(network, *given), predict(network, *moved), lambda x: x.index_select(axis, order))


def test_the_first_view_is_distinguished_by_two_slots_only(randomized: Callable) -> None:
    images, external = capture(views=2)
    for slots in (1, 2):
        network = set_lambdas(randomized(token_slots=slots), 2.0, 1.0)
        one, other = predict(network, images, external), predict(network, images.flip(2), external.flip(2))
        difference = (one.pose_encoding.flip(2) - other.pose_encoding).abs().max()
        assert difference < 1e-12 if slots == 1 else difference > 1e-6


def test_weights_of_a_mask_have_the_sign_of_their_stream_and_are_clamped() -> None:
    """The limit is 4."""
    bias = MaskBias(MASK, num_special=2).requires_grad_(False)
    for name, value in {"lambda_pose": 1.0, "lambda_geo": 3.0, "lambda_pose_t": -9.0, "lambda_geo_t": 5.0}.items():
        getattr(bias, name).data.fill_(value)
    found = {stream: [float(bias.weight(stream, step)) for step in Step] for stream in (Stream.POSE, Stream.GEOMETRY)}
    across = [step.across_views for step in Step]
    assert found[Stream.POSE] == [-1.0 if over_views else 4.0 for over_views in across]
    assert found[Stream.GEOMETRY] == [3.0 if over_views else 4.0 for over_views in across]


@pytest.mark.parametrize("stream", [Stream.POSE, Stream.GEOMETRY])
def test_an_entirely_static_mask_has_little_effect(stream: Stream) -> None:
    """External probabilities are at least 0.02: at the limit of lambda, attention changes by at most exp(0.08)."""
    bias = MaskBias(MASK, num_special=2).requires_grad_(False)
    for weight in bias.parameters():
        weight.fill_(MASK.lambda_limit)
    external = external_log_odds(torch.zeros(1, 1, 3, 28, 28), 14, MASK.external_floor).sigmoid().flatten(3)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 18, 18, generator=generator, dtype=torch.float64).unbind(0)
    shares = torch.eye(18, dtype=torch.float64).expand(1, 2, 18, 18)
    biased = attend(query, key, shares, bias(external.double(), stream, Step.VIEW))
    change = (biased / attend(query, key, shares)).log().abs().max()
    assert 0.02 < change <= 0.08 + 1e-6


def runs(network: ViewTimeNetwork) -> tuple[Counter, Counter]:
    """Count the calls of every trunk block in one forward pass, and those with a bias."""
    calls, biased, handles = Counter(), Counter(), []

    def counter(name: str) -> Callable:
        def count(_: nn.Module, arguments: tuple) -> None:
            calls[name] += 1
            biased[name] += arguments[2] is not None

        return count

    for step in network.config.schedule:
        for layer, block in enumerate(network.aggregator.blocks[step]):
            handles.append(block.register_forward_pre_hook(counter(f"{step}.{layer}")))
    predict(network, *capture())
    for handle in handles:
        handle.remove()
    return calls, biased


@pytest.mark.parametrize("streams", list(Streams))
def test_only_the_named_layers_are_biased(randomized: Callable, streams: Streams) -> None:
    network = set_lambdas(randomized(mask=replace(MASK, streams=streams)), 1.0, 1.0)
    calls, biased = runs(network)
    states = 2 if streams is Streams.DUAL else 1
    for layer in range(network.config.depth):
        for step in network.config.schedule:
            assert calls[f"{step}.{layer}"] == (1 if layer < MASK.layers[0] else states)
            assert biased[f"{step}.{layer}"] == (states if layer in MASK.layers else 0)


def test_equal_streams_run_as_one(randomized: Callable) -> None:
    network = randomized()
    calls, biased = runs(network)
    assert (set(calls.values()), set(biased.values())) == ({1}, {0})
    with torch.no_grad():
        network.aggregator.mask_bias.lambda_geo.fill_(0.5)
    calls, biased = runs(network)
    assert calls["time.3"] == calls["view.3"] == 2
    assert biased["view.1"] == 1  # geometry only
    assert biased["time.1"] == 0  # its lambda is still 0


@pytest.mark.parametrize("left_out", [("camera_head",), ("depth_head", "point_head")])
def test_streams_that_no_head_reads_do_not_run(randomized: Callable, left_out: tuple[str, ...]) -> None:
    network = set_lambdas(randomized(**dict.fromkeys(left_out)), 1.0, 1.0)
    assert set(runs(network)[0].values()) == {1}


@pytest.mark.parametrize("mask", [MASK, SINGLE], ids=["dual", "single"])
def test_at_zero_lambda_only_lambda_gets_a_gradient_from_the_mask(randomized: Callable, mask: MaskConfig) -> None:
    network = randomized(mask=mask)
    out = network(*capture())
    (out.pose_encoding.square().mean() + out.depth.log().square().mean()).backward()
    lambdas = dict(network.aggregator.mask_bias.named_parameters())
    assert len(lambdas) == 4
    assert all(parameter.grad.abs() > 0 for parameter in lambdas.values())
    assert not any(parameter.grad.any() for parameter in network.aggregator.dynamic.parameters())


def test_a_mask_loss_trains_the_mask_head_and_not_the_encoder(tiny: NetworkConfig) -> None:
    torch.manual_seed(0)
    network = build_network(tiny)
    images = capture(views=2)[0].float()
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
    assert all(parameter.grad is None for parameter in network.encoder.parameters())


def test_equal_seeds_give_equal_networks(tiny: NetworkConfig) -> None:
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        states.append(build_network(tiny).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["encoder.pos_embed"], states[2]["encoder.pos_embed"])


@pytest.mark.parametrize("config", [TINY, replace(TINY, **FRAME_HEAD), OMEGA_LIKE])
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


def test_an_untrained_head_returns_the_external_mask(tiny: NetworkConfig) -> None:
    """Probabilities are clipped; without an external mask they are 0.5."""
    images, _ = capture()
    network = build_network(tiny).double().eval()
    for probability, expected in ((0.0, 0.02), (0.5, 0.5), (1.0, 0.98)):
        out = predict(network, images, torch.full((1, 2, 3, 28, 42), probability, dtype=torch.float64))
        torch.testing.assert_close(out.dynamic, torch.full_like(out.dynamic, expected))
    out = predict(network, images)
    torch.testing.assert_close(out.dynamic, torch.full_like(out.dynamic, 0.5))


@pytest.mark.parametrize("kind", MaskHeadKind)
def test_a_seed_draws_the_weights_of_a_mask_head_in_the_order_of_its_layers(kind: MaskHeadKind) -> None:
    torch.manual_seed(0)
    head = MASK_HEADS[kind](8)
    torch.manual_seed(0)
    for layer in head.modules():
        if isinstance(layer, nn.Conv2d):
            drawn = [parameter.clone() for parameter in layer.parameters()]
            layer.reset_parameters()
            assert all(map(torch.equal, drawn, layer.parameters()))


def test_the_external_mask_is_averaged_over_patches(tiny: NetworkConfig) -> None:
    images, _ = capture(times=1, views=1)
    external = torch.zeros(1, 1, 1, 28, 42, dtype=torch.float64)
    external[..., :14, 28:35] = 1  # half of the patch in row 0, column 2
    logit = predict(build_network(tiny).double(), images, external).dynamic_logit[0, 0, 0]
    expected = torch.full((2, 3), 0.02, dtype=torch.float64)
    expected[0, 2] = 0.5
    torch.testing.assert_close(logit.sigmoid(), expected)


@pytest.mark.parametrize("kind", list(MaskHeadKind))
def test_the_mask_increases_with_the_external_probability(randomized: Callable, kind: MaskHeadKind) -> None:
    images, _ = capture()
    network = randomized(mask=replace(MASK, head=kind))
    shape = (1, 2, 3, 28, 42)
    masks = [
        predict(network, images, torch.full(shape, probability, dtype=torch.float64)).dynamic
        for probability in (0.1, 0.3, 0.5, 0.9)
    ]
    for lower, higher in pairwise(masks):
        assert (higher > lower).all()
    torch.testing.assert_close(masks[2], predict(network, images).dynamic)  # 0.5 adds no log-odds


def test_gates_weight_images_independently(randomized: Callable) -> None:
    images, external = capture()
    external = 0.2 + 0.1 * external
    network = randomized(mask=replace(MASK, fusion=MaskFusion.GATED))
    mask = network.aggregator.dynamic
    predicted, both = predict(network, images).dynamic_logit, predict(network, images, external).dynamic_logit
    given = external_log_odds(external, 14, MASK.external_floor)
    beta = (both - predicted) / given
    torch.testing.assert_close(beta, beta[..., :1, :1].expand_as(beta))
    assert ((beta > 0) & (beta < 1)).all()
    assert beta.flatten(3)[..., 0].unique().numel() == 6
    assert mask.alpha_gate.fc1.out_features == 8
    untrained = DynamicMask(replace(MASK, fusion=MaskFusion.GATED), 32).double()
    out = untrained(torch.randn(1, 1, 1, 6, 32, dtype=torch.float64), (2, 3), given[:, :1, :1])
    torch.testing.assert_close(out, 0.982 * given[:, :1, :1], rtol=5e-3, atol=0)


def test_an_untrained_head_does_not_bias_the_attention(tiny: NetworkConfig) -> None:
    images, _ = capture()
    torch.manual_seed(0)
    network = build_network(tiny).double().eval()
    before = predict(network, images)
    after = predict(set_lambdas(network, 3.0, 3.0), images)
    assert torch.equal(before.pose_encoding, after.pose_encoding)
    assert torch.equal(before.depth, after.depth)


def test_cameras_are_decoded_pose_encodings(randomized: Callable) -> None:
    images, _ = capture()
    out = predict(randomized(), images)
    cameras = decode_pose(out.pose_encoding, (28, 42))
    assert torch.equal(out.world_to_camera, cameras.world_to_camera)
    assert torch.equal(out.intrinsics, cameras.intrinsics)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 3), (1, 3, 1), (2, 2, 2)])
@pytest.mark.parametrize("schedule", [TIME_VIEW, (Step.VIEW, Step.TIME), FRAME_GLOBAL], ids="-".join)
@pytest.mark.parametrize("streams", list(Streams))
def test_networks_run_for_all_numbers_of_instants_and_views(
    randomized: Callable, shape: tuple, schedule: tuple, streams: Streams
) -> None:
    images, external = capture(*shape)
    network = set_lambdas(randomized(schedule=schedule, mask=replace(MASK, streams=streams)), 1.0, 1.0)
    out = predict(network, images, external)
    assert out.pose_encoding.shape == (*shape, 9)
    assert out.points.shape == (*shape, 28, 42, 3)
    for value in (out.depth, out.depth_confidence, out.points_confidence, out.dynamic):
        assert value.shape == (*shape, 28, 42)
        assert value.isfinite().all()
        assert value.dtype is torch.float64
    assert (out.depth > 0).all()
    assert (out.depth_confidence >= 1).all()


def test_register_layers_leave_patches_unchanged_bit_for_bit() -> None:
    network = randomized_network(OMEGA_LIKE).requires_grad_(False)
    recorder = Recorder(network, torch.rand(2, 3, 3, 16, 24, dtype=torch.float64))
    special = network.aggregator.special.count
    for layer, tokens in recorder.of("aggregator")[0].levels.items():
        within, across = tokens.chunk(2, dim=-1)
        assert torch.equal(within[..., special:, :], across[..., special:, :]) == (
            layer in OMEGA_LIKE.register_layers
        )
        assert not torch.equal(within[..., :special, :], across[..., :special, :])
    attended = recorder.into("aggregator.blocks.global.1")
    assert attended.shape == (2, 3 * special, 16), "all special tokens of a scene, and nothing else"
    assert recorder.into("aggregator.blocks.global.3").shape == (2, 3 * (special + 6), 16)


def test_the_camera_head_reads_the_special_tokens_of_all_images() -> None:
    torch.manual_seed(0)
    head = CameraTransformer(CameraTransformerConfig(depth=1, num_heads=2, layer_scale=None), 8).double()
    tokens = torch.randn(1, 3, 4, 8, dtype=torch.float64)
    (encoding,) = head(tokens)
    for image in range(3):
        for place in range(4):
            changed = tokens.clone()
            changed[0, image, place] += torch.randn(8, dtype=torch.float64)
            assert ((head(changed)[0] - encoding).abs().amax(dim=(0, 2)) > 1e-9).all(), (image, place)
    assert (encoding[..., 7:] >= 0.01).all()
    with torch.no_grad():
        head.pose_branch.fc2.bias[7:] = -100
    assert (head(tokens)[0][..., 7:] == 0.01).all()
