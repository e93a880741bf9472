"""The view x time network of a published checkpoint, with parts that the checkpoint lacks."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from page4d.choices import FullAttention, TimeEncoding, TimeWeights
from page4d.errors import UsageError
from page4d.networks.config import FRAME_CROSS, TIME_VIEW, NetworkConfig
from page4d.networks.config_parts import (
    EpipolarConfig,
    MaskConfig,
    MaskHeadKind,
    PatchPositions,
    SparseConfig,
    SparseStrategy,
    Streams,
)
from page4d.weights.conversion.accounting import Copy

_EITHER = "leave one of them out"


@dataclass(frozen=True, kw_only=True)
class ViewTimeOptions:
    """Settings that a checkpoint does not determine. Parts that it lacks start with a gate of 0."""

    streams: Streams | None = None
    """None: two, if the heads can read two."""
    own_blocks: bool = False
    sparse: SparseStrategy | None = None
    sparse_layers: tuple[int, ...] | None = None
    """Layers counted from 0; None: the last two."""
    time_encoding: TimeEncoding = TimeEncoding.NONE
    full_attention: FullAttention = FullAttention.ONE_VIEW
    """By default for a single view: weights of attention within one image are not trained to relate instants."""
    time_weights: TimeWeights = TimeWeights.FRAME
    epipolar: bool = False
    scalars: Mapping[str, float] = field(default_factory=dict)


def view_time_network(
    published: NetworkConfig, head: MaskHeadKind, options: ViewTimeOptions, first_masked: int | None = None
) -> NetworkConfig:
    """Return the view x time network with the sizes and heads of a published network.

    The mask acts in layers 8 to 12 of 24, or from `first_masked` on in as many layers.

    Raises:
        UsageError: if the options contradict each other or the network, or its weights do not fit these steps.
    """
    reason = _why_not(published)
    if reason is not None:
        raise UsageError(f"this network cannot become the view x time network: {reason}", "leave --to page4d-mv out")
    mask = _mask(published, head, options, first_masked)
    schedule = FRAME_CROSS if options.time_weights is TimeWeights.GLOBAL else TIME_VIEW
    if schedule is FRAME_CROSS and options.time_encoding is not TimeEncoding.NONE:
        raise UsageError(
            "--time-encoding needs attention along time only, which --time-weights global does not have", _EITHER
        )
    if schedule is FRAME_CROSS and options.epipolar:
        raise UsageError(
            "--epipolar needs attention across the views of an instant, which --time-weights global does not have",
            _EITHER,
        )
    return replace(
        published,
        schedule=schedule,
        full_attention=options.full_attention,
        time_encoding=options.time_encoding,
        mask=mask,
        sparse=_sparse(published, mask, options),
        epipolar=EpipolarConfig(layers=mask.layers) if options.epipolar else None,
    )


def copied_tensors(names: Iterable[str], config: NetworkConfig, last_of_pi3: int | None) -> dict[str, Copy]:
    """Return the tensors that are initialized as copies of trunk blocks, by name.

    Stream blocks copy the blocks of their layer. Sparse blocks copy the block across views of the last layer that Pi3
    fills, if any, else of their layer.
    """
    across = next(step for step in config.schedule if step.across_views)
    found = {}
    for name in names:
        if match := re.fullmatch(r"aggregator\.stream_blocks\.\w+\.(\w+)\.(\d+)\.(.*)", name):
            assert config.mask is not None
            layer = config.mask.layers[int(match[2])]
            found[name] = Copy(
                rule="stream blocks: copies of trunk blocks",
                target=f"aggregator.blocks.{match[1]}.{layer}.{match[3]}",
            )
        elif match := re.fullmatch(r"aggregator\.sparse\.layers\.(\d+)\.block\.(.*)", name):
            layer = int(match[1]) if last_of_pi3 is None else last_of_pi3
            found[name] = Copy(
                rule=f"sparse block: copy of layer {layer} across views",
                target=f"aggregator.blocks.{across}.{layer}.{match[2]}",
            )
    return found


def _why_not(published: NetworkConfig) -> str | None:
    """Return why the weights of a network do not fit steps along time and across the views of an instant, if so."""
    if published.depth == 0:
        return "it attends within single images only, so it has no weights that relate instants or views"
    if published.register_layers:
        return "in some of its layers, special tokens alone attend across images; the mask needs steps of all tokens"
    grid = published.within_positions is published.across_positions is PatchPositions.GRID
    if published.starts_across or not grid:
        return "its patches have no positions of their own across images; the mask needs positions on the grid"
    return None


def _mask(published: NetworkConfig, head: MaskHeadKind, options: ViewTimeOptions, start: int | None) -> MaskConfig:
    single_stream = published.frame_head is not None
    streams = options.streams or (Streams.SINGLE if single_stream else Streams.DUAL)
    if single_stream and streams is Streams.DUAL:
        raise UsageError(
            "--streams dual: the heads of Pi3 and Pi3X read a single stream",
            "leave it out, or use recipe three-stage",
        )
    first = published.depth // 3 if start is None else start
    count = max(1, round(5 * published.depth / 24))
    layers = tuple(range(first, min(first + count, published.depth)))
    return MaskConfig(layers=layers, head=head, streams=streams, own_blocks=options.own_blocks)


def _sparse(published: NetworkConfig, mask: MaskConfig, options: ViewTimeOptions) -> SparseConfig | None:
    if options.sparse is None:
        if options.sparse_layers is not None:
            raise UsageError("--sparse-layers without --sparse", "pass --sparse landmark, dilated or memory")
        return None
    layers = options.sparse_layers
    if layers is None:
        layers = tuple(layer for layer in (published.depth - 2, published.depth - 1) if layer >= mask.layers[0])
    return SparseConfig(layers=layers, strategy=options.sparse)
