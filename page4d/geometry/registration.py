"""Registration: the similarity or rigid transform that brings one set of points or cameras onto another."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import InputError
from page4d.geometry.rotation import mean_rotation
from page4d.geometry.similarity import Sim3


class DegenerateGeometryError(InputError):
    """Points that do not determine the transform: too few, coincident or on one line."""


def align_points(
    source: Float[Tensor, "*batch K 3"],
    target: Float[Tensor, "*batch K 3"],
    weights: Float[Tensor, "*batch K"] | None = None,
    *,
    with_scale: bool = True,
) -> Sim3:
    """Find the weighted least-squares transform from `source` to `target`.

    Raises:
        DegenerateGeometryError: if the points with weight lie on one line or coincide, so that the rotation is free.

    Source: Umeyama (1991), eqs. 34-43, with weights in all sums.
    """
    if weights is None:
        weights = torch.ones_like(source[..., 0])
    total = weights.sum(-1)
    if bool((total <= 0).any()):
        raise DegenerateGeometryError("no point has a positive weight", "lower the confidence threshold")
    share = (weights / total[..., None])[..., None]
    source_mean = (share * source).sum(-2)
    target_mean = (share * target).sum(-2)
    centred_source = source - source_mean[..., None, :]
    centred_target = target - target_mean[..., None, :]
    covariance = (share * centred_target).transpose(-1, -2) @ centred_source
    u, spectrum, vh = torch.linalg.svd(covariance)
    # The second singular value is the spread across the main direction: without it a turn about that line is free.
    tiny = 64 * torch.finfo(source.dtype).eps
    if bool((spectrum[..., 1] <= tiny * spectrum[..., 0].clamp_min(torch.finfo(source.dtype).tiny)).any()):
        raise DegenerateGeometryError(
            "the points to align coincide or lie on one line", "give three points that span a triangle"
        )
    sign = torch.linalg.det(u @ vh)
    signs = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], dim=-1)
    rotation = u @ (signs[..., None] * vh)
    scale = torch.ones_like(sign)
    if with_scale:
        variance = (share * centred_source.square()).sum((-1, -2))
        scale = (spectrum * signs).sum(-1) / variance
    translation = target_mean - scale[..., None] * (rotation @ source_mean[..., None])[..., 0]
    return Sim3(scale=scale, rotation=rotation, translation=translation)


def align_points_robust(
    source: Float[Tensor, "K 3"],
    target: Float[Tensor, "K 3"],
    weights: Float[Tensor, " K"] | None = None,
    *,
    with_scale: bool = True,
    iterations: int = 50,
) -> tuple[Sim3, Float[Tensor, " K"]]:
    """Align while ignoring outliers; return the transform and the final weight of every point.

    Iteratively re-weighted least squares with the Geman-McClure kernel. Its width starts at the largest residual and
    shrinks towards three robust standard deviations (graduated non-convexity), so that no starting guess is needed
    and up to about half of the points may be wrong.

    Raises:
        DegenerateGeometryError: as `align_points`.

    Source: Yang et al., "Graduated non-convexity for robust spatial perception", RA-L 2020, eqs. 8, 12 and 13.
    """
    prior = torch.ones_like(source[:, 0]) if weights is None else weights
    spread = (target - target.mean(0)).norm(dim=-1).mean()
    floor = (spread * torch.finfo(source.dtype).eps * 64).clamp_min(torch.finfo(source.dtype).tiny)
    transform = align_points(source, target, prior, with_scale=with_scale)
    current = prior
    width = None
    for _ in range(iterations):
        residual = (transform.apply(source) - target).norm(dim=-1)
        used = residual[prior > 0]
        # 1.4826 / 0.6745 style factor for a norm of three components: median of a chi(3) variable is 1.538 sigma.
        goal = (3 * used.median() / 1.538).clamp_min(floor)
        width = used.max().clamp_min(goal) if width is None else (width / 1.4).clamp_min(goal)
        current = prior * (width**2 / (width**2 + residual**2)).square()
        updated = align_points(source, target, current, with_scale=with_scale)
        settled = width <= goal * 1.01 and bool(
            (updated.apply(source) - transform.apply(source)).abs().max() <= floor
        )
        transform = updated
        if settled:
            break
    return transform, current


def align_cameras(source: Float[Tensor, "K 4 4"], target: Float[Tensor, "K 4 4"], *, with_scale: bool = True) -> Sim3:
    """Find the transform that brings cameras (`world_to_camera`) onto cameras, using orientations and positions.

    The orientations alone fix the rotation, so two cameras apart suffice, in any arrangement.

    Raises:
        DegenerateGeometryError: if a scale is asked for and all cameras stand at one point.
    """
    relative = target[:, :3, :3].transpose(-1, -2) @ source[:, :3, :3]
    rotation = mean_rotation(relative)
    source_centers = -(source[:, :3, :3].transpose(-1, -2) @ source[:, :3, 3:])[..., 0]
    target_centers = -(target[:, :3, :3].transpose(-1, -2) @ target[:, :3, 3:])[..., 0]
    turned = source_centers @ rotation.transpose(-1, -2)
    scale = torch.ones((), dtype=source.dtype, device=source.device)
    if with_scale:
        spread_source = turned - turned.mean(0)
        spread_target = target_centers - target_centers.mean(0)
        tiny = 64 * torch.finfo(source.dtype).eps * (1 + turned.norm(dim=-1).max())
        if spread_source.norm(dim=-1).max() <= tiny or spread_target.norm(dim=-1).max() <= tiny:
            raise DegenerateGeometryError("all cameras stand at one point, so they give no scale", "use two views")
        # Ratio of the spreads: symmetric in source and target, and positive whatever the noise.
        scale = spread_target.norm() / spread_source.norm()
    translation = (target_centers - scale * turned).mean(0)
    return Sim3(scale=scale, rotation=rotation, translation=translation)
