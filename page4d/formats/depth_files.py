"""Depth maps of other programs: NumPy arrays, and one channel of OpenEXR files.

OpenEXR files are read by the package of the extra `exr`: OpenCV would read them only if the environment allowed it
before its first use, and FFmpeg reads no channel Z.

Source: NumPy, `numpy.lib.format`.
"""

import io
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, listed
from page4d.installation import require_extra

DEPTH_SUFFIXES = frozenset((".npy", ".exr"))

_NPY, _EXR = b"\x93NUM", b"\x76\x2f\x31\x01"
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_EXR_TYPES = {"HALF": "f2", "FLOAT": "f4", "UINT": "u4"}
_ALPHA = ("A", "AR", "AG", "AB")


def is_depth_file(start: bytes) -> bool:
    """Return whether a file is a NumPy array or an OpenEXR file, by its first four bytes."""
    return start[:4] in (_NPY, _EXR)


def read_layout(stream: BinaryIO, name: str) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return the (height, width) and the type of the numbers of the file that begins in a stream.

    Raises:
        InputError: if it is not one map; `name` is its name in messages.
        CapabilityError: without the package of OpenEXR.
        ValueError, OSError: if it is damaged.
    """
    start = stream.read(4)
    stream.seek(-len(start), io.SEEK_CUR)
    if start == _EXR:
        header = _exr_file(stream).header()
        kind = header["channels"][_depth_channels(header)[0]].type
        return _size(_window(header, "displayWindow")), np.dtype(_EXR_TYPES[str(kind)])
    shape, _, dtype = _NPY_HEADERS[np.lib.format.read_magic(stream)](stream)
    sides = [side for side in shape if side != 1]
    if len(sides) != 2:
        raise InputError(f"{name} is an array of shape {shape}, not one map", "save one array [H, W] per frame")
    return (sides[0], sides[1]), dtype


def decode(data: bytes, name: str) -> NDArray[Any]:
    """Return a map [H, W] of 16-bit levels or of float32.

    Raises:
        InputError: if channels of an OpenEXR file differ, and none is called Z or depth.
        ValueError, OSError: if the file is damaged.
    """
    if data[:4] == _EXR:
        return _decode_exr(data, name)
    size, dtype = read_layout(io.BytesIO(data), name)
    values = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False).reshape(size)
    return values.astype(np.float32 if dtype.kind == "f" else dtype.newbyteorder("="))


def _exr_file(stream: BinaryIO) -> Any:
    require_extra("exr", "depth as EXR")
    return import_module("OpenEXR").InputFile(stream)


def _depth_channels(header: dict[str, Any]) -> list[str]:
    """Return the channel of depth, or all channels but alpha."""
    names = list(header["channels"])
    named = [name for name in names if name == "Z"] or [name for name in names if "depth" in name.lower()]
    return named or [name for name in names if name.rpartition(".")[2] not in _ALPHA] or names


def _window(header: dict[str, Any], name: str) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of a window, inclusive."""
    low, high = header[name].min, header[name].max
    return low.x, low.y, high.x, high.y


def _size(window: tuple[int, int, int, int]) -> tuple[int, int]:
    left, top, right, bottom = window
    return bottom - top + 1, right - left + 1


def _decode_exr(data: bytes, name: str) -> NDArray[np.float32]:
    file = _exr_file(io.BytesIO(data))
    header = file.header()
    window, picture = _window(header, "dataWindow"), _window(header, "displayWindow")
    if np.prod(_size(window)) > 4 * np.prod(_size(picture)):
        raise ValueError("implausible windows")
    channels = _depth_channels(header)
    pixel = import_module("Imath").PixelType
    texts = (file.channel(channel, pixel(pixel.FLOAT)) for channel in channels)
    maps = [np.frombuffer(text, np.float32).reshape(_size(window)) for text in texts]
    depth, *others = [values for values in maps if values.any()] or maps[:1]
    if not all(np.array_equal(other, depth, equal_nan=True) for other in others):
        raise InputError(
            f"the channels {listed(channels)} of {name} differ, and none is called Z or depth",
            "save one channel of depth, or save it as NPY",
        )
    whole = np.zeros(_size(picture), np.float32)
    top, left = window[1] - picture[1], window[0] - picture[0]
    inside = depth[max(-top, 0) :, max(-left, 0) :]
    target = whole[max(top, 0) :, max(left, 0) :]
    rows, columns = min(len(inside), len(target)), min(inside.shape[1], target.shape[1])
    target[:rows, :columns] = inside[:rows, :columns]
    return whole
