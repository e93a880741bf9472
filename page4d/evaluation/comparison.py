"""An output folder beside a capture's truth: the views and instants that both have, and their frames by pixel."""

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

from page4d.errors import InputError, UsageError
from page4d.evaluation.depth import counted_pixels
from page4d.evaluation.truth_folder import TruthFolder, TruthView, open_truth
from page4d.export.output import Output, open_output
from page4d.geometry.camera import resize_intrinsics

ASSUMED_FPS = 30.0
"""Of truth that says nothing about time; image folders are read so too."""

Step = Callable[[], None]
"""What is called after each instant, so that somebody can show how far the work is."""

_SAME_ASPECT = 0.02
_CUBIC_REACH = np.ones((5, 5), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class ComparedView:
    """A view that both have: `frames` are the true frame numbers of the output's instants, None without one."""

    name: str
    index: int
    truth: TruthView
    frames: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class FramePair:
    """Maps of one frame at the truth's pixels.

    `known` is where the truth has a depth that counts, `counted` where the prediction has one as well.
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
    """What is compared with what. `fps` is the frame rate of the truth, `fps_source` where it comes from."""

    output: Output
    truth: TruthFolder
    views: tuple[ComparedView, ...]
    fps: float
    fps_source: str
    max_depth: float | None = None

    @property
    def instants(self) -> tuple[int, ...]:
        """Indices of the output's instants with a true map of any view, or a true camera where there are no maps."""
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
        """Read one frame, with the prediction resized to the truth's pixels as published (bicubic)."""
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
        """Read the predicted and the true motion mask of a frame at the truth's pixels; None if either is missing."""
        number = view.frames[time_index]
        true = None if number is None else view.truth.dynamic(number)
        predicted = None if true is None else self.output.dynamic(time_index, view.name)
        if true is None or predicted is None:
            return None
        nearest = _resized(predicted.astype(np.uint8), view.truth.image_size, cv2.INTER_NEAREST_EXACT)
        return torch.from_numpy(nearest > 0), torch.from_numpy(true)

    def cameras(self, view: ComparedView) -> tuple[list[int], Float[Tensor, "T 4 4"], Float[Tensor, "T 4 4"]]:
        """Return the instants at which a view's true camera is known, and the predicted and true cameras there."""
        instants = range(self.output.num_times)
        true = {index: camera for index in instants if (camera := true_camera(view, index)) is not None}
        predicted = self.output.cameras.world_to_camera[list(true), view.index]
        return list(true), predicted, torch.stack(list(true.values())) if true else predicted

    def intrinsics(self, view: ComparedView) -> Float[Tensor, "T 3 3"]:
        """Return a view's predicted intrinsics at the truth's pixels, for all instants of the output."""
        height, width = self.output.cameras.image_sizes[view.index]
        true_height, true_width = view.truth.image_size
        intrinsics = self.output.cameras.intrinsics[:, view.index]
        return resize_intrinsics(intrinsics, true_width / width, true_height / height)


def no_step() -> None:
    """Tell nobody."""


def true_camera(view: ComparedView, time_index: int) -> Float[Tensor, "4 4"] | None:
    """Return a view's true camera at an instant of the output; None where it is not known."""
    if view.truth.world_to_camera.ndim == 2:
        return view.truth.world_to_camera
    number = view.frames[time_index]
    return None if number is None else view.truth.camera_at(number)


def has_truth(view: ComparedView, time_index: int) -> bool:
    """Say whether anything is known of a view at an instant: a map, or its camera if there are no maps."""
    number, files = view.frames[time_index], view.truth.depth_files | view.truth.dynamic_files
    return number in files if files else true_camera(view, time_index) is not None


def compare(
    out: Path | str, truth: Path | str, *, fps: float | None = None, max_depth: float | None = None
) -> Comparison:
    """Open both folders and find what they share: views by name, instants within half a frame of the truth.

    `fps` times the frames of a truth that does not record its rate.

    Raises:
        InputError: if either cannot be read, or they share no view or no instant.
        UsageError: for a rate or a limit that is not positive.
    """
    for name, value in (("--fps", fps), ("--max-depth", max_depth)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value:g}", "give a positive number")
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
            f"no view of '{out}' ({', '.join(output.view_names)}) is in '{true.folder}' ({', '.join(true_views)})",
            "give the truth of the capture that was reconstructed",
        )
    comparison = Comparison(output=output, truth=true, views=views, fps=rate, fps_source=source, max_depth=max_depth)
    for view in views:
        _check_aspect(output, view)
    if not comparison.instants:
        raise InputError(_no_common_time(comparison), "check --fps, the frame rate of the truth")
    return comparison


def _frame_rate(output: Output, truth: TruthFolder, fps: float | None) -> tuple[float, str]:
    """Find the rate of the true frames: as told, as recorded, as the run took it, or as its instants suggest."""
    if fps is not None:
        return fps, "as given"
    if truth.fps is not None:
        return truth.fps, "as the truth records"
    settings, times = output.run.settings, output.run.times
    image_fps, stride = settings.get("image_fps"), settings.get("stride") or 1
    if isinstance(image_fps, int | float):
        return float(image_fps), "as the run took its images"
    if len(times) > 1 and settings.get("fps") is None and isinstance(stride, int):
        return stride / float(np.median(np.diff(times))), "from the instants of the run"
    return ASSUMED_FPS, "assumed"


def _frames(output: Output, view: int, fps: float) -> tuple[int | None, ...]:
    """Return the number of every instant's true frame; a frame goes to the nearest of several instants only."""
    clock = output.run.views[view].clock
    places = (np.asarray(output.run.times) - clock.offset_s) / clock.rate * fps
    numbers = np.rint(places).astype(int)
    away = np.abs(places - numbers)
    best: dict[int, int] = {}
    for index, number in enumerate(numbers.tolist()):
        if number not in best or away[index] < away[best[number]]:
            best[number] = index
    return tuple(number if best[number] == index else None for index, number in enumerate(numbers.tolist()))


def _check_aspect(output: Output, view: ComparedView) -> None:
    height, width = output.cameras.image_sizes[view.index]
    true_height, true_width = view.truth.image_size
    if abs(width / height / (true_width / true_height) - 1) > _SAME_ASPECT:
        raise InputError(
            f"view '{view.name}' is {width}x{height} in the output, {true_width}x{true_height} in the truth",
            "give the truth of whole upright images, at any scale",
        )


def _no_common_time(comparison: Comparison) -> str:
    times, rate = comparison.output.run.times, comparison.fps
    numbers = sorted(
        {number for view in comparison.views for number in (*view.truth.depth_files, *view.truth.dynamic_files)}
    )
    span = f"{numbers[0] / rate:.3f}-{numbers[-1] / rate:.3f} s" if numbers else "no frame"
    return f"no instant is in both: the output has {times[0]:.3f}-{times[-1]:.3f} s, the truth {span} at {rate:g} fps"


def _resized(values: NDArray[Any], size: tuple[int, int], interpolation: int) -> NDArray[Any]:
    if values.shape == size:
        return values
    return cv2.resize(values, size[::-1], interpolation=interpolation)


def _covered(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Say where a map resized to `size` is made of valid pixels alone."""
    if valid.shape == size:
        return valid
    # Bicubic weights reach two pixels: next to a hole its zero would leak in.
    safe = cv2.erode(valid.astype(np.uint8), _CUBIC_REACH, borderType=cv2.BORDER_REPLICATE)
    covered: NDArray[np.bool_] = _resized(safe, size, cv2.INTER_NEAREST_EXACT) > 0
    return covered
