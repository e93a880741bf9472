"""`run.json`: settings, inputs, conventions and diagnostics of a run. Sizes are [width, height].

Diagnostics are seams between chunks, camera motion, residuals and faults of a calibration, the pairs and cameras of a
registration, and velocities and tracks.
"""

import json
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, JsonValue, field_validator, model_validator

import page4d
from page4d.conventions import DESCRIPTION, Scale, ScaleSource
from page4d.errors import counted
from page4d.formats.maps import CONFIDENCE_MAPPING, DEEPEST_LEVEL, DYNAMIC_MAPPING, FASTEST_LEVEL, MOTION_MAPPING
from page4d.formats.open3d import CloudWriter
from page4d.geometry.distortion import LensModel
from page4d.geometry.pixels import PixelTransform
from page4d.geometry.transforms import Sim3
from page4d.io.json_records import FileModel, Sha256
from page4d.output.layout import SAFE_NAME, OutputLayout
from page4d.output.rig_record import CalibrationCheckRecord, Count, Name, RegistrationRecord, Row, Share, WorldRecord
from page4d.scene.content import Fault as ContentFault
from page4d.scene.content import content_texts
from page4d.scene.identity import identify
from page4d.scene.records import Clock, Seconds, View

Coordinate = Annotated[float, Field(ge=-1e12, le=1e12)]


class TransformRecord(FileModel):
    """The similarity x -> scale * rotation @ x + translation that brought a chunk into the world."""

    scale: float = Field(gt=0.0)
    rotation: list[list[float]]
    translation: tuple[float, float, float]

    @staticmethod
    def of(transform: Sim3) -> "TransformRecord":
        """Record a transform."""
        return TransformRecord.model_validate({name: value.tolist() for name, value in vars(transform).items()})

    def sim3(self) -> Sim3:
        """Return the transform in double precision."""
        return Sim3(**{name: torch.tensor(value, dtype=torch.float64) for name, value in self})


class SeamRecord(FileModel):
    """Residuals between a chunk and its predecessor after alignment, with the rotation and scale of the alignment.

    Medians over the static pixels of the overlap, None without such pixels: `residual` is the distance of the two
    points of a pixel in units of the scene, `residual_share` its ratio to the depth, `residual_px` the distance of
    their projections into the next view, in network pixels. `num_points` pixels determined the alignment; 0 if the
    cameras did.
    """

    residual: float | None
    residual_share: float | None = None
    residual_px: float | None = None
    rotation_deg: float
    scale_ratio: float
    num_points: Count = 0


class RigFitRecord(FileModel):
    """Residuals of a chunk's cameras from static ones.

    `motion_px` is the displacement of each view's predicted cameras without jitter, in network pixels at the median
    depth, and 0 for views that move, which have no static camera; `scale_std` is the relative standard deviation of
    the chunk's scale.
    """

    motion_px: list[float]
    scale_std: float = Field(ge=0.0)


class ResidualsRecord(FileModel):
    """Residuals of a chunk's predicted cameras from the calibrated ones after the best similarity, for every view.

    Medians over time. `distance` is in units of the calibration, `focal_percent` the relative error of the predicted
    focal length. `at_fault` names the camera that disagrees with all others, aligned without it.
    """

    rotation_deg: list[float]
    distance: list[float]
    focal_percent: list[float]
    at_fault: Name | None = None


OOD_WARNING = "this footage is unlike the network's training set"
"""Beginning of the warning of out-of-distribution indicators, whose advice is after semicolons."""


class DomainRecord(FileModel):
    """How far a chunk's footage is from the network's training set.

    `indicators` are in units of their limits, by name; None is beyond any number. `camera_disagreement_deg` is the
    median angle between rotations of pairs of the network's cameras and of calibrated or registered ones; None if
    they were not compared.
    """

    indicators: dict[str, float | None] = Field(default_factory=dict)
    camera_disagreement_deg: float | None = Field(default=None, ge=0.0)


class FaultRecord(FileModel):
    """Frames of a view without content, by their instants: they have no depth, or, `repeated`, no velocities."""

    view: Name
    fault: ContentFault
    instants: list[Count]


class ChunkRecord(FileModel):
    """Instants `start` to before `stop`; the first `overlap` of them are shared with the previous chunk.

    `empty_frames` counts, for every view, the frames written by this chunk that have no pixel with depth. `refined`
    are the parts of cameras ("poses", "focal") whose refinement held-out evidence supports; the others are the
    network's. None without such a comparison. `domain` is None without indicators and without known cameras.
    `faults` are the frames without content that it wrote.
    """

    start: Count
    stop: Count
    overlap: Count
    seconds: float = Field(ge=0.0)
    transform: TransformRecord | None = None
    seam: SeamRecord | None = None
    rig: RigFitRecord | None = None
    calibration: ResidualsRecord | None = None
    empty_frames: list[Count] = Field(default_factory=list)
    refined: list[Literal["poses", "focal"]] | None = None
    domain: DomainRecord | None = None
    faults: list[FaultRecord] = Field(default_factory=list)


class ViewMotionRecord(FileModel):
    """Jitter and motion of a view's predicted cameras, in network pixels at the median depth (root mean squares).

    `still` is what was measured, in the frames or in the predicted cameras (`evidence`), `is_static` the decision.
    `still_share` is the median share of corners of a frame that stay, `displacement_px` their median displacement in
    frames of 256 px; `reason` states why frames determine nothing, or when a camera moved.
    """

    view: Name
    jitter_px: float = Field(ge=0.0)
    motion_px: float = Field(ge=0.0)
    still: bool
    is_static: bool | None = None
    evidence: Literal["pixels", "predictions"] = "predictions"
    still_share: float | None = None
    displacement_px: float | None = None
    reason: str = ""


class RigRecord(FileModel):
    """Whether each view has one camera for the whole capture, and the measurements that decided it.

    Predicted cameras are measured over the first `num_times` instants: a view is static if its motion is at most
    `limit_px` or its jitter. They decide on views that frames do not determine.
    """

    asked: Literal["static", "moving", "auto"]
    cameras: Literal["static", "moving", "mixed"]
    num_times: Count
    limit_px: float = Field(ge=0.0)
    views: list[ViewMotionRecord]


class DistanceRecord(FileModel):
    """The known distance between two cameras that fixed the metric scale.

    `predicted` is the median predicted distance over the first `num_times` instants, `variation` its relative robust
    standard deviation (0 for averaged cameras).
    """

    views: tuple[Name, Name]
    metres: float = Field(gt=0.0)
    predicted: float = Field(gt=0.0)
    variation: float = Field(ge=0.0)
    num_times: Count


class CameraResidualRecord(FileModel):
    """A view's residuals, medians over chunks; `share` is the distance relative to the extent of the rig."""

    view: Name
    rotation_deg: float = Field(ge=0.0)
    distance: float = Field(ge=0.0)
    share: float | None = None
    focal_percent: float


class AgreementRecord(FileModel):
    """Residuals between the network's cameras and the calibration; `at_fault` is named by most chunks."""

    cameras: list[CameraResidualRecord]
    at_fault: Name | None = None


class ComparedRecord(FileModel):
    """The long side in px up to which pictures of two registered views are compared; 0 if not at all."""

    views: tuple[Name, Name]
    side: Count


class FineDepthRecord(FileModel):
    """Which pictures refine the depth of a registered rig, of all pairs with a common surface, and why not all do."""

    pairs: list[ComparedRecord] = Field(default_factory=list)
    reason: str = ""


Difference = Literal["central", "forward", "backward", "unknown"]
"""How the velocity of an instant is measured."""


class InstantMotion(FileModel):
    """Velocities of an instant: how they were measured, and numbers of pixels of all views.

    `pixels` have depth, `known` have a velocity, which is 0 for `still`; `one_view` are those of the others that only
    one view measured. `noise` is that of the pictures of every view; empty where nothing was measured.
    """

    difference: Difference
    pixels: Count
    known: Count
    still: Count
    one_view: Count
    noise: list[float]


class MotionRecord(FileModel):
    """Velocities and tracks of a run (`motion`): how they were measured and are stored, and how many are known.

    `motion_step` is the velocity of one PNG level, in units of depth per second. `differences` is, per instant,
    whether the velocity is a central difference, a forward or backward one (the first and last instants), or unknown.
    `noise` is the standard deviation of the noise of each view's pictures, in levels of 8 bits. Shares are those of
    pixels with depth: with a known velocity, still, and with a velocity that only one view measured.
    `sigma_factor` multiplies the standard deviations that follow from the flow's noise.
    """

    method: str
    mapping: str = MOTION_MAPPING
    motion_step: float = Field(gt=0.0)
    still_limit_px: float = Field(ge=0.0)
    sigma_factor: float = Field(gt=0.0)
    noise: list[float]
    differences: list[Difference]
    known: Share
    still: Share
    one_view: Share
    clipped: Count = 0
    tracks: Count | None = None

    @property
    def unmapped(self) -> tuple[str, ...]:
        """A sentence on the velocities that do not fit the levels of the maps; none if all do."""
        fastest = self.motion_step * FASTEST_LEVEL
        text = f"{self.clipped} velocities above {fastest:.4g} per second are unknown in their maps; clouds have them"
        return (text,) if self.clipped else ()


UNTRAINED_NOTICE = "UNTRAINED NETWORK: THE VALUES ARE NOISE"

Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class SceneRecord(FileModel):
    """Source of the views, method of synchronisation, and calibration.

    `start_ns` is the time stamp of time 0 in nanoseconds, None without time stamps.
    """

    name: Name
    synchronisation: str = "same start"
    start_ns: int | None = None
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


class DistortionRecord(FileModel):
    """Lens distortion removed on load: images, maps and cameras are those of an ideal pinhole camera.

    `intrinsics` [3, 3] at original pixels are those with which it was removed; None in files of version 0.2, whose
    pictures are not found again.
    """

    model: LensModel
    coefficients: tuple[float, ...]
    intrinsics: Annotated[list[Row], Field(min_length=3, max_length=3)] | None = None


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

    `source` is None in files of version 0.2, and for frames that are not read from files. `content_share` is the
    share of its pictures within dead borders, such as bars.
    """

    name: Name
    safe_name: str = Field(pattern=SAFE_NAME)
    file: Name
    original_size: Size
    map_size: Size
    pixel_transform: PixelRecord
    clock: Clock = Clock()
    undistorted: DistortionRecord | None = None
    source: SourceRecord | None = None
    content_share: float = Field(default=1.0, ge=0.0, le=1.0)


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
    are a file that page4d wrote. `motion_masks` is the name of another network that predicts them, if any.
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
    motion_masks: str | None = None
    notice: str = ""

    @model_validator(mode="before")
    @classmethod
    def _set_untrained_notice(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("trained") is False:
            return {**values, "notice": UNTRAINED_NOTICE}
        return values


class CountsRecord(FileModel):
    """Number of depths outside the range of the PNGs, 0 there, and of points of all clouds."""

    clipped_depths: Count = 0
    points: Count = 0


class LayersRecord(FileModel):
    """The points of what does not move, written once for all instants: their file and number."""

    static_file: Literal["points/static.ply"] = "points/static.ply"
    static_points: Count


class RunRecord(FileModel):
    """The whole of `run.json`. `depth_scale` is in PNG levels per unit of depth, `mesh_voxel_size` in units of depth.

    Points, and cameras as `Output` has them, are about `world_offset` of the world of the camera files, if any.

    Peak memory is that of a GPU's allocator, otherwise of the process; the predicted one is the plan's. `timings` are
    seconds by stage; decoding (as far as prediction waits for it), prediction and writing overlap. `layers` is None
    where a run wrote merged clouds alone, `motion` where it measured no velocities. `descriptors` is the SHA-256 of
    the model whose descriptors the refinement compared, `pose_model` that of the model whose body keypoints gave the
    depth of people; both are None without one. `threads` and `cloud_writer` are None in
    files of version 0.2.
    """

    page4d: str = page4d.__version__
    status: Literal["complete", "incomplete"]
    settings: dict[str, JsonValue]
    conventions: dict[str, str] = Field(default_factory=DESCRIPTION.copy)
    scale: Scale
    scale_source: ScaleSource | None = None
    unit: Literal["metre", "arbitrary"]
    world_offset: tuple[Coordinate, Coordinate, Coordinate] | None = None
    depth_scale: float = Field(ge=1e-12, le=1e15)
    mesh_voxel_size: float | None = Field(default=None, gt=0.0)
    confidence_mapping: str = CONFIDENCE_MAPPING
    dynamic_mapping: str = DYNAMIC_MAPPING
    scene: SceneRecord
    views: list[ViewRecord] = Field(min_length=1)
    times: list[Seconds] = Field(min_length=1)
    network: NetworkRecord
    descriptors: Sha256 | None = None
    pose_model: Sha256 | None = None
    rig: RigRecord | None = None
    registration: RegistrationRecord | None = None
    fine_depth: FineDepthRecord | None = None
    world: WorldRecord | None = None
    calibration_check: CalibrationCheckRecord | None = None
    scale_from: DistanceRecord | None = None
    calibration_residuals: AgreementRecord | None = None
    chunks: list[ChunkRecord] = Field(default_factory=list)
    counts: CountsRecord = CountsRecord()
    layers: LayersRecord | None = None
    cloud_writer: CloudWriter | None = None
    motion: MotionRecord | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    predicted_peak_memory_bytes: Count | None = None
    peak_memory_bytes: Count | None = None
    device: str = "cpu"
    threads: int | None = Field(default=None, ge=1)
    precision: str = "fp32"
    seed: int = 0
    warnings: list[str] = Field(default_factory=list)

    def __repr__(self) -> str:
        size = f"{counted(len(self.views), 'view')}, {counted(len(self.times), 'instant')}"
        return f"<RunRecord of '{self.scene.name}': {size}, {self.counts.points:,} points, unit {self.unit}>"

    @property
    def banner(self) -> str:
        """Why the result is not to be trusted: an untrained network, or footage unlike its training set."""
        if not self.network.trained:
            return self.network.notice
        return next((text.split("; ")[0] for text in self.warnings if text.startswith(OOD_WARNING)), "")

    @property
    def faulty_frames(self) -> tuple[str, ...]:
        """A sentence on each kind of frames without content."""
        faults = [(fault.view, fault.fault, fault.instants) for chunk in self.chunks for fault in chunk.faults]
        return content_texts({}, {}, faults, len(self.times))

    @property
    def content(self) -> tuple[str, ...]:
        """A sentence each on dead borders and on every kind of frames without content."""
        shares = {view.name: view.content_share for view in self.views}
        boxes = {view.name: view.pixel_transform.window for view in self.views}
        return (*content_texts(shares, boxes, (), len(self.times)), *self.faulty_frames)

    @property
    def unmapped_depths(self) -> tuple[str, ...]:
        """A sentence on the depths that do not fit the levels of the maps; none if all do."""
        number, finest = self.counts.clipped_depths, 1 / self.depth_scale
        reach = f"{finest:.4g} to {finest * DEEPEST_LEVEL:.4g}{' m' if self.scale is Scale.METRIC else ''}"
        text = f"{number} depths outside {reach} are 0 (unknown) in the depth maps; the clouds have them"
        return (text,) if number else ()

    @property
    def unmapped(self) -> tuple[str, ...]:
        """A sentence each on the depths and the velocities that do not fit the levels of their maps."""
        return self.unmapped_depths + (() if self.motion is None else self.motion.unmapped)

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
    view: View,
    transform: PixelTransform,
    source: SourceRecord | None = None,
    maps: PixelTransform | None = None,
) -> ViewRecord:
    """Return the record of a view of the scene; the distortion of its camera was removed on load.

    `transform` places it on the network's canvas, `maps` at the pixels of the maps if these differ.
    """
    window, camera, undistorted = transform.window, view.camera, None
    if camera is not None and camera.distortion is not None:
        undistorted = DistortionRecord(**vars(camera.distortion), intrinsics=camera.intrinsics.tolist())
    return ViewRecord(
        name=view.name,
        safe_name=layout.file_name(view.name),
        file=view.source.label,
        original_size=transform.original_size[::-1],
        map_size=(maps or transform).map_size[::-1],
        pixel_transform=PixelRecord(
            content_size=transform.content_size[::-1],
            canvas_size=transform.canvas_size[::-1],
            left=transform.left,
            top=transform.top,
            window=None if window is None else window.box,
        ),
        clock=view.clock,
        undistorted=undistorted,
        source=source,
        content_share=1.0 if view.content is None else view.content.share,
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
