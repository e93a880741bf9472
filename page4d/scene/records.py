"""Records of a scene: clocks, frame sources, views, and scenes at some of their instants."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter
from torch import Tensor

from page4d.choices import MEASURED_CLOCKS, MaskMeaning, UpAxis
from page4d.conventions import METRIC_DEPTH_SCALE, ClockOrigin, Scale
from page4d.errors import Notice, UsageError, counted
from page4d.formats.build import orthonormalized
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.pixels import PixelTransform, Size, Window
from page4d.geometry.time_axis import is_flag
from page4d.geometry.transforms import invert_rigid, move_origin
from page4d.io.json_records import DOUBLES
from page4d.options import SceneOptions
from page4d.scene.batches import open_batches
from page4d.scene.content import ViewContent, bounds
from page4d.scene.image_file import Image
from page4d.scene.images import undistortion_map

Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]
"""An instant; file names may number frames by their date in milliseconds."""

MEASURED = ", ".join(f"⟨sync={mode}⟩" for mode in MEASURED_CLOCKS)
SYNC_HINT = f"pass another of ⟨sync=audio⟩, {MEASURED}, ⟨sync=FILE⟩ and ⟨sync=none⟩, or leave the view out (⟨views⟩)"
"""What to do about clocks that are not determined."""

MIN_RATE_SPAN_S = 44.0
"""Time from the first to the last window below which no rate is estimated: 45 s of the four windows of a minute."""

MAX_RATE_ERROR = 0.2
"""Standard deviation of a rate's difference from 1, as a share of it, from which the rate is 1."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Mapping from the time of a view to the common clock: `common = offset_s + rate * own`.

    `own` is in seconds from the view's first frame. A clock that is slow by 0.1 % has a rate of 1.001. `frame_times`
    are the common times of all frames where each has a time stamp of its own; offset and rate are then those of the
    first and last frame. `std_seconds` is the standard deviation of common times, None where no evidence gives it.
    """

    offset_s: Seconds = 0.0
    rate: Annotated[float, Field(ge=1e-3, le=100.0)] = 1.0
    std_seconds: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)] | None = None
    frame_times: Annotated[tuple[float, ...], Field(exclude=True)] = ()

    def __post_init__(self) -> None:
        if not abs(self.offset_s) < float("inf") or not 0 < self.rate < float("inf"):
            raise UsageError(
                f"a clock with offset {self.offset_s} s and rate {self.rate}",
                "use a finite offset and a positive, finite rate",
            )

    def to_common(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert the times of all frames of the view to the common clock."""
        return np.array(self.frame_times) if self.frame_times else self.offset_s + self.rate * own


class FrameReader(Protocol):
    """An open source that decodes forward: indices must not decrease over the reader's lifetime."""

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames with these indices."""


@runtime_checkable
class FrameSource(Protocol):
    """The frames of a view. Sizes are (height, width) of the upright image with square pixels."""

    @property
    def label(self) -> str:
        """File or folder name for messages."""

    @property
    def codec(self) -> str:
        """Codec or image format, such as `h264` or `png`."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every frame."""

    @property
    def frame_times(self) -> NDArray[np.float64]:
        """Increasing times of all frames, in seconds from the first."""

    def open(self, size: tuple[int, int] | None = None) -> AbstractContextManager[FrameReader]:
        """Start decoding at the first frame, resizing to `size` (height, width) if given."""


_LENS = TypeAdapter(tuple[LensModel, tuple[float, ...]] | None)


def _distortion(recorded: object) -> Distortion | None:
    lens = _LENS.validate_python(recorded)
    return None if lens is None else Distortion(model=lens[0], coefficients=lens[1])


def _lens(distortion: Distortion | None) -> tuple[LensModel, tuple[float, ...]] | None:
    return None if distortion is None else (distortion.model, distortion.coefficients)


@dataclass(frozen=True, kw_only=True)
class ViewCamera:
    """The camera of a view at original pixels, calibrated or registered.

    `world_to_camera` is [4, 4] for a static camera, else [T, 4, 4] at the scene's times. `intrinsics` [3, 3] are
    those of the undistorted image.
    """

    world_to_camera: Annotated[Float[Tensor, "*T 4 4"], DOUBLES]
    intrinsics: Annotated[Float[Tensor, "3 3"], DOUBLES]
    distortion: Annotated[Distortion | None, BeforeValidator(_distortion), PlainSerializer(_lens)] = None

    def in_world(self, transform: Float[Tensor, "4 4"]) -> "ViewCamera":
        """Return the camera in another world, which a rigid transform leads into."""
        return replace(self, world_to_camera=self.world_to_camera @ invert_rigid(transform).to(self.world_to_camera))

    @property
    def is_static(self) -> bool:
        """Whether there is one pose."""
        return self.world_to_camera.ndim == 2


@dataclass(frozen=True, kw_only=True)
class PairedFrames:
    """Masks or depth maps of a view: `indices` select one of `frames` for each of the scene's times.

    `is_float` is True for depth maps that are not 16-bit levels.
    """

    frames: FrameSource
    indices: tuple[int, ...]
    is_float: bool = False


@dataclass(frozen=True, kw_only=True)
class View:
    """One camera of the rig: `indices` select one frame of `source` for each of the scene's times.

    `content` is what its pictures usually show, None before pictures were sampled: then no frame is judged.
    """

    name: str
    source: FrameSource
    clock: Clock
    indices: tuple[int, ...]
    camera: ViewCamera | None = None
    mask: PairedFrames | None = None
    depth: PairedFrames | None = None
    content: ViewContent | None = None

    @property
    def frame_window(self) -> Window | None:
        """Part of its frames between bars; None for all of them."""
        return replace(self, camera=None).window

    @property
    def window(self) -> Window | None:
        """Part of its pictures between bars, without lens distortion; None for all of them."""
        area, size = None if self.content is None else self.content.between_bars, self.source.size
        if area is None:
            return None
        undistortion = undistortion_map(self.camera, size, (area.shape[0], area.shape[1]))
        return bounds(area if undistortion is None else undistortion.remap(area.astype(np.uint8), nearest=True), size)


def place_pictures(
    views: Iterable[View], place: Callable[[list[Size]], Sequence[PixelTransform]]
) -> tuple[PixelTransform, ...]:
    """Place the pictures of views without their bars, by the (height, width) of what is left."""
    parts = [(view.window, view.source.size) for view in views]
    sizes = [size if window is None else (window.height, window.width) for window, size in parts]
    return tuple(transform.of_part(*part) for transform, part in zip(place(sizes), parts, strict=True))


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A synchronized capture: V views on one clock and T instants at which every view has a frame.

    No frame is decoded yet. `times` are in seconds on the common clock, whose 0 is the time stamp `start_ns` of the
    frames in nanoseconds: since 1970 for dates; None without time stamps. If clocks are not from these
    (`clock_origin`), it is that of one view. `scale` is the unit of the calibration,
    `up` the axis that points up in its world, if it is upright.
    Cameras are about the `world_offset` of a calibration whose coordinates are too large for single precision, and
    `surveyed` has their poses in its world, by view.
    Measured depth maps have `depth_levels` levels per unit. `other_files` are input files besides the views, such as
    the calibration.
    """

    name: str
    views: tuple[View, ...]
    times: NDArray[np.float64]
    scale: Scale = Scale.ARBITRARY
    up: UpAxis | None = None
    world_offset: tuple[float, float, float] | None = None
    surveyed: Mapping[str, Float[Tensor, "*T 4 4"]] = field(default_factory=dict)
    mask_meaning: MaskMeaning = MaskMeaning.DYNAMIC
    depth_levels: float = METRIC_DEPTH_SCALE
    synchronisation: str = "same start"
    start_ns: int | None = None
    clock_origin: ClockOrigin = ClockOrigin.EARLIEST
    calibration: str | None = None
    other_files: tuple[Path, ...] = ()
    notices: tuple[Notice, ...] = field(default=())
    options: SceneOptions = SceneOptions()  # noqa: RUF009  immutable
    """The options that it was opened with."""

    def __repr__(self) -> str:
        """Return name, size and cameras in one line."""
        size = f"{counted(self.num_views, 'view')}, {counted(self.num_times, 'instant')}"
        return f"<Scene '{self.name}': {size}, {'' if self.is_calibrated else 'not '}calibrated>"

    def in_files(self, index: int, pose: Float[Tensor, "*T 4 4"]) -> Float[Tensor, "*T 4 4"]:
        """Return a pose of a view about `world_offset` in the world of files; that of its calibration to the bit."""
        if self.world_offset is None:
            return pose
        view = self.views[index]
        given = self.surveyed.get(view.name)
        if given is not None and view.camera is not None:
            own = view.camera.world_to_camera
            if own.shape == given.shape and bool((pose == own).all()):  # of another shape where the rig moves
                return given
        return move_origin(orthonormalized(pose), -torch.tensor(self.world_offset, dtype=torch.float64))

    @property
    def num_times(self) -> int:
        """Number of instants T."""
        return len(self.times)

    @property
    def num_views(self) -> int:
        """Number of views V."""
        return len(self.views)

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views in order."""
        return tuple(view.name for view in self.views)

    @property
    def is_calibrated(self) -> bool:
        """Whether all views have calibrated cameras."""
        return all(view.camera is not None for view in self.views)

    @property
    def has_motion_masks(self) -> bool:
        """Whether a view has masks of what moves."""
        return self.mask_meaning is MaskMeaning.DYNAMIC and any(view.mask is not None for view in self.views)

    @property
    def motion_is_given(self) -> bool:
        """Whether all views have masks of what moves."""
        return self.has_motion_masks and all(view.mask is not None for view in self.views)

    @property
    def has_static_rig(self) -> bool:
        """Whether two or more views have calibrated cameras, and all of these are static."""
        cameras = [view.camera for view in self.views if view.camera is not None]
        return len(cameras) > 1 and all(camera.is_static for camera in cameras)

    def images(
        self, times: Iterable[int] | None = None, *, long_side: int = 504, multiple: int = 56
    ) -> Float[Tensor, "one T V 3 H W"]:
        """Decode the images of some instants (default: all) as input of a network, in [0, 1].

        Images are undistorted and resized to `long_side` px on a common canvas whose sides are multiples of
        `multiple`; 56 suits patches of 7, 8, 14 and 28 px. A run uses `network.config.encoder.image_size` and
        `network.config.patch_size`.

        Raises:
            UsageError: if an instant does not exist.
            InputError: if a frame cannot be decoded.
        """
        chosen = range(self.num_times) if times is None else list(times)
        outside = [time for time in chosen if is_flag(time) or not 0 <= time < self.num_times]
        if outside or not chosen:
            found = f"no instant {outside[0]}" if outside else "no instants"
            raise UsageError(found, f"the scene has instants 0 to {self.num_times - 1}")
        if multiple < 1:
            raise UsageError(f"multiple is {multiple}", "give the patch size of the network")
        with open_batches(self, long_side, multiple) as reader:
            frames = {time: reader.read(time, time + 1).images for time in sorted(set(chosen))}
        return torch.cat([frames[time] for time in chosen], dim=1)


def with_instants(scene: Scene, instants: Sequence[int]) -> Scene:
    """Return the scene at some of its instants, in increasing order."""
    views = tuple(_view_at(view, instants) for view in scene.views)
    return replace(scene, views=views, times=scene.times[list(instants)])


def _view_at(view: View, instants: Sequence[int]) -> View:
    def paired(frames: PairedFrames | None) -> PairedFrames | None:
        return None if frames is None else replace(frames, indices=tuple(frames.indices[index] for index in instants))

    camera = view.camera
    if camera is not None and not camera.is_static:
        camera = replace(camera, world_to_camera=camera.world_to_camera[list(instants)])
    return replace(
        view,
        indices=tuple(view.indices[index] for index in instants),
        camera=camera,
        mask=paired(view.mask),
        depth=paired(view.depth),
    )
