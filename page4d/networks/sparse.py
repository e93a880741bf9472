"""Sparse attention across all instants and views: landmarks, dilated neighbours, or memory tokens."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from page4d.choices import SparseStrategy
from page4d.networks.conditioning import Conditioning
from page4d.networks.config_parts import SparseConfig
from page4d.networks.layers.attention import Context, LogitsBias, Neighbours, RotaryTables
from page4d.networks.layers.block import INIT_STD, Block
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits, in_chunks
from page4d.networks.tokens import Stream

_MIN_SCORE = float("-inf")


@dataclass(frozen=True, kw_only=True)
class SparseInputs:
    """Inputs of a sparse block besides the tokens; `rope` is that of one image."""

    rope: RotaryTables | None
    grid: tuple[int, int]
    mask: Float[Tensor, "B T V P"] | None = None
    """Probability that a patch moves."""
    keypoints: Float[Tensor, "B T V P"] | None = None
    limits: ForwardLimits = NO_LIMITS


def dilated_neighbours(num_times: int, num_views: int, dilations: tuple[int, ...]) -> Neighbours:
    """Return the neighbours of every image, ordered by time, then view.

    Their offsets in time and in view are 0 or plus or minus one of the dilations, independently.
    """
    steps = sorted({0, *dilations, *(-step for step in dilations)})

    def along(place: int, count: int) -> list[int]:
        return [place + step for step in steps if 0 <= place + step < count]

    return [
        [
            other_time * num_views + other_view
            for other_time in along(time, num_times)
            for other_view in along(view, num_views)
        ]
        for time in range(num_times)
        for view in range(num_views)
    ]


class SparseBlock(nn.Module):
    """An attention block across all images, added by a gate that starts at zero."""

    def __init__(self, config: SparseConfig, block: nn.Module, num_special: int) -> None:
        super().__init__()
        self.config = config
        self.num_special = num_special
        assert isinstance(block, Block)
        self.block = deepcopy(block)
        if config.norm_eps is not None:
            self.block.norm1.eps = self.block.norm2.eps = config.norm_eps
        self.gate = nn.Parameter(torch.zeros(()))
        self.memory: nn.Parameter | None = None
        if config.strategy is SparseStrategy.MEMORY:
            dim = block.norm1.normalized_shape[0]
            self.memory = nn.Parameter(INIT_STD * torch.randn(1, config.memory_tokens, dim))

    def forward(
        self,
        state: Float[Tensor, "B T V N C"],
        inputs: SparseInputs,
        weight: Tensor | None = None,
        memory: Float[Tensor, "B M C"] | None = None,
    ) -> tuple[Float[Tensor, "B T V N C"], Float[Tensor, "B M C"] | None]:
        """Return the new state, and the memory after this chunk.

        Keypoints add `weight` to the logits of their keys; without it they only affect the choice of landmarks.
        """
        tokens = state.flatten(1, 3)
        key = self._key_bias(inputs, weight)
        assert inputs.rope is not None
        rope = inputs.rope.repeat(state.shape[1] * state.shape[2])
        if self.config.strategy is SparseStrategy.DILATED:
            neighbours = dilated_neighbours(state.shape[1], state.shape[2], self.config.dilations)
            bias = None if key is None else LogitsBias(key=key)
            reached = self.block(tokens, rope, bias, inputs.limits.max_queries, neighbours=neighbours)
        elif self.memory is not None:
            memory = self._update_memory(
                tokens, rope, key, self.memory.expand(len(tokens), -1, -1) if memory is None else memory
            )
            unrotated = _identity_rope(rope, memory.shape[1])
            reached = self._attend_to(tokens, rope, Context(tokens=memory, rope=unrotated), None, inputs.limits)
        else:
            places = self._landmarks(state, inputs)
            batch = torch.arange(len(tokens), device=tokens.device)[:, None]
            context = Context(tokens=tokens[batch, places], rope=rope.at(places))
            bias = None if key is None else LogitsBias(key=key[batch, places])
            reached = self._attend_to(tokens, rope, context, bias, inputs.limits)
        return state + self.gate * (reached.reshape(state.shape) - state), memory

    def _key_bias(self, inputs: SparseInputs, weight: Tensor | None) -> Float[Tensor, "B L"] | None:
        if weight is None or inputs.keypoints is None:
            return None
        return (weight * functional.pad(inputs.keypoints, (self.num_special, 0)).to(weight.dtype)).flatten(1)

    def _landmarks(self, state: Tensor, inputs: SparseInputs) -> Tensor:
        score = state.new_zeros(*state.shape[:3], state.shape[3] - self.num_special)
        if inputs.mask is not None:
            score = score + 1 - inputs.mask.detach()
        if inputs.keypoints is not None:
            score = score + self.config.keypoint_weight * inputs.keypoints
        chosen = choose_landmarks(score, inputs.grid, self.config.landmarks)
        return landmark_places(chosen, self.num_special, state.shape[3])

    def _update_memory(self, tokens: Tensor, rope: RotaryTables, key: Tensor | None, memory: Tensor) -> Tensor:
        """Let memory tokens, which have no position, attend to themselves and to all tokens."""
        unrotated = _identity_rope(rope, memory.shape[1])
        places = RotaryTables(cos=torch.cat([unrotated.cos, rope.cos]), sin=torch.cat([unrotated.sin, rope.sin]))
        bias = None if key is None else LogitsBias(key=functional.pad(key, (memory.shape[1], 0)))
        context = Context(tokens=torch.cat([memory, tokens], dim=1), rope=places)
        return self.block(memory, unrotated, bias, context=context)

    def _attend_to(
        self, tokens: Tensor, rope: RotaryTables, context: Context, bias: LogitsBias | None, limits: ForwardLimits
    ) -> Tensor:
        """Run the block with the context as keys, on at most `max_tokens` tokens at once."""

        def attended(rows: slice) -> Tensor:
            return self.block(tokens[:, rows], rope.of_tokens(rows), bias, limits.max_queries, context=context)

        return in_chunks(attended, tokens.shape[1], limits.max_tokens, dim=1)


class SparseLayers(nn.Module):
    """The sparse blocks of a trunk, and their common keypoint weight."""

    def __init__(self, config: SparseConfig, blocks: Mapping[int, nn.Module], num_special: int) -> None:
        super().__init__()
        self.config = config
        self.lambda_kpt = nn.Parameter(torch.zeros(()))
        self.layers = nn.ModuleDict(
            {str(layer): SparseBlock(config, block, num_special) for layer, block in blocks.items()}
        )

    def needs_streams(self, layer: int, conditioning: Conditioning) -> bool:
        """Whether this layer treats the pose and geometry streams differently."""
        names = {f"{layer}.{stream}" for stream in (Stream.POSE, Stream.GEOMETRY)}
        return self._has_keypoint_bias(conditioning) or (
            conditioning.memory is not None and bool(names & set(conditioning.memory))
        )

    def forward(
        self,
        state: Float[Tensor, "B T V N C"],
        stream: Stream,
        layer: int,
        inputs: SparseInputs,
        conditioning: Conditioning,
    ) -> tuple[Float[Tensor, "B T V N C"], dict[str, Tensor]]:
        """Return the state of a stream after a layer's sparse block, and its memory by name.

        Keypoints bias their keys in all streams but the pose stream.
        """
        biased = stream is not Stream.POSE and self._has_keypoint_bias(conditioning)
        limit = self.config.lambda_limit
        weight = self.lambda_kpt.clamp(-limit, limit) if biased else None
        # A stream that had not been split has the memory of the shared one.
        stored = conditioning.memory or {}
        memory = stored.get(f"{layer}.{stream}", stored.get(f"{layer}.{Stream.SHARED}"))
        state, memory = self.layers[str(layer)](state, inputs, weight, memory)
        return state, {} if memory is None else {f"{layer}.{stream}": memory}

    def _has_keypoint_bias(self, conditioning: Conditioning) -> bool:
        learned = self.lambda_kpt.requires_grad and torch.is_grad_enabled()
        return conditioning.keypoints is not None and (learned or float(self.lambda_kpt) != 0)


def cell_counts(grid: tuple[int, int], landmarks: int) -> tuple[int, int]:
    """Return the rows and columns of a grid of at most `landmarks` cells, as square as possible."""
    if landmarks >= grid[0] * grid[1]:
        return grid
    rows = min(int(landmarks**0.5), grid[0])
    columns = min(landmarks // rows, grid[1])
    return min(landmarks // columns, grid[0]), columns


def cells(grid: tuple[int, int], landmarks: int) -> Int[Tensor, "cells K"]:
    """Return the patches of every cell by distance from its center; short lists are padded by -1."""
    counts = cell_counts(grid, landmarks)
    members: list[list[int]] = []
    for row in range(counts[0]):
        rows = range(row * grid[0] // counts[0], (row + 1) * grid[0] // counts[0])
        for column in range(counts[1]):
            columns = range(column * grid[1] // counts[1], (column + 1) * grid[1] // counts[1])
            middle = ((rows[0] + rows[-1]) / 2, (columns[0] + columns[-1]) / 2)
            by_distance = sorted(
                ((y - middle[0]) ** 2 + (x - middle[1]) ** 2, y * grid[1] + x) for y in rows for x in columns
            )
            members.append([place for _, place in by_distance])
    longest = max(len(places) for places in members)
    return torch.tensor([places + [-1] * (longest - len(places)) for places in members])


def choose_landmarks(
    score: Float[Tensor, "B T V P"], grid: tuple[int, int], landmarks: int
) -> Int[Tensor, "B T V K"]:
    """Return the patch of highest score in every cell; ties are broken by the distance from the cell center."""
    places = cells(grid, landmarks).to(score.device)
    in_cells = torch.where(places < 0, _MIN_SCORE, score[..., places.clamp(min=0)])  # [B, T, V, cells, K]
    first = in_cells.argmax(dim=-1)  # [B, T, V, cells], the first of equal scores
    chosen = places.expand(*first.shape, -1).gather(-1, first[..., None])[..., 0]
    return chosen.sort(dim=-1).values


def landmark_places(chosen: Int[Tensor, "B T V K"], num_special: int, num_tokens: int) -> Int[Tensor, "B L"]:
    """Return the indices of all special tokens and chosen patches in the concatenated tokens of all images."""
    batch, times, views = chosen.shape[:3]
    special = torch.arange(num_special, device=chosen.device).expand(batch, times, views, -1)
    of_image = torch.cat([special, num_special + chosen], dim=-1)
    starts = num_tokens * torch.arange(times * views, device=chosen.device).reshape(times, views, 1)
    return (of_image + starts).flatten(1)


def _identity_rope(rope: RotaryTables, count: int) -> RotaryTables:
    """Return rotary tables of tokens without position: no rotation."""
    shape = (count, rope.cos.shape[-1])
    return RotaryTables(cos=rope.cos.new_ones(shape), sin=rope.sin.new_zeros(shape))
