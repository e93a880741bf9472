"""Folders that appear complete or not at all: written under a temporary name, synced, and renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from page4d.errors import UsageError
from page4d.io.atomic import check_folder, output_error, part_name, real_path
from page4d.io.json_model import format_json
from page4d.signals import deferred_signals


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a staged folder for writing and reading, with its missing folders.

    A large file is written piece by piece, so that memory does not grow with its size. The staged folder makes it
    atomic.

    Raises:
        OutputError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            yield file
    except OSError as error:
        raise output_error(error, path) from error


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


def check_replaceable(folder: Path, record_name: str, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be written, or holds what would be lost.

    Only a folder with a record of this name, which a former export wrote, is replaced.

    Raises:
        UsageError: if it is not empty, and `overwrite` is not given or the files are not of an export.
        OutputError: if it cannot be created or written.
    """
    check_folder(folder)
    if folder.is_mount():
        raise UsageError(f"'{folder}' is a mount point, which cannot be renamed", "use a folder in it")
    if not is_occupied(folder):
        return
    if not overwrite:
        raise UsageError(f"'{folder}' is not empty", "use --overwrite or another folder")
    if not (folder / record_name).is_file():
        raise UsageError(f"'{folder}' holds files that page4d did not write", "use another folder, or move them")


@contextmanager
def staged_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the body ends, and is deleted if the body fails.

    A link at `target` is followed. With `replace` an older folder is deleted once the new one has its name.

    Raises:
        UsageError: if another process wrote the folder meanwhile.
        OutputError: if it cannot be created or moved.
    """
    target = real_path(target)
    staged = part_name(target)
    try:
        with _errors_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.mkdir()
        yield staged
        with _errors_named(target):
            _sync(staged)
            if is_occupied(target) and not replace:
                raise UsageError(f"'{target}' is not empty any more", "use --overwrite or another folder")
            with deferred_signals():
                _move(staged, target)
    finally:
        with deferred_signals():
            shutil.rmtree(staged, ignore_errors=True)


@contextmanager
def _errors_named(target: Path) -> Iterator[None]:
    """Translate errors of the system on creating or moving a folder."""
    try:
        yield
    except OSError as error:
        raise output_error(error, target) from error


def _sync(folder: Path) -> None:
    """Flush all files of a folder to the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            handle = os.open(Path(place, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


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
