"""Detection of people: anchors, decoding and non-maximum suppression."""

from functools import cache

import numpy as np
from jaxtyping import Float

from page4d.rig.people.model import DETECTOR_SIDE, PoseModel
from page4d.rig.people.regions import Pyramid, Region, region_of
from page4d.rig.records import Array

_ANCHORS = ((8, 2), (16, 2), (32, 6))
"""Stride of the cells in pixels, and anchors per cell."""

MIN_SCORE = 0.4
"""A person that is missed costs more than a region without a person, which the landmarks' person flag drops."""

MAX_OVERLAP = 0.3
"""Intersection over union above which two boxes are one person."""

MAX_PEOPLE = 6
"""Largest number of people per image."""

_HIP_CENTRE, _SCALE_POINT = 4, 6
"""Columns of the two keypoints of a detection that define its region."""


@cache
def anchors() -> Float[Array, "2254 2"]:
    """Return the centres of all anchors in units of the input, (x, y), by stride, row, column."""
    centres = []
    for stride, per_cell in _ANCHORS:
        cells = (np.arange(DETECTOR_SIDE // stride) + 0.5) * stride / DETECTOR_SIDE
        y, x = np.meshgrid(cells, cells, indexing="ij")
        centres.append(np.repeat(np.stack([x, y], axis=-1).reshape(-1, 2), per_cell, axis=0))
    return np.concatenate(centres)


def letterbox(size: tuple[int, int]) -> Region:
    """Return the smallest square around the centre that contains an image of a size (height, width)."""
    height, width = size
    return Region((width / 2, height / 2), float(max(size)), 0.0)


def detect_regions(model: PoseModel, image: Pyramid, size: tuple[int, int]) -> list[Region]:
    """Return the regions of people, the best first."""
    box = letterbox(size)
    raw, logits = model.detect(2 * image.crop(box, DETECTOR_SIDE) - 1)
    return [
        region_of(*box.to_image(keypoints[:2]))
        for keypoints in decode(np.asarray(raw, np.float64), np.asarray(logits, np.float64))
    ]


def decode(raw: Float[Array, "2254 12"], logits: Float[Array, " 2254"]) -> list[Float[Array, "4 2"]]:
    """Return the keypoints of people in units of the input, the best first: hip centre, scale point, and two more."""
    scores = 1 / (1 + np.exp(-np.clip(logits, -100, 100)))
    chosen = np.flatnonzero(scores >= MIN_SCORE)
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    values = raw[chosen] / DETECTOR_SIDE
    centre = anchors()[chosen]
    boxes = np.concatenate(
        [values[:, :2] + centre - values[:, 2:4] / 2, values[:, :2] + centre + values[:, 2:4] / 2], 1
    )
    keypoints = values[:, 4:].reshape(-1, 4, 2) + centre[:, None]
    return [keypoints[index] for index in suppress(boxes)[:MAX_PEOPLE]]


def suppress(boxes: Float[Array, "n 4"]) -> list[int]:
    """Return the indices of the boxes (left, top, right, bottom) that overlap no earlier kept box."""
    kept: list[int] = []
    for index, box in enumerate(boxes):
        others = boxes[kept]
        low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=1)
        areas = np.prod(np.clip(others[:, 2:] - others[:, :2], 0, None), axis=1)
        union = areas + float(np.prod(np.clip(box[2:] - box[:2], 0, None))) - shared
        if not np.any(shared > MAX_OVERLAP * union):
            kept.append(index)
    return kept
