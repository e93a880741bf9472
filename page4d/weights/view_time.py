"""The view x time network that a public network becomes, with the parts that its checkpoint does not have."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from page4d.errors import UsageError
from page4d.models.config import (
    EpipolarConfig,
    FullAttention,
    MaskConfig,
    MaskHeadKind,
    NetworkConfig,
    SparseConfig,
    SparseStrategy,
    Streams,
    TimeEncoding,
)
from page4d.models.schedule import FRAME_CROSS, TIME_VIEW
from page4d.weights.accounting import Copy

_EITHER = "leave one of them out"


class TimeWeights(StrEnum):
    """Which weights look along time."""

    FRAME = "frame"
    """Those of attention within one image; those of attention across all images look at one instant."""

    GLOBAL = "global"
    """Those of attention across all images look at the same instant and at the same view; the others at one image."""


@dataclass(frozen=True, kw_only=True)
class ViewTimeOptions:
    """Choices that a checkpoint leaves open. Parts that it does not have start closed."""

    streams: Streams | None = None
    """None: two where the heads can read two."""
    own_blocks: bool = False
    sparse: SparseStrategy | None = None
    sparse_layers: tuple[int, ...] | None = None
    """Counted from 0; None is the last two."""
    time_encoding: TimeEncoding = TimeEncoding.NONE
    full_attention: FullAttention = FullAttention.ONE_VIEW
    """Weights of attention within one image never learned to relate instants: one moving camera needs the others."""
    time_weights: TimeWeights = TimeWeights.FRAME
    epipolar: bool = False
    scalars: Mapping[str, float] = field(default_factory=dict)


def view_time_network(
    own: NetworkConfig, head: MaskHeadKind, options: ViewTimeOptions, first_masked: int | None = None
) -> NetworkConfig:
    """Return the view x time network with the sizes and heads of a public network.

    The mask acts in layers 8 to 12 of 24, or in as many from where its head was trained.

    Raises:
        UsageError: if the options contradict each other or the network.
    """
    mask = _mask(own, head, options, first_masked)
    schedule = FRAME_CROSS if options.time_weights is TimeWeights.GLOBAL else TIME_VIEW
    if schedule is FRAME_CROSS and options.time_encoding is not TimeEncoding.NONE:
        raise UsageError(
            "--time-encoding acts in attention along time alone, which --time-weights global does not have", _EITHER
        )
    if schedule is FRAME_CROSS and options.epipolar:
        raise UsageError(
            "--epipolar acts in attention across the views of an instant, which --time-weights global does not have",
            _EITHER,
        )
    return replace(
        own,
        schedule=schedule,
        full_attention=options.full_attention,
        time_encoding=options.time_encoding,
        mask=mask,
        sparse=_sparse(own, mask, options),
        epipolar=EpipolarConfig(layers=mask.layers) if options.epipolar else None,
    )


def copies(names: Iterable[str], config: NetworkConfig, last_of_pi3: int | None) -> dict[str, Copy]:
    """Return by name the tensors that start as copies of trunk blocks.

    Blocks of a stream are those of their layer. Sparse blocks are the last one across views that Pi3 fills, if it
    fills any, else that of their layer.
    """
    across = next(step for step in config.schedule if step.across_views)
    found = {}
    for name in names:
        if match := re.fullmatch(r"aggregator\.stream_blocks\.\w+\.(\w+)\.(\d+)\.(.*)", name):
            assert config.mask is not None
            layer = config.mask.layers[int(match[2])]
            found[name] = Copy(
                rule="blocks of the streams: copies of the trunk's",
                target=f"aggregator.blocks.{match[1]}.{layer}.{match[3]}",
            )
        elif match := re.fullmatch(r"aggregator\.sparse\.layers\.(\d+)\.block\.(.*)", name):
            layer = int(match[1]) if last_of_pi3 is None else last_of_pi3
            found[name] = Copy(
                rule=f"sparse block: copy of layer {layer} across views",
                target=f"aggregator.blocks.{across}.{layer}.{match[2]}",
            )
    return found


def _mask(own: NetworkConfig, head: MaskHeadKind, options: ViewTimeOptions, start: int | None) -> MaskConfig:
    one_reader = own.frame_head is not None
    streams = options.streams or (Streams.SINGLE if one_reader else Streams.DUAL)
    if one_reader and streams is Streams.DUAL:
        raise UsageError("--streams: the heads of Pi3 read one state", "leave it out, or use recipe three-stage")
    first = own.depth // 3 if start is None else start
    count = max(1, round(5 * own.depth / 24))
    layers = tuple(range(first, min(first + count, own.depth)))
    return MaskConfig(layers=layers, head=head, streams=streams, own_blocks=options.own_blocks)


def _sparse(own: NetworkConfig, mask: MaskConfig, options: ViewTimeOptions) -> SparseConfig | None:
    if options.sparse is None:
        if options.sparse_layers is not None:
            raise UsageError("--sparse-layers without --sparse", "say which of landmark, dilated, memory")
        return None
    layers = options.sparse_layers
    if layers is None:
        layers = tuple(layer for layer in (own.depth - 2, own.depth - 1) if layer >= mask.layers[0])
    return SparseConfig(layers=layers, strategy=options.sparse)
