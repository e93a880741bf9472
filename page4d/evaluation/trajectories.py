"""Cameras against truth after one alignment of the whole rig: trajectory errors, baselines and focal lengths."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.registration import DegenerateGeometryError, align_cameras, align_points
from page4d.geometry.rigid import camera_centers, invert_rigid
from page4d.geometry.rotation import mean_rotation, rotation_angle
from page4d.geometry.similarity import Sim3

FLATTEST = 1e-3
"""Spread across the main direction, over that along it, below which camera centres count as standing on one line."""


class RigAlignment(StrEnum):
    """How the predicted world was brought onto the true one."""

    CENTERS = "centers"
    ORIENTATIONS = "orientations"
    ORIENTATIONS_WITHOUT_SCALE = "orientations-without-scale"

    @property
    def definition(self) -> str:
        """What is fitted, in a few words."""
        return _DEFINITIONS[self]


_DEFINITIONS = {
    RigAlignment.CENTERS: "Sim(3) of all camera centres (Umeyama, as evo)",
    RigAlignment.ORIENTATIONS: "mean rotation of the cameras, scale from the spread of their centres",
    RigAlignment.ORIENTATIONS_WITHOUT_SCALE: "mean rotation of the cameras, scale from the depth maps",
}


@dataclass(frozen=True, kw_only=True)
class AlignedRig:
    """The transform from the predicted to the true world, how it was found, and why not as published, if so."""

    transform: Sim3
    method: RigAlignment
    reason: str = ""


def align_rig(
    predicted: Float[Tensor, "K 4 4"], true: Float[Tensor, "K 4 4"], depth_scale: float | None = None
) -> AlignedRig:
    """Align all K cameras (`world_to_camera`) of a rig at once.

    Where the centres on either side do not determine a rotation (fewer than three places, or all on a line) the
    orientations do; where they do not determine a scale either, it is `depth_scale` (default 1).
    """
    reason = _flaw("true", camera_centers(true)) or _flaw("predicted", camera_centers(predicted))
    if not reason:
        transform = align_points(camera_centers(predicted), camera_centers(true))
        return AlignedRig(transform=transform, method=RigAlignment.CENTERS)
    try:
        transform = align_cameras(predicted, true)
    except DegenerateGeometryError:
        return AlignedRig(
            transform=_align_without_scale(predicted, true, 1.0 if depth_scale is None else depth_scale),
            method=RigAlignment.ORIENTATIONS_WITHOUT_SCALE,
            reason=reason,
        )
    return AlignedRig(transform=transform, method=RigAlignment.ORIENTATIONS, reason=reason)


def _flaw(whose: str, centers: Float[Tensor, "K 3"]) -> str:
    """Say why centres do not determine a rotation; nothing if they do."""
    spread = torch.linalg.svdvals(centers - centers.mean(0))
    rounding = 64 * torch.finfo(centers.dtype).eps * float(centers.norm(dim=-1).max())
    if len(centers) < 2 or float(spread[0]) <= rounding * len(centers) ** 0.5:
        return f"all {whose} cameras stand at one point"
    if len(centers) < 3 or float(spread[1]) <= FLATTEST * float(spread[0]):
        return f"the {whose} cameras stand on one line"
    return ""


def _align_without_scale(predicted: Float[Tensor, "K 4 4"], true: Float[Tensor, "K 4 4"], scale: float) -> Sim3:
    rotation = mean_rotation(true[:, :3, :3].transpose(-1, -2) @ predicted[:, :3, :3])
    factor = torch.tensor(scale, dtype=true.dtype)
    translation = (camera_centers(true) - factor * camera_centers(predicted) @ rotation.T).mean(0)
    return Sim3(scale=factor, rotation=rotation, translation=translation)


def absolute_errors(
    aligned: Float[Tensor, "*batch 4 4"], true: Float[Tensor, "*batch 4 4"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return how far cameras are from their true places, and in degrees from their true orientations.

    The root mean squares are evo's APE of the parts `translation_part` and `rotation_angle_deg`.
    """
    distance = (camera_centers(aligned) - camera_centers(true)).norm(dim=-1)
    return distance, rotation_angle(aligned[..., :3, :3], true[..., :3, :3]).rad2deg()


def relative_errors(
    aligned: Float[Tensor, "*batch T 4 4"], true: Float[Tensor, "*batch T 4 4"]
) -> tuple[Float[Tensor, "*batch steps"], Float[Tensor, "*batch steps"]]:
    """Compare the motion from each instant to the next: length of the wrong motion, and its angle in degrees.

    The root mean squares are evo's RPE with `delta=1` frame.
    """

    def motion(world_to_camera: Tensor) -> Tensor:
        return world_to_camera[..., :-1, :, :] @ invert_rigid(world_to_camera[..., 1:, :, :])

    wrong = invert_rigid(motion(true)) @ motion(aligned)
    return wrong[..., :3, 3].norm(dim=-1), rotation_angle(wrong[..., :3, :3]).rad2deg()


def is_static(true: Float[Tensor, "*batch T 4 4"]) -> bool:
    """Say whether no camera ever moves or turns."""
    return bool((true == true[..., :1, :, :]).all())


def root_mean_square(errors: Tensor) -> float:
    """Return the root of the mean square; NaN of nothing."""
    return float(errors.square().mean().sqrt())


def baseline_ratios(predicted: Float[Tensor, "K 4 4"], true: Float[Tensor, "K 4 4"]) -> Float[Tensor, " pairs"]:
    """Return predicted over true distance of all pairs of cameras that truly stand apart; free of any alignment."""
    first, second = torch.triu_indices(len(true), len(true), offset=1)

    def distance(world_to_camera: Tensor) -> Tensor:
        centers = camera_centers(world_to_camera)
        length: Tensor = (centers[first] - centers[second]).norm(dim=-1)
        return length

    goal = distance(true)
    apart = goal > 64 * torch.finfo(true.dtype).eps * camera_centers(true).norm(dim=-1).max()
    ratios: Tensor = distance(predicted)[apart] / goal[apart]
    return ratios


def focal_errors(
    predicted: Float[Tensor, "*batch 3 3"], true: Float[Tensor, "*batch 3 3"]
) -> Float[Tensor, "*batch"]:
    """Return the relative error of the focal lengths, the mean of both axes; intrinsics are of one image size."""
    ratio = predicted.diagonal(dim1=-2, dim2=-1)[..., :2] / true.diagonal(dim1=-2, dim2=-1)[..., :2]
    error: Tensor = (ratio - 1).abs().mean(-1)
    return error
