"""`page4d export`: an output folder in the formats of other tools."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from page4d.errors import InterruptedRunError, UsageError, counted, human_size
from page4d.exporters.formats import FORMATS, BudgetScope, Format, PictureUse
from page4d.installation import install_command, is_installed
from page4d.io.exhaustion import limits_named
from page4d.options import OUTPUT, ExportSettings, Option
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress
from page4d_cli.stopping import stops_cleanly
from page4d_cli.tables import Cell, Column, Row, number_columns, print_fields, print_table

if TYPE_CHECKING:
    from page4d.exporters.export import Exported, ExportRecord


@options.command
def export(
    out: Annotated[Path | None, options.Run] = None,
    formats: Annotated[
        str | None,
        Option(
            "Formats, separated by commas, such as colmap,usd; --list prints all.",
            OUTPUT,
            "NAME,NAME",
            name="format",
            also="-f",
            is_list=True,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        Option("New folder for the export; with several formats, one folder per format below it.", OUTPUT, "DIR"),
    ] = None,
    list_: Annotated[bool, Option("List the formats, their readers and what they need.", OUTPUT)] = False,
    overwrite: Annotated[bool, Option("Replace an earlier export.", OUTPUT)] = False,
    dry_run: Annotated[bool, Option("Print what would be written: files, points and size.", OUTPUT)] = False,
    *,
    settings: ExportSettings,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a run to COLMAP, nerfstudio, OpenUSD, glTF and others.

    `page4d export --list` lists the formats. Formats with pictures need the run's videos: --scene.
    """
    if list_:
        _list_formats(as_json=as_json)
        return
    run, names, folder = _required(out, formats, to)
    done: list[Exported] = []
    try:
        with stops_cleanly():
            for one in _export(run, names, folder, settings, overwrite=overwrite, dry_run=dry_run, quiet=quiet):
                done.append(one)  # noqa: PERF402  those before an error are kept
    except InterruptedRunError as error:
        if done and not (overwrite or dry_run):  # they would be refused
            error.marked_hint = "repeat the command with ⟨overwrite=True⟩"
        raise
    finally:  # formats that are complete are reported if a later one fails
        if done and (as_json or dry_run or not quiet):
            _report(done, as_json=as_json, dry_run=dry_run)


def _export(
    run: Path, names: str, folder: Path, settings: ExportSettings, *, overwrite: bool, dry_run: bool, quiet: bool
) -> "Iterator[Exported]":
    from page4d.exporters.export import MEMORY_HINT, Exported, export_record, plan_exports, run_export
    from page4d.exporters.job import Written
    from page4d.exporters.plan import check_room, estimate

    with limits_named(MEMORY_HINT):
        planned = plan_exports(run, names, folder, overwrite=overwrite, **vars(settings))
        estimates = [estimate(job) for job, _ in planned]
        if not dry_run:
            check_room(folder, sum(size.bytes for size in estimates))
        for (job, target), size in zip(planned, estimates, strict=True):
            if dry_run:
                record = export_record(job, Written(num_points=size.points), size.files, size.bytes)
                yield Exported(folder=target, record=record, next_step="")
                continue
            with displayed_progress(f"export {job.format.name}", count("step"), quiet=quiet) as progress:
                yield run_export(job, target, progress.update, overwrite=overwrite)


def _required(out: Path | None, formats: str | None, to: Path | None) -> tuple[Path, str, Path]:
    """Return what every export needs, which `--list` does not."""
    if out is None:
        raise UsageError("missing argument 'OUT'", "give the output folder of a run; --list lists the formats")
    if formats is None:
        raise UsageError("missing option '--format'", "list the formats with 'page4d export --list'")
    if to is None:
        raise UsageError("missing option '--to'", "give a new folder for the export")
    return out, formats, to


def _list_formats(*, as_json: bool) -> None:
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
    return f"{format.max_points:,}" + ("/instant" if format.budget is BudgetScope.INSTANT else "")


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


def _report(exports: "Sequence[Exported]", *, as_json: bool, dry_run: bool) -> None:
    """Print what was or would be written, and how to use it."""
    if as_json:
        console.print_json(
            [
                {
                    "folder": str(export.folder),
                    "dry_run": dry_run,
                    "next_step": export.next_step,
                    **export.record.model_dump(mode="json"),
                }
                for export in exports
            ]
        )
        return
    for number, export in enumerate(exports):
        if number:
            console.print_text("")
        _print(export, "at most " if dry_run else "")


def _print(export: "Exported", most: str) -> None:
    record = export.record
    print_fields(
        [
            ("format", f"{record.format}: {FORMATS[record.format].title}"),
            ("folder", str(export.folder)),
            ("files", f"{record.files:,}, {most}{human_size(record.bytes)}"),
            *_content(record, most),
            *_world(record),
            *(("held out", ", ".join(record.held_out)) for _ in record.held_out[:1]),
            *(("remark", remark) for remark in record.remarks),
        ]
    )
    if any(view.cropped or view.empty for view in record.views):
        console.print_text("")
        rows = [(view.name, f"{100 * view.cropped:.1f} %", f"{100 * view.empty:.1f} %") for view in record.views]
        print_table(number_columns("view", ("cropped", "empty")), rows, "pictures warped to other intrinsics")
    elif export.next_step:
        console.print_text("")
    if export.next_step:
        console.print_next(export.next_step)


def _content(record: "ExportRecord", most: str) -> Iterator[tuple[str, str]]:
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
        yield "points", f"{most}{record.points:,}{cut}"


def _world(record: "ExportRecord") -> Iterator[tuple[str, str]]:
    yield "world", f"{record.exported_up} up, {_transform(record.world_from_run)}"
    yield "", f"{record.up} is up in the run: {record.up_found}"
    if record.unit == "metre":
        yield "lengths", "in metres" if record.scale == 1.0 else f"in metres, multiplied by {record.scale:g}"
    else:
        yield "lengths", f"in an arbitrary unit; 1 unit of the run is {record.scale:g} in the export"


def _transform(matrix: Sequence[Sequence[float]]) -> str:
    """Describe a change of axes, such as "(x, y, z) of the run is (x, -y, -z)", or a turn."""
    written = []
    scale = math.hypot(*matrix[0][:3])
    for row in matrix[:3]:
        column = max(range(3), key=lambda index: abs(row[index]))
        if abs(row[column]) < (1.0 - 1e-9) * scale:
            cosine = (sum(matrix[index][index] for index in range(3)) / scale - 1.0) / 2.0
            return f"turned by {math.degrees(math.acos(min(max(cosine, -1.0), 1.0))):.0f} degrees"
        written.append(("-" if row[column] < 0 else "") + "xyz"[column])
    axes = f"({', '.join(written)})"
    return "axes of the run" if axes == "(x, y, z)" else f"(x, y, z) of the run is {axes}"
