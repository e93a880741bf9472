"""Out-of-distribution limits of a network, fitted on held-out scenes."""

from dataclasses import replace

import torch

from page4d.choices import SceneFamily
from page4d.models.network import ViewTimeNetwork
from page4d.models.ood import OODIndicators, OODLimits, fit_ood_limits, measure_ood
from page4d.models.output import RigOutput
from page4d.training.validation.held_out import HeldOutScenes, held_out_truths

_QUANTILE = 0.97
"""Fraction of the held-out scenes that are within the limits."""

_FAMILIES = (SceneFamily.ARC, SceneFamily.HANDHELD)
"""Rigs with covisible views; small networks are inaccurate on rings, which should count as out of distribution."""


def find_ood_limits(network: ViewTimeNetwork, scenes: HeldOutScenes, device: torch.device) -> OODLimits:
    """Fit limits on held-out scenes of these numbers and sizes, with rigs of covisible views."""
    covisible = replace(scenes, families=_FAMILIES)
    return fit_ood_limits(
        [found for family in _FAMILIES for found in _measure(network, covisible, family, device)], _QUANTILE
    )


@torch.no_grad()
def _measure(
    network: ViewTimeNetwork, scenes: HeldOutScenes, family: SceneFamily, device: torch.device
) -> list[OODIndicators]:
    return [
        measure_ood(RigOutput.of(network(truth.images[scene : scene + 1])))
        for truth in held_out_truths(scenes, family, device)
        for scene in range(len(truth.images))
    ]
