"""Options of `page4d convert-weights` on what the view x time network has besides a checkpoint's tensors."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from page4d.weights.view_time import ViewTimeOptions

PANEL = "View x time network (--to page4d-mv)"


class StreamsOption(StrEnum):
    """How many states of the tokens there are from the first masked layer on."""

    SINGLE = "single"
    DUAL = "dual"
    OWN = "own"


class SparseOption(StrEnum):
    """What attention across all images looks at."""

    NONE = "none"
    LANDMARK = "landmark"
    DILATED = "dilated"
    MEMORY = "memory"


class TimeEncodingOption(StrEnum):
    """How attention along time knows distances in time."""

    NONE = "none"
    ALIBI = "alibi"
    ROPE = "rope"


class FullAttentionOption(StrEnum):
    """When all images count as views of one instant."""

    NEVER = "never"
    ONE_VIEW = "one-view"
    ALWAYS = "always"


class TimeWeightsOption(StrEnum):
    """Which of a checkpoint's weights look along time."""

    FRAME = "frame"
    GLOBAL = "global"


Streams = Annotated[
    StreamsOption | None,
    typer.Option(
        help="single: one state. dual: one for cameras and one for geometry. own: with blocks of their own in the "
        "masked layers, copied. Default: dual, of Pi3 single.",
        rich_help_panel=PANEL,
    ),
]
Sparse = Annotated[
    SparseOption | None,
    typer.Option(help="Add attention across all images; its gate is closed. Default: none.", rich_help_panel=PANEL),
]
SparseLayers = Annotated[
    str | None,
    typer.Option(
        metavar="N,N", help="After which layers, counted from 0. Default: the last two.", rich_help_panel=PANEL
    ),
]
TimeEncoding = Annotated[
    TimeEncodingOption | None,
    typer.Option(help="Tell distances in time; its gates are closed. Default: none.", rich_help_panel=PANEL),
]
FullAttention = Annotated[
    FullAttentionOption | None,
    typer.Option(
        help="When all images attend to each other, as in the checkpoint's own network. Default: one-view, for a "
        "single camera.",
        rich_help_panel=PANEL,
    ),
]
TimeWeights = Annotated[
    TimeWeightsOption | None,
    typer.Option(
        help="What looks along time: weights that knew one image (frame), or weights that knew all images (global), "
        "which then see rows and columns of instants and views. Default: frame.",
        rich_help_panel=PANEL,
    ),
]
Epipolar = Annotated[
    bool,
    typer.Option(
        "--epipolar",
        help="Where cameras are given, look along epipolar lines in masked layers.",
        rich_help_panel=PANEL,
    ),
]
Scalars = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=X",
        help="Start a number elsewhere: alpha, beta (1), lambda_pose, lambda_geo, lambda_pose_t, lambda_geo_t, "
        "lambda_kpt, sparse_gate, time_gate (0).",
        rich_help_panel=PANEL,
    ),
]


def view_time_options(
    *,
    streams: StreamsOption | None,
    sparse: SparseOption | None,
    sparse_layers: str | None,
    time_encoding: TimeEncodingOption | None,
    full_attention: FullAttentionOption | None,
    time_weights: TimeWeightsOption | None,
    epipolar: bool,
    scalars: Sequence[str] | None,
) -> "ViewTimeOptions | None":
    """Return what was asked for, or None if nothing was."""
    from page4d.models.config import FullAttention, SparseStrategy, Streams, TimeEncoding
    from page4d.weights.view_time import TimeWeights, ViewTimeOptions

    given: dict[str, Any] = {}
    if streams is not None:
        given["streams"] = Streams.SINGLE if streams is StreamsOption.SINGLE else Streams.DUAL
        given["own_blocks"] = streams is StreamsOption.OWN
    if sparse is not None:
        given["sparse"] = None if sparse is SparseOption.NONE else SparseStrategy(sparse)
    if sparse_layers is not None:
        given["sparse_layers"] = _parse_layers(sparse_layers)
    if time_encoding is not None:
        given["time_encoding"] = TimeEncoding(time_encoding)
    if full_attention is not None:
        given["full_attention"] = FullAttention(full_attention)
    if time_weights is not None:
        given["time_weights"] = TimeWeights(time_weights)
    if epipolar:
        given["epipolar"] = True
    if scalars:
        given["scalars"] = dict(map(_parse_scalar, scalars))
    return ViewTimeOptions(**given) if given else None


def _parse_layers(text: str) -> tuple[int, ...]:
    """Read `22,23`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"'{text}' is not of the form N,N", param_hint="'--sparse-layers'")
    return tuple(map(int, parts))


def _parse_scalar(text: str) -> tuple[str, float]:
    """Read `lambda_pose=2`."""
    name, _, number = text.partition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not of the form NAME=X", param_hint="'--set'") from None
