"""Relative pose errors over all unordered camera pairs, which need no alignment: RRA, RTA and AUC."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.rigid import invert_rigid
from page4d.geometry.rotation import rotation_angle

THRESHOLDS_DEG = (3, 5, 15, 30)
"""Thresholds at which RRA, RTA and AUC are reported."""

_ROUNDING = 64


@dataclass(frozen=True, kw_only=True)
class PairErrors:
    """Errors in degrees of the P = K (K - 1) / 2 pairs of K cameras, first camera before second.

    `direction_deg` is the angle between the relative translations up to sign (at most 90 degrees), as published;
    `signed_direction_deg` takes the sign into account (at most 180). Both are defined where `has_baseline` is True,
    that is, where the true camera centres differ; where the predicted ones coincide, they take their maximum.
    """

    rotation_deg: Float[Tensor, "*batch P"]
    direction_deg: Float[Tensor, "*batch P"]
    signed_direction_deg: Float[Tensor, "*batch P"]
    has_baseline: Bool[Tensor, "*batch P"]


def pair_errors(predicted: Float[Tensor, "*batch K 4 4"], true: Float[Tensor, "*batch K 4 4"]) -> PairErrors:
    """Compare T_i T_j^-1 of all pairs i < j of `world_to_camera`, in double precision.

    Raises:
        ShapeError: if the numbers of predicted and true cameras differ.

    Source: PAGE-4D and VGGT `evaluation/test_co3d.py`.
    """
    if predicted.shape != true.shape:
        raise ShapeError(
            f"cameras {tuple(predicted.shape)} against {tuple(true.shape)}",
            "pass both for the same instants and views",
        )
    first, second = torch.triu_indices(true.shape[-3], true.shape[-3], offset=1, device=true.device)

    def relative(world_to_camera: Tensor) -> Tensor:
        cameras = world_to_camera.double()
        return cameras[..., first, :, :] @ invert_rigid(cameras)[..., second, :, :]

    estimate, reference = relative(predicted), relative(true)
    rotation = rotation_angle(estimate[..., :3, :3], reference[..., :3, :3]).rad2deg()
    signed = _angle_between(estimate[..., :3, 3], reference[..., :3, 3]).rad2deg()
    distinct = _has_baseline(predicted, first, second)
    return PairErrors(
        rotation_deg=rotation,
        direction_deg=torch.where(distinct, torch.minimum(signed, 180 - signed), 90.0),
        signed_direction_deg=torch.where(distinct, signed, 180.0),
        has_baseline=_has_baseline(true, first, second),
    )


def fraction_below(
    errors_deg: Float[Tensor, "*batch P"], threshold_deg: float, counted: Bool[Tensor, "*batch P"]
) -> Float[Tensor, "*batch"]:
    """Return the fraction of counted pairs below a threshold (RRA or RTA); NaN without counted pairs."""
    return ((errors_deg < threshold_deg) & counted).sum(-1).double() / counted.sum(-1)


def area_under_curve(
    errors_deg: Float[Tensor, "*batch P"], threshold_deg: int, counted: Bool[Tensor, "*batch P"]
) -> Float[Tensor, "*batch"]:
    """Return the mean fraction of counted pairs below 1, 2, ... `threshold_deg` degrees (AUC); NaN without pairs.

    An error equal to the last threshold counts as below it, as in the histogram of the public code.

    Source: PAGE-4D and VGGT `evaluation/test_co3d.py`, `calculate_auc_np`.
    """
    steps = [fraction_below(errors_deg, step, counted) for step in range(1, threshold_deg)]
    last = ((errors_deg <= threshold_deg) & counted).sum(-1).double() / counted.sum(-1)
    return torch.stack([*steps, last]).mean(0)


def _angle_between(first: Float[Tensor, "*batch 3"], second: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
    """Return the angle in radians, accurate near 0 and pi."""
    angle: Tensor = torch.atan2(torch.linalg.cross(first, second).norm(dim=-1), (first * second).sum(-1))
    return angle


def _has_baseline(cameras: Float[Tensor, "*batch K 4 4"], first: Tensor, second: Tensor) -> Bool[Tensor, "*batch P"]:
    """Return the pairs whose centres differ by more than the rounding errors of the cameras' precision."""
    centers = invert_rigid(cameras.double())[..., :3, 3]
    size = torch.maximum(centers.norm(dim=-1), cameras[..., :3, 3].double().norm(dim=-1)).amax(-1, keepdim=True)
    distance = (centers[..., first, :] - centers[..., second, :]).norm(dim=-1)
    distinct: Tensor = distance > _ROUNDING * torch.finfo(cameras.dtype).eps * size
    return distinct
