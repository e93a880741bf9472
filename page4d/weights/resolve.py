"""The weights file that `weights` stands for: given, or fetched from the hub and converted, once.

A converted file is named by its family, a digest of its sources and of the options of the conversion, and the version
of the conversion. Where the tool's conversion has changed, the file is made again and the older one removed.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from page4d.errors import Level, Notice, Observer, OutputError, SilentObserver, UsageError, WeightsError
from page4d.io.atomic import describe_mismatch, file_sha256, real_path
from page4d.io.folders import check_space, locked
from page4d.io.json_records import FileModel, Sha256, read_cached, write_model
from page4d.output.record import WeightsSourceRecord
from page4d.weights import names
from page4d.weights.conversion.convert import ConvertSettings, PlannedConversion, plan_conversion, write_conversion
from page4d.weights.file_type import SETTINGS_FILE, first_bytes
from page4d.weights.hub import HubFiles, fetch, verify
from page4d.weights.names import HubReference, Pin
from page4d.weights.store import FORMAT_VERSION, describe_weights, is_page4d

SUFFIX = ".safetensors"
RECORD_SUFFIX = ".json"

_ROOT = Path(__file__).parents[1]
_CODE = (
    "weights/store.py",
    "weights/conversion",
    "weights/families",
    "networks/config.py",
    "networks/config_parts.py",
    "networks/presets.py",
)
"""Modules and packages that decide which bytes a conversion writes."""


class ConvertedFile(FileModel):
    """A converted file: its digest and size, its family, and the digests of its sources by name."""

    sha256: Sha256
    num_bytes: int
    family: str
    sources: dict[str, str]


@cache
def conversion_version() -> str:
    """Return the version of the conversion: a digest of the code that determines its result."""
    digest = hashlib.sha256()
    for place in _CODE:
        for file in sorted((_ROOT / place).glob("*.py")) or [_ROOT / place]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def converted_files(key: str = "*") -> Iterator[tuple[Path, ConvertedFile]]:
    """Yield the complete files of the present version of the conversion; of one key, or all."""
    for record in sorted(names.weights_cache().glob(f"*-{key}-{conversion_version()}{RECORD_SUFFIX}")):
        path = record.with_suffix(SUFFIX)
        known = read_cached(record, ConvertedFile)
        if known is not None and path.is_file() and path.stat().st_size == known.num_bytes:
            yield path, known


def find_converted(digests: Mapping[str, str], settings: ConvertSettings) -> tuple[Path, ConvertedFile] | None:
    """Return the converted file of sources with these digests, if the cache has it and it is complete."""
    return next(converted_files(_key(digests, settings)), None)


def convert_once(
    source: Path,
    digests: Mapping[str, str],
    settings: ConvertSettings,
    observer: Observer,
    verify: Callable[[], None] = lambda: None,
) -> tuple[Path, ConvertedFile]:
    """Return the converted file of a checkpoint; convert it if the cache lacks it.

    `digests` are the SHA-256 of its files by name; `verify` compares them with the files, and is called before a
    conversion. Of several processes one converts, and the others wait for it.

    Raises:
        WeightsError: if the checkpoint cannot be used, or holds an encoder.
        UsageError: if its conversion needs options.
        OutputError: if the cache cannot be written.
    """
    found = find_converted(digests, settings)
    if found is not None:
        return found
    key = _key(digests, settings)
    waiting = Notice(f"another process converts '{source.name}': waiting for it", Level.STEP)
    with locked(names.weights_cache() / "locks" / key, lambda: observer.notice(waiting)):
        found = find_converted(digests, settings)
        if found is not None:
            return found
        verify()
        conversion = _plan(source, settings)
        family = next(iter(conversion.sources)).value
        path = names.weights_cache() / f"{family}-{key}-{conversion_version()}{SUFFIX}"
        _remove_others(path, key)
        record = _convert(conversion, path, family, digests, observer)
        return path, record


def _key(digests: Mapping[str, str], settings: ConvertSettings) -> str:
    text = json.dumps([sorted(digests.values()), repr(settings), FORMAT_VERSION])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plan(source: Path, settings: ConvertSettings) -> PlannedConversion:
    try:
        conversion = plan_conversion([source], settings)
    except UsageError as error:
        raise UsageError(
            error.marked_message,
            f"convert it first: page4d convert-weights '{source}' --out FILE; {error.marked_hint}",
        ) from error
    if not conversion.is_network:
        raise WeightsError(f"'{source}' holds an encoder, not a whole network", "give the weights of a network")
    return conversion


def _convert(
    conversion: PlannedConversion, path: Path, family: str, digests: Mapping[str, str], observer: Observer
) -> ConvertedFile:
    check_space({path.parent: conversion.num_bytes}, f"the converted {conversion.title}")
    observer.notice(Notice(f"converting {conversion.title}, once (kept in '{path.parent}')", Level.STEP))
    for text in conversion.blueprint.notices:
        observer.notice(Notice(text))
    write_conversion(conversion, path, partial(observer.progress, stage="convert"))
    record = ConvertedFile(
        sha256=file_sha256(path), num_bytes=path.stat().st_size, family=family, sources=dict(digests)
    )
    write_model(path.with_suffix(RECORD_SUFFIX), record)
    return record


def _remove_others(path: Path, key: str) -> None:
    """Remove the files of other versions, and what a killed process left, while this process has the lock."""
    for pattern in (f"*-{key}-*{SUFFIX}", f"*-{key}-*{RECORD_SUFFIX}", f".*-{key}-*.part"):
        for other in path.parent.glob(pattern):
            with suppress(OSError):
                other.unlink()


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """A page4d weights file, and where it comes from.

    `sha256` is the digest that the file must have, if one is known. `commercial` is whether its licence permits
    commercial use, None if unknown.
    """

    path: Path
    sha256: str | None = None
    title: str | None = None
    commercial: bool | None = None
    source: WeightsSourceRecord | None = None

    @property
    def name(self) -> str:
        """What the user gave, for a converted file; else the name of the file."""
        return self.path.name if self.source is None else self.source.name


def bundled_weights() -> Path:
    """Return the file of the network that is used by default.

    Raises:
        WeightsError: if this installation lacks it.
    """
    if not names.BUNDLED_FILE.is_file():
        raise WeightsError(
            f"the bundled weights are missing: '{names.BUNDLED_FILE}'",
            "reinstall page4d, pass ⟨weights=FILE⟩, or ⟨untrained=True⟩ to test without trained weights",
        )
    return names.BUNDLED_FILE


def find_weights(
    given: str | Path | None, sha256: str | None = None, observer: Observer | None = None
) -> FoundWeights:
    """Return the page4d file of a name, of a file of the hub, or of a file; None is the bundled network.

    What the caches lack is fetched and converted. Without an observer, or a silent one, the licence is not shown.
    `sha256` is the digest that the given file, or the file of the hub, must have.

    Raises:
        UsageError: if nothing is known by this name, or a conversion needs options.
        WeightsError: if the weights cannot be fetched or used, or have another digest.
        OutputError: if a cache cannot be written.
    """
    if given is None:
        return FoundWeights(path=bundled_weights())
    reference, observer = names.parse_weights(given), observer or SilentObserver()
    if isinstance(reference, Path):
        return _from_file(reference, sha256, observer)
    pin = names.read_pin(reference)
    shows_licence = not isinstance(observer, SilentObserver)
    if shows_licence and (pin is None or not pin.licence_shown):
        observer.notice(_licence_notice(reference))
    path, expected, pin = _from_hub(reference, pin, observer)
    if shows_licence and not pin.licence_shown:
        names.write_pin(reference, pin.model_copy(update={"licence_shown": True}))
    first, entry = pin.files[0], reference.entry
    _check_given(first.name, first.sha256, sha256)
    return FoundWeights(
        path=path,
        sha256=expected,
        title=None if entry is None else f"{entry.title} ({entry.name})",
        commercial=None if entry is None else entry.commercial,
        source=WeightsSourceRecord(
            name=reference.name,
            repository=reference.repository,
            revision=pin.revision,
            file=first.name,
            sha256=first.sha256,
        ),
    )


def _licence_notice(reference: HubReference) -> Notice:
    entry = reference.entry
    if entry is None:
        text = f"{reference.name}: licence not in page4d's catalogue; it is stated on the page of the repository"
        return Notice(text, Level.STEP)
    level = Level.STEP if entry.commercial else Level.WARNING
    return Notice(f"{reference.name}: licence {names.licence_line(entry)}", level)


def _from_hub(reference: HubReference, pin: Pin | None, observer: Observer) -> tuple[Path, str, Pin]:
    """Return the page4d file of a reference, its digest, and the pin."""
    settings = _settings(reference)
    found = None if pin is None else find_converted(pin.digests, settings)
    if found is not None and pin is not None:  # the source may have been removed since
        return found[0], found[1].sha256, pin
    files: HubFiles = fetch(reference, observer)
    if is_page4d(files.path):
        return files.path, files.pin.files[0].sha256, files.pin
    path, record = convert_once(files.path, files.pin.digests, settings, observer, partial(verify, files))
    return path, record.sha256, files.pin


def _settings(reference: HubReference) -> ConvertSettings:
    entry = reference.entry
    if entry is None:
        return ConvertSettings()
    return ConvertSettings(mask=entry.mask, licence=entry.licence, published_as=entry.network)


def _from_file(path: Path, sha256: str | None, observer: Observer) -> FoundWeights:
    """Return a page4d file as it is, and another checkpoint converted."""
    sources = _source_files(path)
    if not sources or is_page4d(path):
        return FoundWeights(path=path, sha256=sha256)
    digests = {file.name: _known_digest(file) for file in sources}
    first = sources[0]
    _check_given(first.name, digests[first.name], sha256)
    converted, record = convert_once(path, digests, ConvertSettings(), observer)
    return FoundWeights(
        path=converted,
        sha256=record.sha256,
        commercial=describe_weights(converted)[1].commercial,
        source=WeightsSourceRecord(name=path.name, file=first.name, sha256=digests[first.name]),
    )


def _source_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint: of a folder its index, shards and settings; none if the path has no weights.

    Errors of the path are those of its later reading.
    """
    if path.is_dir():
        indices = sorted(path.glob(f"*{names.INDEX_SUFFIX}"))
        found = [*indices, *sorted(path.glob("*.safetensors"))] if len(indices) == 1 else []
    else:
        try:
            first_bytes(path)
        except WeightsError:
            return []
        found = [path]
    record = (path if path.is_dir() else path.parent) / SETTINGS_FILE
    return [*found, *([record] if found and record.is_file() else [])]


class _FileDigest(FileModel):
    """The digest of a file of this machine, valid while size and time of its last change are the same."""

    path: str
    num_bytes: int
    changed_ns: int
    sha256: Sha256


def _known_digest(path: Path) -> str:
    """Return the SHA-256 of a file; it is computed again if the file has changed."""
    place, state = str(real_path(path)), path.stat()
    record = names.weights_cache() / "files" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    now = {"path": place, "num_bytes": state.st_size, "changed_ns": state.st_mtime_ns}
    known = read_cached(record, _FileDigest)
    if known is not None and known.model_dump(exclude={"sha256"}) == now:
        return known.sha256
    try:
        sha256 = file_sha256(path)
    except OSError as error:
        raise WeightsError(f"cannot read '{path}': {error.strerror}", "check the file and its disk") from error
    described = _FileDigest.model_validate({**now, "sha256": sha256})
    with suppress(OutputError):  # a cache without write access costs the time of the digest
        write_model(record, described)
    return sha256


def _check_given(name: str, found: str, expected: str | None) -> None:
    """Refuse a file of another digest than the user gave."""
    if expected is not None and found != expected:
        raise WeightsError(f"{name} {describe_mismatch(found, expected)}", "⟨sha256⟩ is that of the published file")
