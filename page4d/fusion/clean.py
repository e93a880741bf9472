"""Cleaning of predictions: static parts take the depth of the background, and views are compared."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.fusion.background import Background
from page4d.fusion.confidence import recalibrated
from page4d.fusion.consensus import reach_consensus, reach_moving_consensus
from page4d.fusion.subtraction import sharpen_motion
from page4d.geometry.camera import Cameras
from page4d.geometry.warp import Agreement, measure_agreement
from page4d.networks.layers.execution import one_thread
from page4d.records import Predictions


@dataclass(frozen=True, kw_only=True)
class FusedBackground:
    """A background whose depth maps agree as far as they can, with the agreement that is left."""

    background: Background
    agreement: Agreement


def fuse_background(background: Background, cameras: Cameras) -> FusedBackground:
    """Bring the depth maps of a background, seen by cameras [V], to a consensus."""
    known = background.known
    depth = reach_consensus(background.log_depth, known, background.confidence, cameras)
    fused = replace(background, log_depth=depth)
    return FusedBackground(
        background=fused, agreement=measure_agreement(depth.exp(), known, cameras, background.spread)
    )


@one_thread()
@torch.no_grad()
def clean(predictions: Predictions, fused: FusedBackground | None = None) -> Predictions:
    """Return predictions [1, T, V, H, W] in the world of the background, with their agreement between views.

    Pixels that do not move take depth and confidence of the background, and their agreement is that of the
    background, so that static parts of clouds do not change over time. Without a background, depth is unchanged. The
    confidence is recalibrated by the agreement.
    """
    known = predictions.valid & predictions.depth.isfinite() & (predictions.depth > 0)
    if fused is None:
        agreement = measure_agreement(predictions.depth, known, predictions.cameras)
        confidence = recalibrated(predictions.depth_confidence.nan_to_num(), agreement)
        return replace(predictions, depth_confidence=confidence, agreement=agreement)
    background = fused.background
    dynamic = predictions.dynamic
    if dynamic is not None:
        dynamic = sharpen_motion(dynamic[0], predictions.images[0], background)[None]
    is_static = background.known & predictions.valid
    if dynamic is not None:
        is_static = is_static & (dynamic <= DYNAMIC_THRESHOLD)
    depth = torch.where(is_static, background.log_depth.exp(), predictions.depth)
    confidence = torch.where(is_static, background.confidence, predictions.depth_confidence.nan_to_num())
    if dynamic is not None:
        is_moving = known & ~is_static & (dynamic > DYNAMIC_THRESHOLD)
        depth = _with_moving_consensus(depth, confidence, is_moving, background, predictions.cameras)
    found = measure_agreement(depth, known | is_static, predictions.cameras, compared=~is_static)
    agreement = fused.agreement.where(is_static, found)
    return replace(
        predictions,
        depth=depth,
        dynamic=dynamic,
        depth_confidence=recalibrated(confidence, agreement),
        agreement=agreement,
    )


def _with_moving_consensus(
    depth: Float[Tensor, "B T V H W"],
    confidence: Float[Tensor, "B T V H W"],
    is_moving: Bool[Tensor, "B T V H W"],
    background: Background,
    cameras: Cameras,
) -> Float[Tensor, "B T V H W"]:
    """Bring moving pixels of every instant to a consensus of the views."""
    instants = [
        reach_moving_consensus(depth[0, time], confidence[0, time], is_moving[0, time], background, cameras[0, time])
        for time in range(depth.shape[1])
    ]
    return torch.stack(instants)[None]


def static_instant(predictions: Predictions, fused: FusedBackground) -> Predictions:
    """Return the background as one instant [1, 1, V, H, W], with the cameras and the time of the first instant."""
    background = fused.background
    return replace(
        predictions.at_times(0, 1),
        images=background.color[None, None],
        valid=background.known[None, None],
        depth=background.log_depth.exp()[None, None],
        depth_confidence=recalibrated(background.confidence, fused.agreement)[None, None],
        points=None,
        points_confidence=None,
        dynamic=None,
        agreement=fused.agreement.map(lambda counts: counts[None, None]),
    )


def confirmed_share(predictions: Predictions) -> float:
    """Return the share of pixels with depth that another view confirms; 0 without any."""
    if predictions.agreement is None:
        return 0.0
    known = predictions.valid & predictions.depth.isfinite() & (predictions.depth > 0)
    return float((predictions.agreement.confirmed[known] > 0).float().mean()) if bool(known.any()) else 0.0


def scale_between(background: Background, predictions: Predictions) -> float:
    """Return the factor from the unit of a background to that of predictions: the median ratio of static depths."""
    known = background.known & predictions.valid & predictions.depth.isfinite() & (predictions.depth > 0)
    if predictions.dynamic is not None:
        known = known & (predictions.dynamic <= DYNAMIC_THRESHOLD)
    if not bool(known.any()):
        return 1.0
    ratio: Float[Tensor, " N"] = (predictions.depth.clamp(min=1e-12).log() - background.log_depth)[known]
    return float(ratio.double().median().exp())
