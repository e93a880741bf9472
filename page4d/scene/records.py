"""The records of a capture: clocks, frame sources, views, the scene, and the batches that a network reads."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import METRIC_DEPTH_SCALE, Scale
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.distortion import Distortion
from page4d.geometry.pixels import PixelTransform

Image = NDArray[Any]
"""RGB pixels [H, W, 3] (masks: [H, W]) as uint8, or uint16 where the source has more than 8 bits."""


class Level(StrEnum):
    """How much a notice matters."""

    INFO = "info"
    STEP = "step"
    """What takes a while, told to whoever waits."""

    WARNING = "warning"


@dataclass(frozen=True)
class Notice:
    """Something that the user should know although the work goes on."""

    text: str
    level: Level = Level.WARNING


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How a view's own time maps to the common clock: `common = offset_s + rate * own`.

    `own` counts seconds from the view's first frame. A camera whose clock runs slow by one part in a thousand has a
    rate of 1.001.
    """

    offset_s: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not abs(self.offset_s) < float("inf") or not 0 < self.rate < float("inf"):
            raise UsageError(
                f"a clock with offset {self.offset_s} s and rate {self.rate}",
                "offsets are finite, rates are positive",
            )

    def to_common(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map times of the view to the common clock."""
        return self.offset_s + self.rate * own


class FrameReader(Protocol):
    """An open source that decodes forward; indices must increase over the reader's life."""

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames with these indices."""
        ...


@runtime_checkable
class FrameSource(Protocol):
    """Where a view's frames come from. Sizes are upright, with square pixels, as (height, width)."""

    @property
    def label(self) -> str:
        """File or folder name for messages."""
        ...

    @property
    def codec(self) -> str:
        """How the frames are stored, such as `h264` or `png`."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every frame."""
        ...

    @property
    def frame_times(self) -> NDArray[np.float64]:
        """Time of every frame in seconds from the first, increasing."""
        ...

    def open(self, size: tuple[int, int] | None = None) -> AbstractContextManager[FrameReader]:
        """Start decoding from the first frame on, resized to `size` (height, width) if given."""
        ...


@dataclass(frozen=True, kw_only=True)
class ViewCamera:
    """A view's calibrated camera at original pixels, after its calibration was matched to the video's size.

    `world_to_camera` is [4, 4] for a camera that stands still, else [T, 4, 4] on the scene's times. `intrinsics`
    [3, 3] are those of the undistorted image.
    """

    world_to_camera: Float[Tensor, "*T 4 4"]
    intrinsics: Float[Tensor, "3 3"]
    distortion: Distortion | None = None


@dataclass(frozen=True, kw_only=True)
class PairedFrames:
    """Masks or depth maps of a view: for each of the scene's times the index of a frame of `frames`."""

    frames: FrameSource
    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class View:
    """One camera of the rig: which of its frames belong to the scene's times."""

    name: str
    source: FrameSource
    clock: Clock
    indices: tuple[int, ...]
    camera: ViewCamera | None = None
    mask: PairedFrames | None = None
    depth: PairedFrames | None = None


class MaskMeaning(StrEnum):
    """What a non-zero mask pixel says."""

    DYNAMIC = "dynamic"
    IGNORE = "ignore"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A synchronized capture: V views on one clock, T instants at which every view has a frame.

    No pixel is decoded yet. `times` are seconds on the common clock. `scale` says what one unit of
    the calibration is. Measured depth maps have `depth_levels` levels per unit.
    `other_files` are those that were read beside the views, such as the calibration.
    """

    name: str
    views: tuple[View, ...]
    times: NDArray[np.float64]
    scale: Scale = Scale.ARBITRARY
    mask_meaning: MaskMeaning = MaskMeaning.DYNAMIC
    depth_levels: float = METRIC_DEPTH_SCALE
    synchronisation: str = "same start"
    calibration: str | None = None
    other_files: tuple[Path, ...] = ()
    notices: tuple[Notice, ...] = field(default=())

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


@dataclass(frozen=True, kw_only=True)
class FrameBatch:
    """Decoded frames of T instants as a network reads them.

    `images` are RGB in [0, 1]. `valid` is False on padding, on pixels that undistortion leaves empty and on pixels
    that a mask says to ignore. `dynamic` is the external probability of motion, where the user gave masks for it.
    `cameras` are the calibrated ones at network pixels, if every view has one. `depth` is measured z-depth in the
    calibration's unit, 0 where the sensor saw nothing.

    Views whose transforms have canvases of different sizes lie at the top left of a common one [H, W], and what is
    beyond a view's own canvas belongs to no image.
    """

    times: Float[Tensor, " T"]
    view_names: tuple[str, ...]
    pixel_transforms: tuple[PixelTransform, ...]
    images: Float[Tensor, "B T V 3 H W"]
    valid: Bool[Tensor, "B T V H W"]
    dynamic: Float[Tensor, "B T V H W"] | None = None
    cameras: Cameras | None = None
    depth: Float[Tensor, "B T V H W"] | None = None
