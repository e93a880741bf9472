"""Validation of networks on held-out scenes, and the out-of-distribution limits fitted on them."""

from dataclasses import replace
from functools import partial

import torch

from page4d.choices import SceneFamily
from page4d.ground_truth import GroundTruth
from page4d.models.conditioning import NO_CONDITIONING, Conditioning
from page4d.models.network import ViewTimeNetwork
from page4d.models.ood import OODIndicators, OODLimits, fit_ood_limits, measure_ood
from page4d.models.output import NetworkOutput, RigOutput
from page4d.refinement.refine import refine
from page4d.training.engine.step import autocast
from page4d.training.validation.baselines import baselines
from page4d.training.validation.held_out import HeldOutScenes, held_out_truths
from page4d.training.validation.validation_metrics import Metrics, ScenePrediction, ScenePredictor, evaluate

NETWORK = "network"
REFINED = "network, refined"
NETWORK_WITH_CAMERAS = "network, cameras known"
REFINED_WITH_CAMERAS = "network, cameras known, refined"
_NAMES = {
    (False, False): NETWORK,
    (False, True): REFINED,
    (True, False): NETWORK_WITH_CAMERAS,
    (True, True): REFINED_WITH_CAMERAS,
}

_QUANTILE = 0.97
"""Fraction of the held-out scenes that are within the limits."""

_FAMILIES = (SceneFamily.ARC, SceneFamily.HANDHELD)
"""Rigs with covisible views; small networks are inaccurate on rings, which should count as out of distribution."""


class Validator:
    """Evaluates networks on the same held-out scenes, which are rendered once."""

    def __init__(self, scenes: HeldOutScenes, device: torch.device, precision: torch.dtype) -> None:
        self._scenes = scenes
        self._device, self._precision = device, precision
        self._truths: dict[SceneFamily, list[GroundTruth]] = {}

    def baselines(self) -> dict[str, dict[str, Metrics]]:
        """Return the metrics of the baselines, by family and name."""
        return {
            family.value: evaluate_all(baselines(self._scenes, family, self._device), self._truths_of(family))
            for family in self._scenes.families
        }

    def validate(self, network: ViewTimeNetwork) -> dict[str, dict[str, Metrics]]:
        """Return the metrics of a network, by family and by refinement and conditioning."""
        predictors = network_predictors(network, self._precision)
        return {family.value: evaluate_all(predictors, self._truths_of(family)) for family in self._scenes.families}

    def _truths_of(self, family: SceneFamily) -> list[GroundTruth]:
        if family not in self._truths:
            self._truths[family] = list(held_out_truths(self._scenes, family, self._device))
        return self._truths[family]


def network_predictors(network: ViewTimeNetwork, precision: torch.dtype) -> dict[str, ScenePredictor]:
    """Return a network as it is and, where it supports them, refined by its matches and with known cameras."""
    refinements = [False, True] if network.config.matches is not None else [False]
    conditionings = [False, True] if network.config.takes_cameras else [False]
    return {
        _NAMES[known, refined]: partial(_predict, network, precision, cameras_known=known, refined=refined)
        for known in conditionings
        for refined in refinements
    }


def evaluate_all(predictors: dict[str, ScenePredictor], truths: list[GroundTruth]) -> dict[str, Metrics]:
    """Evaluate several predictors on the same scenes."""
    return {name: evaluate(predictor, truths) for name, predictor in predictors.items()}


def find_ood_limits(network: ViewTimeNetwork, scenes: HeldOutScenes, device: torch.device) -> OODLimits:
    """Fit limits on held-out scenes of these numbers and sizes, with rigs of covisible views."""
    covisible = replace(scenes, families=_FAMILIES)
    return fit_ood_limits(
        [found for family in _FAMILIES for found in _measure(network, covisible, family, device)], _QUANTILE
    )


@torch.no_grad()
def _predict(
    network: ViewTimeNetwork, precision: torch.dtype, truth: GroundTruth, *, cameras_known: bool, refined: bool
) -> ScenePrediction:
    conditioning = NO_CONDITIONING
    if cameras_known:
        conditioning = Conditioning(
            world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics
        )
    with autocast(truth.images.device, precision):
        output: NetworkOutput = network(truth.images, conditioning=conditioning)
    if refined:
        output = refine(network, output, truth.images, conditioning)
    several = truth.images.shape[1] > 1
    return ScenePrediction(
        depth=output.depth,
        confidence=output.depth_confidence,
        world_to_camera=output.world_to_camera,
        intrinsics=output.intrinsics,
        dynamic=output.dynamic > 0.5 if several and output.dynamic is not None else None,
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
