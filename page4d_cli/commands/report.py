"""`page4d report`: the quality of a result without ground truth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from page4d.errors import counted, number_text, percent_text
from page4d.io.atomic import check_file, write_bytes_atomic
from page4d.options import OUTPUT, SCENE, Option
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress
from page4d_cli.reports import grade_fields
from page4d_cli.tables import number_columns, print_fields, print_table

if TYPE_CHECKING:
    from page4d.quality.record import QualityReport

_MAX_PAIRS = 30
"""Pairs of views in the table; --json has all."""


@options.command
def report(
    out: Annotated[Path, options.Run],
    scene: Annotated[
        Path | None,
        Option(
            "Folder of the run's videos: their pictures show cameras that are wrong but consistent.", SCENE, "SCENE"
        ),
    ] = None,
    html: Annotated[Path | None, Option("Write the report as one HTML page with pictures.", OUTPUT, "FILE")] = None,
    overwrite: Annotated[bool, Option("Replace an existing page.", OUTPUT)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Grade a result without ground truth.

    Prints a grade from A to E, the reasons and the one thing to change first. Compares the depth of all views with
    each other, over time, and with the pictures; --json has all numbers.
    """
    from page4d.quality.page import inspect, page

    if html is not None:
        check_file(html, overwrite=overwrite)
    with displayed_progress("report", count("instant"), quiet=quiet) as progress:
        inspection = inspect(out, scene, progress.update)
    if as_json:
        console.print_json(inspection.report.document())
    elif not quiet:
        _print(inspection.report)
    if html is not None:
        write_bytes_atomic(html, page(inspection).encode("utf-8"))
        print_fields([] if as_json or quiet else [("page", str(html))])


def _print(report: "QualityReport") -> None:
    from page4d.quality.page import factor_text, view_texts

    headings = (
        *("with\ndepth\n%", "con-\nfirmed\n%", "contra-\ndicted\n%", "single\nview\n%", "confi-\ndence"),
        *("resi-\ndual\npx", "photo\ngain", "flicker\n%"),
    )
    rows = [(view.view, *view_texts(view)) for view in report.views]
    print_table(number_columns("view", headings), rows, "agreement of each view with the others")
    if report.pairs:
        _print_pairs(report)
    grade = report.grade
    reasons = [f"{factor_text(reason.factor)}  {reason.found}" for reason in grade.reasons]
    fields = [
        ("result", report.out),
        ("measured", f"{counted(len(report.instants), 'instant')} of {report.num_times}"),
        *grade_fields(grade),
        *(("" if index else "reasons", reason) for index, reason in enumerate(reasons)),
    ]
    print_fields([*fields, *(("note", note) for note in report.notes)])


def _print_pairs(report: "QualityReport") -> None:
    """Print the pairs of views, of many those that agree least."""
    headings = ("overlap\n%", "con-\nfirmed\n%", "contra-\ndicted\n%", "resi-\ndual\npx", "photo\ngain")
    worst = sorted(report.pairs, key=lambda pair: 1.0 if pair.confirmed is None else pair.confirmed)[:_MAX_PAIRS]
    rows = [
        (
            " > ".join(pair.views),
            *(percent_text(share) for share in (pair.overlap, pair.confirmed, pair.contradicted)),
            number_text(pair.residual_px, "{:.2f}"),
            number_text(pair.photo_gain, "{:+.2f}"),
        )
        for pair in report.pairs
        if pair in worst
    ]
    all_of_them = len(worst) == len(report.pairs)
    which = "" if all_of_them else f", the {len(worst)} of {len(report.pairs)} pairs that agree least"
    print_table(number_columns("pair", headings), rows, f"points of the first view of a pair in the second{which}")
