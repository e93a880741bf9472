"""Pixels exactly as the loaders of the public networks make them: the resampling, and what alpha means."""

from dataclasses import replace

import numpy as np
from PIL import Image as PillowImage

from page4d.geometry.preprocess import Preprocess
from page4d.scene.images import ImageFolderSource, resize
from page4d.scene.records import FrameSource, Image

_FILTERS = {
    Preprocess.VGGT_CROP: PillowImage.Resampling.BICUBIC,
    Preprocess.VGGT_PAD: PillowImage.Resampling.BICUBIC,
    Preprocess.PI3: PillowImage.Resampling.LANCZOS,
}
_WHITE_RGB = (255, 255, 255)


def prepare_source(source: FrameSource, preprocess: Preprocess) -> FrameSource:
    """Let white show through transparent pixels of images, where the public loader does.

    Source: the public VGGT loader (reference facts); Pi3's reads the colour alone, as page4d does.
    """
    on_white = preprocess in (Preprocess.VGGT_CROP, Preprocess.VGGT_PAD)
    return replace(source, background=_WHITE_RGB) if on_white and isinstance(source, ImageFolderSource) else source


def prepare_pixels(pixels: Image, size: tuple[int, int], preprocess: Preprocess) -> Image:
    """Resize RGB to (height, width); published ways do it with Pillow, which keeps the upper 8 bits of deeper pixels.

    Source: the public VGGT and Pi3 loaders (reference facts).
    """
    if preprocess is Preprocess.NATIVE:
        return resize(pixels, size)
    shallow = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    return np.asarray(PillowImage.fromarray(shallow).resize(size[::-1], _FILTERS[preprocess]))
