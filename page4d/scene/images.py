"""Folders of images as frame sources: one image a frame, numbered or counted."""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from page4d.errors import InputError
from page4d.scene.files import check_pixels, check_regular_file, natural_key
from page4d.scene.records import Image

IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .bmp .tif .tiff .webp".split())
"""File names that are taken for images."""

_DENSE_ENOUGH = 0.5
_PNG_BIT_DEPTH_AT = 24
_TRANSPOSED_ORIENTATIONS = (5, 6, 7, 8)
_EXIF_ORIENTATION = 0x0112
_TIFF_SIZE = (256, 257)


@dataclass(frozen=True, kw_only=True)
class ImageFolderSource:
    """A folder of images of one size; `numbers` are those that end the file names, if every name ends in one.

    Of images with alpha only the colour is read, unless a `background` (RGB) is to show through.
    """

    path: Path
    files: tuple[Path, ...]
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    fps: float
    numbers: tuple[int, ...] | None = None
    grayscale: bool = False
    background: tuple[int, int, int] | None = None

    @property
    def label(self) -> str:
        """Folder name for messages."""
        return f"{self.path.name}/"

    @property
    def codec(self) -> str:
        """Suffix of the first file."""
        return self.files[0].suffix.lower().lstrip(".")

    @contextmanager
    def open(self, size: tuple[int, int] | None = None) -> Iterator["ImageFolderReader"]:
        """Start reading, resized to `size` (height, width) if given."""
        yield ImageFolderReader(self, size or self.size)


class ImageFolderReader:
    """Reads images by index."""

    def __init__(self, source: ImageFolderSource, size: tuple[int, int]) -> None:
        self._source = source
        self._size = size

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the images with these indices.

        Raises:
            InputError: if an image is damaged.
        """
        for index in indices:
            source = self._source
            pixels = _decode(source.files[index], grayscale=source.grayscale, background=source.background)
            yield resize(pixels, self._size, nearest=source.grayscale)


def probe_image_folder(
    folder: Path, *, fps: float, max_megapixels: float, grayscale: bool = False
) -> ImageFolderSource:
    """List the images of a folder in natural order and check their headers; no pixel is decoded.

    The images are `1 / fps` seconds apart. Masks are read with `grayscale`.

    Raises:
        InputError: if a file cannot be an image or its size differs from the others'.
    """
    files = tuple(sorted(image_files(folder), key=lambda file: natural_key(file.name)))
    sizes = [_header_size(file, max_megapixels) for file in files]
    common = max(set(sizes), key=sizes.count)
    for file, size in zip(files, sizes, strict=True):
        if size != common:
            raise InputError(
                f"{folder.name}/{file.name} is {size[1]}x{size[0]}, the others {common[1]}x{common[0]}",
                "images of one view have one size: remove it or render it again",
            )
    return ImageFolderSource(
        path=folder,
        files=files,
        size=common,
        frame_times=np.arange(len(files)) / fps,
        fps=fps,
        numbers=_frame_numbers(files),
        grayscale=grayscale,
    )


def time_by_number(
    sources: Sequence[ImageFolderSource],
) -> tuple[tuple[ImageFolderSource, ...], tuple[float, ...]] | None:
    """Time images by the frame numbers in their names, so that a missing image leaves a gap and shifts nothing.

    All folders count in the same steps (the greatest common divisor of all differences). Returns the sources and the
    start of each on a common clock in seconds; None where numbers are missing or too sparse to count frames.
    """
    numbers = [source.numbers or () for source in sources]
    steps = [after - before for own in numbers for before, after in pairwise(own)]
    first, last = min(min(own, default=0) for own in numbers), max(max(own, default=0) for own in numbers)
    step = math.gcd(*steps) or max(last - first, 1)
    densest = max(len(own) for own in numbers)
    if not all(numbers) or densest < _DENSE_ENOUGH * ((last - first) / step + 1):
        return None
    timed, starts = [], []
    for source, own in zip(sources, numbers, strict=True):
        counts = (np.array(own, dtype=np.float64) - first) / step / source.fps
        timed.append(replace(source, frame_times=counts - counts[0]))
        starts.append(float(counts[0]))
    return tuple(timed), tuple(starts)


def image_files(folder: Path) -> list[Path]:
    """Return the images directly in a folder, hidden files left out."""
    return [
        file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    ]


def resize(pixels: Image, size: tuple[int, int], *, nearest: bool = False) -> Image:
    """Resize to (height, width): area averaging when shrinking, cubic when growing, nearest for labels."""
    if pixels.shape[:2] == size:
        return pixels
    shrinks = size[0] < pixels.shape[0]
    method = cv2.INTER_NEAREST_EXACT if nearest else cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=method), dtype=pixels.dtype)


def _frame_numbers(files: Sequence[Path]) -> tuple[int, ...] | None:
    matches = [re.search(r"(\d+)$", file.stem) for file in files]
    numbers = tuple(int(match[1]) for match in matches if match)
    return numbers if len(numbers) == len(files) == len(set(numbers)) else None


def _header_size(file: Path, max_megapixels: float) -> tuple[int, int]:
    check_regular_file(file)
    name = f"{file.parent.name}/{file.name}"
    try:
        with _opened(file) as image:
            # Of a TIFF, Pillow gives the upright size, of everything else the stored one.
            width, height = (
                (image.tag_v2[tag] for tag in _TIFF_SIZE) if isinstance(image, TiffImageFile) else image.size
            )
            check_pixels(name, width, height, max_megapixels)
            # Pillow's own getexif decodes a whole PNG to look behind the pixels; what stands before them is enough.
            turned = PillowImage.Image.getexif(image).get(_EXIF_ORIENTATION) in _TRANSPOSED_ORIENTATIONS
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{name} is not an image that can be read", "remove it or render it again") from error
    return (width, height) if turned else (height, width)


@contextmanager
def _opened(file: Path) -> Iterator[PillowImage.Image]:
    """Open an image under our own limit of pixels, which the user can raise, in place of Pillow's.

    What Pillow would warn of is either harmless or ends in an error that names the file.
    """
    limit, PillowImage.MAX_IMAGE_PIXELS = PillowImage.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings(action="ignore"), PillowImage.open(file) as image:
            yield image
    finally:
        PillowImage.MAX_IMAGE_PIXELS = limit


def _decode(file: Path, *, grayscale: bool, background: tuple[int, int, int] | None) -> Image:
    """Decode one image completely, or say that it is damaged: a half-grey picture is never passed on."""
    data = file.read_bytes()
    deep = file.suffix.lower() in (".tif", ".tiff") or (data[1:4] == b"PNG" and data[_PNG_BIT_DEPTH_AT] > 8)
    try:
        if deep:
            return _decode_deep(data, grayscale=grayscale)
        with _opened(file) as image:
            upright = ImageOps.exif_transpose(image)
            if background is not None and upright.mode == "RGBA":
                upright = PillowImage.alpha_composite(PillowImage.new("RGBA", upright.size, background), upright)
            return np.asarray(upright.convert("L" if grayscale else "RGB"))
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise InputError(f"{file.parent.name}/{file.name} is damaged", "copy or render it again") from error


def _decode_deep(data: bytes, *, grayscale: bool) -> Image:
    """Decode more than 8 bits a channel, which Pillow would cut to 8."""
    color = cv2.IMREAD_GRAYSCALE if grayscale else cv2.IMREAD_COLOR
    logging = cv2.utils.logging
    level = logging.setLogLevel(logging.LOG_LEVEL_SILENT)  # it would print what our error says
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), color | cv2.IMREAD_ANYDEPTH)
    finally:
        logging.setLogLevel(level)
    if pixels is None or pixels.dtype not in (np.uint8, np.uint16):
        raise ValueError("not an image of 8 or 16 bits")
    return np.ascontiguousarray(pixels if grayscale else pixels[..., ::-1], dtype=pixels.dtype)
