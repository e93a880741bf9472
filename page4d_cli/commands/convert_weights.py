"""`page4d convert-weights`: convert published checkpoints to a page4d weights file."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d.choices import Precision, Target
from page4d.errors import human_size
from page4d.options import NETWORK, OUTPUT, Option
from page4d_cli import console, options
from page4d_cli.progress import displayed_progress, sizes
from page4d_cli.stopping import stops_cleanly
from page4d_cli.tables import Column, print_fields, print_table

if TYPE_CHECKING:
    from page4d.weights.conversion.convert import PlannedConversion


_NETWORKS = 'give a network as JSON, such as page4d.networks.PRESETS["vggt"].to_json()'


class SwitchOption(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


class DtypeOption(StrEnum):
    """Element type of the file."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


@options.command
def convert_weights(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="Weights of VGGT, PAGE-4D, Pi3, Pi3X, Depth Anything 3 or VGGT-Omega, or of an encoder: "
            ".safetensors, a folder of shards, or .pt/.bin with tensors only.",
        ),
    ],
    out: Annotated[Path, Option("Output .safetensors file, for --weights.", metavar="FILE")],
    *,
    to: Annotated[
        Target | None,
        Option(
            "own: the published network. page4d-mv: the same weights in the view x time network (VGGT, PAGE-4D, "
            "Pi3, Pi3X).",
            NETWORK,
        ),
    ] = None,
    mask: Annotated[
        SwitchOption | None,
        Option(
            "PAGE-4D only, required: whether this checkpoint runs with its mask (on for checkpoint_mask.pt, off "
            "for checkpoint_nomask.pt).",
            NETWORK,
        ),
    ] = None,
    published_as: Annotated[
        str | None,
        Option(
            "Which published network it is, where its tensors leave it open: da3mono-large or da3metric-large. "
            "Default: from the config.json in its folder, or the name of its file or folder.",
            NETWORK,
            "NAME",
            name="as",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        Option(
            "Network of other sizes than the published ones, as that of page4d train --model; one per SOURCE, in "
            "their order.",
            NETWORK,
            "FILE.json",
        ),
    ] = None,
    dtype: Annotated[
        DtypeOption, Option("Element type; fp16 and bf16 halve the file size.", OUTPUT)
    ] = DtypeOption.FP32,
    licence: Annotated[
        str | None, Option("Licence to record. Default: as stated by the authors.", OUTPUT, "TEXT")
    ] = None,
    overwrite: Annotated[bool, Option("Replace an existing file.", OUTPUT)] = False,
    dry_run: Annotated[bool, Option("Print the plan for all tensors and exit.", OUTPUT)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert published checkpoints to page4d weights.

    Networks are VGGT, PAGE-4D, Pi3, Pi3X, Depth Anything 3 (any-view, NESTED, MONO and METRIC) and VGGT-Omega;
    encoders are timm's ViT, Swin and Twins-SVT. Pi3 and PAGE-4D together give a view x time
    network: encoder and first layers of Pi3, last layers and heads of PAGE-4D.

    Nothing is downloaded, and no code in the files is run.
    """
    from page4d.weights.conversion.convert import (
        ConvertSettings,
        check_output,
        plan_conversion,
        report_document,
        write_conversion,
    )
    from page4d.weights.loading import DTYPES

    check_output(out, overwrite=overwrite)
    settings = ConvertSettings(
        target=to,
        mask=None if mask is None else mask is SwitchOption.ON,
        dtype=DTYPES[Precision(dtype)],
        licence=licence,
        configs=tuple(options.read_network(path, _NETWORKS) for path in config or []),
        published_as=published_as,
    )
    with stops_cleanly():
        conversion = plan_conversion(sources, settings)
        check_output(out, conversion, overwrite=overwrite)
        metadata = None
        if not dry_run:
            with displayed_progress("convert", sizes, quiet=quiet) as progress:
                progress.update(0, conversion.num_bytes)
                metadata = write_conversion(conversion, out, progress.update)
    if as_json:
        console.print_json({"out": str(out), **report_document(conversion, metadata)})
    elif not quiet:
        _print(conversion, out, dry_run=dry_run)
    for notice in conversion.blueprint.notices:
        console.print_message(notice, "warning: ", "yellow")


def _print(conversion: "PlannedConversion", out: Path, *, dry_run: bool) -> None:
    account = conversion.account
    verb = "would become" if dry_run else "became"
    names = " + ".join(source.path.name for source in conversion.sources.values())
    columns = (Column("from"), Column("part or rule", wraps=True), Column("origin"), Column("tensors", right=True))
    rows = [(origin, rule, str(tag), f"{number:,}") for origin, rule, tag, number in account.by_rule()]
    print_table(columns, rows, f"{names} {verb} {out}")
    dropped = sum(row.target is None for row in account.rows)
    label, title = ("network", conversion.target) if conversion.is_network else ("encoder", conversion.title)
    size = human_size(conversion.num_bytes)
    print_fields(
        [
            (label, f"{title}, {len(conversion.specs):,} tensors, {size}; all accounted for"),
            ("sources", f"{account.num_used():,} tensors used, {dropped:,} dropped"),
            ("licence", conversion.licence),
        ]
    )
