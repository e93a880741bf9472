"""Point clouds of a whole capture against clouds of the true depth, instant by instant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from page4d.conventions import Scale
from page4d.evaluation.clouds import MOVING, STILL, LabelledCloud, predicted_cloud, true_cloud
from page4d.evaluation.comparison import Comparison, Step, no_step, true_camera
from page4d.evaluation.points import Nearest, PointScores, Surface, score_points
from page4d.evaluation.record import PointReport
from page4d.geometry.similarity import Sim3

METRIC_THRESHOLD = 0.05
"""Distance in metres below which a point counts as right, unless one is given."""

RELATIVE_THRESHOLD = 0.01
"""The same as a share of the median true depth, where the truth is not metric."""


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """What was found for chosen points of one cloud in the other, with their labels."""

    nearest: Nearest
    view: Int[np.ndarray, " N"]
    kind: Int[np.ndarray, " N"]

    def only(self, chosen: Bool[np.ndarray, " N"]) -> Nearest:
        return Nearest(distance=self.nearest.distance[chosen], cosine=self.nearest.cosine[chosen])


@dataclass(frozen=True, kw_only=True)
class _BothWays:
    """Answers for predicted points in the truth, and for true points in the prediction."""

    accuracy: _Answers
    completeness: _Answers

    def scores(self, threshold: float, label: str = "", value: int = 0) -> PointScores:
        """Summarise all points, or those with one label."""

        def chosen(answers: _Answers) -> Nearest:
            return answers.only(getattr(answers, label) == value) if label else answers.nearest

        return score_points(chosen(self.accuracy), chosen(self.completeness), threshold)


def default_threshold(comparison: Comparison, median_depth: float) -> float:
    """Return the distance below which a point counts as right, in units of the truth."""
    return METRIC_THRESHOLD if comparison.truth.scale is Scale.METRIC else RELATIVE_THRESHOLD * median_depth


def report_points(
    comparison: Comparison, transform: Sim3, threshold: float, queries: int, seed: int = 0, step: Step = no_step
) -> PointReport | None:
    """Compare the clouds of all instants with true depth, at most `queries` random points each way; None without any.

    `transform` brings the predicted world onto the true one.
    """
    instants, found, uncounted = [], [], 0
    for index in comparison.instants:
        frames = [frame for frame in comparison.depth_frames(index) if true_camera(frame.view, index) is not None]
        step()
        if not any(bool(frame.known.any()) for frame in frames):
            continue
        predicted, true = predicted_cloud(comparison, frames, transform), true_cloud(frames)
        instants.append(index)
        uncounted += int((~predicted.counted).sum())
        found.append(_compare(predicted, true, queries, np.random.default_rng((seed, index))))
    if not found:
        return None
    whole = _BothWays(
        accuracy=_joined([pair.accuracy for pair in found]),
        completeness=_joined([pair.completeness for pair in found]),
    )
    labelled = any(view.truth.dynamic_files for view in comparison.views)
    return PointReport(
        threshold=threshold,
        queries_per_instant=queries,
        uncounted_points=uncounted,
        times=tuple(comparison.output.run.times[index] for index in instants),
        overall=whole.scores(threshold),
        static=whole.scores(threshold, "kind", STILL) if labelled else None,
        dynamic=whole.scores(threshold, "kind", MOVING) if labelled else None,
        per_view={view.name: whole.scores(threshold, "view", view.index) for view in comparison.views},
        per_time=tuple(pair.scores(threshold) for pair in found),
    )


def _compare(predicted: LabelledCloud, true: LabelledCloud, queries: int, random: np.random.Generator) -> _BothWays:
    """Ask for random counted points of each cloud what lies nearest in the whole of the other."""
    surfaces = Surface(predicted.xyz), Surface(true.xyz)
    chosen = [_choice(cloud.counted, queries, random) for cloud in (predicted, true)]
    return _BothWays(
        accuracy=_answers(surfaces[0], surfaces[1], predicted, chosen[0]),
        completeness=_answers(surfaces[1], surfaces[0], true, chosen[1]),
    )


def _choice(counted: NDArray[np.bool_], most: int, random: np.random.Generator) -> NDArray[np.int64]:
    indices = np.flatnonzero(counted)
    return indices if len(indices) <= most else np.sort(random.choice(indices, size=most, replace=False))


def _answers(asking: Surface, asked: Surface, cloud: LabelledCloud, chosen: NDArray[Any]) -> _Answers:
    return _Answers(nearest=asking.nearest(asked, chosen), view=cloud.view[chosen], kind=cloud.kind[chosen])


def _joined(parts: Sequence[_Answers]) -> _Answers:
    return _Answers(
        nearest=Nearest(
            distance=np.concatenate([part.nearest.distance for part in parts]),
            cosine=np.concatenate([part.nearest.cosine for part in parts]),
        ),
        view=np.concatenate([part.view for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
    )
