"""Orientation of images and videos: EXIF or a display matrix as a transposition and two flips."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from page4d.scene.records import Image

_TOLERANCE = 0.02
"""Upper bound on the terms of a quarter turn that should be 0, relative to the others: about 1 degree."""


@dataclass(frozen=True)
class Orientation:
    """One of the eight orientations of an image: rows and columns are exchanged, then each axis may be flipped."""

    is_transposed: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    @property
    def is_mirrored(self) -> bool:
        """True if it is not a rotation."""
        return self.is_transposed ^ self.flips_rows ^ self.flips_columns

    @property
    def clockwise_deg(self) -> int:
        """Rotation in degrees, after left and right are exchanged if `is_mirrored`."""
        if self.is_transposed:
            return 90 if self.flips_columns else 270
        return 180 if self.flips_rows else 0

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the (height, width) after `apply` of an image of this (height, width), or the reverse."""
        return (size[1], size[0]) if self.is_transposed else size

    def apply(self, pixels: Image) -> Image:
        """Turn an image [H, W, ...] from its stored into its upright orientation."""
        if self.is_transposed:
            pixels = pixels.swapaxes(0, 1)
        if self.flips_rows:
            pixels = pixels[::-1]
        if self.flips_columns:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels)


def exif_orientation(value: int) -> Orientation | None:
    """Return the orientation of a value of EXIF, None unless it is 1 to 8.

    Source: CIPA DC-008 (Exif 2.32), tag 0x0112.
    """
    if not 1 <= value <= 8:
        return None
    return Orientation(
        is_transposed=value >= 5, flips_rows=value in (3, 4, 7, 8), flips_columns=value in (2, 3, 6, 7)
    )


def display_matrix(frame: Any) -> tuple[int, int, int, int] | None:
    """Return a, b, c, d of a frame's display matrix, None without one.

    The stored pixel (x, y) is shown at (a x + c y, b x + d y), up to a scale and an offset.

    Source: ISO/IEC 14496-12, 6.2.2 (matrix of a track); FFmpeg, libavutil/display.h.
    """
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV cannot list the side data of a frame with a kind that it does not define, such as MV-HEVC views.
        angle = math.radians(-frame.rotation)
        cosine, sine = round(math.cos(angle) * 2**16), round(math.sin(angle) * 2**16)
        return cosine, sine, -sine, cosine
    if data is None:
        return None
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))
    return a, b, c, d


def orientation_of(matrix: tuple[int, int, int, int]) -> Orientation | None:
    """Return the orientation of a display matrix a, b, c, d; None unless it is a quarter turn, mirrored or not.

    A scale is ignored; the pixel aspect of the stream contains it.
    """
    a, b, c, d = matrix
    straight, turned = min(abs(a), abs(d)), min(abs(b), abs(c))
    if max(abs(b), abs(c)) <= _TOLERANCE * straight > 0:
        return Orientation(flips_rows=d < 0, flips_columns=a < 0)
    if max(abs(a), abs(d)) <= _TOLERANCE * turned > 0:
        return Orientation(is_transposed=True, flips_rows=b < 0, flips_columns=c < 0)
    return None
