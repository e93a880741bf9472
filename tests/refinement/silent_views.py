"""Views of a network whose matches say nothing but in which images they were looked for, and their true cameras."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.ground_truth import GroundTruth
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import ViewMatches
from page4d.models.output import NetworkOutput
from page4d.refinement.matched_view import MatchedView

PATCH = 8
FAR = 60.0
"""Depth that is given where there is nothing."""


def silent_views(
    depth: Sequence[Tensor],
    confidence: Sequence[float] | None = None,
    kinds: tuple[MatchTarget, ...] = tuple(MatchTarget),
) -> list[MatchedView]:
    """Return one view for each depth [B, T, H, W], as sure of it as is said."""
    views = []
    for own, sure in zip(depth, confidence or repeat(1.0), strict=False):
        nothing = torch.zeros(*own.shape[:2], len(kinds), own.shape[2] * own.shape[3] // PATCH**2)
        matches = ViewMatches(
            likelihoods=None, expected=torch.stack([nothing] * 2, dim=-1), confidence=nothing, targets=kinds
        )
        deep = own[:, :, None]
        output = NetworkOutput(depth=deep, depth_confidence=torch.full_like(deep, sure))
        views.append(MatchedView(output=output, matches=matches, patch_size=PATCH))
    return views


def true_cameras(truth: GroundTruth) -> Cameras:
    """Return [B, T, V] in float64."""
    pose, matrix = truth.cameras.world_to_camera.double(), truth.cameras.intrinsics.double()
    return replace(truth.cameras, world_to_camera=pose, intrinsics=matrix)


def wrong_depth(truth: GroundTruth, factors: Sequence[float]) -> list[Tensor]:
    """Return depth of every view that is wrong by a factor; far away where there is nothing."""
    true = torch.where(truth.depth > 0, truth.depth, FAR)
    return [depth * factor for depth, factor in zip(true.unbind(2), factors, strict=True)]
