"""The weights file that `--weights` stands for: given, or fetched from the hub and converted, once."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from page4d.errors import InputError, Level, Notice, OutputError, WeightsError
from page4d.io.atomic import describe_mismatch, file_sha256, real_path, write_bytes_atomic
from page4d.io.json_records import FileModel, Sha256, format_json, read_model
from page4d.output.run_record import WeightsSourceRecord
from page4d.weights.conversion.convert import ConvertSettings
from page4d.weights.convert_once import convert_once, find_converted
from page4d.weights.file_type import SETTINGS_FILE, first_bytes
from page4d.weights.hub.fetch import FetchObserver, HubFiles, SilentFetch, fetch, verify
from page4d.weights.hub.names import INDEX_SUFFIX, HubReference, licence_line, parse_weights
from page4d.weights.hub.pins import Pin, read_pin, weights_cache, write_pin
from page4d.weights.store import describe_weights, is_page4d


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


def find_weights(given: str | Path, sha256: str | None = None, observer: FetchObserver | None = None) -> FoundWeights:
    """Return the page4d file of a name, of a file of the hub, or of a file.

    What the caches lack is fetched and converted. Without an observer the licence is not shown. `sha256` is the
    digest that the given file, or the file of the hub, must have.

    Raises:
        UsageError: if nothing is known by this name, or a conversion needs options.
        WeightsError: if the weights cannot be fetched or used, or have another digest.
        OutputError: if a cache cannot be written.
    """
    reference = parse_weights(given)
    if isinstance(reference, Path):
        return _from_file(reference, sha256, observer or SilentFetch())
    pin = read_pin(reference)
    if observer is not None and (pin is None or not pin.licence_shown):
        observer.notice(_licence_notice(reference))
    path, expected, pin = _from_hub(reference, pin, observer or SilentFetch())
    if observer is not None and not pin.licence_shown:
        write_pin(reference, pin.model_copy(update={"licence_shown": True}))
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
    return Notice(f"{reference.name}: licence {licence_line(entry)}", level)


def _from_hub(reference: HubReference, pin: Pin | None, observer: FetchObserver) -> tuple[Path, str, Pin]:
    """Return the page4d file of a reference, its digest, and the pin."""
    settings = _settings(reference)
    found = None if pin is None else find_converted(_digests(pin), settings)
    if found is not None and pin is not None:  # the source may have been removed since
        return found[0], found[1].sha256, pin
    files: HubFiles = fetch(reference, observer)
    if is_page4d(files.path):
        return files.path, files.pin.files[0].sha256, files.pin
    path, record = convert_once(files.path, _digests(files.pin), settings, observer, partial(verify, files))
    return path, record.sha256, files.pin


def _digests(pin: Pin) -> dict[str, str]:
    return {file.name: file.sha256 for file in pin.files}


def _settings(reference: HubReference) -> ConvertSettings:
    entry = reference.entry
    if entry is None:
        return ConvertSettings()
    return ConvertSettings(mask=entry.mask, licence=entry.licence, published_as=entry.network)


def _from_file(path: Path, sha256: str | None, observer: FetchObserver) -> FoundWeights:
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
        indices = sorted(path.glob(f"*{INDEX_SUFFIX}"))
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
    record = weights_cache() / "files" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    now = {"path": place, "num_bytes": state.st_size, "changed_ns": state.st_mtime_ns}
    try:
        known = read_model(record, _FileDigest)
        if known.model_dump(exclude={"sha256"}) == now:
            return known.sha256
    except (InputError, OSError):
        pass
    try:
        sha256 = file_sha256(path)
    except OSError as error:
        raise WeightsError(f"cannot read '{path}': {error.strerror}", "check the file and its disk") from error
    described = _FileDigest.model_validate({**now, "sha256": sha256})
    with suppress(OutputError):  # a cache without write access costs the time of the digest
        write_bytes_atomic(record, (format_json(described.model_dump(mode="json")) + "\n").encode())
    return sha256


def _check_given(name: str, found: str, expected: str | None) -> None:
    """Refuse a file of another digest than the user gave."""
    if expected is not None and found != expected:
        raise WeightsError(f"{name} {describe_mismatch(found, expected)}", "--sha256 is that of the published file")
