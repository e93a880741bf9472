"""Records in the state folder of an output, checked when they are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from jaxtyping import Float
from pydantic import AfterValidator, Field, JsonValue, NonNegativeFloat
from torch import Tensor

from page4d.geometry.transforms import Sim3
from page4d.io.atomic import WrittenFile
from page4d.io.json_records import DOUBLES, FileModel, Sha256
from page4d.output.layout import is_own_file
from page4d.output.record import ChunkRecord, InstantMotion
from page4d.output.rig_record import CalibrationCheckRecord, Count, WorldRecord
from page4d.rig.records import RigRegistration
from page4d.run.chunks import Chunk


def _own_file(name: str) -> str:
    if not is_own_file(name):
        raise ValueError(f"page4d writes no file '{name}'")
    return name


OwnFile = Annotated[str, AfterValidator(_own_file)]
"""Name of a file of the output, relative to its folder; it cannot lead out of the folder."""


class FileRecord(FileModel):
    """A complete file below the output folder."""

    name: OwnFile
    num_bytes: Count
    sha256: Sha256

    @staticmethod
    def of_all(files: Sequence[WrittenFile], folder: Path) -> "list[FileRecord]":
        """Record files that are complete on disk."""
        return [
            FileRecord(name=file.path.relative_to(folder).as_posix(), num_bytes=file.num_bytes, sha256=file.sha256)
            for file in files
        ]


class FinishedChunk(FileModel):
    """A chunk whose instants `first` to before `stop` are all written: its cameras, at original pixels, and counts.

    `files` are listed on disk alone, as there are many. `motion` has the instants whose velocities were measured.
    """

    record: ChunkRecord
    first: Count
    stop: Count
    files: list[FileRecord] = Field(default_factory=list)
    times: Annotated[Float[Tensor, " T"], DOUBLES]
    world_to_camera: Annotated[Float[Tensor, "T V 4 4"], DOUBLES]
    intrinsics: Annotated[Float[Tensor, "T V 3 3"], DOUBLES]
    clipped_depths: Count
    num_points: Count
    clipped_velocities: Count = 0
    motion: list[InstantMotion] = Field(default_factory=list)


class RunState(FileModel):
    """The state of a run: the fingerprint required for resuming, the decisions of its stages by name, and totals.

    `world` is another one of given cameras. `threads` is the number on which it computes, also when it is resumed:
    the last digits of results depend on it. `files` are those written before the first chunk, `other_files` those
    after the last one.
    """

    fingerprint: dict[str, JsonValue]
    threads: Annotated[int, Field(ge=1, le=4096)]
    plan: Annotated[list[Chunk], Field(min_length=1)]
    registration: RigRegistration | None = None
    world: WorldRecord | None = None
    calibration_check: CalibrationCheckRecord | None = None
    stages: dict[str, JsonValue] = Field(default_factory=dict)
    files: list[FileRecord] = Field(default_factory=list)
    other_files: list[FileRecord] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    seconds: dict[str, NonNegativeFloat] = Field(default_factory=dict)


def transform_of(record: ChunkRecord) -> Sim3:
    """Return the transform that brought a recorded chunk into the world."""
    return Sim3.identity() if record.transform is None else record.transform.sim3()
