"""Sources of training samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from page4d.ground_truth import GroundTruth
from page4d.synthetic.sampler import SceneRequest, sample_truth
from page4d.training.supervised.captures import CaptureSource
from page4d.training.supervised.config import SYNTHETIC, TrainConfig
from page4d.training.supervised.curriculum import BatchRequest
from page4d.training.validation.held_out import training_seed


class Source(Protocol):
    """An infinite sequence of samples; a sample follows from its number."""

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Return the samples with these numbers as one batch."""
        ...


class SyntheticSource:
    """Renders scenes; the number of a sample determines its seed."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed = run_seed

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Render one scene per number."""
        scenes = SceneRequest(
            family=request.family.name,
            spacing_deg=request.family.spacing_deg,
            num_times=request.num_times,
            num_views=request.num_views,
            image_size=request.image_size,
        )
        return sample_truth([training_seed(self._run_seed, sample) for sample in samples], scenes, device)


def open_sources(config: TrainConfig) -> list[Source]:
    """Open the sources of a configuration, in its order.

    Raises:
        InputError: if a folder is not a capture with ground truth.
    """
    return [
        SyntheticSource(config.seed) if source.path == SYNTHETIC else CaptureSource(Path(source.path), config.seed)
        for source in config.sources
    ]
