"""Batches of random scenes with exact ground truth for training, one per seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from page4d.choices import SceneFamily
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.ground_truth import GroundTruth
from page4d.io.config import config_record
from page4d.synthetic.appearance import develop, plain_appearance, sample_appearance
from page4d.synthetic.camera_rigs import build_rig, sample_rig
from page4d.synthetic.flow import Flow, exact_flow
from page4d.synthetic.furnish import sample_world
from page4d.synthetic.ranges import ImageSide, NumTimes, NumViews, Spacing
from page4d.synthetic.render import Rendered, render
from page4d.synthetic.rng import Rng
from page4d.synthetic.world import World
from page4d.synthetic.world_spec import build_world

__all__ = ["Sample", "SceneFamily", "SceneRequest", "sample", "sample_truth"]


Probability = Annotated[float, Field(ge=0, le=1)]


@config_record("scene request")
class SceneRequest:
    """Parameters of the scenes to render; everything else is drawn from the seed.

    `image_size` is (height, width). Instants are equidistant, `step_s` (range) seconds apart. `spacing_deg` (range)
    replaces the camera spacing of the family. HANDHELD cameras always move, others with `moving_probability`.
    `photometric` varies exposure, colour, noise and sharpness between cameras. The colour of pixels at edges is the
    mean over `supersample` squared rays; depth and motion are sampled at pixel centres.
    """

    family: SceneFamily = SceneFamily.ARC
    num_times: NumTimes = 2
    num_views: NumViews = 4
    image_size: tuple[ImageSide, ImageSide] = (64, 80)
    step_s: tuple[PositiveFloat, PositiveFloat] = (0.1, 0.8)
    spacing_deg: tuple[Spacing, Spacing] | None = None
    moving_probability: Probability = 0.5
    outdoor_probability: Probability = 0.25
    photometric: bool = True
    supersample: PositiveInt = 1

    def __post_init__(self) -> None:
        low, high = self.step_s
        if low > high:
            raise UsageError(f"scene request: step_s is from {low:g} to {high:g} s", "order the two steps")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """B scenes: worlds, cameras, and the images of V views at T instants with exact ground truth."""

    world: World
    cameras: Cameras
    times: Float[Tensor, "B T"]
    rendered: Rendered
    images: Float[Tensor, "B T V 3 H W"]

    @property
    def truth(self) -> GroundTruth:
        """Images with exact depth, motion masks and cameras in single precision."""
        return GroundTruth(
            images=self.images,
            valid=torch.ones_like(self.rendered.dynamic),
            depth=self.rendered.depth,
            dynamic=self.rendered.dynamic,
            cameras=self.cameras.to(torch.float32),
            times=self.times.float(),
        )

    def flow(self, source: tuple[int, int], target: tuple[int, int]) -> Flow:
        """Return the flow from the image `source` (instant, view) to the image `target` of every scene."""
        depth, objects = self.rendered.depth[:, *source], self.rendered.objects[:, *source]
        cameras = (self.cameras[:, *source], self.cameras[:, *target])
        return exact_flow(self.world, depth, objects, cameras, self.times[:, [source[0], target[0]]])


def sample_truth(seeds: Sequence[int], request: SceneRequest, device: torch.device | str = "cpu") -> GroundTruth:
    """Render one scene per seed; a scene does not depend on the other seeds of the batch."""
    return sample(seeds, request, device).truth


def sample(seeds: Sequence[int], request: SceneRequest, device: torch.device | str = "cpu") -> Sample:
    """Render one scene per seed, together with its world."""
    rigs = [
        sample_rig(seed, request.family, request.num_views, request.spacing_deg, request.moving_probability)
        for seed in seeds
    ]
    world = build_world(
        [sample_world(seed, rig, request.outdoor_probability) for seed, rig in zip(seeds, rigs, strict=True)]
    ).map(lambda value: value.to(device))
    times = torch.tensor([_times(seed, request) for seed in seeds], dtype=torch.float64)
    cameras = build_rig(rigs).cameras(times, request.image_size).to(device)
    rendered = render(world, cameras, times.to(device), supersample=request.supersample)
    count = len(seeds), request.num_views
    look = sample_appearance(seeds, request.num_views) if request.photometric else plain_appearance(*count)
    return Sample(
        world=world,
        cameras=cameras,
        times=times.to(device),
        rendered=rendered,
        images=develop(rendered.light, look, seeds),
    )


def _times(seed: int, request: SceneRequest) -> list[float]:
    rng = Rng(seed, "times")
    first, step = rng.uniform(0, 8), rng.log_uniform(*request.step_s)
    return [first + step * index for index in range(request.num_times)]
