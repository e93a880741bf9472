"""Folders that appear complete or not at all, page4d's cache folder, locks between processes, and free disk space.

Folders are written under a temporary name, synced, and renamed.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from page4d.errors import OutputError, UsageError
from page4d.io.atomic import (
    NO_CACHE,
    check_folder,
    existing_folder,
    output_error,
    output_errors,
    part_name,
    real_path,
    sync_file,
    wait_for_lock,
)
from page4d.io.json_records import format_json
from page4d.signals import deferred_signals


def given_path(value: object, name: str) -> Path:
    """Return the path that a caller of the Python API gave for the argument `name`.

    Raises:
        UsageError: if it is empty, or no path.
    """
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        found = "empty" if isinstance(value, str) else f"of the type {type(value).__name__}"
        raise UsageError(f"{name} is {found}", "give a path, as str or pathlib.Path", name)
    return Path(value)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a staged folder for writing and reading, with its missing folders.

    A large file is written piece by piece, so that memory does not grow with its size. The staged folder makes it
    atomic.

    Raises:
        OutputError: if it cannot be written.
    """
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            yield file


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a staged folder.

    Raises:
        OutputError: if it cannot be written.
    """
    with new_file(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of a staged folder.

    Raises:
        OutputError: if it cannot be written.
    """
    write_file(path, f"{format_json(value)}\n".encode())


def is_occupied(folder: Path) -> bool:
    """Return whether a folder exists and holds anything."""
    return folder.is_dir() and any(folder.iterdir())


def check_replaceable(folder: Path, record_name: str = "", *, overwrite: bool = False) -> None:
    """Refuse a folder that cannot be written, or holds what would be lost.

    Only a folder with a record of this name, which a former export wrote, is replaced; none without a name.

    Raises:
        UsageError: if it is not empty, and `overwrite` is not given or the files are not of an export.
        OutputError: if it cannot be created or written.
    """
    check_folder(folder)
    _check_no_mount(folder)
    if not is_occupied(folder):
        return
    if not overwrite:
        way = "use ⟨overwrite=True⟩ or another folder" if record_name else "choose an empty folder"
        raise UsageError(f"'{folder}' is not empty", way)
    if not (folder / record_name).is_file():
        raise UsageError(f"'{folder}' holds files that page4d did not write", "use another folder, or move them")


def _check_no_mount(folder: Path) -> None:
    if folder.is_mount():
        raise UsageError(f"'{folder}' is a mount point, which cannot be renamed", "use a folder in it")


@contextmanager
def staged_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the body ends, and is deleted if the body fails.

    A link at `target` is followed. With `replace` an older folder is deleted once the new one has its name.

    Raises:
        UsageError: if it is a mount point, or another process wrote the folder meanwhile.
        OutputError: if it cannot be created or moved.
    """
    given, target = target, real_path(target)
    _check_no_mount(target)
    staged = part_name(target)
    try:
        with output_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.mkdir()
        yield staged
        with output_errors(target):
            for place, _, names in os.walk(staged):
                for name in names:
                    sync_file(Path(place, name))
            if is_occupied(target) and not replace:
                raise UsageError(f"'{target}' is not empty any more", "use ⟨overwrite=True⟩ or another folder")
            with deferred_signals():
                _move(staged, target)
    except OutputError as error:
        raise OutputError(error.marked_message.replace(str(staged), str(given)), error.marked_hint) from error
    finally:
        with deferred_signals():
            shutil.rmtree(staged, ignore_errors=True)


def _move(staged: Path, target: Path) -> None:
    """Put a folder in the place of an older one, which is deleted only afterwards."""
    old = None
    if target.exists():
        old = part_name(target)
        target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        if old is not None:
            with suppress(OSError):
                old.rename(target)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def cache_folder() -> Path:
    """Return the folder of page4d's cache; a relative XDG_CACHE_HOME is ignored.

    It is `NO_CACHE` where the user has no home folder, as in containers, or may neither read nor create the folder:
    then nothing is cached, and only what has to be kept fails.

    Source: XDG Base Directory Specification 0.8, section 2.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises without a home folder
    folder = (given if given.is_absolute() else Path(home, ".cache")) / "page4d"
    existing = existing_folder(folder)
    access = os.X_OK if existing == folder else os.X_OK | os.W_OK
    return folder if folder.is_absolute() and os.access(existing, access) else NO_CACHE


@dataclass(frozen=True)
class CachedFiles:
    """Files that are fetched once into a subfolder of the cache, with the SHA-256 of what they are made of.

    `name` is their name in `page4d weights`.
    """

    name: str
    subfolder: str
    sha256: dict[str, str]

    @property
    def command(self) -> str:
        """What fetches them."""
        return f"page4d weights get {self.name}"

    @property
    def folder(self) -> Path:
        """Where the files are kept."""
        return cache_folder() / self.subfolder

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, which may be absent."""
        return tuple(self.folder / name for name in self.sha256)

    @property
    def are_present(self) -> bool:
        """Whether all files are present."""
        return all(path.is_file() for path in self.paths)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` while the body runs; call `on_wait` once if another process holds it.

    The lock belongs to the open file, so a killed process releases it. Missing folders are created.

    Raises:
        OutputError: if the file cannot be created.
    """
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # some network file systems have no locks
            wait_for_lock(handle, on_wait)
        yield
    finally:
        os.close(handle)


def check_space(needs: Mapping[Path, int], what: str) -> None:
    """Refuse work that does not fit on the disks of some folders, which need not exist yet.

    Raises:
        OutputError: with the space that is needed and free, or if a folder cannot be written.
    """
    by_disk: dict[int, tuple[Path, int]] = {}
    for folder, num_bytes in needs.items():
        if NO_CACHE in (folder, *folder.parents) or not os.access(existing_folder(folder), os.W_OK):
            raise output_error(PermissionError(errno.EACCES, ""), folder / "file")
        disk = existing_folder(folder).stat().st_dev
        by_disk[disk] = (folder, by_disk.get(disk, (folder, 0))[1] + num_bytes)
    for folder, num_bytes in by_disk.values():
        free = shutil.disk_usage(existing_folder(folder)).free
        if free < num_bytes:
            raise OutputError(
                f"{what} needs {num_bytes / 1e9:.2f} GB in '{folder}', {free / 1e9:.2f} GB are free",
                "free some space, or move the caches to another disk: HF_HOME and XDG_CACHE_HOME",
            )
