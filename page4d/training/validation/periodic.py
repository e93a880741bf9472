"""The network of a run before its judges, every now and then: always the same scenes, rendered once."""

import torch

from page4d.ground_truth import GroundTruth
from page4d.models.network import ViewTimeNetwork
from page4d.synthetic.sampler import SceneFamily
from page4d.training.supervised.config import EvaluationConfig
from page4d.training.validation.validation import HeldOutRequest, baselines, held_out_truths, judge, network_guessers
from page4d.training.validation.validation_metrics import Figures


class Examiner:
    """Keeps a few held-out scenes of every family, and what one can say of them without looking."""

    def __init__(self, config: EvaluationConfig, device: torch.device, precision: torch.dtype) -> None:
        self._request = HeldOutRequest(
            scenes=config.scenes,
            times=config.times,
            views=config.views,
            image_size=config.image_size,
            families=config.families,
        )
        self._device, self._precision = device, precision
        self._truths: dict[SceneFamily, list[GroundTruth]] = {}

    def baselines(self) -> dict[str, dict[str, Figures]]:
        """Return the figures of those who do not look, by family and name."""
        return {
            family.value: judge(baselines(self._request, family, self._device), self._scenes(family))
            for family in self._request.families
        }

    def examine(self, network: ViewTimeNetwork) -> dict[str, dict[str, Figures]]:
        """Return the figures of a network, by family and by what it was told."""
        guessers = network_guessers(network, self._precision)
        return {family.value: judge(guessers, self._scenes(family)) for family in self._request.families}

    def _scenes(self, family: SceneFamily) -> list[GroundTruth]:
        if family not in self._truths:
            self._truths[family] = list(held_out_truths(self._request, family, self._device))
        return self._truths[family]
