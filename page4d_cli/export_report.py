"""Printed reports of `page4d export`: the table of formats, what was written, and what would be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page4d.errors import counted
from page4d.exporters.formats import FORMATS, Budget, Format, PictureUse
from page4d.installation import install_command, is_installed
from page4d_cli import console
from page4d_cli.tables import Cell, Column, Row, print_fields, print_table

if TYPE_CHECKING:
    from page4d.exporters.export import ExportRecord


@dataclass(frozen=True, kw_only=True)
class Report:
    """An export, or the plan of one: its folder, `export.json`, and the next command."""

    folder: Path
    record: "ExportRecord"
    next_step: str = ""
    is_plan: bool = False


def list_formats(*, as_json: bool) -> None:
    """Print all formats, and the commands that install what is missing."""
    if as_json:
        console.print_json([_described(format) for format in FORMATS.values()])
        return
    columns = (
        Column("format"),
        Column("readers, and content", wraps=True),
        Column("pictures"),
        Column("points"),
        Column("extra"),
    )
    print_table(columns, [_row(format) for format in FORMATS.values()])
    missing = {format.extra for format in FORMATS.values() if format.extra and not is_installed(format.extra)}
    print_fields(
        [
            ("pictures", "needed: give --scene; optional: give --scene or --no-images"),
            ("points", "default of --max-points, for all instants together or for each"),
            *((f"extra {extra}", install_command(extra)) for extra in sorted(missing)),
        ]
    )


def _row(format: Format) -> Row:
    extra = "" if not format.extra else format.extra if is_installed(format.extra) else f"{format.extra}: missing"
    return (
        format.name,
        f"{format.used_by}: {format.title}",
        Cell("-" if format.pictures is PictureUse.NONE else format.pictures.value),
        _budget(format),
        Cell(extra, "yellow" if "missing" in extra else "green"),
    )


def _budget(format: Format) -> str:
    if not format.point_bytes:
        return "-"
    if not format.max_points:
        return "all"
    return f"{format.max_points:,}" + ("/instant" if format.budget is Budget.INSTANT else "")


def _described(format: Format) -> dict[str, Any]:
    return {
        "name": format.name,
        "title": format.title,
        "used_by": format.used_by,
        "pictures": format.pictures.value,
        "max_points": format.max_points if format.point_bytes else None,
        "budget": format.budget.value if format.point_bytes else None,
        "extra": format.extra or None,
        "installed": not format.extra or is_installed(format.extra),
        "install": install_command(format.extra) if format.extra else None,
        "static_rig": format.static_rig,
        "min_instants": format.min_instants,
        "max_instants": format.max_instants,
        "max_views": format.max_views,
        "image_format": None if format.pictures is PictureUse.NONE else format.image_format.value,
        "pinhole": None if format.pictures is PictureUse.NONE else format.pinhole.value,
        "options": sorted(format.options),
    }


def report_exports(reports: Sequence[Report], *, as_json: bool) -> None:
    """Print what was or would be written, and how to use it."""
    if as_json:
        console.print_json(
            [
                {
                    "folder": str(report.folder),
                    "dry_run": report.is_plan,
                    "next_step": report.next_step,
                    **report.record.document(),
                }
                for report in reports
            ]
        )
        return
    for number, report in enumerate(reports):
        if number:
            console.print_text("")
        _print(report)


def _print(report: Report) -> None:
    record, about = report.record, "about " if report.is_plan else ""
    print_fields(
        [
            ("format", f"{record.format}: {FORMATS[record.format].title}"),
            ("folder", str(report.folder)),
            ("files", f"{about}{record.files:,}, {console.human_size(record.bytes)}"),
            *_content(record, about),
            *_world(record),
            *(("held out", ", ".join(record.held_out)) for _ in record.held_out[:1]),
            *(("remark", remark) for remark in record.remarks),
        ]
    )
    if any(view.cropped or view.empty for view in record.views):
        console.print_text("")
        _print_shares(record)
    elif report.next_step:
        console.print_text("")
    if report.next_step:
        console.print_text("next step")
        for line in report.next_step.splitlines():  # not wrapped, so that it can be copied
            console.print_text(line)


def _content(record: "ExportRecord", about: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of instants, views, pictures and points."""
    first, last = record.instants[0], record.instants[-1]
    if first is last:
        yield "instants", f"1, at {first.seconds:.3f} s"
    else:
        rate = f"{record.frame_rate:.4g} per second" if record.regular else "at irregular steps"
        yield "instants", f"{len(record.instants)}, {first.seconds:.3f} to {last.seconds:.3f} s, {rate}"
    yield "views", ", ".join(view.name for view in record.views)
    sizes = list(dict.fromkeys(view.picture_size for view in record.views if view.picture_size is not None))
    if sizes:
        texts = ", ".join(f"{width}x{height}" for width, height in sizes)
        yield "pictures", f"{texts} px, pinhole: {record.pinhole}"
    if FORMATS[record.format].point_bytes:
        cut = f"; {counted(record.cut_points, 'outlier')} left out" if record.cut_points else ""
        yield "points", f"{about}{record.points:,}{cut}"


def _world(record: "ExportRecord") -> Iterator[tuple[str, str]]:
    """Yield the lines of axes and lengths."""
    yield "world", f"{record.exported_up} up, {_transform(record.world_from_run)}"
    yield "", f"{record.up} is up in the run: {record.up_found}"
    if record.unit == "metre":
        yield "lengths", "in metres" if record.scale == 1.0 else f"in metres, multiplied by {record.scale:g}"
    else:
        yield "lengths", f"in an arbitrary unit; 1 unit of the run is {record.scale:g} in the export"


def _transform(matrix: Sequence[Sequence[float]]) -> str:
    """Describe a change of axes, such as "(x, y, z) of the run is (x, -y, -z)"."""
    written = []
    for row in matrix[:3]:
        column = max(range(3), key=lambda index: abs(row[index]))
        written.append(("-" if row[column] < 0 else "") + "xyz"[column])
    axes = f"({', '.join(written)})"
    return "axes of the run" if axes == "(x, y, z)" else f"(x, y, z) of the run is {axes}"


def _print_shares(record: "ExportRecord") -> None:
    """Print how much of each view's pictures the change of intrinsics cut off or left empty."""
    columns = [Column("view"), Column("cropped", right=True), Column("empty", right=True)]
    rows = [(view.name, f"{100 * view.cropped:.1f} %", f"{100 * view.empty:.1f} %") for view in record.views]
    print_table(columns, rows, "pictures warped to other intrinsics")
