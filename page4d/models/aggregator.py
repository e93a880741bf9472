"""The trunk: alternating attention within and across views, executed from a schedule, in one or two streams."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.layers.attention import LogitsBias
from page4d.layers.block import Block, BlockConfig, initialise_linears
from page4d.layers.rope import RotaryTables, rotary_tables
from page4d.models.config import NetworkConfig, Streams
from page4d.models.heads.dynamic import DynamicMask
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.schedule import Step, images_together, merge, split
from page4d.models.streams import MaskBias, Stream
from page4d.models.tokens import SpecialTokens, token_positions

Biases = dict[tuple[Stream, Step], LogitsBias | None]


@dataclass(frozen=True, kw_only=True)
class TrunkOutput:
    """What heads read. A layer's read-out is [its step within views | its step across views] on channels."""

    camera_tokens: Float[Tensor, "B T V C2"]
    levels: dict[int, Float[Tensor, "B T V N C2"]]
    """By layer, of the layers that dense heads read; special tokens first."""
    dynamic_logit: Float[Tensor, "B T V rows columns"] | None


@dataclass
class _Run:
    """State of one forward pass: the tokens of every stream and what was kept for the heads."""

    states: dict[Stream, Tensor]
    ropes: dict[Step, RotaryTables]
    limits: ForwardLimits
    biases: Biases = field(default_factory=dict)
    levels: dict[int, Tensor] = field(default_factory=dict)
    camera_tokens: Tensor | None = None


class Aggregator(nn.Module):
    """Execute the schedule on tokens [B, T, V, N, C] and keep only what heads read.

    Blocks are `blocks.<step>.<layer>`. Streams with blocks of their own have `stream_blocks.<stream>.<step>.<n>`
    for the masked layers, copies of the trunk's when built.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.encoder.embed_dim
        block = BlockConfig(
            dim=dim,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_ratio,
            norm_eps=config.norm_eps,
            qk_norm_eps=config.qk_norm_eps,
            layer_scale=config.layer_scale,
        )
        self.special = SpecialTokens(dim, config.num_registers, config.token_slots)
        self.blocks = nn.ModuleDict(
            {step.value: nn.ModuleList(Block(block) for _ in range(config.depth)) for step in config.schedule}
        )
        initialise_linears(self)
        self.stream_blocks = nn.ModuleDict()
        self.dynamic = None if config.mask is None else DynamicMask(config.mask, dim)
        self.mask_bias = None if config.mask is None else MaskBias(config.mask, self.special.count)
        if config.mask is not None and config.mask.own_blocks:
            for stream in self._streams_read():
                self.stream_blocks[stream.value] = self._copies(config.mask.layers)

    def forward(
        self,
        patches: Float[Tensor, "B T V P C"],
        grid: tuple[int, int],
        external: Float[Tensor, "B T V rows columns"] | None = None,
        limits: ForwardLimits = NO_LIMITS,
    ) -> TrunkOutput:
        """Put the special tokens in front and run all layers; `external` holds log-odds that a patch moves."""
        tokens = torch.cat([self.special(*patches.shape[:3]), patches], dim=3)
        return self.transform(tokens, grid, external, limits)

    def transform(
        self,
        tokens: Float[Tensor, "B T V N C"],
        grid: tuple[int, int],
        external: Float[Tensor, "B T V rows columns"] | None = None,
        limits: ForwardLimits = NO_LIMITS,
    ) -> TrunkOutput:
        """Run all layers on tokens that are complete."""
        run = self._start(tokens, grid, limits)
        masked = () if self.config.mask is None else self.config.mask.layers
        dynamic_logit = None
        for layer in range(self.config.depth):
            if masked and layer == masked[0]:
                dynamic_logit = self._apply_mask(run, grid, external)
            for stream in run.states:
                self._run_layer(run, stream, layer, biased=layer in masked)
        assert run.camera_tokens is not None
        return TrunkOutput(camera_tokens=run.camera_tokens, levels=run.levels, dynamic_logit=dynamic_logit)

    def _start(self, tokens: Tensor, grid: tuple[int, int], limits: ForwardLimits) -> _Run:
        num_times, num_views = tokens.shape[1:3]
        tables = rotary_tables(
            token_positions(grid, self.special.count, tokens.device),
            head_dim=tokens.shape[-1] // self.config.num_heads,
            base=self.config.rope_base,
            dtype=torch.promote_types(tokens.dtype, torch.float32),
        )
        ropes = {step: tables.repeat(images_together(step, num_times, num_views)) for step in self.config.schedule}
        return _Run(states={Stream.SHARED: tokens}, ropes=ropes, limits=limits)

    def _apply_mask(self, run: _Run, grid: tuple[int, int], external: Tensor | None) -> Tensor:
        """Compute the mask once, for all masked layers, and separate the streams if anything tells them apart."""
        assert self.dynamic is not None
        assert self.mask_bias is not None
        assert self.config.mask is not None
        tokens = run.states[Stream.SHARED]
        logit: Tensor = self.dynamic(tokens[..., self.special.count :, :], grid, external)
        dual = self.config.mask.streams is Streams.DUAL
        streams = self._streams_read() if dual else (Stream.SHARED,)
        if external is not None or not self.dynamic.knows_nothing():
            mask = logit.sigmoid().flatten(3)
            run.biases = {
                (stream, step): self.mask_bias(mask, stream, step)
                for stream in streams
                for step in self.config.schedule
            }
        if len(self.stream_blocks) or any(bias is not None for bias in run.biases.values()):
            run.states = dict.fromkeys(streams, tokens)
        return logit

    def _run_layer(self, run: _Run, stream: Stream, layer: int, *, biased: bool) -> None:
        state = run.states[stream]
        halves = {}
        for step in self.config.schedule:
            bias = run.biases.get((stream, step)) if biased else None
            block = self._block(stream, step, layer)
            merged = _by_groups(block, merge(state, step), run.ropes[step], bias, run.limits)
            state = split(merged, step, (state.shape[0], state.shape[1], state.shape[2], state.shape[3]))
            halves[step.across_views] = state
        run.states[stream] = state
        if layer in self.config.dense_layers and stream is not Stream.POSE:
            run.levels[layer] = torch.cat([halves[False], halves[True]], dim=-1)
        if layer == self.config.depth - 1 and (stream is not Stream.GEOMETRY or run.camera_tokens is None):
            run.camera_tokens = torch.cat([halves[False][..., 0, :], halves[True][..., 0, :]], dim=-1)

    def _block(self, stream: Stream, step: Step, layer: int) -> nn.Module:
        mask = self.config.mask
        if mask is not None and layer in mask.layers and stream.value in self.stream_blocks:
            return self.get_submodule(f"stream_blocks.{stream}.{step}.{layer - mask.layers[0]}")
        return self.get_submodule(f"blocks.{step}.{layer}")

    def _streams_read(self) -> tuple[Stream, ...]:
        """Return the streams that some head reads; at least one, so that a network without heads still runs."""
        pose = (Stream.POSE,) if self.config.camera_head is not None or not self.config.dense_layers else ()
        geometry = (Stream.GEOMETRY,) if self.config.dense_layers else ()
        return pose + geometry

    def _copies(self, layers: Iterable[int]) -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                step.value: nn.ModuleList(deepcopy(self.get_submodule(f"blocks.{step}.{layer}")) for layer in layers)
                for step in self.config.schedule
            }
        )


def _by_groups(
    block: nn.Module,
    merged: Float[Tensor, "G L C"],
    rope: RotaryTables,
    bias: LogitsBias | None,
    limits: ForwardLimits,
) -> Float[Tensor, "G L C"]:
    """Run a block on as many groups at once as the limit on tokens allows."""
    num_groups, length = merged.shape[:2]
    at_once = num_groups if limits.max_tokens is None else max(1, limits.max_tokens // length)
    parts = []
    for start in range(0, num_groups, at_once):
        chosen = slice(start, start + at_once)
        part_bias = None if bias is None else bias.of_groups(chosen)
        parts.append(block(merged[chosen], rope, part_bias, limits.max_queries))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
