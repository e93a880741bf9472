"""Image folders as frame sources: one image per frame, numbered by file name or counted."""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import cv2
import imageio.v3 as iio
import numpy as np
from imageio.core.request import InitializationError
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from page4d.errors import InputError
from page4d.scene.files import check_pixels, check_regular_file, natural_key
from page4d.scene.records import Image
from page4d.scene.resample import resize

IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .bmp .tif .tiff .webp".split())
"""Suffixes of image files."""

_MIN_DENSITY = 0.5
"""Minimum share of images among the frame numbers that they span."""

_PNG_BIT_DEPTH_AT = 24
_TRANSPOSED_ORIENTATIONS = (5, 6, 7, 8)
_EXIF_ORIENTATION = 0x0112
_TIFF_SIZE = (256, 257)


@dataclass(frozen=True, kw_only=True)
class ImageFolderSource:
    """A folder of images of one size; `numbers` are the trailing numbers of the file names, if all names have one.

    Alpha is ignored, or blended with `background` (RGB) if given.
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
        """Start reading, resizing to `size` (height, width) if given."""
        yield ImageFolderReader(self, size or self.size)


class ImageFolderReader:
    """Random-access reader of the images."""

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
        InputError: if a file is not an image, or the images differ in size.
    """
    files = tuple(sorted(image_files(folder), key=lambda file: natural_key(file.name)))
    sizes = [_header_size(file, max_megapixels) for file in files]
    common = max(set(sizes), key=sizes.count)
    for file, size in zip(files, sizes, strict=True):
        if size != common:
            raise InputError(
                f"{folder.name}/{file.name} is {size[1]}x{size[0]}, the others {common[1]}x{common[0]}",
                "images of a view must have the same size: remove the image or render it again",
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
    """Time images by the frame numbers in their names, so that a missing image leaves a gap.

    The step of the numbers is the greatest common divisor of all differences. Returns the sources and the start time
    of each on a common clock in seconds; None if numbers are missing or too sparse to be frame numbers.
    """
    numbers = [source.numbers or () for source in sources]
    steps = [after - before for of_view in numbers for before, after in pairwise(of_view)]
    first = min(min(of_view, default=0) for of_view in numbers)
    last = max(max(of_view, default=0) for of_view in numbers)
    step = math.gcd(*steps) or max(last - first, 1)
    densest = max(len(of_view) for of_view in numbers)
    if not all(numbers) or densest < _MIN_DENSITY * ((last - first) / step + 1):
        return None
    timed, starts = [], []
    for source, of_view in zip(sources, numbers, strict=True):
        counts = (np.array(of_view, dtype=np.float64) - first) / step / source.fps
        timed.append(replace(source, frame_times=counts - counts[0]))
        starts.append(float(counts[0]))
    return tuple(timed), tuple(starts)


def image_files(folder: Path) -> list[Path]:
    """Return the images directly in a folder, without hidden files."""
    return [
        file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    ]


def _frame_numbers(files: Sequence[Path]) -> tuple[int, ...] | None:
    matches = [re.search(r"(\d+)$", file.stem) for file in files]
    numbers = tuple(int(match[1]) for match in matches if match)
    return numbers if len(numbers) == len(files) == len(set(numbers)) else None


def _header_size(file: Path, max_megapixels: float) -> tuple[int, int]:
    check_regular_file(file)
    name = f"{file.parent.name}/{file.name}"
    try:
        with _without_pixel_limit(), PillowImage.open(file) as image:
            # Pillow returns the upright size of a TIFF, but the stored size of all other formats.
            width, height = (
                (image.tag_v2[tag] for tag in _TIFF_SIZE) if isinstance(image, TiffImageFile) else image.size
            )
            check_pixels(name, width, height, max_megapixels)
            # PngImageFile.getexif would decode the whole image to find EXIF data after the pixels.
            transposed = PillowImage.Image.getexif(image).get(_EXIF_ORIENTATION) in _TRANSPOSED_ORIENTATIONS
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{name} is not a readable image", "remove it or render it again") from error
    return (width, height) if transposed else (height, width)


@contextmanager
def _without_pixel_limit() -> Iterator[None]:
    """Suspend Pillow's pixel limit and warnings: `check_pixels` applies the limit of the user."""
    limit, PillowImage.MAX_IMAGE_PIXELS = PillowImage.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        PillowImage.MAX_IMAGE_PIXELS = limit


def _decode(file: Path, *, grayscale: bool, background: tuple[int, int, int] | None) -> Image:
    """Decode one image completely; a truncated image is an error."""
    data = file.read_bytes()
    deep = file.suffix.lower() in (".tif", ".tiff") or (data[1:4] == b"PNG" and data[_PNG_BIT_DEPTH_AT] > 8)
    try:
        if deep:
            return _decode_deep(data, grayscale=grayscale)
        with _without_pixel_limit(), closing(iio.imopen(data, "r", plugin="pillow")) as image:
            properties = image.metadata(index=0, exclude_applied=False)
            blended = background is not None and properties["mode"] == "RGBA"
            mode = "RGBA" if blended else "L" if grayscale else "RGB"
            # imageio's own rotation mirrors grayscale images along the wrong axis.
            pixels = image.read(index=0, mode=mode, rotate=False)
        if blended:
            layer = PillowImage.fromarray(pixels)
            below = PillowImage.new("RGBA", layer.size, background)
            pixels = np.asarray(PillowImage.alpha_composite(below, layer).convert("L" if grayscale else "RGB"))
        return _upright(pixels, properties.get("Orientation", 1))
    except (OSError, SyntaxError, ValueError, EOFError, InitializationError) as error:
        raise InputError(f"{file.parent.name}/{file.name} is damaged", "copy or render it again") from error


def _upright(pixels: Image, orientation: int) -> Image:
    """Apply an EXIF orientation (1 to 8; others leave the image as it is) to an image [H, W, ...].

    Source: CIPA DC-008 (Exif 2.32), tag 0x0112.
    """
    if orientation in _TRANSPOSED_ORIENTATIONS:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _decode_deep(data: bytes, *, grayscale: bool) -> Image:
    """Decode images of more than 8 bits per channel, which Pillow would reduce to 8."""
    color = cv2.IMREAD_GRAYSCALE if grayscale else cv2.IMREAD_COLOR
    logging = cv2.utils.logging
    level = logging.setLogLevel(logging.LOG_LEVEL_SILENT)  # suppresses messages on stderr
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), color | cv2.IMREAD_ANYDEPTH)
    finally:
        logging.setLogLevel(level)
    if pixels is None or pixels.dtype not in (np.uint8, np.uint16):
        raise ValueError("not an 8-bit or 16-bit image")
    return np.ascontiguousarray(pixels if grayscale else pixels[..., ::-1], dtype=pixels.dtype)
