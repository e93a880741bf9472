"""Matches of the texture of two views at the same instants, and which pairs of many views are worth matching."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from page4d.rig.records import Array
from page4d.rig.texture import DESCRIPTOR_SCALE, InstantTexture, ViewTexture

MAX_RATIO = 0.8
"""Largest ratio of the distances to the nearest and second-nearest descriptor. Source: Lowe (2004), section 7.1."""

MAX_PARTNERS = 6
"""Views with which a view of a large rig is compared completely: 16 views then have at most 96 of 120 pairs."""

_ROWS = 1024
"""Descriptors compared at once: bounds the table of similarities to 16 MB."""

_SCREENED = 800
"""Features of the cheap comparison, one twenty-fifth of the work of a complete one."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TextureMatches:
    """K matches of two views in undistorted original pixels, over all common instants, with repetitions.

    `keys` number the distinct pairs of features: a static background repeats its matches at every instant.
    """

    first: Float[Array, "K 2"]
    second: Float[Array, "K 2"]
    first_ids: Int[Ids, " K"]
    second_ids: Int[Ids, " K"]
    instants: Int[Ids, " K"]
    keys: Int[Ids, " K"]


def match_textures(first: ViewTexture, second: ViewTexture) -> TextureMatches:
    """Return mutual nearest neighbours that pass the ratio test, at each instant that both views have."""
    parts: list[tuple[Array, Array, Ids, Ids, Ids]] = []
    for instant in sorted(first.features.keys() & second.features.keys()):
        one, two = first.features[instant], second.features[instant]
        places = _mutual(one.descriptors, two.descriptors)
        here = np.full(len(places), instant, dtype=np.int64)
        left, right = places.T
        parts.append((one.points[left], two.points[right], one.ids[left], two.ids[right], here))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        parts = [(np.zeros((0, 2)), np.zeros((0, 2)), none, none, none)]
    points_first, points_second, first_ids, second_ids, instants = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    _, keys = np.unique(np.stack([first_ids, second_ids], axis=1), axis=0, return_inverse=True)
    return TextureMatches(
        first=points_first,
        second=points_second,
        first_ids=first_ids,
        second_ids=second_ids,
        instants=instants,
        keys=keys.reshape(-1).astype(np.int64),
    )


def choose_pairs(textures: tuple[ViewTexture, ...], max_partners: int = MAX_PARTNERS) -> tuple[tuple[int, int], ...]:
    """Return the pairs (i < j) that are worth a complete comparison: of each view, those most similar to it.

    The similarity is the number of mutual matches among a few features of one instant. All pairs of a small rig are
    returned.
    """
    count = len(textures)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if count <= max_partners + 1:
        return tuple(pairs)
    common = set.intersection(*(set(texture.features) for texture in textures))
    if not common:
        return ()
    instant = sorted(common)[len(common) // 2]
    few = [_few(texture.features[instant]) for texture in textures]
    similarity = np.zeros((count, count), dtype=np.int64)
    for i, j in pairs:
        similarity[i, j] = similarity[j, i] = len(_mutual(few[i], few[j]))
    partners = [set(np.argsort(-row, kind="stable")[:max_partners].tolist()) for row in similarity]
    return tuple((i, j) for i, j in pairs if similarity[i, j] and (j in partners[i] or i in partners[j]))


def _few(texture: InstantTexture) -> NDArray[np.uint8]:
    return texture.descriptors[:_SCREENED]  # the largest, which other views repeat most often


def _mutual(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> Ids:
    """Return the places [K, 2] of mutual nearest descriptors that pass the ratio test in the first view."""
    if len(first) < 2 or len(second) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    target = second.astype(np.float32).T / np.float32(DESCRIPTOR_SCALE)
    nearest = np.empty(len(first), dtype=np.int64)
    passes = np.empty(len(first), dtype=bool)
    best_row = np.zeros(len(second), dtype=np.int64)
    best = np.full(len(second), -np.inf, dtype=np.float32)
    for start in range(0, len(first), _ROWS):
        similar = (first[start : start + _ROWS].astype(np.float32) / np.float32(DESCRIPTOR_SCALE)) @ target
        rows = np.arange(len(similar))
        nearest[start : start + _ROWS] = found = similar.argmax(axis=1)
        top, column = similar[rows, found], similar.max(axis=0)
        better = column > best
        best_row[better] = similar.argmax(axis=0)[better] + start
        best = np.maximum(best, column)
        similar[rows, found] = -np.inf
        # Squared distances of unit vectors are 2 - 2 cosine.
        passes[start : start + _ROWS] = 1 - top < MAX_RATIO**2 * (1 - similar.max(axis=1))
    left = np.flatnonzero(passes & (best_row[nearest] == np.arange(len(first))))
    return np.stack([left, nearest[left]], axis=1)
