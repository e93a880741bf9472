"""Video files as frame sources: sequential decoding with seeking, resizing and conversion to RGB.

Recordings are scanned for damage, packet by packet; packets and bytes are compared with what headers state.

Source of container facts: PyAV and FFmpeg documentation, checked against the clips of the tests.
"""

import errno
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
from av.error import ExternalError, FFmpegError, InvalidDataError, PatchWelcomeError
from av.stream import Disposition
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter
from numpy.typing import NDArray

from page4d.errors import InputError, Notice, counted
from page4d.io.exhaustion import is_exhausted
from page4d.io.input_files import check_regular_file
from page4d.scene.image_file import Image, Orientation

_STATE_DURATION = ("matroska", "flv", "mxf")
"""Containers whose duration is in a header; FFmpeg derives it from the last packets in most others."""

_FRAMES_SHORT = 2.0
_SECONDS_SHORT = 0.1
"""Shortest missing part that counts, in frame periods and in seconds: writers disagree about the last frame."""

_TS_SYNC = 0x47
_TS_PACKET_BYTES = {188: 0, 192: 4, 204: 0}
"""Sizes of transport packets, and the number of bytes before their sync byte."""

_BOXES = (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"sidx", b"mfra", b"free", b"skip", b"wide", b"uuid", b"meta")
_SEGMENT = 0x18538067
_ASF_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_LARGEST_OGG_PAGE = 65307
"""Bytes of a page with its header. Source: RFC 3533, 6."""

_END_OF_STREAM = 4
_TAIL_BYTES = 512


class PacketExtent:
    """The end of the packets of each stream, compared with the end that the file states."""

    def __init__(self, path: Path, container: Any, stream: Any) -> None:
        self._path = path
        self._container = container
        self._stream = stream
        self._end_s: dict[int, float] = {}
        self._last_byte = 0

    def packets(self) -> Iterator[Any]:
        """Demultiplex the file and yield the packets of the video stream, the last of which is empty."""
        states_duration = self._container.format.name.startswith(_STATE_DURATION)
        for packet in self._container.demux(*([] if states_duration else [self._stream])):
            index, stamp = packet.stream.index, packet.dts if packet.pts is None else packet.pts
            if packet.size and stamp is not None:
                end_s = float((stamp + (packet.duration or 0)) * packet.stream.time_base)
                self._end_s[index] = max(end_s, self._end_s.get(index, end_s))
                self._last_byte = max(self._last_byte, (packet.pos or 0) + packet.size)
            if index == self._stream.index:
                yield packet

    def is_cut(self) -> bool:
        """Return True if the file states more than it contains; call it after the last packet."""
        name, size = self._container.format.name, self._path.stat().st_size
        if name == "yuv4mpegpipe":
            return self._last_byte < size
        stated = stated_size(self._path, name)
        return self._misses_stated_duration() if stated is None else size < stated

    def _misses_stated_duration(self) -> bool:
        """Compare the video, or if it states no duration of its own all streams, with the stated duration."""
        name, stream = self._container.format.name, self._stream
        if not name.startswith(_STATE_DURATION) or not self._end_s:
            return False
        slack = max(_SECONDS_SHORT, _FRAMES_SHORT / float(stream.guessed_rate or 25))
        own = _seconds(stream.metadata.get("DURATION", ""))
        if own is not None and self._end_s.get(stream.index, 0.0) > own - slack:
            return False
        return max(self._end_s.values()) < (self._container.duration or 0) / 1e6 - slack


def _seconds(text: str) -> float | None:
    """Parse the duration of a Matroska tag, such as 00:01:02.500000000."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d*)?)", text.strip("\0 "))
    return None if match is None else int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])


def stated_size(path: Path, container: str) -> int | None:
    """Return the size of a file in bytes according to its headers, None if they do not state it.

    Source: ISO/IEC 14496-12, 4.2 (boxes); RFC 8794, 6 and RFC 9559 (EBML, Matroska); ISO/IEC 13818-1, 2.4.3.2
    (transport packets); Microsoft, Advanced Systems Format, 3.2; CompuServe, GIF89a, 27 (trailer); RFC 3533, 6 (Ogg).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if container.startswith("mov"):
            return _end_of_boxes(file, size)
        if container.startswith("matroska"):
            return _end_of_segment(file, size)
        if container == "mpegts":
            return _end_of_transport_packets(file, size)
        if container == "asf":
            head = file.read(4096)
            at = head.find(_ASF_FILE_PROPERTIES)
            return int.from_bytes(head[at + 40 : at + 48], "little") or None if at >= 0 else None
        if container == "gif":
            return size + (not _tail(file, size, _TAIL_BYTES).rstrip(b"\0").endswith(b";"))
        if container == "ogg":
            return _end_of_pages(_tail(file, size, _LARGEST_OGG_PAGE), size)
    return None


def _tail(file: BinaryIO, size: int, count: int) -> bytes:
    file.seek(max(size - count, 0))
    return file.read()


def _boxes(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield type, offset and length of the boxes of an MP4; a length of 0 ends them: it is unknown or no box."""
    at = 0
    while at + 16 <= size:
        file.seek(at)
        head = file.read(16)
        stated = int.from_bytes(head[:4], "big")
        length = max(int.from_bytes(head[8:], "big") if stated == 1 else stated, 8)
        if head[4:8] not in _BOXES or stated == 0:
            length = 0
        yield head[4:8], at, length
        if length == 0:
            return
        at += length


def _end_of_boxes(file: BinaryIO, size: int) -> int | None:
    end = 0
    for _, at, length in _boxes(file, size):
        if length == 0:
            return None
        end = at + length
    return end


def timecode_rate(path: Path) -> float | None:
    """Return how many numbers per second the time code track of an MP4 or MOV counts, None without such a track.

    It may differ from the frame rate: many cameras count 30 numbers per second of 60 frames.

    Source: Apple, QuickTime File Format, "Timecode sample description" (time scale and frame duration).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        for kind, at, length in _boxes(file, size):
            if kind == b"moov":
                file.seek(at)
                found = re.search(rb"stsd.{12}tmcd.{16}(.{4})(.{4})", file.read(length), re.DOTALL)
                scale, duration = (int.from_bytes(part, "big") for part in (found.groups() if found else (b"", b"")))
                return scale / duration if duration else None
    return None


def _end_of_segment(file: BinaryIO, size: int) -> int | None:
    """Return the end of the segment of a Matroska file, None for a live recording or if the file ends in zeros."""
    head = file.read(4096)
    at = head.find(_SEGMENT.to_bytes(4, "big")) + 4
    if at < 4 or at >= len(head):
        return None
    width = 9 - head[at].bit_length()
    stated = int.from_bytes(head[at : at + width], "big") & ((1 << 7 * width) - 1)
    if width > 8 or stated == (1 << 7 * width) - 1:
        return None
    return at + width + stated if _tail(file, size, _TAIL_BYTES).strip(b"\0") else None


def _end_of_pages(tail: bytes, size: int) -> int | None:
    """Return the end of the last page of an Ogg file, or one byte more if the stream continues."""
    page = tail[max(tail.rfind(b"OggS"), 0) :]
    if len(page) < 27:
        return size + 1
    num_segments = page[26]
    end = size - len(page) + 27 + num_segments + sum(page[27 : 27 + num_segments])
    return end if page[5] & _END_OF_STREAM else size + 1


def _end_of_transport_packets(file: BinaryIO, size: int) -> int | None:
    """Return the size rounded up to whole packets."""
    head = file.read(8192)
    for length, before in _TS_PACKET_BYTES.items():
        for start in range(length):
            if len(head) >= 3 * length and set(head[start + before :: length]) == {_TS_SYNC}:
                rest = (size - start) % length
                file.seek(size - rest + before)
                return size - rest + length if rest > before and file.read(1) == bytes([_TS_SYNC]) else None
    return None


_CONTAINERS = (
    "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,ogg,flv,asf,mxf,gif,ivf,m4v,dv,av1,obu,yuv4mpegpipe"
)
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"}
"""Excludes playlists and image sequences, with which a file called cam01.mp4 could refer to other files."""

_DECODER_ERRORS = (InvalidDataError, PatchWelcomeError, ExternalError)
"""Errors of decoders on damaged packets."""

_SIGNATURES = (
    (b"\x89PNG\r\n", "is a PNG image, not a video"),
    (b"\xff\xd8\xff", "is a JPEG image, not a video"),
    (b"BM", "is a BMP image, not a video"),
    (b"II*\0", "is a TIFF image, not a video"),
    (b"MM\0*", "is a TIFF image, not a video"),
    (b"ffconcat", "is a playlist (concat), not a video"),
    (b"#EXTM3U", "is a playlist (m3u8), not a video"),
    (b"<?xml", "is an XML file, not a video"),
    (b"<!DOCTYPE", "is a web page, not a video"),
    (b"version https://git-lfs", "is a git-lfs pointer, not a video"),
)
_INCOMPLETE = "is incomplete or damaged (recording or copy may not have finished)"

_MOST_BYTES = 1 << 31
"""FFmpeg's limit of one allocation; more than this is requested only for damaged files."""

_NOT_FOOTAGE = (
    Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image | Disposition.dependent
)
"""Streams that are not footage: cover art, thumbnails, and parts of other streams."""


@contextmanager
def open_container(path: Path) -> Iterator[Any]:
    """Open a video file.

    Raises:
        InputError: if it is not a video, or FFmpeg fails in the body.
        MemoryError, OSError: if the machine fails, such as with too little memory or too many open files.
    """
    try:
        # Without the prefix, the part of a name before a colon would be a protocol.
        container = av.open(f"file:{os.fspath(path)}", options=dict(_OPTIONS), metadata_errors="replace")
    except FFmpegError as error:
        if is_resource_error(error):
            raise
        check_regular_file(path)  # it may have been removed since
        raise InputError(
            f"{path.name} {_describe_content(path)}", "give a video file, or exclude it with ⟨views⟩"
        ) from error
    with container:
        try:
            yield container
        except FFmpegError as error:
            if is_resource_error(error):
                raise
            raise InputError(
                f"{path.name} cannot be decoded: {error.strerror}", "convert or record it again"
            ) from error


def is_resource_error(error: FFmpegError) -> bool:
    """Return True if the machine failed, not the file."""
    return is_exhausted(error) and (error.errno != errno.ENOMEM or memory_is_scarce())


def memory_is_scarce() -> bool:
    """Return True if FFmpeg may fail to allocate memory: its decoders report frames without memory as damaged."""
    try:
        mmap.mmap(-1, _MOST_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return True
    return False


def check_decoding_memory(path: Path) -> None:
    """Check that there is memory for decoding, before a file is reported as damaged.

    Raises:
        MemoryError: if memory is scarce.
    """
    if memory_is_scarce():
        raise MemoryError(f"too little memory to decode {path.name}")


def _describe_content(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(64)
    for signature, text in _SIGNATURES:
        if head.startswith(signature):
            return text
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide"):
        return _INCOMPLETE
    return "is not a video (unknown file format)"


_COUNTED_PACKETS, _FEW_PACKETS = 200, 0.1
"""Packets of a file with several streams that are counted, and the share of the most of one stream from which another
is footage, too, rather than a few stills."""


def video_streams(container: Any, path: Path, *, is_footage: bool) -> list[Any]:
    """Return the streams without covers: the largest in colour first for footage, gray ones for masks and depth.

    Streams of a few stills, which may be larger, are the last in colour.
    """
    streams = [stream for stream in container.streams.video if not stream.disposition & _NOT_FOOTAGE]
    counts = Counter[int]()
    if is_footage and len(streams) > 1:
        with open_container(path) as again:
            packets = again.demux([again.streams[stream.index] for stream in streams])
            counts.update(packet.stream_index for packet in islice(packets, _COUNTED_PACKETS))
    most = max(counts.values(), default=0)

    def rank(stream: Any) -> tuple[bool, bool, int]:
        context = stream.codec_context  # PyAV has none for unknown codecs
        is_gray = (getattr(context, "pix_fmt", None) or "").startswith("gray")
        area = context.width * context.height if is_footage and context else 0
        return is_gray == is_footage, counts[stream.index] < _FEW_PACKETS * most, -area

    return sorted(streams, key=rank)


def video_stream(container: Any, path: Path, *, is_footage: bool = True) -> Any:
    """Return the first of the `video_streams`, ready to be decoded.

    Raises:
        InputError: if there is none or its codec is not supported.
    """
    streams = video_streams(container, path, is_footage=is_footage)
    if not streams or streams[0].codec_context is None:
        stated = stated_size(path, container.format.name)
        if stated is not None and stated > path.stat().st_size:
            raise InputError(f"{path.name} {_INCOMPLETE}", "give a video file, or exclude it with ⟨views⟩")
    if not streams:
        raise InputError(f"{path.name} has no video stream", "give a video file, or exclude it with ⟨views⟩")
    stream = streams[0]
    if stream.codec_context is None or not stream.codec_context.is_decoder:
        raise InputError(
            f"{path.name} uses a codec or encryption that this PyAV {av.__version__} cannot decode",
            "convert it: ffmpeg -i IN -c:v libx264 -crf 12 OUT.mp4",
        )
    stream.thread_type = "AUTO"
    return stream


def decode_stream(container: Any, stream: Any) -> Iterator[tuple[int, Any, bool]]:
    """Yield (position in decoding order, frame or None, whether the packet or frame is damaged)."""
    position = 0
    size = None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except _DECODER_ERRORS:
            yield position, None, True
            continue
        for frame in frames:
            if size is not None and size != (frame.width, frame.height):
                at = f"frame {position}" if frame.pts is None else f"{float(frame.pts * stream.time_base):.1f} s"
                raise InputError(
                    f"{Path(container.name.removeprefix('file:')).name} changes size at {at} "
                    f"({size[0]}x{size[1]} -> {frame.width}x{frame.height})",
                    "split the recording where its size changes",
                )
            size = (frame.width, frame.height)
            yield position, frame, bool(frame.is_corrupt or packet.is_corrupt)
            position += 1


def first_frame(path: Path, *, is_footage: bool = True) -> tuple[Any, bool]:
    """Decode the first frame; return it, and whether no packet from the first key frame on was damaged.

    Raises:
        InputError: if no frame can be decoded.
    """
    is_clean, has_key = True, False
    with open_container(path) as container:
        stream = video_stream(container, path, is_footage=is_footage)
        stream.thread_type = "SLICE"  # decoding of several frames at once would delay errors
        for packet in container.demux(stream):
            has_key |= packet.is_keyframe
            try:
                for frame in packet.decode():
                    return frame, is_clean and not frame.is_corrupt
            except _DECODER_ERRORS:
                is_clean &= not has_key
    check_decoding_memory(path)
    raise InputError(f"{path.name} has no frame that can be decoded", "record or copy it again")


def declared_length(container: Any, stream: Any) -> int:
    """Return the number of packets that the container declares, 0 if unknown; an edit list may hide some of them."""
    declared = int(stream.frames)
    return min(declared, len(stream.index_entries)) if container.format.name.startswith("mov") else declared


def empty_frames(container: Any, dts: Sequence[int | None]) -> int:
    """Return the number of frames of an AVI without data: capture programs write dropped frames as empty chunks."""
    known = [stamp for stamp in dts if stamp is not None]
    return max(known) + 1 - len(dts) if container.format.name == "avi" and known else 0


@dataclass(frozen=True)
class DamageScan:
    """Result of decoding a whole video: time stamp, or number of the packet, and integrity of each decoded frame.

    `expected` is the declared number of frames, or that of the decoded ones if unknown.
    """

    pts: list[int | None]
    intact: NDArray[np.bool_]
    bad_packets: int
    first_bad_s: float | None
    expected: int
    ends_early: bool

    @property
    def places(self) -> NDArray[np.int64]:
        """Places of the decoded frames by numbers of packets: one that is not decoded still takes its time."""
        numbers = np.array([place if number is None else number for place, number in enumerate(self.pts)])
        latest = np.maximum.accumulate(numbers)  # packets of later frames may come first
        missing = np.setdiff1d(np.arange(latest[-1]), numbers)
        return np.arange(len(numbers)) + np.searchsorted(missing, latest)


def scan_for_damage(path: Path, *, is_timed: bool = True) -> DamageScan:
    """Decode a whole video, continuing after damage; the frames of one that is not timed have numbers of packets."""
    pts: list[int | None] = []
    dts: list[int | None] = []
    intact: list[bool] = []
    bad_packets, first_bad_s, last_packet_bad = 0, None, False
    with open_container(path) as container:
        stream = video_stream(container, path)
        start = float((stream.start_time or 0) * stream.time_base)
        declared = declared_length(container, stream)
        extent = PacketExtent(path, container, stream)
        for packet in extent.packets():
            if packet.size:
                packet.pts = packet.pts if is_timed else len(dts)
                dts.append(packet.dts)
                last_packet_bad = bool(packet.is_corrupt)
            try:
                frames = packet.decode()
            except _DECODER_ERRORS:
                bad_packets += 1
                if first_bad_s is None and packet.pts is not None:
                    first_bad_s = float(packet.pts * stream.time_base) - start
                continue
            pts.extend(frame.pts for frame in frames)
            intact.extend(not (frame.is_corrupt or packet.is_corrupt) for frame in frames)
        declared = max(declared - empty_frames(container, dts), 0)
        is_cut = extent.is_cut()
    ends_early = last_packet_bad or is_cut or 0 < len(pts) + bad_packets < declared
    return DamageScan(pts, np.array(intact, dtype=bool), bad_packets, first_bad_s, declared or len(pts), ends_early)


def damage_error(path: Path) -> InputError:
    """Scan a damaged video and return the error that describes the damage."""
    check_decoding_memory(path)
    scan = scan_for_damage(path)
    num_intact = int(scan.intact.sum())
    if num_intact == 0:
        return no_intact_frame_error(path)
    hint = f"pass ⟨allow_damaged=True⟩ to use the {counted(num_intact, 'intact frame')}"
    if scan.bad_packets == 0 or scan.ends_early:
        total = f" of {scan.expected}" if scan.expected > num_intact else ""
        return InputError(f"{path.name} ends early, after frame {num_intact - 1}{total}", hint)
    at = f" at {scan.first_bad_s:.2f} s" if scan.first_bad_s is not None else ""
    packets, frames = counted(scan.bad_packets, "damaged packet"), counted(int((~scan.intact).sum()), "frame")
    return InputError(f"{path.name} has {packets}{at}, {frames} concealed", hint)


def no_intact_frame_error(path: Path) -> InputError:
    """Return the error for a video without any intact frame."""
    check_decoding_memory(path)
    return InputError(f"{path.name} has no intact frame", "record or copy it again, or exclude it with ⟨views⟩")


_SEEK_AFTER_S = 3.0
_SEEKABLE = ("mov", "matroska", "webm")
_UNSPECIFIED_COLOR = 2
_HD_HEIGHT_PX = 720
_EXACT_COLOR = 0x2000 | 0x40000
"""FFmpeg's SWS_FULL_CHR_H_INT and SWS_ACCURATE_RND: without them, frames are one to two levels too dark."""


@dataclass(frozen=True)
class TimeCode:
    """An embedded time code and the numbers per second that it counts: the frame rate, unless `is_stated`."""

    text: str
    fps: float
    is_stated: bool


@dataclass(frozen=True, kw_only=True)
class VideoSource:
    """A probed video file: presentation times of all usable frames, but no pixels.

    `label` is the name of the file in messages. `size` is that of the upright frame with square pixels. `pts` are the
    time stamps of the usable frames in units of the stream's time base; None if the stream has none and frames are
    found by counting: `decoded` are the numbers of the usable frames in what is decoded. `positions` are those in the
    file, which may have frames that are not decoded. `is_timed` is False if the frame rate is assumed. `key_pts` are
    the time stamps of key frames, `start_s` that of time 0 in seconds. `starts_late` is True if frames before the
    first key frame are left out, `is_footage` False for masks and depth maps.
    """

    path: Path
    label: str
    codec: str
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    pts: NDArray[np.int64] | None
    positions: NDArray[np.int64]
    decoded: NDArray[np.int64]
    key_pts: NDArray[np.int64]
    is_timed: bool
    orientation: Orientation
    bit_depth: int
    has_audio: bool
    timecode: TimeCode | None
    start_s: float = 0.0
    starts_late: bool = False
    tolerates_damage: bool = False
    is_footage: bool = True
    notices: tuple[Notice, ...] = ()

    @contextmanager
    def open(self, size: tuple[int, int] | None = None) -> Iterator["VideoReader"]:
        """Start decoding at the first frame, resizing to `size` (height, width) if given."""
        with (
            open_container(self.path) as container,
            closing(VideoReader(self, container, size or self.size)) as reader,
        ):
            yield reader


class VideoReader:
    """A forward decoder: indices must not decrease over its lifetime."""

    def __init__(self, source: VideoSource, container: Any, size: tuple[int, int]) -> None:
        self._source = source
        self._size = size
        self._stream = video_stream(container, source.path, is_footage=source.is_footage)
        self._container = container
        self._reformatter = VideoReformatter()  # prepared once, not for every frame
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
        self._frames = self._frames or self._decode(seeked=self._source.starts_late)
        for found, frame in self._frames:
            if found == index:
                return self._to_rgb(frame)
            if found > index:
                break
        raise damage_error(self._source.path)

    def _to_rgb(self, frame: Any) -> Image:
        """Convert and resize in one pass of FFmpeg's scaler; more than 8 bits become 16."""
        orientation = self._source.orientation
        height, width = orientation.size(self._size)
        untagged = int(frame.colorspace) == _UNSPECIFIED_COLOR and not frame.format.is_rgb
        # Like video players: untagged HD is BT.709, untagged SD is BT.601.
        source = (Colorspace.ITU709 if frame.height >= _HD_HEIGHT_PX else Colorspace.ITU601) if untagged else None
        method = Interpolation.AREA if height < frame.height else Interpolation.BICUBIC
        converted = self._reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="rgb48le" if self._source.bit_depth > 8 else "rgb24",
            src_colorspace=source,
            interpolation=method | _EXACT_COLOR,
        )
        return orientation.apply(converted.to_ndarray())

    def _should_seek(self, current: int, index: int) -> bool:
        """Return True if seeking saves work: the index is far ahead and a key frame lies in between."""
        source = self._source
        if source.pts is None or not self._container.format.name.startswith(_SEEKABLE):
            return False
        far = source.frame_times[index] - source.frame_times[current] > _SEEK_AFTER_S
        between = (source.key_pts > source.pts[current]) & (source.key_pts <= source.pts[index])
        return bool(far and between.any())

    def _decode_from(self, index: int) -> Iterator[tuple[int, Any]]:
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
            known, own = (source.decoded, position) if source.pts is None else (source.pts, frame.pts)
            index = int(np.searchsorted(known, own))
            if index < len(known) and known[index] == own:
                seeked = False
                yield index, frame
