"""Registration of points and cameras by similarity or rigid transforms, and robust averages of them.

The scale of depth maps in a known rig follows from the agreement of depth between views, without predicted cameras.
"""

from collections.abc import Sequence
from math import log

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import InputError
from page4d.geometry.camera import MIN_DEPTH, Cameras, normalize_pixels, pixel_grid
from page4d.geometry.rotation import (
    matrix_from_rotation_vector,
    mean_rotation,
    rotation_angle,
    rotation_vector_from_matrix,
)
from page4d.geometry.statistics import central_weighted_median
from page4d.geometry.transforms import Sim3, camera_centers, rigid
from page4d.geometry.warp import ray_warp, sample


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


_MAX_ITERATIONS = 100
_MIN_DISTANCE = 1e-6
"""Lower bound on distances in Weiszfeld weights, relative to the median distance."""

_RELAXATION = 1.5
"""Factor on steps, which converge for factors up to 2: most iterations take half as many.

Source: Ostresh, "On the convergence of a class of iterative methods for solving the Weber location problem", 1978.
"""

_SPREAD_TOLERANCE = 1e-9
_VALUE_TOLERANCE = 1e-15
"""Step lengths at convergence, relative to the spread of the samples and to the magnitude of the estimate."""


def geometric_median(points: Float[Tensor, "*batch K D"]) -> Float[Tensor, "*batch D"]:
    """Return the point with the smallest sum of distances to K points; its breakdown point is 50 % of outliers.

    Source: Weiszfeld (1937).
    """
    center = points.quantile(0.5, dim=-2)
    for _ in range(_MAX_ITERATIONS):
        offset = points - center[..., None, :]
        weight, spread = _weiszfeld_weights(offset)
        step = _RELAXATION * (weight * offset).sum(-2) / weight.sum(-2)
        center = center + step
        if bool((step.norm(dim=-1) <= _SPREAD_TOLERANCE * spread + _VALUE_TOLERANCE * center.norm(dim=-1)).all()):
            break
    return center


def median_rotation(matrices: Float[Tensor, "*batch K 3 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation with the smallest sum of angles to K rotations: the geometric median on SO(3).

    Source: Hartley, Aftab & Trumpf, "L1 rotation averaging using the Weiszfeld algorithm", CVPR 2011, algorithm 1.
    """
    center = mean_rotation(matrices)
    for _ in range(_MAX_ITERATIONS):
        offset = rotation_vector_from_matrix(center.transpose(-1, -2)[..., None, :, :] @ matrices)
        weight, spread = _weiszfeld_weights(offset)
        step = _RELAXATION * (weight * offset).sum(-2) / weight.sum(-2)
        center = center @ matrix_from_rotation_vector(step)
        if bool((step.norm(dim=-1) <= _SPREAD_TOLERANCE * spread + _VALUE_TOLERANCE).all()):
            break
    return center


def _weiszfeld_weights(
    offset: Float[Tensor, "*batch K D"],
) -> tuple[Float[Tensor, "*batch K 1"], Float[Tensor, "*batch"]]:
    """Return the inverse distance of every sample, and the median distance."""
    distance = offset.norm(dim=-1)
    spread = distance.median(dim=-1).values
    tiny = torch.finfo(offset.dtype).tiny
    floor = (_MIN_DISTANCE * spread).clamp_min(tiny**0.5)
    return 1 / distance.maximum(floor[..., None])[..., None], spread


def median_camera(cameras: Cameras) -> Cameras:
    """Average K samples of each view: cameras [K, V] to [V].

    Orientations and centres are geometric medians, intrinsics element-wise medians.
    """
    samples = cameras.world_to_camera.transpose(0, 1)
    rotation = median_rotation(samples[..., :3, :3])
    center = geometric_median(camera_centers(samples))
    return Cameras(
        world_to_camera=rigid(rotation, -(rotation @ center[..., None])[..., 0]),
        intrinsics=cameras.intrinsics.quantile(0.5, dim=0),
        image_size=cameras.image_size,
    )


def align_cameras_robust(
    source: Float[Tensor, "K 4 4"], target: Float[Tensor, "K 4 4"], scale: Tensor | None = None
) -> Sim3:
    """Align two sets of cameras (`world_to_camera`) by a similarity transform, robust to outlier cameras.

    The rotation is the median of the relative rotations, the scale the median ratio of baselines, and the translation
    the geometric median of the remaining offsets. A given `scale` is not changed.

    Raises:
        DegenerateGeometryError: if the scale is not given and all camera centres coincide.
    """
    rotation = median_rotation(target[:, :3, :3].transpose(-1, -2) @ source[:, :3, :3])
    turned = camera_centers(source) @ rotation.transpose(-1, -2)
    centers = camera_centers(target)
    if scale is None:
        scale = baseline_ratio(turned, centers)
        if scale is None:
            raise coincident_centers_error()
    translation = geometric_median(centers - scale * turned)
    return Sim3(scale=scale, rotation=rotation, translation=translation)


def baseline_ratio(source: Float[Tensor, "K 3"], target: Float[Tensor, "K 3"]) -> Tensor | None:
    """Return the ratio of the distances between K centres as a repeated median; None if all centres coincide.

    Each camera contributes the median ratio over its distances to the other cameras, weighted by length. The median
    of these medians tolerates outliers in less than half of the cameras.

    Source: Siegel, "Robust regression using repeated medians", Biometrika 1982.
    """
    before, after = ((centers[:, None] - centers).norm(dim=-1) for centers in (source, target))
    tiny = 64 * torch.finfo(source.dtype).eps
    known = (before > tiny * (1 + source.norm(dim=-1).amax())) & (after > tiny * (1 + target.norm(dim=-1).amax()))
    if not bool(known.any()):
        return None
    ratio = after.log() - before.log()
    # The smaller of both lengths: a camera that is misplaced in one set does not gain weight.
    length = torch.minimum(before / before[known].median(), after / after[known].median())
    medians = central_weighted_median(ratio.where(known, 0.0).T, length.where(known, 0.0).T)
    return medians[known.any(dim=1)].quantile(0.5).exp()


MAX_DISAGREEMENT_DEG = 15.0
"""Median error of the relative rotations of predicted cameras above which their distances give no scale: networks
that place a rig are right to a few degrees; where they fail, on rigs around a subject, they are wrong by 40."""

_MIN_SHARE, _MAX_SHARE = 0.1, 10.0
"""Median depth in units of the largest distance between cameras: from close-ups to narrow rigs."""

_NUM_SCALES = 93
"""Candidates, each 5 % above the one before."""

_SIGMA = 0.1
"""Standard deviation of the log ratio of the depths of one surface point in two views."""

_MIN_PEAK = 1.25
"""Agreement at the best scale in units of its median over all candidates, below which depth determines no scale."""

_MIN_VISIBLE = 0.1
"""Added to the number of points that other views see, as a share of all that are compared: few points that agree do
not determine the scale. Without the division, scales at which more points are seen would be preferred: on
rings, depth with 10 % of noise then gets 0.76 of its scale in the median, otherwise 1.03."""

_PIXELS = 400
_INSTANTS = 4
"""Numbers of pixels per image and of instants that are compared."""


def disagreement_deg(found: Float[Tensor, "*T V 4 4"], known: Float[Tensor, "*T V 4 4"]) -> float:
    """Return the median error of the relative rotations of all pairs of views (`world_to_camera`); 0 of one view."""
    number = found.shape[-3]
    first, second = torch.triu_indices(number, number, offset=1, device=found.device)
    rotations = [poses[..., :3, :3].double() for poses in (found, known)]
    relative = [rotation[..., second, :, :] @ rotation[..., first, :, :].mT for rotation in rotations]
    return float(torch.rad2deg(rotation_angle(*relative)).median()) if number > 1 else 0.0


def confident(confidence: Float[Tensor, "T H W"]) -> Bool[Tensor, "T H W"]:
    """Return the mask of the more confident half of the pixels, all of them where confidence does not vary."""
    return confidence >= confidence.flatten().float().quantile(0.5)


def agreeing_scale(
    rig: Cameras, depth: Sequence[Float[Tensor, "T _ _"]], valid: Sequence[Bool[Tensor, "T _ _"]]
) -> Tensor | None:
    """Return the factor on depth at which most points of views lie on the surfaces that other views see.

    `rig` is [T, V]; depth has any unit, one for all views and instants. Scales are compared by the share of agreeing
    points among those that other views see; a scale at which they see few points is not preferred. None if the
    cameras coincide, there is no depth, or no scale stands out.
    """
    chosen = slice(None, None, -(-len(depth[0]) // _INSTANTS))
    cameras = rig[chosen].to(torch.float64)
    centers = cameras.centers
    size = float((centers[:, :, None] - centers[:, None]).norm(dim=-1).max())
    maps = [one[chosen].double() for one in depth]
    masks = [one[chosen] & (values > 0) for one, values in zip(valid, maps, strict=True)]
    known = torch.cat([values[mask] for values, mask in zip(maps, masks, strict=True)])
    if size == 0 or not known.numel():
        return None
    logs = torch.linspace(log(_MIN_SHARE), log(_MAX_SHARE), _NUM_SCALES, dtype=torch.float64, device=centers.device)
    scales = size / known.median() * logs.exp()
    agreeing, visible, compared = torch.zeros_like(scales), torch.zeros_like(scales), scales.new_zeros(())
    for view in range(len(maps)):
        for other in range(len(maps)):
            if other != view:
                of_pair = _agreement(cameras, maps, masks, (view, other), scales)
                agreeing, visible, compared = agreeing + of_pair[0], visible + of_pair[1], compared + of_pair[2]
    score = agreeing / (visible + _MIN_VISIBLE * compared)
    best = int(score.argmax())
    if best in (0, len(score) - 1) or not bool(score[best] > _MIN_PEAK * score.median()):
        return None
    before, peak, after = score[best - 1 : best + 2]
    curvature = 2 * peak - before - after
    step = 0.5 * (after - before) / curvature if curvature > 0 else torch.zeros_like(peak)
    result: Tensor = scales[best] * (step * (logs[1] - logs[0])).exp()
    return result


def _agreement(
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "T _ _"]],
    masks: Sequence[Bool[Tensor, "T _ _"]],
    pair: tuple[int, int],
    scales: Float[Tensor, " K"],
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"], Float[Tensor, ""]]:
    """Compare points of one view with the depth of another at every scale.

    Returns the sum of their agreement, the number of those that are visible, and that of all.
    """
    view, other = pair
    height, width = depth[view].shape[-2:]
    stride = max(1, round((height * width / _PIXELS) ** 0.5))
    rows, columns = (slice(stride // 2, None, stride),) * 2
    pixels = pixel_grid(height, width, dtype=torch.float64, device=scales.device)[rows, columns].flatten(0, 1)
    source, target = cameras[:, view], cameras[:, other]
    plane = normalize_pixels(pixels.expand(len(depth[view]), -1, 2), source.intrinsics)
    rays = torch.nn.functional.pad(plane, (0, 1), value=1.0)[:, :, None]
    own, mask = (maps[view][:, rows, columns].flatten(1) for maps in (depth, masks))
    warped = ray_warp(rays, source, target).at(own[..., None] * scales)
    size = depth[other].shape[-2:]
    maps = torch.stack([torch.where(masks[other], depth[other], 0.0), masks[other].double()], dim=1)
    found, whole = sample(maps, warped.pixels).unbind(1)
    visible = warped.visible(size) & mask[..., None] & (whole > 1 - 1e-6)
    ratio = warped.depth.clamp(min=MIN_DEPTH).log() - (found.clamp(min=MIN_DEPTH) * scales).log()
    agreeing = visible * torch.exp(-(ratio / _SIGMA).square() / 2)
    return agreeing.sum(dim=(0, 1)), visible.double().sum(dim=(0, 1)), mask.double().sum()
