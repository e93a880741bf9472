"""`page4d validate`: accuracy on public captures of rigs, in tables that compare with published figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d.choices import Sample
from page4d.errors import UsageError, unknown_name
from page4d.options import OUTPUT, Option
from page4d_cli import console, options
from page4d_cli.commands.demo import sample_folder
from page4d_cli.progress import observed_run
from page4d_cli.stopping import stops_cleanly
from page4d_cli.tables import Column, print_fields, print_table

if TYPE_CHECKING:
    from page4d.lab.public_rigs import ClockErrors, DepthFigures, RigErrors, Validation


@options.command
def validate(
    rig: Annotated[
        str, typer.Argument(metavar="RIG", help="Public capture: office, caliscope, treadmill, tabletop or sports.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Folder of the capture, as published; that of office is installed."),
    ] = None,
    as_markdown: Annotated[bool, Option("Print Markdown.", OUTPUT, name="markdown")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure the accuracy on a public capture.

    Cameras are registered with the lenses of the reference and without. Errors of pairs are medians, with the maximum
    in brackets; a camera that is more than 6 degrees off is a false placement.
    """
    from page4d.lab.public_rigs import RIGS
    from page4d.lab.public_rigs import validate as measure

    if folder is None:
        if rig not in RIGS:
            raise unknown_name("public rig", rig, RIGS)
        if rig != Sample.OFFICE:
            raise UsageError(f"the folder of '{rig}' is missing", "give it, or validate office")
        folder = sample_folder(Sample.OFFICE)
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    with stops_cleanly(), observed_run(verbosity, "validate") as observer:
        found = measure(rig, folder, observer)
    if as_json:
        console.print_json(found.model_dump(mode="json"))
    elif as_markdown:
        console.print_text(markdown([found]))
    else:
        _print(found)


def _print(found: "Validation") -> None:
    print_fields([("rig", f"{found.rig}: {found.title}"), ("source", found.source)])
    console.print_text("")
    for title, headings, rows in _tables([found]):
        columns = [
            Column(heading, right=heading not in _TEXTS, wraps=index == 0 or heading in _TEXTS)
            for index, heading in enumerate(headings[1:])
        ]
        print_table(columns, [row[1:] for row in rows], title)  # all rows are of this rig


_Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, headings and rows."""

_TEXTS = ("lenses", "evidence", "not determined")
_HEADINGS = {
    "registered cameras": (
        *("rig", "lenses", "evidence", "placed", "false", "rotation\ndeg", "direction\ndeg", "cen-\ntres\nmm"),
        *("dis-\ntances\nmm", "focal\n%", "cor-\nners\nmm", "flat-\nness\nmm", "CPU\ns"),
    ),
    "clocks from people": ("rig", "median\nms", "largest\nms", "not determined", "CPU\ns"),
    "depth and clouds with the cameras of the reference": (
        *("rig", "AbsRel", "precision\n5 cm, %", "recall\n%", "F-score\n%", "CPU\ns"),
    ),
}


def _tables(results: "Sequence[Validation]") -> list[_Table]:
    rows = (
        [_camera(found.rig, errors) for found in results for errors in found.cameras],
        [_clocks(found.rig, found.clocks) for found in results if found.clocks is not None],
        [_depth(found.rig, found.depth) for found in results if found.depth is not None],
    )
    tables = zip(_HEADINGS.items(), rows, strict=True)
    return [(title, headings, of_table) for (title, headings), of_table in tables if of_table]


def _camera(rig: str, errors: "RigErrors") -> tuple[str, ...]:
    return (
        rig,
        errors.lenses,
        errors.evidence or "-",
        f"{errors.placed} of {errors.views}",
        f"{errors.wrong}",
        _with_largest(errors.rotation_deg, errors.rotation_max_deg),
        _with_largest(errors.direction_deg, errors.direction_max_deg),
        _number(errors.centers_mm, 1),
        _number(errors.distances_mm, 1),
        _number(errors.focal, 1, 100),
        _number(errors.corners_mm, 1),
        _number(errors.flatness_mm, 1),
        _number(errors.seconds),
    )


def _clocks(rig: str, errors: "ClockErrors") -> tuple[str, ...]:
    times = (_number(value) for value in (errors.median_ms, errors.max_ms))
    return (rig, *times, errors.reason or "-", _number(errors.seconds))


def _depth(rig: str, figures: "DepthFigures") -> tuple[str, ...]:
    shares = (_number(value, 1, 100) for value in (figures.precision, figures.recall, figures.f_score))
    return (rig, _number(figures.abs_rel, 3), *shares, _number(figures.seconds))


def _number(value: float | None, digits: int = 0, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _with_largest(middle: float | None, largest: float | None) -> str:
    return "-" if middle is None else f"{_number(middle, 2)} ({_number(largest, 2)})"


def markdown(results: "Sequence[Validation]") -> str:
    """Return the tables as Markdown."""
    lines = []
    for title, headings, rows in _tables(results):
        cells = [
            [heading.replace("-\n", "").replace("\n", " ") for heading in headings],
            ["---"] * len(headings),
            *rows,
        ]
        lines += [f"{title.capitalize()}:", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    return "\n".join(lines)
