"""The calibration formats as data: how their files are recognized, read and written. Imports no torch."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page4d.choices import CalibrationFormat

if TYPE_CHECKING:
    from page4d.formats.camera_model import Calibration


@dataclass(frozen=True)
class RigFormat:
    """A calibration format: how its files are recognized, and the module that reads and writes them.

    `module` has `read(path) -> Calibration`. It may have `read_lenses(path)`, which needs no poses, and
    `is_folder(path)`, which recognizes a format that spans a folder. `files` describes the files in messages, "" if
    the name does. `patterns` match lower-case file names. JSON files are recognized by one of the `json_keys`
    instead, and `read` takes their parsed content, too; files with other names are recognized by `signature` at their
    beginning. A format that is `written` has `write(calibration, path)`, and its files end with `suffix`, "" for a
    folder that contains a file of the first name in `patterns`.
    """

    name: str
    module: str
    patterns: tuple[str, ...]
    files: str = ""
    json_keys: frozenset[str] = frozenset()
    signature: re.Pattern[bytes] | None = None
    written: CalibrationFormat | None = None
    suffix: str = ""

    @property
    def read(self) -> "Callable[..., Calibration]":
        """The reader."""
        read: Callable[..., Calibration] = self._function("read")
        return read

    @property
    def read_lenses(self) -> "Callable[..., Calibration]":
        """The reader of intrinsics alone; that of cameras where the format has no other."""
        read_lenses: Callable[..., Calibration] = self._function("read_lenses", self.read)
        return read_lenses

    @property
    def is_folder(self) -> Callable[[Path], bool] | None:
        """What recognizes a folder of the format; None if each calibration is one file."""
        is_folder: Callable[[Path], bool] | None = self._function("is_folder")
        return is_folder

    @property
    def write(self) -> "Callable[[Calibration, Path], object]":
        """The writer of static cameras with image sizes."""
        write: Callable[[Calibration, Path], object] = self._function("write")
        return write

    def _function(self, name: str, default: Any = None) -> Any:
        return getattr(import_module(f"page4d.formats.{self.module}"), name, default)


FORMATS = (
    RigFormat(
        "COLMAP",
        "colmap",
        ("cameras.bin", "cameras.txt", "images.bin", "images.txt"),
        written=CalibrationFormat.COLMAP,
    ),
    RigFormat("OpenCV YAML", "opencv_yaml", ("*.yml", "*.yaml"), "intri.yml and extri.yml"),
    RigFormat("nerfstudio", "nerfstudio", ("transforms.json",), "transforms.json", json_keys=frozenset({"frames"})),
    RigFormat(
        "cameras.json",
        "cameras_json",
        ("cameras.json",),
        json_keys=frozenset({"views", "cameras"}),
        written=CalibrationFormat.PAGE4D,
        suffix=".json",
    ),
    RigFormat(
        "Qualisys",
        "qualisys",
        ("*.qca.txt", "*.qca"),
        ".qca.txt",
        signature=re.compile(rb"<(.*<)?calibration", re.DOTALL),
    ),
    RigFormat(
        "Pose2Sim/Anipose TOML",
        "toml_rig",
        ("*.toml",),
        signature=re.compile(rb"\[.*matrix", re.DOTALL),
        written=CalibrationFormat.ANIPOSE,
        suffix=".toml",
    ),
)
"""Supported formats. A folder is searched for formats that span it, then for JSON files, each in this order, and
finally for a single file of any other format."""

SUPPORTED_FORMATS = "supported: " + ", ".join(
    f"{row.name} ({row.files})" if row.files else row.name for row in FORMATS
)
"""Hint for a file that is not a calibration."""
