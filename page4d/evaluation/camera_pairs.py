"""Errors of relative cameras over all unordered pairs, which need no alignment: RRA, RTA and the area under them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.rigid import invert_rigid
from page4d.geometry.rotation import rotation_angle

THRESHOLDS_DEG = (3, 5, 15, 30)
"""Where accuracies and areas are read off."""

_ROUNDING = 64


@dataclass(frozen=True, kw_only=True)
class PairErrors:
    """Errors in degrees of the P = K (K - 1) / 2 pairs of K cameras, first camera before second.

    `direction_deg` compares the directions of the relative translations, without their sense (at most 90 degrees), as
    published; `signed_direction_deg` with it (at most 180). Both mean something only where `has_baseline`: the two
    true cameras stand apart. Where the predicted ones do not, they are at their worst.
    """

    rotation_deg: Float[Tensor, "*batch P"]
    direction_deg: Float[Tensor, "*batch P"]
    signed_direction_deg: Float[Tensor, "*batch P"]
    has_baseline: Bool[Tensor, "*batch P"]


def pair_errors(predicted: Float[Tensor, "*batch K 4 4"], true: Float[Tensor, "*batch K 4 4"]) -> PairErrors:
    """Compare T_i T_j^-1 of all pairs i < j of `world_to_camera`, in double precision.

    Raises:
        ShapeError: if there are not as many predicted as true cameras.

    Source: PAGE-4D and VGGT `evaluation/test_co3d.py`.
    """
    if predicted.shape != true.shape:
        raise ShapeError(
            f"cameras {tuple(predicted.shape)} against {tuple(true.shape)}",
            "give both for the same instants and views",
        )
    first, second = torch.triu_indices(true.shape[-3], true.shape[-3], offset=1, device=true.device)

    def relative(world_to_camera: Tensor) -> Tensor:
        cameras = world_to_camera.double()
        return cameras[..., first, :, :] @ invert_rigid(cameras)[..., second, :, :]

    guess, goal = relative(predicted), relative(true)
    rotation = rotation_angle(guess[..., :3, :3], goal[..., :3, :3]).rad2deg()
    signed = _angle_between(guess[..., :3, 3], goal[..., :3, 3]).rad2deg()
    apart_guess, apart_goal = (_stands_apart(cameras, first, second) for cameras in (predicted, true))
    return PairErrors(
        rotation_deg=rotation,
        direction_deg=torch.where(apart_guess, torch.minimum(signed, 180 - signed), 90.0),
        signed_direction_deg=torch.where(apart_guess, signed, 180.0),
        has_baseline=apart_goal,
    )


def fraction_below(
    errors_deg: Float[Tensor, "*batch P"], threshold_deg: float, counted: Bool[Tensor, "*batch P"]
) -> Float[Tensor, "*batch"]:
    """Return the fraction of the counted pairs below a threshold (RRA and RTA); NaN if none is counted."""
    return ((errors_deg < threshold_deg) & counted).sum(-1).double() / counted.sum(-1)


def area_under_curve(
    errors_deg: Float[Tensor, "*batch P"], threshold_deg: int, counted: Bool[Tensor, "*batch P"]
) -> Float[Tensor, "*batch"]:
    """Return the mean over 1, 2, ... `threshold_deg` of the fraction of counted pairs below; NaN if none is counted.

    An error of exactly the last threshold counts as below it, as in the histogram of the public code.

    Source: PAGE-4D and VGGT `evaluation/test_co3d.py`, `calculate_auc_np`.
    """
    steps = [fraction_below(errors_deg, step, counted) for step in range(1, threshold_deg)]
    last = ((errors_deg <= threshold_deg) & counted).sum(-1).double() / counted.sum(-1)
    return torch.stack([*steps, last]).mean(0)


def _angle_between(first: Float[Tensor, "*batch 3"], second: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
    """Return the angle in radians, accurate near 0 and pi."""
    angle: Tensor = torch.atan2(torch.linalg.cross(first, second).norm(dim=-1), (first * second).sum(-1))
    return angle


def _stands_apart(cameras: Float[Tensor, "*batch K 4 4"], first: Tensor, second: Tensor) -> Bool[Tensor, "*batch P"]:
    """Say of which pairs the centres differ by more than the rounding of the cameras' own precision."""
    centers = invert_rigid(cameras.double())[..., :3, 3]
    size = torch.maximum(centers.norm(dim=-1), cameras[..., :3, 3].double().norm(dim=-1)).amax(-1, keepdim=True)
    distance = (centers[..., first, :] - centers[..., second, :]).norm(dim=-1)
    apart: Tensor = distance > _ROUNDING * torch.finfo(cameras.dtype).eps * size
    return apart
