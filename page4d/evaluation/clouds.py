"""Point clouds of one instant: the predicted points in the true world, and the unprojected true depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.evaluation.comparison import Comparison, FramePair, true_camera
from page4d.geometry.camera import Cameras, project, world_points
from page4d.geometry.rigid import transform_points
from page4d.geometry.similarity import Sim3

STILL, MOVING, NOT_LABELLED = range(3)
"""Label of a point by the true motion mask at its pixel."""


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
        pixels, depth = project(transform_points(world_to_camera, points), intrinsics)
        height, width = frame.truth.shape
        column, row = pixels.nan_to_num(nan=-1.0).clamp(-1.0, max(width, height)).floor().long().unbind(-1)
        inside = (depth > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
        row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        parts.append(
            LabelledCloud(
                xyz=transform.apply(points).numpy(),
                view=np.full(len(points), frame.view.index),
                kind=_kinds(frame)[row, column].numpy(),
                counted=(inside & frame.known[row, column]).numpy(),
            )
        )
    return _joined(parts)


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
                kind=_kinds(frame)[frame.known].numpy(),
                counted=np.full(len(points), True),
            )
        )
    return _joined(parts)


def _kinds(frame: FramePair) -> Int[Tensor, "H W"]:
    if frame.dynamic is None:
        return torch.full(frame.truth.shape, NOT_LABELLED)
    return torch.where(frame.dynamic, MOVING, STILL)


def _joined(parts: Sequence[LabelledCloud]) -> LabelledCloud:
    return LabelledCloud(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})
