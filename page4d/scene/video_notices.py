"""Notices about a video: orientation, pixel aspect, interlacing, streams, colour and alpha."""

import math
from pathlib import Path
from typing import Any

from page4d.errors import listed
from page4d.scene.orientation import Orientation, display_matrix, orientation_of
from page4d.scene.records import Level, Notice

_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
_ALPHA_FORMATS = ("yuva", "gbrap", "rgba", "argb", "bgra", "abgr", "ya8", "ya16")
_MAX_PIXEL_ASPECT = 4.0
"""Beyond any anamorphic format; the widest in use is 2:1."""

_FIELD_ORDERS = (2, 3, 4, 5)
"""FFmpeg's AVFieldOrder of interlaced video."""


def upright(name: str, frame: Any) -> tuple[Orientation | None, list[Notice]]:
    """Return the orientation in which video players show a frame, None if its display matrix is no quarter turn."""
    matrix = display_matrix(frame)
    if matrix is None:
        return Orientation(), []
    orientation = orientation_of(matrix)
    if orientation is None:
        a, b, c, d = matrix
        rotates = (a, b) != (0, 0) and abs(a - d) + abs(b + c) <= 0.01 * (abs(a) + abs(b))
        kind = f"a rotation of {math.degrees(math.atan2(b, a)):.0f} degrees" if rotates else "its display matrix"
        return None, [Notice(f"{name}: {kind} is not applied (not a multiple of 90 degrees)")]
    turn = f"rotated {orientation.clockwise_deg} degrees clockwise" if orientation.clockwise_deg else ""
    if orientation.is_mirrored:
        done = " and ".join(filter(None, ("mirrored left to right", turn)))
        text = f"{name}: {done}, as its display matrix states; if writing is reversed, record without mirroring"
        return orientation, [Notice(text)]
    return orientation, [Notice(f"{name}: {turn}", Level.INFO)] if turn else []


def square_pixels(name: str, frame: Any, pixel_aspect: float) -> tuple[tuple[int, int], list[Notice]]:
    """Return the stored (height, width) with square pixels."""
    height, width = frame.height, frame.width
    if abs(pixel_aspect - 1) <= 1e-3:
        return (height, width), []
    if not 1 / _MAX_PIXEL_ASPECT <= pixel_aspect <= _MAX_PIXEL_ASPECT:
        return (height, width), [Notice(f"{name}: a pixel aspect of {pixel_aspect:.4g}:1 is implausible and ignored")]
    width = max(round(width * pixel_aspect), 1)
    text = f"{name}: pixels are {pixel_aspect:.4g}:1, frames are resampled to square ({width}x{height})"
    return (height, width), [Notice(text)]


def content_notices(name: str, frame: Any, field_order: int, *, has_alpha: bool) -> list[Notice]:
    """Return notices about interlacing, colour and alpha."""
    notices = []
    if frame.interlaced_frame or field_order in _FIELD_ORDERS:
        hint = "deinterlace it first, for example: ffmpeg -i IN -vf bwdif OUT.mp4"
        notices.append(Notice(f"{name}: interlaced, moving edges are comb-shaped; {hint}"))
    transfer = _HDR_TRANSFERS.get(int(frame.color_trc))
    if transfer:
        notices.append(Notice(f"{name}: HDR ({transfer}); converted to SDR without tone mapping"))
    if has_alpha or frame.format.name.startswith(_ALPHA_FORMATS):
        notices.append(Notice(f"{name}: alpha ignored"))
    return notices


def stream_notice(path: Path, streams: list[tuple[str, int, int]]) -> list[Notice]:
    """Return a notice if a file has more than one video stream; `streams` are their codecs, widths and heights."""
    if len(streams) < 2:
        return []
    texts = listed([f"{codec} {width}x{height}" for codec, width, height in streams])
    return [Notice(f"{path.name} has {len(streams)} video streams ({texts}); the first is used")]
