"""Keyword arguments of the functions of page4d, by name and type, for editors and type checkers.

Written by `make golden` from the settings in `page4d/options.py`, which have the defaults and check the values.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from page4d import choices
from page4d.options import PointOptions


class SceneKeywords(TypedDict, total=False):
    """Options of `open_scene`."""

    views: int | Sequence[str] | str | None
    sync: str | Path
    fps: float | None
    image_fps: float | None
    stride: int
    frames: tuple[int | None, int | None] | str
    max_frames: int | None
    calibration: Path | str | None
    calibration_unit: choices.LengthUnit | str | None
    calibration_match: choices.CalibrationMatch | str
    calibration_resize: choices.CalibrationResize | str | None
    again: Sequence[str] | str
    masks: Path | str | None
    mask_meaning: choices.MaskMeaning | str
    depth: Path | str | None
    depth_levels: float | None
    allow_damaged: bool
    max_megapixels: float


class RigKeywords(SceneKeywords, total=False):
    """Options of the scene and of the cameras of a rig."""

    register: choices.Registration | str
    focal: str | float | None
    intrinsics: Path | str | None
    scale_from: str | None
    world: choices.WorldFrame | str
    up: choices.UpAxis | str
    floor_at: Path | str | None
    seed: int


class ReconstructKeywords(RigKeywords, total=False):
    """Options of `reconstruct`."""

    weights: str | Path | None
    sha256: str | None
    untrained: bool
    preset: str
    device: str
    precision: choices.Precision | str
    long_side: int | None
    depth_size: int | choices.DepthSize | str
    preprocess: choices.Preprocess | str
    chunk: int | str | None
    overlap: int | None
    memory_bytes: int | str | None
    poses: choices.Poses | str
    camera_motion: choices.CameraMotion | str
    check_calibration: bool
    refine: bool
    fuse: bool
    bodies: bool
    points: PointOptions
    layers: bool
    mesh: bool
    mesh_voxel: float
    motion: bool
    motion_size: int
    tracks: int
    tracks2d: Path | str | None
    preview: bool
    strict_seams: bool


class RegisterKeywords(RigKeywords, total=False):
    """Options of `register`."""

    max_instants: int


class CalibrateKeywords(SceneKeywords, total=False):
    """Options of `calibrate`."""

    board: str
    lenses: Path | str | None
    lens_model: choices.LensModel | str
    intrinsics: Path | str | None
    floor_at: int | Path | str | None
    up: choices.UpAxis | str


class ExportKeywords(TypedDict, total=False):
    """Options of `export`."""

    scene: Path | str | None
    instants: tuple[int | None, int | None, int] | str | range
    views: Sequence[str] | str | None
    hold_out: Sequence[str] | str
    per_instant: bool
    max_points: int | None
    voxel: float
    min_confidence: float
    only: choices.PointLayer | str
    seed: int
    images: bool
    image_format: choices.ImageFormat | str | None
    image_size: int | None
    pinhole: choices.Pinhole | str | None
    pinhole_focal: float | None
    up: choices.UpAxis | str
    scale: float | str | None
    text: bool
    split: bool
    animated: bool


class EvaluateKeywords(TypedDict, total=False):
    """Options of `evaluate`."""

    alignments: Sequence[choices.DepthAlignment | str] | None
    max_depth: float | None
    threshold: float | None
    points_per_instant: int
    fps: float | None
    seed: int
