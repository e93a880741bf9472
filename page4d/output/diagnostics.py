"""Diagnostics in `run.json`: seams between chunks, camera motion, and residuals of a calibration."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from page4d.io.json_records import FileModel, readable

Name = Annotated[str, BeforeValidator(lambda value: readable(value) if isinstance(value, str) else value)]
Count = Annotated[int, Field(ge=0)]


class TransformRecord(FileModel):
    """The similarity x -> scale * rotation @ x + translation that brought a chunk into the world."""

    scale: float = Field(gt=0.0)
    rotation: list[list[float]]
    translation: tuple[float, float, float]


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


class DomainRecord(FileModel):
    """How far a chunk's footage is from the network's training set.

    `indicators` are in units of their limits, by name; None is beyond any number. `camera_disagreement_deg` is the
    median angle between rotations of pairs of the network's cameras and of calibrated or registered ones; None if
    they were not compared.
    """

    indicators: dict[str, float | None] = Field(default_factory=dict)
    camera_disagreement_deg: float | None = Field(default=None, ge=0.0)


class ChunkRecord(FileModel):
    """Instants `start` to before `stop`; the first `overlap` of them are shared with the previous chunk.

    `empty_frames` counts, for every view, the frames written by this chunk that have no pixel with depth. `refined`
    are the parts of cameras ("poses", "focal") whose refinement held-out evidence supports; the others are the
    network's. None without such a comparison. `domain` is None without indicators and without known cameras.
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
