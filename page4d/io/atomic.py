"""Atomic file replacement, and output folders locked by one process at a time."""

import errno
import fcntl
import hashlib
import os
import re
import resource
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from page4d.errors import OutputError

LOCK_NAME = ".page4d.lock"
_PART = re.compile(r"^\..+\.[0-9a-f]{8}\.part(\.\w+)?$", re.DOTALL)
_NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)

_REASONS = {
    errno.ENOSPC: ("disk full", "free space, then repeat with --resume"),
    errno.EDQUOT: ("disk quota used up", "free space, then repeat with --resume"),
    errno.EFBIG: ("the file is larger than this process may write", "raise 'ulimit -f', then repeat with --resume"),
    errno.EACCES: ("permission denied", "choose a folder that you may write to"),
    errno.EPERM: ("permission denied", "choose a folder that you may write to"),
    errno.EROFS: ("the file system is read-only", "choose another folder"),
    errno.ENOTDIR: ("a part of the path is a file", "choose another folder"),
    errno.EISDIR: ("a folder is in the way", "move it away, or choose another folder"),
    errno.ELOOP: ("a link is in the way", "remove it, or choose another folder"),
}


@dataclass(frozen=True)
class WrittenFile:
    """A file that is complete on disk."""

    path: Path
    num_bytes: int
    sha256: str


def output_error(error: OSError, path: Path) -> OutputError:
    """Translate an operating system error on writing a path into a message with a hint."""
    reason, hint = _REASONS.get(error.errno or 0, (error.strerror or str(error), "choose another folder"))
    return OutputError(f"cannot write to '{path}': {reason}", hint)


def write_bytes_atomic(path: Path, data: bytes) -> WrittenFile:
    """Write a file under a temporary name in its folder, sync it and move it into place.

    A link at `path` is replaced, not followed. Missing folders are created.

    Raises:
        OutputError: if the file cannot be written; no temporary file remains.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = part_name(path)
        _write_synced(part, data)
        _move_into_place(part, path)
    except OSError as error:
        raise output_error(error, path) from error
    return WrittenFile(path, len(data), hashlib.sha256(data).hexdigest())


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the body ends; if the body raises, the older file remains.

    The file is synced before it is renamed, its folder after that. The folder must exist.

    Raises:
        OSError: if the file cannot be written; no temporary file remains.
    """
    part = part_name(path)
    with _synced_file(part) as handle, open(handle, "wb", closefd=False) as file:
        yield file
    _move_into_place(part, path)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a library that opens its files itself; the file replaces `path` when the body ends.

    The temporary name ends like `path`, because libraries choose the format by the suffix. Missing folders are
    created, and the file is synced before it is renamed.

    Raises:
        OSError: if the file cannot be written; no temporary file remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_name(path)
    part = part.with_name(part.name + path.suffix)
    try:
        yield part
        handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _move_into_place(part, path)


def describe_file(path: Path) -> WrittenFile:
    """Return size and SHA-256 of a complete file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return WrittenFile(path, file.tell(), digest.hexdigest())


def has_room_for(path: Path, num_bytes: int) -> bool:
    """Return whether the disk and the limits of this process allow a file of this size."""
    longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    fits = longest == resource.RLIM_INFINITY or num_bytes <= longest
    return fits and num_bytes <= shutil.disk_usage(path.parent).free


def part_name(path: Path) -> Path:
    """Return a new temporary name in the folder of `path`, of the form `.name.xxxxxxxx.part`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


@contextmanager
def _synced_file(part: Path) -> Iterator[int]:
    """Create a file and yield its descriptor; sync the file when the body ends, delete it if the body raises."""
    # Created by the kernel with the user's umask: mkstemp would make it private, and reading the umask is racy.
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield handle
        os.fsync(handle)
    except BaseException:
        # Also when a signal ends the run: a partial file never gets its final name.
        part.unlink()
        raise
    finally:
        os.close(handle)


def _write_synced(part: Path, data: bytes) -> None:
    with _synced_file(part) as handle:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(handle, remaining) :]


def _move_into_place(part: Path, path: Path) -> None:
    try:
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(handle)


def check_can_be_made(folder: Path) -> None:
    """Refuse a folder that is a file, or that cannot be created or written, without creating it.

    Raises:
        OutputError: naming the reason.
    """
    try:
        nearest = folder
        while not nearest.exists() and not nearest.is_symlink() and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir() and nearest == folder:
            raise OutputError(f"cannot write to '{folder}': it is a file", "give a folder")
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a part of the path is a file")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")
    except OSError as error:
        raise output_error(error, folder) from error


def remove_stale_parts(folder: Path) -> tuple[Path, ...]:
    """Delete the partial files of a killed run; call this only while the folder is locked.

    Only the subfolders of the output format are searched: another run may write below this folder.
    """
    places = [folder, *(folder / name for name in ("cameras", "points", "mesh", "preview", "state"))]
    places += [view for name in ("depth", "confidence", "dynamic") for view in sorted((folder / name).glob("*"))]
    stale = []
    for place in places:
        if place.is_symlink() or not place.is_dir():
            continue
        for path in sorted(place.iterdir()):
            if _PART.match(path.name) and path.is_file() and not path.is_symlink():
                path.unlink()
                stale.append(path)
    return tuple(stale)


@contextmanager
def claim_output(folder: Path) -> Iterator[Path]:
    """Create the folder, check that it is writable, and lock it against other page4d processes while the body runs.

    The lock belongs to the open file, so a killed process leaves the folder unlocked. On file systems without locks
    the folder is used unlocked.

    Raises:
        OutputError: if the folder cannot be written or another process has locked it.
    """
    folder = Path(folder)
    check_can_be_made(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise output_error(error, folder) from error
    try:
        _hold(lock, folder)
        yield folder
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _hold(lock: int, folder: Path) -> None:
    try:
        _lock_or_refuse(lock, folder)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        remove_stale_parts(folder)
        probe = part_name(folder / "probe")
        _write_synced(probe, b"page4d\n")
        probe.unlink()
    except OSError as error:
        raise output_error(error, folder) from error


def _lock_or_refuse(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise OutputError(
            f"'{folder}' is in use by another page4d (pid {pid})", "wait for it to end, or choose another folder"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
