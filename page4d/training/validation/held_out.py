"""Held-out synthetic scenes: their seeds, disjoint from those of training, and their ground truth.

Training uses even seeds, validation odd ones. All are below 2^32, so that generators that keep 32 bits of a seed do
not mix them up.
"""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field

from page4d.choices import SceneFamily
from page4d.errors import UsageError
from page4d.ground_truth import GroundTruth
from page4d.io.config import config_record
from page4d.synthetic.ranges import ImageSide, NumTimes, NumViews
from page4d.synthetic.sampler import SceneRequest, sample_truth

_NUM_SEEDS = 2**31
_STRIDE = 0x9E3779B1
"""Odd, so that the training seeds of different runs start at different places.

Source: Knuth, The Art of Computer Programming 3, section 6.4 (the golden ratio times 2^32).
"""

SCENES_PER_BATCH = 4


_MAX_PIXELS = 2**30
"""Pixels of the scenes of a family: about 30 GB."""

NumScenes = Annotated[int, Field(ge=1, le=10**6)]


@config_record("held-out scenes")
class HeldOutScenes:
    """Seeds 0 to `scenes` - 1 of each family, with rigs of `views` cameras; `image_size` is (height, width)."""

    scenes: NumScenes = 200
    times: NumTimes = 2
    views: NumViews = 4
    image_size: tuple[ImageSide, ImageSide] = (64, 80)
    families: tuple[SceneFamily, ...] = Field(default=tuple(SceneFamily), min_length=1)

    def __post_init__(self) -> None:
        pixels = self.scenes * self.times * self.views * self.image_size[0] * self.image_size[1]
        if pixels > _MAX_PIXELS:
            raise UsageError(
                f"held-out scenes of {pixels:,} pixels per family, which are in memory together",
                f"use fewer or smaller images, of at most {_MAX_PIXELS:,} pixels together",
            )

    def scene_request(self, family: SceneFamily) -> SceneRequest:
        """Return the scenes to render of a family; a single camera has as many images as a rig of two."""
        single = family is SceneFamily.SINGLE
        return SceneRequest(
            family=family,
            num_times=2 * self.times if single else self.times,
            num_views=1 if single else self.views,
            image_size=self.image_size,
        )


def held_out_truths(scenes: HeldOutScenes, family: SceneFamily, device: torch.device) -> Iterator[GroundTruth]:
    """Render the scenes of a family in batches."""
    for start in range(0, scenes.scenes, SCENES_PER_BATCH):
        numbers = range(start, min(start + SCENES_PER_BATCH, scenes.scenes))
        yield sample_truth([held_out_seed(number) for number in numbers], scenes.scene_request(family), device)


def training_seed(run_seed: int, sample: int) -> int:
    """Return the seed of a sample of a run; 2^31 consecutive samples have distinct seeds."""
    return 2 * ((run_seed * _STRIDE + sample) % _NUM_SEEDS)


def held_out_seed(index: int) -> int:
    """Return the seed of a held-out scene, the same for all runs."""
    if not 0 <= index < _NUM_SEEDS:
        raise ValueError(f"held-out scene {index}")
    return 2 * index + 1
