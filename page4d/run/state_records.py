"""Records in the state folder of an output, checked when they are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

import torch
from pydantic import AfterValidator, Field, JsonValue, model_validator
from torch import Tensor

from page4d.conventions import Scale
from page4d.formats.cameras_json import CaptureCameras
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.transforms import Sim3
from page4d.io.atomic import WrittenFile
from page4d.io.json_records import FileModel, Sha256
from page4d.output.layout import is_own_file
from page4d.output.record import (
    CalibrationCheckRecord,
    ChunkRecord,
    Count,
    InstantMotion,
    RegistrationRecord,
    TransformRecord,
)
from page4d.rig.camera_motion import ViewMotion
from page4d.run.chunks import Chunk
from page4d.scene.records import ViewCamera

Matrix = list[list[float]]
Positive = Annotated[float, Field(gt=0.0)]


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


class ChunkState(FileModel):
    """A chunk whose instants `first` to before `stop` are all written: its files, cameras and diagnostics.

    Cameras are [T][V][4][4] and [T][V][3][3].
    """

    record: ChunkRecord
    first: Count
    stop: Count
    files: list[FileRecord]
    times: Annotated[list[float], Field(min_length=1)]
    world_to_camera: list[list[Matrix]]
    intrinsics: list[list[Matrix]]
    clipped_depths: Count
    num_points: Count
    clipped_velocities: Count = 0
    motion: list[InstantMotion] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.record.start <= self.first < self.stop <= self.record.stop:
            raise ValueError(f"instants {self.first} to {self.stop} are not those of the chunk")
        axes = (self.stop - self.first, len(self.world_to_camera[0]) if self.world_to_camera else 0)
        shapes = [tuple(double_tensor(matrices).shape) for matrices in (self.world_to_camera, self.intrinsics)]
        if len(self.times) != axes[0] or shapes != [(*axes, 4, 4), (*axes, 3, 3)]:
            raise ValueError(f"cameras of shapes {shapes} for {len(self.times)} times")
        return self

    def cameras(self, view_names: tuple[str, ...], image_sizes: tuple[tuple[int, int], ...]) -> CaptureCameras:
        """Return the cameras, at the original images of these (height, width); their unit is that of the run.

        Raises:
            ShapeError: if they are not those of as many views.
        """
        return CaptureCameras(
            times=double_tensor(self.times),
            view_names=view_names,
            image_sizes=image_sizes,
            world_to_camera=double_tensor(self.world_to_camera),
            intrinsics=double_tensor(self.intrinsics),
            scale=Scale.ARBITRARY,
        )


@dataclass(frozen=True, kw_only=True)
class FinishedChunk:
    """Data in memory of a chunk whose instants, from `first` on, are all written.

    `files` are the sizes of its files in bytes by name; their hashes are on disk only, as there are many files.
    `motion` has the records of all instants whose velocities were measured.
    """

    record: ChunkRecord
    first: int
    cameras: CaptureCameras
    files: Mapping[str, int]
    clipped_depths: int
    num_points: int
    clipped_velocities: int = 0
    motion: Sequence[InstantMotion] = ()

    @property
    def stop(self) -> int:
        """The instant after the last written one."""
        return self.first + len(self.cameras.times)


class RegisteredCameraState(FileModel):
    """The camera of a view that registration placed, at original pixels, in the unit of the rig."""

    world_to_camera: Matrix
    intrinsics: Matrix
    distortion: tuple[LensModel, list[float]] | None = None

    @staticmethod
    def distortion_of(distortion: Distortion | None) -> tuple[LensModel, list[float]] | None:
        """Return the model and the coefficients of a lens."""
        return None if distortion is None else (distortion.model, list(distortion.coefficients))

    def view_camera(self) -> ViewCamera:
        """Return the camera as that of a calibrated view."""
        distortion = None
        if self.distortion is not None:
            model, coefficients = self.distortion
            distortion = Distortion(model=model, coefficients=tuple(coefficients))
        return ViewCamera(
            world_to_camera=double_tensor(self.world_to_camera),
            intrinsics=double_tensor(self.intrinsics),
            distortion=distortion,
        )


class RegistrationState(FileModel):
    """The registration of a run: its record, the cameras of placed views, and the measured motion of cameras."""

    record: RegistrationRecord
    cameras: list[RegisteredCameraState | None]
    motions: list[ViewMotion] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if [camera.placed for camera in self.record.cameras] != [camera is not None for camera in self.cameras]:
            raise ValueError("cameras are not those of the placed views")
        placed = [camera for camera in self.cameras if camera is not None]
        for camera in placed:
            shapes = [tuple(double_tensor(matrix).shape) for matrix in (camera.world_to_camera, camera.intrinsics)]
            if shapes != [(4, 4), (3, 3)]:
                raise ValueError(f"a camera of shapes {shapes}")
        return self

    def view_cameras(self) -> tuple[ViewCamera | None, ...]:
        """Return the placed cameras, None for other views."""
        return tuple(None if camera is None else camera.view_camera() for camera in self.cameras)


class RunState(FileModel):
    """The state of a run: the fingerprint required for resuming, the decisions of its stages by name, and totals.

    `files` are those written before the first chunk, `other_files` those after the last one.
    """

    fingerprint: dict[str, JsonValue]
    plan: Annotated[list[tuple[int, int, int]], Field(min_length=1)]
    registration: RegistrationState | None = None
    calibration_check: CalibrationCheckRecord | None = None
    stages: dict[str, JsonValue] = Field(default_factory=dict)
    files: list[FileRecord] = Field(default_factory=list)
    other_files: list[FileRecord] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    seconds: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        chunks = self.chunks
        follow = all(one.stop - two.overlap == two.start and one.stop < two.stop for one, two in pairwise(chunks))
        within = all(0 <= chunk.overlap < chunk.length for chunk in chunks)
        if not follow or not within or (chunks[0].start, chunks[0].overlap) != (0, 0):
            raise ValueError("the plan is not one of consecutive chunks")
        return self

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks of the plan."""
        return tuple(Chunk(*chunk) for chunk in self.plan)


def transform_of(record: ChunkRecord) -> Sim3:
    """Return the transform that brought a recorded chunk into the world."""
    if record.transform is None:
        return Sim3.identity()
    return Sim3(
        scale=torch.tensor(record.transform.scale, dtype=torch.float64),
        rotation=torch.tensor(record.transform.rotation, dtype=torch.float64),
        translation=torch.tensor(record.transform.translation, dtype=torch.float64),
    )


def transform_record(transform: Sim3) -> TransformRecord:
    """Record a transform."""
    x, y, z = transform.translation.tolist()
    return TransformRecord(scale=float(transform.scale), rotation=transform.rotation.tolist(), translation=(x, y, z))


def double_tensor(values: Sequence[object]) -> Tensor:
    """Return numbers in double precision; a ValueError if the lists are not of one shape."""
    return torch.tensor(values, dtype=torch.float64)
