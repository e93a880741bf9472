"""Robust averages: of points, of rotations, of cameras, and of the maps between two sets of cameras."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.registration import DegenerateGeometryError
from page4d.geometry.rigid import camera_centers, rigid
from page4d.geometry.rotation import matrix_from_rotation_vector, mean_rotation, rotation_vector_from_matrix
from page4d.geometry.similarity import Sim3

_ITERATIONS = 100
_NEAR = 1e-6
"""Share of the median distance below which a sample pulls no harder: a median may fall onto a sample."""

_SETTLED = 1e-9
_ROUNDING = 1e-15
"""A step ends an iteration if it is shorter than this share of the spread, or than that of the value itself."""


def geometric_median(points: Float[Tensor, "*batch K D"]) -> Float[Tensor, "*batch D"]:
    """Return the point with the smallest sum of distances to K points; less than half of them may lie anywhere.

    Source: Weiszfeld (1937).
    """
    center = points.quantile(0.5, dim=-2)
    for _ in range(_ITERATIONS):
        offset = points - center[..., None, :]
        pull, spread = _pull(offset)
        step = (pull * offset).sum(-2) / pull.sum(-2)
        center = center + step
        if bool((step.norm(dim=-1) <= _SETTLED * spread + _ROUNDING * center.norm(dim=-1)).all()):
            break
    return center


def median_rotation(matrices: Float[Tensor, "*batch K 3 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation with the smallest sum of angles to K rotations: the geometric median on SO(3).

    Source: Hartley, Aftab & Trumpf, "L1 rotation averaging using the Weiszfeld algorithm", CVPR 2011, algorithm 1.
    """
    center = mean_rotation(matrices)
    for _ in range(_ITERATIONS):
        offset = rotation_vector_from_matrix(center.transpose(-1, -2)[..., None, :, :] @ matrices)
        pull, spread = _pull(offset)
        step = (pull * offset).sum(-2) / pull.sum(-2)
        center = center @ matrix_from_rotation_vector(step)
        if bool((step.norm(dim=-1) <= _SETTLED * spread + _ROUNDING).all()):
            break
    return center


def _pull(offset: Float[Tensor, "*batch K D"]) -> tuple[Float[Tensor, "*batch K 1"], Float[Tensor, "*batch"]]:
    """Return the weight of every sample at a distance, and the median distance."""
    distance = offset.norm(dim=-1)
    spread = distance.median(dim=-1).values
    tiny = torch.finfo(offset.dtype).tiny
    floor = (_NEAR * spread).clamp_min(tiny**0.5)
    return 1 / distance.maximum(floor[..., None])[..., None], spread


def median_camera(cameras: Cameras) -> Cameras:
    """Return one camera for each view [V] of K samples of each [K, V].

    Orientations and centres are geometric medians, intrinsics medians entry by entry.
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
    """Find the transform that brings cameras (`world_to_camera`) onto cameras although some may be wrong.

    The rotation is the median of what the orientations say, the scale that of the distances between cameras, and the
    translation that of what then remains. A given `scale` is kept.

    Raises:
        DegenerateGeometryError: if the scale is asked for and all cameras stand at one point.
    """
    rotation = median_rotation(target[:, :3, :3].transpose(-1, -2) @ source[:, :3, :3])
    turned = camera_centers(source) @ rotation.transpose(-1, -2)
    centers = camera_centers(target)
    if scale is None:
        scale = baseline_ratio(turned, centers)
        if scale is None:
            raise DegenerateGeometryError("all cameras stand at one point, so they give no scale", "use two views")
    translation = geometric_median(centers - scale * turned)
    return Sim3(scale=scale, rotation=rotation, translation=translation)


def baseline_ratio(source: Float[Tensor, "K 3"], target: Float[Tensor, "K 3"]) -> Tensor | None:
    """Return the ratio of the distances between K centres, longer ones counting more; None where there are none.

    Every camera names the median over the others, and the median of those is taken: less than half of the cameras
    may be wrong, although each of them spoils a distance of every other.

    Source: Siegel, "Robust regression using repeated medians", Biometrika 1982.
    """
    before, after = ((centers[:, None] - centers).norm(dim=-1) for centers in (source, target))
    tiny = 64 * torch.finfo(source.dtype).eps
    known = (before > tiny * (1 + source.norm(dim=-1).amax())) & (after > tiny * (1 + target.norm(dim=-1).amax()))
    if not bool(known.any()):
        return None
    ratio = after.log() - before.log()
    # A camera far off in one of the worlds must not gain weight by that.
    length = torch.minimum(before / before[known].median(), after / after[known].median())
    rows = [place for place in range(len(source)) if bool(known[place].any())]
    said = [weighted_median(ratio[row][known[row]], length[row][known[row]]) for row in rows]
    return torch.stack(said).quantile(0.5).exp()


def weighted_median(values: Float[Tensor, " K"], weights: Float[Tensor, " K"]) -> Tensor:
    """Return the value at which half of the weight lies on either side; between two where they share it evenly."""
    ordered, order = values.sort()
    passed = weights[order].cumsum(0)
    half = passed[-1] / 2
    lower = int((passed < half).sum())
    upper = int((passed <= half).sum())
    return (ordered[lower] + ordered[min(upper, len(ordered) - 1)]) / 2
