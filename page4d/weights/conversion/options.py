"""Options of a conversion for the parts of the view x time network that a checkpoint lacks."""

from typing import Annotated

from pydantic import NonNegativeInt

from page4d.choices import FullAttention, SparseStrategy, TimeEncoding, TokenStreams
from page4d.errors import shortened
from page4d.io.json_records import config_record
from page4d.options import option, parse_count, text_form

PANEL = "View x time network"


def _parse_layers(text: str) -> tuple[int, ...]:
    """Parse `22,23`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "0" or parse_count(part) for part in parts):
        raise ValueError(f"'{shortened(text)}' is not of the form N,N")
    return tuple(map(int, parts))


@config_record("options of the view x time network")
class ViewTimeOptions:
    """Settings that a checkpoint does not determine. Parts that it lacks start with a gate of 0."""

    streams: TokenStreams | None = option(
        None,
        "single: one token stream. dual: one stream for cameras, one for geometry. own: dual, each with its own "
        "copies of the masked layers' blocks. Default: dual, for Pi3 single.",
        PANEL,
        expert=True,
    )
    sparse: SparseStrategy | None = option(
        None, "Add sparse attention across all images, with a gate that starts at 0.", PANEL, expert=True
    )
    sparse_layers: Annotated[tuple[NonNegativeInt, ...] | None, text_form(_parse_layers)] = option(
        None,
        "Layers after which it is added, counted from 0. Default: the last two.",
        PANEL,
        "N,N",
        expert=True,
        is_list=True,
    )
    time_encoding: TimeEncoding = option(
        TimeEncoding.NONE, "Encode distances in time, with gates that start at 0.", PANEL, expert=True
    )
    full_attention: FullAttention = option(
        FullAttention.ONE_VIEW,
        "When all images attend to each other, as in the published network; one-view: in captures of a single "
        "camera, as weights of attention within one image are not trained to relate instants.",
        PANEL,
        expert=True,
    )
    epipolar: bool = option(
        False, "In masked layers, favor attention along epipolar lines if cameras are given.", PANEL, expert=True
    )


DEFAULTS = ViewTimeOptions()
