"""The converted files in page4d's cache, named by family, sources and options, and version of the conversion."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from page4d.errors import InputError
from page4d.io.json_records import FileModel, Sha256, read_model
from page4d.weights.hub.pins import weights_cache

SUFFIX = ".safetensors"
RECORD_SUFFIX = ".json"

_ROOT = Path(__file__).parents[1]
_CODE = (
    "weights/store.py",
    "weights/conversion",
    "weights/families",
    "networks/config.py",
    "networks/config_parts.py",
    "networks/presets.py",
)
"""Modules and packages that decide which bytes a conversion writes."""


class ConvertedFile(FileModel):
    """A converted file: its digest and size, its family, and the digests of its sources by name."""

    sha256: Sha256
    num_bytes: int
    family: str
    sources: dict[str, str]


@cache
def conversion_version() -> str:
    """Return the version of the conversion: a digest of the code that determines its result."""
    digest = hashlib.sha256()
    for place in _CODE:
        for file in sorted((_ROOT / place).glob("*.py")) or [_ROOT / place]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def converted_files(key: str = "*") -> Iterator[tuple[Path, ConvertedFile]]:
    """Yield the complete files of the present version of the conversion; of one key, or all."""
    for record in sorted(weights_cache().glob(f"*-{key}-{conversion_version()}{RECORD_SUFFIX}")):
        path = record.with_suffix(SUFFIX)
        try:
            known = read_model(record, ConvertedFile)
        except (InputError, OSError):
            continue
        if path.is_file() and path.stat().st_size == known.num_bytes:
            yield path, known


def made_from(digests: Mapping[str, str]) -> Path | None:
    """Return a converted file of these sources, if the cache has one."""
    return next((path for path, known in converted_files() if known.sources == digests), None)
