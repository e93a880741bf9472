"""Files of a staged folder that are written piece by piece, so that memory does not grow with their size."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from page4d.io.atomic import output_error


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and writing, with its missing folders; the staged folder makes it atomic.

    Raises:
        OutputError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            yield file
    except OSError as error:
        raise output_error(error, path) from error
