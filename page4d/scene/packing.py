"""Footage that is not one pinhole image: spherical projections, stereo pairs in one picture, raw colour mosaics."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.image_file import Image, spherical_error

_PROJECTIONS = {0: "equirectangular", 1: "cube map", 2: "cropped equirectangular", 3: "half equirectangular"}
"""FFmpeg's AVSphericalProjection without rectilinear and fisheye lenses (4, 5). Source: libavutil/spherical.h."""

_SPLIT = {
    "side by side": ("crop=iw/2:ih:0:0", "crop=iw/2:ih:iw/2:0"),
    "on top of each other": ("crop=iw:ih/2:0:0", "crop=iw:ih/2:0:ih/2"),
}
_PACKINGS = {1: "side by side", 2: "on top of each other", 3: "in alternate frames", 4: "as a checkerboard"} | {
    5: "side by side in a quincunx",
    6: "in alternate rows",
    7: "in alternate columns",
}
"""FFmpeg's AVStereo3DType, unless it is one picture. Source: libavutil/stereo3d.h."""

_MIN_WIDE, _MAX_TALL = 1.9, 1.15
"""Aspect ratios beyond which two pictures may be side by side, or on top of each other."""

_HALF_PX, _BLOCK_PX, _SHIFT_PX, _ROWS_PX = 128, 16, 16, 2
"""Long side of a half when it is compared, side of a block, and the disparities that are searched."""

_MIN_BLOCKS, _MIN_CONTRAST, _SAME = 12, 4.0, 0.8
_MIN_EXCESS = 0.45
"""Minimum share of textured blocks that are in the other half at their place, not also elsewhere in it. Measured on
frames of 8 captures: 0.28 at most; with a second eye made from them 0.56 at least."""

_MOSAIC_PX, _CELL_PX = 1024, 8
_MIN_MOSAIC, _MIN_CORRELATION = 0.3, 0.6
"""Minimum share of the variance of neighbours that repeats every 2 px within a cell, and minimum correlation of the
differences of columns with those of rows: both are red minus blue. Measured on frames of 8 captures: up to 0.18 and
0.14 in gray (interlaced 0.60, 0.19; enlarged 0.38, 0.19); from 0.44 and 0.83 as a mosaic."""

MOSAIC = (
    "gray pictures that are colour mosaics (raw Bayer); demosaic them first, such as by OpenCV's "
    "cvtColor(image, COLOR_BayerRGGB2RGB) with the pattern of the camera"
)
"""Text of a notice."""


def check_side_data(name: str, frame: Any) -> None:
    """Refuse a video that declares a spherical projection or two pictures per frame.

    Raises:
        InputError: if it does.
    """
    projection = _PROJECTIONS.get(_first_number(frame, "SPHERICAL"))
    if projection is not None:
        raise spherical_error(name, projection)
    packing = _PACKINGS.get(_first_number(frame, "STEREO3D"))
    if packing is not None:
        raise _stereo_error(f"{name} is stereoscopic footage", packing)


def comparison_size(size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the (height, width) at which `check_halves` compares a picture; None if it has not the shape of two."""
    height, width = size
    if _MAX_TALL < width / height < _MIN_WIDE:
        return None
    scale = min(_HALF_PX / (max(height, width / 2) if width > height * _MAX_TALL else max(height / 2, width)), 1.0)
    small = (round(height * scale) // 2 * 2, round(width * scale) // 2 * 2)
    return small if min(small) >= _BLOCK_PX else None


def check_halves(label: str, picture: Image) -> None:
    """Refuse a picture of 8 bits, at its comparison size, whose halves show the same scene.

    Raises:
        InputError: if they do.
    """
    gray = (picture if picture.ndim == 2 else picture.mean(axis=2)).astype(np.float32)
    is_wide = gray.shape[1] > gray.shape[0] * _MAX_TALL
    one, other = np.split(gray, 2, axis=1 if is_wide else 0)
    if _excess_of_equal_blocks(one, other) > _MIN_EXCESS:
        packing = "side by side" if is_wide else "on top of each other"
        raise _stereo_error(f"the halves of the first frame of {label} show the same scene", packing)


def is_mosaic(gray: Image) -> bool:
    """Return whether a grayscale image is a colour mosaic (Bayer), in which red, green and blue alternate."""
    height, width = gray.shape
    top, left = max(height - _MOSAIC_PX, 0) // 2, max(width - _MOSAIC_PX, 0) // 2
    part = gray[top : top + _MOSAIC_PX, left : left + _MOSAIC_PX].astype(np.float32)
    kernel = np.array([0.25, 0.5, 0.25], dtype=np.float32)
    detail = (part - cv2.sepFilter2D(part, -1, kernel, kernel))[_CELL_PX:-_CELL_PX, _CELL_PX:-_CELL_PX]
    rows, columns = (side // _CELL_PX for side in detail.shape)
    if not rows or not columns:
        return False
    half = _CELL_PX // 2
    cells = detail[: rows * _CELL_PX, : columns * _CELL_PX].reshape(rows, half, 2, columns, half, 2)
    phases = cells.mean(axis=(1, 4))  # [rows, 2, columns, 2]
    phases -= phases.mean(axis=(1, 3), keepdims=True)
    across = (phases[:, :, :, 0] - phases[:, :, :, 1]).sum(axis=1)
    down = (phases[:, 0] - phases[:, 1]).sum(axis=-1)
    correlation = abs(float((across * down).sum())) / max(float(np.sqrt((across**2).sum() * (down**2).sum())), 1e-9)
    return bool(correlation > _MIN_CORRELATION and (phases**2).mean() > _MIN_MOSAIC * (cells**2).mean())


def _first_number(frame: Any, kind: str) -> int:
    """Return the first field of side data of a frame, an enumeration; -1 without them."""
    try:
        data = frame.side_data.get(kind)
    except ValueError:  # PyAV cannot list the side data of a frame with a kind that it does not define
        return -1
    return -1 if data is None else int(np.frombuffer(bytes(data)[:4], dtype=np.int32)[0])


def _stereo_error(found: str, packing: str) -> InputError:
    crops = _SPLIT.get(packing)
    how = f"ffmpeg -i IN -vf {crops[0]} LEFT.mp4, and -vf {crops[1]} RIGHT.mp4" if crops else "with ffmpeg's stereo3d"
    return InputError(f"{found}: two cameras in one picture, {packing}", f"make a view of each eye: {how}")


def _excess_of_equal_blocks(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the share of textured blocks with an equal at their place in the other half, less that at other rows."""
    places = [
        (y, x)
        for y in range(0, one.shape[0] - _BLOCK_PX + 1, _BLOCK_PX)
        for x in range(0, one.shape[1] - _BLOCK_PX + 1, _BLOCK_PX)
        if one[y : y + _BLOCK_PX, x : x + _BLOCK_PX].std() >= _MIN_CONTRAST
    ]
    there = np.pad(other, ((_ROWS_PX, _ROWS_PX), (_SHIFT_PX, _SHIFT_PX)), mode="edge")

    def share(half: NDArray[np.float32]) -> float:
        rows, columns = _BLOCK_PX + 2 * _ROWS_PX, _BLOCK_PX + 2 * _SHIFT_PX
        best = [
            cv2.matchTemplate(
                half[y : y + rows, x : x + columns], one[y : y + _BLOCK_PX, x : x + _BLOCK_PX], cv2.TM_CCOEFF_NORMED
            ).max()
            for y, x in places
        ]
        return float(np.mean(np.array(best) > _SAME))

    at_its_place = share(there) if len(places) >= _MIN_BLOCKS else 0.0
    return at_its_place - share(np.roll(there, len(there) // 2, axis=0)) if at_its_place > _MIN_EXCESS else 0.0
