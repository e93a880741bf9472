"""Whether a recording is complete: its packets and bytes compared with what its headers state."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

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


class Extent:
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
    """Return the last bytes of a file."""
    file.seek(max(size - count, 0))
    return file.read()


def _end_of_boxes(file: BinaryIO, size: int) -> int | None:
    """Return the end of the last box of an MP4."""
    at = 0
    while at + 16 <= size:
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if head[4:8] not in _BOXES or length == 0:
            return None
        at += max(int.from_bytes(head[8:], "big") if length == 1 else length, 8)
    return at


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
