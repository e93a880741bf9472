"""Cameras from ray maps: the direction and origin in the world of the ray of every pixel."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.transforms import invert_rigid, rigid

_NUM_DRAWS = 100
_DRAW_SIZE = 8
_DRAWN_SHARE = 0.3
_FITTED_SHARE = 0.95
_MAX_FITTED = 8000
_INLIER = 0.2
_MIN_Z = 1e-4
_AT_ONCE = 10
"""Homographies scored at once: bounds the memory."""


def cameras_from_rays(
    rays: Float[Tensor, "*batch h w 6"],
    confidence: Float[Tensor, "*batch h w"],
    image_size: tuple[int, int],
    seed: int = 0,
) -> Cameras:
    """Return the cameras whose viewing rays are [direction | origin] in the world, for images of (height, width).

    Rays are at the centres of a grid that covers the image; directions may have any length. Rotation and intrinsics
    follow from a homography between image and directions, by RANSAC with a fixed `seed`; the camera centre is the
    mean origin, weighted by confidence. Computed in float64.

    Source: "use_ray_pose" of the public Depth Anything 3 code (reference facts). Its decomposition is exact for
    principal points in the middle of the image.
    """
    leading = rays.shape[:-3]
    flat_rays = rays.detach().double().flatten(0, -4) if leading else rays.detach().double()[None]
    weights = confidence.detach().double().reshape(-1, *confidence.shape[-2:])
    generator = torch.Generator().manual_seed(seed)
    maps = [
        _image_homography(own[..., :3], weight, generator) for own, weight in zip(flat_rays, weights, strict=True)
    ]
    homography = torch.stack(maps)
    homography = homography * torch.where(torch.linalg.det(homography) < 0, -1.0, 1.0)[:, None, None]
    rotation, lower = ql_decomposition(homography)
    lower = lower / lower[:, 2:, 2:]
    share = weights / weights.sum(dim=(-2, -1), keepdim=True)
    center = (share[..., None] * flat_rays[..., 3:]).sum(dim=(-3, -2))
    height, width = image_size
    intrinsics = torch.zeros_like(homography)
    intrinsics[:, 0, 0], intrinsics[:, 1, 1] = width / 2 / lower[:, 0, 0], height / 2 / lower[:, 1, 1]
    intrinsics[:, 0, 2], intrinsics[:, 1, 2] = width / 2 * (1 + lower[:, 2, 0]), height / 2 * (1 + lower[:, 2, 1])
    intrinsics[:, 2, 2] = 1
    return Cameras(
        world_to_camera=invert_rigid(rigid(rotation, center)).reshape(*leading, 4, 4),
        intrinsics=intrinsics.reshape(*leading, 3, 3),
        image_size=image_size,
    )


def ql_decomposition(
    matrix: Float[Tensor, "*batch 3 3"],
) -> tuple[Float[Tensor, "*batch 3 3"], Float[Tensor, "*batch 3 3"]]:
    """Return an orthogonal and a lower triangular matrix with a positive diagonal whose product is the matrix.

    Source: Golub & Van Loan (2013), section 5.2, for QR; columns in reverse order.
    """
    orthogonal, upper = torch.linalg.qr(matrix.flip(-1))
    lower, rotation = upper.flip(-2, -1), orthogonal.flip(-1)
    signs = torch.where(lower.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(matrix)
    return rotation * signs[..., None, :], signs[..., :, None] * lower


def weighted_homography(
    source: Float[Tensor, "*batch N 2"], target: Float[Tensor, "*batch N 2"], weights: Float[Tensor, "*batch N"]
) -> Float[Tensor, "*batch 3 3"]:
    """Return the homography from source to target points of least weighted algebraic error, of norm 1.

    Source: Hartley & Zisserman (2004), algorithm 4.1 (DLT), with weighted equations.
    """
    points = torch.cat([source, torch.ones_like(source[..., :1])], dim=-1)
    nothing = torch.zeros_like(points)
    first = torch.cat([-points, nothing, target[..., :1] * points], dim=-1)
    second = torch.cat([nothing, -points, target[..., 1:] * points], dim=-1)
    equations = torch.cat([first, second], dim=-2) * torch.cat([weights, weights], dim=-1).sqrt()[..., None]
    if equations.shape[-2] > equations.shape[-1]:  # the same singular vectors, of a small matrix
        equations = torch.linalg.qr(equations, mode="r").R
    return torch.unflatten(torch.linalg.svd(equations).Vh[..., -1, :], -1, (3, 3))


def _image_homography(
    directions: Float[Tensor, "h w 3"], confidence: Float[Tensor, "h w"], generator: torch.Generator
) -> Float[Tensor, "3 3"]:
    """Fit the homography from an image, whose sides are from -1 to 1, to the plane z = 1 of the world."""
    height, width = confidence.shape
    x = (torch.arange(width, dtype=torch.float64) * 2 + 1) / width - 1
    y = (torch.arange(height, dtype=torch.float64) * 2 + 1) / height - 1
    source = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    flat, z = directions.cpu().flatten(0, 1), directions.cpu()[..., 2].flatten()
    seen = z.abs() > _MIN_Z
    target = flat[:, :2] / torch.where(seen, z, 1.0)[:, None]
    weights = confidence.cpu().flatten() * seen
    ranked = weights.argsort(descending=True, stable=True)
    drawn = ranked[: max(_DRAW_SIZE, int(len(ranked) * _DRAWN_SHARE))]
    draws = drawn[torch.rand(_NUM_DRAWS, len(drawn), generator=generator).topk(_DRAW_SIZE).indices]
    candidates = weighted_homography(source[draws], target[draws], weights[draws])
    inliers = [_inliers(part, source, target) for part in torch.split(candidates, _AT_ONCE)]
    best = torch.cat([(part * weights).sum(dim=-1) for part in inliers]).argmax()
    fits = torch.cat(inliers)[best] & seen
    fits[ranked[max(_DRAW_SIZE, int(len(ranked) * _FITTED_SHARE)) :]] = False
    chosen = fits.nonzero()[:, 0]
    if len(chosen) < _DRAW_SIZE // 2:
        fitted = candidates[best]
    else:
        chosen = chosen[torch.randperm(len(chosen), generator=generator)[:_MAX_FITTED]]
        fitted = weighted_homography(source[chosen], target[chosen], weights[chosen])
    return fitted.to(directions.device)


def _inliers(
    homographies: Float[Tensor, "K 3 3"], source: Float[Tensor, "N 2"], target: Float[Tensor, "N 2"]
) -> Tensor:
    """Return the mask [K, N] of points that a homography maps close to their target."""
    mapped = torch.cat([source, torch.ones_like(source[:, :1])], dim=-1) @ homographies.transpose(-1, -2)
    distances: Tensor = (mapped[..., :2] / mapped[..., 2:] - target).norm(dim=-1)
    return distances < _INLIER
