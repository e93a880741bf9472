"""Image folders as frame sources, and resampling of images.

Frames are numbered by file name or counted. Images are resized natively or exactly as the loaders of public networks
do, and undistorted.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as PillowImage
from torch import Tensor

from page4d.choices import Preprocess
from page4d.errors import InputError, Notice, counted, listed
from page4d.geometry.camera import denormalize_pixels, normalize_pixels, pixel_grid, resize_intrinsics
from page4d.geometry.distortion import Distortion
from page4d.geometry.pixels import fit_long_side
from page4d.io.input_files import check_pixels, natural_key
from page4d.scene.image_file import (
    Image,
    ImageHeader,
    check_readable,
    image_name,
    in_8_bits,
    read_header,
    read_pixels,
)
from page4d.scene.packing import MOSAIC, check_halves, comparison_size, is_mosaic
from page4d.scene.stamps import NS, Stamps, are_periodic, stamps_of_names

if TYPE_CHECKING:
    from page4d.scene.records import ViewCamera

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
    shallow = in_8_bits(pixels)
    if preprocess is Preprocess.DA3:
        return resize_twice(shallow, size)
    filters = PillowImage.Resampling
    chosen = filters.LANCZOS if preprocess is Preprocess.PI3 else filters.BICUBIC
    return np.asarray(PillowImage.fromarray(shallow).resize(size[::-1], chosen))


def resize_twice(pixels: Image, size: tuple[int, int]) -> Image:
    """Resize 8-bit RGB to the long side of a (height, width), then to the latter.

    Area averaging if the long side shrinks, then if no side grows; otherwise bicubic.

    Source: the public Depth Anything 3 loader (reference facts).
    """
    bounded = fit_long_side((pixels.shape[0], pixels.shape[1]), max(size))
    enlarges = max(size) > max(pixels.shape[:2])
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


_maps: WeakValueDictionary[object, UndistortionMap] = WeakValueDictionary()
"""Maps in use, by what determines them: readers of the same pictures share them."""


def undistortion_map(
    camera: "ViewCamera | None", original: tuple[int, int], size: tuple[int, int] | None = None
) -> UndistortionMap | None:
    """Compute the map of images of this size (height, width), resized to `size` if given; None without distortion."""
    if camera is None or camera.distortion is None:
        return None
    height, width = size or original
    intrinsics = resize_intrinsics(camera.intrinsics, width / original[1], height / original[0])
    key = tuple(intrinsics.flatten().tolist()), camera.distortion, height, width
    found = _maps.get(key)
    if found is None:
        strips = [
            _map_rows(intrinsics, camera.distortion, range(row, min(row + _STRIP_ROWS, height)), (height, width))
            for row in range(0, height, _STRIP_ROWS)
        ]
        x, y, visible = (torch.cat(parts) for parts in zip(*strips, strict=True))
        found = _maps[key] = UndistortionMap(x.numpy(), y.numpy(), visible.numpy())
    return found


def _map_rows(
    intrinsics: Tensor, distortion: Distortion, rows: range, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y (top-left pixel centre at 0, as in OpenCV) and visibility of some rows."""
    height, width = size
    grid = pixel_grid(len(rows), width)
    grid[..., 1] += rows.start
    intrinsics = intrinsics.to(grid)  # single precision: errors of 0.001 px in 8K images
    ideal = normalize_pixels(grid, intrinsics)
    distorted = denormalize_pixels(distortion.distort(ideal), intrinsics)
    inside = (distorted >= 0).all(-1) & (distorted[..., 0] <= width) & (distorted[..., 1] <= height)
    visible = inside & distortion.in_domain(ideal)
    # Within half a pixel of the border, pixels are visible but cannot be interpolated: use the border value.
    limit = distorted.new_tensor([width - 1, height - 1])
    x, y = (distorted - 0.5).clamp(min=distorted.new_zeros(2), max=limit).unbind(-1)
    outside = torch.tensor(-1e4)
    return torch.where(visible, x, outside), torch.where(visible, y, outside), visible


IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .bmp .tif .tiff .webp".split())
"""Suffixes of image files."""

_BRIGHTEST_12_BITS = 4095

_MIN_DENSITY = 0.5
"""Minimum share of images among the frame numbers that they span."""

_MIN_TICKS = 5
"""Fewest images of a view that show the period of a clock."""

UNREAD_SUFFIXES = frozenset(
    ".gif .heic .heif .avif .jxl .jp2 .jfif .jpe .exr .hdr .pfm .pgm .ppm .tga .dpx .dng .cr2 .cr3 .nef .arw".split()
)
"""Suffixes of image files that are not read."""


@dataclass(frozen=True, kw_only=True)
class ImageFolderSource:
    """Images of one size in a folder; `numbers` are the frame numbers in their `frame_names`, if all names have one.

    `label` is the name of the folder in messages. `stamps` belong to images whose names are times. Alpha is ignored,
    or blended with `background` (RGB) if given. Pixels of `labels` other than 0 are read as 255 [H, W].
    """

    path: Path
    label: str
    files: tuple[Path, ...]
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    fps: float
    numbers: tuple[int, ...] | None = None
    stamps: Stamps | None = None
    grayscale: bool = False
    labels: bool = False
    background: tuple[int, int, int] | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def frame_names(self) -> tuple[str, ...]:
        """Names of the frames: those of the files without suffix, or of their folders."""
        return frame_names(self.files)

    @property
    def codec(self) -> str:
        """Suffix of the first file."""
        return self.files[0].suffix.lower().lstrip(".")

    @contextmanager
    def open(self, size: tuple[int, int] | None = None) -> Iterator["ImageFolderReader"]:
        """Start reading, resizing to `size` (height, width) if given."""
        yield ImageFolderReader(self, size or self.size)


@dataclass(frozen=True)
class ImageFolderReader:
    """Random-access reader of the images, resized to `size` (height, width)."""

    source: ImageFolderSource
    size: tuple[int, int]

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the images with these indices.

        Raises:
            InputError: if an image is damaged, or was removed or replaced.
        """
        source = self.source
        for index in indices:
            pixels = read_pixels(
                source.files[index], source.size, grayscale=source.grayscale, background=source.background
            )
            if source.labels:
                pixels = (pixels != 0).any(axis=-1).astype(np.uint8) * 255
            yield resize(pixels, self.size, nearest=source.grayscale or source.labels)


def probe_image_folder(
    folder: Path,
    *,
    fps: float,
    max_megapixels: float,
    files: tuple[Path, ...] = (),
    name: str = "",
    label: str = "",
    grayscale: bool = False,
    check: Callable[[str, ImageHeader], None] = check_readable,
) -> ImageFolderSource:
    """List the images of a folder in natural order and check their headers; no pixel is decoded.

    `files` are its images in order, by default all. `name` and `label` are those of the view and of the folder in
    messages, by default the name of the folder. The images are `1 / fps` seconds apart. Depth maps are read with
    `grayscale`. `check` may refuse an image by its name and header.

    Raises:
        InputError: if a file is not an image, or the images differ in size.
    """
    files = files or tuple(files_with(folder, IMAGE_SUFFIXES))
    headers = [_read_header(file, max_megapixels, check) for file in files]
    common = Counter(header.size for header in headers).most_common(1)[0][0]
    for file, header in zip(files, headers, strict=True):
        if header.size != common:
            hint = "images of a view must have the same size: remove the image or render it again"
            if header.size == common[::-1]:
                hint = "turn the image like the others, or correct its EXIF orientation"
            (height, width), (others_height, others_width) = header.size, common
            found = f"{image_name(file)} is {width}x{height}, the others {others_width}x{others_height}"
            raise InputError(found, hint)
    return ImageFolderSource(
        path=folder,
        label=label or f"{folder.name}/",
        files=files,
        size=common,
        frame_times=np.arange(len(files)) / fps,
        fps=fps,
        numbers=_frame_numbers(frame_names(files)),
        grayscale=grayscale,
        notices=tuple(_notices(folder, name or folder.name, files, headers)),
    )


def time_by_name(sources: Sequence[ImageFolderSource]) -> list[ImageFolderSource]:
    """Time images whose names are plain times by these times, in their order; leave other sources as they are."""
    timed = []
    found = stamps_of_names([source.frame_names for source in sources])
    for source, named in zip(sources, found, strict=True):
        if named is None:
            timed.append(source)
            continue
        origin, ns = named
        order = np.argsort(ns)
        times = (ns[order] - ns.min()) / NS
        files = tuple(source.files[place] for place in order)
        stamps = Stamps(int(ns.min()), origin)
        timed.append(replace(source, files=files, frame_times=times, numbers=None, stamps=stamps))
    return timed


def time_by_number(sources: Sequence[ImageFolderSource]) -> list[tuple[ImageFolderSource, float | None]]:
    """Time images by the frame numbers in their names, so that a missing image leaves a gap.

    The step of the numbers is the greatest common divisor of all differences or, of ticks of a clock that are about
    equally spaced, the median difference. Sparse numbers that views have in common, of frames picked from videos,
    count in their order. Returns the numbered sources and the start time of each on a common clock in seconds, None
    if every camera has numbers of its own. Other sparse numbers are not used, and none if every folder has one image.
    """
    numbered = [(source, source.numbers) for source in sources if source.numbers]
    numbers = [of_view for _, of_view in numbered]
    longest = max(map(len, numbers), default=0)
    if longest < 2:
        return []
    steps = sorted(after - before for of_view in numbers for before, after in pairwise(of_view))
    first, last = min(map(min, numbers)), max(map(max, numbers))
    step = math.gcd(*steps) or max(last - first, 1)
    if longest < _MIN_DENSITY * ((last - first) / step + 1):
        step = steps[len(steps) // 2]
        is_sparse = longest < _MIN_DENSITY * ((last - first) / step + 1)
        ticks = [np.array([number - first for number in of_view], dtype=np.float64) for of_view in numbers]
        if is_sparse or longest < _MIN_TICKS or not all(map(are_periodic, ticks)):
            if not _are_shared(numbers):
                others = [each for each, _ in numbered] if len(numbered) > 1 else []
                return [(source, None) for each in others for source, _ in time_by_number([each])]
            order = {number: place for place, number in enumerate(sorted({*chain(*numbers)}))}
            numbered = [(source, tuple(order[number] for number in of_view)) for source, of_view in numbered]
            first, step = 0, 1
    timed: list[tuple[ImageFolderSource, float | None]] = []
    for source, of_view in numbered:
        # Numbers of more than 15 digits are no exact doubles.
        counts = np.array([(number - first) / step for number in of_view]) / source.fps
        timed.append((replace(source, frame_times=counts - counts[0]), float(counts[0])))
    return timed


def _are_shared(numbers: Sequence[Sequence[int]]) -> bool:
    """Return whether every view shares half of its frame numbers, or of those of another view, with that one."""
    sets = [{*of_view} for of_view in numbers]
    return all(
        any(2 * len(own & other) >= min(len(own), len(other)) for other in sets if other is not own) for own in sets
    )


def content_notices(sources: Sequence[ImageFolderSource]) -> list[Notice]:
    """Report colour mosaics, and 16-bit images that use 12 bits or fewer, as industrial cameras store them.

    Decodes the first image of a folder if it is gray, has 16 bits or the shape of two images.

    Raises:
        InputError: if the image is damaged, or a stereo pair.
    """
    notices, mosaics = [], []
    for source in sources:
        first = source.files[0]
        header = read_header(first)
        is_gray = header.channels == 1 and not header.has_palette
        small = comparison_size(source.size)
        if header.bits != 16 and not is_gray and small is None:
            continue
        pixels = read_pixels(first, source.size, grayscale=is_gray)
        if is_gray and is_mosaic(pixels):
            mosaics.append(source.label)
        if small is not None:
            check_halves(source.label, resize(pixels, small) / (257 if pixels.dtype == np.uint16 else 1))
        brightest = int(pixels.max())
        if header.bits == 16 and brightest <= _BRIGHTEST_12_BITS:
            text = (
                f"{source.label}: the brightest value of {first.name} is {brightest} of 65535: a nearly black image"
            )
            notices.append(Notice(f"{text}; multiply images of fewer than 16 bits, such as 12 bits by 16"))
    return [*notices, *([Notice(f"{listed(mosaics)}: {MOSAIC}")] if mosaics else [])]


def files_with(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    """Return the files with some suffixes directly in a folder in natural order, without hidden files."""
    files = [file for file in folder.iterdir() if file.suffix.lower() in suffixes and not file.name.startswith(".")]
    return sorted(files, key=lambda file: natural_key(file.name))


def _read_header(file: Path, max_megapixels: float, check: Callable[[str, ImageHeader], None]) -> ImageHeader:
    header = read_header(file)
    height, width = header.size
    check_pixels(image_name(file), width, height, max_megapixels)
    check(image_name(file), header)
    return header


def _notices(folder: Path, view: str, files: Sequence[Path], headers: Sequence[ImageHeader]) -> Iterator[Notice]:
    """Report what is not read from the files of a folder."""
    total = len(files)

    def share(affected: Sequence[Path]) -> str:
        return f"{len(affected)} of {counted(total, 'image')} (first {affected[0].name})"

    pairs = list(zip(files, headers, strict=True))
    if damaged := [file for file, header in pairs if header.has_damaged_exif]:
        yield Notice(f"{view}: damaged EXIF data in {share(damaged)}: read without rotation")
    if several := [file for file, header in pairs if header.has_more_images]:
        yield Notice(
            f"{view}: animation or several pages in {share(several)}: only the first image of a file is used"
        )
    if any(header.has_alpha for header in headers):
        yield Notice(f"{view}: alpha ignored")
    used = set(files)
    inside = files_with(folder, UNREAD_SUFFIXES) if folder.is_dir() else []  # none if every instant has a folder
    if unread := [file for file in inside if file not in used]:
        kinds = ", ".join(sorted({file.suffix.lower().lstrip(".") for file in unread}))
        yield Notice(
            f"{view}: {counted(len(unread), 'file')} not read (first {unread[0].name}): {kinds} is not supported"
        )
    if place := _restart(_frame_numbers(frame_names(files)) or ()):
        last, first = files[place - 1].name, files[place].name
        yield Notice(f"{view}: {first} follows {last}: if the counter of the camera restarted, rename the images")


def _restart(numbers: Sequence[int]) -> int:
    """Return the place of the first number before a likely restart of a counter of four digits or more, else 0.

    Numbers at both ends of the counter have a gap between them.
    """
    if not numbers or numbers[0] + 10 ** max(len(str(numbers[-1])), 4) - numbers[-1] > _LOST_AT_RESTART:
        return 0
    gap, place = max((after - before, place) for place, (before, after) in enumerate(pairwise(numbers), 1))
    return place if gap > _LOST_AT_RESTART else 0


_LOST_AT_RESTART = 10
"""Numbers that may be missing around the restart of a counter."""


def frame_names(files: Sequence[Path]) -> tuple[str, ...]:
    """Return the name of each frame: of its file without suffix or, where every instant has a folder, of that."""
    if len({file.parent for file in files}) == 1:
        return tuple(file.stem for file in files)
    paths = [file.parent for file in files]
    while len({path.name for path in paths}) < len(files) and len(paths[0].parts) > 1:
        paths = [path.parent for path in paths]
    return tuple(path.name for path in paths)


def _frame_numbers(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the trailing numbers of names, else the only ones within them that differ, if they increase."""
    trailing = [int(match[1]) for name in names if (match := re.search(r"(\d+)$", name))]
    columns = [trailing]
    if len(set(trailing)) < len(names):
        parts = [re.split(r"(\d+)", name) for name in names]
        is_one_form = all(part[::2] == parts[0][::2] for part in parts)
        numbers = zip(*(map(int, part[1::2]) for part in parts), strict=True) if is_one_form else ()
        columns = [list(column) for column in numbers if len(set(column)) == len(names)]
    increases = len(columns) == 1 and all(before < after for before, after in pairwise(columns[0]))
    return tuple(columns[0]) if increases and len(columns[0]) == len(names) else None
