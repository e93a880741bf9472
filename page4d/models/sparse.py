"""Sparse attention across all instants and views: three ways to reach far without all pairs of tokens."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.attention import Context, LogitsBias, Neighbours
from page4d.layers.block import INIT_STD, Block
from page4d.layers.rope import RotaryTables
from page4d.models.conditioning import Conditioning, Memory
from page4d.models.config import SparseConfig, SparseStrategy
from page4d.models.landmarks import choose_landmarks, landmark_places
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.streams import Stream


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a sparse block may use besides the tokens; `rope` is that of one image."""

    rope: RotaryTables
    grid: tuple[int, int]
    mask: Float[Tensor, "B T V P"] | None = None
    """Probability that a patch moves."""
    keypoints: Float[Tensor, "B T V P"] | None = None
    limits: ForwardLimits = NO_LIMITS


def dilated_neighbours(num_times: int, num_views: int, dilations: tuple[int, ...]) -> Neighbours:
    """Return for every image, view by view inside an instant, those that are some steps away along both axes.

    A step is 0 or one of the dilations, in either direction and independently along time and view.
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
    """A block that looks across all images, mixed in by a gate that starts closed."""

    def __init__(self, config: SparseConfig, block: Block, num_special: int) -> None:
        super().__init__()
        self.config = config
        self.num_special = num_special
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
        around: Surroundings,
        weight: Tensor | None = None,
        memory: Float[Tensor, "B M C"] | None = None,
    ) -> tuple[Float[Tensor, "B T V N C"], Float[Tensor, "B M C"] | None]:
        """Return the state, and the memory as it is after this chunk.

        Keypoints add `weight` to the logits of their keys; without weight they are only landmarks.
        """
        tokens = state.flatten(1, 3)
        key = self._key_bias(around, weight)
        rope = around.rope.repeat(state.shape[1] * state.shape[2])
        if self.config.strategy is SparseStrategy.DILATED:
            neighbours = dilated_neighbours(state.shape[1], state.shape[2], self.config.dilations)
            bias = None if key is None else LogitsBias(key=key)
            reached = self.block(tokens, rope, bias, around.limits.max_queries, neighbours=neighbours)
        elif self.memory is not None:
            memory = self._write(
                tokens, rope, key, self.memory.expand(len(tokens), -1, -1) if memory is None else memory
            )
            still = _unturned(rope, memory.shape[1])
            reached = self._look(tokens, rope, Context(tokens=memory, rope=still), None, around.limits)
        else:
            places = self._landmarks(state, around)
            batch = torch.arange(len(tokens), device=tokens.device)[:, None]
            context = Context(tokens=tokens[batch, places], rope=rope.at(places))
            bias = None if key is None else LogitsBias(key=key[batch, places])
            reached = self._look(tokens, rope, context, bias, around.limits)
        return state + self.gate * (reached.reshape(state.shape) - state), memory

    def _key_bias(self, around: Surroundings, weight: Tensor | None) -> Float[Tensor, "B L"] | None:
        if weight is None or around.keypoints is None:
            return None
        key: Tensor = weight * functional.pad(around.keypoints, (self.num_special, 0)).to(weight.dtype)
        return key.flatten(1)

    def _landmarks(self, state: Tensor, around: Surroundings) -> Tensor:
        score = state.new_zeros(*state.shape[:3], state.shape[3] - self.num_special)
        if around.mask is not None:
            score = score + 1 - around.mask.detach()
        if around.keypoints is not None:
            score = score + self.config.keypoint_weight * around.keypoints
        chosen = choose_landmarks(score, around.grid, self.config.landmarks)
        return landmark_places(chosen, self.num_special, state.shape[3])

    def _write(self, tokens: Tensor, rope: RotaryTables, key: Tensor | None, memory: Tensor) -> Tensor:
        """Let the memory look at itself and everything; it has no position of its own."""
        still = _unturned(rope, memory.shape[1])
        places = RotaryTables(cos=torch.cat([still.cos, rope.cos]), sin=torch.cat([still.sin, rope.sin]))
        bias = None if key is None else LogitsBias(key=functional.pad(key, (memory.shape[1], 0)))
        context = Context(tokens=torch.cat([memory, tokens], dim=1), rope=places)
        written: Tensor = self.block(memory, still, bias, context=context)
        return written

    def _look(
        self, tokens: Tensor, rope: RotaryTables, context: Context, bias: LogitsBias | None, limits: ForwardLimits
    ) -> Tensor:
        """Run the block on as many tokens at once as the limit allows: they see only the context."""
        length = tokens.shape[1]
        at_once = limits.max_tokens or length
        parts = []
        for start in range(0, length, at_once):
            chosen = slice(start, start + at_once)
            part_rope = RotaryTables(cos=rope.cos[chosen], sin=rope.sin[chosen])
            parts.append(self.block(tokens[:, chosen], part_rope, bias, limits.max_queries, context=context))
        return torch.cat(parts, dim=1)


class SparseLayers(nn.Module):
    """The sparse blocks of a trunk, and one weight of keypoints for all of them."""

    def __init__(self, config: SparseConfig, blocks: dict[int, Block], num_special: int) -> None:
        super().__init__()
        self.config = config
        self.lambda_kpt = nn.Parameter(torch.zeros(()))
        self.layers = nn.ModuleDict(
            {str(layer): SparseBlock(config, block, num_special) for layer, block in blocks.items()}
        )

    def needs_streams(self, layer: int, conditioning: Conditioning) -> bool:
        """Whether this layer tells the pose stream from the geometry stream."""
        names = {f"{layer}.{stream}" for stream in (Stream.POSE, Stream.GEOMETRY)}
        return self._weighs(conditioning) or (
            conditioning.memory is not None and bool(names & set(conditioning.memory))
        )

    def forward(
        self,
        state: Float[Tensor, "B T V N C"],
        stream: Stream,
        layer: int,
        around: Surroundings,
        conditioning: Conditioning,
    ) -> tuple[Float[Tensor, "B T V N C"], dict[str, Tensor]]:
        """Return the state of a stream after a layer's sparse block, and its memory by name.

        Keypoints favour their keys everywhere but in the pose stream.
        """
        favoured = stream is not Stream.POSE and self._weighs(conditioning)
        limit = self.config.lambda_limit
        weight = self.lambda_kpt.clamp(-limit, limit) if favoured else None
        memory = None if conditioning.memory is None else _of_stream(conditioning.memory, layer, stream)
        state, memory = self.layers[str(layer)](state, around, weight, memory)
        return state, {} if memory is None else {f"{layer}.{stream}": memory}

    def _weighs(self, conditioning: Conditioning) -> bool:
        learned = self.lambda_kpt.requires_grad and torch.is_grad_enabled()
        return conditioning.keypoints is not None and (learned or float(self.lambda_kpt) != 0)


def _of_stream(memory: Memory, layer: int, stream: Stream) -> Tensor | None:
    """Return a stream's memory, or that of the one stream before the streams were told apart."""
    own = memory.get(f"{layer}.{stream}")
    return memory.get(f"{layer}.{Stream.SHARED}") if own is None else own


def _unturned(rope: RotaryTables, count: int) -> RotaryTables:
    """Return tables of tokens without position."""
    shape = (count, rope.cos.shape[-1])
    return RotaryTables(cos=rope.cos.new_ones(shape), sin=rope.sin.new_zeros(shape))
