"""Transfer of a file of the hub: continued after interruptions, of bounded silence, and verified."""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from page4d.errors import Page4DError, WeightsError
from page4d.io.atomic import describe_mismatch, output_error
from page4d.io.folders import wait_for_lock
from page4d.weights.hub.connection import MAX_SILENCE_S, OK, PARTIAL, TIMEOUT_S, Connection

_PAUSE_S = 1.0
"""Seconds between two attempts."""

_TRANSIENT = (408, 429, 500, 502, 503, 504)
"""Answers after which a later attempt may succeed."""

_BLOCK = 2**20
_PART_SUFFIX = ".page4d.incomplete"
"""Suffix of partial files; those of huggingface_hub end in `.incomplete` too."""

_SHA256_DIGITS = 64


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a repository at one commit.

    `etag` is its name in the hub's cache: the SHA-256 of large files, and the SHA-1 of git for small ones.
    """

    name: str
    num_bytes: int
    etag: str
    url: str

    @property
    def sha256(self) -> str | None:
        """The SHA-256, where the hub states it."""
        return self.etag if len(self.etag) == _SHA256_DIGITS else None


def partial_file(target: Path) -> Path:
    """Return the file that holds what has arrived of `target`."""
    return target.with_name(target.name + _PART_SUFFIX)


def download(
    connection: Connection,
    file: RemoteFile,
    target: Path,
    on_bytes: Callable[[int], None],
    on_wait: Callable[[], None],
) -> str:
    """Fetch a file to `target`, from where an interrupted transfer ended, and return its SHA-256.

    `on_bytes` receives the bytes that are present; `on_wait` is called if another process fetches the file.

    Raises:
        WeightsError: if the hub does not answer, refuses, or sends other bytes than announced.
        OutputError: if the file cannot be written; what has arrived stays for the next attempt.
    """
    part = partial_file(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "r+b", buffering=0) as opened:
            wait_for_lock(handle, on_wait)
            try:
                if target.exists():  # another process has finished it meanwhile
                    return file_digest(target, file, on_bytes)
                held = _Partial(opened, file)
                on_bytes(held.present)
                _receive(connection, held, on_bytes)
                os.fsync(handle)
                _move(held, part, target, connection.host)
            finally:
                _remove_empty(part, handle)
    except OSError as error:
        raise output_error(error, part) from error
    return held.sha256.hexdigest()


def file_digest(path: Path, file: RemoteFile, on_bytes: Callable[[int], None]) -> str:
    """Return the SHA-256 of a complete file.

    Raises:
        WeightsError: if its digest is not the announced one.
    """
    with path.open("rb") as opened:
        held = _Partial(opened, file, on_bytes)
    held.check(f"remove '{path}'")
    return held.sha256.hexdigest()


class _Partial:
    """The beginning of a file, open for appending, with its digests."""

    def __init__(self, opened: BinaryIO, file: RemoteFile, on_bytes: Callable[[int], None] | None = None) -> None:
        self.file = file
        self._opened = opened
        self._begin()
        while block := opened.read(_BLOCK):
            self._count(block)
            if on_bytes is not None:
                on_bytes(self.present)
        if self.present > file.num_bytes and on_bytes is None:
            self.restart()

    def _begin(self) -> None:
        self.present = 0
        self.sha256 = hashlib.sha256()
        self._git = hashlib.sha1(f"blob {self.file.num_bytes}\0".encode(), usedforsecurity=False)

    def _count(self, block: bytes) -> None:
        self.present += len(block)
        self.sha256.update(block)
        if self.file.sha256 is None:
            self._git.update(block)

    def restart(self) -> None:
        """Drop what has arrived."""
        self._opened.truncate(0)
        self._opened.seek(0)
        self._begin()

    def append(self, block: bytes) -> None:
        """Write the next bytes."""
        if self.present + len(block) > self.file.num_bytes:
            raise WeightsError(
                f"{self.file.name} is larger than the {self.file.num_bytes:,} bytes that the hub announced",
                "try again later",
            )
        rest = memoryview(block)
        while rest:
            rest = rest[self._opened.write(rest) :]
        self._count(block)

    def check(self, hint: str) -> None:
        """Compare the digest with the announced one.

        Raises:
            WeightsError: if they differ.
        """
        found = self._git.hexdigest() if self.file.sha256 is None else self.sha256.hexdigest()
        if found != self.file.etag:
            raise WeightsError(f"{self.file.name} {describe_mismatch(found, self.file.etag)}", hint)


def _receive(connection: Connection, held: _Partial, on_bytes: Callable[[int], None]) -> None:
    """Append the rest of a file, in as many requests as it takes while bytes arrive."""
    last_byte = time.monotonic()

    def arrived(block: bytes) -> None:
        nonlocal last_byte
        held.append(block)
        last_byte = time.monotonic()
        on_bytes(held.present)

    while held.present < held.file.num_bytes:
        failure = _request(connection, held, arrived)
        if held.present < held.file.num_bytes:
            if time.monotonic() - last_byte + TIMEOUT_S > MAX_SILENCE_S:
                raise failure
            time.sleep(_PAUSE_S)


def _request(connection: Connection, held: _Partial, arrived: Callable[[bytes], None]) -> Page4DError:
    """Ask once for the rest of a file, and return the error to raise if it does not arrive later either."""
    headers = connection.headers | ({"range": f"bytes={held.present}-"} if held.present else {})
    try:
        with connection.client.stream("GET", held.file.url, headers=headers, timeout=TIMEOUT_S) as response:
            if response.status_code in _TRANSIENT:
                return connection.refused(response, held.file.name)
            if response.status_code not in (OK, PARTIAL):
                raise connection.refused(response, held.file.name)
            if held.present and response.status_code == OK:  # the server sends whole files only
                held.restart()
            for block in response.iter_bytes():  # as they arrive: whole blocks would be lost at an interruption
                arrived(block)
    except connection.broken as error:
        return connection.unreachable(error)
    return connection.unreachable(EOFError("the transfer ended early"))


def _move(held: _Partial, part: Path, target: Path, host: str) -> None:
    """Give a complete file its name, or remove it if its bytes are not the announced ones."""
    try:
        held.check(f"{host} sent other bytes than it announced: try again, on another network if this repeats")
    except WeightsError:
        part.unlink(missing_ok=True)
        raise
    part.replace(target)


def _remove_empty(part: Path, handle: int) -> None:
    """Remove the partial file that this process has opened if nothing has arrived."""
    opened = os.fstat(handle)
    if opened.st_size == 0 and part.exists() and part.stat().st_ino == opened.st_ino:
        part.unlink()
