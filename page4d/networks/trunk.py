"""The trunk: alternating attention within and across views by a schedule, in one or two streams.

Values of its steps that are the same in all layers are computed once per forward pass.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.choices import TimeEncoding
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning, Grid, Memory, SizeGroups, join
from page4d.networks.config import NetworkConfig, Step, images_together, merge, split
from page4d.networks.config_parts import MaskConfig, MaskRule, Streams
from page4d.networks.heads.motion import DynamicMask
from page4d.networks.inputs.known_cameras import EpipolarBand, epipolar_band
from page4d.networks.inputs.known_geometry import KnownPoses, PoseInjection, PoseInputs
from page4d.networks.layers.attention import LogitsBias, RotaryTables
from page4d.networks.layers.block import Block, BlockConfig, initialise_linears
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits, in_chunks
from page4d.networks.sparse import SparseInputs, SparseLayers
from page4d.networks.tokens import (
    MaskBias,
    RelativeTime,
    ReleaseBias,
    SpecialTokens,
    Stream,
    patch_rotary_tables,
    token_positions,
)

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
) -> Float[Tensor, "G L C"]:
    """Run a block on sequences of at most `max_tokens` tokens at once, or on one longer sequence."""
    num_groups, length = merged.shape[:2]
    at_once = None if limits.max_tokens is None else max(1, limits.max_tokens // length)

    def groups(chosen: slice) -> Tensor:
        part_bias = None if bias is None else bias.of_groups(chosen)
        part_rope = None if rope is None else rope.of_groups(chosen)
        return block(merged[chosen], part_rope, part_bias, limits.max_queries)

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


class Aggregator(nn.Module):
    """Run the schedule on tokens [B, T, V, N, C] and keep only the outputs that heads read.

    Blocks are `blocks.<step>.<layer>`. Streams with separate blocks have `stream_blocks.<stream>.<step>.<n>` for the
    masked layers, initialised as copies of the trunk's.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.encoder.embed_dim
        self.special = SpecialTokens(dim, config.num_registers, config.token_slots, camera=config.camera_token)
        self.blocks = nn.ModuleDict(
            {
                step.value: nn.ModuleList(
                    self._new_block(layer) if self._has(step, layer) else nn.Identity()
                    for layer in range(config.depth)
                )
                for step in config.schedule
            }
        )
        initialise_linears(self)
        norm_eps = config.readout_norm_eps
        self.readout_norm = nn.Identity() if norm_eps is None else nn.LayerNorm(dim, eps=norm_eps)
        self.stream_blocks = nn.ModuleDict()
        self.dynamic: DynamicMask | None = None
        self.mask_bias: MaskBias | ReleaseBias | None = None
        if config.mask is not None:
            self._add_mask(config.mask, dim)
        self.time = None if config.time_encoding is TimeEncoding.NONE else RelativeTime(config)
        self.pose_injection: PoseInjection | None = None
        if config.known_geometry is not None:
            self.pose_injection = PoseInjection(config.known_geometry, self.special.count)
        self.sparse: SparseLayers | None = None
        if config.sparse is not None:
            across = next(step for step in config.schedule if step.across_views)
            copied = {layer: self.get_submodule(f"blocks.{across}.{layer}") for layer in config.sparse.layers}
            self.sparse = SparseLayers(config.sparse, copied, self.special.count)

    def forward(
        self,
        patches: Sequence[Float[Tensor, "B T W _ C"]],
        sizes: SizeGroups,
        external: Sequence[Float[Tensor, "B T W _ _"]] | None = None,
        limits: ForwardLimits = NO_LIMITS,
        conditioning: Conditioning = NO_CONDITIONING,
        reference: Int[Tensor, " B"] | None = None,
        camera_tokens: Float[Tensor, "B T V C"] | None = None,
        poses: KnownPoses | None = None,
    ) -> list[TrunkOutput]:
        """Prepend the special tokens and run all layers; `external` are log-odds that patches move.

        Tokens are given and returned per group of views of one size. Steps across views concatenate the tokens of all
        groups; nothing is padded. `reference` and `camera_tokens` are as in `SpecialTokens`, `poses` are for pose
        injection.
        """
        special = sizes.chosen(self.special(*patches[0].shape[:2], sizes.num_views, reference, camera_tokens))
        tokens = [torch.cat(pair, dim=3) for pair in zip(special, patches, strict=True)]
        run = self._start(tokens, sizes, limits, conditioning)
        if poses is not None and self.pose_injection is not None:
            dtype = torch.promote_types(tokens[0].dtype, torch.float32)
            run.poses = self.pose_injection.inputs(poses, sizes, dtype)
        del tokens
        return self._run(run, external)

    def _run(self, run: TrunkRun, external: Sequence[Tensor] | None) -> list[TrunkOutput]:
        dynamic_logits: list[Tensor] | None = None
        for layer in range(self.config.depth):
            halves: Halves = {}
            for place, step in enumerate(self.config.schedule):
                if (layer, place) == self._mask_place():
                    dynamic_logits = self._apply_mask(run, external)
                for stream in run.states if self._has(step, layer) else ():
                    run.states[stream] = self._attend(run, stream, step, layer)
                    if step.across_views:
                        run.states[stream] = self._inject_poses(run, run.states[stream], layer)
                    halves[stream, step.across_views] = self._read(run.states[stream], stream, layer)
            if self.sparse is not None and layer in self.sparse.config.layers:
                self._run_sparse(run, layer, halves)
            for stream in run.states:
                self._keep(run, stream, layer, halves)
        assert run.special_tokens is not None
        return [
            TrunkOutput(
                special_tokens=special_tokens,
                levels={layer: parts[place] for layer, parts in run.levels.items()},
                dynamic_logit=None if dynamic_logits is None else dynamic_logits[place],
                memory=run.memory or None,
            )
            for place, special_tokens in enumerate(run.special_tokens)
        ]

    def _has(self, step: Step, layer: int) -> bool:
        """Return whether a layer has a step."""
        return step.across_views or layer > 0 or not self.config.starts_across

    def _new_block(self, layer: int) -> Block:
        config = self.config
        return Block(
            BlockConfig(
                dim=config.encoder.embed_dim,
                num_heads=config.num_heads,
                mlp_ratio=config.mlp_ratio,
                feed_forward=config.feed_forward,
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
                self.stream_blocks[stream.value] = nn.ModuleDict(
                    {
                        step.value: nn.ModuleList(
                            deepcopy(self.get_submodule(f"blocks.{step}.{layer}")) for layer in mask.layers
                        )
                        for step in self.config.schedule
                    }
                )

    def _start(self, tokens: State, sizes: SizeGroups, limits: ForwardLimits, conditioning: Conditioning) -> TrunkRun:
        """Compute the constants of all layers; only the run holds the tokens, so that the first layer frees them."""
        batch, num_times = tokens[0].shape[:2]
        dtype, device = torch.promote_types(tokens[0].dtype, torch.float32), tokens[0].device
        positions = [token_positions(grid, self.special.count, device) for grid in sizes.grids]
        times = torch.arange(num_times).expand(batch, -1) if conditioning.times is None else conditioning.times
        keypoints = None if conditioning.keypoints is None else conditioning.keypoints.flatten(3)
        within, across = self.config.within_positions, self.config.across_positions
        head_dim = self.config.encoder.embed_dim // self.config.num_heads
        settings = (self.special.count, head_dim, self.config.rope_base, dtype, device)
        tables = {
            rule: [patch_rotary_tables(rule, grid, *settings) for grid in sizes.grids]
            for rule in dict.fromkeys((within, across))
        }
        ropes = {
            step: rotary_of_sequences(tables[across if step.across_views else within], sizes, step, num_times)
            for step in self.config.schedule
        }
        return TrunkRun(
            sizes=sizes,
            states={Stream.SHARED: tokens},
            positions=positions,
            times=times.to(device, dtype),
            ropes=ropes,
            sparse_inputs=SparseInputs(
                rope=tables[within][0], grid=sizes.grids[0], keypoints=keypoints, limits=limits
            ),
            limits=limits,
            conditioning=conditioning,
            band=self._band(conditioning, sizes.grids[0]),
        )

    def _band(self, conditioning: Conditioning, grid: Grid) -> EpipolarBand | None:
        config = self.config.epipolar
        if config is None or conditioning.world_to_camera is None or conditioning.intrinsics is None:
            return None
        cameras = (conditioning.world_to_camera, conditioning.intrinsics)
        return epipolar_band(config, *cameras, grid, self.config.patch_size, self.special.count)

    def _apply_mask(self, run: TrunkRun, external: Sequence[Tensor] | None) -> list[Tensor]:
        """Compute the mask, for all masked layers, and split the streams if their biases or blocks differ."""
        assert self.dynamic is not None
        assert self.mask_bias is not None
        assert self.config.mask is not None
        state = run.states[Stream.SHARED]
        given = [None] * len(state) if external is None else external
        logits: list[Tensor] = [
            self.dynamic(tokens[..., self.special.count :, :], *inputs)
            for tokens, *inputs in zip(state, run.sizes.grids, given, strict=True)
        ]
        dual = self.config.mask.streams is Streams.DUAL
        streams = self._streams_read() if dual else (Stream.SHARED,)
        if external is not None or not self.dynamic.is_untrained():
            masks = [logit.sigmoid().flatten(3) for logit in logits]
            run.sparse_inputs = replace(run.sparse_inputs, mask=masks[0])
            for stream in streams:
                for step in self.config.schedule:
                    biases = [self.mask_bias(mask, stream, step) for mask in masks]
                    run.biases[stream, step] = [joined_biases(biases)] if step.across_views else biases
        if len(self.stream_blocks) or any(bias is not None for biases in run.biases.values() for bias in biases):
            run.states = dict.fromkeys(streams, state)
        return logits

    def _run_sparse(self, run: TrunkRun, layer: int, halves: Halves) -> None:
        """Run the sparse block of a layer; its result replaces the output of the step across views."""
        assert self.sparse is not None
        dual = self.config.mask is not None and self.config.mask.streams is Streams.DUAL
        if dual and Stream.SHARED in run.states and self.sparse.needs_streams(layer, run.conditioning):
            run.states = dict.fromkeys(self._streams_read(), run.states[Stream.SHARED])
            halves.update({(stream, False): halves[Stream.SHARED, False] for stream in run.states})
        for stream in run.states:
            (state,) = run.states[stream]  # sparse blocks are for images of one size
            state, memory = self.sparse(state, stream, layer, run.sparse_inputs, run.conditioning)
            run.states[stream] = [state]
            halves[stream, True] = self._read(run.states[stream], stream, layer)
            run.memory.update(memory)

    def _attend(self, run: TrunkRun, stream: Stream, step: Step, layer: int) -> State:
        """Run the block of one step on a stream."""
        if step.across_views and layer in self.config.register_layers:
            return self._attend_special(run, stream, step, layer)
        state = run.states[stream]
        block = self._block(stream, step, layer)
        merged = [merge(part, step) for part in state]
        lengths = [part.shape[1] for part in merged]
        if step.across_views:
            merged = [join(merged, dim=1)]
        for place in range(len(merged)):
            bias, rope = self._bias_and_rope(run, stream, step, layer, place)
            merged[place] = in_groups(block, merged[place], rope, bias, run.limits)
        if len(merged) < len(lengths):
            merged = list(torch.split(merged[0], lengths, dim=1))
        return [split(done, step, part.shape[:4]) for done, part in zip(merged, state, strict=True)]

    def _inject_poses(self, run: TrunkRun, state: State, layer: int) -> State:
        injection = self.pose_injection
        if injection is None or run.poses is None or layer not in injection.config.pose_layers:
            return state
        return injection(state, layer, run.poses, run.limits.max_queries)

    def _attend_special(self, run: TrunkRun, stream: Stream, step: Step, layer: int) -> State:
        """Run the block of a register layer on the special tokens; they are at position (0, 0)."""
        state, count = run.states[stream], self.special.count
        special = run.sizes.stacked([part[..., :count, :] for part in state])
        done = self._block(stream, step, layer)(merge(special, step), max_queries=run.limits.max_queries)
        done = split(done, step, special.shape[:4])
        return [
            torch.cat([own, part[..., count:, :]], dim=-2)
            for own, part in zip(run.sizes.chosen(done), state, strict=True)
        ]

    def _bias_and_rope(
        self, run: TrunkRun, stream: Stream, step: Step, layer: int, place: int
    ) -> tuple[LogitsBias | None, RotaryTables | None]:
        """Return the attention bias and rotary tables of one sequence of a step."""
        state = run.states[stream][place]
        biased = self.config.mask is not None and layer in self.config.mask.layers
        bias = run.biases[stream, step][place] if biased and (stream, step) in run.biases else None
        rope = run.ropes[step][place]
        if self.time is not None and step is Step.TIME:
            images = (state.shape[2], state.shape[3])
            bias = self.time.bias(layer, run.times, images, bias)
            head_dim = self.config.encoder.embed_dim // self.config.num_heads
            rope = self.time.rope(layer, run.times, images, run.positions[place], head_dim) or rope
        prior = self.config.epipolar
        if run.band is not None and prior is not None and step is Step.VIEW and layer in prior.layers:
            none = LogitsBias(key=state.new_zeros(run.band.num_instants, state.shape[2] * state.shape[3]))
            bias = replace(bias or none, pairs=run.band)
        return bias, rope

    def _read(self, state: State, stream: Stream, layer: int) -> State | None:
        """Return the part of a step's output that heads read: all tokens, special tokens or nothing."""
        if layer in self.config.dense_layers and stream is not Stream.POSE:
            return state
        if layer < self.config.depth - 1:
            return None
        return [part[..., : max(1, self.special.count), :].clone() for part in state]

    def _keep(self, run: TrunkRun, stream: Stream, layer: int, halves: Halves) -> None:
        """Store the outputs of a layer that heads read."""
        within, across = halves.get((stream, False)), halves.get((stream, True))
        if within is None or across is None:
            return
        pairs = list(zip(within, across, strict=True))
        if layer == self.config.depth - 1 and (stream is not Stream.GEOMETRY or run.special_tokens is None):
            special = slice(max(1, self.special.count))
            run.special_tokens = [
                torch.cat([one[..., special, :], two[..., special, :]], dim=-1) for one, two in pairs
            ]
        if layer in self.config.dense_layers and stream is not Stream.POSE:
            run.levels[layer] = [torch.cat([one, self.readout_norm(two)], dim=-1) for one, two in pairs]

    def _mask_place(self) -> tuple[int, int] | None:
        """Return the layer, and the index of the step in it, before which the mask is computed."""
        mask = self.config.mask
        if mask is None:
            return None
        return (mask.layers[0] - 1, 1) if mask.rule is MaskRule.PAGE4D else (mask.layers[0], 0)

    def _block(self, stream: Stream, step: Step, layer: int) -> nn.Module:
        mask = self.config.mask
        if mask is not None and layer in mask.layers and stream.value in self.stream_blocks:
            return self.get_submodule(f"stream_blocks.{stream}.{step}.{layer - mask.layers[0]}")
        return self.get_submodule(f"blocks.{step}.{layer}")

    def _streams_read(self) -> tuple[Stream, ...]:
        """Return the streams that heads read; the pose stream for a network without heads."""
        pose = (Stream.POSE,) if self.config.camera_head is not None or not self.config.dense_layers else ()
        geometry = (Stream.GEOMETRY,) if self.config.dense_layers else ()
        return pose + geometry
