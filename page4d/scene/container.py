"""Video containers: opening, decoding packet by packet, and scanning for damage.

Source of container facts: PyAV and FFmpeg documentation, checked against the clips of the tests.
"""

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import ExternalError, FFmpegError, InvalidDataError, PatchWelcomeError
from av.stream import Disposition
from numpy.typing import NDArray

from page4d.errors import InputError, counted
from page4d.formats.files import check_regular_file
from page4d.io.limits import is_exhausted
from page4d.scene.completeness import Extent, stated_size

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
_INCOMPLETE = "is incomplete (recording or copy did not finish)"

_MOST_BYTES = 1 << 31
"""FFmpeg's limit of one allocation; more than this is requested only for damaged files."""

_NOT_FOOTAGE = (
    Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image | Disposition.dependent
)
"""Streams that are not footage: cover art, thumbnails, and parts of other streams."""


def file_url(path: Path | str) -> str:
    """Return the name by which FFmpeg opens a file: without the prefix, the part before a colon is a protocol."""
    return f"file:{os.fspath(path)}"


@contextmanager
def open_container(path: Path) -> Iterator[Any]:
    """Open a video file.

    Raises:
        InputError: if it is not a video, or FFmpeg fails in the body.
        MemoryError, OSError: if the machine fails, such as with too little memory or too many open files.
    """
    try:
        container = av.open(file_url(path), options=dict(_OPTIONS), metadata_errors="replace")
    except FFmpegError as error:
        if is_resource_error(error):
            raise
        check_regular_file(path)  # it may have been removed since
        raise InputError(
            f"{path.name} {_describe_content(path)}", "give a video file, or exclude it with --views"
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


def check_memory(path: Path) -> None:
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


def video_streams(container: Any) -> list[Any]:
    """Return the streams that are footage."""
    return [stream for stream in container.streams.video if not stream.disposition & _NOT_FOOTAGE]


def video_stream(container: Any, path: Path) -> Any:
    """Return the first video stream, ready to be decoded.

    Raises:
        InputError: if there is none or its codec is not supported.
    """
    streams = video_streams(container)
    if not streams or streams[0].codec_context is None:
        stated = stated_size(path, container.format.name)
        if stated is not None and stated > path.stat().st_size:
            raise InputError(f"{path.name} {_INCOMPLETE}", "give a video file, or exclude it with --views")
    if not streams:
        raise InputError(f"{path.name} has no video stream", "give a video file, or exclude it with --views")
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
    """Result of decoding a whole video: time stamp and integrity of each decoded frame.

    `expected` is the declared number of frames, or that of the decoded ones if unknown.
    """

    pts: list[int | None]
    intact: NDArray[np.bool_]
    bad_packets: int
    first_bad_s: float | None
    expected: int
    ends_early: bool


def scan_for_damage(path: Path) -> DamageScan:
    """Decode a whole video, continuing after damage."""
    pts: list[int | None] = []
    dts: list[int | None] = []
    intact: list[bool] = []
    bad_packets, first_bad_s, last_packet_bad = 0, None, False
    with open_container(path) as container:
        stream = video_stream(container, path)
        start = float((stream.start_time or 0) * stream.time_base)
        declared = declared_length(container, stream)
        extent = Extent(path, container, stream)
        for packet in extent.packets():
            if packet.size:
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
    check_memory(path)
    scan = scan_for_damage(path)
    num_intact = int(scan.intact.sum())
    if num_intact == 0:
        return no_intact_frame_error(path)
    hint = f"pass --allow-damaged to use the {counted(num_intact, 'intact frame')}"
    if scan.bad_packets == 0 or scan.ends_early:
        total = f" of {scan.expected}" if scan.expected > num_intact else ""
        return InputError(f"{path.name} ends early, after frame {num_intact - 1}{total}", hint)
    at = f" at {scan.first_bad_s:.2f} s" if scan.first_bad_s is not None else ""
    packets, frames = counted(scan.bad_packets, "damaged packet"), counted(int((~scan.intact).sum()), "frame")
    return InputError(f"{path.name} has {packets}{at}, {frames} concealed", hint)


def no_intact_frame_error(path: Path) -> InputError:
    """Return the error for a video without any intact frame."""
    check_memory(path)
    return InputError(f"{path.name} has no intact frame", "record or copy it again, or exclude it with --views")
