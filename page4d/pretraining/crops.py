"""Random crops of frames with flips and colour augmentation, determined by the sample number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.errors import UsageError
from page4d.io.config import config_record
from page4d.layers.embed import normalize_images
from page4d.layers.ranges import Side
from page4d.pretraining.color_jitter import ColourProbabilities, draw_colours, recolour
from page4d.pretraining.footage import FramePool
from page4d.scene.records import Image
from page4d.scene.resample import resize

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


class CropSource:
    """Crops of samples; they follow from the seed and the sample number."""

    def __init__(self, pool: FramePool, config: CropConfig, seed: int, patches: int) -> None:
        self._pool = pool
        self._config = config
        self._seed = seed
        self._patches = patches

    def read(self, samples: Sequence[int], device: torch.device) -> Crops:
        """Return the crops of some samples.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        config = self._config
        count = config.num_large + config.num_small
        pixels: list[list[Image]] = [[] for _ in range(count)]
        colours: list[list[np.ndarray]] = [[] for _ in range(count)]
        noise = []
        for sample in samples:
            random = np.random.default_rng((self._seed, sample))
            frame = self._pool.frame(sample)
            noise.append(random.random(self._patches, dtype=np.float32))
            for number in range(count):
                large = number < config.num_large
                area, side = (config.area, config.size) if large else (config.small_area, config.small_size)
                pixels[number].append(_crop(frame, area, side, random))
                colours[number].append(draw_colours(random, _PROBABILITIES[min(number, 2) if large else 2]))
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


_PROBABILITIES = (
    ColourProbabilities(blur=1.0, solarise=0.0),
    ColourProbabilities(blur=0.1, solarise=0.2),
    ColourProbabilities(blur=0.5, solarise=0.0),
)
"""Blur and solarisation of the first, the second and all other crops.

Source: Grill et al. (2020), BYOL, appendix B; Caron et al. (2021), DINO, section 3.2 and its public code.
"""


def denormalised(images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F 3 H W"]:
    """Return normalised images in [0, 1] again."""
    mean, deviation = (images.new_tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    return (images * deviation + mean).clamp(0, 1)


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
