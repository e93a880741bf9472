"""`export.json`: what an export contains, and how it relates to the run."""

from typing import Any

from pydantic import JsonValue

from page4d.io.json_records import FileModel

RECORD_NAME = "export.json"


class ExportedView(FileModel):
    """A view: its name in the run, the label of its files, picture size [width, height], and shares of its pictures.

    `cropped` is the share of the original picture that was cut off, `empty` that of the exported one without data.
    """

    name: str
    label: str
    picture_size: tuple[int, int] | None
    cropped: float = 0.0
    empty: float = 0.0
    static: bool


class ExportedInstant(FileModel):
    """An instant: its index in the run, seconds on the common clock, and its time as readers of the format see it."""

    instant: int
    seconds: float
    time: float | int | str | None = None


class ExportRecord(FileModel):
    """The whole of `export.json`.

    `world_from_run` is the 4x4 similarity from the run's world to the exported one. `run_sha256` is that of the run's
    `run.json`, `cut_points` the number of points that were dropped as far outside the scene.
    """

    page4d: str
    format: str
    options: dict[str, JsonValue]
    scene: str
    run_sha256: str
    unit: str
    scale: float
    up: str
    up_found: str
    exported_up: str
    world_from_run: list[list[float]]
    regular: bool
    frame_rate: float
    pinhole: str | None
    views: list[ExportedView]
    instants: list[ExportedInstant]
    held_out: list[str]
    points: int
    cut_points: int
    remarks: list[str]
    files: int
    bytes: int

    def document(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return self.model_dump(mode="json")
