"""Resampling of frames: native, or exactly as the loaders of the public networks."""

import cv2
import numpy as np
from PIL import Image as PillowImage

from page4d.choices import Preprocess
from page4d.scene.records import Image

_PILLOW_FILTERS = {
    Preprocess.VGGT_CROP: PillowImage.Resampling.BICUBIC,
    Preprocess.VGGT_PAD: PillowImage.Resampling.BICUBIC,
    Preprocess.PI3: PillowImage.Resampling.LANCZOS,
}


def resize(pixels: Image, size: tuple[int, int], *, nearest: bool = False) -> Image:
    """Resize to (height, width): area averaging to shrink, bicubic to enlarge, nearest neighbour for labels."""
    if pixels.shape[:2] == size:
        return pixels
    shrinks = size[0] < pixels.shape[0]
    method = cv2.INTER_NEAREST_EXACT if nearest else cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=method), dtype=pixels.dtype)


def resample(pixels: Image, size: tuple[int, int], preprocess: Preprocess) -> Image:
    """Resize RGB to (height, width) as `preprocess` requires.

    The public loaders use Pillow, which keeps the upper 8 bits of 16-bit pixels.

    Source: the public VGGT and Pi3 loaders (reference facts).
    """
    if preprocess is Preprocess.NATIVE:
        return resize(pixels, size)
    shallow = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    return np.asarray(PillowImage.fromarray(shallow).resize(size[::-1], _PILLOW_FILTERS[preprocess]))
