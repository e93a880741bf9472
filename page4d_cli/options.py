"""Options that several commands share, and parsers of their values."""

import re
from pathlib import Path
from typing import Annotated

import typer

from page4d.choices import CalibrationMatch, CalibrationResize, DepthSize, LengthUnit, MaskMeaning, Precision
from page4d.errors import InputError, UsageError, shortened
from page4d.options import MAX_LONG_SIDE, MIN_LONG_SIDE

INPUT = "Scene"
SELECTION = "Selection"
RIG = "Calibration and cameras"
NETWORK = "Network"
OUTPUT = "Output"
BATCH = "Several scenes, several devices"
TERMINAL = "Terminal"

_MAX_DIGITS = 9
_INTEGER = re.compile(rf"[+-]?[0-9]{{1,{_MAX_DIGITS}}}")

NETWORK_PRESETS = (
    "mv-tiny, mv-small, mv-demo, mv-vit, mv-swin, mv-twins, mv-navit, mv-large, vggt, page4d, page4d-mask, pi3, "
    "da3-small, da3-base, da3-large, da3-mono, da3-metric, da3-giant, da3-nested, vggt-omega or pi3x"
)
"""Names of the networks in help texts, which import no torch."""


WEIGHTS_METAVAR = "NAME|hf:...|FILE"
WEIGHTS_HELP = (
    "A name of 'page4d weights list', hf:org/name@revision:file of the Hugging Face hub (revision and file may be "
    "left out), or a file. Fetched and converted once."
)


def parse_views(text: str | None) -> int | tuple[str, ...] | None:
    """Parse `4` as the first four views and `a,b` as names."""
    if text is None:
        return None
    if _INTEGER.fullmatch(text.strip()) is None:
        names = tuple(name.strip() for name in text.split(","))
        if not all(names):
            raise typer.BadParameter("give a number, or names separated by commas", param_hint="'--views'")
        return names
    number = int(text)
    if number < 1:
        raise typer.BadParameter(f"{number} is not in the range x>=1", param_hint="'--views'")
    return number


def parse_frames(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A:B`, `A:` or `:B`."""
    if text is None:
        return None, None
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 2 or not all(_INTEGER.fullmatch(part) for part in parts if part):
        raise typer.BadParameter(f"'{shortened(text)}' is not of the form A:B", param_hint="'--frames'")
    start, stop = (int(part) if part else None for part in parts)
    return start, stop


def parse_instants(text: str | None) -> tuple[int | None, int | None, int]:
    """Parse `A:B:S`, of which each part may be left out, or one instant `A`, into (start, stop, step)."""
    if text is None:
        return None, None, 1
    parts = [part.strip() for part in text.split(":")]
    is_step = len(parts) < 3 or not parts[2] or parse_count(parts[2]) > 0
    if not (any(parts) and len(parts) <= 3 and is_step and all(_INTEGER.fullmatch(part) for part in parts if part)):
        raise typer.BadParameter(
            f"'{shortened(text)}' is not of the form A:B or A:B:S with S from 1 on", param_hint="'--instants'"
        )
    numbers = [int(part) if part else None for part in parts]
    if len(numbers) == 1:
        first = numbers[0] or 0
        return first, None if first == -1 else first + 1, 1
    return numbers[0], numbers[1], (numbers[2] if len(numbers) == 3 else None) or 1


def parse_names(text: str | None, option: str) -> tuple[str, ...] | None:
    """Parse `a,b` into names, each once."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise typer.BadParameter("give names separated by commas", param_hint=f"'{option}'")
    return names


def parse_chunk(text: str) -> int | None:
    """Parse a number of instants; `auto` is None."""
    if text == "auto":
        return None
    if not (number := parse_count(text)):
        raise typer.BadParameter(f"'{shortened(text)}' is neither auto nor a positive number", param_hint="'--chunk'")
    return number


def parse_depth_size(text: str) -> int | DepthSize:
    """Parse the resolution of depth: a name, or a long side in pixels."""
    if text in list(DepthSize):
        return DepthSize(text)
    if (number := parse_count(text)) is None or not MIN_LONG_SIDE <= number <= MAX_LONG_SIDE:
        names = ", ".join(DepthSize)
        raise typer.BadParameter(
            f"'{shortened(text)}' is neither one of {names} nor {MIN_LONG_SIDE} to {MAX_LONG_SIDE} px",
            param_hint="'--depth-size'",
        )
    return number


def parse_size(text: str, *, square: bool = False, max_side: int = 10**_MAX_DIGITS) -> tuple[int, int]:
    """Parse `WxH` into (height, width); with `square` also the long side `N` of NxN."""
    width, cross, height = text.strip().partition("x")
    sides = (width, width) if square and not cross else (height, width)
    rows, columns = map(parse_count, sides)
    if not (rows and columns and max(rows, columns) <= max_side):
        form = "WxH or N" if square else "WxH"
        limit = f" with sides of 1 to {max_side} px" if max_side < 10**_MAX_DIGITS else ""
        raise typer.BadParameter(f"'{shortened(text)}' is not of the form {form}{limit}", param_hint="'--size'")
    return rows, columns


def parse_count(text: str) -> int:
    """Parse a number of at most nine digits; 0 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def parse_precision(name: str | None) -> Precision | None:
    """Parse the name of a precision."""
    if name is None:
        return None
    if name not in list(Precision):
        raise UsageError(f"no precision is called '{name}'", "choose from auto, fp32, bf16")
    return Precision(name)


def read_text(path: Path, hint: str) -> str:
    """Read a text file.

    Raises:
        InputError: if it cannot be read, with the given hint.
    """
    from page4d.io import documents

    try:
        return documents.read_text(path)
    except documents.DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", hint) from error


Folder = Annotated[Path, typer.Argument(metavar="SCENE", help="Folder of synchronized videos or image folders.")]
Views = Annotated[
    str | None,
    typer.Option(
        metavar="N|NAMES",
        help="The first N views, or names separated by commas (file names without suffix), such as cam01,cam03.",
        rich_help_panel=INPUT,
    ),
]
Fps = Annotated[
    float | None,
    typer.Option(min=0.001, help="Instants per second; default: the lowest frame rate.", rich_help_panel=INPUT),
]
ImageFps = Annotated[
    float | None, typer.Option(min=0.001, help="Frame rate of image folders (default 30).", rich_help_panel=INPUT)
]
Stride = Annotated[int, typer.Option(min=1, help="Use every Nth instant.", rich_help_panel=INPUT)]
Frames = Annotated[
    str | None, typer.Option(metavar="A:B", help="Instants A to B - 1 of the timeline.", rich_help_panel=INPUT)
]
MaxFrames = Annotated[
    int | None,
    typer.Option(min=1, help="Refuse captures with more instants (default 100000).", rich_help_panel=INPUT),
]
Sync = Annotated[
    str,
    typer.Option(
        metavar="FILE|MODE",
        help="Clocks of the views: a file such as sync.json, or auto, none, audio, timecode or people (body "
        "keypoints, with 'page4d weights get people'). auto: sync.json, else time codes, else frame numbers, else a "
        "common start.",
        rich_help_panel=INPUT,
    ),
]
Masks = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Masks: <view>/*.png or <view>.mp4.", rich_help_panel=INPUT),
]
MaskUse = Annotated[
    MaskMeaning,
    typer.Option("--mask-meaning", help="Meaning of mask pixels above half the maximum.", rich_help_panel=INPUT),
]
Depth = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Measured depth: <view>/*.png (16 bits) or lossless gray16 <view>.mkv. It replaces the network and "
        "requires --calibration, unless --weights names a network that takes depth, such as Pi3X.",
        rich_help_panel=INPUT,
    ),
]
DepthLevels = Annotated[
    float,
    typer.Option(
        help="Levels of measured depth per metre, or per unit of length if the scale is arbitrary.",
        rich_help_panel=INPUT,
    ),
]
AllowDamaged = Annotated[
    bool, typer.Option("--allow-damaged", help="Use the intact frames of damaged videos.", rich_help_panel=INPUT)
]
MaxPixels = Annotated[
    float, typer.Option(metavar="MPX", help="Refuse frames with more megapixels.", rich_help_panel=INPUT)
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Calibration: Qualisys .qca.txt, Pose2Sim or Anipose .toml, intri.yml, transforms.json, COLMAP or "
        "cameras.json.",
        rich_help_panel=RIG,
    ),
]
CalibrationUnit = Annotated[
    LengthUnit | None,
    typer.Option(help="Unit of length of a calibration whose format has none.", rich_help_panel=RIG),
]
CalibrationPairing = Annotated[
    CalibrationMatch,
    typer.Option("--calibration-match", help="Pair cameras and views by name or in order.", rich_help_panel=RIG),
]
CalibResize = Annotated[
    CalibrationResize | None,
    typer.Option(
        help="Relation of the videos to the calibrated images, if their sizes differ. scale: the whole image was "
        "resized, such as 3840x2160 to 1920x1080. crop-center: equal margins were cut off, such as 1088x1920 to "
        "1080x1920; pixels are as large as before.",
        rich_help_panel=RIG,
    ),
]
Focal = Annotated[
    str | None,
    typer.Option(
        metavar="PX|26mm",
        help="Focal length without a calibration, in pixels of the videos or as the equivalent of 35 mm film; per "
        "view as VIEW=PX,... Default: that of the files, else estimated.",
        rich_help_panel=RIG,
    ),
]
Intrinsics = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Lenses from a calibration whose poses are not used.", rich_help_panel=RIG),
]
ScaleFrom = Annotated[
    str | None,
    typer.Option(
        metavar="A-B=1.25m",
        help="Metric scale from the known distance between the cameras of views A and B (m, cm, mm, ft), or from the "
        "height of the people: person=1.75m.",
        rich_help_panel=RIG,
    ),
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Device of the computation.", rich_help_panel=NETWORK)
]
NetworkPrecision = Annotated[
    Precision,
    typer.Option("--precision", help="auto: bf16 on a GPU that supports it, else fp32.", rich_help_panel=NETWORK),
]
Sha256 = Annotated[
    str | None,
    typer.Option(
        "--sha256", metavar="HEX", help="Refuse weights whose SHA-256 is another one.", rich_help_panel=NETWORK
    ),
]
Run = typer.Argument(metavar="OUT", help="Output folder of a reconstruction.")
RunInstants = Annotated[
    str | None,
    typer.Option(
        metavar="A:B:S",
        help="Every S-th of the instants A to B - 1, counted from 0; a single number is one instant.",
        rich_help_panel=SELECTION,
    ),
]
RunViews = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Views, separated by commas, such as cam01,cam03.", rich_help_panel=SELECTION),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.", rich_help_panel=TERMINAL)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.", rich_help_panel=TERMINAL)
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print informational notices.", rich_help_panel=TERMINAL)
]
