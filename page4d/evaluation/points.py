"""Point cloud metrics of a capture: predicted points against the unprojected true depth, per instant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.evaluation.comparison import (
    MOVING,
    STILL,
    Comparison,
    FramePair,
    Step,
    joined,
    pixels_in_image,
    random_subset,
    true_camera,
)
from page4d.evaluation.record import PointReport
from page4d.evaluation.scores import Neighbours, PointScores, Surface, score_points
from page4d.geometry.camera import Cameras, world_points
from page4d.geometry.transforms import Sim3, transform_points

METRIC_THRESHOLD = 0.05
"""Default distance threshold in metres of precision, recall and F-score."""

RELATIVE_THRESHOLD = 0.01
"""Default threshold relative to the median true depth, if the truth is not metric."""


@dataclass(frozen=True, kw_only=True)
class LabelledCloud:
    """Points in the true world with the index of their view in the output and their motion label `kind`.

    `counted` is False for points whose pixel has no true depth.
    """

    xyz: Float[np.ndarray, "N 3"]
    view: Int[np.ndarray, " N"]
    kind: Int[np.ndarray, " N"]
    counted: Bool[np.ndarray, " N"]


def predicted_cloud(comparison: Comparison, frames: Sequence[FramePair], transform: Sim3) -> LabelledCloud:
    """Read the predicted points of the frames' instant and views, and transform them to the true world.

    The pixel of a point is its projection into its own view.
    """
    index = frames[0].time_index
    cloud = comparison.output.points(index)
    parts = []
    for frame in frames:
        chosen = cloud.view == frame.view.index
        points = torch.from_numpy(cloud.xyz[chosen]).double()
        world_to_camera = comparison.output.cameras.world_to_camera[index, frame.view.index]
        intrinsics = comparison.intrinsics(frame.view)[index]
        local = transform_points(world_to_camera, points)
        row, column, inside, _ = pixels_in_image(local, intrinsics, frame.truth.shape)
        parts.append(
            LabelledCloud(
                xyz=transform.apply(points).numpy(),
                view=np.full(len(points), frame.view.index),
                kind=frame.kind[row, column].numpy(),
                counted=inside & frame.known[row, column].numpy(),
            )
        )
    return joined(parts)


def true_cloud(frames: Sequence[FramePair]) -> LabelledCloud:
    """Unproject the true depth of frames of one instant; their true cameras must be known."""
    parts = []
    for frame in frames:
        world_to_camera = true_camera(frame.view, frame.time_index)
        assert world_to_camera is not None
        camera = Cameras(
            world_to_camera=world_to_camera,
            intrinsics=frame.view.truth.intrinsics,
            image_size=frame.view.truth.image_size,
        )
        points = world_points(frame.truth.double(), camera)[frame.known]
        parts.append(
            LabelledCloud(
                xyz=points.numpy(),
                view=np.full(len(points), frame.view.index),
                kind=frame.kind[frame.known].numpy(),
                counted=np.full(len(points), True),
            )
        )
    return joined(parts)


@dataclass(frozen=True, kw_only=True)
class _Matches(Neighbours):
    """Nearest neighbours of sampled points of one cloud in the other, with the labels of the points."""

    view: Int[np.ndarray, " N"]
    kind: Int[np.ndarray, " N"]

    def of(self, label: str, value: int) -> Neighbours:
        """Return the neighbours of the points with this label, of all points if `label` is empty."""
        chosen = getattr(self, label) == value if label else slice(None)
        return Neighbours(distance=self.distance[chosen], cosine=self.cosine[chosen])


_Sides = tuple[_Matches, _Matches]
"""Matches of predicted points in the truth (accuracy) and of true points in the prediction (completeness)."""


def _scores(sides: _Sides, threshold: float, label: str = "", value: int = 0) -> PointScores:
    """Summarise all points, or those with one label."""
    accuracy, completeness = (side.of(label, value) for side in sides)
    return score_points(accuracy, completeness, threshold)


def report_points(
    comparison: Comparison, transform: Sim3, threshold: float, queries: int, seed: int, step: Step
) -> PointReport | None:
    """Compare the clouds of all instants with true depth and cameras; None without such instants.

    Per instant and direction at most `queries` random points are used. `transform` maps the predicted to the true
    world.
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
    whole = (joined([accuracy for accuracy, _ in found]), joined([completeness for _, completeness in found]))
    labelled = any(view.truth.dynamic_files for view in comparison.views)
    return PointReport(
        threshold=threshold,
        queries_per_instant=queries,
        uncounted_points=uncounted,
        times=tuple(comparison.output.run.times[index] for index in instants),
        overall=_scores(whole, threshold),
        static=_scores(whole, threshold, "kind", STILL) if labelled else None,
        dynamic=_scores(whole, threshold, "kind", MOVING) if labelled else None,
        per_view={view.name: _scores(whole, threshold, "view", view.index) for view in comparison.views},
        per_time=tuple(_scores(sides, threshold) for sides in found),
    )


def _compare(predicted: LabelledCloud, true: LabelledCloud, queries: int, random: np.random.Generator) -> _Sides:
    """Match random counted points of each cloud to the nearest points of the other."""
    surfaces = Surface(predicted.xyz), Surface(true.xyz)
    chosen = [random_subset(cloud.counted, queries, random) for cloud in (predicted, true)]
    accuracy = _matches(surfaces[0], surfaces[1], predicted, chosen[0])
    return accuracy, _matches(surfaces[1], surfaces[0], true, chosen[1])


def _matches(source: Surface, target: Surface, cloud: LabelledCloud, chosen: NDArray[Any]) -> _Matches:
    return _Matches(**vars(source.nearest(target, chosen)), view=cloud.view[chosen], kind=cloud.kind[chosen])
