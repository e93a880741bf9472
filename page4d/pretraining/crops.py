"""What a network is shown of a frame: large and small parts of it, mirrored and recoloured by the sample's number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import UsageError
from page4d.models.network import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.pretraining.color_jitter import ColourUse, draw_colours, recolour
from page4d.pretraining.footage import FramePool
from page4d.scene.images import resize
from page4d.scene.records import Image

_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class CropConfig:
    """Sides of crops in pixels, and what part of a frame's area they are of."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    size: int = 96
    area: tuple[float, float] = (0.2, 1.0)
    num_large: int = 1
    small_size: int = 48
    small_area: tuple[float, float] = (0.05, 0.4)
    num_small: int = 0
    recoloured: bool = False

    def __post_init__(self) -> None:
        if min(self.size, self.small_size, self.num_large) < 1 or self.num_small < 0:
            raise UsageError(
                f"crops: {self.num_large} of {self.size} px, {self.num_small} of {self.small_size} px",
                "give positive sizes and at least one large crop",
            )
        if not all(0 < low <= high <= 1 for low, high in (self.area, self.small_area)):
            raise UsageError(
                f"crops: areas {self.area} and {self.small_area}", "give parts from above 0 to 1, in order"
            )


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Crops of F frames, normalised as networks take them, and one random number a patch of a large crop."""

    large: tuple[Float[Tensor, "F 3 H W"], ...]
    small: tuple[Float[Tensor, "F 3 h w"], ...]
    noise: Float[Tensor, "F P"]


class CropSource:
    """Gives a sample's number its crops, always the same ones."""

    def __init__(self, pool: FramePool, config: CropConfig, seed: int, patches: int) -> None:
        self._pool = pool
        self._config = config
        self._seed = seed
        self._patches = patches

    def read(self, samples: Sequence[int], device: torch.device) -> Crops:
        """Cut the crops of some samples.

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
                pixels[number].append(_cut(frame, area, side, random))
                colours[number].append(draw_colours(random, _USES[min(number, 2) if large else 2]))
        views = []
        for images, drawn in zip(pixels, colours, strict=True):
            shown = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2).float() / 255
            if config.recoloured:
                shown = recolour(shown, torch.from_numpy(np.stack(drawn)).to(device))
            views.append(normalised(shown))
        return Crops(
            large=tuple(views[: config.num_large]),
            small=tuple(views[config.num_large :]),
            noise=torch.from_numpy(np.stack(noise)).to(device),
        )


_USES = (ColourUse(blur=1.0, solarise=0.0), ColourUse(blur=0.1, solarise=0.2), ColourUse(blur=0.5, solarise=0.0))
"""How often the first, the second and every other crop is blurred and solarised.

Source: Grill et al. (2020), BYOL, appendix B; Caron et al. (2021), DINO, section 3.2 and its public code.
"""


def normalised(images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F 3 H W"]:
    """Subtract the mean and divide by the deviation, as networks do."""
    mean, deviation = (images.new_tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    return (images - mean) / deviation


def shown(images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F 3 H W"]:
    """Undo `normalised`, in [0, 1]."""
    mean, deviation = (images.new_tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    return (images * deviation + mean).clamp(0, 1)


def _cut(frame: Image, area: tuple[float, float], side: int, random: np.random.Generator) -> Image:
    """Cut a part of random area, shape and place, perhaps mirrored; resize it to a square."""
    top, left, height, width = _draw_box(frame.shape[:2], area, random)
    part = resize(np.ascontiguousarray(frame[top : top + height, left : left + width]), (side, side))
    return part[:, ::-1] if random.random() < 0.5 else part


def _draw_box(
    size: tuple[int, ...], area: tuple[float, float], random: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width); the largest square of the middle if nothing fits.

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
