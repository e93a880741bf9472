"""`page4d export`: an output folder in the formats of other tools."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from page4d.errors import UsageError
from page4d.io.limits import limits_named
from page4d.options import OUTPUT, ExportSettings, Option
from page4d_cli import options
from page4d_cli.console import stops_cleanly
from page4d_cli.progress import count, displayed_progress
from page4d_cli.reports import list_formats, report_exports

if TYPE_CHECKING:
    from page4d.exporters.export import Exported


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
        list_formats(as_json=as_json)
        return
    run, names, folder = _required(out, formats, to)
    done: list[Exported] = []
    try:
        with stops_cleanly():
            for one in _export(run, names, folder, settings, overwrite=overwrite, dry_run=dry_run, quiet=quiet):
                done.append(one)  # noqa: PERF402  those before an error are kept
    finally:  # formats that are complete are reported if a later one fails
        if done and (as_json or dry_run or not quiet):
            report_exports(done, as_json=as_json, dry_run=dry_run)


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
