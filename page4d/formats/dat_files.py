"""Text files of a lens and a pose per camera, as tutorials of OpenCV for two cameras write them, read.

Source: files of TemugeB/handpose3d and bodypose3d (`c0.dat`, `rot_trans_c0.dat`) and python_stereo_camera_calibrate
(`camera0_intrinsics.dat`, `camera0_rot_trans.dat`).
"""

import re
from collections.abc import Collection
from pathlib import Path

from page4d.conventions import Scale
from page4d.errors import InputError, listed
from page4d.formats.build import parse_number
from page4d.formats.camera_model import CORRECTION_HINT, Calibration
from page4d.formats.files import check_count, error_context, parsing, unreadable
from page4d.formats.opencv_rigs import table_camera
from page4d.io.documents import read_text
from page4d.io.input_files import natural_key

_POSE = re.compile(r"rot_trans_(.+)\.dat|(.+)_rot_trans\.dat")


def is_folder(path: Path) -> bool:
    """Return whether a folder has poses of cameras."""
    return any(_POSE.fullmatch(file.name) for file in path.glob("*.dat"))


def read(path: Path, views: Collection[str] | None = None) -> Calibration:  # noqa: ARG001
    """Read the cameras of a folder, or those in that of one file; the files declare no unit of length.

    Raises:
        InputError: if a file is missing or damaged, or a camera is invalid.
    """
    folder = path if path.is_dir() else path.parent
    names = {file: match[1] or match[2] for file in folder.glob("*.dat") if (match := _POSE.fullmatch(file.name))}
    check_count(path, len(names))
    cameras = []
    for file, name in sorted(names.items(), key=lambda item: natural_key(item[1])):
        lenses = [folder / f"{name}{end}.dat" for end in ("", "_intrinsics")]
        lens = next((one for one in lenses if one.is_file()), None)
        if lens is None:
            raise unreadable(
                path, f"{listed([one.name for one in lenses], separator=' or ')} of {file.name} is missing"
            )
        with error_context(f"{lens.name}/{file.name}", name):
            numbers = {"K": _numbers(lens, "intrinsic", 9), "D": _numbers(lens, "distortion")}
            numbers |= {"R": _numbers(file, "R", 9), "T": _numbers(file, "T", 3)}
        cameras.append(table_camera(path, name, {**numbers, "fisheye": False}, poses=True))
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=tuple(cameras))


def _numbers(file: Path, label: str, count: int | None = None) -> list[float]:
    """Return the numbers below the first line with a label; later ones are of other transforms."""
    with parsing(file):
        text = read_text(file)
    match = re.search(rf"^\s*{label}s?:([^:A-Za-df-z#]*)", text, re.MULTILINE | re.IGNORECASE)
    words = match[1].split() if match else []
    numbers = [number for word in words if (number := parse_number(word)) is not None]
    if len(numbers) != len(words) or not words or (count is not None and len(numbers) != count):
        raise InputError(
            f"{label} has {len(words)} numbers" + f", expected {count}" * (count is not None), CORRECTION_HINT
        )
    return numbers
