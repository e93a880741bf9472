"""Exported pictures, their intrinsics, and linear light, which glTF and USD expect instead of sRGB.

Changing the intrinsics of a picture at a fixed pose is a homography, hence exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import Pinhole
from page4d.errors import UsageError
from page4d.geometry.camera import resize_intrinsics
from page4d.scene.images import resize

Size = tuple[int, int]

_SHRINKS_BELOW = 0.75
"""Pictures that get smaller than this factor are first resized by area averaging, so that they do not alias."""

_FOCAL_RANGE = 100.0
"""Largest ratio of a given focal length to the long side of pictures, and of that to it."""


@dataclass(frozen=True, kw_only=True)
class PictureGeometry:
    """Geometry of a view's pictures: `size` (height, width) and `intrinsics` [T, 3, 3] before and after."""

    source_size: Size
    source_intrinsics: NDArray[np.float64]
    size: Size
    intrinsics: NDArray[np.float64]

    @property
    def cropped(self) -> float:
        """Share of the original picture that is cut off, at the worst instant."""
        return _uncovered(self._source_extents, _extents(self.size, self.intrinsics))

    @property
    def empty(self) -> float:
        """Share of the exported picture without data, at the worst instant."""
        return _uncovered(_extents(self.size, self.intrinsics), self._source_extents)

    @property
    def _source_extents(self) -> NDArray[np.float64]:
        return _extents(self.source_size, self.source_intrinsics)

    def picture(self, pixels: NDArray[Any], place: int) -> NDArray[Any]:
        """Warp an original RGB picture [H, W, 3] of an instant, given by its place in T."""
        return self._warped(pixels, place, self.size, nearest=False)

    def mapped(self, values: NDArray[Any], place: int, size: Size | None = None) -> NDArray[Any]:
        """Warp a map [h, w, ...] of the run, of any resolution, to a (height, width), by default `map_size`.

        Values are taken from the nearest pixel; 0 where there is none.
        """
        return self._warped(values, place, size or self.map_size(values.shape[:2]), nearest=True)

    def map_size(self, shape: Sequence[int]) -> Size:
        """Return the (height, width) of an exported map whose original has a shape.

        It has as many pixels per pixel of the picture as before, and more where the picture is reduced, so that the
        resolution of the map is kept, but no more than the picture.
        """
        sides = []
        for side, source_side, map_side, axis in zip(self.size, self.source_size, shape, (1, 0), strict=True):
            reduced = float((self.source_intrinsics[:, axis, axis] / self.intrinsics[:, axis, axis]).max())
            sides.append(max(round(side * min(map_side / source_side * max(reduced, 1.0), 1.0)), 1))
        return sides[0], sides[1]

    def _warped(self, values: NDArray[Any], place: int, wanted: Size, *, nearest: bool) -> NDArray[Any]:
        source, target = self.source_intrinsics[place], self.intrinsics[place]
        given: Size = (values.shape[0], values.shape[1])
        source = scaled(source, self.source_size, given)
        target = scaled(target, self.size, wanted)
        if not nearest:
            factor = max(target[0, 0] / source[0, 0], target[1, 1] / source[1, 1])
            resized = scaled(source, given, wanted)
            if np.allclose(resized, target, rtol=1e-12, atol=1e-9):
                return resize(values, wanted)
            if factor < _SHRINKS_BELOW:
                smaller = (max(round(given[0] * factor), 1), max(round(given[1] * factor), 1))
                values, source = resize(values, smaller), scaled(source, given, smaller)
        elif given == wanted and np.allclose(source, target, rtol=1e-12, atol=1e-9):
            return values
        method = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
        flags = method | cv2.WARP_INVERSE_MAP
        return cv2.warpPerspective(values, _opencv_homography(target, source), wanted[::-1], flags=flags)


def _opencv_homography(from_: NDArray[np.float64], to: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map pixels of one pinhole image to another at the same pose, for OpenCV's integer pixel centres.

    Source: Hartley & Zisserman (2004), section 8.4.2.
    """
    shift = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    homography: NDArray[np.float64] = np.linalg.inv(shift) @ to @ np.linalg.inv(from_) @ shift
    return homography


def scaled(intrinsics: NDArray[np.float64], size: Size, new_size: Size) -> NDArray[np.float64]:
    """Return intrinsics [..., 3, 3] of an image resized from one (height, width) to another."""
    if size == new_size:
        return intrinsics
    resized = resize_intrinsics(torch.from_numpy(intrinsics), new_size[1] / size[1], new_size[0] / size[0])
    return np.asarray(resized.numpy())


def plan_pictures(
    sizes: Sequence[Size],
    intrinsics: NDArray[np.float64],
    pinhole: Pinhole,
    *,
    long_side: int | None = None,
    exact_size: Size | None = None,
    focal: float | None = None,
) -> tuple[PictureGeometry, ...]:
    """Choose size and intrinsics of every view's exported pictures.

    `sizes` are the original (height, width) of V views, `intrinsics` [T, V, 3, 3]. `common` takes the size of most
    views (or `exact_size`) and the smallest focal length that leaves no empty border in any picture, unless `focal`
    is given in pixels of the exported pictures.

    Raises:
        UsageError: if a size has no pixels left, or the focal length is far from that of any camera.
    """
    if pinhole is Pinhole.COMMON:
        target = exact_size or _resized(
            max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size))), long_side
        )
        _check_focal(focal, target)
        chosen = focal or max(_smallest_focal(size, intrinsics[:, view], target) for view, size in enumerate(sizes))
        matrix = np.array([[chosen, 0.0, target[1] / 2], [0.0, chosen, target[0] / 2], [0.0, 0.0, 1.0]])
        goals = [(target, np.broadcast_to(matrix, (len(intrinsics), 3, 3))) for _ in sizes]
    elif pinhole is Pinhole.CENTERED:
        goals = [_centered(size, intrinsics[:, view], long_side) for view, size in enumerate(sizes)]
    else:
        goals = []
        for view, size in enumerate(sizes):
            target = _resized(size, long_side)
            goals.append((target, scaled(intrinsics[:, view], size, target)))
    return tuple(
        PictureGeometry(
            source_size=size, source_intrinsics=intrinsics[:, view], size=target, intrinsics=np.array(matrices)
        )
        for view, (size, (target, matrices)) in enumerate(zip(sizes, goals, strict=True))
    )


def _check_focal(focal: float | None, size: Size) -> None:
    """Refuse a focal length whose field of view is below 0.6 or above 177 degrees."""
    smallest, largest = max(size) / _FOCAL_RANGE, max(size) * _FOCAL_RANGE
    if focal is not None and not smallest <= focal <= largest:
        raise UsageError(
            f"⟨pinhole_focal={focal:g}⟩ does not suit pictures of {size[1]}x{size[0]} px",
            f"give {smallest:g} to {largest:g}, or leave it out",
        )


def _resized(size: Size, long_side: int | None) -> Size:
    if long_side is None:
        return size
    factor = long_side / max(size)
    result = (round(size[0] * factor), round(size[1] * factor))
    if min(result) < 1:
        raise UsageError(
            f"a picture of {size[1]}x{size[0]} px has no pixels left at ⟨image_size={long_side}⟩", "enlarge it"
        )
    return result


def _extents(size: Size, intrinsics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tangents [T, 4] of the angles from the optical axis to the left, right, top and bottom borders."""
    fx, fy, cx, cy = (intrinsics[:, row, column] for row, column in ((0, 0), (1, 1), (0, 2), (1, 2)))
    return np.stack([cx / fx, (size[1] - cx) / fx, cy / fy, (size[0] - cy) / fy], axis=1)


def _smallest_focal(size: Size, intrinsics: NDArray[np.float64], target: Size) -> float:
    """Return the smallest focal length at which a centred picture of size `target` has no empty border."""
    extents = _extents(size, intrinsics)
    across, down = float(extents[:, :2].min()), float(extents[:, 2:].min())
    if min(across, down) <= 0:
        raise UsageError("the optical axis of a view lies outside its picture", "use ⟨pinhole=keep⟩, or leave it out")
    return max(target[1] / 2 / across, target[0] / 2 / down)


def _centered(size: Size, intrinsics: NDArray[np.float64], long_side: int | None) -> tuple[Size, NDArray[np.float64]]:
    """Crop a picture symmetrically around the principal point, which becomes its middle; focal lengths are kept."""
    height, width = size
    across = float(np.minimum(intrinsics[:, 0, 2], width - intrinsics[:, 0, 2]).min())
    down = float(np.minimum(intrinsics[:, 1, 2], height - intrinsics[:, 1, 2]).min())
    kept = (math.floor(2 * down + 1e-6), math.floor(2 * across + 1e-6))
    if min(kept) < 1:
        raise UsageError("the optical axis of a view lies outside its picture", "use ⟨pinhole=keep⟩, or leave it out")
    matrices = intrinsics.copy()
    matrices[:, 0, 2], matrices[:, 1, 2] = kept[1] / 2, kept[0] / 2
    target = _resized(kept, long_side)
    return target, scaled(matrices, kept, target)


def _uncovered(pictures: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the largest share of pictures, rectangles [T, 4] on the plane z = 1, that others do not cover."""
    common = np.minimum(pictures, others)
    shared = (common[:, 0] + common[:, 1]).clip(min=0) * (common[:, 2] + common[:, 3]).clip(min=0)
    areas = (pictures[:, 0] + pictures[:, 1]) * (pictures[:, 2] + pictures[:, 3])
    share = float(1 - (shared / areas).min())
    return share if share > 1e-9 else 0.0


def linear_from_srgb(rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return linear light in [0, 1] of sRGB colours, in an array of the same shape.

    Source: IEC 61966-2-1:1999, section 5.2 (equations 5 and 6).
    """
    encoded = np.arange(256) / 255.0
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    return linear.astype(np.float32)[rgb]
