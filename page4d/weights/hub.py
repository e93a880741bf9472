"""Files of the Hugging Face hub: found in its cache on this machine, or fetched by `huggingface_hub`, then verified.

Other tools share the cache. No request is made for what was fetched before.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from page4d import __version__
from page4d.errors import Level, Notice, Observer, Page4DError, WeightsError, counted, listed, shortened
from page4d.io.atomic import describe_mismatch, file_sha256, output_error, write_bytes_atomic
from page4d.io.folders import check_space
from page4d.weights.catalogue import RepositoryKind
from page4d.weights.file_type import SETTINGS_FILE
from page4d.weights.names import (
    INDEX_SUFFIX,
    SUFFIXES,
    FileRecord,
    HubReference,
    Pin,
    pin_file,
    read_pin,
    weights_cache,
    write_pin,
)

_TIMEOUT_S = 10.0
"""Seconds to wait for a connection and for each answer about a repository."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.\w+$")
_VISIBLE = re.compile(r"[!-~]+")
_USUAL = ("model.safetensors", "model.safetensors.index.json")
"""Weights of a repository that has several files, in order of preference."""

_SHOWN = 12
"""Digits of a commit in messages."""

_MAX_FILE_BYTES = 2**44
_DENIED = (401, 403)
_MISSING = 404


class _LargeFile(BaseModel, from_attributes=True):
    """What the hub states about a file outside of git."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _Sibling(BaseModel, from_attributes=True):
    """What the hub states about a file."""

    name: str = Field(alias="rfilename")
    size: int = Field(strict=True, ge=0, le=_MAX_FILE_BYTES)
    lfs: _LargeFile | None = None


class _Repository(BaseModel, from_attributes=True):
    """What the hub states about a repository at one commit."""

    sha: str = Field(pattern=r"^[0-9a-f]{40}$")
    siblings: list[_Sibling]


@dataclass(frozen=True, kw_only=True)
class HubFiles:
    """The files of a reference on this machine; `verified` if their digests were compared in this call."""

    pin: Pin
    folder: Path
    """The folder of the commit."""

    path: Path
    """What is opened: a file, or the folder of an index and its shards."""

    verified: bool


def is_offline() -> bool:
    """Return whether the user has switched requests off, with HF_HUB_OFFLINE."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_fetched(reference: HubReference) -> bool:
    """Return whether the files of a reference are in the cache, by their names and sizes."""
    return _on_disk(reference) is not None


def fetch(reference: HubReference, observer: Observer) -> HubFiles:
    """Return the files of a reference, from the cache if they are there, else from the hub.

    What another tool has fetched is verified and pinned. No request is made if HF_HUB_OFFLINE is set.

    Raises:
        WeightsError: if the hub has no such file, refuses it, does not answer, or sends other bytes than announced or
            pinned.
        OutputError: if the disk has too little space, also for the converted file, or cannot be written.
    """
    pin, present = read_pin(reference), _on_disk(reference)
    if present is not None:
        return _files(reference, pin, verified=False) if pin else _pinned(reference, *_described_all(*present))
    if is_offline():
        raise WeightsError(
            f"weights '{reference.name}' are not in the cache and HF_HUB_OFFLINE is set",
            f"unset it and run 'page4d weights get {reference.name}', or {_by_hand(reference)}",
        )
    revision = (reference.revision or "main") if pin is None else pin.revision
    repository = _listing(reference, revision)
    inside = [file for file in repository.siblings if not {"..", "/"} & set(Path(file.name).parts)]
    remote = {file.name: file for file in inside}
    commit, transfer = repository.sha, partial(_fetch_files, reference, repository.sha, remote, pin, observer)
    if pin is not None:
        fetched = transfer([file.name for file in pin.files])
    else:
        first = reference.file or _chosen(remote, reference)
        fetched = transfer([first]) if first.endswith(INDEX_SUFFIX) else []
        names = _needed(_snapshot(reference, commit), first, remote)
        fetched += transfer(names[len(fetched) :])
    if revision != commit:
        write_bytes_atomic(_repository(reference) / "refs" / revision, commit.encode())
    return _pinned(reference, commit, fetched)


def verify(files: HubFiles) -> None:
    """Compare the digests of files with the pinned ones, unless that was done in this call.

    Raises:
        WeightsError: if one differs.
    """
    for file in () if files.verified else files.pin.files:
        _described(files.folder, file.name, file.sha256)


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


def _on_disk(reference: HubReference) -> tuple[Path, list[str]] | None:
    """Return the folder of a commit in the cache and the files of a reference there; None if one is missing."""
    pin = read_pin(reference)
    if pin is not None:
        folder = _snapshot(reference, pin.revision)
        paths = [(folder / file.name, file.num_bytes) for file in pin.files]
        whole = all(path.is_file() and path.stat().st_size == num_bytes for path, num_bytes in paths)
        return (folder, [file.name for file in pin.files]) if whole else None
    commit = reference.revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (_repository(reference) / "refs" / commit).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    folder = _snapshot(reference, commit)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    try:
        first = reference.file or _chosen(found, reference)
        names = _needed(folder, first, found) if first in found else []
    except WeightsError:
        return None
    return (folder, names) if names and found.issuperset(names) else None


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


def _needed(folder: Path, first: str, names: Iterable[str]) -> list[str]:
    """Return a weights file, the shards that it names if it is an index, and the settings next to it."""
    from page4d.weights.sources import read_index

    shards = sorted(set(read_index(folder / first).values())) if first.endswith(INDEX_SUFFIX) else []
    settings = str(Path(first).with_name(SETTINGS_FILE))
    beside = [str(Path(first).with_name(shard)) for shard in shards]
    return [first, *beside, *([settings] if settings in names else [])]


def _described_all(folder: Path, names: list[str]) -> tuple[str, list[FileRecord]]:
    """Return the commit and the records of what another tool has fetched: names of large blobs are digests."""
    links = [folder / name for name in names]
    digests = [link.readlink().name if link.is_symlink() else "" for link in links]
    return folder.name, [_described(folder, *pair) for pair in zip(names, digests, strict=True)]


def _described(folder: Path, name: str, sha256: str) -> FileRecord:
    """Describe a file, after comparing it with a SHA-256 if that is known.

    Raises:
        WeightsError: if they differ.
    """
    path = folder / name
    found = file_sha256(path)
    if found != sha256 and _SHA256.fullmatch(sha256):
        hint = f"it is damaged: remove '{os.path.realpath(path)}', and it is fetched again"
        raise WeightsError(f"{name} {describe_mismatch(found, sha256)}", hint)
    return FileRecord(name=name, num_bytes=path.stat().st_size, sha256=found)


def _listing(reference: HubReference, revision: str) -> _Repository:
    """Ask the hub for the commit of a revision and for its files."""
    from huggingface_hub import HfApi

    with _asking(reference) as headers:
        answer = HfApi(headers=headers).repo_info(
            reference.repository,
            revision=revision,
            repo_type=reference.kind.value,
            files_metadata=True,
            timeout=_TIMEOUT_S,
        )
        return _Repository.model_validate(answer)


def _fetch_files(
    reference: HubReference,
    commit: str,
    remote: dict[str, _Sibling],
    pin: Pin | None,
    observer: Observer,
    names: list[str],
) -> list[FileRecord]:
    """Fetch files of a commit that the cache lacks, and refuse those of other digests than announced and pinned."""
    from huggingface_hub import hf_hub_download

    for name in names:
        if name not in remote:
            raise _no_file(reference, name)
        large = remote[name].lfs
        if large is not None:
            _check_pinned(reference, name, large.sha256, pin)
    folder = _snapshot(reference, commit)
    total = sum(remote[name].size for name in names)
    missing = sum(remote[name].size for name in names if not (folder / name).exists())
    # The converted file is about as large as its source.
    check_space({folder: missing, weights_cache(): total}, f"'{reference.name}'")
    if missing:
        text = f"fetching {reference.name}: {missing / 1e6:,.1f} MB from {_host()}, commit {commit[:_SHOWN]}"
        observer.notice(Notice(text, Level.STEP))
    done, records = 0, []
    for name in names:
        with _asking(reference, name) as headers:
            hf_hub_download(
                reference.repository,
                name,
                repo_type=reference.kind.value,
                revision=commit,
                headers=headers,
                etag_timeout=_TIMEOUT_S,
                tqdm_class=_progress_bar(observer, done, total),
            )
        large = remote[name].lfs
        try:
            record = _described(folder, name, large.sha256 if large else "")
        except WeightsError as error:
            _remove(folder / name)
            hint = f"{_host()} sent other bytes than it announced: try again, on another network if this repeats"
            raise WeightsError(error.marked_message, hint) from error
        _check_pinned(reference, name, record.sha256, pin)
        records.append(record)
        done += remote[name].size
    return records


def _remove(link: Path) -> None:
    """Remove a file of the cache: its link in the folder of a commit, its blob, and what that links to."""
    blob = link.parent / link.readlink() if link.is_symlink() else link
    for path in (Path(os.path.realpath(blob)), blob, link):
        path.unlink(missing_ok=True)


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


def _progress_bar(observer: Observer, before: int, total: int) -> type:
    """Return a class with the interface of tqdm that `huggingface_hub` uses; it passes on the bytes of a file."""

    class Bar:
        total = None

        def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
            self.n = initial

        def update(self, n: int = 1) -> None:
            self.n += n
            observer.progress(before + self.n, total, "fetch")

        def ignore(self, *_: Any, **__: Any) -> None:
            """Show no rates, and no bytes on the wire."""

        def __enter__(self) -> "Bar":
            return self

        __exit__ = close = update_transfer = set_postfix_str = set_transfer_postfix_str = ignore

    return Bar


@contextmanager
def _asking(reference: HubReference, file: str | None = None) -> Iterator[dict[str, str]]:
    """Translate the errors of `huggingface_hub` and silence its warnings; yield headers that describe no machine.

    Raises:
        WeightsError: if the settings of the network or the token are not usable, or a request fails.
        OutputError: if the cache cannot be written.
    """
    from huggingface_hub import constants, get_token, logging

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token and not _VISIBLE.fullmatch(token):  # errors of the client would print it
        raise WeightsError(
            "the token for the hub has blanks, control characters or characters beyond ASCII",
            "copy it again into HF_TOKEN, or log in with 'hf auth login'",
        )
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield {"user-agent": f"page4d/{__version__}"}
    except Page4DError:
        raise
    except Exception as error:  # of any kind, also KeyError of an answer and InvalidURL of a setting
        raise _translated(error, reference, file) from error
    finally:
        logging.set_verbosity(verbosity)


def _translated(error: BaseException, reference: HubReference, file: str | None) -> Page4DError:
    """Return the error of a user for one of `huggingface_hub`."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # after another error: the cache lacks the file, too
        error = error.__cause__ or error
    if isinstance(error, errors.HfHubHTTPError):
        return _refused(reference, error.response, file)
    if isinstance(error, OSError) and error.errno is not None:
        return output_error(error, _repository(reference))
    reason = shortened(str(error).strip().partition("\n")[0], 120) or type(error).__name__
    if not isinstance(error, OSError | errors.HTTPError):  # type: ignore[attr-defined]
        reason = f"no answer of a hub, or settings of the network that are not usable ({type(error).__name__})"
    return WeightsError(
        f"cannot fetch weights '{reference.name}' from {_host()}: {reason}",
        f"check the network, HF_ENDPOINT and proxies, or {_by_hand(reference)}",
    )


def _refused(reference: HubReference, response: Any, file: str | None) -> Page4DError:
    """Return the error on an answer without content, for a file or the whole repository."""
    what, status = f"weights '{reference.name}'", response.status_code
    code = response.headers.get("X-Error-Code", "")
    if code == "GatedRepo" or (status in _DENIED and code != "RepoNotFound"):
        return WeightsError(
            f"{what} are gated: {_host()} asks for permission ({status})",
            f"accept the licence on {_page(reference)}, then log in with 'hf auth login' or set HF_TOKEN",
        )
    if code == "RevisionNotFound":
        return WeightsError(
            f"{what}: {reference.repository} has no revision '{reference.revision or 'main'}'",
            f"see {_page(reference)}/commits/main",
        )
    if code == "EntryNotFound" or (file is not None and status == _MISSING and not code):
        return _no_file(reference, file)
    if code == "RepoNotFound" or status == _MISSING:
        return WeightsError(
            f"{what}: {_host()} has no repository {reference.repository}, or it is private ({status})",
            "check the name; for a private repository log in with 'hf auth login' or set HF_TOKEN",
        )
    return WeightsError(
        f"cannot fetch {what}: {_host()} answers with error {status}", f"try again later, or {_by_hand(reference)}"
    )


def _no_file(reference: HubReference, file: str | None) -> WeightsError:
    return WeightsError(
        f"weights '{reference.name}': {reference.repository} has no file '{file or reference.file}'",
        f"see {_page(reference)}/tree/{reference.revision or 'main'}",
    )


def _endpoint() -> str:
    """Return the address of the hub, that of HF_ENDPOINT, for messages: without a name and a password."""
    from huggingface_hub import constants

    return re.sub(r"//.*@", "//", shortened(str(constants.ENDPOINT)))


def _host() -> str:
    return _endpoint().rpartition("//")[2]


def _page(reference: HubReference) -> str:
    """Return the address of a repository, for a browser."""
    datasets = "datasets/" if reference.kind is RepositoryKind.DATASET else ""
    return f"{_endpoint()}/{datasets}{reference.repository}"


def _by_hand(reference: HubReference) -> str:
    """Return how to get the file without network."""
    where = f"{_page(reference)}/resolve/{reference.revision or 'main'}/{reference.file}"
    what = where if reference.file else f"the weights of {_page(reference)}"
    return f"get {what} on another machine and pass the file: ⟨weights=FILE⟩"
