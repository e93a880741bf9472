"""`page4d export`: an output folder in the formats of other tools."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from page4d.choices import ImageFormat, Pinhole, PointLayer, UpAxis
from page4d.errors import UsageError, shortened
from page4d.options import ExportSettings
from page4d_cli import options
from page4d_cli.console import stops_cleanly
from page4d_cli.progress import count, displayed_progress
from page4d_cli.reports import Report, list_formats, report_exports

POINTS = "Points"
PICTURES = "Pictures"
WORLD = "World"
SPECIAL = "Options of some formats"


def export(
    out: Annotated[Path | None, options.Run] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME,NAME",
            help="Formats, separated by commas, such as colmap,usd; --list prints all.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="New folder for the export; with several formats, one folder per format below it.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="List the formats, their readers and what they need.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.", rich_help_panel=options.OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would be written: files, points and size.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    scene: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the run's videos, for formats with pictures; those of another capture are refused.",
            rich_help_panel=options.SELECTION,
        ),
    ] = None,
    instants: options.RunInstants = None,
    views: options.RunViews = None,
    hold_out: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Views for testing instead of training.", rich_help_panel=options.SELECTION
        ),
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Largest number of points, drawn at random from every view; 0 keeps all. Default: by format.",
            rich_help_panel=POINTS,
        ),
    ] = ExportSettings.max_points,
    voxel: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="S",
            help="Keep one point per voxel of this side length, in units of the run; 0 keeps all.",
            rich_help_panel=POINTS,
        ),
    ] = ExportSettings.voxel,
    min_confidence: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="C", help="Drop points of lower confidence.", rich_help_panel=POINTS),
    ] = ExportSettings.min_confidence,
    only: Annotated[
        PointLayer, typer.Option(help="Static or moving points, or all.", rich_help_panel=POINTS)
    ] = ExportSettings.only,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random seed of --max-points.", rich_help_panel=POINTS)
    ] = ExportSettings.seed,
    image_format: Annotated[
        ImageFormat | None,
        typer.Option(help="File format of pictures. Default: by format.", rich_help_panel=PICTURES),
    ] = ExportSettings.image_format,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=8,
            metavar="LONG",
            help="Long side of pictures in pixels; intrinsics are those of the resized pictures.",
            rich_help_panel=PICTURES,
        ),
    ] = ExportSettings.image_size,
    pinhole: Annotated[
        Pinhole | None,
        typer.Option(
            metavar="MODE",
            help="Intrinsics of the pictures, which are warped to them. keep: those of the run. centered: principal "
            "point in the middle. common: also one focal length and size for all views. Default: by format.",
            rich_help_panel=PICTURES,
        ),
    ] = ExportSettings.pinhole,
    pinhole_focal: Annotated[
        float | None,
        typer.Option(
            metavar="PX",
            help="Focal length of --pinhole common in pixels. Default: the smallest without empty borders.",
            rich_help_panel=PICTURES,
        ),
    ] = ExportSettings.pinhole_focal,
    no_images: Annotated[
        bool,
        typer.Option("--no-images", help="colmap: write the model without pictures.", rich_help_panel=PICTURES),
    ] = not ExportSettings.images,
    up: Annotated[
        UpAxis,
        typer.Option(
            help="Axis of the run's world that points up. auto: -y if its world is that of the first camera, else "
            "the mean upward axis of the cameras.",
            rich_help_panel=WORLD,
        ),
    ] = ExportSettings.up,
    scale: Annotated[
        str,
        typer.Option(
            metavar="S|auto",
            help="Factor for all lengths. auto: 1, or what the format needs.",
            rich_help_panel=WORLD,
        ),
    ] = "auto",
    per_instant: Annotated[
        bool,
        typer.Option(
            "--per-instant", help="colmap, nerfstudio: write one model per instant.", rich_help_panel=SPECIAL
        ),
    ] = ExportSettings.per_instant,
    text: Annotated[
        bool, typer.Option("--text", help="colmap: write text instead of binary files.", rich_help_panel=SPECIAL)
    ] = ExportSettings.text,
    split: Annotated[
        bool, typer.Option("--split", help="usd: write one file per instant.", rich_help_panel=SPECIAL)
    ] = ExportSettings.split,
    animated: Annotated[
        bool,
        typer.Option("--animated", help="glb: write all instants, not only the middle one.", rich_help_panel=SPECIAL),
    ] = ExportSettings.animated,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a run to the formats of other tools: COLMAP, nerfstudio, 4D Gaussian trainers, OpenUSD, glTF and others.

    `page4d export --list` lists the formats. Formats with pictures need the run's videos: --scene.
    """
    if list_:
        list_formats(as_json=as_json)
        return
    run, names, folder = _required(out, formats, to)
    settings = {
        "scene": scene,
        "instants": options.parse_instants(instants),
        "views": options.parse_names(views, "--views"),
        "hold_out": options.parse_names(hold_out, "--hold-out") or (),
        "max_points": max_points,
        "voxel": voxel,
        "min_confidence": min_confidence,
        "only": only,
        "seed": seed,
        "images": not no_images,
        "image_format": image_format,
        "image_size": image_size,
        "pinhole": pinhole,
        "pinhole_focal": pinhole_focal,
        "up": up,
        "scale": _parse_scale(scale),
        "per_instant": per_instant,
        "text": text,
        "split": split,
        "animated": animated,
    }
    reports: list[Report] = []
    try:
        with stops_cleanly():
            for report in _export(run, names, folder, settings, overwrite=overwrite, dry_run=dry_run, quiet=quiet):
                reports.append(report)  # noqa: PERF402  those before an error are kept
    finally:  # formats that are complete are reported if a later one fails
        if reports and (as_json or dry_run or not quiet):
            report_exports(reports, as_json=as_json)


def _export(
    run: Path, names: str, folder: Path, settings: dict[str, Any], *, overwrite: bool, dry_run: bool, quiet: bool
) -> Iterator[Report]:
    """Write the exports one after the other, or only plan them."""
    from page4d.exporters.export import MEMORY_HINT, export_record, plan_exports, run_export
    from page4d.exporters.job import Written
    from page4d.exporters.plan import check_room, estimate
    from page4d.io.limits import limits_named

    with limits_named(MEMORY_HINT):
        planned = plan_exports(run, names, folder, overwrite=overwrite, **settings)
        estimates = [estimate(job) for job, _ in planned]
        if not dry_run:
            check_room(folder, sum(size.bytes for size in estimates))
        for (job, target), size in zip(planned, estimates, strict=True):
            if dry_run:
                record = export_record(job, Written(num_points=size.points), size.files, size.bytes)
                yield Report(folder=target, record=record, is_plan=True)
                continue
            with displayed_progress(f"export {job.format.name}", count("step"), quiet=quiet) as progress:
                done = run_export(job, target, progress.update, overwrite=overwrite)
            yield Report(folder=done.folder, record=done.record, next_step=done.next_step)


def _required(out: Path | None, formats: str | None, to: Path | None) -> tuple[Path, str, Path]:
    """Return what every export needs, which `--list` does not.

    Raises:
        UsageError: naming what is missing.
    """
    if out is None:
        raise UsageError("missing argument 'OUT'", "give the output folder of a run; --list lists the formats")
    if formats is None:
        raise UsageError("missing option '--format'", "list the formats with 'page4d export --list'")
    if to is None:
        raise UsageError("missing option '--to'", "give a new folder for the export")
    return out, formats, to


def _parse_scale(text: str) -> float | None:
    """Parse a factor; `auto` is None."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(
            f"'{shortened(text)}' is neither auto nor a number", param_hint="'--scale'"
        ) from None
