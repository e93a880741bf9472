"""Atomic file replacement, SHA-256 of files, and output folders locked by one process at a time."""

import errno
import fcntl
import hashlib
import os
import re
import resource
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from page4d.errors import OutputError, UsageError, shortened

_SHOWN = 12
"""Digits of a hash in messages."""


def parse_sha256(text: str) -> str:
    """Return the hexadecimal digits of a SHA-256 in lower case; blanks around them and "sha256:" are left out.

    Raises:
        UsageError: if the text is not a SHA-256.
    """
    digits = text.strip().lower().removeprefix("sha256:")
    if re.fullmatch(r"[0-9a-f]{64}", digits) is None:
        raise UsageError(f"'{shortened(text)}' is not a SHA-256", "give 64 hexadecimal digits, as sha256sum prints")
    return digits


def parse_pin(weights: str | Path | None, sha256: str | None) -> str | None:
    """Return the SHA-256 that weights must have, if one is given.

    Raises:
        UsageError: if it is not a SHA-256, or no weights are given.
    """
    if sha256 is None:
        return None
    if weights is None:
        raise UsageError("⟨sha256⟩ without weights", "give the weights file that it belongs to")
    return parse_sha256(sha256)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_mismatch(found: str, expected: str) -> str:
    """Return both hashes, shortened, for a message."""
    return f"has sha256 {found[:_SHOWN]}.., expected {expected[:_SHOWN]}.."


LOCK_NAME = ".page4d.lock"
_PART = re.compile(r"^\..+\.[0-9a-f]{8}\.part(\.\w+)?$", re.DOTALL)
_SECONDS_TO_LOCK = 3600  # the clock of a network file system may differ by minutes
_NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)

_ELSEWHERE = "choose another folder"
_REASONS = {
    errno.ENOSPC: ("disk full", "free space, then repeat"),
    errno.EDQUOT: ("disk quota used up", "free space, then repeat"),
    errno.EFBIG: ("the file is larger than this process may write", "raise 'ulimit -f', then repeat"),
    errno.EIO: ("Input/output error", "check the disk, then repeat"),
    errno.EACCES: ("permission denied", "choose a folder that you may write to"),
    errno.EPERM: ("permission denied", "choose a folder that you may write to"),
    errno.EROFS: ("the file system is read-only", _ELSEWHERE),
    errno.ENOENT: ("its folder was removed, or cannot be created", _ELSEWHERE),
    errno.ENOTDIR: ("a part of the path is a file", _ELSEWHERE),
    errno.EISDIR: ("a folder is in the way", f"move it away, or {_ELSEWHERE}"),
    errno.ELOOP: ("a link is in the way", f"remove it, or {_ELSEWHERE}"),
    errno.ENAMETOOLONG: ("the path or a name in it is too long", "choose a shorter one"),
}
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Numbers of the errors that only writing can cause."""

NO_CACHE = Path(os.devnull, "page4d")
"""Folder of the cache where no other can be: nothing is found in it, and nobody can create it."""

_LONGEST_NAME = "x" * 180
"""As long as the longest path of an output file below its folder."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that is complete on disk."""

    path: Path
    num_bytes: int
    sha256: str

    @staticmethod
    def of(path: Path, data: bytes) -> "WrittenFile":
        """Describe a file with this content."""
        return WrittenFile(path, len(data), hashlib.sha256(data).hexdigest())


def output_error(error: OSError, path: Path | None) -> OutputError:
    """Translate an operating system error on writing a path into a message with a hint."""
    if path is not None and NO_CACHE in path.parents:
        return OutputError("there is no folder for caches", "set XDG_CACHE_HOME to a folder that you may write to")
    reason, hint = _REASONS.get(error.errno or 0, (error.strerror or str(error), _ELSEWHERE))
    if error.errno == errno.ENOSPC and path is not None and _lacks_inodes(path.parent):
        reason, hint = "the disk holds no more files (inodes)", "delete files, then repeat"
    place = "cannot write" if path is None else f"cannot write to '{path}'"
    return OutputError(f"{place}: {reason}", hint)


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Translate errors of the operating system on writing a path in the body."""
    try:
        yield
    except OSError as error:
        raise output_error(error, path) from error


def _lacks_inodes(folder: Path) -> bool:
    """Return whether a disk has no entry for another file, even if it has space; some file systems do not count."""
    try:
        disk = os.statvfs(existing_folder(folder))
    except OSError:
        return False
    return disk.f_files > 0 and disk.f_favail == 0


def existing_folder(folder: Path) -> Path:
    """Return the nearest folder that exists and can be looked into."""
    while not os.access(folder, os.F_OK) and folder != folder.parent:
        folder = folder.parent
    return folder


def write_bytes_atomic(path: Path, data: bytes) -> WrittenFile:
    """Write a file under a temporary name in its folder, sync it and move it into place.

    A link at `path` is replaced, not followed. Missing folders are created.

    Raises:
        OutputError: if the file cannot be written; no temporary file remains.
    """
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path, part := part_name(path)), _created(part) as handle:
            _write_all(handle, data)
    return WrittenFile.of(path, data)


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the body ends; if the body raises, the older file remains.

    The file is synced before it is renamed, its folder after that. The folder must exist. It is locked while it is
    written; those of killed processes, which no longer hold their locks, are deleted.

    Raises:
        OSError: if the file cannot be written; no temporary file remains.
    """
    for left in leftovers(path):
        with suppress(OSError), left.open("rb") as file:
            found = os.fstat(file.fileno())  # a new empty one may be about to be locked
            if found.st_size or found.st_mtime < time.time() - _SECONDS_TO_LOCK:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of a running process: BlockingIOError
                left.unlink()
    with (
        _replacing(path, part := part_name(path)),
        _created(part) as handle,
        open(handle, "wb", closefd=False) as file,
    ):
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


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
    with _replacing(path, part):
        yield part
        sync_file(part)


def sync_file(path: Path) -> None:
    """Flush a file to the disk; a link is an error.

    Raises:
        OSError: if it cannot be opened or flushed.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _replacing(path: Path, part: Path) -> Iterator[None]:
    """Move `part` to `path` when the body ends; delete it if the body or the move fails, also by a signal."""
    try:
        yield
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def _created(part: Path) -> Iterator[int]:
    """Create a file and yield its descriptor; sync the file when the body ends."""
    # Created by the kernel with the user's umask: mkstemp would make it private, and reading the umask is racy.
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield handle
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]


def has_room_for(path: Path, num_bytes: int) -> bool:
    """Return whether the disk and the limits of this process allow a file of this size."""
    longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    fits = longest == resource.RLIM_INFINITY or num_bytes <= longest
    return fits and num_bytes <= shutil.disk_usage(path.parent).free


def real_path(path: Path) -> Path:
    """Follow all links of a path; a link to itself is no error, in contrast to `Path.resolve`."""
    return Path(os.path.realpath(path))


def part_name(path: Path) -> Path:
    """Return a new temporary name in the folder of `path`, of the form `.name.xxxxxxxx.part`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def leftovers(target: Path) -> list[Path]:
    """Return temporary names next to a target: of processes that were killed, or are writing it now."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # a parent that may be written, not listed
        return sorted(path for path in target.parent.iterdir() if pattern.fullmatch(path.name))
    return []


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(handle)


def check_file(path: Path, *, overwrite: bool = True) -> None:
    """Refuse an output file that cannot be created or replaced, without creating it.

    Raises:
        UsageError: if the file exists and `overwrite` is False.
        OutputError: if it cannot be created, naming the reason.
    """
    if not overwrite and (path.exists() or path.is_symlink()) and not path.is_dir():
        raise UsageError(f"'{path}' already exists", "choose another name, or pass ⟨overwrite=True⟩")
    with output_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way")
    check_folder(path.parent, path)


def check_folder(folder: Path, target: Path | None = None) -> None:
    """Refuse an output folder, of the file `target` if it is given, that cannot be created or written.

    Nothing is created.

    Raises:
        OutputError: naming the reason.
    """
    target = target or folder
    try:
        nearest = folder / _LONGEST_NAME
        while not _has_entry(nearest) and nearest != nearest.parent:
            nearest = nearest.parent
        _check_is_folder(nearest, folder)
        _try_to_write(nearest)
    except ValueError as error:  # a NUL byte in the path
        raise OutputError(f"cannot write to {str(target)!r}: {error}", "choose another name") from error
    except OSError as error:
        raise output_error(error, target) from error


def _has_entry(path: Path) -> bool:
    """Return whether a folder has this entry; names that are too long and links to themselves are errors."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_is_folder(nearest: Path, folder: Path) -> None:
    """Refuse an entry in the place of a folder, or of a folder above it."""
    if not nearest.is_dir():
        if nearest != folder:
            raise NotADirectoryError(errno.ENOTDIR, "a part of the path is a file")
        if nearest.is_symlink() and not nearest.exists():
            raise OSError(0, "it is a link to nothing")
        raise OSError(0, "it is a file" if nearest.is_file() else "it is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        if os.statvfs(nearest).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, "the file system is read-only")
        raise PermissionError(errno.EACCES, "permission denied")


def _try_to_write(folder: Path) -> None:
    """Create, sync and delete a file: access rights do not show a full disk, or a file system such as /proc."""
    probe = part_name(folder / "probe")
    try:
        with _created(probe) as handle:
            _write_all(handle, b"page4d\n")
    finally:
        with suppress(FileNotFoundError):
            probe.unlink()


def remove_stale_parts(folder: Path, subfolders: Iterable[str] = ()) -> tuple[Path, ...]:
    """Delete the partial files of a killed run; call this only while the folder is locked.

    Only the folder and `subfolders`, patterns of `Path.glob`, are searched, without following links: another run may
    write below this folder. Subfolders that this empties go, too.
    """
    root = real_path(folder)
    found = [place for pattern in subfolders if pattern for place in sorted(folder.glob(pattern)) if place.is_dir()]
    places = [place for place in found if real_path(place) == root / place.relative_to(folder)]
    named = [path for place in [folder, *places] for path in sorted(place.iterdir()) if _PART.match(path.name)]
    stale = [path for path in named if path.is_file() and not path.is_symlink()]
    delete_files(stale, folder)
    return tuple(stale)


def delete_files(paths: Iterable[Path], folder: Path) -> None:
    """Delete those files below `folder` that exist, and the folders of all below it that are empty then."""
    parents: set[Path] = set()
    for path in paths:
        parents.update(path.relative_to(folder).parents)
        if path.is_file() or path.is_symlink():
            path.unlink()
    for place in sorted((folder / parent for parent in parents if parent.name), reverse=True):
        if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
            place.rmdir()


@contextmanager
def claim_output(folder: Path, subfolders: Iterable[str] = ()) -> Iterator[Path]:
    """Create the folder, check that it is writable, and lock it against other page4d processes while the body runs.

    Partial files of a killed run are deleted, also in `subfolders` (patterns of `Path.glob`).

    The lock belongs to the open file, so a killed process leaves the folder unlocked. On file systems without locks
    the folder is used unlocked.

    Raises:
        OutputError: if the folder cannot be written or another process has locked it.
    """
    folder = Path(folder)
    check_folder(folder)
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def refuse() -> None:
        pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        found = f"'{folder}' is in use by another page4d (pid {pid})"
        raise OutputError(found, "wait for it to end, or choose another folder")

    try:
        with output_errors(folder):
            wait_for_lock(lock, refuse)
        try:
            with output_errors(folder):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
                remove_stale_parts(folder, subfolders)
                _try_to_write(folder)
            yield folder
        finally:
            with suppress(OSError):  # the error of the body counts
                os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def wait_for_lock(handle: int, on_wait: Callable[[], None]) -> None:
    """Lock an open file exclusively, after `on_wait` if another process holds it; unlocked without such locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
