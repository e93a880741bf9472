"""Measurements of this machine that forecasts use: kept in the cache, with the occasion on which they were made."""

import os
from datetime import datetime
from pathlib import Path

from pydantic import NonNegativeFloat

from page4d.errors import OutputError
from page4d.io.atomic import write_bytes_atomic
from page4d.io.cache import cache_folder
from page4d.io.json_model import FileModel, format_json

_PREFIXES = ("cost_", "rates_")


class Occasion(FileModel):
    """When something was measured, and the load of the machine then: processes that ran in the last minute."""

    date: str
    load: NonNegativeFloat


def occasion() -> Occasion:
    """Return the date and the load of now."""
    return Occasion(date=datetime.now().astimezone().isoformat(timespec="seconds"), load=round(os.getloadavg()[0], 2))


def write_measurement(path: Path, found: FileModel) -> None:
    """Keep a measurement; without write access it is made again."""
    try:
        write_bytes_atomic(path, (format_json(found.model_dump(mode="json")) + "\n").encode())
    except OutputError:
        return


def forget_measurements() -> None:
    """Delete all measurements, so that the next forecast measures again."""
    for prefix in _PREFIXES:
        for path in cache_folder().glob(f"{prefix}*.json"):
            path.unlink(missing_ok=True)
