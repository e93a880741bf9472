"""Camera errors: trajectories (ATE, RPE) after one alignment of all cameras, and pairs (RRA, RTA, AUC) without."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.evaluation.comparison import Comparison
from page4d.evaluation.record import CameraReport, PairReport, TrajectoryErrors
from page4d.evaluation.scores import finite, median
from page4d.geometry.alignment import DegenerateGeometryError, align_cameras, align_points
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.transforms import Sim3, camera_centers, invert_rigid, is_constant, scale_translations
from page4d.output.record import TransformRecord

MIN_FLATNESS = 1e-3
"""Ratio of the second to the first singular value below which camera centres count as collinear."""

THRESHOLDS_DEG = (3, 5, 15, 30)
"""Thresholds at which RRA, RTA and AUC are reported."""

_ROUNDING = 64


class RigAlignment(StrEnum):
    """Alignment of the predicted to the true world."""

    CENTERS = "centers"
    ORIENTATIONS = "orientations"
    ORIENTATIONS_WITHOUT_SCALE = "orientations-without-scale"


_DEFINITIONS = {  # of the estimators
    RigAlignment.CENTERS: "Sim(3) of all camera centres (Umeyama, as evo)",
    RigAlignment.ORIENTATIONS: "mean rotation of the cameras, scale from the spread of their centres",
    RigAlignment.ORIENTATIONS_WITHOUT_SCALE: "mean rotation of the cameras, scale from the depth maps",
}


@dataclass(frozen=True, kw_only=True)
class AlignedRig:
    """Transform from the predicted to the true world, its estimator, and the `reason` for a fallback, if any."""

    transform: Sim3
    method: RigAlignment
    reason: str = ""


def align_rig(
    predicted: Float[Tensor, "K 4 4"], true: Float[Tensor, "K 4 4"], depth_scale: float | None = None
) -> AlignedRig:
    """Align all K cameras (`world_to_camera`) of a rig at once.

    If the centres of either side do not determine a rotation (coincident or collinear), it is estimated from the
    orientations; if they do not determine a scale either, `depth_scale` (default 1) is used.
    """
    reason = _degeneracy("true", camera_centers(true)) or _degeneracy("predicted", camera_centers(predicted))
    if not reason:
        transform = align_points(camera_centers(predicted), camera_centers(true))
        return AlignedRig(transform=transform, method=RigAlignment.CENTERS)
    try:
        transform = align_cameras(predicted, true)
    except DegenerateGeometryError:
        scale = torch.tensor(1.0 if depth_scale is None else depth_scale, dtype=true.dtype)
        transform = align_cameras(scale_translations(predicted, scale), true, with_scale=False)
        return AlignedRig(
            transform=replace(transform, scale=scale), method=RigAlignment.ORIENTATIONS_WITHOUT_SCALE, reason=reason
        )
    return AlignedRig(transform=transform, method=RigAlignment.ORIENTATIONS, reason=reason)


def absolute_errors(
    aligned: Float[Tensor, "*batch 4 4"], true: Float[Tensor, "*batch 4 4"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return the absolute errors of camera positions, and of orientations in degrees.

    Their root mean squares are evo's APE for `translation_part` and `rotation_angle_deg`.
    """
    distance = (camera_centers(aligned) - camera_centers(true)).norm(dim=-1)
    return distance, rotation_angle(aligned[..., :3, :3], true[..., :3, :3]).rad2deg()


def relative_errors(
    aligned: Float[Tensor, "*batch T 4 4"], true: Float[Tensor, "*batch T 4 4"]
) -> tuple[Float[Tensor, "*batch steps"], Float[Tensor, "*batch steps"]]:
    """Return the errors of the motion between consecutive instants: translation, and rotation in degrees.

    Their root mean squares are evo's RPE with `delta=1` frame.
    """

    def motion(world_to_camera: Tensor) -> Tensor:
        return world_to_camera[..., :-1, :, :] @ invert_rigid(world_to_camera[..., 1:, :, :])

    error = invert_rigid(motion(true)) @ motion(aligned)
    return error[..., :3, 3].norm(dim=-1), rotation_angle(error[..., :3, :3]).rad2deg()


def root_mean_square(errors: Tensor) -> float:
    """Return the root mean square; NaN without values."""
    return float(errors.square().mean().sqrt())


def baseline_ratios(predicted: Float[Tensor, "K 4 4"], true: Float[Tensor, "K 4 4"]) -> Float[Tensor, " pairs"]:
    """Return predicted over true baselines of all pairs with distinct true centres, independent of any alignment."""
    first, second = torch.triu_indices(len(true), len(true), offset=1)

    def distance(world_to_camera: Tensor) -> Tensor:
        centers = camera_centers(world_to_camera)
        return (centers[first] - centers[second]).norm(dim=-1)

    baseline = distance(true)
    apart = baseline > _ROUNDING * torch.finfo(true.dtype).eps * camera_centers(true).norm(dim=-1).max()
    return distance(predicted)[apart] / baseline[apart]


def focal_errors(
    predicted: Float[Tensor, "*batch 3 3"], true: Float[Tensor, "*batch 3 3"]
) -> Float[Tensor, "*batch"]:
    """Return the relative error of the focal lengths, averaged over both axes; both refer to one image size."""
    ratio = predicted.diagonal(dim1=-2, dim2=-1)[..., :2] / true.diagonal(dim1=-2, dim2=-1)[..., :2]
    return (ratio - 1).abs().mean(-1)


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
    ours, theirs = estimate[..., :3, 3], reference[..., :3, 3]
    # Accurate near 0 and pi.
    signed = torch.atan2(torch.linalg.cross(ours, theirs).norm(dim=-1), (ours * theirs).sum(-1)).rad2deg()
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


def _degeneracy(side: str, centers: Float[Tensor, "K 3"]) -> str:
    """Return why centres do not determine a rotation; empty if they do."""
    spread = torch.linalg.svdvals(centers - centers.mean(0))
    rounding = _ROUNDING * torch.finfo(centers.dtype).eps * float(centers.norm(dim=-1).max())
    if len(centers) < 2 or float(spread[0]) <= rounding * len(centers) ** 0.5:
        return f"all {side} camera centres coincide"
    if len(centers) < 3 or float(spread[1]) <= MIN_FLATNESS * float(spread[0]):
        return f"the {side} camera centres are collinear"
    return ""


def _has_baseline(cameras: Float[Tensor, "*batch K 4 4"], first: Tensor, second: Tensor) -> Bool[Tensor, "*batch P"]:
    """Return the pairs whose centres differ by more than the rounding errors of the cameras' precision."""
    centers = invert_rigid(cameras.double())[..., :3, 3]
    size = torch.maximum(centers.norm(dim=-1), cameras[..., :3, 3].double().norm(dim=-1)).amax(-1, keepdim=True)
    distance = (centers[..., first, :] - centers[..., second, :]).norm(dim=-1)
    return distance > _ROUNDING * torch.finfo(cameras.dtype).eps * size


MAX_PAIRED_CAMERAS = 3000
"""Maximum number of cameras that are paired, beyond which a random subset is: 3000 have 4.5 million pairs."""


@dataclass(frozen=True, kw_only=True)
class _Track:
    """Trajectory of one view at the instants with a true camera."""

    name: str
    instants: list[int]
    predicted: Float[Tensor, "T 4 4"]
    true: Float[Tensor, "T 4 4"]
    focal_error: Float[Tensor, " T"]


_Errors = dict[str, Tensor]
"""Errors of a trajectory after alignment: at instants, of steps between them, and of focal lengths."""


def report_cameras(comparison: Comparison, depth_scale: float | None, seed: int) -> CameraReport | None:
    """Align the rig and compute its errors; None without true cameras.

    `depth_scale` is the scale of cameras whose centres determine none.
    """
    tracks = [track for track in _tracks(comparison) if track.instants]
    if not tracks:
        return None
    predicted, true = torch.cat([track.predicted for track in tracks]), torch.cat([track.true for track in tracks])
    rig = align_rig(predicted, true, depth_scale)
    errors = [_track_errors(track, rig) for track in tracks]
    ratios = baseline_ratios(predicted, true)
    middle = median(ratios)
    instants = sorted({index for track in tracks for index in track.instants})
    return CameraReport(
        alignment=rig.method.value,
        definition=_DEFINITIONS[rig.method],
        fallback=rig.reason,
        transform=TransformRecord.of(rig.transform),
        stands_still=all(is_constant(track.true) for track in tracks),
        overall=_summary(errors),
        per_view={track.name: _summary([own]) for track, own in zip(tracks, errors, strict=True)},
        times=tuple(comparison.output.run.times[index] for index in instants),
        ate_per_time=tuple(_ate_at(index, tracks, errors) for index in instants),
        baseline_ratio=middle,
        baseline_spread=None if middle is None else median((ratios / middle - 1).abs()),
        pairs=report_pairs(predicted, true, seed),
    )


def _tracks(comparison: Comparison) -> list[_Track]:
    tracks = []
    for view in comparison.views:
        instants, predicted, true = comparison.cameras(view)
        intrinsics = comparison.intrinsics(view)[instants]
        focal = focal_errors(intrinsics, view.truth.intrinsics.expand_as(intrinsics))
        tracks.append(_Track(name=view.name, instants=instants, predicted=predicted, true=true, focal_error=focal))
    return tracks


def _track_errors(track: _Track, rig: AlignedRig) -> _Errors:
    aligned = rig.transform.apply_to_cameras(track.predicted)
    distance, rotation_deg = absolute_errors(aligned, track.true)
    step, step_deg = relative_errors(aligned, track.true)
    found = {"distance": distance, "rotation_deg": rotation_deg, "step": step, "step_deg": step_deg}
    return found | {"focal": track.focal_error}


def _summary(errors: Sequence[_Errors]) -> TrajectoryErrors:
    joined = {name: torch.cat([own[name] for own in errors]) for name in errors[0]}
    return TrajectoryErrors(
        cameras=len(joined["distance"]),
        ate=finite(root_mean_square(joined["distance"])),
        rotation_deg=finite(root_mean_square(joined["rotation_deg"])),
        rpe_translation=finite(root_mean_square(joined["step"])),
        rpe_rotation_deg=finite(root_mean_square(joined["step_deg"])),
        focal_error=finite(float(joined["focal"].mean())),
    )


def _ate_at(index: int, tracks: Sequence[_Track], errors: Sequence[_Errors]) -> float | None:
    own = [
        error["distance"][track.instants.index(index)]
        for track, error in zip(tracks, errors, strict=True)
        if index in track.instants
    ]
    return finite(root_mean_square(torch.stack(own)))


def report_pairs(predicted: Float[Tensor, "K 4 4"], true: Float[Tensor, "K 4 4"], seed: int = 0) -> PairReport:
    """Summarise the errors of all pairs of K cameras, or of a random subset of `MAX_PAIRED_CAMERAS`."""
    if len(true) > MAX_PAIRED_CAMERAS:
        order = torch.randperm(len(true), generator=torch.Generator().manual_seed(seed))
        chosen = order[:MAX_PAIRED_CAMERAS].sort().values
        predicted, true = predicted[chosen], true[chosen]
    errors = pair_errors(predicted, true)
    apart = errors.has_baseline
    every = torch.ones_like(apart)

    def below(values: Float[Tensor, " P"], counted: Bool[Tensor, " P"]) -> dict[str, float | None]:
        return {f"{limit}": finite(float(fraction_below(values, limit, counted))) for limit in THRESHOLDS_DEG}

    def area(directions: Float[Tensor, " P"]) -> dict[str, float | None]:
        worst = torch.maximum(errors.rotation_deg, directions)
        return {f"{limit}": finite(float(area_under_curve(worst, limit, apart))) for limit in THRESHOLDS_DEG}

    return PairReport(
        pairs=len(apart),
        pairs_apart=int(apart.sum()),
        rotation_median_deg=median(errors.rotation_deg),
        direction_median_deg=median(errors.direction_deg[apart]),
        signed_direction_median_deg=median(errors.signed_direction_deg[apart]),
        rra=below(errors.rotation_deg, every),
        rta=below(errors.direction_deg, apart),
        auc=area(errors.direction_deg),
        signed_rta=below(errors.signed_direction_deg, apart),
        signed_auc=area(errors.signed_direction_deg),
    )
