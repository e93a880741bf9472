"""Video containers, opened so that nothing but a video is read, and decoded packet by packet.

Source of the container facts: PyAV and FFmpeg documentation; checked against clips made for the tests.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
from av.error import ExternalError, FFmpegError, InvalidDataError, PatchWelcomeError

from page4d.errors import InputError

_CONTAINERS = (
    "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,ogg,flv,asf,mxf,gif,ivf,m4v,dv,av1,obu,yuv4mpegpipe"
)
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"}
"""Playlists and image demuxers stay shut: a file called cam01.mp4 must not make us read other files."""

DECODER_DAMAGE = (InvalidDataError, PatchWelcomeError, ExternalError)
"""What decoders say to packets that make no sense."""

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


@contextmanager
def open_container(path: Path) -> Iterator[Any]:
    """Open a video file.

    Raises:
        InputError: if it is something else, or FFmpeg fails on it inside the body.
    """
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


def video_stream(container: Any, path: Path) -> Any:
    """Return the first stream of moving pictures, ready to be decoded.

    Raises:
        InputError: if there is none or it cannot be decoded.
    """
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


def decode_stream(container: Any, stream: Any) -> Iterator[tuple[int, Any, bool]]:
    """Yield (position in decoding order, frame or None, whether something was damaged)."""
    position = 0
    size = None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except DECODER_DAMAGE:
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


def stated_length(container: Any, stream: Any) -> int:
    """Return how many packets the container promises, 0 if it does not say; an edit list may hide some for good."""
    stated = int(stream.frames)
    return min(stated, len(stream.index_entries)) if container.format.name.startswith("mov") else stated


def left_out(container: Any, dts: Sequence[int | None]) -> int:
    """Return how many frames an AVI counts but does not hold: capture programs write a dropped frame as no bytes."""
    known = [stamp for stamp in dts if stamp is not None]
    return max(known) + 1 - len(dts) if container.format.name == "avi" and known else 0
