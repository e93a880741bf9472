"""Where samples come from: numbers in, truth out."""

from collections.abc import Sequence
from typing import Protocol

import torch

from page4d.ground_truth import GroundTruth
from page4d.synthetic.sampler import ShotRequest, sample_truth
from page4d.training.engine.step_plan import BatchRequest
from page4d.training.supervised.seeds import training_seed


class Source(Protocol):
    """An endless supply of samples; a number always gives the same one."""

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Return the samples with these numbers as one batch."""
        ...


class SyntheticSource:
    """Renders scenes whose seeds follow from the numbers of the samples."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed = run_seed

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Render one scene for every number."""
        seeds = [training_seed(self._run_seed, sample) for sample in samples]
        return sample_truth(seeds, shot_request(request), device)


def shot_request(request: BatchRequest) -> ShotRequest:
    """Turn what a step asks for into what the renderer understands."""
    return ShotRequest(
        family=request.family.name,
        spacing_deg=request.family.spacing_deg,
        num_times=request.num_times,
        num_views=request.num_views,
        image_size=request.image_size,
    )
