"""The trunk: alternating attention within and across views, executed from a schedule, in one or two streams."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.layers.attention import LogitsBias, Neighbours
from page4d.layers.block import Block, BlockConfig, initialise_linears
from page4d.layers.chunks import in_chunks
from page4d.layers.rope import RotaryTables, rotary_tables
from page4d.models.config import MaskConfig, MaskRule, NetworkConfig, Streams, TimeEncoding
from page4d.models.epipolar import EpipolarBand, epipolar_band
from page4d.models.heads.dynamic import DynamicMask
from page4d.models.hints import NO_HINTS, Hints, Memory
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.relative_time import RelativeTime
from page4d.models.schedule import Step, images_together, merge, neighbours, split
from page4d.models.sparse import SparseLayers, Surroundings
from page4d.models.streams import MaskBias, ReleaseBias, Stream
from page4d.models.tokens import SpecialTokens, token_positions

Biases = dict[tuple[Stream, Step], LogitsBias | None]
Halves = dict[tuple[Stream, bool], Tensor | None]
"""By stream and whether views exchanged, what heads read of a layer's steps."""


@dataclass(frozen=True, kw_only=True)
class TrunkOutput:
    """What heads read. A layer's read-out is [its step within views | its step across views] on channels."""

    camera_tokens: Float[Tensor, "B T V C2"]
    """Of the last layer, the first token of every image."""
    levels: dict[int, Float[Tensor, "B T V N C2"]]
    """By layer, of the layers that dense heads read; special tokens first."""
    dynamic_logit: Float[Tensor, "B T V rows columns"] | None
    memory: Memory | None
    """What a network with a memory hands on to the next chunk of instants."""


@dataclass
class _Run:
    """State of one forward pass: the tokens of every stream and what was kept for the heads."""

    states: dict[Stream, Tensor]
    positions: Tensor
    times: Tensor
    ropes: dict[Step, RotaryTables]
    around: Surroundings
    limits: ForwardLimits
    hints: Hints
    band: EpipolarBand | None = None
    biases: Biases = field(default_factory=dict)
    levels: dict[int, Tensor] = field(default_factory=dict)
    camera_tokens: Tensor | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)


class Aggregator(nn.Module):
    """Execute the schedule on tokens [B, T, V, N, C] and keep only what heads read.

    Blocks are `blocks.<step>.<layer>`. Streams with blocks of their own have `stream_blocks.<stream>.<step>.<n>`
    for the masked layers, copies of the trunk's when built.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.encoder.embed_dim
        self.special = SpecialTokens(dim, config.num_registers, config.token_slots, camera=config.camera_token)
        self.blocks = nn.ModuleDict(
            {step.value: nn.ModuleList(map(self._new_block, range(config.depth))) for step in config.schedule}
        )
        initialise_linears(self)
        self.stream_blocks = nn.ModuleDict()
        self.dynamic: DynamicMask | None = None
        self.mask_bias: MaskBias | ReleaseBias | None = None
        if config.mask is not None:
            self._add_mask(config.mask, dim)
        self.time = None if config.time_encoding is TimeEncoding.NONE else RelativeTime(config)
        self.sparse: SparseLayers | None = None
        if config.sparse is not None:
            across = next(step for step in config.schedule if step.across_views)
            copied = {layer: self._trunk_block(across, layer) for layer in config.sparse.layers}
            self.sparse = SparseLayers(config.sparse, copied, self.special.count)

    def forward(
        self,
        patches: Float[Tensor, "B T V P C"],
        grid: tuple[int, int],
        external: Float[Tensor, "B T V rows columns"] | None = None,
        limits: ForwardLimits = NO_LIMITS,
        hints: Hints = NO_HINTS,
    ) -> TrunkOutput:
        """Put the special tokens in front and run all layers; `external` holds log-odds that a patch moves."""
        special = self.special(*patches.shape[:3])
        return self.transform(torch.cat([special, patches], dim=3), grid, external, limits, hints)

    def transform(
        self,
        tokens: Float[Tensor, "B T V N C"],
        grid: tuple[int, int],
        external: Float[Tensor, "B T V rows columns"] | None = None,
        limits: ForwardLimits = NO_LIMITS,
        hints: Hints = NO_HINTS,
    ) -> TrunkOutput:
        """Run all layers on tokens that are complete."""
        run = self._start(tokens, grid, limits, hints)
        del tokens  # its memory is free as soon as the first layer is done
        dynamic_logit = None
        for layer in range(self.config.depth):
            halves: Halves = {}
            for place, step in enumerate(self.config.schedule):
                if (layer, place) == self._mask_place():
                    dynamic_logit = self._apply_mask(run, grid, external)
                for stream in run.states:
                    run.states[stream] = self._attend(run, stream, step, layer)
                    halves[stream, step.across_views] = self._read(run.states[stream], stream, layer)
            if self.sparse is not None and layer in self.sparse.config.layers:
                self._exchange(run, layer, halves)
            for stream in run.states:
                self._keep(run, stream, layer, halves)
        assert run.camera_tokens is not None
        return TrunkOutput(
            camera_tokens=run.camera_tokens, levels=run.levels, dynamic_logit=dynamic_logit, memory=run.memory or None
        )

    def _new_block(self, layer: int) -> Block:
        config = self.config
        return Block(
            BlockConfig(
                dim=config.encoder.embed_dim,
                num_heads=config.num_heads,
                mlp_ratio=config.mlp_ratio,
                norm_eps=config.norm_eps_of(layer),
                qk_norm_eps=config.qk_norm_eps,
                layer_scale=config.layer_scale,
            )
        )

    def _add_mask(self, mask: MaskConfig, dim: int) -> None:
        self.dynamic = DynamicMask(mask, dim)
        release = mask.rule is MaskRule.PAGE4D
        self.mask_bias = ReleaseBias(self.special.count) if release else MaskBias(mask, self.special.count)
        if mask.own_blocks:
            for stream in self._streams_read():
                self.stream_blocks[stream.value] = self._copies(mask.layers)

    def _start(self, tokens: Tensor, grid: tuple[int, int], limits: ForwardLimits, hints: Hints) -> _Run:
        num_times, num_views = tokens.shape[1:3]
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        positions = token_positions(grid, self.special.count, tokens.device)
        head_dim = tokens.shape[-1] // self.config.num_heads
        tables = rotary_tables(positions, head_dim, self.config.rope_base, dtype)
        times = torch.arange(num_times).expand(len(tokens), -1) if hints.times is None else hints.times
        ropes = {step: tables.repeat(images_together(step, num_times, num_views)) for step in self.config.schedule}
        keypoints = None if hints.keypoints is None else hints.keypoints.flatten(3)
        around = Surroundings(rope=tables, grid=grid, keypoints=keypoints, limits=limits)
        return _Run(
            states={Stream.SHARED: tokens},
            positions=positions,
            times=times.to(tokens.device, dtype),
            ropes=ropes,
            around=around,
            limits=limits,
            hints=hints,
            band=self._band(hints, grid),
        )

    def _band(self, hints: Hints, grid: tuple[int, int]) -> EpipolarBand | None:
        config = self.config.epipolar
        if config is None or hints.world_to_camera is None or hints.intrinsics is None:
            return None
        cameras = (hints.world_to_camera, hints.intrinsics)
        return epipolar_band(config, *cameras, grid, self.config.patch_size, self.special.count)

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
            run.around = replace(run.around, mask=mask)
            run.biases = {
                (stream, step): self.mask_bias(mask, stream, step)
                for stream in streams
                for step in self.config.schedule
            }
        if len(self.stream_blocks) or any(bias is not None for bias in run.biases.values()):
            run.states = dict.fromkeys(streams, tokens)
        return logit

    def _exchange(self, run: _Run, layer: int, halves: Halves) -> None:
        """Run the sparse block of a layer; its result takes the place of the step across views."""
        assert self.sparse is not None
        dual = self.config.mask is not None and self.config.mask.streams is Streams.DUAL
        if dual and Stream.SHARED in run.states and self.sparse.needs_streams(layer, run.hints):
            run.states = dict.fromkeys(self._streams_read(), run.states[Stream.SHARED])
            halves.update({(stream, False): halves[Stream.SHARED, False] for stream in run.states})
        for stream in run.states:
            run.states[stream], memory = self.sparse(run.states[stream], stream, layer, run.around, run.hints)
            halves[stream, True] = self._read(run.states[stream], stream, layer)
            run.memory.update(memory)

    def _attend(self, run: _Run, stream: Stream, step: Step, layer: int) -> Tensor:
        """Run the block of one step on a stream."""
        state = run.states[stream]
        biased = self.config.mask is not None and layer in self.config.mask.layers
        bias = run.biases.get((stream, step)) if biased else None
        rope = run.ropes[step]
        if self.time is not None and step is Step.TIME:
            images = (state.shape[2], state.shape[3])
            bias = self.time.bias(layer, run.times, images, bias)
            rope = self.time.rope(layer, run.times, images, run.positions, rope.cos.shape[-1]) or rope
        if run.band is not None and step is Step.VIEW and self._has_prior(layer):
            bias = (
                LogitsBias(key=state.new_zeros(run.band.num_instants, state.shape[2] * state.shape[3]))
                if bias is None
                else bias
            )
            bias = replace(bias, pairs=run.band)
        block = self._block(stream, step, layer)
        reach = neighbours(step, state.shape[1], state.shape[2])
        merged = _by_groups(block, merge(state, step), rope, bias, run.limits, reach)
        return split(merged, step, (state.shape[0], state.shape[1], state.shape[2], state.shape[3]))

    def _has_prior(self, layer: int) -> bool:
        return self.config.epipolar is not None and layer in self.config.epipolar.layers

    def _read(self, state: Tensor, stream: Stream, layer: int) -> Tensor | None:
        """Return what heads read of the result of a step: all tokens, the cameras' or nothing."""
        if layer in self.config.dense_layers and stream is not Stream.POSE:
            return state
        return state[..., :1, :].clone() if layer == self.config.depth - 1 else None

    def _keep(self, run: _Run, stream: Stream, layer: int, halves: Halves) -> None:
        """Keep what heads read of a layer."""
        within, across = halves[stream, False], halves[stream, True]
        if within is None or across is None:
            return
        if layer == self.config.depth - 1 and (stream is not Stream.GEOMETRY or run.camera_tokens is None):
            run.camera_tokens = torch.cat([within[..., 0, :], across[..., 0, :]], dim=-1)
        if layer in self.config.dense_layers and stream is not Stream.POSE:
            run.levels[layer] = torch.cat([within, across], dim=-1)

    def _mask_place(self) -> tuple[int, int] | None:
        """Return the layer and the step in it before which the mask is computed."""
        mask = self.config.mask
        if mask is None:
            return None
        return (mask.layers[0] - 1, 1) if mask.rule is MaskRule.PAGE4D else (mask.layers[0], 0)

    def _block(self, stream: Stream, step: Step, layer: int) -> nn.Module:
        mask = self.config.mask
        if mask is not None and layer in mask.layers and stream.value in self.stream_blocks:
            return self.get_submodule(f"stream_blocks.{stream}.{step}.{layer - mask.layers[0]}")
        return self.get_submodule(f"blocks.{step}.{layer}")

    def _trunk_block(self, step: Step, layer: int) -> Block:
        block = self.get_submodule(f"blocks.{step}.{layer}")
        assert isinstance(block, Block)
        return block

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
    reach: Neighbours | None,
) -> Float[Tensor, "G L C"]:
    """Run a block on as many groups at once as the limit on tokens allows."""
    num_groups, length = merged.shape[:2]
    at_once = None if limits.max_tokens is None else max(1, limits.max_tokens // length)

    def groups(chosen: slice) -> Tensor:
        part_bias = None if bias is None else bias.of_groups(chosen)
        done: Tensor = block(merged[chosen], rope.of_groups(chosen), part_bias, limits.max_queries, neighbours=reach)
        return done

    return in_chunks(groups, num_groups, at_once, dim=0)
