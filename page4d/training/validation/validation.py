"""A network before its judges: the same held-out scenes for every network, with the least it must beat beside it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch

from page4d.errors import UsageError
from page4d.ground_truth import GroundTruth
from page4d.models.conditioning import NO_CONDITIONING, Conditioning
from page4d.models.network import ViewTimeNetwork
from page4d.refinement.refine import refine_by
from page4d.synthetic.sampler import SceneFamily, ShotRequest, sample_truth
from page4d.training.supervised.seeds import held_out_seed, training_seed
from page4d.training.validation.baselines import constant, mean_scene, sideways
from page4d.training.validation.validation_metrics import Figures, Guess, Guesser, evaluate

NETWORK = "network"
REFINED = "network, refined"
NETWORK_WITH_CAMERAS = "network, cameras known"
REFINED_WITH_CAMERAS = "network, cameras known, refined"
CONSTANT = "constant depth, identity"
MEAN = "mean depth map, mean pose"
SIDEWAYS = "sideways, oracle's sign"

_AT_ONCE = 4
"""Scenes in a batch."""

_MOST_SCENES_OF_MEAN = 64
_SCENES_OF_MEAN = 4
"""Training scenes that the mean scene is the mean of, for each one that judges."""


@dataclass(frozen=True, kw_only=True)
class HeldOutRequest:
    """Which scenes judge: `scenes` seeds of each family, counted from 0; `image_size` is (height, width)."""

    scenes: int = 200
    times: int = 2
    views: int = 4
    image_size: tuple[int, int] = (64, 80)
    families: tuple[SceneFamily, ...] = tuple(SceneFamily)

    def __post_init__(self) -> None:
        if min(self.scenes, self.times, self.views, *self.image_size) < 1 or not self.families:
            raise UsageError(f"held-out scenes: {asdict(self)}", "give positive numbers and at least one family")

    def shot(self, family: SceneFamily) -> ShotRequest:
        """Return what is rendered of a family; a single camera takes as many images as a rig of two."""
        single = family is SceneFamily.SINGLE
        return ShotRequest(
            family=family,
            num_times=2 * self.times if single else self.times,
            num_views=1 if single else self.views,
            image_size=self.image_size,
        )


def held_out_truths(request: HeldOutRequest, family: SceneFamily, device: torch.device) -> Iterator[GroundTruth]:
    """Render the scenes of a family in batches."""
    for start in range(0, request.scenes, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, request.scenes))
        yield sample_truth([held_out_seed(number) for number in numbers], request.shot(family), device)


def baselines(request: HeldOutRequest, family: SceneFamily, device: torch.device) -> dict[str, Guesser]:
    """Return those who guess without looking; the mean scene is one of training scenes."""
    starts = range(0, min(_MOST_SCENES_OF_MEAN, _SCENES_OF_MEAN * request.scenes), _AT_ONCE)
    seeds = ([training_seed(0, start + number) for number in range(_AT_ONCE)] for start in starts)
    mean = mean_scene(sample_truth(some, request.shot(family), device) for some in seeds)
    return {CONSTANT: constant, MEAN: mean, SIDEWAYS: sideways}


def network_guessers(network: ViewTimeNetwork, precision: torch.dtype) -> dict[str, Guesser]:
    """Return the network as it is, and, if it can, refined by its matches, and with the true cameras told."""
    refines = [False, True] if network.config.matches is not None else [False]
    tells = [False, True] if network.config.known_cameras else [False]
    names = {
        (False, False): NETWORK,
        (False, True): REFINED,
        (True, False): NETWORK_WITH_CAMERAS,
        (True, True): REFINED_WITH_CAMERAS,
    }
    return {
        names[told, refined]: partial(_guess, network, told=told, refined=refined, precision=precision)
        for told in tells
        for refined in refines
    }


def judge(guessers: dict[str, Guesser], truths: list[GroundTruth]) -> dict[str, Figures]:
    """Measure everyone on the same scenes."""
    return {name: evaluate(guesser, truths) for name, guesser in guessers.items()}


def _told(truth: GroundTruth) -> Conditioning:
    return Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)


@torch.no_grad()
def _guess(
    network: ViewTimeNetwork, truth: GroundTruth, *, told: bool, refined: bool, precision: torch.dtype
) -> Guess:
    conditioning = _told(truth) if told else NO_CONDITIONING
    with torch.autocast(truth.images.device.type, dtype=precision, enabled=precision is not torch.float32):
        output = network(truth.images, conditioning=conditioning)
    if refined:
        output = refine_by(network, output, truth.images, conditioning)
    moving = output.dynamic is not None and truth.images.shape[1] > 1
    return Guess(
        depth=output.depth,
        confidence=output.depth_confidence,
        world_to_camera=output.world_to_camera,
        intrinsics=output.intrinsics,
        dynamic=output.dynamic > 0.5 if moving and output.dynamic is not None else None,
    )
