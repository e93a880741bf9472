"""Times of the images and points of a COLMAP model: files next to it that other readers ignore.

A point without a time exists at all times.

Source: colmap4d specification 1.0, part I.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.io.folders import write_file, write_json

_IMAGE_TIME = np.dtype([("id", "<u4"), ("time", "<i8")])
_POINT_TIME = np.dtype([("id", "<u8"), ("time", "<i8")])

_META = {
    "colmap4d_spec": "1.0",
    "time_convention": "mid_exposure",
    "time_unit": "ns",
    "clock_domain": "capture",
    "points_t_method": "first_observation",
}
"""Seconds on the common clock of the capture; `mid_exposure` is the only convention of the specification."""


def nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round times to nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


def write_times(
    folder: Path,
    *,
    image_ids: NDArray[np.int64],
    image_times: NDArray[np.int64],
    point_ids: NDArray[np.int64],
    point_times: NDArray[np.int64],
    text: bool,
) -> None:
    """Write the times, in ns, of images and of some points into the folder of a model.

    Raises:
        OutputError: if a file cannot be written.
    """
    for stem, layout, ids, times in (
        ("times", _IMAGE_TIME, image_ids, image_times),
        ("points_t", _POINT_TIME, point_ids, point_times),
    ):
        if text:
            write_file(folder / f"{stem}.txt", _text_table(ids, times))
        else:
            write_file(folder / f"{stem}.bin", _binary_table(layout, ids, times))
    write_json(folder / "time_meta.json", _META)


def _binary_table(layout: np.dtype[Any], ids: NDArray[np.int64], times: NDArray[np.int64]) -> bytes:
    table = np.empty(len(ids), dtype=layout)
    table["id"], table["time"] = ids, times
    return np.array(len(ids), dtype="<u8").tobytes() + table.tobytes()


def _text_table(ids: NDArray[np.int64], times: NDArray[np.int64]) -> bytes:
    rows = "%d %d\n" * len(ids) % tuple(np.stack([ids, times], axis=1).ravel().tolist())
    return f"# ID, TIME_NS\n{rows}".encode()
