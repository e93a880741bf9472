"""Information about weights without a download: from the catalogue, the caches, and the headers of files."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from page4d.weights.families.identity import read_identity
from page4d.weights.families.table import FAMILIES, read_network, recognize
from page4d.weights.hub import is_fetched
from page4d.weights.names import HubReference, read_pin
from page4d.weights.resolve import converted_files
from page4d.weights.sources import open_source
from page4d.weights.store import describe_encoder, describe_weights, holds_encoder, is_page4d


class Presence(StrEnum):
    """State of a public checkpoint in the caches."""

    READY = "ready"
    """The converted file."""

    FETCHED = "fetched"
    """The published file, which is converted at its first use."""

    ABSENT = "absent"


def presence(reference: HubReference) -> tuple[Presence, Path | None]:
    """Return the state of a checkpoint in the caches, and the path of the converted file."""
    pin = read_pin(reference)
    digests = {} if pin is None else pin.digests
    for path, known in () if pin is None else converted_files():
        if known.sources == digests:
            return Presence.READY, path
    return (Presence.FETCHED if is_fetched(reference) else Presence.ABSENT), None


@dataclass(frozen=True, kw_only=True)
class FileSummary:
    """Description of a weights file: its kind, licence, parameters, and settings by name."""

    path: Path
    kind: str
    description: str
    licence: str
    commercial: bool | None = None
    """Whether the licence permits commercial use; None if unknown."""

    num_values: int
    num_bytes: int
    settings: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    """Digests of the files that it was converted from, by network and name."""

    converted: bool = True
    """Whether page4d runs it as it is."""


def summarize(path: Path) -> FileSummary:
    """Describe a file of page4d, or a published checkpoint, without its values.

    Raises:
        WeightsError: if it is missing, damaged, or of no known kind.
        UsageError: if its sizes are not those of a published network.
    """
    return _summarize_own(path) if not path.is_dir() and is_page4d(path) else _summarize_published(path)


def _summarize_own(path: Path) -> FileSummary:
    source = open_source(path)
    config, info = describe_encoder(path) if holds_encoder(path) else describe_weights(path)
    return FileSummary(
        path=path,
        kind="encoder of page4d" if holds_encoder(path) else "network of page4d",
        description=info.description,
        licence=info.licence,
        commercial=info.commercial,
        num_values=_num_values(source.specs),
        num_bytes=path.stat().st_size,
        settings=asdict(config),
        sources=json.loads(info.metadata.get("sources", "{}")),
    )


def _summarize_published(path: Path) -> FileSummary:
    source = open_source(path)
    family = recognize(source.specs, str(path), source.metadata)
    data = FAMILIES[family]
    settings: dict[str, Any] = {}
    if data.network is not None:
        settings = asdict(read_network(family, source.specs, str(path), identity=read_identity(path)).config)
    return FileSummary(
        path=path,
        kind="published encoder" if data.network is None else "published network",
        description=data.title,
        licence=data.licence,
        num_values=_num_values(source.specs),
        num_bytes=sum(file.stat().st_size for file in source.files),
        settings=settings,
        converted=False,
    )


def _num_values(specs: Any) -> int:
    return sum(spec.num_bytes // spec.dtype.itemsize for spec in specs.values())
