"""`page4d validate`: accuracy on public captures of rigs, in tables that compare with published figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d.choices import Sample
from page4d.errors import UsageError
from page4d.options import OUTPUT, Option
from page4d_cli import console, options
from page4d_cli.commands.demo import sample_folder
from page4d_cli.console import stops_cleanly
from page4d_cli.progress import observed_run
from page4d_cli.tables import Column, print_fields, print_table

if TYPE_CHECKING:
    from page4d.lab.public_rigs import RigErrors, Validation


@options.command
def validate(
    rig: Annotated[
        str, typer.Argument(metavar="RIG", help="Public capture: office, caliscope, treadmill, tabletop or sports.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Folder of the capture, as published; that of office is installed."),
    ] = None,
    markdown: Annotated[bool, Option("Print Markdown.", OUTPUT)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure the accuracy on a public capture.

    Cameras are registered with the lenses of the reference and without. Errors of pairs are medians, with the maximum
    in brackets; a camera that is more than 6 degrees off is a false placement.
    """
    from page4d.lab.public_rigs import validate as measure

    if folder is None:
        if rig != Sample.OFFICE:
            raise UsageError(f"the folder of '{rig}' is missing", "give it, or validate office")
        folder = sample_folder(Sample.OFFICE)
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    with stops_cleanly(), observed_run(verbosity, "validate") as observer:
        found = measure(rig, folder, observer)
    if as_json:
        console.print_json(found.model_dump(mode="json"))
    elif markdown:
        console.print_text(_markdown(found))
    else:
        print_fields([("rig", f"{found.rig}: {found.title}"), ("source", found.source)])
        console.print_text("")
        for title, headings, rows in _tables(found):
            columns = [Column(heading, right=index > 1) for index, heading in enumerate(headings)]
            print_table(columns, rows, title)


_Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, headings and rows."""


def _tables(found: "Validation") -> list[_Table]:
    tables: list[_Table] = []
    if found.cameras:
        tables.append(("registered cameras", _CAMERAS, [_camera(errors) for errors in found.cameras]))
    if (clocks := found.clocks) is not None:
        row = (_number(clocks.median_ms), _number(clocks.max_ms), clocks.reason or "-", _number(clocks.seconds))
        tables.append(("clocks from people", ("median\nms", "largest\nms", "not determined", "CPU\ns"), [row]))
    if (depth := found.depth) is not None:
        shares = (_number(depth.precision, 1, 100), _number(depth.recall, 1, 100), _number(depth.f_score, 1, 100))
        headings = ("AbsRel", "precision\n5 cm, %", "recall\n%", "F-score\n%", "CPU\ns")
        found_depth = (_number(depth.abs_rel, 3), *shares, _number(depth.seconds))
        tables.append(("depth and clouds with the cameras of the reference", headings, [found_depth]))
    return tables


_CAMERAS = (
    *("lenses", "evidence", "placed", "false", "rotation\ndeg", "direction\ndeg", "centres\nmm", "distances\nmm"),
    *("focal\n%", "residual\npx", "corners\nmm", "flatness\nmm", "CPU\ns"),
)


def _camera(errors: "RigErrors") -> tuple[str, ...]:
    return (
        errors.lenses,
        errors.evidence or "-",
        f"{errors.placed} of {errors.views}",
        f"{errors.wrong}",
        _with_largest(errors.rotation_deg, errors.rotation_max_deg),
        _with_largest(errors.direction_deg, errors.direction_max_deg),
        _number(errors.centers_mm, 1),
        _number(errors.distances_mm, 1),
        _number(errors.focal, 1, 100),
        _number(errors.residual_px, 2),
        _number(errors.corners_mm, 1),
        _number(errors.flatness_mm, 1),
        _number(errors.seconds),
    )


def _number(value: float | None, digits: int = 0, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _with_largest(middle: float | None, largest: float | None) -> str:
    return "-" if middle is None else f"{_number(middle, 2)} ({_number(largest, 2)})"


def _markdown(found: "Validation") -> str:
    """Return the tables as Markdown."""
    lines = []
    for title, headings, rows in _tables(found):
        cells = [[heading.replace("\n", " ") for heading in headings], ["---"] * len(headings), *rows]
        lines += [f"{found.rig}: {title}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    return "\n".join(lines)
