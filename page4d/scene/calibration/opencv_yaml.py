"""Calibrations of EasyMocap and EasyVolcap: `intri.yml` and `extri.yml` in OpenCV's YAML dialect.

The text is read by PyYAML with every scalar kept as a string: no tag runs code, no number is reinterpreted (YAML 1.1
takes `010` for 8 and `1e-05` for text), and damaged files raise errors that can be told apart from ours.
The files do not state their unit of length, so the scale is arbitrary unless the user says it.

Source: EasyMocap documentation, "camera parameters"; OpenCV documentation, "XML/YAML/JSON file storages".
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor

from page4d.conventions import INTEGER_PIXEL_CENTER, Scale
from page4d.errors import InputError
from page4d.geometry.rotation import rotation_angle
from page4d.scene.calibration.build import brown_conrady, is_rotation, make_camera, pose, rotation_from_vector
from page4d.scene.calibration.files import blame, check_exists, read_text, unreadable
from page4d.scene.calibration.record import CORRECT_THE_FILE, CalibratedCamera, Calibration

LARGEST_YAML_BYTES = 16 * 1024**2
"""Real files have some kB; PyYAML reads about 1 MB in a second."""

LARGEST_DISAGREEMENT_RAD = 1e-3
"""How far `R_` and `Rot_` of one camera may differ: both are often written with a few digits."""

ENDINGS = (".yml", ".yaml")


@dataclass(frozen=True)
class _Storage:
    """The top level of one file."""

    name: str
    content: dict[str, object]

    def matrix(self, keys: tuple[str, ...]) -> Tensor | None:
        """Return the first of the matrices that is there."""
        found = next((key for key in keys if key in self.content), None)
        return None if found is None else _matrix(self.content[found], found)

    def required(self, keys: tuple[str, ...]) -> Tensor:
        """Return the first of the matrices that is there; raise InputError if none is."""
        matrix = self.matrix(keys)
        if matrix is None:
            raise InputError(f"{' or '.join(keys)} is missing in {self.name}", CORRECT_THE_FILE)
        return matrix


def read_opencv_yaml(path: Path) -> Calibration:
    """Read `intri.yml` and `extri.yml`; `path` is their folder or one of the two.

    Raises:
        InputError: if one of the two is missing or damaged, or a camera in them cannot be used.
    """
    check_exists(path)
    folder = path if path.is_dir() else path.parent
    intrinsic, extrinsic = (_load(_find(path, folder, stem)) for stem in ("intri", "extri"))
    label = f"{intrinsic.name}/{extrinsic.name}"
    names = _names(path, intrinsic, extrinsic)
    cameras = tuple(_camera(label, name, intrinsic, extrinsic) for name in names)
    return Calibration(path=path, format="OpenCV YAML", scale=Scale.ARBITRARY, cameras=cameras)


def _find(path: Path, folder: Path, stem: str) -> Path:
    for ending in ENDINGS:
        if (folder / f"{stem}{ending}").is_file():
            return folder / f"{stem}{ending}"
    raise unreadable(path, f"{stem}.yml is missing (intri.yml and extri.yml belong together)")


def _load(path: Path) -> _Storage:
    text = read_text(path, LARGEST_YAML_BYTES)
    if text.startswith("%YAML"):
        # OpenCV 3 and 4 write "%YAML:1.0", which is no directive of YAML.
        text = text.partition("\n")[2]
    try:
        loader = yaml.BaseLoader(text)
        content = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 2}: "
        raise unreadable(path, f"{line}{error.problem or 'not YAML'}") from None
    except yaml.YAMLError:
        raise unreadable(path, "it holds characters that YAML forbids") from None
    except (ValueError, RecursionError):
        raise unreadable(path, "a number or a nesting in it is too long") from None
    if not isinstance(content, dict):
        raise unreadable(path, "it is not a table of named values")
    return _Storage(path.name, {str(key): value for key, value in content.items()})


def _names(path: Path, intrinsic: _Storage, extrinsic: _Storage) -> list[str]:
    for storage in (intrinsic, extrinsic):
        listed = storage.content.get("names")
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            return [str(name) for name in listed]
    names = [key.removeprefix("K_") for key in intrinsic.content if key.startswith("K_")]
    if not names:
        raise unreadable(path, f"{intrinsic.name} has neither 'names' nor matrices K_<camera>")
    return names


def _camera(label: str, name: str, intrinsic: _Storage, extrinsic: _Storage) -> CalibratedCamera:
    with blame(label, name):
        lens = intrinsic.matrix((f"dist_{name}", f"D_{name}"))
        distortion = None if lens is None else brown_conrady(lens.flatten().tolist())
        translation = extrinsic.required((f"T_{name}",)).flatten().tolist()
        if len(translation) != 3:
            raise InputError(f"T_{name} has {len(translation)} numbers, not 3", CORRECT_THE_FILE)
        rotation = _rotation(name, extrinsic)
        intrinsics = intrinsic.required((f"K_{name}",))
        image_size = _image_size(name, intrinsic)
    return make_camera(
        label,
        name,
        intrinsics=intrinsics,
        world_to_camera=pose(rotation, translation),
        image_size=image_size,
        distortion=distortion,
        pixel_center=INTEGER_PIXEL_CENTER,
    )


def _rotation(name: str, extrinsic: _Storage) -> Tensor:
    """Return `Rot_` (a matrix) or `R_` (a Rodrigues vector, sometimes a matrix); two of them must agree."""
    found = []
    for key in (f"Rot_{name}", f"R_{name}"):
        value = extrinsic.matrix((key,))
        if value is None:
            continue
        if value.shape != (3, 3) and value.numel() != 3:
            raise InputError(f"{key} has shape {tuple(value.shape)}, not (3, 3) or (3, 1)", CORRECT_THE_FILE)
        found.append(value if value.shape == (3, 3) else rotation_from_vector(value.flatten().tolist()))
    if not found:
        raise InputError(f"R_{name} or Rot_{name} is missing in {extrinsic.name}", CORRECT_THE_FILE)
    # What is no rotation has no angle: the camera's own check names it.
    angle = float(rotation_angle(found[0], found[-1])) if is_rotation(found[0]) else 0.0
    if angle > LARGEST_DISAGREEMENT_RAD:
        raise InputError(f"R_{name} and Rot_{name} differ by {angle:.3g} rad", CORRECT_THE_FILE)
    return found[0]


def _image_size(name: str, intrinsic: _Storage) -> tuple[int, int] | None:
    sides = [intrinsic.content.get(f"{letter}_{name}") for letter in "HW"]
    if None in sides:
        return None
    height, width = (_float(side, f"{letter}_{name}") for letter, side in zip("HW", sides, strict=True))
    if not all(abs(side) < 1e9 and side == int(side) for side in (height, width)):
        raise InputError(f"the image size is {width:g}x{height:g}", CORRECT_THE_FILE)
    return int(height), int(width)


def _matrix(value: object, key: str) -> Tensor:
    """Build the matrix of an `!!opencv-matrix` node: rows, cols and the numbers row by row."""
    if not isinstance(value, dict):
        raise InputError(f"{key} is not a matrix", CORRECT_THE_FILE)
    data = value.get("data")
    if not isinstance(data, list):
        raise InputError(f"{key} has no data", CORRECT_THE_FILE)
    numbers = torch.tensor([_float(number, key) for number in data], dtype=torch.float64)
    rows, columns = (_float(value.get(side), f"{key}.{side}") for side in ("rows", "cols"))
    if not (0 < rows <= len(data) and 0 < columns <= len(data) and int(rows) * int(columns) == len(data)):
        raise InputError(f"{key} has {len(data)} numbers for {rows:g} x {columns:g}", CORRECT_THE_FILE)
    return numbers.reshape(int(rows), int(columns))


def _float(value: object, key: str) -> float:
    if not isinstance(value, str):
        raise InputError(f"{key} holds something that is not a number", CORRECT_THE_FILE)
    try:
        # OpenCV writes .Nan, .Inf and -.Inf, as YAML does.
        return float(value.replace(".Nan", "nan").replace(".Inf", "inf"))
    except ValueError:
        raise InputError(f"{key} holds '{value[:20]}', which is not a number", CORRECT_THE_FILE) from None
