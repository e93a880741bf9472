"""Where a network is at home: its usual signs on scenes like those of its training."""

import torch

from page4d.models.network import ViewTimeNetwork
from page4d.models.ood import OODIndicators, OODLimits, fit_ood_limits, measure_ood
from page4d.synthetic.sampler import SceneFamily
from page4d.training.supervised.config import EvaluationConfig
from page4d.training.validation.validation import HeldOutRequest, held_out_truths

_SHARE = 0.97
"""Of the scenes that count as usual."""

_FAMILIES = (SceneFamily.ARC, SceneFamily.HANDHELD)
"""Rigs whose views share much of what they see. Of rings a small network knows little: it should say so."""


def find_ood_limits(network: ViewTimeNetwork, config: EvaluationConfig, device: torch.device) -> OODLimits:
    """Measure a network on the held-out scenes of an evaluation, of rigs whose views share much."""
    request = HeldOutRequest(
        scenes=config.scenes,
        times=config.times,
        views=config.views,
        image_size=config.image_size,
        families=_FAMILIES,
    )
    return fit_ood_limits([sign for family in _FAMILIES for sign in _signs(network, request, family, device)], _SHARE)


@torch.no_grad()
def _signs(
    network: ViewTimeNetwork, request: HeldOutRequest, family: SceneFamily, device: torch.device
) -> list[OODIndicators]:
    return [
        measure_ood(network(truth.images[scene : scene + 1]))
        for truth in held_out_truths(request, family, device)
        for scene in range(len(truth.images))
    ]
