"""Validation of networks on held-out scenes: metrics, a baseline and out-of-distribution limits.

Metrics are those of `page4d.evaluation`. The baseline uses no images. Training uses even seeds, validation odd ones.
All are below 2^32, so that generators that keep 32 bits of a seed do not mix them up.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from page4d.choices import DepthAlignment, SceneFamily
from page4d.errors import UsageError
from page4d.evaluation.cameras import focal_errors, fraction_below, pair_errors
from page4d.evaluation.depth import mask_overlap
from page4d.evaluation.scores import align_depth, finite, median, sparsify, sum_depth_errors
from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import mean_rotation
from page4d.geometry.transforms import invert_rigid, rigid
from page4d.io.json_records import config_record
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.lab.synthetic.rigs import ImageSide, NumTimes, NumViews
from page4d.lab.training.engine import autocast
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.ood import OODLimits, fit_ood_limits, measure_ood
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.records import GroundTruth
from page4d.stereo.refine import refinement_of

THRESHOLD_DEG = 15.0
"""Threshold of the accuracies RRA and RTA."""

Metrics = dict[str, float | None]
"""Means and medians over scenes by name; None without a prediction or ground truth."""

SceneErrors = dict[str, Any]
"""Errors of one scene by name, of cameras one per pair; what has no prediction or ground truth is left out."""

ScenePredictor = Callable[[GroundTruth], NetworkOutput]
"""Predicts from the images of scenes; the ground truth also serves known cameras and oracles."""


def evaluate(predictor: ScenePredictor, truths: Iterable[GroundTruth]) -> Metrics:
    """Evaluate a predictor on batches of scenes."""
    scenes: list[SceneErrors] = []
    for truth in truths:
        scenes += measure(predictor(truth), truth)
    return summarize(scenes)


def measure(prediction: NetworkOutput, truth: GroundTruth) -> list[SceneErrors]:
    """Return the errors of every scene of a batch."""
    return [
        _camera_errors(prediction, truth, index)
        | _depth_errors(prediction, truth, index)
        | _mask_errors(prediction, truth, index)
        for index in range(len(truth.images))
    ]


def summarize(scenes: Sequence[SceneErrors]) -> Metrics:
    """Reduce errors: means over scenes; medians and accuracies over all pairs of cameras."""

    def mean(name: str) -> float | None:
        values = [scene[name] for scene in scenes if not math.isnan(scene.get(name, math.nan))]
        return math.fsum(values) / len(values) if values else None

    def pairs(name: str) -> Float[Tensor, " pairs"]:
        return torch.cat([torch.zeros(0, dtype=torch.float64), *(scene[name] for scene in scenes if name in scene)])

    def below(errors: Float[Tensor, " pairs"]) -> float | None:
        return finite(fraction_below(errors, THRESHOLD_DEG, torch.ones_like(errors, dtype=torch.bool)))

    rotation, direction = pairs("rotation_deg"), pairs("direction_deg")
    return {
        "abs_rel": mean("abs_rel"),
        "delta": mean("delta"),
        "rotation_deg": median(rotation.numpy()),
        "direction_deg": median(direction.numpy()),
        "rra_15": below(rotation),
        "rta_15": below(direction),
        "focal": mean("focal"),
        "mask_iou": mean("mask_iou"),
        "ordering": mean("ordering"),
    }


def counted_pairs(num_times: int, num_views: int) -> Bool[Tensor, " pairs"]:
    """Select pairs of the T x V cameras: those of different views, or all instants of a single view.

    Two instants of one view of a rig are too easy: most views hardly move.
    """
    first, second = torch.triu_indices(num_times * num_views, num_times * num_views, offset=1)
    return (first % num_views != second % num_views) if num_views > 1 else torch.ones_like(first, dtype=torch.bool)


def _camera_errors(prediction: NetworkOutput, truth: GroundTruth, index: int) -> SceneErrors:
    found: SceneErrors = {}
    if prediction.intrinsics is not None:
        lenses = (cameras[index].double() for cameras in (prediction.intrinsics, truth.cameras.intrinsics))
        found["focal"] = float(focal_errors(*lenses).mean())
    if prediction.world_to_camera is not None:
        poses = (prediction.world_to_camera, truth.cameras.world_to_camera)
        errors = pair_errors(*(cameras[index].flatten(0, 1).cpu() for cameras in poses))
        counted = counted_pairs(*truth.images.shape[1:3]) & errors.has_baseline
        found["rotation_deg"] = errors.rotation_deg[counted]
        found["direction_deg"] = errors.signed_direction_deg[counted]
    return found


def _depth_errors(prediction: NetworkOutput, truth: GroundTruth, index: int) -> SceneErrors:
    """Return AbsRel, the fraction of inlier pixels, and the ordering of errors by confidence."""
    known = (truth.depth[index] > 0) & truth.valid[index]
    if prediction.depth is None or not known.any():
        return {}
    true, depth = truth.depth[index], prediction.depth[index]
    aligned = align_depth(depth[known], true[known], DepthAlignment.SCALE).scale * depth
    pixels, relative, *_, close, _, _ = (part.sum() for part in sum_depth_errors(aligned, true, known))
    found = {"abs_rel": float(relative / pixels), "delta": float(close / pixels)}
    if prediction.depth_confidence is not None:
        relative = (aligned[known] - true[known]).abs() / true[known]
        ordering = sparsify(relative.cpu(), prediction.depth_confidence[index][known].cpu()).ordering
        found |= {} if ordering is None else {"ordering": ordering}
    return found


def _mask_errors(prediction: NetworkOutput, truth: GroundTruth, index: int) -> SceneErrors:
    if prediction.dynamic is None or truth.dynamic is None:
        return {}
    moving = truth.dynamic[index] & truth.valid[index]
    if not moving.any():
        return {}
    intersection, union = mask_overlap((prediction.dynamic[index] > 0.5) & truth.valid[index], moving)
    return {"mask_iou": float(intersection.sum() / union.sum())}


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


MEAN = "mean depth map, mean pose"

_MAX_TRAINING_SCENES = 64
_TRAINING_SCENES_PER_HELD_OUT = 4
"""Training scenes in the mean scene, per held-out scene."""


def baselines(scenes: HeldOutScenes, family: SceneFamily, device: torch.device) -> dict[str, ScenePredictor]:
    """Return the baseline of a family by its name: the mean of training scenes."""
    starts = range(0, min(_MAX_TRAINING_SCENES, _TRAINING_SCENES_PER_HELD_OUT * scenes.scenes), SCENES_PER_BATCH)
    seeds = ([training_seed(0, start + number) for number in range(SCENES_PER_BATCH)] for start in starts)
    return {MEAN: mean_scene(sample_truth(batch, scenes.scene_request(family), device) for batch in seeds)}


@dataclass(frozen=True, kw_only=True)
class MeanScene:
    """Mean over scenes of a family, with the same numbers of cameras and instants.

    Depth is a mean of logarithms, relative to the mean depth of the scene; poses are relative to the first camera, in
    the same unit. `focal` is relative to the image diagonal.
    """

    log_depth: Float[Tensor, "T V H W"]
    world_to_camera: Float[Tensor, "T V 4 4"]
    focal: float

    def __call__(self, truth: GroundTruth) -> NetworkOutput:
        """Predict the mean scene."""
        shape = truth.depth.shape
        intrinsics = torch.zeros_like(truth.cameras.intrinsics)
        intrinsics[..., 0, 0] = intrinsics[..., 1, 1] = self.focal * _diagonal(truth.cameras)
        intrinsics[..., 2, 2] = 1
        return NetworkOutput(
            depth=self.log_depth.exp().to(truth.depth).expand(shape),
            world_to_camera=self.world_to_camera.expand(*shape[:3], 4, 4),
            intrinsics=intrinsics,
        )


def mean_scene(truths: Iterable[GroundTruth]) -> MeanScene:
    """Average scenes of one shape; a pixel without any known depth has the mean depth of its scene."""
    logs, counts, rotations, translations, focals = [], [], [], [], []
    for truth in truths:
        known = (truth.depth > 0) & truth.valid
        number = known.sum((1, 2, 3, 4)).clamp_min(1)
        scale = torch.where(known, truth.depth, 0).sum((1, 2, 3, 4)) / number
        relative = truth.depth / scale.reshape(-1, 1, 1, 1, 1)
        logs.append(torch.where(known, relative.clamp_min(1e-9).log(), 0.0).sum(0).double().cpu())
        counts.append(known.sum(0).cpu())
        cameras = truth.cameras.world_to_camera.double().cpu()
        poses = cameras @ invert_rigid(cameras[:, :1, :1])
        rotations.append(poses[..., :3, :3])
        translations.append(poses[..., :3, 3] / scale.double().cpu().reshape(-1, 1, 1, 1))
        focals.append((truth.cameras.intrinsics[..., 0, 0] / _diagonal(truth.cameras)).mean().double().cpu())
    rotation = mean_rotation(torch.cat(rotations).movedim(0, -3))
    return MeanScene(
        log_depth=torch.stack(logs).sum(0) / torch.stack(counts).sum(0).clamp_min(1),
        world_to_camera=rigid(rotation, torch.cat(translations).mean(0)),
        focal=float(torch.stack(focals).mean()),
    )


def _diagonal(cameras: Cameras) -> float:
    height, width = cameras.image_size
    return float((height**2 + width**2) ** 0.5)


NETWORK = "network"

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
        NETWORK + ", cameras known" * known + ", refined" * refined: partial(
            _predict, network, precision, cameras_known=known, refined=refined
        )
        for known in conditionings
        for refined in refinements
    }


def evaluate_all(predictors: dict[str, ScenePredictor], truths: list[GroundTruth]) -> dict[str, Metrics]:
    """Evaluate several predictors on the same scenes."""
    return {name: evaluate(predictor, truths) for name, predictor in predictors.items()}


@torch.no_grad()
def find_ood_limits(network: ViewTimeNetwork, scenes: HeldOutScenes, device: torch.device) -> OODLimits:
    """Fit limits on held-out scenes of these numbers and sizes, with rigs of covisible views."""
    found = [
        measure_ood(RigOutput.of(network(truth.images[scene : scene + 1])))
        for family in _FAMILIES
        for truth in held_out_truths(scenes, family, device)
        for scene in range(len(truth.images))
    ]
    return fit_ood_limits(found, _QUANTILE)


@torch.no_grad()
def _predict(
    network: ViewTimeNetwork, precision: torch.dtype, truth: GroundTruth, *, cameras_known: bool, refined: bool
) -> NetworkOutput:
    conditioning = NO_CONDITIONING
    if cameras_known:
        conditioning = Conditioning(
            world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics
        )
    with autocast(truth.images.device, precision):
        output: NetworkOutput = network(truth.images, conditioning=conditioning)
    if refined:
        output = refinement_of(network, RigOutput.of(output), truth.images, conditioning).output.outputs[0]
    return output if truth.images.shape[1] > 1 else replace(output, dynamic=None)
