"""Residuals of predicted cameras from calibrated ones, and the camera that disagrees with all others."""

from collections.abc import Sequence
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.alignment import DegenerateGeometryError, align_cameras_robust
from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.transforms import Sim3, camera_centers
from page4d.output.record import AgreementRecord, CameraResidualRecord, ChunkRecord, ResidualsRecord
from page4d.scene.records import Scene

_MAX_INSTANTS = 8
"""Maximum number of instants of a chunk that are compared, spread evenly over it."""

_MAX_CANDIDATES = 4
"""Views that are left out in turn: those with the largest residuals."""

_MIN_FAULT_DEG = 2.0
_MIN_FAULT_SHARE = 0.05
_OUTLIER_FACTOR = 3.0
_AGREEMENT_DEG = 10.0
_AGREEMENT_SHARE = 0.2
"""A camera is at fault if its rotation or its distance (as a share of the rig) exceeds the first two numbers and the
third times the largest residual of the others, which must agree to within the last two."""


def compared_instants(num_times: int) -> slice:
    """Return the instants of a chunk whose cameras are compared."""
    return slice(None, None, -(-num_times // _MAX_INSTANTS))


def compare_rigs(found: Cameras, known: Cameras, view_names: Sequence[str], shown: Sequence[int]) -> ResidualsRecord:
    """Compare predicted cameras [T, V] with calibrated ones after a robust similarity of the views that are shown."""
    few = compared_instants(len(found.intrinsics))
    poses = [cameras.world_to_camera[few].double() for cameras in (found, known)]
    size, views = _extent(poses[1]), list(shown)
    rotation, distance = _residuals(poses[0], poses[1], views)
    place = _at_fault(poses[0][:, views], poses[1][:, views], rotation[views], distance[views], size)
    fault = None if place is None else views[place]
    if fault is not None:  # the alignment must not depend on the camera at fault
        rotation, distance = _residuals(poses[0], poses[1], [view for view in views if view != fault])
    focal = [  # untrained networks may predict negative focal lengths
        (cameras.intrinsics[..., 0, 0] * cameras.intrinsics[..., 1, 1]).double().abs().sqrt()
        for cameras in (found, known)
    ]
    return ResidualsRecord(
        rotation_deg=rotation.tolist(),
        distance=distance.tolist(),
        focal_percent=(100 * (focal[0] / focal[1] - 1)).quantile(0.5, dim=0).tolist(),
        at_fault=None if fault is None else view_names[fault],
    )


def _residuals(
    found: Float[Tensor, "T V 4 4"], known: Float[Tensor, "T V 4 4"], used: list[int]
) -> tuple[Float[Tensor, " V"], Float[Tensor, " V"]]:
    """Return median angles in degrees and distances after alignment of the views `used`."""
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
    """Return the only view that is an outlier when it is left out of the alignment."""
    number = found.shape[1]
    if number < 3 or size == 0:
        return None
    largest = (rotation / rotation.amax().clamp_min(1e-12)).maximum(distance / distance.amax().clamp_min(1e-12))
    faulty = []
    for view in largest.topk(min(_MAX_CANDIDATES, number)).indices.tolist():
        others = [other for other in range(number) if other != view]
        angle, apart = _residuals(found, known, others)
        worst_angle, worst_apart = float(angle[others].max()), float(apart[others].max())
        agreed = worst_angle <= _AGREEMENT_DEG and worst_apart <= _AGREEMENT_SHARE * size
        rotated = angle[view] > max(_MIN_FAULT_DEG, _OUTLIER_FACTOR * worst_angle)
        displaced = apart[view] > max(_MIN_FAULT_SHARE * size, _OUTLIER_FACTOR * worst_apart)
        if agreed and bool(rotated | displaced):
            faulty.append(view)
    return faulty[0] if len(faulty) == 1 else None


def summarize_residuals(scene: Scene, chunks: Sequence[ChunkRecord]) -> AgreementRecord | None:
    """Return the median residuals over all chunks; None if none were measured."""
    compared = [chunk.calibration for chunk in chunks if chunk.calibration is not None]
    if not compared:
        return None
    poses = [view.camera.world_to_camera.reshape(-1, 4, 4)[0] for view in scene.views if view.camera is not None]
    size = _extent(torch.stack(poses))  # at the first instant
    cameras = []
    for view, name in enumerate(scene.view_names):
        distance = median(residuals.distance[view] for residuals in compared)
        cameras.append(
            CameraResidualRecord(
                view=name,
                rotation_deg=median(residuals.rotation_deg[view] for residuals in compared),
                distance=distance,
                share=distance / size if size else None,
                focal_percent=median(residuals.focal_percent[view] for residuals in compared),
            )
        )
    named = [residuals.at_fault for residuals in compared]
    return AgreementRecord(
        cameras=cameras, at_fault=next((name for name in named if 2 * named.count(name) > len(named)), None)
    )


def _extent(poses: Float[Tensor, "*batch 4 4"]) -> float:
    """Return the largest distance between two cameras."""
    centers = camera_centers(poses).reshape(-1, 3)
    return float((centers[:, None] - centers).norm(dim=-1).max())
