"""Depth maps of other programs: NumPy arrays, and one channel of OpenEXR files.

OpenEXR files have scan lines, without compression or with ZIP. OpenCV would read them only if the environment
allowed it before its first use, and FFmpeg reads no channel Z.

Source: OpenEXR, "OpenEXR File Layout"; NumPy, `numpy.lib.format`.
"""

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, listed

DEPTH_SUFFIXES = frozenset((".npy", ".exr"))
LONGEST_HEADER = 1 << 18

_NPY, _EXR = b"\x93NUM", b"\x76\x2f\x31\x01"
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

_TILES_DEEP_OR_PARTS = 0x200 | 0x800 | 0x1000
_SAMPLES = (np.dtype("<u4"), np.dtype("<f2"), np.dtype("<f4"))
_COMPRESSIONS = ("none", "RLE", "ZIPS", "ZIP", "PIZ", "PXR24", "B44", "B44A", "DWAA", "DWAB")
_LINES_PER_CHUNK = {"none": 1, "ZIPS": 1, "ZIP": 16}
_ALPHA = ("A", "AR", "AG", "AB")
_EXR_HINT = "save one channel of depth as scan lines with ZIP compression, or save it as NPY"


def is_depth_file(start: bytes) -> bool:
    """Return whether a file is a NumPy array or an OpenEXR file, by its first four bytes."""
    return start[:4] in (_NPY, _EXR)


def read_layout(start: bytes, name: str) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return the (height, width) and the type of the numbers, from the first `LONGEST_HEADER` bytes of a file.

    Raises:
        InputError: if it is not one map; `name` is its name in messages.
        ValueError, KeyError, IndexError, struct.error: if it is damaged.
    """
    if start[:4] == _EXR:
        header = _exr_header(start, name)
        return header.size, header.channels[header.depth_channels[0]]
    stream = io.BytesIO(start)
    shape, _, dtype = _NPY_HEADERS[np.lib.format.read_magic(stream)](stream)
    sides = [side for side in shape if side != 1]
    if len(sides) != 2:
        raise InputError(f"{name} is an array of shape {shape}, not one map", "save one array [H, W] per frame")
    return (sides[0], sides[1]), dtype


def decode(data: bytes, name: str) -> NDArray[Any]:
    """Return a map [H, W] of 16-bit levels or of float32.

    Raises:
        InputError: if channels of an OpenEXR file differ, and none is called Z or depth.
        ValueError, KeyError, IndexError, struct.error, zlib.error: if the file is damaged.
    """
    if data[:4] == _EXR:
        return _decode_exr(data, name)
    size, dtype = read_layout(data, name)
    values = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False).reshape(size)
    return values.astype(np.float32 if dtype.kind == "f" else dtype.newbyteorder("="))


@dataclass(frozen=True)
class _ExrHeader:
    """Channels in the order of a line, and the windows (left, top, right, bottom) of pixels and picture, inclusive.

    `end` is the place of the table of chunks.
    """

    channels: dict[str, np.dtype[Any]]
    compression: str
    window: tuple[int, ...]
    picture: tuple[int, ...]
    end: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture."""
        return _size(self.picture)

    @property
    def depth_channels(self) -> list[str]:
        """The channel of depth, or all channels but alpha."""
        names = list(self.channels)
        named = [name for name in names if name == "Z"] or [name for name in names if "depth" in name.lower()]
        return named or [name for name in names if name.rpartition(".")[2] not in _ALPHA] or names


def _size(window: tuple[int, ...]) -> tuple[int, int]:
    left, top, right, bottom = window
    return bottom - top + 1, right - left + 1


def _exr_header(data: bytes, name: str) -> _ExrHeader:
    at, attributes = 8, dict[str, bytes]()
    while data[at]:
        key, at = _text(data, at)
        _, at = _text(data, at)
        length = int.from_bytes(data[at : at + 4], "little")
        attributes[key] = data[at + 4 : at + 4 + length]
        at += 4 + length
    block, place, channels, steps = attributes["channels"], 0, dict[str, np.dtype[Any]](), set[int]()
    while block[place]:
        channel, place = _text(block, place)
        kind, *sampling = struct.unpack_from("<i4xii", block, place)
        channels[channel] = _SAMPLES[kind]
        steps.update(sampling)
        place += 16
    compression = _COMPRESSIONS[attributes["compression"][0]]
    kinds = {
        "tiles, deep samples or several parts": int.from_bytes(data[4:8], "little") & _TILES_DEEP_OR_PARTS,
        f"{compression} compression": compression not in _LINES_PER_CHUNK,
        "subsampled channels": steps != {1},
    }
    if unread := [kind for kind, is_present in kinds.items() if is_present]:
        raise InputError(f"{name} has {listed(unread)}, which is not read", _EXR_HINT)
    window, picture = (struct.unpack("<4i", attributes[key]) for key in ("dataWindow", "displayWindow"))
    if min(*_size(window), *_size(picture)) < 1 or np.prod(_size(window)) > 4 * np.prod(_size(picture)):
        raise ValueError("implausible windows")
    return _ExrHeader(channels, compression, window, picture, at + 1)


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return a text that ends with 0, and the place after it."""
    end = data.index(0, at)
    return data[at:end].decode("latin-1"), end + 1


def _decode_exr(data: bytes, name: str) -> NDArray[np.float32]:
    header = _exr_header(data, name)
    height, width = _size(header.window)
    lines_per_chunk = _LINES_PER_CHUNK[header.compression]
    line = np.dtype([(channel, dtype, (width,)) for channel, dtype in header.channels.items()])
    pixels = np.zeros(height, line)
    for place in np.frombuffer(data, "<u8", -(-height // lines_per_chunk), header.end).tolist():
        y, length = struct.unpack_from("<iI", data, place)
        lines = pixels[y - header.window[1] :][:lines_per_chunk]
        packed = data[place + 8 : place + 8 + length]
        is_packed = header.compression != "none" and length < lines.nbytes
        lines[:] = np.frombuffer(_unzipped(packed, lines.nbytes) if is_packed else packed, line)
    maps = [pixels[channel].astype(np.float32) for channel in header.depth_channels]
    depth, *others = [values for values in maps if values.any()] or maps[:1]
    if not all(np.array_equal(other, depth, equal_nan=True) for other in others):
        found = f"the channels {listed(header.depth_channels)} of {name} differ, and none is called Z or depth"
        raise InputError(found, _EXR_HINT)
    whole = np.zeros(header.size, np.float32)
    top, left = header.window[1] - header.picture[1], header.window[0] - header.picture[0]
    inside = depth[max(-top, 0) :, max(-left, 0) :]
    target = whole[max(top, 0) :, max(left, 0) :]
    rows, columns = min(len(inside), len(target)), min(inside.shape[1], target.shape[1])
    target[:rows, :columns] = inside[:rows, :columns]
    return whole


def _unzipped(packed: bytes, size: int) -> NDArray[np.uint8]:
    """Undo deflation, the differences of neighbouring bytes, and the separation of even and odd bytes."""
    steps = np.frombuffer(zlib.decompressobj().decompress(packed, size), np.uint8).copy()
    steps[1:] -= 128
    halves = np.cumsum(steps, dtype=np.uint8)
    merged = np.empty_like(halves)
    middle = (len(halves) + 1) // 2
    merged[0::2], merged[1::2] = halves[:middle], halves[middle:]
    return merged
