"""What was fetched once: the commit of a repository and the digests of its files, which later runs verify."""

import hashlib
import re
from pathlib import Path

from pydantic import Field

from page4d.errors import InputError
from page4d.io.atomic import write_bytes_atomic
from page4d.io.folders import cache_folder
from page4d.io.json_records import FileModel, Sha256, format_json, read_model
from page4d.weights.hub.names import HubReference


class FileRecord(FileModel):
    """A file of a repository: its size and SHA-256."""

    name: str
    num_bytes: int = Field(ge=0)
    sha256: Sha256


class Pin(FileModel):
    """The commit and the files that a reference stands for on this machine.

    The first file is the one that is opened; the shards of an index follow it.
    """

    reference: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    files: list[FileRecord] = Field(min_length=1)
    licence_shown: bool = False


def weights_cache() -> Path:
    """Return the folder of pins and of converted weights."""
    return cache_folder() / "weights"


def pin_file(reference: HubReference) -> Path:
    """Return the file of a reference's pin: the same for a name and for the place that it stands for."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "--", f"{reference.repository}/{reference.file or ''}").strip("-")
    digest = hashlib.sha256(reference.place.encode()).hexdigest()[:8]
    return weights_cache() / "pins" / f"{readable[:150]}-{digest}.json"


def read_pin(reference: HubReference) -> Pin | None:
    """Return the pin of a reference; None if it was not fetched yet, or the pin is damaged."""
    try:
        pin = read_model(pin_file(reference), Pin)
    except (InputError, OSError):
        return None
    return pin if pin.reference == reference.place else None


def write_pin(reference: HubReference, pin: Pin) -> None:
    """Record a pin.

    Raises:
        OutputError: if the cache cannot be written.
    """
    write_bytes_atomic(pin_file(reference), (format_json(pin.model_dump(mode="json")) + "\n").encode())
