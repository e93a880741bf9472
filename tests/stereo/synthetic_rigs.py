"""Synthetic rigs: true cameras and matches, depth with a known error, and views without matches."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.lab.training.losses import TrueCorrespondences, centered, targets_of, true_correspondences
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.matching import Matches
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.records import GroundTruth
from page4d.stereo.refine import run_refinement
from page4d.stereo.views import ViewPrediction

PATCH, FINER = 8, 2
KINDS = tuple(MatchTarget)
FAR = 60.0
"""Depth of the background."""


def refined(output: NetworkOutput, **options) -> NetworkOutput:
    """Refine the output of views of one size; options are those of `run_refinement`."""
    return run_refinement(RigOutput.of(output), PATCH, FINER, **options).output.outputs[0]


def true_cameras(truth: GroundTruth) -> Cameras:
    """Return the true cameras [B, T, V] in float64."""
    pose, matrix = truth.cameras.world_to_camera.double(), truth.cameras.intrinsics.double()
    return replace(truth.cameras, world_to_camera=pose, intrinsics=matrix)


def filled_depth(truth: GroundTruth) -> Tensor:
    """Return the true depth, with a distant background."""
    return torch.where(truth.depth > 0, truth.depth, FAR)


def scaled_depth(truth: GroundTruth, factors: Sequence[float]) -> list[Tensor]:
    """Return the true depth of every view times a factor."""
    return [depth * factor for depth, factor in zip(filled_depth(truth).unbind(2), factors, strict=True)]


def with_views(truth: GroundTruth, views: Sequence[int]) -> GroundTruth:
    """Return the ground truth of some views, in this order."""
    chosen = (slice(None), slice(None), list(views))
    return replace(
        truth,
        images=truth.images[chosen],
        depth=truth.depth[chosen],
        valid=truth.valid[chosen],
        dynamic=truth.dynamic[chosen],
        cameras=truth.cameras[chosen],
    )


def true_patch_positions(truth: GroundTruth, kinds: tuple[MatchTarget, ...] = KINDS) -> TrueCorrespondences:
    """Return the true positions of patches in target images."""
    return true_correspondences(targets_of(truth), PATCH, kinds)


def true_matches(truth: GroundTruth, kinds: tuple[MatchTarget, ...] = KINDS) -> Matches:
    """Return exact matches, of confidence 1 where the patch is visible in the target and 0 elsewhere."""
    true = true_patch_positions(truth, kinds)
    grid = (truth.depth.shape[-2] // PATCH, truth.depth.shape[-1] // PATCH)
    return Matches(expected=centered(true.position, grid), confidence=true.seen.float(), targets=kinds)


def views_without_matches(
    depth: Sequence[Tensor], confidence: Sequence[float] | None = None, kinds: tuple[MatchTarget, ...] = KINDS
) -> list[ViewPrediction]:
    """Return one view per depth map [B, T, H, W], of constant depth confidence and with matches of confidence 0."""
    views = []
    for own, constant in zip(depth, confidence or repeat(1.0), strict=False):
        none = torch.zeros(*own.shape[:2], 1, len(kinds), own.shape[2] * own.shape[3] // PATCH**2)
        matches = Matches(expected=torch.stack([none] * 2, dim=-1), confidence=none, targets=kinds)
        maps = own[:, :, None]
        output = NetworkOutput(depth=maps, depth_confidence=torch.full_like(maps, constant), matches=matches)
        views.append(ViewPrediction(output=output, patch_size=PATCH))
    return views
