"""Options of `page4d convert-weights` for the parts of the view x time network that a checkpoint lacks."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from page4d import choices
from page4d.errors import shortened
from page4d.io.json_records import config_record
from page4d.options import option, parse_count

if TYPE_CHECKING:
    from page4d.weights.conversion.view_time import ViewTimeOptions

PANEL = "View x time network (--to page4d-mv)"

_MAX_DIGITS = 6


class StreamsOption(StrEnum):
    """Streams of tokens from the first masked layer on."""

    SINGLE = "single"
    DUAL = "dual"
    OWN = "own"


class SparseOption(StrEnum):
    """Keys of the added sparse attention across all images."""

    NONE = "none"
    LANDMARK = "landmark"
    DILATED = "dilated"
    MEMORY = "memory"


@config_record("options of the view x time network")
class ViewTime:
    """Options of the view x time network that are given."""

    streams: StreamsOption | None = option(
        None,
        "single: one token stream. dual: one stream for cameras, one for geometry. own: dual, each with its own "
        "copies of the masked layers' blocks. Default: dual, for Pi3 single.",
        PANEL,
        expert=True,
    )
    sparse: SparseOption | None = option(
        None,
        "Add sparse attention across all images, with a gate that starts at 0. Default: none.",
        PANEL,
        expert=True,
    )
    sparse_layers: str | None = option(
        None,
        "Layers after which it is added, counted from 0. Default: the last two.",
        PANEL,
        "N,N",
        expert=True,
        is_list=True,
    )
    time_encoding: choices.TimeEncoding | None = option(
        None, "Encode distances in time, with gates that start at 0. Default: none.", PANEL, expert=True
    )
    full_attention: choices.FullAttention | None = option(
        None,
        "When all images attend to each other, as in the published network. Default: one-view, for captures of "
        "a single camera.",
        PANEL,
        expert=True,
    )
    time_weights: choices.TimeWeights | None = option(
        None,
        "Weights that attend along time: those of attention within one image (frame), or across all images "
        "(global), which then attend to the same instant and the same view. Default: frame.",
        PANEL,
        expert=True,
    )
    epipolar: bool = option(
        False, "In masked layers, favor attention along epipolar lines if cameras are given.", PANEL, expert=True
    )
    scalars: list[str] | None = option(
        None,
        "Initial value of a learned scalar: alpha, beta (default 1), lambda_pose, lambda_geo, lambda_pose_t, "
        "lambda_geo_t, lambda_kpt, sparse_gate, time_gate (default 0).",
        PANEL,
        "NAME=X",
        name="set",
        expert=True,
    )

    def options(self) -> "ViewTimeOptions | None":
        """Return the options of a conversion, or None if none is given."""
        from page4d.networks.config_parts import SparseStrategy, Streams
        from page4d.weights.conversion.view_time import ViewTimeOptions

        given: dict[str, Any] = {name: value for name, value in vars(self).items() if value not in (None, False)}
        if self.streams is not None:
            given["streams"] = Streams.SINGLE if self.streams is StreamsOption.SINGLE else Streams.DUAL
            given["own_blocks"] = self.streams is StreamsOption.OWN
        if self.sparse is not None:
            given["sparse"] = None if self.sparse is SparseOption.NONE else SparseStrategy(self.sparse)
        if self.sparse_layers is not None:
            given["sparse_layers"] = _parse_layers(self.sparse_layers)
        if self.scalars is not None:
            given["scalars"] = dict(map(_parse_scalar, self.scalars))
        return ViewTimeOptions(**given) if given else None


def _parse_layers(text: str) -> tuple[int, ...]:
    """Parse `22,23`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "0" or parse_count(part) for part in parts):
        raise typer.BadParameter(f"'{shortened(text)}' is not of the form N,N", param_hint="'--sparse-layers'")
    return tuple(map(int, parts))


def _parse_scalar(text: str) -> tuple[str, float]:
    """Parse `lambda_pose=2`."""
    name, _, number = text.partition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        raise typer.BadParameter(f"'{shortened(text)}' is not of the form NAME=X", param_hint="'--set'") from None
