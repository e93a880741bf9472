"""`run.json`: settings, inputs and conventions of a run. Sizes are [width, height]."""

import json
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

import page4d
from page4d.conventions import DESCRIPTION, Scale, ScaleSource
from page4d.formats.maps import CONFIDENCE_MAPPING, DYNAMIC_MAPPING
from page4d.geometry.pixels import PixelTransform
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_records import FileModel, Sha256, format_json, read_model
from page4d.output.calibration_check_record import CalibrationCheckRecord
from page4d.output.diagnostics import AgreementRecord, ChunkRecord, Count, DistanceRecord, Name, RigRecord
from page4d.output.layout import SAFE_NAME, OutputLayout
from page4d.output.motion_record import MotionRecord
from page4d.output.registration_record import RegistrationRecord
from page4d.scene.identity import identify
from page4d.scene.records import Clock, View, ViewCamera

UNTRAINED_NOTICE = "UNTRAINED NETWORK: THE VALUES ARE NOISE"

Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class SceneRecord(FileModel):
    """Source of the views, method of synchronisation, and calibration."""

    name: Name
    synchronisation: str = "same start"
    calibration: Name | None = None


class PixelRecord(FileModel):
    """Placement of an original image on the network's canvas: resized to the content size, placed at (left, top).

    Parts outside the canvas, as where `top` is negative, are cropped: maps are 0 there. With a `window` (left, top,
    width, height) in original pixels, the image was cropped to it before it was resized.
    """

    content_size: Size
    canvas_size: Size
    left: int = 0
    top: int = 0
    window: tuple[int, int, int, int] | None = None


Row = Annotated[list[float], Field(min_length=3, max_length=3)]


class DistortionRecord(FileModel):
    """Lens distortion removed on load: images, maps and cameras are those of an ideal pinhole camera.

    `intrinsics` [3, 3] at original pixels are those with which it was removed; None in files of version 0.2.
    """

    model: str
    coefficients: list[float]
    intrinsics: Annotated[list[Row], Field(min_length=3, max_length=3)] | None = None


Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]
"""An instant; file names may number frames by their date in milliseconds."""


class ClockRecord(FileModel):
    """`common = offset_s + rate * own`."""

    offset_s: Seconds = 0.0
    rate: float = Field(default=1.0, ge=1e-3, le=100.0)


class SourceRecord(FileModel):
    """The files of a view, by which its pictures are found again: size and hash as in `FileIdentity`.

    `frames` are the indices of its frames at the instants of the run, `seconds` their times from its first frame.
    """

    bytes: Count
    sha256_ends: Sha256
    frames: list[Count]
    seconds: list[Seconds]


class ViewRecord(FileModel):
    """One view; `safe_name` is the name of its files, `map_size` the size of its PNG maps.

    `source` is None in files of version 0.2, and for frames that are not read from files.
    """

    name: Name
    safe_name: str = Field(pattern=SAFE_NAME)
    file: Name
    original_size: Size
    map_size: Size
    pixel_transform: PixelRecord
    clock: ClockRecord = ClockRecord()
    undistorted: DistortionRecord | None = None
    source: SourceRecord | None = None


class WeightsSourceRecord(FileModel):
    """The published checkpoint that weights were made from: `name` is what the user gave, `sha256` that of `file`.

    `repository` and `revision` are None for a file of the machine.
    """

    name: Name
    repository: str | None = None
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    file: Name
    sha256: Sha256


class NetworkRecord(FileModel):
    """The network. An untrained one always carries the notice that its values are noise.

    `commercial` is whether the licence permits commercial use, None if unknown. `source` is None where the weights
    are a file that page4d wrote.
    """

    name: str
    trained: bool
    preset: str | None = None
    config: dict[str, JsonValue] = Field(default_factory=dict)
    weights: Name | None = None
    sha256: Sha256 | None = None
    licence: str | None = None
    commercial: bool | None = None
    source: WeightsSourceRecord | None = None
    notice: str = ""

    @model_validator(mode="before")
    @classmethod
    def _set_untrained_notice(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("trained") is False:
            return {**values, "notice": UNTRAINED_NOTICE}
        return values


class CountsRecord(FileModel):
    """Number of depths clipped to the PNG range, and of points of all clouds."""

    clipped_depths: Count = 0
    points: Count = 0


class LayersRecord(FileModel):
    """The points of what does not move, written once for all instants: their file and number."""

    static_file: Literal["points/static.ply"] = "points/static.ply"
    static_points: Count


class RunRecord(FileModel):
    """The whole of `run.json`. `depth_scale` is in PNG levels per unit of depth, `mesh_voxel_size` in units of depth.

    Peak memory is that of a GPU's allocator, otherwise of the process; the predicted one is the plan's. `timings` are
    seconds by stage; decoding (as far as prediction waits for it), prediction and writing overlap. `layers` is None
    where a run wrote merged clouds alone, `motion` where it measured no velocities.
    """

    page4d: str = page4d.__version__
    status: Literal["complete", "incomplete"]
    settings: dict[str, JsonValue]
    conventions: dict[str, str] = Field(default_factory=DESCRIPTION.copy)
    scale: Scale
    scale_source: ScaleSource | None = None
    unit: Literal["metre", "arbitrary"]
    depth_scale: float = Field(ge=1e-12, le=1e15)
    mesh_voxel_size: float | None = Field(default=None, gt=0.0)
    confidence_mapping: str = CONFIDENCE_MAPPING
    dynamic_mapping: str = DYNAMIC_MAPPING
    scene: SceneRecord
    views: list[ViewRecord] = Field(min_length=1)
    times: list[Seconds] = Field(min_length=1)
    network: NetworkRecord
    rig: RigRecord | None = None
    registration: RegistrationRecord | None = None
    calibration_check: CalibrationCheckRecord | None = None
    scale_from: DistanceRecord | None = None
    calibration_residuals: AgreementRecord | None = None
    chunks: list[ChunkRecord] = Field(default_factory=list)
    counts: CountsRecord = CountsRecord()
    layers: LayersRecord | None = None
    motion: MotionRecord | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    predicted_peak_memory_bytes: Count | None = None
    peak_memory_bytes: Count | None = None
    device: str = "cpu"
    precision: str = "fp32"
    seed: int = 0
    warnings: list[str] = Field(default_factory=list)

    @field_validator("settings")
    @classmethod
    def _finite_settings(cls, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
        json.dumps(settings, allow_nan=False)
        return settings

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.unit != self.scale.unit:
            raise ValueError(f"unit {self.unit} contradicts scale {self.scale}")
        if any(after <= before for before, after in pairwise(self.times)):
            raise ValueError("times do not increase")
        for source in (view.source for view in self.views):
            if source is not None and not len(source.frames) == len(source.seconds) == len(self.times):
                raise ValueError(f"{len(source.frames)} frames of a view for {len(self.times)} times")
        for key in ("name", "safe_name"):
            names = [getattr(view, key) for view in self.views]
            if len(set(names)) != len(names):
                raise ValueError(f"two views have the same {key}")
        return self


def view_record(
    layout: OutputLayout,
    name: str,
    file: str,
    transform: PixelTransform,
    clock: Clock,
    camera: ViewCamera | None = None,
    source: SourceRecord | None = None,
    maps: PixelTransform | None = None,
) -> ViewRecord:
    """Return the record of a view of the scene; the distortion of `camera` was removed on load.

    `transform` places it on the network's canvas, `maps` at the pixels of the maps if these differ.
    """
    window = transform.window
    return ViewRecord(
        name=name,
        safe_name=layout.file_name(name),
        file=file,
        original_size=transform.original_size[::-1],
        map_size=(maps or transform).map_size[::-1],
        pixel_transform=PixelRecord(
            content_size=transform.content_size[::-1],
            canvas_size=transform.canvas_size[::-1],
            left=transform.left,
            top=transform.top,
            window=None if window is None else (window.left, window.top, window.width, window.height),
        ),
        clock=ClockRecord(offset_s=clock.offset_s, rate=clock.rate),
        undistorted=_distortion_record(camera),
        source=source,
    )


def source_record(view: View) -> SourceRecord | None:
    """Return the record of a view's files and frames; None for frames that are not read from files.

    Raises:
        InputError: if a file was removed or can no longer be read.
    """
    identity = identify(view.source)
    if identity is None:
        return None
    return SourceRecord(
        bytes=identity.num_bytes,
        sha256_ends=identity.sha256_ends,
        frames=list(view.indices),
        seconds=view.source.frame_times[list(view.indices)].tolist(),
    )


def _distortion_record(camera: ViewCamera | None) -> DistortionRecord | None:
    if camera is None or camera.distortion is None:
        return None
    return DistortionRecord(
        model=camera.distortion.model.value,
        coefficients=list(camera.distortion.coefficients),
        intrinsics=camera.intrinsics.tolist(),
    )


def write_run(layout: OutputLayout, run: RunRecord) -> WrittenFile:
    """Write `run.json` atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    return write_bytes_atomic(layout.run, encode_run(run))


def encode_run(run: RunRecord) -> bytes:
    """Return the bytes of `run.json`."""
    return (format_json(run.model_dump(mode="json")) + "\n").encode("utf-8")


def read_run(layout: OutputLayout) -> RunRecord:
    """Read `run.json`.

    Raises:
        InputError: if it is missing or invalid.
    """
    return read_model(layout.run, RunRecord)
