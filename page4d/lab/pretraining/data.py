"""Random crops of frames with flips and colour augmentation, determined by the sample number.

Frames of recordings are drawn over time and views, and decoded in rounds of bounded memory.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from page4d.errors import InputError, UsageError, counted
from page4d.io.input_files import DEFAULT_MAX_MEGAPIXELS
from page4d.io.json_records import config_record
from page4d.networks.layers.block import normalize_images
from page4d.networks.layers.execution import Side
from page4d.scene.image_file import Image, in_8_bits
from page4d.scene.images import resize
from page4d.scene.open import open_scene
from page4d.scene.records import FrameSource

_JITTERED, _GREY = 0.8, 0.2
"""Probabilities of jitter and of greyscale.

Source: Grill et al. (2020), BYOL, appendix B; so are the ranges below.
"""

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = 0.4, 0.4, 0.2, 0.1
_SIGMA = (0.1 / 224, 2.0 / 224)
"""Range of the blur's standard deviation, as a fraction of the image side."""

_RADIUS = 0.05
"""Radius of the blur kernel, as a fraction of the image side."""


def draw_colours(random: np.random.Generator, blur: float, solarise: float) -> NDArray[np.float32]:
    """Draw brightness, contrast, saturation, hue, greyscale, blur and solarisation of a crop.

    `blur` and `solarise` are the probabilities of these.
    """
    strength = np.array([_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE])
    jitter = random.uniform(-strength, strength) * (random.random() < _JITTERED)
    grey = random.random() < _GREY
    sigma = random.uniform(*_SIGMA) * (random.random() < blur)
    solarised = random.random() < solarise
    return np.array([*(1 + jitter[:3]), jitter[3], grey, sigma, solarised], dtype=np.float32)


def recolour(images: Float[Tensor, "F 3 H W"], drawn: Float[Tensor, "F 7"]) -> Float[Tensor, "F 3 H W"]:
    """Apply drawn augmentations to images in [0, 1]."""
    from kornia import enhance, filters

    brightness, contrast, saturation, hue, grey, sigma, solarised = drawn.unbind(1)
    images = enhance.adjust_brightness_accumulative(images, brightness)
    images = enhance.adjust_contrast_with_mean_subtraction(images, contrast)
    images = enhance.adjust_saturation_with_gray_subtraction(images, saturation * (1 - grey))
    images = enhance.adjust_hue(images, 2 * math.pi * hue * (1 - grey))
    side = max(images.shape[2:])
    width = 2 * max(1, round(_RADIUS * side)) + 1
    pixels = (sigma * side).clamp(min=1e-3)[:, None].expand(-1, 2)  # the smallest changes nothing
    images = filters.gaussian_blur2d(images, (width, width), pixels)
    return torch.where((solarised[:, None, None, None] > 0) & (images >= 0.5), 1 - images, images)


_MIN_FRAMES = 8
_MIN_SIDE = 16
"""Smallest side of frames in pixels: a patch of a small ViT covers 8."""

_NO_LIMIT = 10**9
_FRAME_STREAM, _ORDER_STREAM = 1, 2
"""Separate the random draws of frames from those of their order."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """One view of a recording: indices of its frames, and the size (height, width) at which they are decoded."""

    source: FrameSource
    indices: NDArray[np.int64]
    size: tuple[int, int]


@dataclass(frozen=True)
class Footage:
    """All views of all recordings."""

    tracks: tuple[Track, ...]

    @property
    def num_frames(self) -> int:
        """Total number of frames."""
        return sum(len(track.indices) for track in self.tracks)


def open_footage(
    folders: Sequence[Path],
    short_side: int,
    *,
    allow_damaged: bool = False,
    max_megapixels: float = DEFAULT_MAX_MEGAPIXELS,
) -> Footage:
    """Open folders of videos, unsynchronized; frames will be downscaled to `short_side` pixels.

    Raises:
        UsageError: if a folder does not exist or is a file.
        InputError: if a folder holds no videos, or all of them too few or too small frames.
    """
    tracks = []
    for folder in folders:
        scene = open_scene(
            folder, sync="none", max_frames=_NO_LIMIT, allow_damaged=allow_damaged, max_megapixels=max_megapixels
        )
        for view in scene.views:
            if min(view.source.size) < _MIN_SIDE:
                height, width = view.source.size
                raise InputError(
                    f"'{folder}': {view.name} has frames of {width} x {height} px: too small to train on",
                    f"give recordings of {_MIN_SIDE} px or more, or leave this view out of the folder",
                )
            factor = min(1.0, short_side / min(view.source.size))
            height, width = (max(1, round(side * factor)) for side in view.source.size)
            indices = np.unique(np.asarray(view.indices, dtype=np.int64))
            tracks.append(Track(source=view.source, indices=indices, size=(height, width)))
    footage = Footage(tuple(tracks))
    if footage.num_frames < _MIN_FRAMES:
        raise InputError(
            f"{counted(footage.num_frames, 'frame')} in {counted(len(footage.tracks), 'view')}: too few to train on",
            f"give recordings with {_MIN_FRAMES} frames or more",
        )
    return footage


class FramePool:
    """Frames of samples, from `open_pool`; they follow from the seed and the sample number alone.

    A round of frames is decoded forward through every video and used several times, while the next one is decoded.
    """

    def __init__(
        self, footage: Footage, seed: int, frames: int, repeats: int, thread: ThreadPoolExecutor, closing: Event
    ) -> None:
        self._footage = footage
        self._seed = seed
        self._size = min(frames, footage.num_frames)
        self._all_fit = self._size == footage.num_frames
        self._repeats = repeats
        self._thread = thread
        self._closing = closing
        self._round = -1
        self._images: list[Image] = []
        self._ahead: tuple[int, Future[list[Image]]] | None = None

    def frame(self, sample: int) -> Image:
        """Return the frame of a sample; sample numbers should increase.

        Raises:
            InputError: if it cannot be decoded.
        """
        epoch, place = divmod(sample, self._size)
        number = epoch // self._repeats
        if number != self._round and not (self._all_fit and self._images):
            self._images = self._take(number)
        self._round = number
        order = np.random.default_rng((self._seed, _ORDER_STREAM, epoch)).permutation(len(self._images))
        return self._images[int(order[place])]

    def _take(self, number: int) -> list[Image]:
        if self._ahead is not None and self._ahead[0] == number:
            images = self._ahead[1].result()
        else:
            images = self._decode(number)
        if not self._all_fit:
            self._ahead = (number + 1, self._thread.submit(self._decode, number + 1))
        return images

    def _decode(self, number: int) -> list[Image]:
        """Decode the frames of a round."""
        images: list[Image] = []
        for track, indices in zip(self._footage.tracks, self._draw(number), strict=True):
            for image in _decode(track, indices):
                if self._closing.is_set():
                    return images
                images.append(image)
        return images

    def _draw(self, number: int) -> list[list[int]]:
        """Draw frames of all views, in order of time."""
        random = np.random.default_rng((self._seed, _FRAME_STREAM, number))
        lengths = [len(track.indices) for track in self._footage.tracks]
        counts = _divide(lengths, self._size, random)
        return [
            sorted(int(index) for index in random.choice(track.indices, count, replace=False))
            for track, count in zip(self._footage.tracks, counts, strict=True)
        ]


@contextmanager
def open_pool(footage: Footage, seed: int, *, frames: int, repeats: int) -> Iterator[FramePool]:
    """Open a pool with at most two rounds of `frames` frames in memory."""
    closing = Event()
    with ThreadPoolExecutor(1, thread_name_prefix="frames") as thread:
        try:
            yield FramePool(footage, seed, frames, repeats, thread, closing)
        finally:
            closing.set()
            thread.shutdown(wait=True, cancel_futures=True)


def _divide(lengths: Sequence[int], total: int, random: np.random.Generator) -> list[int]:
    """Divide a total evenly among views, with at most `lengths` frames each."""
    counts = [0] * len(lengths)
    while (left := total - sum(counts)) > 0:
        available = random.permutation([view for view, length in enumerate(lengths) if counts[view] < length])
        for view in available[:left]:
            more = max(1, left // len(available))
            counts[view] = min(lengths[view], counts[view] + more)
    return counts


def _decode(track: Track, indices: Sequence[int]) -> Iterator[Image]:
    """Decode frames in order of time, as 8-bit images."""
    if not indices:
        return
    with track.source.open(track.size) as reader:
        yield from map(in_8_bits, reader.read(indices))


_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10


_NumCrops = Annotated[int, Field(ge=1, le=64)]
_Area = Annotated[float, Field(gt=0, le=1)]


@config_record("crops")
class CropConfig:
    """Number and size in pixels of large and small crops, and the range of their area as a fraction of the frame."""

    size: Side = 96
    area: tuple[_Area, _Area] = (0.2, 1.0)
    num_large: _NumCrops = 1
    small_size: Side = 48
    small_area: tuple[_Area, _Area] = (0.05, 0.4)
    num_small: Annotated[int, Field(ge=0, le=64)] = 0
    recoloured: bool = False

    def __post_init__(self) -> None:
        if any(low > high for low, high in (self.area, self.small_area)):
            raise UsageError(f"crops: area is {self.area}, small_area {self.small_area}", "give ranges in order")


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Normalised crops of F frames, and one random number per patch of a large crop."""

    large: tuple[Float[Tensor, "F 3 H W"], ...]
    small: tuple[Float[Tensor, "F 3 h w"], ...]
    noise: Float[Tensor, "F P"]


def read_crops(
    pool: FramePool, config: CropConfig, seed: int, patches: int, samples: Sequence[int], device: torch.device
) -> Crops:
    """Return the crops of some samples; they follow from the seed and the sample numbers.

    Raises:
        InputError: if a frame cannot be decoded.
    """
    count = config.num_large + config.num_small
    pixels: list[list[Image]] = [[] for _ in range(count)]
    colours: list[list[np.ndarray]] = [[] for _ in range(count)]
    noise = []
    for sample in samples:
        random = np.random.default_rng((seed, sample))
        frame = pool.frame(sample)
        noise.append(random.random(patches, dtype=np.float32))
        for number in range(count):
            large = number < config.num_large
            area, side = (config.area, config.size) if large else (config.small_area, config.small_size)
            pixels[number].append(_crop(frame, area, side, random))
            colours[number].append(draw_colours(random, *_PROBABILITIES[min(number, 2) if large else 2]))
    views = []
    for cut, drawn in zip(pixels, colours, strict=True):
        images = torch.from_numpy(np.stack(cut)).to(device).permute(0, 3, 1, 2).float() / 255
        if config.recoloured:
            images = recolour(images, torch.from_numpy(np.stack(drawn)).to(device))
        views.append(normalize_images(images))
    return Crops(
        large=tuple(views[: config.num_large]),
        small=tuple(views[config.num_large :]),
        noise=torch.from_numpy(np.stack(noise)).to(device),
    )


_PROBABILITIES = ((1.0, 0.0), (0.1, 0.2), (0.5, 0.0))
"""Probabilities of blur and solarisation of the first, the second and all other crops.

Source: Grill et al. (2020), BYOL, appendix B; Caron et al. (2021), DINO, section 3.2 and its public code.
"""


def _crop(frame: Image, area: tuple[float, float], side: int, random: np.random.Generator) -> Image:
    """Crop a box of random area, aspect and position, resize it to a square, and flip it with probability 0.5."""
    top, left, height, width = _draw_box(frame.shape[:2], area, random)
    part = resize(np.ascontiguousarray(frame[top : top + height, left : left + width]), (side, side))
    return part[:, ::-1] if random.random() < 0.5 else part


def _draw_box(
    size: tuple[int, ...], area: tuple[float, float], random: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width); the largest centred square if no draw fits.

    Source: Szegedy et al. (2015), "Going deeper with convolutions", section 6.
    """
    rows, columns = size
    for _ in range(_ATTEMPTS):
        pixels = rows * columns * random.uniform(*area)
        aspect = np.exp(random.uniform(*np.log(_ASPECT)))
        height, width = round(float(np.sqrt(pixels / aspect))), round(float(np.sqrt(pixels * aspect)))
        if 0 < height <= rows and 0 < width <= columns:
            top, left = int(random.integers(rows - height + 1)), int(random.integers(columns - width + 1))
            return top, left, height, width
    side = min(rows, columns)
    return (rows - side) // 2, (columns - side) // 2, side, side
