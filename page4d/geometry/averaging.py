"""Robust averages of points, rotations and cameras, and robust alignment of two sets of cameras."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.registration import coincident_centers_error
from page4d.geometry.rigid import camera_centers, rigid
from page4d.geometry.rotation import matrix_from_rotation_vector, mean_rotation, rotation_vector_from_matrix
from page4d.geometry.similarity import Sim3

_MAX_ITERATIONS = 100
_MIN_DISTANCE = 1e-6
"""Lower bound on distances in Weiszfeld weights, relative to the median distance."""

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
        step = (weight * offset).sum(-2) / weight.sum(-2)
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
        step = (weight * offset).sum(-2) / weight.sum(-2)
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
    rows = [row for row in range(len(source)) if bool(known[row].any())]
    medians = [weighted_median(ratio[row][known[row]], length[row][known[row]]) for row in rows]
    return torch.stack(medians).quantile(0.5).exp()


def weighted_median(values: Float[Tensor, " K"], weights: Float[Tensor, " K"]) -> Tensor:
    """Return the weighted median: the mean of the two middle values if the weight splits evenly between them."""
    ordered, order = values.sort()
    cumulative = weights[order].cumsum(0)
    half = cumulative[-1] / 2
    lower = int((cumulative < half).sum())
    upper = int((cumulative <= half).sum())
    return (ordered[lower] + ordered[min(upper, len(ordered) - 1)]) / 2
