"""`run.json`: what was run on what, and how to read the numbers in the other files. Sizes are [width, height]."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

import page4d
from page4d.conventions import DESCRIPTION, Scale
from page4d.export.layout import SAFE_NAME, OutputLayout
from page4d.export.maps import CONFIDENCE_MAPPING, DYNAMIC_MAPPING
from page4d.geometry.distortion import Distortion
from page4d.geometry.pixels import PixelTransform
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_model import FileModel, format_json, read_model, readable
from page4d.scene.records import Clock

UNTRAINED_NOTICE = "UNTRAINED NETWORK: THE VALUES ARE NOISE"

Name = Annotated[str, BeforeValidator(lambda value: readable(value) if isinstance(value, str) else value)]
Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
Count = Annotated[int, Field(ge=0)]


class SceneRecord(FileModel):
    """Where the views come from, and how they were put on one clock and into one world."""

    name: Name
    synchronisation: str = "same start"
    calibration: Name | None = None


class PixelRecord(FileModel):
    """How an original image lies on the network's canvas: resized to the content, placed at (left, top).

    What sticks out of the canvas, as where `top` is negative, was cut away: maps are 0 there.
    """

    content_size: Size
    canvas_size: Size
    left: int = 0
    top: int = 0


class DistortionRecord(FileModel):
    """The lens distortion that was taken out on load: images, maps and cameras are those of an ideal lens."""

    model: str
    coefficients: list[float]


class ClockRecord(FileModel):
    """`common = offset_s + rate * own`."""

    offset_s: float = 0.0
    rate: float = Field(default=1.0, gt=0.0)


class ViewRecord(FileModel):
    """One view: `safe_name` is what its files are called, `map_size` the size of its PNG maps."""

    name: Name
    safe_name: str = Field(pattern=SAFE_NAME)
    file: Name
    original_size: Size
    map_size: Size
    pixel_transform: PixelRecord
    clock: ClockRecord = ClockRecord()
    undistorted: DistortionRecord | None = None


class NetworkRecord(FileModel):
    """Which network made the values. An untrained one always carries the notice that its values are noise."""

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
    def _say_untrained(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("trained") is False:
            return {**values, "notice": UNTRAINED_NOTICE}
        return values


class TransformRecord(FileModel):
    """The map x -> scale * rotation @ x + translation that brought a chunk into the world."""

    scale: float = Field(gt=0.0)
    rotation: list[list[float]]
    translation: tuple[float, float, float]


class SeamRecord(FileModel):
    """How well a chunk fits the one before, and what the alignment turned and scaled.

    Medians over the static pixels of the overlap: `residual` in units of the scene, `residual_share` of the depth
    there, `residual_px` in network pixels as the next view sees it. Without such a pixel there are none. `num_points`
    pixels decided the alignment; 0 means that the cameras did.
    """

    residual: float | None
    residual_share: float | None = None
    residual_px: float | None = None
    rotation_deg: float
    scale_ratio: float
    num_points: Count = 0


class RigFitRecord(FileModel):
    """How a chunk fits cameras that stand still.

    `motion_px` is how far each view's own cameras are from the one it has, in network pixels at its median depth and
    without their jitter; `scale_std` the standard deviation of the chunk's scale, as a share.
    """

    motion_px: list[float]
    scale_std: float = Field(ge=0.0)


class ResidualsRecord(FileModel):
    """How far a chunk's predicted cameras are from the calibrated ones after the best similarity, for every view.

    `distance` is in units of the calibration, `focal_percent` how much longer the predicted focal length is.
    `at_fault` names the camera that the others, aligned without it, do not agree with.
    """

    rotation_deg: list[float]
    distance: list[float]
    focal_percent: list[float]
    at_fault: Name | None = None


class ChunkRecord(FileModel):
    """Instants `start` to before `stop`, of which the first `overlap` belong to the chunk before as well."""

    start: Count
    stop: Count
    overlap: Count
    seconds: float = Field(ge=0.0)
    transform: TransformRecord | None = None
    seam: SeamRecord | None = None
    rig: RigFitRecord | None = None
    calibration: ResidualsRecord | None = None


class ViewMotionRecord(FileModel):
    """How a view's camera changes over time: at random, and otherwise; in network pixels at its median depth."""

    view: Name
    jitter_px: float = Field(ge=0.0)
    motion_px: float = Field(ge=0.0)
    still: bool


class RigRecord(FileModel):
    """Whether each view has one camera for the whole capture, and what that was decided by.

    Measured over the first `num_times` instants. A view stands still if its motion is at most `limit_px` or at most
    its jitter.
    """

    asked: Literal["static", "moving", "auto"]
    cameras: Literal["static", "moving"]
    num_times: Count
    limit_px: float = Field(ge=0.0)
    views: list[ViewMotionRecord]


class CountsRecord(FileModel):
    """Pixels whose depth did not fit the PNG range, and points of all clouds."""

    clipped_depths: Count = 0
    points: Count = 0


class DistanceRecord(FileModel):
    """The known distance between two cameras that made lengths metres.

    `predicted` is the median of the network's distances over the first `num_times` instants, `variation` their
    robust standard deviation as a share; averaged cameras do not vary.
    """

    views: tuple[Name, Name]
    metres: float = Field(gt=0.0)
    predicted: float = Field(gt=0.0)
    variation: float = Field(ge=0.0)
    num_times: Count


class CameraResidualRecord(FileModel):
    """A view's row of the agreement: medians of its chunks, `share` of the largest distance in the calibration."""

    view: Name
    rotation_deg: float = Field(ge=0.0)
    distance: float = Field(ge=0.0)
    share: float | None = None
    focal_percent: float


class AgreementRecord(FileModel):
    """How well the network's cameras and the calibration agree; `at_fault` is the camera that most chunks name."""

    cameras: list[CameraResidualRecord]
    at_fault: Name | None = None


class RunRecord(FileModel):
    """The whole of `run.json`. `depth_scale` are PNG levels per unit of depth.

    Peaks of memory are those of a GPU's allocator, elsewhere of the process; the predicted one is that of the plan.
    `timings` are seconds by stage; decoding (as far as it is waited for), predicting and writing overlap.
    """

    page4d: str = page4d.__version__
    status: Literal["complete", "incomplete"]
    settings: dict[str, JsonValue]
    conventions: dict[str, str] = Field(default_factory=DESCRIPTION.copy)
    scale: Scale
    unit: Literal["metre", "arbitrary"]
    depth_scale: float = Field(gt=0.0)
    confidence_mapping: str = CONFIDENCE_MAPPING
    dynamic_mapping: str = DYNAMIC_MAPPING
    scene: SceneRecord
    views: list[ViewRecord] = Field(min_length=1)
    times: list[float] = Field(min_length=1)
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
            raise ValueError(f"unit {self.unit} does not belong to scale {self.scale}")
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
    """Describe a view of the scene as `run.json` has it; `distortion` is what was taken out on load."""
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
    """Write `run.json` whole or not at all.

    Raises:
        OutputError: if the file cannot be written.
    """
    return write_bytes_atomic(layout.run, (format_json(run.model_dump(mode="json")) + "\n").encode("utf-8"))


def read_run(layout: OutputLayout) -> RunRecord:
    """Read `run.json`.

    Raises:
        InputError: if it is missing or not as page4d writes it.
    """
    return read_model(layout.run, RunRecord)
