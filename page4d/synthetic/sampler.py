"""Exact truth for training: as many scenes as there are seeds, rendered together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.ground_truth import GroundTruth
from page4d.synthetic.appearance import develop, plain_appearance, sample_appearance
from page4d.synthetic.blueprint import build_world
from page4d.synthetic.camera_rigs import SceneFamily, build_rig, sample_shot
from page4d.synthetic.flow import Flow, exact_flow
from page4d.synthetic.furnish import sample_plan
from page4d.synthetic.render import Rendered, render
from page4d.synthetic.rng import Dice
from page4d.synthetic.world import World

__all__ = ["Sample", "SceneFamily", "ShotRequest", "sample", "sample_truth"]


@dataclass(frozen=True, kw_only=True)
class ShotRequest:
    """What scenes are wanted; everything else is drawn from the seed.

    `image_size` is (height, width); instants are `step_s` seconds apart, evenly within a scene. `spacing_deg` between
    neighbouring cameras replaces the range of the family. HANDHELD cameras always move, others with
    `moving_probability`. `photometric` lets cameras differ in exposure, colour, noise and sharpness. `supersample`
    squared rays make up the colour of pixels at edges; depth and motion are those of pixel centres.

    Raises:
        UsageError: for numbers that leave nothing to film.
    """

    family: SceneFamily = SceneFamily.ARC
    num_times: int = 2
    num_views: int = 4
    image_size: tuple[int, int] = (64, 80)
    step_s: tuple[float, float] = (0.1, 0.8)
    spacing_deg: tuple[float, float] | None = None
    moving_probability: float = 0.5
    outdoor_probability: float = 0.25
    photometric: bool = True
    supersample: int = 1

    def __post_init__(self) -> None:
        smallest = min(self.num_times, self.num_views, self.supersample, *self.image_size)
        low, high = self.step_s
        if smallest < 1 or not 0 < low <= high:
            raise UsageError(
                f"a request for {self}", "give at least one view, instant and pixel, and a step above 0 s"
            )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """B scenes: their worlds, the images of V cameras at T instants, and what is exactly there."""

    world: World
    cameras: Cameras
    times: Float[Tensor, "B T"]
    rendered: Rendered
    images: Float[Tensor, "B T V 3 H W"]

    @property
    def truth(self) -> GroundTruth:
        """Images with exact depth, motion and cameras, in single precision."""
        return GroundTruth(
            images=self.images,
            valid=torch.ones_like(self.rendered.dynamic),
            depth=self.rendered.depth,
            dynamic=self.rendered.dynamic,
            cameras=Cameras(
                world_to_camera=self.cameras.world_to_camera.float(),
                intrinsics=self.cameras.intrinsics.float(),
                image_size=self.cameras.image_size,
            ),
            times=self.times.float(),
        )

    def flow(self, source: tuple[int, int], target: tuple[int, int]) -> Flow:
        """Follow what is seen at `source` (instant, view) to the image at `target`, in all scenes."""
        seen, times = self.rendered, self.times[:, [source[0], target[0]]]
        cameras = (self.cameras[:, *source], self.cameras[:, *target])
        return exact_flow(self.world, seen.depth[:, *source], seen.objects[:, *source], cameras, times)


def sample_truth(seeds: Sequence[int], request: ShotRequest, device: torch.device | str = "cpu") -> GroundTruth:
    """Render one scene a seed: a pure function of seeds and request, whatever the batch a seed is in."""
    return sample(seeds, request, device).truth


def sample(seeds: Sequence[int], request: ShotRequest, device: torch.device | str = "cpu") -> Sample:
    """Render one scene a seed, and keep its world."""
    shots = [
        sample_shot(seed, request.family, request.num_views, request.spacing_deg, request.moving_probability)
        for seed in seeds
    ]
    world = build_world(
        [sample_plan(seed, shot, request.outdoor_probability) for seed, shot in zip(seeds, shots, strict=True)]
    ).map(lambda value: value.to(device))
    times = torch.tensor([_times(seed, request) for seed in seeds], dtype=torch.float64)
    cameras = build_rig(shots).cameras(times, request.image_size)
    cameras = replace(
        cameras, world_to_camera=cameras.world_to_camera.to(device), intrinsics=cameras.intrinsics.to(device)
    )
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


def _times(seed: int, request: ShotRequest) -> list[float]:
    dice = Dice(seed, "times")
    first, step = dice.between(0, 8), dice.log_between(*request.step_s)
    return [first + step * index for index in range(request.num_times)]
