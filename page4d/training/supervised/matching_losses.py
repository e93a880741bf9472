"""Losses on correspondences: of the explicit matches, and of depth and cameras that should agree with them."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels, project
from page4d.geometry.pose_encoding import decode_pose
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.models.inputs.matching import Matches, target_images
from page4d.training.supervised.true_matches import Correspondences, bilinear_weights

_LEAST_DEPTH = 0.05
_MOST_OFF = 1.0
"""Positions that are further off, in half long sides, count as being this far off: they teach nothing yet."""


def match_probability_loss(matches: Matches, true: Correspondences, grid: tuple[int, int]) -> Tensor:
    """Return the cross-entropy of where patches are found, true positions spread over the cells around them.

    What is hidden should be found nowhere, and weighs as much as what is seen.

    Source: van den Oord et al. (2018), InfoNCE, eq. 4, with all cells of the other image as candidates.
    """
    assert matches.likelihoods is not None
    cell, unseen = matches.likelihoods.cell.float(), matches.likelihoods.unseen.float()
    finer = round((cell.shape[-1] / (grid[0] * grid[1])) ** 0.5)
    weights = bilinear_weights(true.position * finer, (grid[0] * finer, grid[1] * finer))
    entropy = torch.where(true.seen, -(weights * cell).sum(dim=-1), torch.where(true.hidden, -unseen, 0))
    return entropy.sum() / (true.seen | true.hidden).sum().clamp(min=1)


def match_position_loss(matches: Matches, true: Correspondences, grid: tuple[int, int]) -> Tensor:
    """Return how far expected positions are off, in patches, at most one: further ones are in the wrong place."""
    off = (matches.expected.float() - centered(true.position, grid)) * (max(grid) / 2)
    return _mean_of_seen(_rounded_norm(off, 0.1).clamp(max=1.0), true)


def reprojection_loss(
    depth: Float[Tensor, "B T V H W"],
    pose_encoding: Float[Tensor, "B T V 9"],
    matches: Matches,
    true: Correspondences,
    grid: tuple[int, int],
) -> Tensor:
    """Return how far predicted depth and cameras carry patches from their true positions in other images.

    Predictions alone are asked to agree with each other, so that depth, poses and focal lengths are learned
    together; in half long sides, limited. GroundTruth enters by positions only.

    Source: Triggs et al. (1999), "Bundle Adjustment", section 2: the reprojection error.
    """
    size = (depth.shape[-2], depth.shape[-1])
    patch = size[0] // grid[0]
    middle = patch // 2
    cameras = decode_pose(_with_sane_fields(pose_encoding.float()), size)
    inner = slice(middle, None, patch)
    sampled = depth.float()[:, :, :, inner, inner].flatten(3)
    y, x = (torch.arange(count, device=depth.device) * patch + middle + 0.5 for count in grid)
    pixels = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    plane = normalize_pixels(pixels.expand(*sampled.shape, 2), cameras.intrinsics)
    points = functional.pad(plane, (0, 1), value=1.0) * sampled[..., None]
    world = transform_points(invert_rigid(cameras.world_to_camera), points)
    offs = []
    for index, target in enumerate(matches.targets):
        times, views = target_images(target, sampled.shape[1], sampled.shape[2], depth.device)
        other = cameras[:, times, views]
        local = transform_points(other.world_to_camera, world)
        local = torch.cat([local[..., :2], local[..., 2:].clamp(min=_LEAST_DEPTH)], dim=-1)
        position = (project(local, other.intrinsics)[0] - 0.5 * (1 - patch % 2)) / patch
        offs.append(centered(position, grid) - centered(true.position[..., index, :, :], grid))
    distance = _rounded_norm(torch.stack(offs, dim=3), 0.05)
    return _mean_of_seen(distance.clamp(max=_MOST_OFF), true)


def centered(position: Float[Tensor, "*points 2"], grid: tuple[int, int]) -> Float[Tensor, "*points 2"]:
    """Turn positions in patches from the corner into those of `Matches`."""
    rows, columns = grid
    return (position - position.new_tensor([columns / 2, rows / 2])) / (max(grid) / 2)


def _with_sane_fields(encoding: Tensor) -> Tensor:
    return torch.cat([encoding[..., :7], encoding[..., 7:].clamp(0.2, 2.6)], dim=-1)


def _rounded_norm(offset: Float[Tensor, "*points 2"], radius: float) -> Float[Tensor, "*points"]:
    """Return the length, smooth at 0."""
    return (offset.square().sum(dim=-1) + radius**2).sqrt() - radius


def _mean_of_seen(values: Tensor, true: Correspondences) -> Tensor:
    return torch.where(true.seen, values, 0).sum() / true.seen.sum().clamp(min=1)
