"""Camera metrics of a capture: trajectory errors after one alignment of all cameras, and relative pose errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.evaluation.camera_errors import (
    THRESHOLDS_DEG,
    AlignedRig,
    absolute_errors,
    align_rig,
    area_under_curve,
    baseline_ratios,
    focal_errors,
    fraction_below,
    is_static,
    pair_errors,
    relative_errors,
    root_mean_square,
)
from page4d.evaluation.comparison import Comparison
from page4d.evaluation.record import CameraReport, PairReport, TrajectoryErrors, finite
from page4d.output.record import TransformRecord

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


@dataclass(frozen=True, kw_only=True)
class _TrackErrors:
    """Errors of one trajectory after alignment."""

    distance: Float[Tensor, " T"]
    rotation_deg: Float[Tensor, " T"]
    step: Float[Tensor, " steps"]
    step_deg: Float[Tensor, " steps"]
    focal: Float[Tensor, " T"]


def report_cameras(
    comparison: Comparison, depth_scale: float | None = None, seed: int = 0
) -> tuple[CameraReport, AlignedRig] | None:
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
    median = float(ratios.median()) if len(ratios) else torch.nan
    instants = sorted({index for track in tracks for index in track.instants})
    report = CameraReport(
        alignment=rig.method.value,
        definition=rig.method.definition,
        fallback=rig.reason,
        transform=TransformRecord(
            scale=float(rig.transform.scale),
            rotation=rig.transform.rotation.tolist(),
            translation=tuple(rig.transform.translation.tolist()),
        ),
        stands_still=all(is_static(track.true) for track in tracks),
        overall=_summary(errors),
        per_view={track.name: _summary([own]) for track, own in zip(tracks, errors, strict=True)},
        times=tuple(comparison.output.run.times[index] for index in instants),
        ate_per_time=tuple(_ate_at(index, tracks, errors) for index in instants),
        baseline_ratio=finite(median),
        baseline_spread=finite(float((ratios / median - 1).abs().median())) if len(ratios) else None,
        pairs=report_pairs(predicted, true, seed),
    )
    return report, rig


def _tracks(comparison: Comparison) -> list[_Track]:
    tracks = []
    for view in comparison.views:
        instants, predicted, true = comparison.cameras(view)
        intrinsics = comparison.intrinsics(view)[instants]
        focal = focal_errors(intrinsics, view.truth.intrinsics.expand_as(intrinsics))
        tracks.append(_Track(name=view.name, instants=instants, predicted=predicted, true=true, focal_error=focal))
    return tracks


def _track_errors(track: _Track, rig: AlignedRig) -> _TrackErrors:
    aligned = rig.transform.apply_to_cameras(track.predicted)
    distance, rotation = absolute_errors(aligned, track.true)
    step, step_deg = relative_errors(aligned, track.true)
    return _TrackErrors(
        distance=distance, rotation_deg=rotation, step=step, step_deg=step_deg, focal=track.focal_error
    )


def _summary(errors: Sequence[_TrackErrors]) -> TrajectoryErrors:
    def joined(name: str) -> Tensor:
        return torch.cat([getattr(own, name) for own in errors])

    return TrajectoryErrors(
        cameras=len(joined("distance")),
        ate=finite(root_mean_square(joined("distance"))),
        rotation_deg=finite(root_mean_square(joined("rotation_deg"))),
        rpe_translation=finite(root_mean_square(joined("step"))),
        rpe_rotation_deg=finite(root_mean_square(joined("step_deg"))),
        focal_error=finite(float(joined("focal").mean())),
    )


def _ate_at(index: int, tracks: Sequence[_Track], errors: Sequence[_TrackErrors]) -> float | None:
    own = [
        error.distance[track.instants.index(index)]
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
        rotation_median_deg=_median(errors.rotation_deg),
        direction_median_deg=_median(errors.direction_deg[apart]),
        signed_direction_median_deg=_median(errors.signed_direction_deg[apart]),
        rra=below(errors.rotation_deg, every),
        rta=below(errors.direction_deg, apart),
        auc=area(errors.direction_deg),
        signed_rta=below(errors.signed_direction_deg, apart),
        signed_auc=area(errors.signed_direction_deg),
    )


def _median(values: Float[Tensor, " N"]) -> float | None:
    return float(values.median()) if len(values) else None
