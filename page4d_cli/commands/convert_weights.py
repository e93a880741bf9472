"""`page4d convert-weights`: checkpoints of public networks become one file that page4d loads."""

from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from page4d_cli import console, options
from page4d_cli import view_time_options as view_time
from page4d_cli.interrupts import stops_cleanly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from page4d.weights.convert import Conversion
    from page4d.weights.encoder_conversion import EncoderConversion
    from page4d.weights.published import Settings


class RecipeOption(StrEnum):
    """Which tensors make the network."""

    VGGT = "vggt"
    PAGE4D = "page4d"
    PI3 = "pi3"
    THREE_STAGE = "three-stage"


class TargetOption(StrEnum):
    """The network that is filled."""

    OWN = "own"
    PAGE4D_MV = "page4d-mv"


class SwitchOption(StrEnum):
    """Whether something is used."""

    ON = "on"
    OFF = "off"


class DtypeOption(StrEnum):
    """Element type of the file."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


def convert_weights(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="Weights of VGGT, PAGE-4D or Pi3, or of an encoder: .safetensors, a folder of shards, or .pt/.bin "
            "with tensors only.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="New .safetensors file, to be used with --weights.")],
    recipe: Annotated[
        RecipeOption | None,
        typer.Option(
            help="Default: what the sources are. three-stage takes Pi3 and PAGE-4D: encoder and first layers of Pi3, "
            "last layers and heads of PAGE-4D.",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    to: Annotated[
        TargetOption | None,
        typer.Option(
            help="own: as its authors run it. page4d-mv: the same weights in the view x time network.",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    mask: Annotated[
        SwitchOption | None,
        typer.Option(
            help="PAGE-4D only: whether this checkpoint runs with its mask (checkpoint_mask.pt: on, "
            "checkpoint_nomask.pt: off). The file does not say.",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="Constructor arguments of a network that has other sizes than the published one.",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    streams: view_time.Streams = None,
    sparse: view_time.Sparse = None,
    sparse_layers: view_time.SparseLayers = None,
    time_encoding: view_time.TimeEncoding = None,
    full_attention: view_time.FullAttention = None,
    time_weights: view_time.TimeWeights = None,
    epipolar: view_time.Epipolar = False,
    scalars: view_time.Scalars = None,
    dtype: Annotated[
        DtypeOption,
        typer.Option(help="Element type; half of the size in fp16 or bf16.", rich_help_panel=options.OUTPUT),
    ] = DtypeOption.FP32,
    licence: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Licence to record; default: what the authors say.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write where every tensor went.", rich_help_panel=options.OUTPUT),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there.", rich_help_panel=options.OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Account for every tensor and stop.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a weights file for page4d from checkpoints of VGGT, PAGE-4D or Pi3; nothing is fetched, no code is run.

    Encoders, in a file of their own, come from timm's ViT, Swin or Twins-SVT.
    """
    import torch

    from page4d.errors import UsageError
    from page4d.weights.convert import (
        Conversion,
        ConvertSettings,
        check_output,
        plan_conversion,
        report_document,
        write_conversion,
    )
    from page4d.weights.encoder_conversion import encoder_document, plan_encoder, write_encoder
    from page4d.weights.recipes import Recipe, Target

    check_output(out, overwrite=overwrite)
    _check_report(report, [out, *sources], overwrite=overwrite)
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    settings = ConvertSettings(
        recipe=None if recipe is None else Recipe(recipe),
        target=None if to is None else Target(to),
        mask=None if mask is None else mask is SwitchOption.ON,
        view_time=view_time.view_time_options(
            streams=streams,
            sparse=sparse,
            sparse_layers=sparse_layers,
            time_encoding=time_encoding,
            full_attention=full_attention,
            time_weights=time_weights,
            epipolar=epipolar,
            scalars=scalars,
        ),
        dtype=dtypes[dtype],
        licence=licence,
        configs=_read_configs(config or []),
    )
    with stops_cleanly():
        encoder = plan_encoder(sources, settings.dtype, licence)
        if encoder is not None and settings != ConvertSettings(dtype=settings.dtype, licence=licence, configs={}):
            raise UsageError(f"'{sources[0]}' is an encoder; options of networks are given", "leave them out")
        conversion = encoder or plan_conversion(sources, settings)
        check_output(out, conversion, overwrite=overwrite)
        metadata = None
        if not dry_run:
            with _progress(conversion.num_bytes, quiet=quiet) as advance:
                if isinstance(conversion, Conversion):
                    metadata = write_conversion(conversion, out, advance)
                else:
                    metadata = write_encoder(conversion, out, advance)
    if isinstance(conversion, Conversion):
        document, held = report_document(conversion, metadata), f"network  {conversion.target}"
    else:
        document, held = encoder_document(conversion, metadata), f"encoder  {conversion.recognised.family}"
    if report is not None and not dry_run:
        _write_report(report, document)
    if as_json:
        console.print_json({"out": str(out), **{key: document[key] for key in document if key != "tensors"}})
    elif not quiet:
        _print(conversion, out, held, dry_run=dry_run)
    for notice in conversion.notices:
        console.error_console().print(f"[yellow]warning:[/] {notice}")


def _read_configs(paths: list[Path]) -> "dict[str, Settings]":
    """Read the configurations, one a network."""
    from page4d.errors import UsageError
    from page4d.weights.published import read_settings

    configs: dict[str, Settings] = {}
    for path in paths:
        settings = read_settings(path)
        if settings.model in configs:
            raise UsageError(f"--config '{path}' is the second one of {settings.model}", "give one a network")
        configs[settings.model] = settings
    return configs


def _check_report(report: Path | None, others: list[Path], *, overwrite: bool) -> None:
    """Refuse a report that would replace something."""
    from page4d.errors import OutputError, UsageError

    if report is None:
        return
    if any(report.resolve() == other.resolve() for other in others):
        raise UsageError(f"--report '{report}' is also a source or the output", "give it a name of its own")
    if not report.parent.is_dir():
        raise OutputError(f"folder '{report.parent}' does not exist", "make it first")
    if report.is_dir() or (report.exists() and not overwrite):
        raise OutputError(f"'{report}' is there already", "choose another name, or pass --overwrite")


def _write_report(path: Path, document: dict[str, Any]) -> None:
    """Write it whole or not at all."""
    import json

    from page4d.errors import OutputError
    from page4d.io.atomic import write_bytes_atomic

    try:
        write_bytes_atomic(path, (json.dumps(document, indent=1) + "\n").encode())
    except OutputError as error:
        raise OutputError(error.message, "the weights file itself is complete") from error


@contextmanager
def _progress(total: int, *, quiet: bool) -> "Iterator[Callable[[int], None] | None]":
    """Show on stderr how many bytes are written."""
    if quiet:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("convert"), BarColumn(), DownloadColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=console.error_console()) as progress:
        task = progress.add_task("convert", total=total)
        yield lambda written: progress.advance(task, written)


def _print(conversion: "Conversion | EncoderConversion", out: Path, held: str, *, dry_run: bool) -> None:
    """Print how many tensors each rule moved."""
    from rich import box
    from rich.table import Table

    account = conversion.account
    verb = "would become" if dry_run else "became"
    names = " + ".join(source.path.name for source in conversion.sources.values())
    table = Table(box=box.SIMPLE_HEAD, title=console.cell(f"{names} {verb} {out}"), title_justify="left")
    for heading in ("from", "part or rule", "what"):
        table.add_column(heading, no_wrap=heading != "part or rule")
    table.add_column("tensors", justify="right")
    for origin, rule, tag, number in account.by_rule():
        table.add_row(origin, console.cell(rule), str(tag), f"{number:,}")
    console.print_table(table)
    dropped = sum(row.target is None for row in account.rows)
    console.print_text(
        f"{held}, {len(conversion.specs):,} tensors, {console.human_size(conversion.num_bytes)}; all accounted for"
    )
    console.print_text(f"sources  {account.num_used():,} tensors used, {dropped:,} dropped")
    console.print_text(f"licence  {conversion.licence}")
