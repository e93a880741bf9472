"""Ground truth of a capture on disk: cameras, and depth and motion maps of numbered frames.

The layout is that of `page4d synthesize`: `cameras.json`, `depth/<view>/000000.png` in millimetres (0 = unknown),
`dynamic/<view>/000000.png` (255 = moving), and `capture.json` with the frame rate; optionally velocities in
`motion/<view>/000000.png`, and objects in `objects/<view>/000000.png` with their poses in `object_poses.npz`.
"""

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.conventions import MAX_FPS, METRIC_DEPTH_SCALE, Scale
from page4d.errors import InputError, shortened
from page4d.formats.cameras_json import read_page4d_json
from page4d.formats.maps import STILL_LEVEL, read_png
from page4d.io.documents import DocumentError, parse_json, read_text

CAMERAS = "cameras.json"
_CAPTURE = "capture.json"
_POSES = "object_poses.npz"
_HINT = f"provide maps of the image size in {CAMERAS}: 16-bit depth, 8-bit masks, 16-bit velocities"
_LAYOUT = "pass a folder with cameras.json, depth/<view>/*.png and dynamic/<view>/*.png, as page4d synthesize writes"


@dataclass(frozen=True, kw_only=True)
class TruthView:
    """True camera of one view, and the files of its maps by frame number.

    `world_to_camera` is [4, 4] for a static camera, else one matrix per frame.
    """

    name: str
    image_size: tuple[int, int]
    world_to_camera: Float[Tensor, "*F 4 4"]
    intrinsics: Float[Tensor, "3 3"]
    depth_files: dict[int, Path]
    dynamic_files: dict[int, Path]
    motion_files: dict[int, Path]
    object_files: dict[int, Path]

    def camera_at(self, frame: int) -> Float[Tensor, "4 4"] | None:
        """Return `world_to_camera` of a frame; None beyond the last one."""
        if self.world_to_camera.ndim == 2:
            return self.world_to_camera
        return self.world_to_camera[frame] if 0 <= frame < len(self.world_to_camera) else None

    def depth(self, frame: int) -> Float[np.ndarray, "H W"]:
        """Read the depth of a frame in units of the cameras, 0 where it is unknown."""
        levels = read_png(self.depth_files[frame], np.uint16, self.image_size, _HINT)
        return (levels / METRIC_DEPTH_SCALE).astype(np.float32)

    def dynamic(self, frame: int) -> Bool[np.ndarray, "H W"] | None:
        """Read the motion mask of a frame; None if there is none."""
        file = self.dynamic_files.get(frame)
        return None if file is None else read_png(file, np.uint8, self.image_size, _HINT) > 127

    def velocity(self, frame: int) -> tuple[Float[np.ndarray, "H W 3"], Bool[np.ndarray, "H W"]]:
        """Read the velocity of a frame in units of the cameras per second, and where it is known."""
        levels = read_png(self.motion_files[frame], np.uint16, (*self.image_size, 3), _HINT)
        known = (levels != 0).any(-1)
        values = (levels.astype(np.float64) - STILL_LEVEL) / METRIC_DEPTH_SCALE
        return np.where(known[..., None], values, 0.0).astype(np.float32), known

    def objects(self, frame: int) -> Int[np.ndarray, "H W"]:
        """Read the index of the object of every pixel of a frame, -1 where there is none."""
        return read_png(self.object_files[frame], np.uint16, self.image_size, _HINT).astype(np.int64) - 1


@dataclass(frozen=True, kw_only=True)
class TruthFolder:
    """Ground truth of a capture. Frame k of a view is taken at k / `fps` seconds of the view's clock, if known."""

    folder: Path
    scale: Scale
    fps: float | None
    views: tuple[TruthView, ...]
    poses_file: Path | None = None
    notices: tuple[str, ...] = ()

    def object_poses(self) -> Float[np.ndarray, "F K 4 4"]:
        """Read the pose `object_to_world` of every object at every frame.

        Raises:
            InputError: if the file is missing or damaged.
        """
        path = self.folder / _POSES
        hint = "restore it, or write the truth again with page4d synthesize --truth-motion"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                poses = arrays["poses"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"'{path}' does not hold poses: {error}", hint) from error
        if poses.ndim != 4 or poses.shape[2:] != (4, 4) or poses.dtype.kind != "f" or not np.isfinite(poses).all():
            raise InputError(f"'{path}' holds {poses.dtype} {poses.shape}, not poses [F, K, 4, 4]", hint)
        return np.asarray(poses, dtype=np.float64)


def open_truth(path: Path | str) -> TruthFolder:
    """Open a ground truth folder, or a capture with a subfolder `truth`; maps are read later.

    Raises:
        InputError: if it does not exist or cannot be read.
    """
    folder = _find(Path(path))
    calibration = read_page4d_json(folder / CAMERAS)
    views = []
    for camera in calibration.cameras:
        if camera.image_size is None or camera.distortion is not None:
            flaw = "no image size" if camera.image_size is None else "lens distortion"
            raise InputError(
                f"'{folder / CAMERAS}': camera {camera.name} has {flaw}", "pass the cameras of undistorted images"
            )
        views.append(
            TruthView(
                name=camera.name,
                image_size=camera.image_size,
                world_to_camera=camera.world_to_camera,
                intrinsics=camera.intrinsics,
                depth_files=_numbered(folder / "depth" / camera.name),
                dynamic_files=_numbered(folder / "dynamic" / camera.name),
                motion_files=_numbered(folder / "motion" / camera.name),
                object_files=_numbered(folder / "objects" / camera.name),
            )
        )
    return TruthFolder(
        folder=folder,
        scale=calibration.scale,
        fps=_recorded_fps(folder / _CAPTURE),
        views=tuple(views),
        poses_file=folder / _POSES if (folder / _POSES).is_file() else None,
        notices=calibration.notices,
    )


def _find(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(
            f"truth '{path}' is not a folder" if path.exists() else f"truth '{path}' does not exist", _LAYOUT
        )
    for folder in (path, path / "truth"):
        if (folder / CAMERAS).is_file():
            return folder
    raise InputError(f"no ground truth in '{path}': there is neither {CAMERAS} nor truth/{CAMERAS}", _LAYOUT)


def _numbered(folder: Path) -> dict[int, Path]:
    """Return the PNG files of a folder by the number at the end of their names; empty without such a folder."""
    files = sorted(folder.glob("*.png")) if folder.is_dir() else []
    numbers = [re.search(r"(\d+)$", file.stem) for file in files]
    return {int(number[1]): file for number, file in zip(numbers, files, strict=True) if number}


def _recorded_fps(path: Path) -> float | None:
    """Return the frame rate recorded by `page4d synthesize`; None without a record."""
    if not path.is_file():
        return None
    try:
        content = parse_json(read_text(path))
        fps = content["options"]["fps"]
    except (DocumentError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' has no options.fps", "restore it, or remove it and pass --fps") from error
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= MAX_FPS:
        raise InputError(
            f"'{path}': options.fps is {shortened(repr(fps))}", "restore it, or remove it and pass --fps"
        )
    return float(fps)
