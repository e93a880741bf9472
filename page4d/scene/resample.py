"""Resampling of images: resizing, native or exactly as the public networks' loaders, and lens undistortion."""

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as PillowImage
from torch import Tensor

from page4d.choices import Preprocess
from page4d.geometry.camera import denormalize_pixels, normalize_pixels, pixel_grid
from page4d.geometry.distortion import Distortion
from page4d.geometry.pixels import DA3_SIDE, da3_sizes
from page4d.scene.records import Image, ViewCamera

_PILLOW_FILTERS = {
    Preprocess.VGGT_CROP: PillowImage.Resampling.BICUBIC,
    Preprocess.VGGT_PAD: PillowImage.Resampling.BICUBIC,
    Preprocess.VGGT_OMEGA: PillowImage.Resampling.BICUBIC,
    Preprocess.PI3: PillowImage.Resampling.LANCZOS,
}

_STRIP_ROWS = 64
"""Rows computed at once: the intermediate values take about 20 times the memory of the result."""


def resize(pixels: Image, size: tuple[int, int], *, nearest: bool = False) -> Image:
    """Resize to (height, width): area averaging to shrink, bicubic to enlarge, nearest neighbour for labels."""
    if pixels.shape[:2] == size:
        return pixels
    shrinks = size[0] < pixels.shape[0]
    method = cv2.INTER_NEAREST_EXACT if nearest else cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=method), dtype=pixels.dtype)


def resample(pixels: Image, size: tuple[int, int], preprocess: Preprocess) -> Image:
    """Resize RGB to (height, width) as `preprocess` requires.

    The public loaders work on 8 bits: of 16-bit pixels the upper 8 bits are kept.

    Source: the public VGGT, VGGT-Omega, Pi3 and Depth Anything 3 loaders (reference facts).
    """
    if preprocess is Preprocess.NATIVE:
        return resize(pixels, size)
    shallow = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    if preprocess is Preprocess.DA3:
        return resize_twice(shallow)
    return np.asarray(PillowImage.fromarray(shallow).resize(size[::-1], _PILLOW_FILTERS[preprocess]))


def resize_twice(pixels: Image, long_side: int = DA3_SIDE) -> Image:
    """Resize 8-bit RGB to both sizes of `da3_sizes` in turn.

    Area averaging if the long side shrinks, then if no side grows; otherwise bicubic.

    Source: the public Depth Anything 3 loader (reference facts).
    """
    bounded, size = da3_sizes((pixels.shape[0], pixels.shape[1]), long_side)
    enlarges = long_side > max(pixels.shape[:2])
    for wanted in (bounded, size):
        if pixels.shape[:2] != wanted:
            method = cv2.INTER_CUBIC if enlarges else cv2.INTER_AREA
            pixels = np.asarray(cv2.resize(pixels, wanted[::-1], interpolation=method), dtype=pixels.dtype)
        enlarges = size[0] > bounded[0] or size[1] > bounded[1]
    return pixels


@dataclass(frozen=True)
class UndistortionMap:
    """Source pixel (x, y) of each pixel of the undistorted image, and where it lies within the sensor."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    visible: NDArray[np.bool_]

    def remap(self, pixels: Image, *, nearest: bool = False) -> Image:
        """Undistort an image of the original size."""
        return cv2.remap(pixels, self.x, self.y, cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR)


def undistortion_map(camera: ViewCamera | None, size: tuple[int, int]) -> UndistortionMap | None:
    """Compute the map for images of (height, width); None without distortion."""
    if camera is None or camera.distortion is None:
        return None
    height, width = size
    strips = [
        _map_rows(camera, camera.distortion, range(row, min(row + _STRIP_ROWS, height)), (height, width))
        for row in range(0, height, _STRIP_ROWS)
    ]
    x, y, visible = (torch.cat(parts) for parts in zip(*strips, strict=True))
    return UndistortionMap(x.numpy(), y.numpy(), visible.numpy())


def _map_rows(
    camera: ViewCamera, distortion: Distortion, rows: range, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y (top-left pixel centre at 0, as in OpenCV) and visibility of some rows."""
    height, width = size
    grid = pixel_grid(len(rows), width)
    grid[..., 1] += rows.start
    intrinsics = camera.intrinsics.to(grid)  # single precision: errors of 0.001 px in 8K images
    ideal = normalize_pixels(grid, intrinsics)
    distorted = denormalize_pixels(distortion.distort(ideal), intrinsics)
    inside = (distorted >= 0).all(-1) & (distorted[..., 0] <= width) & (distorted[..., 1] <= height)
    visible = inside & distortion.in_domain(ideal)
    # Within half a pixel of the border, pixels are visible but cannot be interpolated: use the border value.
    limit = distorted.new_tensor([width - 1, height - 1])
    x, y = (distorted - 0.5).clamp(min=distorted.new_zeros(2), max=limit).unbind(-1)
    outside = torch.tensor(-1e4)
    return torch.where(visible, x, outside), torch.where(visible, y, outside), visible
