"""`run.json`: settings, inputs and conventions of a run. Sizes are [width, height]."""

import json
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

import page4d
from page4d.conventions import DESCRIPTION, Scale
from page4d.geometry.distortion import Distortion
from page4d.geometry.pixels import PixelTransform
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_model import FileModel, format_json, read_model
from page4d.output.diagnostics import AgreementRecord, ChunkRecord, Count, DistanceRecord, Name, RigRecord
from page4d.output.layout import SAFE_NAME, OutputLayout
from page4d.output.maps import CONFIDENCE_MAPPING, DYNAMIC_MAPPING
from page4d.scene.records import Clock

UNTRAINED_NOTICE = "UNTRAINED NETWORK: THE VALUES ARE NOISE"

Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class SceneRecord(FileModel):
    """Source of the views, method of synchronisation, and calibration."""

    name: Name
    synchronisation: str = "same start"
    calibration: Name | None = None


class PixelRecord(FileModel):
    """Placement of an original image on the network's canvas: resized to the content size, placed at (left, top).

    Parts outside the canvas, as where `top` is negative, are cropped: maps are 0 there.
    """

    content_size: Size
    canvas_size: Size
    left: int = 0
    top: int = 0


class DistortionRecord(FileModel):
    """Lens distortion removed on load: images, maps and cameras are those of an ideal pinhole camera."""

    model: str
    coefficients: list[float]


Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]
"""An instant; file names may number frames by their date in milliseconds."""


class ClockRecord(FileModel):
    """`common = offset_s + rate * own`."""

    offset_s: Seconds = 0.0
    rate: float = Field(default=1.0, ge=1e-3, le=100.0)


class ViewRecord(FileModel):
    """One view; `safe_name` is the name of its files, `map_size` the size of its PNG maps."""

    name: Name
    safe_name: str = Field(pattern=SAFE_NAME)
    file: Name
    original_size: Size
    map_size: Size
    pixel_transform: PixelRecord
    clock: ClockRecord = ClockRecord()
    undistorted: DistortionRecord | None = None


class NetworkRecord(FileModel):
    """The network. An untrained one always carries the notice that its values are noise."""

    name: str
    trained: bool
    preset: str | None = None
    config: dict[str, JsonValue] = Field(default_factory=dict)
    weights: Name | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    licence: str | None = None
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


class RunRecord(FileModel):
    """The whole of `run.json`. `depth_scale` is in PNG levels per unit of depth, `mesh_voxel_size` in units of depth.

    Peak memory is that of a GPU's allocator, otherwise of the process; the predicted one is the plan's. `timings` are
    seconds by stage; decoding (as far as prediction waits for it), prediction and writing overlap.
    """

    page4d: str = page4d.__version__
    status: Literal["complete", "incomplete"]
    settings: dict[str, JsonValue]
    conventions: dict[str, str] = Field(default_factory=DESCRIPTION.copy)
    scale: Scale
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
    scale_from: DistanceRecord | None = None
    calibration_residuals: AgreementRecord | None = None
    chunks: list[ChunkRecord] = Field(default_factory=list)
    counts: CountsRecord = CountsRecord()
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
    distortion: Distortion | None = None,
) -> ViewRecord:
    """Return the record of a view of the scene; `distortion` is the one removed on load."""
    content = transform.content_size[::-1]
    return ViewRecord(
        name=name,
        safe_name=layout.file_name(name),
        file=file,
        original_size=transform.original_size[::-1],
        map_size=content,
        pixel_transform=PixelRecord(
            content_size=content,
            canvas_size=transform.canvas_size[::-1],
            left=transform.left,
            top=transform.top,
        ),
        clock=ClockRecord(offset_s=clock.offset_s, rate=clock.rate),
        undistorted=None
        if distortion is None
        else DistortionRecord(model=distortion.model.value, coefficients=list(distortion.coefficients)),
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
