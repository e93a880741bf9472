"""State of a forward pass of the trunk, and the values of its steps that are the same in all layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.layers.attention import LogitsBias, Neighbours
from page4d.layers.execution import ForwardLimits, in_chunks
from page4d.layers.positions import RotaryTables
from page4d.models.conditioning import Conditioning, Memory
from page4d.models.inputs.epipolar import EpipolarBand
from page4d.models.inputs.pose_injection import PoseInputs
from page4d.models.schedule import Step, images_together
from page4d.models.size_groups import SizeGroups, join
from page4d.models.sparse import SparseInputs
from page4d.models.streams import Stream

State = list[Tensor]
"""Tokens [B, T, W, N, C] of the W views of each group of one size."""

Biases = dict[tuple[Stream, Step], list[LogitsBias | None]]
"""One bias per sequence of a step; steps across views have one sequence of all size groups."""

Halves = dict[tuple[Stream, bool], State | None]
"""Outputs of a layer's steps that heads read, by stream and whether the step is across views."""


@dataclass(frozen=True, kw_only=True)
class TrunkOutput:
    """Tokens of views of one size that heads read.

    The channels of a layer are [output of its step within views | output of its step across views].
    """

    special_tokens: Float[Tensor, "B T V S C2"]
    """Special tokens of every image, of the last layer."""
    levels: dict[int, Float[Tensor, "B T V N C2"]]
    """All tokens, special ones first, of the layers that dense heads read."""
    dynamic_logit: Float[Tensor, "B T V rows columns"] | None
    memory: Memory | None
    """Conditioning input of the next chunk of instants."""

    @property
    def camera_tokens(self) -> Float[Tensor, "B T V C2"]:
        """First token of every image, of the last layer."""
        return self.special_tokens[..., 0, :]


@dataclass
class TrunkRun:
    """State of one forward pass: the tokens of every stream, constants of all layers, and outputs for the heads."""

    sizes: SizeGroups
    states: dict[Stream, State]
    positions: list[Tensor]
    times: Tensor
    ropes: dict[Step, list[RotaryTables | None]]
    sparse_inputs: SparseInputs
    limits: ForwardLimits
    conditioning: Conditioning
    band: EpipolarBand | None = None
    poses: PoseInputs | None = None
    biases: Biases = field(default_factory=dict)
    levels: dict[int, State] = field(default_factory=dict)
    special_tokens: State | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)


def in_groups(
    block: nn.Module,
    merged: Float[Tensor, "G L C"],
    rope: RotaryTables | None,
    bias: LogitsBias | None,
    limits: ForwardLimits,
    reach: Neighbours | None,
) -> Float[Tensor, "G L C"]:
    """Run a block on sequences of at most `max_tokens` tokens at once, or on one longer sequence."""
    num_groups, length = merged.shape[:2]
    at_once = None if limits.max_tokens is None else max(1, limits.max_tokens // length)

    def groups(chosen: slice) -> Tensor:
        part_bias = None if bias is None else bias.of_groups(chosen)
        part_rope = None if rope is None else rope.of_groups(chosen)
        done: Tensor = block(merged[chosen], part_rope, part_bias, limits.max_queries, neighbours=reach)
        return done

    return in_chunks(groups, num_groups, at_once, dim=0)


def rotary_of_sequences(
    tables: Sequence[RotaryTables | None], sizes: SizeGroups, step: Step, num_times: int
) -> list[RotaryTables | None]:
    """Return the rotary tables of every sequence of a step; steps across views have one of all size groups."""
    ropes = [
        table.repeat(images_together(step, num_times, len(views)))
        for table, views in zip(tables, sizes.members, strict=True)
        if table is not None
    ]
    if not ropes:
        return [None] * (1 if step.across_views else len(tables))
    if not step.across_views or len(ropes) == 1:
        return list(ropes)
    return [RotaryTables(cos=torch.cat([rope.cos for rope in ropes]), sin=torch.cat([rope.sin for rope in ropes]))]


def joined_biases(biases: Sequence[LogitsBias | None]) -> LogitsBias | None:
    """Concatenate the biases of all size groups: all have one, and rows, or none has."""
    given = [bias for bias in biases if bias is not None]
    if not given or len(biases) == 1:
        return biases[0]
    rows = [bias.row for bias in given if bias.row is not None]
    return LogitsBias(key=join([bias.key for bias in given], dim=1), row=join(rows, dim=1) if rows else None)
