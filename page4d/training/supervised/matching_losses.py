"""Losses on correspondences: match probabilities and positions, and the reprojection error."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels, project
from page4d.geometry.pose_encoding import decode_pose
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.models.inputs.matching import Matches, target_images
from page4d.training.supervised.targets import TrueCorrespondences, bilinear_weights

_MIN_DEPTH = 0.05
_MAX_DISTANCE = 1.0
"""Reprojection errors are clamped to this, in half long sides, and have no gradient beyond it."""


def match_probability_loss(matches: Matches, true: TrueCorrespondences, grid: tuple[int, int]) -> Tensor:
    """Return the cross-entropy of match probabilities with bilinear targets; hidden patches should have no match.

    Hidden and seen patches have equal weight.

    Source: van den Oord et al. (2018), InfoNCE, eq. 4, with all cells of the other image as candidates.
    """
    assert matches.likelihoods is not None
    cell, unseen = matches.likelihoods.cell.float(), matches.likelihoods.unseen.float()
    finer = round((cell.shape[-1] / (grid[0] * grid[1])) ** 0.5)
    weights = bilinear_weights(true.position * finer, (grid[0] * finer, grid[1] * finer))
    entropy = torch.where(true.seen, -(weights * cell).sum(dim=-1), torch.where(true.hidden, -unseen, 0))
    return entropy.sum() / (true.seen | true.hidden).sum().clamp(min=1)


def match_position_loss(matches: Matches, true: TrueCorrespondences, grid: tuple[int, int]) -> Tensor:
    """Return the mean error of expected positions, clamped to one patch: larger errors are wrong matches."""
    error = (matches.expected.float() - centered(true.position, grid)) * (max(grid) / 2)
    return _mean_of_seen(_smooth_norm(error, 0.1).clamp(max=1.0), true)


def reprojection_loss(
    depth: Float[Tensor, "B T V H W"],
    pose_encoding: Float[Tensor, "B T V 9"],
    matches: Matches,
    true: TrueCorrespondences,
    grid: tuple[int, int],
) -> Tensor:
    """Return the reprojection error of patches by predicted depth and cameras, in half long sides, clamped.

    It couples depth, poses and focal lengths; ground truth enters by the target positions only.

    Source: Triggs et al. (1999), "Bundle Adjustment", section 2: the reprojection error.
    """
    size = (depth.shape[-2], depth.shape[-1])
    patch = size[0] // grid[0]
    middle = patch // 2
    cameras = decode_pose(_clamp_fields(pose_encoding.float()), size)
    inner = slice(middle, None, patch)
    sampled = depth.float()[:, :, :, inner, inner].flatten(3)
    y, x = (torch.arange(count, device=depth.device) * patch + middle + 0.5 for count in grid)
    pixels = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    plane = normalize_pixels(pixels.expand(*sampled.shape, 2), cameras.intrinsics)
    points = functional.pad(plane, (0, 1), value=1.0) * sampled[..., None]
    world = transform_points(invert_rigid(cameras.world_to_camera), points)
    errors = []
    for index, target in enumerate(matches.targets):
        times, views = target_images(target, sampled.shape[1], sampled.shape[2], depth.device)
        other = cameras[:, times, views]
        local = transform_points(other.world_to_camera, world)
        local = torch.cat([local[..., :2], local[..., 2:].clamp(min=_MIN_DEPTH)], dim=-1)
        position = (project(local, other.intrinsics)[0] - 0.5 * (1 - patch % 2)) / patch
        errors.append(centered(position, grid) - centered(true.position[..., index, :, :], grid))
    distance = _smooth_norm(torch.stack(errors, dim=3), 0.05)
    return _mean_of_seen(distance.clamp(max=_MAX_DISTANCE), true)


def centered(position: Float[Tensor, "*points 2"], grid: tuple[int, int]) -> Float[Tensor, "*points 2"]:
    """Convert positions in patches from the corner to the coordinates of `Matches`."""
    rows, columns = grid
    return (position - position.new_tensor([columns / 2, rows / 2])) / (max(grid) / 2)


def _clamp_fields(encoding: Tensor) -> Tensor:
    """Clamp fields of view to 0.2 to 2.6 rad."""
    return torch.cat([encoding[..., :7], encoding[..., 7:].clamp(0.2, 2.6)], dim=-1)


def _smooth_norm(offset: Float[Tensor, "*points 2"], radius: float) -> Float[Tensor, "*points"]:
    """Return the norm, smoothed at 0 within a radius."""
    return (offset.square().sum(dim=-1) + radius**2).sqrt() - radius


def _mean_of_seen(values: Tensor, true: TrueCorrespondences) -> Tensor:
    return torch.where(true.seen, values, 0).sum() / true.seen.sum().clamp(min=1)
