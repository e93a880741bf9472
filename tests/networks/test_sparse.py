"""Sparse attention across all images: selected keys, equivalence to full attention, streams and memory."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.choices import SparseStrategy
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import FRAME_GLOBAL
from page4d.networks.config_parts import SparseConfig, Streams
from page4d.networks.layers.attention import LogitsBias, rotary_tables
from page4d.networks.layers.block import Block, BlockConfig
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.sparse import (
    SparseBlock,
    SparseInputs,
    cell_counts,
    cells,
    choose_landmarks,
    dilated_neighbours,
    landmark_places,
)
from page4d.networks.tokens import Stream, token_positions
from tests.networks.naive_twin import run_trunk

MASK = PRESETS["mv-tiny"].mask
EXACT = {"rtol": 0, "atol": 1e-12}
GRID = (2, 3)
SPECIAL = 2
SHAPE = (2, 3, 2, 8, 16)
"""B, T, V, N, C"""
ROPE = rotary_tables(token_positions(GRID, SPECIAL), 8, dtype=torch.float64)
INPUTS = SparseInputs(rope=ROPE, grid=GRID)


def block_of(config: SparseConfig, gate: float = 1.0) -> SparseBlock:
    torch.manual_seed(0)
    block = Block(BlockConfig(dim=16, num_heads=2, qk_norm_eps=1e-5, layer_scale=1.0))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    sparse = SparseBlock(config, block, SPECIAL).double().requires_grad_(False)
    sparse.gate.fill_(gate)
    return sparse


def tokens(seed: int = 1) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def full(sparse: SparseBlock, state: Tensor, bias: LogitsBias | None = None) -> Tensor:
    """Attend to all tokens of all images."""
    rope = ROPE.repeat(SHAPE[1] * SHAPE[2])
    return sparse.block(state.flatten(1, 3), rope, bias).reshape(state.shape)


@pytest.mark.parametrize("strategy", [SparseStrategy.LANDMARK, SparseStrategy.DILATED])
def test_all_landmarks_or_all_dilations_equal_full_attention(strategy: SparseStrategy) -> None:
    sparse = block_of(SparseConfig(layers=(0,), strategy=strategy, landmarks=6, dilations=(1, 2)))
    state = tokens()
    torch.testing.assert_close(sparse(state, INPUTS)[0], full(sparse, state), **EXACT)
    points = torch.rand(*SHAPE[:3], 6, dtype=torch.float64)
    weight = torch.tensor(1.5, dtype=torch.float64)
    key = torch.nn.functional.pad(weight * points, (SPECIAL, 0)).flatten(1)
    for learned in (False, True):
        ours, _ = sparse(state, replace(INPUTS, keypoints=points), weight.clone().requires_grad_(learned))
        torch.testing.assert_close(ours, full(sparse, state, LogitsBias(key=key)), **EXACT)


def test_landmark_attention_equals_full_attention_with_other_keys_reswapped() -> None:
    sparse = block_of(SparseConfig(layers=(0,), landmarks=2))
    state, score = tokens(), torch.rand(*SHAPE[:3], 6, dtype=torch.float64)
    kept = landmark_places(choose_landmarks(1 - score, GRID, 2), SPECIAL, SHAPE[3])
    reswapped = torch.full((SHAPE[0], SHAPE[1] * SHAPE[2] * SHAPE[3]), -1e9, dtype=torch.float64)
    reswapped.scatter_(1, kept, 0.0)
    ours, _ = sparse(state, replace(INPUTS, mask=score))
    torch.testing.assert_close(ours, full(sparse, state, LogitsBias(key=reswapped)), **EXACT)


def test_dilated_attention_equals_full_attention_with_images_reswapped() -> None:
    sparse = block_of(SparseConfig(layers=(0,), strategy="dilated", dilations=(1,)))
    state = tokens()

    class Blocks:
        def rows(self, start: int, stop: int) -> Tensor:
            allowed = torch.zeros(6, 6, dtype=torch.bool)
            for image, others in enumerate(dilated_neighbours(3, 2, (1,))):
                allowed[image, others] = True
            pairs = allowed.repeat_interleave(8, 0).repeat_interleave(8, 1)
            return torch.where(pairs, 0.0, -torch.inf).double()[None, start:stop]

    bias = LogitsBias(key=torch.zeros(2, 48, dtype=torch.float64), pairs=Blocks())
    torch.testing.assert_close(sparse(state, INPUTS)[0], full(sparse, state, bias), **EXACT)


def test_dilated_neighbours_are_at_the_given_offsets() -> None:
    neighbours = dilated_neighbours(24, 4, (1, 2, 4))
    assert sum(map(len, neighbours)) / 96 == pytest.approx(22.458, abs=1e-3)  # of 96 images
    assert all(image in others for image, others in enumerate(neighbours))
    assert neighbours[0] == [4 * time + view for time in (0, 1, 2, 4) for view in (0, 1, 2)]
    assert all(image in neighbours[other] for image, others in enumerate(neighbours) for other in others)
    assert all(len(others) == 12 for others in dilated_neighbours(3, 4, (1, 2, 3)))


@pytest.mark.parametrize("grid", [(2, 3), (28, 37), (37, 37), (1, 9), (5, 2)])
@pytest.mark.parametrize("landmarks", [1, 2, 5, 64, 10000])
def test_every_cell_has_one_landmark(grid: tuple[int, int], landmarks: int) -> None:
    counts = cell_counts(grid, landmarks)
    assert counts[0] * counts[1] <= max(landmarks, 1)
    places = cells(grid, landmarks)
    assert sorted(places[places >= 0].tolist()) == list(range(grid[0] * grid[1]))
    chosen = choose_landmarks(torch.rand(1, 2, 3, grid[0] * grid[1]), grid, landmarks)
    assert chosen.shape == (1, 2, 3, counts[0] * counts[1])
    of_cell = {place: cell for cell, members in enumerate(places.tolist()) for place in members if place >= 0}
    for image in chosen.flatten(0, 2).tolist():
        assert sorted(of_cell[place] for place in image) == list(range(len(places)))
    if landmarks == 64 and grid == (37, 37):
        assert len(places) == 64


def test_landmarks_have_the_highest_score_or_are_central() -> None:
    score = torch.zeros(1, 1, 1, 81)
    assert choose_landmarks(score, (9, 9), 9).flatten().tolist() == [
        9 * row + column for row in (1, 4, 7) for column in (1, 4, 7)
    ]
    score[..., 20] = 1  # row 2, column 2, in the first cell
    assert choose_landmarks(score, (9, 9), 9).flatten().tolist()[:2] == [13, 16]
    assert 20 in choose_landmarks(score, (9, 9), 9).flatten().tolist()


def test_special_tokens_are_always_landmarks() -> None:
    places = landmark_places(torch.tensor([[[[1, 4], [0, 5]]]]), num_special=2, num_tokens=8)
    assert places.tolist() == [[0, 1, 3, 6, 8, 9, 10, 15]]


def test_memory_is_equivariant_to_the_order_of_its_tokens() -> None:
    sparse = block_of(SparseConfig(layers=(0,), strategy="memory", memory_tokens=5))
    state, memory = tokens(), torch.randn(2, 5, 16, dtype=torch.float64)
    order = [3, 1, 4, 0, 2]
    one, kept = sparse(state, INPUTS, memory=memory)
    other, permuted = sparse(state, INPUTS, memory=memory[:, order])
    torch.testing.assert_close(one, other, **EXACT)
    torch.testing.assert_close(kept[:, order], permuted, **EXACT)
    assert kept.shape == (2, 5, 16)


def test_memory_is_updated_before_tokens_attend_to_it() -> None:
    """Both steps computed by dense self-attention of memory and tokens together; keypoints bias the first one."""
    sparse = block_of(SparseConfig(layers=(0,), strategy="memory", memory_tokens=4))
    state, points = tokens(), torch.rand(*SHAPE[:3], 6, dtype=torch.float64)
    together = torch.cat([sparse.memory.expand(2, -1, -1), state.flatten(1, 3)], dim=1)
    positions = torch.cat([torch.zeros(4, 2, dtype=torch.long), token_positions(GRID, SPECIAL).repeat(6, 1)])
    rope = rotary_tables(positions, 8, dtype=torch.float64)
    bias = 3 * functional.pad(points, (SPECIAL, 0)).flatten(1)
    written = sparse.block(together, rope, LogitsBias(key=functional.pad(bias, (4, 0))))[:, :4]
    again = torch.cat([written, state.flatten(1, 3)], dim=1)
    only_memory = LogitsBias(key=torch.cat([torch.zeros(2, 4), torch.full((2, 48), -1e9)], dim=1).double())
    read = sparse.block(again, rope, only_memory)[:, 4:].reshape(state.shape)
    ours, kept = sparse(state, replace(INPUTS, keypoints=points), torch.tensor(3.0, dtype=torch.float64))
    torch.testing.assert_close(kept, written, **EXACT)
    torch.testing.assert_close(ours, read, **EXACT)


@pytest.mark.parametrize("strategy", list(SparseStrategy))
@pytest.mark.parametrize("learned", [False, True])
def test_limits_do_not_change_the_result(strategy: SparseStrategy, learned: bool) -> None:
    sparse = block_of(SparseConfig(layers=(0,), strategy=strategy, landmarks=2))
    points = torch.rand(*SHAPE[:3], 6, dtype=torch.float64)
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=learned)
    inputs = replace(INPUTS, keypoints=points)
    whole, _ = sparse(tokens(), inputs, weight)
    limited, _ = sparse(tokens(), replace(inputs, limits=ForwardLimits(max_tokens=5, max_queries=3)), weight)
    torch.testing.assert_close(whole, limited, **EXACT)


def images_of(times: int = 3, views: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(1, times, views, 3, 28, 42, generator=generator, dtype=torch.float64)


def opened(network: ViewTimeNetwork, gate: float = 0.7, weight: float = 0.0) -> ViewTimeNetwork:
    with torch.no_grad():
        network.aggregator.sparse.lambda_kpt.fill_(weight)
        for block in network.aggregator.sparse.layers.values():
            block.gate.fill_(gate)
    return network


@pytest.mark.parametrize("strategy", list(SparseStrategy))
def test_sparse_blocks_have_an_effect_only_with_an_open_gate(randomized: Callable, strategy: SparseStrategy) -> None:
    """A closed gate changes nothing; an open one changes the outputs of all heads."""
    config = SparseConfig(layers=(2, 3), strategy=strategy, landmarks=2)
    for changes in ({"mask": None}, {"mask": MASK}, {"mask": None, "schedule": FRAME_GLOBAL}):
        network = randomized(sparse=config, **changes)
        with torch.no_grad():
            closed = opened(network, gate=0.0)(images_of())
            plain = randomized(**changes)
            plain.load_state_dict({k: v for k, v in network.state_dict().items() if ".sparse." not in k})
            unsparse = plain(images_of())
            open_ = opened(network)(images_of())
        assert torch.equal(closed.depth, unsparse.depth)
        assert torch.equal(closed.pose_encoding, unsparse.pose_encoding)
        assert (open_.depth - closed.depth).abs().max() > 1e-4
        assert (open_.pose_encoding - closed.pose_encoding).abs().max() > 1e-4
        assert (open_.memory is None) == (strategy is not SparseStrategy.MEMORY)


def test_the_result_replaces_the_output_of_the_step_across_views(randomized: Callable) -> None:
    trunk = randomized(mask=None, sparse=SparseConfig(layers=(2,), landmarks=2)).aggregator
    patches = torch.randn(1, 2, 3, 6, 32, dtype=torch.float64)
    with torch.no_grad():
        trunk.sparse.layers["2"].gate.fill_(0.0)
        before = run_trunk(trunk, patches, (2, 3)).levels
        trunk.sparse.layers["2"].gate.fill_(1.0)
        after = run_trunk(trunk, patches, (2, 3)).levels
    assert torch.equal(before[1], after[1])
    within, across = (before[2] != after[2]).unflatten(-1, (2, 32)).unbind(-2)
    assert not within.any()
    assert across.any()
    assert not torch.equal(before[3], after[3])


@pytest.mark.parametrize(("learns", "weight", "split"), [(True, 0.0, True), (False, 0.0, False), (False, 1.0, True)])
def test_keypoints_split_the_streams_only_with_a_weight(
    randomized: Callable, learns: bool, weight: float, split: bool
) -> None:
    """A weight of 0 without a gradient keeps one stream."""
    config = SparseConfig(layers=(2,), strategy="memory", memory_tokens=4)
    network = opened(randomized(mask=MASK, sparse=config), weight=weight)
    conditioning = Conditioning(keypoints=torch.rand(1, 3, 2, 2, 3, dtype=torch.float64))
    with torch.set_grad_enabled(learns):
        memory = network(images_of(), conditioning=conditioning).memory
    assert (set(memory) == {"2.pose", "2.geometry"}) is split


def test_memory_conditions_the_next_chunk(randomized: Callable) -> None:
    network = opened(randomized(mask=MASK, sparse=SparseConfig(layers=(3,), strategy="memory", memory_tokens=4)))
    with torch.no_grad():
        first = network(images_of())
        without = network(images_of())
        conditioned = network(images_of(), conditioning=Conditioning(memory=first.memory))
    assert list(first.memory) == ["3.shared"]
    assert first.memory["3.shared"].shape == (1, 4, 32)
    assert torch.equal(without.depth, first.depth)
    assert (conditioned.depth - without.depth).abs().max() > 1e-6
    memory = {f"3.{stream}": torch.randn(1, 4, 32, dtype=torch.float64) for stream in (Stream.POSE, Stream.GEOMETRY)}
    with torch.no_grad():
        split = network(images_of(), conditioning=Conditioning(memory=memory))
        swapped = network(images_of(), conditioning=Conditioning(memory={**memory, "3.pose": memory["3.geometry"]}))
    assert set(split.memory) == set(memory)
    assert torch.equal(split.depth, swapped.depth)
    assert not torch.equal(split.pose_encoding, swapped.pose_encoding)


@pytest.mark.parametrize("streams", list(Streams))
def test_keypoints_bias_the_geometry_stream(randomized: Callable, streams: Streams) -> None:
    """With two streams the pose stream ignores them; a weight of zero has no effect."""
    config = SparseConfig(layers=(3,), strategy="dilated")
    network = randomized(mask=replace(MASK, streams=streams), sparse=config)
    points = torch.rand(1, 3, 2, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        plain = opened(network)(images_of())
        unweighted = network(images_of(), conditioning=Conditioning(keypoints=points))
        weighted = opened(network, weight=4.0)(images_of(), conditioning=Conditioning(keypoints=points))
        clamped = opened(network, weight=9.0)(images_of(), conditioning=Conditioning(keypoints=points))
    torch.testing.assert_close(plain.depth, unweighted.depth, rtol=1e-12, atol=0)
    assert (weighted.depth - plain.depth).abs().max() > 1e-6
    assert torch.equal(weighted.depth, clamped.depth)
    assert torch.allclose(weighted.pose_encoding, plain.pose_encoding, rtol=1e-12, atol=1e-14) == (
        streams is Streams.DUAL
    )


@pytest.mark.parametrize("strategy", list(SparseStrategy))
def test_a_closed_gate_gets_a_gradient(randomized: Callable, strategy: SparseStrategy) -> None:
    network = randomized(mask=None, sparse=SparseConfig(layers=(3,), strategy=strategy, landmarks=2))
    opened(network, gate=0.0)(images_of()).depth.mean().backward()
    assert network.aggregator.sparse.layers["3"].gate.grad.abs() > 0


@pytest.mark.parametrize("strategy", list(SparseStrategy))
def test_the_order_of_views_does_not_matter(randomized: Callable, strategy: SparseStrategy) -> None:
    """Dilated attention depends on the order of views, unless all views are within reach."""
    config = SparseConfig(layers=(2,), strategy=strategy, landmarks=2, dilations=(1, 2, 3))
    network = opened(randomized(mask=None, sparse=config))
    order = [0, 3, 1, 2]
    with torch.no_grad():
        one, other = network(images_of(2, 4)), network(images_of(2, 4)[:, :, order])
    torch.testing.assert_close(one.pose_encoding[:, :, order], other.pose_encoding, **EXACT)
    torch.testing.assert_close(one.depth[:, :, order], other.depth, rtol=1e-11, atol=0)


def test_blocks_start_as_copies_of_the_trunk() -> None:
    torch.manual_seed(0)
    network = build_network(replace(PRESETS["mv-tiny"], sparse=SparseConfig(layers=(2,), strategy="memory")))
    ours, theirs = network.aggregator.sparse.layers["2"], network.aggregator.blocks["view"][2]
    assert all(
        torch.equal(a, b) and a is not b for a, b in zip(ours.block.parameters(), theirs.parameters(), strict=True)
    )
    assert ours.gate.item() == 0
    assert ours.memory.shape == (1, 32, 32)
    assert 0.015 < ours.memory.std() < 0.025
