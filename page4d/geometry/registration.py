"""Registration of points and cameras by a similarity or rigid transform."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import InputError
from page4d.geometry.rigid import camera_centers
from page4d.geometry.rotation import mean_rotation
from page4d.geometry.similarity import Sim3


class DegenerateGeometryError(InputError):
    """Points that do not determine the transform: too few, coincident or collinear."""


def coincident_centers_error() -> DegenerateGeometryError:
    """Return the error for cameras at one point, whose scale is undetermined."""
    return DegenerateGeometryError(
        "all camera centres coincide, so the scale is undetermined", "use views from at least two positions"
    )


def align_points(
    source: Float[Tensor, "*batch K 3"],
    target: Float[Tensor, "*batch K 3"],
    weights: Float[Tensor, "*batch K"] | None = None,
    *,
    with_scale: bool = True,
) -> Sim3:
    """Return the weighted least-squares transform from `source` to `target`.

    Raises:
        DegenerateGeometryError: if the points with positive weight are collinear or coincide.

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
    # The second singular value is the spread across the principal axis: without it the rotation about it is free.
    tiny = 64 * torch.finfo(source.dtype).eps
    if bool((spectrum[..., 1] <= tiny * spectrum[..., 0].clamp_min(torch.finfo(source.dtype).tiny)).any()):
        raise DegenerateGeometryError(
            "the points to align are collinear or coincide", "use at least three points that are not collinear"
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
    """Align points robustly; return the transform and the final weight of every point.

    Iteratively reweighted least squares with the Geman-McClure kernel. The kernel width starts at the largest
    residual and shrinks towards three robust standard deviations (graduated non-convexity): no initial guess is
    needed, and up to about half of the points may be outliers.

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
        # The median of the norm of three Gaussian components (a chi(3) variable) is 1.538 sigma.
        goal = (3 * used.median() / 1.538).clamp_min(floor)
        width = used.max().clamp_min(goal) if width is None else (width / 1.4).clamp_min(goal)
        current = prior * (width**2 / (width**2 + residual**2)).square()
        updated = align_points(source, target, current, with_scale=with_scale)
        change = (updated.apply(source) - transform.apply(source)).abs().max()
        transform = updated
        if width <= goal * 1.01 and bool(change <= floor):
            break
    return transform, current


def align_cameras(source: Float[Tensor, "K 4 4"], target: Float[Tensor, "K 4 4"], *, with_scale: bool = True) -> Sim3:
    """Align two sets of cameras (`world_to_camera`) by their orientations and centres.

    The orientations alone determine the rotation, so two cameras with distinct centres suffice.

    Raises:
        DegenerateGeometryError: if `with_scale` and all camera centres coincide.
    """
    relative = target[:, :3, :3].transpose(-1, -2) @ source[:, :3, :3]
    rotation = mean_rotation(relative)
    target_centers = camera_centers(target)
    turned = camera_centers(source) @ rotation.transpose(-1, -2)
    scale = torch.ones((), dtype=source.dtype, device=source.device)
    if with_scale:
        spread_source = turned - turned.mean(0)
        spread_target = target_centers - target_centers.mean(0)
        tiny = 64 * torch.finfo(source.dtype).eps * (1 + turned.norm(dim=-1).max())
        if spread_source.norm(dim=-1).max() <= tiny or spread_target.norm(dim=-1).max() <= tiny:
            raise coincident_centers_error()
        # The ratio of the spreads is symmetric in source and target, and positive for any noise.
        scale = spread_target.norm() / spread_source.norm()
    translation = (target_centers - scale * turned).mean(0)
    return Sim3(scale=scale, rotation=rotation, translation=translation)
