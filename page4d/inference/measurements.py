"""Measurements of this machine that forecasts use: kept in the cache, with the occasion on which they were made."""

import hashlib
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import NonNegativeFloat

from page4d.errors import InputError, OutputError
from page4d.io.atomic import write_bytes_atomic
from page4d.io.folders import cache_folder
from page4d.io.json_records import FileModel, format_json, read_model

_PREFIX = "measured_"


class Occasion(FileModel):
    """When something was measured, and the load of the machine then: processes that ran in the last minute."""

    date: str
    load: NonNegativeFloat


class KeptMeasurement(FileModel):
    """A file of the cache; `subject` identifies what was measured, `at` when."""

    subject: dict[str, str]
    at: Occasion


KeptT = TypeVar("KeptT", bound=KeptMeasurement)


def occasion() -> Occasion:
    """Return the date and the load of now."""
    return Occasion(date=datetime.now().astimezone().isoformat(timespec="seconds"), load=round(os.getloadavg()[0], 2))


def read_measurement(kind: type[KeptT], subject: Mapping[str, str]) -> KeptT | None:
    """Return what is kept of a subject; None if nothing is, or nothing that can be read."""
    try:
        found = read_model(_path(kind, subject), kind)
    except (InputError, OSError):
        return None
    return found if found.subject == subject else None


def write_measurement(found: KeptMeasurement) -> None:
    """Keep a measurement; without write access it is made again."""
    try:
        text = format_json(found.model_dump(mode="json")) + "\n"
        write_bytes_atomic(_path(type(found), found.subject), text.encode())
    except OutputError:
        return


def forget_measurements() -> None:
    """Delete all measurements, so that the next forecast measures again."""
    for path in cache_folder().glob(f"{_PREFIX}*.json"):
        path.unlink(missing_ok=True)


def _path(kind: type[KeptMeasurement], subject: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(repr(dict(subject)).encode()).hexdigest()[:16]
    return cache_folder() / f"{_PREFIX}{kind.__name__.removeprefix('Measured').lower()}_{digest}.json"
