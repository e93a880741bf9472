"""Videos as frame sources: exact time stamps, upright square pixels, and damage that is never hidden."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from av.video.reformatter import Colorspace, Interpolation
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.container import decode_stream, left_out, open_container, stated_length, video_stream
from page4d.scene.damage import damage_error, scan
from page4d.scene.files import check_pixels, check_regular_file
from page4d.scene.records import Image, Level, Notice

VIDEO_SUFFIXES = frozenset(
    ".mp4 .mov .m4v .3gp .mkv .webm .avi .mts .m2ts .ts .mpg .mpeg .wmv .flv .mxf .ogv .gif .y4m .ivf .obu".split()
    + ".h264 .264 .h265 .265 .hevc".split()
)
"""File names that are taken for videos."""

_SEEK_AFTER_S = 3.0
_SEEKABLE = ("mov", "matroska", "webm")
_UNSPECIFIED_COLOR = 2
_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
_QUARTER_TURN_DEG = 90
_EXACT_COLOR = 0x2000
"""FFmpeg's SWS_FULL_CHR_H_INT: without it, frames that are shrunk come out two levels too dark."""


@dataclass(frozen=True, kw_only=True)
class VideoSource:
    """A video file, probed: every usable frame's presentation time is known, none is kept in memory.

    `size` is upright and with square pixels. `pts` holds the time stamp of each usable frame in units of the stream's
    time base; None if the stream has none and frames are found by counting. `positions` numbers the usable frames
    among all of the file. `is_timed` is False if even the frame
    rate had to be assumed. `key_pts` are the time stamps at which decoding can start.
    """

    path: Path
    codec: str
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    pts: NDArray[np.int64] | None
    positions: NDArray[np.int64]
    key_pts: NDArray[np.int64]
    is_timed: bool
    quarter_turns: int
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
        """Start decoding from the first frame on, resized to `size` (height, width) if given."""
        with open_container(self.path) as container:
            yield VideoReader(self, container, size or self.size)


class VideoReader:
    """A decoder that runs forward once; indices must not decrease over its life."""

    def __init__(self, source: VideoSource, container: Any, size: tuple[int, int]) -> None:
        self._source = source
        self._size = size
        self._stream = video_stream(container, source.path)
        self._container = container
        self._frames: Iterator[tuple[int, Any]] | None = None
        self._held: tuple[int, Image] | None = None

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames with these indices, converted to RGB only where they are wanted.

        Raises:
            InputError: if the stream is damaged or ends before the last of them.
        """
        for index in indices:
            if self._held is None or self._held[0] != index:
                self._held = (index, self._advance_to(index))
            yield self._held[1]

    def _advance_to(self, index: int) -> Image:
        reached = 0 if self._held is None else self._held[0]
        if self._should_seek(reached, index):
            self._frames = self._decode_from(index)
            if self._peek() > index:
                # Some files name no key frame early enough: decode from the start instead.
                self._frames = self._decode_from(0)
        self._frames = self._frames or self._decode(seeked=False)
        for found, frame in self._frames:
            if found == index:
                return _to_rgb(frame, self._size, self._source.quarter_turns, self._source.bit_depth)
            if found > index:
                break
        raise damage_error(self._source.path)

    def _should_seek(self, reached: int, index: int) -> bool:
        """Tell whether a jump saves work: far ahead, with a key frame in between."""
        source = self._source
        if source.pts is None or not self._container.format.name.startswith(_SEEKABLE):
            return False
        far = source.frame_times[index] - source.frame_times[reached] > _SEEK_AFTER_S
        between = (source.key_pts > source.pts[reached]) & (source.key_pts <= source.pts[index])
        return bool(far and between.any())

    def _decode_from(self, index: int) -> Iterator[tuple[int, Any]]:
        """Jump to the key frame before a frame."""
        assert self._source.pts is not None
        self._container.seek(int(self._source.pts[index]), stream=self._stream, backward=True)
        return self._decode(seeked=True)

    def _peek(self) -> int:
        """Return the index of the next frame without using it up; past the end it is -1."""
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
                # After a jump, frames that lean on those before the key frame come out broken; none is wanted.
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


def probe_video(path: Path, *, max_megapixels: float, allow_damaged: bool = False) -> VideoSource:
    """Read a video's time stamps and facts; decodes one frame, or all of them if `allow_damaged`.

    Raises:
        InputError: for anything that is not a whole, decodable video; the message names the file.
    """
    check_regular_file(path)
    header = _read_header(path, max_megapixels)
    first = _first_frame(path)
    if header.breaks_off and not allow_damaged:
        raise damage_error(path)
    size, turns, pixel_notices = _upright_size(path, first, header.pixel_aspect)
    notices = (*pixel_notices, *_color_notices(path, first, header.has_alpha))
    pts, times, is_timed = _frame_times(header)
    if not is_timed:
        notices = (*notices, Notice(f"{path.stem}: no time stamps; assuming {header.rate:g} fps"))
    source = VideoSource(
        path=path,
        codec=header.codec,
        size=size,
        frame_times=times,
        pts=pts,
        positions=np.arange(len(times), dtype=np.int64),
        key_pts=np.array(header.key_pts, dtype=np.int64),
        is_timed=is_timed,
        quarter_turns=turns,
        bit_depth=first.format.components[0].bits,
        has_audio=header.has_audio,
        timecode=header.timecode,
        tolerates_damage=allow_damaged,
        notices=notices,
    )
    return _without_damage(source) if allow_damaged else source


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What demultiplexing alone tells; the lists have the time stamps of each packet that is displayed."""

    container: str
    codec: str
    pixel_aspect: float
    rate: float
    time_base: float
    shown_pts: list[int | None]
    shown_dts: list[int | None]
    key_pts: list[int]
    breaks_off: bool
    has_audio: bool
    has_alpha: bool
    timecode: str | None


def _read_header(path: Path, max_megapixels: float) -> _Header:
    with open_container(path) as container:
        stream = video_stream(container, path)
        context = stream.codec_context
        check_pixels(path.name, context.width, context.height, max_megapixels)
        # Packets are dropped as they come: a recording of hours must not end up in memory.
        packets = [
            (p.pts, p.dts, p.is_keyframe, p.is_discard, p.is_corrupt) for p in container.demux(stream) if p.size
        ]
        stated = stated_length(container, stream) - left_out(container, [packet[1] for packet in packets])
        shown = [(pts, dts, key) for pts, dts, key, discarded, _ in packets if not discarded]
        return _Header(
            container=container.format.name,
            codec=context.name,
            pixel_aspect=float(stream.sample_aspect_ratio or 1.0),
            rate=float(stream.guessed_rate or stream.average_rate or 25),
            time_base=float(stream.time_base),
            shown_pts=[pts for pts, _, _ in shown],
            shown_dts=[dts for _, dts, _ in shown],
            key_pts=[pts for pts, _, key in shown if key and pts is not None],
            breaks_off=any(corrupt for *_, corrupt in packets) or 0 < len(packets) < stated,
            has_audio=bool(container.streams.audio),
            # FFmpeg's own VP8 and VP9 decoders drop it without a word.
            has_alpha=stream.metadata.get("alpha_mode") == "1",
            timecode=_timecode(container, stream),
        )


def _frame_times(header: _Header) -> tuple[NDArray[np.int64] | None, NDArray[np.float64], bool]:
    """Return the time stamps, the seconds of each frame from the first, and whether the file states them.

    AVI knows when packets are decoded, not when they are shown: its frames come in that rhythm, in display order.
    """
    pts, dts = ([stamp for stamp in given if stamp is not None] for given in (header.shown_pts, header.shown_dts))
    if header.container != "avi" and len(pts) == len(header.shown_pts):
        stamps = np.unique(np.array(pts, dtype=np.int64))
        return stamps, (stamps - stamps[0]) * header.time_base, True
    if header.container == "avi" and len(set(dts)) == len(header.shown_dts):
        ticks = np.sort(np.array(dts, dtype=np.int64))
        return None, (ticks - ticks[0]) * header.time_base, True
    return None, np.arange(len(header.shown_pts)) / header.rate, header.container == "avi"


def _without_damage(source: VideoSource) -> VideoSource:
    """Keep only the frames that a full decode found whole, and say how many that is."""
    found = scan(source.path)
    good = int(found.good.sum())
    if good == 0:
        raise InputError(
            f"{source.label} has no whole frame", "record or copy it again, or leave it out with --views"
        )
    lost = max(found.expected, len(source.frame_times)) - good
    if lost == 0 and good == len(source.frame_times):
        return source
    notice = Notice(f"{source.label} is damaged: {good} good frames are used, {lost} left out")
    if source.pts is None:
        kept = np.flatnonzero(found.good)
        return replace(
            source, positions=kept, frame_times=source.frame_times[kept], notices=(*source.notices, notice)
        )
    whole = {pts for pts, fine in zip(found.pts, found.good, strict=True) if fine}
    kept = np.array([index for index, pts in enumerate(source.pts) if int(pts) in whole], dtype=np.int64)
    return replace(
        source,
        pts=source.pts[kept],
        positions=kept,
        frame_times=source.frame_times[kept],
        notices=(*source.notices, notice),
    )


def _first_frame(path: Path) -> Any:
    with open_container(path) as container:
        for _, frame, _ in decode_stream(container, video_stream(container, path)):
            if frame is not None:
                return frame
    raise InputError(f"{path.name} has no frame that can be decoded", "record or copy it again")


def _upright_size(path: Path, frame: Any, pixel_aspect: float) -> tuple[tuple[int, int], int, list[Notice]]:
    """Return (height, width) after squaring the pixels and turning the frame, the quarter turns, and what to say."""
    notices = []
    height, width = frame.height, frame.width
    if abs(pixel_aspect - 1) > 1e-3:
        width = round(width * pixel_aspect)
        notices.append(
            Notice(f"{path.stem}: pixels are {pixel_aspect:.4g}:1, frames are resampled to square ({width}x{height})")
        )
    turns, rest = divmod(round(frame.rotation) % 360, _QUARTER_TURN_DEG)
    if rest:
        notices.append(
            Notice(f"{path.stem}: a rotation of {frame.rotation} degrees is not applied (not a quarter turn)")
        )
    elif turns:
        clockwise = 360 - turns * _QUARTER_TURN_DEG
        notices.append(Notice(f"{path.stem}: rotated {clockwise} degrees clockwise", Level.INFO))
    return ((width, height) if turns % 2 else (height, width)), turns, notices


def _color_notices(path: Path, frame: Any, has_alpha: bool) -> list[Notice]:
    notices = []
    transfer = _HDR_TRANSFERS.get(int(frame.color_trc))
    if transfer:
        notices.append(Notice(f"{path.stem}: HDR ({transfer}); converted to SDR without tone mapping"))
    layout = frame.format.name
    if has_alpha or layout.startswith(("yuva", "gbrap", "rgba", "argb", "bgra", "abgr", "ya8", "ya16")):
        notices.append(Notice(f"{path.stem}: alpha ignored"))
    return notices


def _timecode(container: Any, stream: Any) -> str | None:
    for metadata in (stream.metadata, container.metadata, *(other.metadata for other in container.streams)):
        # Matroska writes the name in capitals.
        codes = [str(value) for key, value in metadata.items() if key.lower() == "timecode"]
        if codes:
            return codes[0]
    return None


def _to_rgb(frame: Any, size: tuple[int, int], quarter_turns: int, bit_depth: int) -> Image:
    """Convert and resize in one pass of the decoder's scaler; more than 8 bits come out as 16."""
    height, width = (size[1], size[0]) if quarter_turns % 2 else size
    untagged = int(frame.colorspace) == _UNSPECIFIED_COLOR and not frame.format.is_rgb
    # Players take untagged HD as BT.709 and untagged SD as BT.601; so does everyone who looked at the footage.
    source = (Colorspace.ITU709 if frame.height >= 720 else Colorspace.ITU601) if untagged else None
    layout = "rgb48le" if bit_depth > 8 else "rgb24"
    method = Interpolation.AREA if height < frame.height else Interpolation.BICUBIC
    converted = frame.reformat(
        width=width,
        height=height,
        format=layout,
        src_colorspace=source,
        interpolation=method | _EXACT_COLOR,
    )
    pixels = converted.to_ndarray()
    return np.ascontiguousarray(np.rot90(pixels, quarter_turns)) if quarter_turns else pixels
