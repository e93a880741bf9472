"""How well predicted cameras and a calibration agree, camera by camera, and which camera is at fault if one is."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.averaging import align_cameras_robust
from page4d.geometry.camera import Cameras
from page4d.geometry.registration import DegenerateGeometryError
from page4d.geometry.rigid import camera_centers
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.similarity import Sim3

_MOST_INSTANTS = 8
"""Instants of a chunk that are compared; they are spread evenly over it."""

_MOST_TRIED = 4
"""Views that are left out in turn: those with the largest residuals."""

_SMALLEST_FAULT_DEG = 2.0
_SMALLEST_FAULT_SHARE = 0.05
_OUTSTANDING = 3.0
_AGREED_DEG = 10.0
_AGREED_SHARE = 0.2
"""A camera is at fault if it is off by this many degrees or by this share of the rig, and this many times as far as
any other; the others must agree to within so many degrees and such a share for their word to count."""


@dataclass(frozen=True, kw_only=True)
class RigResiduals:
    """Medians over time of what is left between predicted and known cameras after the best similarity, for V views.

    `distance` is in units of the calibration, `focal_percent` how much longer the predicted focal length is.
    `at_fault` is the view that the others, aligned without it, do not agree with; it has no part in the similarity.
    """

    rotation_deg: tuple[float, ...]
    distance: tuple[float, ...]
    focal_percent: tuple[float, ...]
    at_fault: int | None


def compare_rigs(found: Cameras, known: Cameras) -> RigResiduals:
    """Compare predicted cameras [T, V] with calibrated ones."""
    chosen = torch.arange(len(found.intrinsics))[:: -(-len(found.intrinsics) // _MOST_INSTANTS)]
    poses = [cameras.world_to_camera[chosen].double() for cameras in (found, known)]
    centers = camera_centers(poses[1]).reshape(-1, 3)
    size = float((centers[:, None] - centers).norm(dim=-1).max())
    views = range(poses[0].shape[1])
    rotation, distance = _residuals(poses[0], poses[1], list(views))
    fault = _at_fault(poses[0], poses[1], rotation, distance, size)
    if fault is not None:
        # The others say where they are and where it is: it had no right to move them.
        rotation, distance = _residuals(poses[0], poses[1], [view for view in views if view != fault])
    focal = [
        (cameras.intrinsics[..., 0, 0] * cameras.intrinsics[..., 1, 1]).double().sqrt() for cameras in (found, known)
    ]
    return RigResiduals(
        rotation_deg=tuple(rotation.tolist()),
        distance=tuple(distance.tolist()),
        focal_percent=tuple((100 * (focal[0] / focal[1] - 1)).quantile(0.5, dim=0).tolist()),
        at_fault=fault,
    )


def _residuals(
    found: Float[Tensor, "T V 4 4"], known: Float[Tensor, "T V 4 4"], used: list[int]
) -> tuple[Float[Tensor, " V"], Float[Tensor, " V"]]:
    """Return the angles in degrees and the distances that are left after the views `used` were aligned."""
    source, target = (poses[:, used].reshape(-1, 4, 4) for poses in (found, known))
    try:
        transform: Sim3 = align_cameras_robust(source, target)
    except DegenerateGeometryError:
        transform = align_cameras_robust(source, target, torch.ones((), dtype=source.dtype))
    moved = transform.apply_to_cameras(found)
    angle = torch.rad2deg(rotation_angle(moved[..., :3, :3], known[..., :3, :3]))
    apart = (camera_centers(moved) - camera_centers(known)).norm(dim=-1)
    return angle.quantile(0.5, dim=0), apart.quantile(0.5, dim=0)


def _at_fault(
    found: Float[Tensor, "T V 4 4"],
    known: Float[Tensor, "T V 4 4"],
    rotation: Float[Tensor, " V"],
    distance: Float[Tensor, " V"],
    size: float,
) -> int | None:
    """Return the only view that stands out from all others when it is left out of their alignment."""
    number = found.shape[1]
    if number < 3 or size == 0:
        return None
    largest = (rotation / rotation.amax().clamp_min(1e-12)).maximum(distance / distance.amax().clamp_min(1e-12))
    faulty = []
    for view in largest.topk(min(_MOST_TRIED, number)).indices.tolist():
        others = [other for other in range(number) if other != view]
        angle, apart = _residuals(found, known, others)
        agreed = float(angle[others].max()) <= _AGREED_DEG and float(apart[others].max()) <= _AGREED_SHARE * size
        turned = angle[view] > max(_SMALLEST_FAULT_DEG, _OUTSTANDING * float(angle[others].max()))
        moved = apart[view] > max(_SMALLEST_FAULT_SHARE * size, _OUTSTANDING * float(apart[others].max()))
        if agreed and bool(turned | moved):
            faulty.append(view)
    return faulty[0] if len(faulty) == 1 else None
