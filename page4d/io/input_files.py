"""Input files: checks before they are opened or read again, and the order and form of their names."""

import os
import re
import stat
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from page4d.errors import InputError, did_you_mean
from page4d.io.exhaustion import is_exhausted

DEFAULT_MAX_MEGAPIXELS = 64.0

RESTORE = "restore it, and continue with ⟨existing=resume⟩"
"""Hint for an input file that changed during a run."""

VIDEO_SUFFIXES = frozenset(
    ".mp4 .mov .m4v .3gp .mkv .webm .avi .mts .m2ts .ts .mpg .mpeg .wmv .flv .mxf .ogv .gif .y4m .ivf .obu".split()
    + ".h264 .264 .h265 .265 .hevc".split()
)
"""Suffixes of video files."""

CAMERA_WORD = r"(?:cam|camera|view|kinect|gopro|iphone|phone|device|sensor)[ _.-]*"
CAMERA_NAME = re.compile(
    rf"{CAMERA_WORD}(\d{{1,3}}|[a-z])|({CAMERA_WORD})?(left|right|front|back|rear|side|top|bottom|middle|cent(er|re))",
    re.IGNORECASE,
)
CAMERA_IN_NAME = re.compile(rf"(?<![^\W_])(?:{CAMERA_NAME.pattern})(?![^\W_])", re.IGNORECASE)
"""Name of a camera within a longer name: `cam01`, `Camera_A` or `left`."""


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `cam2` before `cam10`; case is ignored, ties are broken by the exact text."""
    parts = re.split(r"(\d{1,4000})", name)
    key = [(0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts]
    return [*key, (2, 0, name)]


def composed(name: str) -> str:
    """Return a name with composed characters (NFC): macOS and other systems store "é" differently."""
    return unicodedata.normalize("NFC", name)


def camera_in_name(name: str) -> str | None:
    """Return the name of the camera that the name of an image has, as `cam0` of `cam0_depth_0001.png`."""
    match = CAMERA_IN_NAME.search(name)
    return composed(match[0]) if match else None


def missing_path_hint(path: Path, rest: str, known: Collection[str] = ()) -> str:
    """Return a hint on a path that does not exist: the most similar name in its folder or `known`, and a `rest`."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        names = []
    return did_you_mean(path.name, [*known, *names], rest)


def check_regular_file(path: Path, name: str | None = None) -> None:
    """Check that a path is a readable, non-empty regular file; a decoder would block on a pipe or device.

    `name` is its name in messages, by default without a folder.

    Raises:
        InputError: for a dangling link, a folder, pipe or device, an unreadable or an empty file.
    """
    name = name or path.name
    if path.is_symlink() and not path.exists():
        raise InputError(f"{name} is a link to a file that does not exist", "restore the file or remove the link")
    if not path.exists():
        raise InputError(f"{path} does not exist", missing_path_hint(path, "check the path"))
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{name} is not a regular file", "give a file on disk, not a pipe, device or folder")
    if not os.access(path, os.R_OK):
        raise InputError(f"{name}: permission denied", f"make it readable: chmod u+r '{path}'")
    if path.stat().st_size == 0:
        raise InputError(f"{name} is empty", "copy or record it again, or remove it")


@contextmanager
def reading_again(name: str) -> Iterator[None]:
    """Report an input file that was removed since the run began; `name` is its name in messages.

    Raises:
        InputError: if it was removed, or can no longer be read.
        OSError: if the machine has no file handles or memory left.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{name} was removed during the run", RESTORE) from error
    except OSError as error:
        if is_exhausted(error):
            raise
        raise InputError(f"{name} can no longer be read: {error.strerror or error}", RESTORE) from error


def check_pixels(name: str, width: int, height: int, max_megapixels: float) -> None:
    """Check the frame size in a file's header before anything is decoded.

    Raises:
        InputError: if the frame has more than `max_megapixels` million pixels.
    """
    megapixels = width * height / 1e6
    if megapixels > max_megapixels:
        raise InputError(
            f"{name} is {width}x{height} ({megapixels:.0f} Mpx); the limit is {max_megapixels:g} Mpx "
            "(⟨max_megapixels⟩)",
            "raise ⟨max_megapixels⟩ if the file is genuine",
        )
