"""Metrics of depth and motion masks of a capture: a pass over the frames to fit alignments, and one to sum errors.

Masks are compared by intersection over union per frame (J), its mean (JM) and its recall (JR).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.choices import DepthAlignment
from page4d.evaluation.comparison import MOVING, NOT_LABELLED, STILL, Comparison, FramePair, Step
from page4d.evaluation.record import (
    RESIZING,
    ConfidenceReport,
    DepthReport,
    DepthResult,
    MaskReport,
    MaskScores,
    depth_errors,
)
from page4d.evaluation.scores import DEFINITIONS, STEPS, DepthFit, align_depth, finite, sparsify, sum_depth_errors

MAX_FITTED_PIXELS = 8_000_000
"""Maximum number of pixels that alignments are fitted to; larger captures use a random subset of each frame."""

CAPTURE, FRAME = "capture", "frame"

Fits = dict[DepthAlignment, DepthFit]


@dataclass(frozen=True, kw_only=True)
class PixelSample:
    """Pixels of a capture that have both true and predicted depth.

    `counted` is their number in all frames, `known` that of all pixels with true depth.
    """

    prediction: Float[Tensor, " N"]
    truth: Float[Tensor, " N"]
    confidence: Float[Tensor, " N"]
    known: int
    counted: int


def sample_pixels(comparison: Comparison, seed: int, step: Step) -> PixelSample | None:
    """Collect at most `MAX_FITTED_PIXELS` counted pixels, with equal shares per frame; None without any."""
    num_frames = sum(len(comparison.depth_views(index)) for index in comparison.instants)
    share = MAX_FITTED_PIXELS // max(num_frames, 1)
    generator = torch.Generator().manual_seed(seed)
    parts: list[Float[Tensor, "3 n"]] = []
    known = counted = 0
    for index in comparison.instants:
        for frame in comparison.depth_frames(index):
            chosen = frame.counted.flatten().nonzero()[:, 0]
            known, counted = known + int(frame.known.sum()), counted + len(chosen)
            if len(chosen) > share:
                chosen = chosen[torch.randperm(len(chosen), generator=generator)[:share]]
            maps = torch.stack([frame.prediction, frame.truth, frame.confidence])
            parts.append(maps.flatten(1)[:, chosen])
        step()
    if not counted:
        return None
    prediction, truth, confidence = torch.cat(parts, dim=1)
    return PixelSample(prediction=prediction, truth=truth, confidence=confidence, known=known, counted=counted)


def report_depth(comparison: Comparison, sample: PixelSample, fits: Fits, step: Step) -> DepthReport:
    """Sum the errors of all frames under every alignment; the median is additionally fitted per frame."""
    scopes = [(kind, CAPTURE) for kind in fits]
    scopes += [(DepthAlignment.MEDIAN, FRAME)] if DepthAlignment.MEDIAN in fits else []
    rows = []
    for index in comparison.instants:
        rows.append(_instant_sums(comparison, index, fits))
        step()
    sums = torch.stack(rows, dim=1)
    names = [view.name for view in comparison.views]
    labelled = any(view.truth.dynamic_files for view in comparison.views)
    return DepthReport(
        resizing=RESIZING,
        max_depth=comparison.max_depth,
        coverage=sample.counted / sample.known,
        fitted_pixels=len(sample.truth),
        times=tuple(comparison.output.run.times[index] for index in comparison.instants),
        results=tuple(
            _result(sums[..., row], names, kind, None if scope == FRAME else fits[kind], labelled=labelled)
            for row, (kind, scope) in enumerate(scopes)
        ),
    )


def _instant_sums(comparison: Comparison, index: int, fits: Fits) -> Float[Tensor, "8 V 3 fits"]:
    """Return the sums of an instant by view, kind (static, moving and unlabelled pixels) and fit."""
    frames = {frame.view.name: _frame_sums(frame, fits) for frame in comparison.depth_frames(index)}
    number = len(fits) + (DepthAlignment.MEDIAN in fits)
    nothing = torch.ones(3, number, 1, 0)
    without_truth = sum_depth_errors(nothing, nothing, nothing > 0)
    return torch.stack([frames.get(view.name, without_truth) for view in comparison.views], dim=1)


def _frame_sums(frame: FramePair, fits: Fits) -> Float[Tensor, "8 3 fits"]:
    """Return the sums of a frame by kind of pixels and fit."""
    used = list(fits.values())
    if DepthAlignment.MEDIAN in fits:
        prediction, truth = frame.prediction[frame.counted], frame.truth[frame.counted]
        used.append(align_depth(prediction, truth, DepthAlignment.MEDIAN))
    kinds = (STILL, MOVING, NOT_LABELLED)
    return torch.stack([_pixel_sums(frame, frame.counted & (frame.kind == kind), used) for kind in kinds], dim=1)


def _pixel_sums(frame: FramePair, chosen: Bool[Tensor, "H W"], fits: Sequence[DepthFit]) -> Float[Tensor, "8 fits"]:
    """Return the sums of selected pixels by fit, treated as an image of one row."""
    prediction = frame.prediction[chosen].double()
    aligned = torch.stack([fit.apply(prediction) for fit in fits])[:, None]
    truth = frame.truth[chosen].double().expand_as(aligned)
    return sum_depth_errors(aligned, truth, torch.ones_like(truth, dtype=torch.bool))


def _result(
    sums: Float[Tensor, "8 T V 3"],
    names: Sequence[str],
    alignment: DepthAlignment,
    fit: DepthFit | None,
    *,
    labelled: bool,
) -> DepthResult:
    """Aggregate sums of instants, views and kinds over all, by motion, by view, by instant and by frame."""
    times = range(sums.shape[1])
    return DepthResult(
        alignment=alignment.value,
        scope=FRAME if fit is None else CAPTURE,
        definition=DEFINITIONS[alignment],
        scale=None if fit is None else finite(float(fit.scale)),
        shift=None if fit is None else finite(float(fit.shift)),
        overall=depth_errors(sums),
        static=depth_errors(sums[..., 0]) if labelled else None,
        dynamic=depth_errors(sums[..., 1]) if labelled else None,
        per_view={name: depth_errors(sums[:, :, view]) for view, name in enumerate(names)},
        per_time=tuple(depth_errors(sums[:, time]) for time in times),
        abs_rel_per_frame={
            name: tuple(depth_errors(sums[:, time, view]).abs_rel for time in times)
            for view, name in enumerate(names)
        },
    )


def report_confidence(sample: PixelSample, alignment: DepthAlignment, fit: DepthFit) -> ConfidenceReport:
    """Compute the sparsification of absolute relative errors under one alignment."""
    truth = sample.truth.double()
    errors = (fit.apply(sample.prediction.double()) - truth).abs() / truth
    curves = sparsify(errors, sample.confidence)
    return ConfidenceReport(
        alignment=alignment.value,
        ordering=curves.ordering,
        ause=curves.ause,
        removed=tuple(step / STEPS for step in range(STEPS)),
        by_confidence=tuple(curves.by_confidence.tolist()),
        by_error=tuple(curves.by_error.tolist()),
    )


GOOD_IOU = 0.5
"""Intersection over union from which on a frame counts for the recall."""


def mask_overlap(
    predicted: Bool[Tensor, "*batch H W"], true: Bool[Tensor, "*batch H W"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return the numbers of pixels in the intersection and in the union of masks."""
    return (predicted & true).sum((-2, -1)).double(), (predicted | true).sum((-2, -1)).double()


def iou(intersection: Float[Tensor, "*batch"], union: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return intersection over union; 1 where both masks are empty, as in DAVIS."""
    return torch.where(union > 0, intersection / union.clamp_min(1), 1.0)


def report_masks(comparison: Comparison, step: Step) -> MaskReport | None:
    """Compare the masks of all frames that have a true and a predicted one; None without such frames."""
    places, overlaps = [], []
    for index in comparison.instants:
        for view in comparison.views:
            masks = comparison.masks(index, view)
            if masks is not None:
                places.append((index, view.name))
                overlaps.append(torch.stack(mask_overlap(*masks)))
        step()
    if not places:
        return None
    table = torch.stack(overlaps)
    instants, names = dict.fromkeys(index for index, _ in places), dict.fromkeys(name for _, name in places)

    def rows(position: int, value: object) -> Float[Tensor, "n 2"]:
        return table[[row for row, place in enumerate(places) if place[position] == value]]

    return MaskReport(
        overall=_scores(table),
        per_view={name: _scores(rows(1, name)) for name in names},
        times=tuple(comparison.output.run.times[index] for index in instants),
        iou_per_time=tuple(_scores(rows(0, index)).jm for index in instants),
    )


def _scores(overlaps: Float[Tensor, "n 2"]) -> MaskScores:
    intersection, union = overlaps.unbind(-1)
    frames = iou(intersection, union)
    return MaskScores(
        frames=len(frames),
        empty=int((union == 0).sum()),
        jm=float(frames.mean()),
        jr=float((frames >= GOOD_IOU).double().mean()),
        pooled=float(iou(intersection.sum(), union.sum())),
    )
