"""Options of reconstruction, registration, export and evaluation, with their defaults.

Each field carries its option of the command line. Values that are text have the same forms in Python, in
configuration files and on the command line.
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, NonNegativeFloat, NonNegativeInt, PositiveInt

from page4d import choices
from page4d.conventions import MAX_FPS
from page4d.errors import OPTION, UsageError, did_you_mean, shortened
from page4d.io.atomic import parse_pin, parse_sha256
from page4d.io.json_records import config_record

_MEMORY_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

MIN_LONG_SIDE, MAX_LONG_SIDE = 8, 65_536
"""Range of the long side of a network's images in pixels: up to 16 times that of the largest videos."""

SCENE = "Scene"
RIG = "Calibration and cameras"
NETWORK = "Network"
OUTPUT = "Output"
SELECTION = "Selection"
POINTS = "Points"


@dataclass(frozen=True)
class Option:
    """An option of the command line, in the annotation of the parameter, or by `option` the field, that it sets.

    `panel` is its heading in the help, `expert` options are in the complete help only. `name` is needed where it is
    not the field's with dashes for underscores ("no-..." for a flag that is on by default), `metavar` where the type
    does not determine the form of the value. `also` is a second name, with its dashes. An option that `is_list` takes
    values separated by commas. The help names other options as messages do.
    """

    help: str
    panel: str = "Options"
    metavar: str = ""
    name: str = ""
    also: str = ""
    expert: bool = False
    is_list: bool = False


_OPTION = "option"
_Values = ParamSpec("_Values")


def _in_field(record: Callable[_Values, Option]) -> Callable[Concatenate[Any, _Values], Any]:
    return lambda default, /, *values, **named: field(default=default, metadata={_OPTION: record(*values, **named)})


option = _in_field(Option)
"""Return a field of a settings record with a default, and an `Option` of the other values."""


def text_form(parse: Callable[[str], object]) -> BeforeValidator:
    """Return a validator that parses text and passes other values on to those of the type."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


PositiveFinite = Annotated[float, Field(gt=0, lt=math.inf)]
FrameRate = Annotated[float, Field(gt=0, le=MAX_FPS)]
_LongSide = Annotated[int, Field(ge=MIN_LONG_SIDE, le=MAX_LONG_SIDE)]
VoxelSize = Annotated[NonNegativeFloat, Field(lt=1e12)]
Seed = Annotated[NonNegativeInt, Field(lt=2**63), Option("Random seed.", OUTPUT, expert=True)]

MAX_REGISTRATION_INSTANTS = 100
"""Default number of instants that registration samples: 25 suffice for a rig of four views, more add little."""


_MAX_DIGITS = 9
_INTEGER = re.compile(rf"[+-]?[0-9]{{1,{_MAX_DIGITS}}}")


def parse_count(text: str) -> int:
    """Parse a number of at most nine digits; 0 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def parse_range(text: str) -> list[int | None]:
    """Parse whole numbers separated by colons, of which each may be left out; [] for any other text."""
    parts = [part.strip() for part in text.split(":")]
    if not all(_INTEGER.fullmatch(part) for part in parts if part):
        return []
    return [int(part) if part else None for part in parts]


def parse_names(text: str) -> tuple[str, ...]:
    """Parse `a,b` into names, each once.

    Raises:
        ValueError: if a name is empty.
    """
    return tuple(dict.fromkeys(_parse_names(text)))


def _parse_views(text: str) -> int | tuple[str, ...]:
    """Parse `4` as the first four views and `a,b` as names."""
    if _INTEGER.fullmatch(text.strip()) is None:
        return _parse_names(text)
    if (number := int(text)) < 1:
        raise ValueError(f"{number} is not in the range x>=1")
    return number


def _parse_names(text: str) -> tuple[str, ...]:
    """Parse `a,b` as names."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("give names separated by commas")
    return names


def _parse_frames(text: str) -> tuple[int | None, ...]:
    """Parse `A:B`, `A:` or `:B`."""
    if len(numbers := parse_range(text)) != 2:
        hint = "; ⟨stride⟩ takes every Nth instant" if len(numbers) == 3 else ""
        raise ValueError(in_options(f"'{shortened(text)}' is not of the form A:B{hint}"))
    return tuple(numbers)


def _span(given: object) -> object:
    """Return a range as (start, stop): its items would be taken for these if there are two."""
    if isinstance(given, range) and given.step != 1:
        raise ValueError(in_options("give (start, stop); ⟨stride⟩ takes every Nth instant"))
    return (given.start, given.stop) if isinstance(given, range) else given


def _parse_chunk(text: str) -> int | None:
    """Parse a number of instants; `auto` is None."""
    if text == "auto":
        return None
    if not (number := parse_count(text)):
        raise ValueError(f"'{shortened(text)}' is neither auto nor a positive number")
    return number


def _parse_depth_size(text: str) -> int | choices.DepthSize:
    """Parse the resolution of depth: a name, or a long side in pixels."""
    if text in list(choices.DepthSize):
        return choices.DepthSize(text)
    if not MIN_LONG_SIDE <= (number := parse_count(text)) <= MAX_LONG_SIDE:
        names = ", ".join(choices.DepthSize)
        raise ValueError(f"'{shortened(text)}' is neither one of {names} nor {MIN_LONG_SIDE} to {MAX_LONG_SIDE} px")
    return number


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


CalibResize = Annotated[
    choices.CalibrationResize | None,
    Option(
        "How videos of another size were made of calibrated images. scale: resized. crop-center: equal margins cut "
        "off. pad-center: resized, bars added.",
        RIG,
        name="calib-resize",
    ),
]
_SYNC_NEEDS = {
    choices.SyncMode.PEOPLE: " (with 'page4d weights get people')",
    choices.SyncMode.MOTION: " (with ⟨calibration⟩)",
}
_SYNC_MODES = ", ".join(mode + _SYNC_NEEDS.get(mode, "") for mode in choices.SyncMode if mode != "auto")
_Intrinsics = Annotated[
    Path | None, Option("Lenses from a calibration whose poses are not used.", RIG, metavar="FILE")
]
_Up = Annotated[choices.UpAxis, Option("Axis that points up in an upright world. auto: z.", RIG, "AXIS")]
WEIGHTS_METAVAR = "NAME|hf:...|FILE"
WEIGHTS_HELP = (
    "A name of 'page4d weights list', a file, or hf:org/name@revision:file of the Hugging Face hub (revision and "
    "file may be left out). Fetched and converted once."
)
NETWORK_PRESETS = (
    "mv-tiny, mv-small, mv-demo, mv-vit, mv-swin, mv-twins, mv-navit, mv-large, vggt, page4d, page4d-mask, pi3, "
    "da3-small, da3-base, da3-large, da3-mono, da3-metric, da3-giant, da3-nested, vggt-omega or pi3x"
)
"""Names of the networks in help texts, which import no torch."""

Sha256 = Annotated[
    Annotated[str, AfterValidator(parse_sha256)] | None,
    Option("Refuse weights whose SHA-256 is another one.", NETWORK, "HEX", expert=True),
]
Device = Annotated[str, Option("Device of the computation.", NETWORK, "auto|cpu|cuda|cuda:N")]
NetworkPrecision = Annotated[
    choices.Precision, Option("auto: bf16 on a GPU that supports it, else fp32.", NETWORK, expert=True)
]
AllowDamaged = Annotated[bool, Option("Use the intact frames of damaged videos.", SCENE, expert=True)]
MaxPixels = Annotated[
    PositiveFinite, Option("Refuse frames with more megapixels.", SCENE, "MPX", name="max-pixels", expert=True)
]


@config_record("scene options")
class SceneOptions:
    """How to read a scene folder; the defaults use everything that is there.

    `views` is a number (the first ones) or names, `frames` is (start, stop) on the common timeline.
    """

    views: Annotated[
        PositiveInt | Annotated[tuple[str, ...], Field(min_length=1)] | None, text_form(_parse_views)
    ] = option(
        None,
        "The first N views, or names (of files, without suffix) such as cam01,cam03.",
        SCENE,
        "N|NAMES",
        is_list=True,
    )
    sync: Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)] = option(
        "auto",
        f"Clocks of the views: a file such as sync.json, or {_SYNC_MODES}, or auto: sync.json, else time codes, "
        "else frame numbers, else a common start.",
        SCENE,
        "FILE|MODE",
    )
    fps: FrameRate | None = option(None, "Instants per second. Default: the lowest frame rate.", SCENE, "FPS")
    image_fps: FrameRate | None = option(None, "Frame rate of image folders. Default: 30.", SCENE, "FPS", expert=True)
    stride: PositiveInt = option(1, "Use every Nth instant.", SCENE)
    frames: Annotated[tuple[int | None, int | None], text_form(_parse_frames), BeforeValidator(_span)] = option(
        (None, None), "Instants A to B - 1 of the timeline.", SCENE, "A:B"
    )
    max_frames: PositiveInt | None = option(
        None, "Refuse captures with more instants. Default: 100000.", SCENE, expert=True
    )
    calibration: Path | None = option(
        None,
        "Calibration: a file of Qualisys, Pose2Sim, Anipose, OpenCV, Kalibr, nerfstudio and others, a COLMAP "
        "model, or a folder with one.",
        RIG,
        "FILE",
    )
    calibration_unit: choices.LengthUnit | None = option(
        None, "Unit of length of a calibration whose format has none.", RIG, expert=True
    )
    calibration_match: choices.CalibrationMatch = option(
        choices.CalibrationMatch.NAME, "Pair cameras and views by name or in order.", RIG, expert=True
    )
    calibration_resize: CalibResize = None
    again: Annotated[tuple[str, ...], text_form(_parse_names)] = option(
        (),
        "Views that moved since ⟨calibration⟩: register them in its world, with its lenses.",
        RIG,
        "NAMES",
        is_list=True,
    )
    masks: Path | None = option(None, "Masks: <view>/*.png or <view>.mp4.", SCENE, "FOLDER")
    mask_meaning: choices.MaskMeaning = option(
        choices.MaskMeaning.DYNAMIC, "Meaning of mask pixels above half the maximum.", SCENE, expert=True
    )
    depth: Path | None = option(
        None,
        "Measured depth, instead of the network's: <view>/*.png (16 bits), *.npy or *.exr (float), or lossless "
        "gray16 <view>.mkv. Needs ⟨calibration⟩, unless ⟨weights⟩ names a network that takes depth, such as "
        "Pi3X.",
        SCENE,
        "FOLDER",
    )
    depth_levels: PositiveFinite | None = option(
        None,
        "Levels of measured depth per metre, or per unit of length if the scale is arbitrary. Default: 1000, for "
        "float 1.",
        SCENE,
        "X",
        expert=True,
    )
    allow_damaged: AllowDamaged = False
    max_megapixels: MaxPixels = 64.0

    def __post_init__(self) -> None:
        for name in ("calibration_unit", "again"):
            if getattr(self, name) and self.calibration is None:
                raise UsageError(f"⟨{name}⟩ without ⟨calibration⟩", "pass the calibration file too")
        if self.sync == choices.SyncMode.MOTION and self.calibration is None:
            raise UsageError(
                "⟨sync=motion⟩ without ⟨calibration⟩", "pass the calibration file too, or use ⟨sync=people⟩"
            )

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

    weights: str | Path | None = option(
        None, f"{WEIGHTS_HELP} Default: the bundled network mv-demo, for demonstrations.", NETWORK, WEIGHTS_METAVAR
    )
    sha256: Sha256 = None
    untrained: bool = option(False, "Run a network with random weights: THE VALUES ARE NOISE.", NETWORK, expert=True)
    preset: str = option(
        "mv-small", f"Network that ⟨untrained⟩ builds: {NETWORK_PRESETS}.", NETWORK, "NAME", expert=True
    )
    device: Device = "auto"
    precision: NetworkPrecision = choices.Precision.AUTO

    def __post_init__(self) -> None:
        if self.weights is not None and self.untrained:
            raise UsageError("⟨weights⟩ and ⟨untrained⟩ contradict each other", "give one of them")
        parse_pin(self.weights, self.sha256)


@config_record("point options")
class PointOptions:
    """Filters of a point cloud. Zero switches `voxel_size` (in units of the scene) and `max_points` off.

    None of `min_views` chooses by the rig. `outliers` and `normals` need Open3D.
    """

    min_confidence: Annotated[float, Field(ge=0, le=1)] = option(0.0, "Drop points below this confidence.", OUTPUT)
    edge_angle_deg: Annotated[float, Field(ge=1, le=90)] = option(
        85.0,
        "Drop points on surfaces seen at a larger angle from their normal (flying pixels); 90 keeps all.",
        OUTPUT,
        "DEG",
        "edge-angle",
        expert=True,
    )
    min_views: Annotated[NonNegativeInt, Field(le=256)] | None = option(
        None,
        "Views that must see a point where it is, its own included, and not fewer than see through it; 0 keeps "
        "all points. Default: 2, or 1 with two views, or 0 where the views do not agree.",
        OUTPUT,
        expert=True,
    )
    voxel_size: VoxelSize = option(
        0.0, "Keep one point per voxel of this side in run units; 0 keeps all.", OUTPUT, "SIZE", "voxel"
    )
    outliers: bool = option(False, "Remove statistical outliers from the clouds.", OUTPUT, expert=True)
    normals: bool = option(False, "Add surface normals to the clouds.", OUTPUT)
    max_points: Annotated[NonNegativeInt, Field(lt=2**31)] = option(
        0, "Maximum number of points per instant; 0 keeps all.", OUTPUT, expert=True
    )


@config_record("rig settings")
class _RigSettings:
    """What is known of the lenses of a rig, the evidence for its cameras, and the world of the result."""

    register: choices.Registration = option(
        choices.Registration.AUTO,
        "Evidence: body keypoints of people ('page4d weights get people'), texture ('page4d weights get texture' "
        "widens it), or both.",
        RIG,
        "auto|people|texture",
    )
    focal: Annotated[
        str | None, BeforeValidator(lambda value: f"{value:g}" if isinstance(value, int | float) else value)
    ] = option(
        None,
        "Focal length without a calibration, in pixels of the videos or in mm of 35 mm film; per view as VIEW=PX,... "
        "Default: that of the files, else estimated.",
        RIG,
        "PX|26mm",
    )
    intrinsics: _Intrinsics = None
    scale_from: str | None = option(
        None,
        "Metric scale from the distance between the cameras of views A and B (m, cm, mm, ft), or from the height of "
        "the people: person=1.75m.",
        RIG,
        "A-B=1.25m",
    )
    world: choices.WorldFrame = option(
        choices.WorldFrame.AUTO,
        "World of the cameras: upright on the floor (from people who stand or walk), calibration, or first-camera. "
        "auto: that of a calibration, else upright if people show it, else first-camera.",
        RIG,
        "MODE",
    )
    up: _Up = choices.UpAxis.AUTO
    floor_at: Path | None = option(
        None,
        "Points on the floor of an upright world: a table of point, view, x, y (pixels); columns X, Y, Z (metres) "
        "give its origin, axes and lengths.",
        RIG,
        "FILE",
        expert=True,
    )
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.focal is not None and self.intrinsics is not None:
            raise UsageError("⟨focal⟩ and ⟨intrinsics⟩ contradict each other", "give one of them")
        has_axis = self.up is not choices.UpAxis.AUTO
        asked = "⟨floor_at⟩" if self.floor_at is not None else f"⟨up={self.up}⟩" if has_axis else ""
        if asked and self.world in (choices.WorldFrame.CALIBRATION, choices.WorldFrame.FIRST_CAMERA):
            raise UsageError(f"{asked} with ⟨world={self.world}⟩", "leave one of them out")


@config_record("registration settings")
class RegisterSettings(_RigSettings):
    """Settings of the registration of a rig from evidence."""

    max_instants: PositiveInt = option(MAX_REGISTRATION_INSTANTS, "Number of instants that are sampled.", RIG)


@config_record("calibration settings")
class CalibrateSettings:
    """Settings of the calibration from a board: the board as text or as a file, and what is known of the lenses."""

    board: str = option(
        "",
        "The board: charuco:COLUMNSxROWS,SQUARE,MARKER,DICTIONARY (numbers of squares), such as "
        "charuco:7x5,30mm,22mm,4x4_50; chessboard:9x6,25mm (inner corners); aruco:5x7,40mm,10mm,apriltag_36h11 "
        "(markers, side, gap); or a file of Caliscope, OpenCV, Anipose, Pose2Sim or Kalibr.",
        RIG,
        "BOARD|FILE",
    )
    lenses: Path | None = option(
        None, "Videos of the board for the lens of each view, named like the views.", RIG, "FOLDER"
    )
    lens_model: choices.LensModel = option(choices.LensModel.BROWN_CONRADY, "Model of the distortion.", RIG)
    intrinsics: _Intrinsics = None
    floor_at: Annotated[
        int | Path | None, text_form(lambda text: int(text) if _INTEGER.fullmatch(text) else Path(text))
    ] = option(
        None,
        "Floor on which the world then stands: the instant at which the board lies on it, or a table of points "
        "on it with columns point, view, x, y (pixels), and X, Y, Z (metres) for a world of your own.",
        RIG,
        "INSTANT|FILE",
    )
    up: _Up = choices.UpAxis.AUTO

    def __post_init__(self) -> None:
        if self.intrinsics is not None and self.lenses is not None:
            raise UsageError("⟨lenses⟩ and ⟨intrinsics⟩ contradict each other", "give one of them")
        if isinstance(self.floor_at, int) and self.floor_at < 0:
            raise UsageError(f"⟨floor_at={self.floor_at}⟩ is no instant", "count instants from 0")
        if self.up is not choices.UpAxis.AUTO and self.floor_at is None:
            raise UsageError(
                f"⟨up={self.up}⟩ without ⟨floor_at⟩", "give the instant of the board on the floor, or points on it"
            )


@config_record("settings")
class ReconstructSettings(_RigSettings):
    """Settings of a run apart from the scene's and the network's.

    A resumed run keeps its plan. `register`, `focal` and `intrinsics` apply without a calibration. `mesh_voxel` is in
    units of the scene.
    """

    long_side: _LongSide | None = option(
        None, "Long side of the network's images in pixels. Default: that of its training.", NETWORK, name="size"
    )
    depth_size: Annotated[_LongSide | choices.DepthSize, text_form(_parse_depth_size)] = option(
        choices.DepthSize.AUTO,
        "Long side of depth maps and clouds in pixels, or video, network (theirs), or auto: 512 with known "
        "cameras and no ⟨long_side⟩, else network. Depth is upsampled along colour edges, and refined by the "
        "pictures where cameras are known.",
        OUTPUT,
        "NAME|N",
    )
    preprocess: choices.Preprocess = option(
        choices.Preprocess.NATIVE,
        "native: ⟨long_side⟩, without cropping or stretching. Others as in the published code: VGGT at 518 px, "
        "cropped or padded; Pi3 at 255,000 pixels per image.",
        NETWORK,
        expert=True,
    )
    chunk: Annotated[PositiveInt | None, text_form(_parse_chunk)] = option(
        None, "Instants per chunk; auto: up to 8, or 16 of known static cameras, as memory allows.", NETWORK, "auto|N"
    )
    overlap: NonNegativeInt | None = option(
        None,
        "Instants that neighbouring chunks share. Default: 1 with known cameras, which align chunks, else 2.",
        NETWORK,
        expert=True,
    )
    memory_bytes: Annotated[Annotated[int, Field(gt=0, lt=2**63)] | None, text_form(parse_memory)] = option(
        None,
        "Memory limit such as 20GB: of a GPU, or of the process; auto: the free memory.",
        NETWORK,
        "auto|SIZE",
        "memory",
    )
    poses: choices.Poses = option(
        choices.Poses.INPUT,
        "Cameras of the result with a calibration: the calibrated or the predicted ones.",
        RIG,
        expert=True,
    )
    camera_motion: choices.CameraMotion = option(
        choices.CameraMotion.AUTO,
        "Predicted cameras: one per view for the whole capture (static), or one per instant (moving); auto: "
        "measured per view from pixels. With a calibration of static cameras, moving: the rig moves as one.",
        RIG,
        name="cameras",
    )
    register: choices.Registration = option(
        choices.Registration.AUTO,
        "Cameras without a calibration: people (with 'page4d weights get people'), texture, network, "
        "or auto: people and texture where they determine cameras, else the network.",
        RIG,
        "MODE",
    )
    check_calibration: bool = option(
        True,
        "Compare the calibration of static cameras with people and texture; faults are warnings.",
        RIG,
        name="check",
        expert=True,
    )
    refine: bool = option(
        True, "Refine cameras and depth (bundle adjustment and multi-view stereo), if the network has matches.", RIG
    )
    fuse: bool = option(
        True,
        "Give static parts of static cameras one depth from several instants, and compare the depth of all views.",
        RIG,
        expert=True,
    )
    bodies: bool = option(
        True,
        "Bring the depth of people whom two or more known static cameras show to their body keypoints (with 'page4d "
        "weights get people').",
        RIG,
        expert=True,
    )
    points: PointOptions = PointOptions()
    layers: bool = option(False, "Also write the static points once, and the moving ones of each instant.", OUTPUT)
    mesh: bool = option(
        False,
        "Fuse the depth maps of each instant into a mesh (TSDF); with ⟨layers⟩, static surfaces once and moving "
        "ones of each instant.",
        OUTPUT,
    )
    mesh_voxel: VoxelSize = option(
        0.0, "Voxel size of the mesh; 0: from the image resolution.", OUTPUT, "SIZE", expert=True
    )
    motion: bool = option(
        False, "Measure the velocity of every point: velocity maps, and velocities in the clouds.", OUTPUT
    )
    motion_size: _LongSide = option(
        1280, "Maximum long side in pixels of the images whose optical flow is measured.", OUTPUT, expert=True
    )
    tracks: Annotated[NonNegativeInt, Field(le=1_000_000)] = option(
        0, "With ⟨motion⟩, follow points through the capture, at most N at a time; 0: none.", OUTPUT
    )
    tracks2d: Path | None = option(
        None,
        "With ⟨motion⟩, lift 2D tracks of other trackers: a folder of VIEW.npz (TAPIR, TAPNext, CoTracker).",
        OUTPUT,
        "DIR",
        expert=True,
    )
    preview: bool = option(True, "Write preview pictures and a video.", OUTPUT)
    strict_seams: bool = option(
        False, "Fail, instead of warning, if neighbouring chunks do not fit together.", NETWORK, expert=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_side is not None and self.preprocess is not choices.Preprocess.NATIVE:
            raise UsageError(
                f"⟨long_side={self.long_side}⟩ with ⟨preprocess={self.preprocess}⟩, which has a fixed size",
                "give one of them",
            )
        if self.chunk is not None and (self.overlap or 0) > self.chunk // 2:
            raise UsageError(
                f"⟨chunk={self.chunk}⟩ with ⟨overlap={self.overlap}⟩", "give a chunk of at least twice the overlap"
            )
        if self.mesh_voxel > 0 and not self.mesh:
            raise UsageError(f"⟨mesh_voxel={self.mesh_voxel:g}⟩ without ⟨mesh⟩", "pass ⟨mesh=True⟩ too")
        if self.tracks2d is not None and not self.motion:
            raise UsageError("⟨tracks2d⟩ without ⟨motion⟩", "pass ⟨motion=True⟩ too")
        if self.tracks and not self.motion:
            raise UsageError(f"⟨tracks={self.tracks}⟩ without ⟨motion⟩", "pass ⟨motion=True⟩ too")
        lens = "focal" if self.focal is not None else "intrinsics" if self.intrinsics is not None else None
        if lens is not None and self.register is choices.Registration.NETWORK:
            raise UsageError(f"⟨{lens}⟩ with ⟨register={self.register}⟩", "leave one of them out")

    @property
    def registration(self) -> RegisterSettings:
        """Settings of the registration of the rig."""
        names = {field.name for field in fields(RegisterSettings)} & vars(self).keys()
        return RegisterSettings(**{name: getattr(self, name) for name in names})


def given_settings(settings: object) -> ReconstructSettings:
    """Return the settings of a run that a caller gave, the defaults for None; refuse other types."""
    if not isinstance(settings, ReconstructSettings | None):
        raise UsageError(f"settings is of the type {type(settings).__name__}", "give ReconstructSettings", "settings")
    return settings or ReconstructSettings()


def split_options(options: Mapping[str, Any], function: str, *kinds: type[Any]) -> list[dict[str, Any]]:
    """Split the options of a function of page4d by name into the fields of records of these kinds.

    Raises:
        UsageError: naming an option that none of them has.
    """
    records = [{field.name for field in fields(kind)} for kind in kinds]
    unknown = sorted(options.keys() - set().union(*records))
    if unknown:
        hint = did_you_mean(unknown[0], set().union(*records), f"see help(page4d.{function})")
        raise UsageError(f"no option is called '{unknown[0]}'", hint)
    return [{name: value for name, value in options.items() if name in names} for names in records]


_COMMAND_OPTIONS = {"target": "to", "folder": "to", "published_as": "as", "configs": "config"}
"""Names of options in messages that are not fields of settings."""


def annotations_of(record: Any) -> dict[str, Any]:
    """Return the types of the fields of a settings record, annotated with their options."""
    options = {field.name: field.metadata.get(_OPTION) for field in fields(record)}
    hints = get_type_hints(record, include_extras=True)
    return {name: hints[name] if given is None else Annotated[hints[name], given] for name, given in options.items()}


@cache
def options_of(record: type) -> dict[str, Option]:
    """Return the options of a settings record by field, with those of the records in it."""
    found: dict[str, Option] = {}
    for name, annotation in annotations_of(record).items():
        if hasattr(annotation, "__dataclass_fields__"):
            found |= options_of(annotation)
        given = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Option)]
        found |= {name: given[-1]} if given else {}
    return found


def option_name(field: str) -> str:
    """Return the command-line option of a settings field, without dashes in front."""
    for record in (SceneOptions, NetworkOptions, ReconstructSettings):
        option = options_of(record).get(field)
        if option is not None and option.name:
            return option.name
    return _COMMAND_OPTIONS.get(field, field.replace("_", "-"))


def in_options(text: str) -> str:
    """Write the options in a message as the command line, and the files of an output, name them."""
    return OPTION.sub(_as_option, text)


def _as_option(option: re.Match[str]) -> str:
    field, value = option.groups()
    if field == "existing":
        return f"--{value}"
    name = f"--{'no-' if value == 'False' else ''}{option_name(field)}"
    return name if value in (None, "True", "False") else f"{name} {value}"


OPENING = ("views", "sync", "image_fps", "allow_damaged", "max_megapixels")
"""Options without which a scene may not open, or with other views and clocks."""

CALIBRATED = ("calibration", "calibration_unit", "calibration_match", "calibration_resize", "again")


def as_words(settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return options of a scene that are not their defaults as the command line has them, each after a space."""
    words = []
    for name in names:
        value = settings.get(name)
        value = tuple(value) if isinstance(value, list) else value
        if value not in (None, getattr(SceneOptions, name)):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words.append(in_options(f" ⟨{name}={shlex.quote(text)}⟩"))
    return "".join(words)


def describe_settings(scene: SceneOptions, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Return all settings as JSON, as `run.json` records them."""
    document: dict[str, Any] = {}
    for record in (scene, settings):
        document.update(json.loads(json.dumps(asdict(record), default=str)))
    document["points"]["seed"] = settings.seed  # where version 0.1 recorded it
    return document


MAX_IMAGE_SIDE = 16_384
"""A picture of this side takes 0.8 GB in memory; OpenCV warps pictures of up to 32,767 px."""

PICTURES = "Pictures"
WORLD = "World"
SPECIAL = "Options of some formats"


def parse_instants(text: str) -> tuple[int | None, int | None, int]:
    """Parse `A:B:S`, of which each part may be left out, or one instant `A`, into (start, stop, step).

    Raises:
        ValueError: if the text is of another form.
    """
    numbers = parse_range(text)
    if not (
        text.strip(": ") and 1 <= len(numbers) <= 3 and (len(numbers) < 3 or numbers[2] is None or numbers[2] > 0)
    ):
        raise ValueError(f"'{shortened(text)}' is not of the form A:B or A:B:S with S from 1 on")
    if len(numbers) == 1:
        first = numbers[0] or 0
        return first, None if first == -1 else first + 1, 1
    return numbers[0], numbers[1], (numbers[2] if len(numbers) == 3 else None) or 1


def _steps(given: object) -> object:
    """Return a range as (start, stop, step); a list is refused, which has indices in other functions."""
    if isinstance(given, list):
        raise UsageError("instants is a list", "give a range, or (start, stop, step)")
    return (given.start, given.stop, given.step) if isinstance(given, range) else given


def _parse_scale(text: str) -> float | None:
    """Parse a factor; `auto` is None."""
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise ValueError(f"'{shortened(text)}' is neither auto nor a number") from None


RunInstants = Annotated[
    tuple[int | None, int | None, PositiveInt],
    text_form(parse_instants),
    BeforeValidator(_steps),
    Option(
        "Every S-th of the instants A to B - 1, counted from 0; a single number is one instant.", SELECTION, "A:B:S"
    ),
]
RunViews = Annotated[
    Annotated[tuple[str, ...], Field(min_length=1)] | None,
    text_form(parse_names),
    Option("Views, separated by commas, such as cam01,cam03.", SELECTION, "NAMES", is_list=True),
]


@config_record("export options")
class ExportSettings:
    """What is exported, and how; None means what the format needs.

    `instants` is (start, stop, step). `max_points` has the scope of the format, `voxel` the unit of the run.
    """

    scene: Path | None = option(
        None,
        "Folder of the run's videos, for formats with pictures; those of another capture are refused.",
        SELECTION,
        "FOLDER",
    )
    instants: RunInstants = (None, None, 1)
    views: RunViews = None
    hold_out: Annotated[tuple[str, ...], text_form(parse_names)] = option(
        (), "Views for testing instead of training.", SELECTION, "NAMES", is_list=True
    )
    per_instant: bool = option(False, "colmap, nerfstudio: write one model per instant.", SPECIAL)
    max_points: Annotated[NonNegativeInt, Field(lt=2**31)] | None = option(
        None, "Largest number of points, drawn at random from every view; 0 keeps all. Default: by format.", POINTS
    )
    voxel: VoxelSize = option(0.0, "Keep one point per voxel of this side in run units; 0 keeps all.", POINTS, "SIZE")
    min_confidence: Annotated[float, Field(ge=0, le=1)] = option(0.0, "Drop points of lower confidence.", POINTS)
    only: choices.PointLayer = option(choices.PointLayer.ALL, "Static or moving points, or all.", POINTS)
    seed: Seed = 0
    images: bool = option(True, "colmap: write the model without pictures.", PICTURES, name="no-images")
    image_format: choices.ImageFormat | None = option(None, "File format of pictures. Default: by format.", PICTURES)
    image_size: Annotated[int, Field(ge=8, le=MAX_IMAGE_SIDE)] | None = option(
        None, "Long side of pictures in pixels; intrinsics are those of the resized pictures.", PICTURES
    )
    pinhole: choices.Pinhole | None = option(
        None,
        "Intrinsics of the pictures, which are warped to them. keep: those of the run. centered: principal point "
        "in the middle. common: also one focal length and size for all views. Default: by format.",
        PICTURES,
        "MODE",
    )
    pinhole_focal: PositiveFinite | None = option(
        None,
        "Focal length of ⟨pinhole=common⟩ in pixels. Default: the smallest without empty borders.",
        PICTURES,
        "PX",
        expert=True,
    )
    up: choices.UpAxis = option(
        choices.UpAxis.AUTO,
        "Axis of the run's world that points up. auto: that of an upright world, else the vertical of level cameras.",
        WORLD,
    )
    scale: Annotated[Annotated[float, Field(ge=1e-9, le=1e9)] | None, text_form(_parse_scale)] = option(
        None, "Factor for all lengths. auto: 1, or what the format needs.", WORLD, "auto|S"
    )
    text: bool = option(False, "colmap: write text instead of binary files.", SPECIAL)
    split: bool = option(False, "usd: write one file per instant.", SPECIAL)
    animated: bool = option(False, "glb: write all instants, not only the middle one.", SPECIAL)

    def __post_init__(self) -> None:
        if self.pinhole_focal is not None and self.pinhole not in (None, choices.Pinhole.COMMON):
            raise UsageError(
                f"⟨pinhole_focal⟩ with ⟨pinhole={self.pinhole}⟩",
                "give ⟨pinhole=common⟩, or leave the focal length out",
            )
        if not self.images and self.scene is not None:
            raise UsageError("⟨scene⟩ and ⟨images=False⟩ contradict each other", "give one of them")


DEFAULT_ALIGNMENTS = tuple(
    kind for kind in choices.DepthAlignment if kind is not choices.DepthAlignment.SCALE_SHIFT_ADAM
)
"""All alignments but the published fit by gradient descent, which takes minutes on a long capture."""

DEPTH = "Depth"


@config_record("evaluation")
class EvaluationSettings:
    """Parameters of an evaluation. Confidence is evaluated under the first alignment."""

    alignments: Annotated[tuple[choices.DepthAlignment, ...], Field(min_length=1)] | None = option(
        None,
        "Depth alignment, repeatable; tables show the first. Default: all but the slow scale-shift-adam; first "
        "metric, which is none, if the result has metres, else scale.",
        DEPTH,
        name="align",
    )
    max_depth: PositiveFinite | None = option(
        None, "Ignore pixels with a true depth of this value or more, in units of the truth.", DEPTH
    )
    threshold: PositiveFinite | None = option(
        None,
        "Distance threshold of the F-score, in units of the truth. Default: 5 cm, or 1 % of the median depth.",
        POINTS,
    )
    points_per_instant: PositiveInt = option(5_000, "Random points per instant and direction.", POINTS)
    fps: FrameRate | None = option(None, "Frame rate of a ground truth that does not record it.", SCENE, "FPS")
    seed: Seed = 0
