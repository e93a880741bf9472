"""`FrameSource` without a file: frames are rendered when they are read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.scene.records import FrameReader, Image


@dataclass(frozen=True, kw_only=True)
class RenderedSource:
    """Frames of one view; `render` returns the RGB pixels of a frame given its index.

    `label` names the source in messages, `size` is (height, width), `frame_times` are seconds from the first frame.
    """

    label: str
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    render: Callable[[int], Image]

    @property
    def codec(self) -> str:
        """Name of the storage format."""
        return "rendered"

    def open(self, size: tuple[int, int] | None = None) -> AbstractContextManager[FrameReader]:
        """Return a reader of frames, resized to `size` (height, width) if given."""
        return nullcontext(_RenderedReader(render=self.render, size=size or self.size))


@dataclass(frozen=True, kw_only=True)
class _RenderedReader:
    render: Callable[[int], Image]
    size: tuple[int, int]

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames at `indices`."""
        for index in indices:
            frame = self.render(index)
            if self.size == frame.shape[:2]:
                yield frame
            else:
                yield np.asarray(cv2.resize(frame, self.size[::-1], interpolation=cv2.INTER_AREA), dtype=np.uint8)
