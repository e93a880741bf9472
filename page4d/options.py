"""Options of reconstruction, registration, export and evaluation, with their defaults."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, NonNegativeFloat, NonNegativeInt, PositiveInt

from page4d.choices import (
    CalibrationMatch,
    CalibrationResize,
    CameraMotion,
    DepthAlignment,
    DepthSize,
    EdgeFilter,
    ImageFormat,
    LengthUnit,
    MaskMeaning,
    Pinhole,
    PointLayer,
    PointSource,
    Poses,
    Precision,
    Preprocess,
    Registration,
    UpAxis,
)
from page4d.conventions import MAX_FPS, METRIC_DEPTH_SCALE
from page4d.errors import OPTION, UsageError, listed, shortened
from page4d.io.atomic import parse_pin, parse_sha256
from page4d.io.json_records import config_record

_MEMORY_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

MIN_LONG_SIDE, MAX_LONG_SIDE = 8, 65_536
"""Range of the long side of a network's images in pixels: up to 16 times that of the largest videos."""

_LongSide = Annotated[int, Field(ge=MIN_LONG_SIDE, le=MAX_LONG_SIDE)]
_PositiveFinite = Annotated[float, Field(gt=0, lt=math.inf)]
_FrameRate = Annotated[float, Field(gt=0, le=MAX_FPS)]
_Seed = Annotated[NonNegativeInt, Field(lt=2**63)]
_Focal = Annotated[str, BeforeValidator(lambda value: f"{value:g}" if isinstance(value, int | float) else value)]

MAX_REGISTRATION_INSTANTS = 100
"""Default number of instants that registration samples: 25 suffice for a rig of four views, more add little."""


def parse_memory(text: str) -> int | None:
    """Parse an amount of memory such as `20GB` into bytes; `auto` is None.

    Raises:
        UsageError: if it is neither.
    """
    if text == "auto":
        return None
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?) ?(" + "|".join(_MEMORY_UNITS) + ")", text)
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"⟨memory_bytes={shortened(text)}⟩ is not an amount of memory",
            f"give auto or such as 20GB ({', '.join(_MEMORY_UNITS)})",
        )
    return int(float(match[1]) * _MEMORY_UNITS[match[2]])


_Memory = Annotated[
    Annotated[int, Field(gt=0, lt=2**63)] | None,
    BeforeValidator(lambda value: parse_memory(value) if isinstance(value, str) else value),
]


@config_record("scene options")
class SceneOptions:
    """How to read a scene folder; the defaults use everything that is there.

    `views` is a number (the first ones) or names. `sync` is a file or one of auto, none, audio, timecode and people.
    `frames` is (start, stop) on the common timeline. `calibration_unit` makes a calibration of unknown unit metric.
    `depth` is a folder of measured depth maps with `depth_levels` levels per unit of the calibration.
    """

    views: PositiveInt | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sync: Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)] = "auto"
    fps: _FrameRate | None = None
    image_fps: _FrameRate | None = None
    stride: PositiveInt = 1
    frames: tuple[int | None, int | None] = (None, None)
    max_frames: PositiveInt | None = None
    calibration: Path | None = None
    calibration_unit: LengthUnit | None = None
    calibration_match: CalibrationMatch = CalibrationMatch.NAME
    calibration_resize: CalibrationResize | None = None
    masks: Path | None = None
    mask_meaning: MaskMeaning = MaskMeaning.DYNAMIC
    depth: Path | None = None
    depth_levels: _PositiveFinite = METRIC_DEPTH_SCALE
    allow_damaged: bool = False
    max_megapixels: _PositiveFinite = 64.0

    def __post_init__(self) -> None:
        if self.calibration_unit is not None and self.calibration is None:
            raise UsageError("⟨calibration_unit⟩ without ⟨calibration⟩", "pass the calibration file too")

    def check_resize(self, intrinsics: Path | None = None) -> None:
        """Refuse `calibration_resize` without a calibration, or a file of lenses, that it could apply to.

        Raises:
            UsageError: if there is none.
        """
        if self.calibration_resize is not None and self.calibration is None and intrinsics is None:
            raise UsageError("⟨calibration_resize⟩ without ⟨calibration⟩", "pass the calibration file too")


@config_record("network options")
class NetworkOptions:
    """Which network runs, and where: its weights (None: the bundled ones), or an untrained network of a preset.

    `weights` is a file, the name of a public checkpoint, or `hf:org/name[@revision][:file]`; the last two are fetched
    once. `sha256` is the hash that the given file, or that of the hub, must have.
    """

    weights: str | Path | None = None
    sha256: Annotated[str, AfterValidator(parse_sha256)] | None = None
    untrained: bool = False
    preset: str = "mv-small"
    device: str = "auto"
    precision: Precision = Precision.AUTO

    def __post_init__(self) -> None:
        if self.weights is not None and self.untrained:
            raise UsageError("⟨weights⟩ and ⟨untrained⟩ contradict each other", "give one of them")
        parse_pin(self.weights, self.sha256)


@config_record("point options")
class PointOptions:
    """Filters of a point cloud. Zero switches `voxel_size` (in units of the scene) and `max_points` off.

    `edge_angle_deg`, of the slant filter, is the largest angle between a surface normal and the viewing ray; 90 keeps
    all points. A point stays if `min_views` views see it there, its own included, and no more views see through it
    than confirm it; 0 keeps all, None chooses by the rig. `outliers` removes points that are far from their
    neighbours, `normals` adds surface normals; both need Open3D.
    """

    source: PointSource = PointSource.DEPTH
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    edges: EdgeFilter = EdgeFilter.SLANT
    edge_angle_deg: Annotated[float, Field(ge=1, le=90)] = 85.0
    min_views: Annotated[NonNegativeInt, Field(le=256)] | None = None
    voxel_size: Annotated[NonNegativeFloat, Field(lt=1e12)] = 0.0
    outliers: bool = False
    normals: bool = False
    max_points: Annotated[NonNegativeInt, Field(lt=2**31)] = 0


@config_record("registration settings")
class RegisterSettings:
    """Settings of the registration of a rig from evidence.

    `register` is the evidence. `focal` are focal lengths: `1500` (pixels of the original images, all views),
    `cam01=1500,cam02=1480`, or `26mm` (equivalent of 35 mm film). `intrinsics` is a calibration file whose poses are
    not used. `scale_from` is a known length: `cam01-cam02=1.25m` or `person=1.75m`. At most `max_instants` instants
    are sampled.
    """

    register: Registration = Registration.AUTO
    focal: _Focal | None = None
    intrinsics: Path | None = None
    scale_from: str | None = None
    max_instants: PositiveInt = MAX_REGISTRATION_INSTANTS
    seed: _Seed = 0

    def __post_init__(self) -> None:
        _check_lenses(self.focal, self.intrinsics)


def _check_lenses(focal: str | None, intrinsics: Path | None) -> None:
    if focal is not None and intrinsics is not None:
        raise UsageError("⟨focal⟩ and ⟨intrinsics⟩ contradict each other", "give one of them")


@config_record("settings")
class ReconstructSettings:
    """Settings of a run apart from the scene's and the network's.

    `long_side` is in network pixels; None uses the network's own size, or that of `preprocess`. `depth_size` is the
    long side of depth maps and clouds, at most that of the videos: depth is upsampled along color edges, and refined
    by the pictures where the cameras are known. `chunk` instants are predicted together, and neighbouring chunks
    share `overlap` of them; None chooses the longest chunk that is useful and fits into `memory_bytes` (a number or
    such as "20GB"), or into free memory. A resumed run keeps its plan. `poses` applies with a calibration,
    `camera_motion` to predicted cameras. `register`, `focal` and `intrinsics` are those of `RegisterSettings`; they
    apply without a calibration. `scale_from` is a known distance between two cameras, such as `cam01-cam02=1.25m`,
    or the height of the people (`person=1.75m`). `check_calibration` compares the calibration of static cameras with
    people, if the pose model was fetched. `refine` runs bundle adjustment and multi-view stereo. `fuse` gives static
    parts of static cameras one depth from several instants, and compares the views. `layers` also writes what does
    not move, once for all instants, and the moving points of every instant. `mesh` fuses the depth maps of each
    instant into a mesh of voxels of `mesh_voxel` (in units of the scene; 0: from the image resolution); with
    `layers` one mesh of what does not move, and the moving parts of each instant.
    `motion` measures the velocity of every point, from optical flow of the videos at a long side of at most
    `motion_size`; `tracks` follows points, at most as many at a time (0: none), and `tracks2d` lifts the 2D tracks of
    other trackers, a folder with one file per view. With `strict_seams` a chunk that does not fit its predecessor
    ends the run. `seed` fixes all random choices.
    """

    long_side: _LongSide | None = None
    depth_size: _LongSide | DepthSize = DepthSize.AUTO
    preprocess: Preprocess = Preprocess.NATIVE
    chunk: PositiveInt | None = None
    overlap: NonNegativeInt = 2
    memory_bytes: _Memory = None
    poses: Poses = Poses.INPUT
    camera_motion: CameraMotion = CameraMotion.AUTO
    register: Registration = Registration.AUTO
    focal: _Focal | None = None
    intrinsics: Path | None = None
    scale_from: str | None = None
    check_calibration: bool = True
    refine: bool = True
    fuse: bool = True
    points: PointOptions = PointOptions()
    layers: bool = False
    mesh: bool = False
    mesh_voxel: Annotated[NonNegativeFloat, Field(lt=1e12)] = 0.0
    motion: bool = False
    motion_size: _LongSide = 1280
    tracks: Annotated[NonNegativeInt, Field(le=1_000_000)] = 0
    tracks2d: Path | None = None
    preview: bool = True
    strict_seams: bool = False
    seed: _Seed = 0

    def __post_init__(self) -> None:
        if self.long_side is not None and self.preprocess is not Preprocess.NATIVE:
            raise UsageError(
                f"⟨long_side={self.long_side}⟩ with ⟨preprocess={self.preprocess}⟩, which has a fixed size",
                "give one of them",
            )
        if self.chunk is not None and self.overlap > self.chunk // 2:
            raise UsageError(
                f"⟨chunk={self.chunk}⟩ with ⟨overlap={self.overlap}⟩", "give a chunk of at least twice the overlap"
            )
        if self.mesh_voxel > 0 and not self.mesh:
            raise UsageError(f"⟨mesh_voxel={self.mesh_voxel:g}⟩ without ⟨mesh⟩", "pass ⟨mesh=True⟩ too")
        if self.tracks2d is not None and not self.motion:
            raise UsageError("⟨tracks2d⟩ without ⟨motion⟩", "pass ⟨motion=True⟩ too")
        if self.tracks and not self.motion:
            raise UsageError(f"⟨tracks={self.tracks}⟩ without ⟨motion⟩", "pass ⟨motion=True⟩ too")
        _check_lenses(self.focal, self.intrinsics)
        lens = "focal" if self.focal is not None else "intrinsics" if self.intrinsics is not None else None
        if lens is not None and self.register in (Registration.NETWORK, Registration.OFF):
            raise UsageError(f"⟨{lens}⟩ with ⟨register={self.register}⟩", "leave one of them out")

    @property
    def registration(self) -> RegisterSettings:
        """Settings of the registration of the rig."""
        return RegisterSettings(
            register=self.register,
            focal=self.focal,
            intrinsics=self.intrinsics,
            scale_from=self.scale_from,
            seed=self.seed,
        )


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Split options by name into the fields of `SceneOptions`, `NetworkOptions` and `ReconstructSettings`.

    Raises:
        UsageError: naming an option that none of them has.
    """
    kinds = (SceneOptions, NetworkOptions, ReconstructSettings)
    records = [{field.name for field in fields(kind)} for kind in kinds]
    unknown = sorted(options.keys() - set().union(*records))
    if unknown:
        raise UsageError(f"no option is called '{unknown[0]}'", "see help(page4d.reconstruct)")
    scene, network, run = ({name: value for name, value in options.items() if name in names} for names in records)
    return scene, network, run


OPTION_NAMES = {
    "long_side": "size",
    "memory_bytes": "memory",
    "camera_motion": "cameras",
    "max_megapixels": "max-pixels",
    "calibration_resize": "calib-resize",
    "check_calibration": "check",
    "source": "points-from",
    "edge_angle_deg": "edge-angle",
    "voxel_size": "voxel",
    "target": "to",
    "folder": "to",
    "published_as": "as",
    "scalars": "set",
    "configs": "config",
}
"""Names of command-line options that differ from their field's; elsewhere dashes replace underscores."""


def option_name(field: str) -> str:
    """Return the command-line option of a settings field, without dashes in front."""
    return OPTION_NAMES.get(field, field.replace("_", "-"))


def in_options(text: str) -> str:
    """Write the options in a message as the command line, and the files of an output, name them."""
    return OPTION.sub(_as_option, text)


def _as_option(option: re.Match[str]) -> str:
    field, value = option.groups()
    if field == "existing":
        return f"--{value}"
    name = f"--{'no-' if value == 'False' else ''}{option_name(field)}"
    return name if value in (None, "True", "False") else f"{name} {value}"


def describe_settings(scene: SceneOptions, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Return all settings as JSON, as `run.json` records them."""
    document: dict[str, Any] = {}
    for record in (scene, settings):
        document.update(json.loads(json.dumps(asdict(record), default=str)))
    document["points"]["seed"] = settings.seed  # where version 0.1 recorded it
    return document


MAX_IMAGE_SIDE = 16_384
"""A picture of this side takes 0.8 GB in memory; OpenCV warps pictures of up to 32,767 px."""


@config_record("export options")
class ExportSettings:
    """What is exported, and how; None means what the format needs.

    `scene` is the folder of the run's videos. `instants` is (start, stop, step) and `views` are names; `hold_out` are
    views for testing. `max_points` limits the points (0: all; the scope is the format's), `voxel` (in units of the
    run, 0: off) thins clouds. `image_size` is the long side of pictures, `pinhole_focal` the focal length of
    `common`, both in pixels. `scale` multiplies all lengths; None chooses it for formats that need a certain size.
    `text` writes text instead of binary files, `split` one file per instant, `animated` all instants in one file;
    `per_instant` writes a model per instant.
    """

    scene: Path | None = None
    instants: tuple[int | None, int | None, PositiveInt] = (None, None, 1)
    views: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    hold_out: tuple[str, ...] = ()
    per_instant: bool = False
    max_points: Annotated[NonNegativeInt, Field(lt=2**31)] | None = None
    voxel: Annotated[NonNegativeFloat, Field(lt=1e12)] = 0.0
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    only: PointLayer = PointLayer.ALL
    seed: Annotated[NonNegativeInt, Field(lt=2**63)] = 0
    images: bool = True
    image_format: ImageFormat | None = None
    image_size: Annotated[int, Field(ge=8, le=MAX_IMAGE_SIDE)] | None = None
    pinhole: Pinhole | None = None
    pinhole_focal: _PositiveFinite | None = None
    up: UpAxis = UpAxis.AUTO
    scale: Annotated[float, Field(ge=1e-9, le=1e9)] | None = None
    text: bool = False
    split: bool = False
    animated: bool = False

    def __post_init__(self) -> None:
        if self.pinhole_focal is not None and self.pinhole not in (None, Pinhole.COMMON):
            raise UsageError(
                f"⟨pinhole_focal⟩ with ⟨pinhole={self.pinhole}⟩",
                "give ⟨pinhole=common⟩, or leave the focal length out",
            )
        if not self.images and self.scene is not None:
            raise UsageError("⟨scene⟩ and ⟨images=False⟩ contradict each other", "give one of them")


def settings_from(options: dict[str, Any]) -> ExportSettings:
    """Return settings from keywords; a name is a list of one view, and `instants` may be a range.

    Raises:
        UsageError: if there is no such option, or a value is not valid.
    """
    known = {field.name for field in fields(ExportSettings)}
    if unknown := sorted(options.keys() - known):
        raise UsageError(f"no option of an export is called '{unknown[0]}'", f"give {listed(sorted(known), 40)}")
    given = dict(options)
    for name in ("views", "hold_out"):
        if isinstance(given.get(name), str):
            given[name] = (given[name],)
    instants = given.get("instants")
    if isinstance(instants, range):
        given["instants"] = (instants.start, instants.stop, instants.step)
    elif isinstance(instants, list):  # of indices, in other functions
        raise UsageError("instants is a list", "give a range, or (start, stop, step)")
    return ExportSettings(**given)


DEFAULT_ALIGNMENTS = tuple(kind for kind in DepthAlignment if kind is not DepthAlignment.SCALE_SHIFT_ADAM)
"""All alignments but the published fit by gradient descent, which takes minutes on a long capture."""

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@config_record("evaluation")
class EvaluationSettings:
    """Parameters of an evaluation. Confidence is evaluated under the first alignment.

    `alignments` are by default all but the slow one, of which the first is metric, without any scale, where lengths
    of result and truth are metres. True depth from `max_depth` on is ignored. `threshold` is the distance of the
    F-score (default: 5 cm, or 1 % of the median true depth if the truth is not metric), computed from
    `points_per_instant` random points per direction. `fps` is the frame rate of a truth that does not record it.
    """

    alignments: Annotated[tuple[DepthAlignment, ...], Field(min_length=1)] | None = None
    max_depth: _Positive | None = None
    threshold: _Positive | None = None
    points_per_instant: PositiveInt = 5_000
    fps: Annotated[float, Field(gt=0, le=MAX_FPS)] | None = None
    seed: int = 0
