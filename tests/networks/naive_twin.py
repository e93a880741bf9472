"""Slow reference of the aggregator: all layers, biases as dense matrices, no memory bounds."""

from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from page4d.networks.conditioning import SizeGroups
from page4d.networks.config import Step
from page4d.networks.config_parts import BiasRows, MaskRule, Streams
from page4d.networks.layers.block import Block
from page4d.networks.tokens import Stream, token_positions
from page4d.networks.trunk import Aggregator, TrunkOutput

Levels = dict[Stream, list[Tensor]]
"""By stream and layer, [step within views | step across views] of all tokens; layers before the split are shared."""


def run_trunk(
    aggregator: Aggregator, patches: Tensor, grid: tuple[int, int], external: Tensor | None = None, **options: object
) -> TrunkOutput:
    """Run the aggregator on views of one size."""
    sizes = SizeGroups.of([grid] * patches.shape[2])
    return aggregator([patches], sizes, None if external is None else [external], **options)[0]


def run_on_tokens(aggregator: Aggregator, tokens: Tensor, grid: tuple[int, int]) -> TrunkOutput:
    """Run the aggregator on tokens of views of one size that include the special tokens."""
    count = aggregator.special.count
    with patch.object(aggregator.special, "forward", return_value=tokens[..., :count, :]):
        return run_trunk(aggregator, tokens[..., count:, :], grid)


@torch.no_grad()
def naive_trunk(
    aggregator: Aggregator, patches: Tensor, grid: tuple[int, int], external: Tensor | None = None
) -> Levels:
    """Run all layers on patches [B, T, V, P, C]; `external` are log-odds [B, T, V, rows, columns] that they move."""
    config, special = aggregator.config, aggregator.special.count
    tokens = torch.cat([aggregator.special(*patches.shape[:3]), patches], dim=3)
    angles = _angles(grid, special, patches.shape[-1] // config.num_heads, config.rope_base, tokens.dtype)
    states = {Stream.SHARED: tokens}
    levels: Levels = {Stream.SHARED: []}
    mask = None
    for layer in range(config.depth):
        halves = {}
        for place, step in enumerate(config.schedule):
            if external is not None and (layer, place) == _mask_place(aggregator):
                mask = aggregator.dynamic(_only(states)[..., special:, :], grid, external).sigmoid().flatten(3)
                if config.mask.streams is Streams.DUAL:
                    states = dict.fromkeys((Stream.POSE, Stream.GEOMETRY), _only(states))
                    levels = {stream: list(levels[Stream.SHARED]) for stream in states}
            for stream, state in states.items():
                biased = mask is not None and layer in config.mask.layers
                matrix = _matrix(aggregator, mask, stream, step) if biased else None
                states[stream] = _attend(aggregator.blocks[step.value][layer], state, step, angles, matrix)
                halves[stream, step.across_views] = states[stream]
        for stream in states:
            levels[stream].append(torch.cat([halves[stream, False], halves[stream, True]], dim=-1))
    return levels


def _only(states: dict[Stream, Tensor]) -> Tensor:
    """Return the only state."""
    (state,) = states.values()
    return state


def _mask_place(aggregator: Aggregator) -> tuple[int, int]:
    first = aggregator.config.mask.layers[0]
    return (first - 1, 1) if aggregator.config.mask.rule is MaskRule.PAGE4D else (first, 0)


def _angles(grid: tuple[int, int], special: int, width: int, base: float, dtype: torch.dtype) -> Tensor:
    """Return rotary angles [N, d/2]: those of rows, then those of columns."""
    frequencies = base ** -(torch.arange(width // 4, dtype=dtype) / (width // 4))
    return (token_positions(grid, special, frequencies.device)[..., None] * frequencies).flatten(1)


def _rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of channels [i, i + d/4] of each half as complex numbers."""
    real, imaginary = heads.to(angles).unflatten(-1, (2, 2, -1)).unbind(-2)
    rotated = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles).unflatten(-1, (2, -1))
    return torch.stack([rotated.real, rotated.imag], dim=-2).flatten(-3).to(heads)


def _matrix(aggregator: Aggregator, mask: Tensor, stream: Stream, step: Step) -> Tensor | None:
    """Return the bias [groups, 1, length, length] of all pairs of tokens."""
    config, special = aggregator.config.mask, aggregator.special.count
    is_special = torch.arange(special + mask.shape[-1]) < special
    key = functional.pad(mask, (special, 0))
    if config.rule is MaskRule.PAGE4D:
        if not step.across_views:
            return None
        key = functional.pad(0.5 - mask, (special, 0))
        row = torch.where(is_special, 64.0, 0.0)
    elif stream is Stream.SHARED:
        pose, geometry = (aggregator.mask_bias.weight(kind, step) for kind in (Stream.POSE, Stream.GEOMETRY))
        row = torch.where(is_special, pose, geometry)
    else:
        every = torch.ones(()) if config.bias_rows is BiasRows.ALL else is_special.to(mask.dtype)
        row = aggregator.mask_bias.weight(stream, step) * every
    rows = _sequences(row.to(mask).expand(key.shape)[..., None], step)[..., 0]
    return (rows[:, :, None] * _sequences(key[..., None], step)[..., 0][:, None, :])[:, None]


def _attend(block: Block, state: Tensor, step: Step, angles: Tensor, matrix: Tensor | None) -> Tensor:
    sequences = _sequences(state, step)
    together = angles.repeat(sequences.shape[1] // len(angles), 1)
    sequences = sequences + block.ls1(_mix(block, block.norm1(sequences), together, matrix))
    sequences = sequences + block.ls2(block.mlp(block.norm2(sequences)))
    batch, times, views, tokens, width = state.shape
    if step is Step.TIME:
        return sequences.reshape(batch, views, times, tokens, width).transpose(1, 2)
    return sequences.reshape(state.shape)


def _mix(block: Block, sequences: Tensor, angles: Tensor, matrix: Tensor | None) -> Tensor:
    attention = block.attn
    query, key, value = attention.qkv(sequences).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    query, key = _rotate(attention.q_norm(query), angles), _rotate(attention.k_norm(key), angles)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=matrix)
    return attention.proj(mixed.transpose(1, 2).flatten(2))


def _sequences(values: Tensor, step: Step) -> Tensor:
    """Reshape [B, T, V, N, C] to the sequences of a step."""
    times, views, tokens, width = values.shape[1:]
    if step is Step.TIME:
        values = values.transpose(1, 2)
    length = {Step.FRAME: 1, Step.VIEW: views, Step.TIME: times, Step.GLOBAL: times * views}[step] * tokens
    return values.reshape(-1, length, width)
