"""Videos as frame sources: exact time stamps, upright square pixels, and damage that is never hidden.

Source of the container facts: PyAV and FFmpeg documentation; checked against clips made for the tests.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import ExternalError, FFmpegError, InvalidDataError, PatchWelcomeError
from av.video.reformatter import Colorspace, Interpolation
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.files import check_pixels, check_regular_file
from page4d.scene.records import Image, Level, Notice

VIDEO_SUFFIXES = frozenset(
    ".mp4 .mov .m4v .3gp .mkv .webm .avi .mts .m2ts .ts .mpg .mpeg .wmv .flv .mxf .ogv .gif .y4m .ivf .obu".split()
    + ".h264 .264 .h265 .265 .hevc".split()
)
"""File names that are taken for videos."""

_CONTAINERS = (
    "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,ogg,flv,asf,mxf,gif,ivf,m4v,dv,av1,obu,yuv4mpegpipe"
)
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"}
"""Playlists and image demuxers stay shut: a file called cam01.mp4 must not make us read other files."""

_DAMAGE = (InvalidDataError, PatchWelcomeError, ExternalError)
"""What decoders say to packets that make no sense."""

_SEEK_AFTER_S = 3.0
_SEEKABLE = ("mov", "matroska", "webm")
_UNSPECIFIED_COLOR = 2
_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
_QUARTER_TURN_DEG = 90
_EXACT_COLOR = 0x2000
"""FFmpeg's SWS_FULL_CHR_H_INT: without it, frames that are shrunk come out two levels too dark."""

_SIGNATURES = (
    (b"\x89PNG\r\n", "is a PNG image, not a video"),
    (b"\xff\xd8\xff", "is a JPEG image, not a video"),
    (b"BM", "is a BMP image, not a video"),
    (b"II*\0", "is a TIFF image, not a video"),
    (b"MM\0*", "is a TIFF image, not a video"),
    (b"ffconcat", "is a playlist (concat); only real video files are opened"),
    (b"#EXTM3U", "is a playlist (m3u8); only real video files are opened"),
    (b"<?xml", "is an XML file, not a video"),
    (b"<!DOCTYPE", "is a web page, not a video"),
    (b"version https://git-lfs", "is a git-lfs pointer, not a video"),
)


@dataclass(frozen=True, kw_only=True)
class VideoSource:
    """A video file, probed: every usable frame's presentation time is known, none is kept in memory.

    `size` is upright and with square pixels. `pts` holds the time stamp of each usable frame in units of the stream's
    time base; None if the stream has none and frames are found by counting. `is_timed` is False if even the frame
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
        with _open_container(self.path) as container:
            yield VideoReader(self, container, size or self.size)


class VideoReader:
    """A decoder that runs forward once; indices must not decrease over its life."""

    def __init__(self, source: VideoSource, container: Any, size: tuple[int, int]) -> None:
        self._source = source
        self._size = size
        self._stream = _video_stream(container, source.path)
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
        for position, frame, damaged in _decode_stream(self._container, self._stream):
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
    with _open_container(path) as container:
        stream = _video_stream(container, path)
        context = stream.codec_context
        check_pixels(path.name, context.width, context.height, max_megapixels)
        # Packets are dropped as they come: a recording of hours must not end up in memory.
        packets = [
            (p.pts, p.dts, p.is_keyframe, p.is_discard, p.is_corrupt) for p in container.demux(stream) if p.size
        ]
        stated = _stated_length(container, stream) - _left_out(container, [packet[1] for packet in packets])
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


def _stated_length(container: Any, stream: Any) -> int:
    """Return how many packets the container promises, 0 if it does not say; an edit list may hide some for good."""
    stated = int(stream.frames)
    return min(stated, len(stream.index_entries)) if container.format.name.startswith("mov") else stated


def _left_out(container: Any, dts: Sequence[int | None]) -> int:
    """Return how many frames an AVI counts but does not hold: capture programs write a dropped frame as no bytes."""
    known = [stamp for stamp in dts if stamp is not None]
    return max(known) + 1 - len(dts) if container.format.name == "avi" and known else 0


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


def damage_error(path: Path) -> InputError:
    """Decode a damaged video to its end and say exactly what is wrong with it."""
    scan = _scan(path)
    good = int(scan.good.sum())
    if good == 0:
        return InputError(f"{path.name} has no whole frame", "record or copy it again, or leave it out with --views")
    remedy = f"use --allow-damaged to use the {good} good frames"
    if scan.bad_packets == 0 or scan.ends_early:
        return InputError(f"{path.name} breaks off after frame {good - 1} of {max(scan.expected, good)}", remedy)
    packets = "1 damaged packet" if scan.bad_packets == 1 else f"{scan.bad_packets} damaged packets"
    at = f" at {scan.first_bad_s:.2f} s" if scan.first_bad_s is not None else ""
    concealed = int((~scan.good).sum())
    frames = "1 frame" if concealed == 1 else f"{concealed} frames"
    return InputError(f"{path.name} has {packets}{at}, {frames} concealed", remedy)


@dataclass(frozen=True)
class _Scan:
    """What a full decode finds: per decoded frame its time stamp and whether it is whole."""

    pts: list[int | None]
    good: NDArray[np.bool_]
    bad_packets: int
    first_bad_s: float | None
    expected: int
    ends_early: bool


def _scan(path: Path) -> _Scan:
    pts: list[int | None] = []
    dts: list[int | None] = []
    good: list[bool] = []
    bad_packets, first_bad_s, last_packet_bad = 0, None, False
    with _open_container(path) as container:
        stream = _video_stream(container, path)
        start = float((stream.start_time or 0) * stream.time_base)
        expected = _stated_length(container, stream)
        for packet in container.demux(stream):
            if packet.size:
                dts.append(packet.dts)
                last_packet_bad = bool(packet.is_corrupt)
            try:
                frames = packet.decode()
            except _DAMAGE:
                bad_packets += 1
                if first_bad_s is None and packet.pts is not None:
                    first_bad_s = float(packet.pts * stream.time_base) - start
                continue
            pts.extend(frame.pts for frame in frames)
            good.extend(not (frame.is_corrupt or packet.is_corrupt) for frame in frames)
        expected = max(expected - _left_out(container, dts), 0)
    ends_early = last_packet_bad or (expected > 0 and len(pts) + bad_packets < expected)
    return _Scan(pts, np.array(good, dtype=bool), bad_packets, first_bad_s, expected or len(pts), ends_early)


def _without_damage(source: VideoSource) -> VideoSource:
    """Keep only the frames that a full decode found whole, and say how many that is."""
    scan = _scan(source.path)
    good = int(scan.good.sum())
    if good == 0:
        raise InputError(
            f"{source.label} has no whole frame", "record or copy it again, or leave it out with --views"
        )
    lost = max(scan.expected, len(source.frame_times)) - good
    if lost == 0 and good == len(source.frame_times):
        return source
    notice = Notice(f"{source.label} is damaged: {good} good frames are used, {lost} left out")
    if source.pts is None:
        kept = np.flatnonzero(scan.good)
        return replace(
            source, positions=kept, frame_times=source.frame_times[kept], notices=(*source.notices, notice)
        )
    whole = {pts for pts, fine in zip(scan.pts, scan.good, strict=True) if fine}
    kept = np.array([index for index, pts in enumerate(source.pts) if int(pts) in whole], dtype=np.int64)
    return replace(
        source, pts=source.pts[kept], frame_times=source.frame_times[kept], notices=(*source.notices, notice)
    )


@contextmanager
def _open_container(path: Path) -> Iterator[Any]:
    try:
        container = av.open(str(path), options=dict(_OPTIONS), metadata_errors="replace")
    except FFmpegError as error:
        raise InputError(
            f"{path.name} {_what_it_is(path)}", "give a video file, or leave it out with --views"
        ) from error
    with container:
        try:
            yield container
        except MemoryError:
            raise
        except FFmpegError as error:
            raise InputError(
                f"{path.name} cannot be decoded: {error.strerror}", "convert or record it again"
            ) from error


def _what_it_is(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(64)
    for signature, text in _SIGNATURES:
        if head.startswith(signature):
            return text
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide"):
        return "is incomplete (recording or copy did not finish)"
    return "is not a video (cannot be recognised)"


def _video_stream(container: Any, path: Path) -> Any:
    streams = [stream for stream in container.streams.video if "attached_pic" not in str(stream.disposition)]
    if not streams:
        raise InputError(
            f"{path.name} has no video stream", "give a file with pictures, or leave it out with --views"
        )
    stream = streams[0]
    if stream.codec_context is None or not stream.codec_context.is_decoder:
        raise InputError(
            f"{path.name} uses a codec or encryption that this PyAV {av.__version__} cannot decode",
            "convert it: ffmpeg -i IN -c:v libx264 -crf 12 OUT.mp4",
        )
    stream.thread_type = "AUTO"
    return stream


def _decode_stream(container: Any, stream: Any) -> Iterator[tuple[int, Any, bool]]:
    """Yield (position in decoding order, frame or None, whether something was damaged)."""
    position = 0
    size = None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except _DAMAGE:
            yield position, None, True
            continue
        for frame in frames:
            if size is not None and size != (frame.width, frame.height):
                at = f"frame {position}" if frame.pts is None else f"{float(frame.pts * stream.time_base):.1f} s"
                raise InputError(
                    f"{Path(container.name).name} changes size at {at} "
                    f"({size[0]}x{size[1]} -> {frame.width}x{frame.height})",
                    "split the recording where it changes",
                )
            size = (frame.width, frame.height)
            yield position, frame, bool(frame.is_corrupt or packet.is_corrupt)
            position += 1


def _first_frame(path: Path) -> Any:
    with _open_container(path) as container:
        for _, frame, _ in _decode_stream(container, _video_stream(container, path)):
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
