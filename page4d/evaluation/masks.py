"""Motion mask metrics: intersection over union per frame (J), its mean (JM) and its recall (JR)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.evaluation.comparison import Comparison, Step, no_step
from page4d.evaluation.record import MaskReport, MaskScores

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


def recall(ious: Float[Tensor, " frames"]) -> Float[Tensor, ""]:
    """Return the fraction of frames with an intersection over union of at least 0.5 (JR)."""
    return (ious >= GOOD_IOU).double().mean()


def report_masks(comparison: Comparison, step: Step = no_step) -> MaskReport | None:
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
        jr=float(recall(frames)),
        pooled=float(iou(intersection.sum(), union.sum())),
    )
