"""Matching of an output folder to a ground truth: common views and instants, and their maps at the truth's pixels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import MAX_FPS
from page4d.errors import InputError, listed
from page4d.evaluation.depth import counted_pixels
from page4d.evaluation.truth_folder import TruthFolder, TruthView, open_truth
from page4d.geometry.camera import resize_intrinsics
from page4d.output.reader import Output, open_output

ASSUMED_FPS = 30.0
"""Frame rate of a truth without time stamps, equal to that of image folders."""

_MAX_FRAME = 2.0**53
"""Largest frame number that floating point represents."""

Step = Callable[[], None]
"""Progress callback, called after each instant."""

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
    """

    time_index: int
    view: ComparedView
    prediction: Float[Tensor, "H W"]
    truth: Float[Tensor, "H W"]
    known: Bool[Tensor, "H W"]
    counted: Bool[Tensor, "H W"]
    confidence: Float[Tensor, "H W"]
    dynamic: Bool[Tensor, "H W"] | None


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
        return FramePair(
            time_index=time_index,
            view=view,
            prediction=torch.from_numpy(_resized(raw, size, cv2.INTER_CUBIC)),
            truth=truth,
            known=known,
            counted=known & torch.from_numpy(_covered(raw > 0, size)),
            confidence=torch.from_numpy(_resized(confidence, size, cv2.INTER_LINEAR)),
            dynamic=None if dynamic is None else torch.from_numpy(dynamic),
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
        height, width = self.output.cameras.image_sizes[view.index]
        true_height, true_width = view.truth.image_size
        intrinsics = self.output.cameras.intrinsics[:, view.index]
        return resize_intrinsics(intrinsics, true_width / width, true_height / height)


def no_step() -> None:
    """Ignore progress."""


def true_camera(view: ComparedView, time_index: int) -> Float[Tensor, "4 4"] | None:
    """Return a view's true camera at an instant of the output; None if it is unknown."""
    if view.truth.world_to_camera.ndim == 2:
        return view.truth.world_to_camera
    number = view.frames[time_index]
    return None if number is None else view.truth.camera_at(number)


def has_truth(view: ComparedView, time_index: int) -> bool:
    """Return True if a view has a true map at an instant, or a true camera if it has no maps at all."""
    number, files = view.frames[time_index], view.truth.depth_files | view.truth.dynamic_files
    return number in files if files else true_camera(view, time_index) is not None


def compare(
    out: Path | str, truth: Path | str, *, fps: float | None = None, max_depth: float | None = None
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
            f"no view of '{out}' ({listed(output.view_names)}) is in '{true.folder}' ({listed(true_views)})",
            "pass the ground truth of the reconstructed capture",
        )
    comparison = Comparison(output=output, truth=true, views=views, fps=rate, fps_source=source, max_depth=max_depth)
    for view in views:
        _check_aspect(output, view)
    if not comparison.instants:
        raise InputError(_no_common_instant(comparison), "check --fps, the frame rate of the truth")
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
    """Return the true frame number of every instant; each frame is assigned to its nearest instant only."""
    clock = output.run.views[view].clock
    places = (np.asarray(output.run.times) - clock.offset_s) / clock.rate * fps
    numbers = np.rint(places.clip(-_MAX_FRAME, _MAX_FRAME)).astype(int)
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
    covered: NDArray[np.bool_] = _resized(safe, size, cv2.INTER_NEAREST_EXACT) > 0
    return covered
