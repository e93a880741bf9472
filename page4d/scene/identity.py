"""Identity of the files of a view: their size, and a hash of their ends, which reads little of a long recording."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page4d.io.input_files import reading_again
from page4d.scene.image_file import image_name

_END_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileIdentity:
    """Bytes of all files of a view, and SHA-256 of their sizes and of both ends of the first and last file."""

    num_bytes: int
    sha256_ends: str


def files_of(source: Any) -> list[Path]:
    """Return the files of a frame source; none for frames that are rendered or held in memory."""
    files = getattr(source, "files", None)
    path = getattr(source, "path", None)
    return list(files) if files else [path] if path else []


def identify(source: Any) -> FileIdentity | None:
    """Return the identity of the files of a frame source; None for frames that are rendered or held in memory.

    Raises:
        InputError: if a file was removed or can no longer be read.
    """
    files = files_of(source)
    if not files:
        return None
    sizes = []
    for file in files:
        with reading_again(_name(file, files)):
            sizes.append(file.stat().st_size)
    digest = hashlib.sha256(repr(sizes).encode())
    for file, size in {files[0]: sizes[0], files[-1]: sizes[-1]}.items():
        with reading_again(_name(file, files)), file.open("rb") as opened:
            digest.update(opened.read(_END_BYTES))
            opened.seek(max(size - _END_BYTES, 0))
            digest.update(opened.read(_END_BYTES))
    return FileIdentity(num_bytes=sum(sizes), sha256_ends=digest.hexdigest())


def _name(file: Path, files: list[Path]) -> str:
    return file.name if len(files) == 1 else image_name(file)
