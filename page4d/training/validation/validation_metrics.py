"""Validation metrics of depth, cameras, motion and confidence, as `page4d.evaluation` defines them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.evaluation.camera_errors import focal_errors, fraction_below, pair_errors
from page4d.evaluation.depth import sparsify, sum_depth_errors
from page4d.evaluation.depth_alignment import DepthAlignment, align_depth
from page4d.evaluation.masks import mask_overlap
from page4d.ground_truth import GroundTruth

THRESHOLD_DEG = 15.0
"""Threshold of the accuracies RRA and RTA."""

Metrics = dict[str, float | None]
"""Means and medians over scenes by name; None without a prediction or ground truth."""

METRICS = {
    "abs_rel": "depth: mean of |p - g| / g after one scale per scene",
    "delta": "depth: fraction of pixels with max(p / g, g / p) < 1.25",
    "rotation_deg": "cameras: median error of the relative rotation of two views",
    "direction_deg": "cameras: median angle between the directions of the relative translations, up to 180",
    "rra_15": "cameras: fraction of pairs with a rotation error below 15 degrees",
    "rta_15": "cameras: fraction of pairs with a direction error below 15 degrees",
    "focal": "cameras: mean relative error of the focal lengths",
    "mask_iou": "motion: intersection over union, mean over scenes with moving pixels",
    "ordering": "confidence: 1 orders the depth errors perfectly, 0 not at all",
}
"""Definitions by the names in files."""


@dataclass(frozen=True, kw_only=True)
class ScenePrediction:
    """Predictions for B scenes, with the shapes of the ground truth; None where nothing is predicted."""

    depth: Float[Tensor, "B T V H W"] | None = None
    confidence: Float[Tensor, "B T V H W"] | None = None
    world_to_camera: Float[Tensor, "B T V 4 4"] | None = None
    intrinsics: Float[Tensor, "B T V 3 3"] | None = None
    dynamic: Bool[Tensor, "B T V H W"] | None = None


@dataclass(frozen=True, kw_only=True)
class SceneErrors:
    """Errors of one scene; NaN or an empty tensor where they are undefined."""

    abs_rel: float = math.nan
    delta: float = math.nan
    rotation_deg: Float[Tensor, " pairs"]
    direction_deg: Float[Tensor, " pairs"]
    focal: float = math.nan
    mask_iou: float = math.nan
    ordering: float = math.nan


ScenePredictor = Callable[[GroundTruth], ScenePrediction]
"""Predicts from the images of scenes; the ground truth also serves known cameras and oracles."""


def evaluate(predictor: ScenePredictor, truths: Iterable[GroundTruth]) -> Metrics:
    """Evaluate a predictor on batches of scenes."""
    scenes: list[SceneErrors] = []
    for truth in truths:
        scenes += measure(predictor(truth), truth)
    return summarize(scenes)


def measure(prediction: ScenePrediction, truth: GroundTruth) -> list[SceneErrors]:
    """Return the errors of every scene of a batch."""
    return [_measure_scene(prediction, truth, index) for index in range(len(truth.images))]


def summarize(scenes: Sequence[SceneErrors]) -> Metrics:
    """Reduce errors: means over scenes; medians and accuracies over all pairs of cameras."""
    rotation, direction = (
        torch.cat([getattr(scene, name) for scene in scenes]) for name in ("rotation_deg", "direction_deg")
    )

    def mean(name: str) -> float | None:
        values = [value for scene in scenes if not math.isnan(value := getattr(scene, name))]
        return math.fsum(values) / len(values) if values else None

    return {
        "abs_rel": mean("abs_rel"),
        "delta": mean("delta"),
        "rotation_deg": _median(rotation),
        "direction_deg": _median(direction),
        "rra_15": _below(rotation),
        "rta_15": _below(direction),
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


def _measure_scene(prediction: ScenePrediction, truth: GroundTruth, index: int) -> SceneErrors:
    rotation, direction = _camera_errors(prediction, truth, index)
    abs_rel, delta, ordering = _depth_errors(prediction, truth, index)
    focal = math.nan
    if prediction.intrinsics is not None:
        focal = float(
            focal_errors(prediction.intrinsics[index].double(), truth.cameras.intrinsics[index].double()).mean()
        )
    return SceneErrors(
        abs_rel=abs_rel,
        delta=delta,
        ordering=ordering,
        rotation_deg=rotation,
        direction_deg=direction,
        focal=focal,
        mask_iou=_mask_iou(prediction, truth, index),
    )


def _camera_errors(prediction: ScenePrediction, truth: GroundTruth, index: int) -> tuple[Tensor, Tensor]:
    nothing = torch.zeros(0, dtype=torch.float64)
    if prediction.world_to_camera is None:
        return nothing, nothing
    errors = pair_errors(
        prediction.world_to_camera[index].flatten(0, 1).cpu(),
        truth.cameras.world_to_camera[index].flatten(0, 1).cpu(),
    )
    counted = counted_pairs(*truth.images.shape[1:3]) & errors.has_baseline
    return errors.rotation_deg[counted], errors.signed_direction_deg[counted]


def _depth_errors(prediction: ScenePrediction, truth: GroundTruth, index: int) -> tuple[float, float, float]:
    """Return AbsRel, the fraction of inlier pixels, and the ordering of errors by confidence."""
    if prediction.depth is None:
        return math.nan, math.nan, math.nan
    true, depth = truth.depth[index], prediction.depth[index]
    known = (true > 0) & truth.valid[index]
    if not known.any():
        return math.nan, math.nan, math.nan
    fit = align_depth(depth.flatten()[None], true.flatten()[None], known.flatten()[None], DepthAlignment.SCALE)
    aligned = fit.scale[0] * depth
    sums = sum_depth_errors(aligned, true, known).total()
    ordering = None
    if prediction.confidence is not None:
        relative = (aligned[known] - true[known]).abs() / true[known]
        ordering = sparsify(relative.cpu(), prediction.confidence[index][known].cpu()).ordering
    return float(sums.abs_rel), float(sums.delta[0]), math.nan if ordering is None else ordering


def _mask_iou(prediction: ScenePrediction, truth: GroundTruth, index: int) -> float:
    if prediction.dynamic is None or truth.dynamic is None:
        return math.nan
    moving = truth.dynamic[index] & truth.valid[index]
    if not moving.any():
        return math.nan
    intersection, union = mask_overlap(prediction.dynamic[index] & truth.valid[index], moving)
    return float(intersection.sum() / union.sum())


def _median(values: Float[Tensor, " N"]) -> float | None:
    return float(values.quantile(0.5)) if len(values) else None


def _below(values: Float[Tensor, " N"]) -> float | None:
    below = fraction_below(values, THRESHOLD_DEG, torch.ones_like(values, dtype=torch.bool))
    return float(below) if len(values) else None
