"""Files of the hub: found in its cache on this machine, or fetched, pinned and verified.

The cache is that of `huggingface_hub`, which other tools share: blobs by digest, and a folder of links per commit.
No request is made for what was fetched before.
"""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from pydantic import BaseModel, Field

from page4d.errors import Level, Notice, UsageError, WeightsError, counted, listed
from page4d.io.atomic import describe_mismatch, file_sha256, output_error, write_bytes_atomic
from page4d.io.folders import check_space
from page4d.weights.file_type import SETTINGS_FILE
from page4d.weights.hub.connection import Connection, endpoint, is_offline
from page4d.weights.hub.names import INDEX_SUFFIX, SUFFIXES, HubReference, check_file_name
from page4d.weights.hub.pins import FileRecord, Pin, pin_file, read_pin, weights_cache, write_pin
from page4d.weights.hub.transfer import RemoteFile, download, file_digest, partial_file

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.\w+$")
_USUAL = ("model.safetensors", "model.safetensors.index.json")
"""Weights of a repository that has several files, in order of preference."""

_SHOWN = 12
"""Digits of a commit in messages."""


_MAX_FILE_BYTES = 2**44


class _LargeFile(BaseModel):
    """What the hub states about a file outside of git."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _Sibling(BaseModel):
    """What the hub states about a file; `blob` is its digest in git, if it states one."""

    name: str = Field(alias="rfilename")
    size: int = Field(strict=True, ge=0, le=_MAX_FILE_BYTES)
    lfs: _LargeFile | None = None
    blob: str = Field(default="", alias="blobId", pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")

    @property
    def digest(self) -> str:
        """The digest by which the file is verified; empty if none is stated."""
        return self.blob if self.lfs is None else self.lfs.sha256


class _Repository(BaseModel):
    """What the hub states about a repository at one commit."""

    sha: str = Field(pattern=r"^[0-9a-f]{40}$")
    siblings: list[_Sibling]


class FetchObserver(Protocol):
    """Receives messages and progress while weights are fetched and converted."""

    def notice(self, notice: Notice) -> None:
        """Take a message to the user."""

    def progress(self, step: str, done: int, total: int) -> None:
        """Take the bytes done of a step, fetch or convert."""


class SilentFetch:
    """Ignores messages and progress."""

    def notice(self, notice: Notice) -> None:
        """Ignore a message."""

    def progress(self, step: str, done: int, total: int) -> None:
        """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class HubFiles:
    """The files of a reference on this machine; `verified` if their digests were compared in this call."""

    pin: Pin
    folder: Path
    """The folder of the commit."""

    path: Path
    """What is opened: a file, or the folder of an index and its shards."""

    verified: bool


def cached_files(reference: HubReference) -> HubFiles | None:
    """Return the files of a reference that are in the cache, without any request; None if one is missing.

    What another tool has fetched is pinned, after its digest is computed.

    Raises:
        WeightsError: if a file has another digest than its name in the cache states.
    """
    pin = read_pin(reference)
    if pin is not None:
        snapshot = _snapshot(reference, pin.revision)
        present = all(_has_size(snapshot / file.name, file.num_bytes) for file in pin.files)
        return _files(reference, pin, verified=False) if present else None
    revision = _known_commit(reference)
    names = _names_on_disk(_snapshot(reference, revision), reference) if revision else []
    if not revision or not names:
        return None
    records = [_described(_snapshot(reference, revision) / name, name) for name in names]
    return _pinned(reference, revision, records)


def is_fetched(reference: HubReference) -> bool:
    """Return whether the files of a reference are in the cache, by their names and sizes."""
    pin = read_pin(reference)
    if pin is not None:
        folder = _snapshot(reference, pin.revision)
        return all(_has_size(folder / file.name, file.num_bytes) for file in pin.files)
    revision = _known_commit(reference)
    return revision is not None and bool(_names_on_disk(_snapshot(reference, revision), reference))


def fetch(reference: HubReference, observer: FetchObserver) -> HubFiles:
    """Return the files of a reference, from the cache if they are there, else from the hub.

    No request is made if HF_HUB_OFFLINE is set.

    Raises:
        WeightsError: if the hub has no such file, refuses it, does not answer, or sends other bytes than announced or
            pinned.
        OutputError: if the disk has too little space, also for the converted file, or cannot be written.
    """
    cached = cached_files(reference)
    if cached is not None:
        return cached
    connection = Connection(reference)
    if is_offline():
        raise WeightsError(
            f"weights '{reference.name}' are not in the cache and HF_HUB_OFFLINE is set",
            f"unset it and run 'page4d weights get {reference.name}', or {connection.by_hand()}",
        )
    pin = read_pin(reference)
    revision = (reference.revision or "main") if pin is None else pin.revision
    commit, remote = _listing(connection, revision)
    transfer = partial(_fetch_files, connection, commit, remote, pin, observer)
    if pin is not None:
        fetched = transfer([file.name for file in pin.files])
    else:
        first = reference.file or _chosen(remote, reference)
        record = str(Path(first).with_name(SETTINGS_FILE))
        others = [record] if record in remote else []
        if first.endswith(INDEX_SUFFIX):
            fetched = transfer([first])
            fetched += transfer([*_shards(_snapshot(reference, commit) / first, first), *others])
        else:
            fetched = transfer([first, *others])
    if revision != commit:
        write_bytes_atomic(_repository(reference) / "refs" / revision, commit.encode())
    return _pinned(reference, commit, fetched)


def verify(files: HubFiles) -> None:
    """Compare the digests of files with the pinned ones, unless that was done in this call.

    Raises:
        WeightsError: if one differs.
    """
    for file in () if files.verified else files.pin.files:
        path = files.folder / file.name
        found = file_sha256(path)
        if found != file.sha256:
            raise WeightsError(
                f"{file.name} {describe_mismatch(found, file.sha256)}",
                f"it is damaged: remove '{os.path.realpath(path)}', and it is fetched again",
            )


def _files(reference: HubReference, pin: Pin, *, verified: bool) -> HubFiles:
    folder = _snapshot(reference, pin.revision)
    first = folder / pin.files[0].name
    path = first.parent if first.name.endswith(INDEX_SUFFIX) else first
    return HubFiles(pin=pin, folder=folder, path=path, verified=verified)


def _pinned(reference: HubReference, revision: str, files: list[FileRecord]) -> HubFiles:
    before = read_pin(reference)
    shown = before is not None and before.licence_shown
    pin = Pin(reference=reference.place, revision=revision, files=files, licence_shown=shown)
    write_pin(reference, pin)
    return _files(reference, pin, verified=True)


def _repository(reference: HubReference) -> Path:
    """Return the folder of a repository in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "--".join((f"{reference.kind.value}s", *reference.repository.split("/")))


def _snapshot(reference: HubReference, revision: str) -> Path:
    return _repository(reference) / "snapshots" / revision


def _known_commit(reference: HubReference) -> str | None:
    """Return the commit that the cache has for the revision of a reference."""
    revision = reference.revision or "main"
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (_repository(reference) / "refs" / revision).read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _names_on_disk(snapshot: Path, reference: HubReference) -> list[str]:
    """Return the files of a reference that are in a folder of the cache; none if one is missing."""
    found = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}
    try:
        first = reference.file or _chosen(found, reference)
        shards = _shards(snapshot / first, first) if first in found and first.endswith(INDEX_SUFFIX) else []
    except WeightsError:
        return []
    record = str(Path(first).with_name(SETTINGS_FILE))
    names = [first, *shards, *([record] if record in found else [])]
    return names if found.issuperset(names) else []


def _described(path: Path, name: str) -> FileRecord:
    """Describe a file that another tool has fetched: its name in the cache is its digest."""
    blob = Path(os.path.realpath(path)).name
    size = path.stat().st_size
    if _DIGEST.fullmatch(blob):
        sha256 = file_digest(path, RemoteFile(name=name, num_bytes=size, etag=blob, url=""), lambda _: None)
    else:
        sha256 = file_sha256(path)
    return FileRecord(name=name, num_bytes=size, sha256=sha256)


def _listing(connection: Connection, revision: str) -> tuple[str, dict[str, RemoteFile]]:
    """Ask the hub for the commit of a revision and for its files."""
    reference = connection.reference
    kind = f"{reference.kind.value}s"
    url = f"{endpoint()}/api/{kind}/{reference.repository}/revision/{quote(revision, safe='')}?blobs=true"
    answer = connection.read_json(url)
    try:
        described = _Repository.model_validate(answer)
        base = f"{connection.files}/resolve/{described.sha}"
        return described.sha, {file.name: _remote_file(file, base) for file in described.siblings if file.digest}
    except ValueError as error:  # also of a name that is no text
        raise connection.no_hub(f"no commit or files of {reference.repository}") from error


def _remote_file(file: _Sibling, base: str) -> RemoteFile:
    return RemoteFile(name=file.name, num_bytes=file.size, etag=file.digest, url=f"{base}/{quote(file.name)}")


def _chosen(names: Iterable[str], reference: HubReference) -> str:
    """Return the weights file of a repository from the names of its files.

    Raises:
        WeightsError: if it has none, or several of which none has the usual name.
    """
    names = sorted(names)
    usual = [name for name in _USUAL if name in names]
    candidates = [name for name in names if name.endswith(INDEX_SUFFIX)]
    for suffix in SUFFIXES:
        candidates = candidates or [name for name in names if name.endswith(suffix) and not _SHARD.search(name)]
    if usual or len(candidates) == 1:
        return (usual or candidates)[0]
    if candidates:
        raise WeightsError(
            f"'{reference.name}' has {counted(len(candidates), 'weights file')}: {listed(candidates)}",
            f"add the name of one, such as {reference.place}:{candidates[0]}",
        )
    raise WeightsError(
        f"'{reference.name}' has no weights file ({counted(len(names), 'file')}: {listed(names, 5)})",
        f"page4d reads {', '.join(SUFFIXES)}",
    )


def _shards(index: Path, name: str) -> list[str]:
    """Return the shards that an index names, as files of the repository."""
    from page4d.weights.sources import read_index

    return [str(Path(name).with_name(shard)) for shard in sorted(set(read_index(index).values()))]


def _fetch_files(
    connection: Connection,
    commit: str,
    remote: dict[str, RemoteFile],
    pin: Pin | None,
    observer: FetchObserver,
    names: list[str],
) -> list[FileRecord]:
    """Fetch files of a commit that the cache lacks, and link them into its folder."""
    files = [_announced(connection, remote, name, pin) for name in names]
    reference = connection.reference
    blobs = _repository(reference) / "blobs"
    total = sum(file.num_bytes for file in files)
    missing = sum(_missing_bytes(blobs / file.etag, file.num_bytes) for file in files)
    # The converted file is about as large as its source.
    check_space({blobs: missing, weights_cache(): total}, f"'{reference.name}'")
    if missing:
        text = f"fetching {reference.name}: {missing / 1e6:,.1f} MB from {connection.host}, commit {commit[:_SHOWN]}"
        observer.notice(Notice(text, Level.STEP))
    waiting = Notice(f"another process fetches {reference.name}: waiting for it", Level.STEP)
    done, records = 0, []
    for file in files:
        on_bytes = _adding(observer, done, total)
        blob = blobs / file.etag
        sha256 = (
            file_digest(blob, file, on_bytes)
            if blob.exists()
            else download(connection, file, blob, on_bytes, partial(observer.notice, waiting))
        )
        _check_pinned(reference, file.name, sha256, pin)
        _link(blob, _snapshot(reference, commit) / file.name)
        records.append(FileRecord(name=file.name, num_bytes=file.num_bytes, sha256=sha256))
        done += file.num_bytes
    return records


def _adding(observer: FetchObserver, before: int, total: int) -> Callable[[int], None]:
    return lambda present: observer.progress("fetch", before + present, total)


def _announced(connection: Connection, remote: dict[str, RemoteFile], name: str, pin: Pin | None) -> RemoteFile:
    """Return what the hub states about a file, and refuse another digest than the pinned one."""
    if Path(name).name != SETTINGS_FILE:
        try:
            check_file_name(name, connection.reference.name)
        except UsageError as error:  # the repository has it, the user did not give it
            raise WeightsError(error.marked_message, "do not use this repository") from error
    if name not in remote:
        raise WeightsError(
            f"weights '{connection.reference.name}': {connection.reference.repository} has no file '{name}'",
            f"see {connection.page}/tree/{connection.reference.revision or 'main'}",
        )
    file = remote[name]
    if file.sha256 is not None:
        _check_pinned(connection.reference, name, file.sha256, pin)
    return file


def _check_pinned(reference: HubReference, name: str, sha256: str, pin: Pin | None) -> None:
    """Refuse a file whose digest is not that of the first fetch, or of the catalogue.

    Raises:
        WeightsError: if it differs.
    """
    expected, hint = None, ""
    if reference.entry is not None and reference.file == name:
        expected, hint = reference.entry.sha256, "the published file is not the one that page4d was tested with"
    if pin is not None:
        expected = {file.name: file.sha256 for file in pin.files}.get(name, expected)
        hint = f"it was changed since it was fetched first; to accept that, remove '{pin_file(reference)}'"
    if expected is not None and sha256 != expected:
        raise WeightsError(f"{name} {describe_mismatch(sha256, expected)}", hint)


def _missing_bytes(blob: Path, num_bytes: int) -> int:
    part = partial_file(blob)
    present = part.stat().st_size if part.is_file() else 0
    return 0 if blob.exists() else max(num_bytes - present, 0)


def _link(blob: Path, path: Path) -> None:
    """Link a file of a commit to its content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and os.path.realpath(path) == os.path.realpath(blob):
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        part.symlink_to(os.path.relpath(blob, path.parent))
        part.replace(path)
    except OSError as error:
        raise output_error(error, path) from error


def _has_size(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes
