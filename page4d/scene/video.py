"""Video files as frame sources: sequential decoding with seeking, resizing and conversion to RGB."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from av.video.reformatter import Colorspace, Interpolation
from numpy.typing import NDArray

from page4d.scene.container import damage_error, decode_stream, open_container, video_stream
from page4d.scene.orientation import Orientation
from page4d.scene.records import Image, Notice

VIDEO_SUFFIXES = frozenset(
    ".mp4 .mov .m4v .3gp .mkv .webm .avi .mts .m2ts .ts .mpg .mpeg .wmv .flv .mxf .ogv .gif .y4m .ivf .obu".split()
    + ".h264 .264 .h265 .265 .hevc".split()
)
"""Suffixes of video files."""

_SEEK_AFTER_S = 3.0
_SEEKABLE = ("mov", "matroska", "webm")
_UNSPECIFIED_COLOR = 2
_HD_HEIGHT_PX = 720
_EXACT_COLOR = 0x2000
"""FFmpeg's SWS_FULL_CHR_H_INT: without it, downscaled frames are two levels too dark."""


@dataclass(frozen=True, kw_only=True)
class VideoSource:
    """A probed video file: presentation times of all usable frames, but no pixels.

    `size` is that of the upright frame with square pixels. `pts` are the time stamps of the usable frames in units of
    the stream's time base; None if the stream has none and frames are found by counting. `positions` are the usable
    frames' positions in the file. `is_timed` is False if the frame rate is assumed. `key_pts` are the time stamps of
    key frames.
    """

    path: Path
    codec: str
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    pts: NDArray[np.int64] | None
    positions: NDArray[np.int64]
    key_pts: NDArray[np.int64]
    is_timed: bool
    orientation: Orientation
    bit_depth: int
    has_audio: bool
    timecode: str | None
    tolerates_damage: bool = False
    notices: tuple[Notice, ...] = ()

    @property
    def label(self) -> str:
        """File name for messages."""
        return self.path.name

    @contextmanager
    def open(self, size: tuple[int, int] | None = None) -> Iterator["VideoReader"]:
        """Start decoding at the first frame, resizing to `size` (height, width) if given."""
        with open_container(self.path) as container:
            reader = VideoReader(self, container, size or self.size)
            try:
                yield reader
            finally:
                reader.close()


class VideoReader:
    """A forward decoder: indices must not decrease over its lifetime."""

    def __init__(self, source: VideoSource, container: Any, size: tuple[int, int]) -> None:
        self._source = source
        self._size = size
        self._stream = video_stream(container, source.path)
        self._container = container
        self._frames: Iterator[tuple[int, Any]] | None = None
        self._last: tuple[int, Image] | None = None

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames with these indices as RGB; frames in between are not converted.

        Raises:
            InputError: if the stream is damaged or ends before the last index.
        """
        for index in indices:
            if self._last is None or self._last[0] != index:
                self._last = (index, self._advance_to(index))
            yield self._last[1]

    def close(self) -> None:
        """Free the decoder at once.

        Its generator refers to the reader and would live until a garbage collection; in a forked process, such as a
        worker of a PyTorch `DataLoader`, that waits forever for the decoder's threads.
        """
        self._frames = None

    def _advance_to(self, index: int) -> Image:
        current = 0 if self._last is None else self._last[0]
        if self._should_seek(current, index):
            self._frames = self._decode_from(index)
            if self._peek() > index:
                # Some files have no key frame at or before the index: decode from the start instead.
                self._frames = self._decode_from(0)
        self._frames = self._frames or self._decode(seeked=False)
        for found, frame in self._frames:
            if found == index:
                return _to_rgb(frame, self._size, self._source.orientation, self._source.bit_depth)
            if found > index:
                break
        raise damage_error(self._source.path)

    def _should_seek(self, current: int, index: int) -> bool:
        """Return True if seeking saves work: the index is far ahead and a key frame lies in between."""
        source = self._source
        if source.pts is None or not self._container.format.name.startswith(_SEEKABLE):
            return False
        far = source.frame_times[index] - source.frame_times[current] > _SEEK_AFTER_S
        between = (source.key_pts > source.pts[current]) & (source.key_pts <= source.pts[index])
        return bool(far and between.any())

    def _decode_from(self, index: int) -> Iterator[tuple[int, Any]]:
        """Seek to the key frame before an index."""
        assert self._source.pts is not None
        self._container.seek(int(self._source.pts[index]), stream=self._stream, backward=True)
        return self._decode(seeked=True)

    def _peek(self) -> int:
        """Return the index of the next frame without consuming it, -1 at the end."""
        assert self._frames is not None
        first = next(self._frames, None)
        if first is None:
            return -1
        self._frames = chain([first], self._frames)
        return first[0]

    def _decode(self, seeked: bool) -> Iterator[tuple[int, Any]]:
        source = self._source
        for position, frame, damaged in decode_stream(self._container, self._stream):
            if damaged and not source.tolerates_damage and not seeked:
                raise damage_error(source.path)
            if frame is None or (damaged and seeked):
                # After a seek, frames that reference frames before the key frame are broken, and none is needed.
                continue
            if source.pts is None:
                index = int(np.searchsorted(source.positions, position))
                known = index < len(source.positions) and source.positions[index] == position
            else:
                index = int(np.searchsorted(source.pts, frame.pts))
                known = index < len(source.pts) and source.pts[index] == frame.pts
            if known:
                seeked = False
                yield index, frame


def _to_rgb(frame: Any, size: tuple[int, int], orientation: Orientation, bit_depth: int) -> Image:
    """Convert and resize in one pass of FFmpeg's scaler; more than 8 bits become 16."""
    height, width = orientation.size(size)
    untagged = int(frame.colorspace) == _UNSPECIFIED_COLOR and not frame.format.is_rgb
    # Like video players: untagged HD is BT.709, untagged SD is BT.601.
    source = (Colorspace.ITU709 if frame.height >= _HD_HEIGHT_PX else Colorspace.ITU601) if untagged else None
    layout = "rgb48le" if bit_depth > 8 else "rgb24"
    method = Interpolation.AREA if height < frame.height else Interpolation.BICUBIC
    converted = frame.reformat(
        width=width, height=height, format=layout, src_colorspace=source, interpolation=method | _EXACT_COLOR
    )
    return orientation.apply(converted.to_ndarray())
