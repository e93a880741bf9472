"""Camera positions from the directions of pairs, with distances from points that pairs share."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from page4d.rig.records import Array, Lens, PairPose
from page4d.rig.rotations import direction_angle_deg

_MIN_SHARED = 8
"""Points of a view that two pairs need in common for the ratio of their baselines."""

_MIN_SCALE = 0.02
"""Lower bound on the length of a group of baselines in units of the reference group: no solution collapses."""

_RANK_TOLERANCE = 0.03
"""Singular values below this fraction of the largest are zero: directions are off by some degrees."""

_ITERATIONS = 30
_MIN_RESIDUAL = 1e-4


def locate(
    views: Sequence[int], pairs: Sequence[PairPose], rotations: Float[Array, "n 3 3"], lenses: Sequence[Lens]
) -> tuple[Float[Array, "n 3"], tuple[int, ...], Float[Array, " E"]]:
    """Return camera centres (first at 0, median baseline 1), undetermined views, and direction residuals in degrees.

    Ratios of baselines follow from the depths of shared points; where pairs share none, from loops of directions.
    Centres minimise the sum of unsquared deviations from the pairs' baselines.

    Source: Ozyesil & Singer, "Robust camera location estimation by convex programming", CVPR 2015 (LUD).
    """
    index = {view: row for row, view in enumerate(views)}
    ends = np.array([(index[pair.first], index[pair.second]) for pair in pairs])
    direction = np.stack(
        [-rotations[index[pair.second]].T @ np.asarray(pair.direction) for pair in pairs]
    )  # from the centre of the first to that of the second
    lengths, groups = _baselines(pairs, lenses)
    num_views, num_groups = len(views), int(groups.max()) + 1
    reference = int(np.bincount(groups).argmax())
    base = int(ends[groups == reference][0, 0])
    rows = np.zeros((len(pairs), 3, 3 * num_views + num_groups))
    for row, (first, second) in enumerate(ends):
        rows[row, :, 3 * first : 3 * first + 3] -= np.eye(3)
        rows[row, :, 3 * second : 3 * second + 3] += np.eye(3)
        rows[row, :, 3 * num_views + groups[row]] -= lengths[row] * direction[row]
    rows /= lengths[:, None, None]
    fixed = [*range(3 * base, 3 * base + 3), 3 * num_views + reference]
    free = np.setdiff1d(np.arange(rows.shape[-1]), fixed)
    matrix, right = rows[..., free], -rows[..., 3 * num_views + reference]
    lower = np.where(free >= 3 * num_views, _MIN_SCALE, -np.inf)
    solution = np.zeros(len(free))
    weight = np.ones(len(pairs))
    for _ in range(_ITERATIONS):
        flat = (matrix * weight[:, None, None]).reshape(-1, len(free))
        found = lsq_linear(flat, (right * weight[:, None]).reshape(-1), bounds=(lower, np.inf))
        change, solution = np.abs(found.x - solution).max(), found.x
        error = np.linalg.norm(matrix @ solution - right, axis=-1)
        weight = np.maximum(error, _MIN_RESIDUAL) ** -0.5
        if change < 1e-9:
            break
    values = np.zeros(rows.shape[-1])
    values[free] = solution
    centers = values[: 3 * num_views].reshape(-1, 3)
    baseline = centers[ends[:, 1]] - centers[ends[:, 0]]
    bend = direction_angle_deg(baseline, direction)
    undetermined = _undetermined(matrix, free, num_views)
    unit = max(float(np.median(np.linalg.norm(baseline, axis=-1))), 1e-12)
    return (centers - centers[0]) / unit, tuple(views[row] for row in undetermined), bend


def _undetermined(matrix: Float[Array, "E 3 F"], free: Array, num_views: int) -> list[int]:
    """Return the views whose position changes along a null direction of the equations."""
    _, singular, basis = np.linalg.svd(matrix.reshape(-1, matrix.shape[-1]))
    null = basis[np.pad(singular, (0, len(basis) - len(singular))) < _RANK_TOLERANCE * singular.max()]
    moving = free[np.abs(null).max(0, initial=0.0) > 0.05]
    return sorted({int(column) // 3 for column in moving if column < 3 * num_views})


def _baselines(pairs: Sequence[PairPose], lenses: Sequence[Lens]) -> tuple[Array, NDArray[np.int32]]:
    """Return the lengths of baselines, comparable within groups of pairs that share points, and the groups."""
    depths = [_depths(pair, lenses) for pair in pairs]
    links, ratios = [], []
    for one, other in combinations(range(len(pairs)), 2):
        logs = []
        if pairs[one].evidence is pairs[other].evidence:
            for view in {pairs[one].first, pairs[one].second} & {pairs[other].first, pairs[other].second}:
                (ids, depth), (other_ids, other_depth) = depths[one][view], depths[other][view]
                _, at, other_at = np.intersect1d(ids, other_ids, return_indices=True)
                logs.append(np.log(other_depth[other_at] / depth[at]))
        values = np.concatenate([*logs, np.zeros(0)])
        if len(values) >= _MIN_SHARED:
            links.append((one, other))
            ratios.append(float(np.median(values)))
    ends = np.array(links, int).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), ends.T), shape=(len(pairs), len(pairs)))
    _, groups = connected_components(graph, directed=False)
    rows = np.zeros((len(ends), len(pairs)))
    rows[np.arange(len(ends)), ends[:, 0]] = 1  # the same depth in units of two baselines
    rows[np.arange(len(ends)), ends[:, 1]] = -1
    right = np.array(ratios)
    logs_of = np.zeros(len(pairs))
    for _ in range(_ITERATIONS if len(ends) else 0):
        weight = np.maximum(np.abs(rows @ logs_of - right), _MIN_RESIDUAL) ** -0.5
        logs_of = np.linalg.lstsq(rows * weight[:, None], right * weight, rcond=None)[0]
    for group in np.unique(groups):
        logs_of[groups == group] -= np.median(logs_of[groups == group])
    return np.exp(logs_of), groups


def _depths(pair: PairPose, lenses: Sequence[Lens]) -> dict[int, tuple[Array, Array]]:
    """Return, per view of a pair, the ids of its matches and their distances from the camera in baselines."""
    matches = pair.matches
    assert pair.rotation is not None
    if matches is None:
        return {view: (np.zeros(0), np.zeros(0)) for view in (pair.first, pair.second)}
    first, second = (
        _directions(pixels, lenses[view])
        for pixels, view in ((matches.first, pair.first), (matches.second, pair.second))
    )
    turned = first @ pair.rotation.T
    normal = np.cross(turned, second)
    squared = np.maximum((normal**2).sum(-1), 1e-12)
    step = np.asarray(pair.direction)
    # Distances along both rays to their closest points: a * turned + step = b * second.
    near = (np.cross(second, step) * normal).sum(-1) / squared
    far = (np.cross(turned, step) * normal).sum(-1) / squared
    usable = (near > 0) & (far > 0)
    return {
        pair.first: (matches.first_ids[usable], near[usable]),
        pair.second: (matches.second_ids[usable], far[usable]),
    }


def _directions(pixels: Float[Array, "K 2"], lens: Lens) -> Float[Array, "K 3"]:
    plane = np.concatenate([pixels, np.ones((len(pixels), 1))], -1) @ np.linalg.inv(lens.intrinsics).T
    return np.asarray(plane / np.linalg.norm(plane, axis=-1, keepdims=True))
