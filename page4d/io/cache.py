"""The folder of page4d's cache, locks of its files between processes, and the space on its disk."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from page4d.errors import OutputError
from page4d.io.atomic import output_error


def cache_folder() -> Path:
    """Return the folder of page4d's cache; a relative XDG_CACHE_HOME is ignored.

    Raises:
        OutputError: if the user has no home folder.

    Source: XDG Base Directory Specification 0.8, section 2.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "page4d"
    except RuntimeError as error:
        raise OutputError("no folder for caches: the user has no home folder", "set XDG_CACHE_HOME") from error


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` while the body runs; call `on_wait` once if another process holds it.

    The lock belongs to the open file, so a killed process releases it. Missing folders are created.

    Raises:
        OutputError: if the file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise output_error(error, path) from error
    try:
        wait_for_lock(handle, on_wait)
        yield
    finally:
        os.close(handle)


def wait_for_lock(handle: int, on_wait: Callable[[], None]) -> None:
    """Lock an open file exclusively; on file systems without locks it stays unlocked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        return


def check_space(needs: Mapping[Path, int], what: str) -> None:
    """Refuse work that does not fit on the disks of some folders, which need not exist yet.

    Raises:
        OutputError: with the space that is needed and free.
    """
    by_disk: dict[int, tuple[Path, int]] = {}
    for folder, num_bytes in needs.items():
        disk = _existing(folder).stat().st_dev
        by_disk[disk] = (folder, by_disk.get(disk, (folder, 0))[1] + num_bytes)
    for folder, num_bytes in by_disk.values():
        free = shutil.disk_usage(_existing(folder)).free
        if free < num_bytes:
            raise OutputError(
                f"{what} needs {num_bytes / 1e9:.2f} GB in '{folder}', {free / 1e9:.2f} GB are free",
                "free some space, or move the caches to another disk: HF_HOME and XDG_CACHE_HOME",
            )


def _existing(folder: Path) -> Path:
    """Return the nearest folder that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
