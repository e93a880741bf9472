"""Matching of an output folder to the ground truth of its capture: common views and instants, and maps at its pixels.

The layout is that of `page4d synthesize`: `cameras.json`, `depth/<view>/000000.png` in millimetres (0 = unknown),
`dynamic/<view>/000000.png` (255 = moving), and `capture.json` with the frame rate; optionally velocities in
`motion/<view>/000000.png`, and objects in `objects/<view>/000000.png` with their poses in `object_poses.npz`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import MAX_FPS, METRIC_DEPTH_SCALE, Scale
from page4d.errors import InputError, listed, shortened
from page4d.evaluation.scores import counted_pixels
from page4d.formats import cameras_json
from page4d.formats.files import read_arrays, read_document
from page4d.formats.maps import STILL_LEVEL, read_png
from page4d.geometry.camera import project
from page4d.io.documents import DocumentError, parse_json, read_text
from page4d.io.folders import given_path
from page4d.io.input_files import VIDEO_SUFFIXES
from page4d.output.reader import Output, open_output

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
            poses = read_arrays(path, ["poses"])["poses"]
        except DocumentError as error:
            raise InputError(f"'{path}' does not hold poses: {error}", hint) from error
        if poses.ndim != 4 or poses.shape[2:] != (4, 4) or poses.dtype.kind != "f" or not np.isfinite(poses).all():
            raise InputError(f"'{path}' holds {poses.dtype} {poses.shape}, not poses [F, K, 4, 4]", hint)
        return np.asarray(poses, dtype=np.float64)


def open_truth(path: Path | str) -> TruthFolder:
    """Open a ground truth folder, or a capture with a subfolder `truth`; maps are read later.

    Raises:
        InputError: if it does not exist or cannot be read.
    """
    folder = _find(given_path(path, "truth"))
    calibration = cameras_json.read(folder / CAMERAS, read_document(folder / CAMERAS))
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
            if (folder / "run.json").is_file():  # its depth has other levels, its frames are those of its instants
                raise InputError(f"'{folder}' is the output of a run, not ground truth", _LAYOUT)
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
        raise InputError(f"'{path}' has no options.fps", "restore it, or remove it and pass ⟨fps⟩") from error
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= MAX_FPS:
        raise InputError(
            f"'{path}': options.fps is {shortened(repr(fps))}", "restore it, or remove it and pass ⟨fps⟩"
        )
    return float(fps)


ASSUMED_FPS = 30.0
"""Frame rate of a truth without time stamps, equal to that of image folders."""

_MAX_FRAME = 2.0**53
"""Largest frame number that floating point represents."""

Step = Callable[[], None]
"""Progress callback, called after each instant."""

STILL, MOVING, NOT_LABELLED = range(3)
"""Kinds of pixels."""

_ASPECT_TOLERANCE = 0.02
_CUBIC_KERNEL = np.ones((5, 5), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class ComparedView:
    """A common view; `frames` are the true frame numbers of the output's instants, None without a match."""

    name: str
    index: int
    truth: TruthView
    frames: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class FramePair:
    """Maps of one frame at the truth's pixels.

    `known` is True where the truth has a depth within the limit, `counted` where the prediction has one as well.
    `kind` is `STILL`, `MOVING` or `NOT_LABELLED` by the true motion mask.
    """

    time_index: int
    view: ComparedView
    prediction: Float[Tensor, "H W"]
    truth: Float[Tensor, "H W"]
    known: Bool[Tensor, "H W"]
    counted: Bool[Tensor, "H W"]
    confidence: Float[Tensor, "H W"]
    kind: Int[Tensor, "H W"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Output, ground truth and their common views. `fps` is the frame rate of the truth, `fps_source` its origin."""

    output: Output
    truth: TruthFolder
    views: tuple[ComparedView, ...]
    fps: float
    fps_source: str
    max_depth: float | None = None

    @property
    def instants(self) -> tuple[int, ...]:
        """Indices of the output's instants with a true map of any view, or a true camera for views without maps."""
        return tuple(
            index for index in range(self.output.num_times) if any(has_truth(view, index) for view in self.views)
        )

    def depth_views(self, time_index: int) -> tuple[ComparedView, ...]:
        """Return the views that have true depth at an instant."""
        return tuple(view for view in self.views if view.frames[time_index] in view.truth.depth_files)

    def depth_frames(self, time_index: int) -> Iterator[FramePair]:
        """Read the frames of an instant that have true depth."""
        return (self.frame(time_index, view) for view in self.depth_views(time_index))

    def frame(self, time_index: int, view: ComparedView) -> FramePair:
        """Read one frame, with the prediction resized to the truth's pixels (bicubic, as published)."""
        number = view.frames[time_index]
        assert number is not None
        truth = torch.from_numpy(view.truth.depth(number))
        known = counted_pixels(truth, self.max_depth)
        raw = self.output.depth(time_index, view.name)
        confidence = self.output.confidence(time_index, view.name)
        size = view.truth.image_size
        dynamic = view.truth.dynamic(number)
        kind = np.full(size, NOT_LABELLED) if dynamic is None else np.where(dynamic, MOVING, STILL)
        return FramePair(
            time_index=time_index,
            view=view,
            prediction=torch.from_numpy(_resized(raw, size, cv2.INTER_CUBIC)),
            truth=truth,
            known=known,
            counted=known & torch.from_numpy(_covered(raw > 0, size)),
            confidence=torch.from_numpy(_resized(confidence, size, cv2.INTER_LINEAR)),
            kind=torch.from_numpy(kind),
        )

    def masks(self, time_index: int, view: ComparedView) -> tuple[Tensor, Tensor] | None:
        """Read the predicted and true motion masks of a frame at the truth's pixels; None if either is missing."""
        number = view.frames[time_index]
        true = None if number is None else view.truth.dynamic(number)
        predicted = None if true is None else self.output.dynamic(time_index, view.name)
        if true is None or predicted is None:
            return None
        nearest = _resized(predicted.astype(np.uint8), view.truth.image_size, cv2.INTER_NEAREST_EXACT)
        return torch.from_numpy(nearest > 0), torch.from_numpy(true)

    def cameras(self, view: ComparedView) -> tuple[list[int], Float[Tensor, "T 4 4"], Float[Tensor, "T 4 4"]]:
        """Return the instants with a true camera of a view, and its predicted and true cameras at them."""
        instants = range(self.output.num_times)
        true = {index: camera for index in instants if (camera := true_camera(view, index)) is not None}
        predicted = self.output.cameras.world_to_camera[list(true), view.index]
        return list(true), predicted, torch.stack(list(true.values())) if true else predicted

    def intrinsics(self, view: ComparedView) -> Float[Tensor, "T 3 3"]:
        """Return a view's predicted intrinsics for the truth's image size, at all instants of the output."""
        return self.output.cameras.intrinsics_at(view.index, view.truth.image_size)


_Arrays = TypeVar("_Arrays")


def joined(parts: Sequence[_Arrays]) -> _Arrays:
    """Concatenate records of arrays field by field."""
    return type(parts[0])(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def pixels_in_image(
    local: Float[Tensor, "N 3"], intrinsics: Float[Tensor, "3 3"], size: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the row and column of points of a camera frame, whether they are inside the image, and their depth."""
    pixels, depth = project(local, intrinsics.to(local.dtype))
    height, width = size
    column, row = pixels.nan_to_num(nan=-1.0).clamp(-1.0, max(width, height)).floor().long().unbind(-1)
    inside = (depth > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return (row.clamp(0, height - 1).numpy(), column.clamp(0, width - 1).numpy(), inside.numpy(), depth.numpy())


def random_subset(chosen: NDArray[np.bool_], limit: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the flat indices of the selected entries, or of a random subset of `limit`."""
    indices = np.flatnonzero(chosen)
    return indices if len(indices) <= limit else np.sort(random.choice(indices, size=limit, replace=False))


def true_camera(view: ComparedView, time_index: int) -> Float[Tensor, "4 4"] | None:
    """Return a view's true camera at an instant of the output; None if it is unknown."""
    poses, number = view.truth.world_to_camera, view.frames[time_index]
    if poses.ndim == 2:
        return poses
    return poses[number] if number is not None and 0 <= number < len(poses) else None


def has_truth(view: ComparedView, time_index: int) -> bool:
    """Return True if a view has a true map at an instant, or a true camera if it has no maps at all."""
    number, files = view.frames[time_index], view.truth.depth_files | view.truth.dynamic_files
    return number in files if files else true_camera(view, time_index) is not None


def compare(
    out: Output | Path | str, truth: Path | str, *, fps: float | None = None, max_depth: float | None = None
) -> Comparison:
    """Open both folders and match views by name and instants to the nearest true frame, within half a frame.

    `fps` is the frame rate of a truth that does not record it; true depth from `max_depth` on is ignored.

    Raises:
        InputError: if either cannot be read, or they have no common view or instant.
    """
    output, true = open_output(out), open_truth(truth)
    rate, source = _frame_rate(output, true, fps)
    true_views = {view.name: view for view in true.views}
    views = tuple(
        ComparedView(name=name, index=index, truth=true_views[name], frames=_frames(output, index, rate))
        for index, name in enumerate(output.view_names)
        if name in true_views
    )
    if not views:
        raise InputError(
            f"no view of '{output.layout.folder}' ({listed(output.view_names)}) is in '{true.folder}' "
            f"({listed(true_views)})",
            "pass the ground truth of the reconstructed capture",
        )
    comparison = Comparison(output=output, truth=true, views=views, fps=rate, fps_source=source, max_depth=max_depth)
    for view in views:
        _check_aspect(output, view)
        _check_numbers(view.truth)
    if not comparison.instants:
        raise InputError(_no_common_instant(comparison), "check ⟨fps⟩, the frame rate of the truth")
    return comparison


def _frame_rate(output: Output, truth: TruthFolder, fps: float | None) -> tuple[float, str]:
    """Return the frame rate of the truth and its origin: option, record, the run's images or its instants."""
    if fps is not None:
        return fps, "as given"
    if truth.fps is not None:
        return truth.fps, "as recorded in the truth"
    settings, times = output.run.settings, output.run.times
    image_fps, stride = settings.get("image_fps"), settings.get("stride") or 1
    if isinstance(image_fps, int | float) and 0 < image_fps <= MAX_FPS:
        return float(image_fps), "the rate of the run's images"
    if len(times) > 1 and settings.get("fps") is None and isinstance(stride, int) and 0 < stride <= MAX_FPS:
        return stride / float(np.median(np.diff(times))), "from the instants of the run"
    return ASSUMED_FPS, "assumed"


def _frames(output: Output, view: int, fps: float) -> tuple[int | None, ...]:
    """Return the true frame number of every instant; each frame is assigned to its nearest instant only.

    It is that of the frame that was used: the own times of a view may be no linear function of the common ones.
    Images whose rate was assumed are frames by their numbers, whatever the rate of the truth.
    """
    run, clock, source = output.run, output.run.views[view].clock, output.run.views[view].source
    is_video = Path(run.views[view].file).suffix.lower() in VIDEO_SUFFIXES
    is_timed = is_video or run.settings.get("image_fps") is not None
    is_timed |= "time stamps in the file names" in run.scene.synchronisation
    if source is not None:  # clocks from elsewhere keep the stamps of the images
        is_timed |= not np.allclose(np.asarray(source.frames) / ASSUMED_FPS, source.seconds, rtol=0, atol=1e-4)
    fps = fps if is_timed else ASSUMED_FPS
    places = (np.asarray(output.run.times) - clock.offset_s) / clock.rate * fps
    used = places if source is None else np.asarray(source.seconds) * fps
    numbers = np.rint(used.clip(-_MAX_FRAME, _MAX_FRAME)).astype(int)
    away = np.abs(places - numbers)
    best: dict[int, int] = {}
    for index, number in enumerate(numbers.tolist()):
        if number not in best or away[index] < away[best[number]]:
            best[number] = index
    return tuple(number if best[number] == index else None for index, number in enumerate(numbers.tolist()))


def _check_aspect(output: Output, view: ComparedView) -> None:
    height, width = output.cameras.image_sizes[view.index]
    true_height, true_width = view.truth.image_size
    if abs(width / height / (true_width / true_height) - 1) > _ASPECT_TOLERANCE:
        raise InputError(
            f"view '{view.name}' is {width}x{height} in the output, {true_width}x{true_height} in the truth",
            "pass the ground truth of uncropped, upright images, at any scale",
        )


def _check_numbers(truth: TruthView) -> None:
    """Refuse maps that are numbered from 1: each would silently be compared with the frame before."""
    files = truth.depth_files | truth.dynamic_files | truth.motion_files
    if files and min(files) == 1 and max(files) == len(files):
        raise InputError(
            f"the true maps of {truth.name} are numbered from 1, frames from 0",
            "number them from 0; if frame 0 has no depth, add a map of zeros, which are unknown",
        )


def _no_common_instant(comparison: Comparison) -> str:
    times, rate = comparison.output.run.times, comparison.fps
    numbers = sorted(
        {number for view in comparison.views for number in (*view.truth.depth_files, *view.truth.dynamic_files)}
    )
    span = f"{numbers[0] / rate:.3f}-{numbers[-1] / rate:.3f} s" if numbers else "no frame"
    return f"no common instant: the output has {times[0]:.3f}-{times[-1]:.3f} s, the truth {span} at {rate:g} fps"


def _resized(values: NDArray[Any], size: tuple[int, int], interpolation: int) -> NDArray[Any]:
    if values.shape == size:
        return values
    return cv2.resize(values, size[::-1], interpolation=interpolation)


def _covered(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the pixels of a map resized to `size` that are interpolated from valid pixels only."""
    if valid.shape == size:
        return valid
    # The bicubic kernel reaches two pixels, so that the zeros of a hole affect its neighbours.
    safe = cv2.erode(valid.astype(np.uint8), _CUBIC_KERNEL, borderType=cv2.BORDER_REPLICATE)
    return _resized(safe, size, cv2.INTER_NEAREST_EXACT) > 0
