"""The graph of accepted pairs of views: which pairs to try, connected parts, wrong pairs, and initial cameras.

Positions follow from the directions of pairs, with distances from points that pairs share.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from types import MappingProxyType

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation

from page4d.rig.epipolar import normalized_points, pose_of, unit_rays
from page4d.rig.records import Array, Lens, Pair, PairPose, direction_angle_deg, exp_rotation, rotation_angle_deg

_MIN_SHARED = 8
"""Points of a view that two pairs need in common for the ratio of their baselines."""

_MIN_SCALE = 0.02
"""Lower bound on the length of a group of baselines in units of the reference group: no solution collapses."""

_RANK_TOLERANCE = 0.03
"""Singular values below this fraction of the largest are zero: directions are off by some degrees."""

_POSITION_ITERATIONS = 30
_MIN_POSITION_RESIDUAL = 1e-4


KnownPoses = Mapping[int, Float[Array, "4 4"]]
"""`world_to_camera` of views that keep them, in a world about their mean position whose unit is their extent, if any.
"""


def locate(
    views: Sequence[int],
    pairs: Sequence[PairPose],
    rotations: Float[Array, "n 3 3"],
    lenses: Sequence[Lens],
    known: KnownPoses = MappingProxyType({}),
) -> tuple[Float[Array, "n 3"], tuple[int, ...], Float[Array, " E"]]:
    """Return camera centres, undetermined views, and direction residuals in degrees.

    Known cameras keep their centres. Without any, the first is at 0, and where they are not apart, the median
    baseline is 1. Ratios of baselines follow from the depths of shared points; where pairs share none, from loops of
    directions. Centres minimise the sum of unsquared deviations from the pairs' baselines.

    Source: Ozyesil & Singer, "Robust camera location estimation by convex programming", CVPR 2015 (LUD).
    """
    index = {view: row for row, view in enumerate(views)}
    ends = np.array([[index[view] for view in pair.views] for pair in pairs])
    # From the centre of the first to that of the second.
    direction = np.stack(
        [-rotations[row].T @ pose_of(pair).direction for pair, row in zip(pairs, ends[:, 1], strict=True)]
    )
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
    values = np.zeros(rows.shape[-1])
    fixed = np.zeros(rows.shape[-1], bool)
    for view in [view for view in views if view in known] or [views[base]]:
        center = slice(3 * index[view], 3 * index[view] + 3)
        fixed[center] = True
        if view in known:
            values[center] = -known[view][:3, :3].T @ known[view][:3, 3]
    # Known cameras that are apart determine the unit of length.
    has_scale = any(np.linalg.norm(pose[:3, 3]) > 0.1 for pose in known.values())
    if not has_scale:
        fixed[3 * num_views + reference], values[3 * num_views + reference] = True, 1.0
    free = np.flatnonzero(~fixed).astype(np.int64)
    matrix, right = rows[..., free], -rows[..., fixed] @ values[fixed]
    lower = np.where(free >= 3 * num_views, _MIN_SCALE, -np.inf)
    solution = np.zeros(len(free))
    weight = np.ones(len(pairs))
    for _ in range(_POSITION_ITERATIONS):
        flat = (matrix * weight[:, None, None]).reshape(-1, len(free))
        found = lsq_linear(flat, (right * weight[:, None]).reshape(-1), bounds=(lower, np.inf))
        change, solution = np.abs(found.x - solution).max(), found.x
        error = np.linalg.norm(matrix @ solution - right, axis=-1)
        weight = np.maximum(error, _MIN_POSITION_RESIDUAL) ** -0.5
        if change < 1e-9:
            break
    values[free] = solution
    centers = values[: 3 * num_views].reshape(-1, 3)
    baseline = centers[ends[:, 1]] - centers[ends[:, 0]]
    bend = direction_angle_deg(baseline, direction)
    undetermined = _undetermined(matrix * lengths[:, None, None], free, num_views)
    if not has_scale:
        centers = centers - centers[index[next(iter(known), views[0])]]
        centers = centers / max(float(np.median(np.linalg.norm(baseline, axis=-1))), 1e-12)
    return centers, tuple(views[row] for row in undetermined), bend


def _undetermined(matrix: Float[Array, "E 3 F"], free: NDArray[np.int64], num_views: int) -> list[int]:
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
            for view in {*pairs[one].views} & {*pairs[other].views}:
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
    for _ in range(_POSITION_ITERATIONS if len(ends) else 0):
        weight = np.maximum(np.abs(rows @ logs_of - right), _MIN_POSITION_RESIDUAL) ** -0.5
        logs_of = np.linalg.lstsq(rows * weight[:, None], right * weight, rcond=None)[0]
    for group in np.unique(groups):
        logs_of[groups == group] -= np.median(logs_of[groups == group])
    return np.exp(logs_of), groups


def _depths(pair: PairPose, lenses: Sequence[Lens]) -> dict[int, tuple[Array, Array]]:
    """Return, per view of a pair, the ids of its matches and their distances from the camera in baselines."""
    matches = pair.matches
    if matches is None:
        return {view: (np.zeros(0), np.zeros(0)) for view in pair.views}
    first, second = (
        unit_rays(normalized_points(pixels, lenses[view]))
        for pixels, view in zip((matches.first, matches.second), pair.views, strict=True)
    )
    pose = pose_of(pair)
    turned = first @ pose.rotation.T
    normal = np.cross(turned, second)
    squared = np.maximum((normal**2).sum(-1), 1e-12)
    # Distances along both rays to their closest points: a * turned + direction = b * second.
    near = (np.cross(second, pose.direction) * normal).sum(-1) / squared
    far = (np.cross(turned, pose.direction) * normal).sum(-1) / squared
    usable = (near > 0) & (far > 0)
    sides = ((matches.first_ids[usable], near[usable]), (matches.second_ids[usable], far[usable]))
    return dict(zip(pair.views, sides, strict=True))


_ALL_PAIRS = 5
"""Up to this number of views (10 pairs) all pairs are tried."""

_PARTNERS = 4
"""Partners that each view is tried with first in larger rigs: 32 pairs of 16 views, and many loops."""

_LINKS = 3
"""Pairs tried between any two parts of a graph that is not connected."""

_AFFINITY_STEPS = 5
"""Affinities are compared in steps of this fraction of the largest; within a step, views that are close in order are
preferred: the order of cameras often follows the rig."""

_WIDE = 8
"""After its neighbours a view is tried with those an eighth of the views away: neighbours in a ring of 64 are 6
degrees apart, too close to determine a pair."""

_LOOP_LIMIT_DEG = 15.0
"""Rotation of a loop of three pairs that counts as a contradiction: right pairs are wrong by up to 6 degrees each."""

_CONFIRMED_DEG = 4.0
"""Rotation of a loop of three pairs that confirm each other: wrong pairs close one by chance in 1 of 50,000 cases."""

ROTATION_LIMIT_DEG = 10.0
DIRECTION_LIMIT_DEG = 25.0
"""Deviations of a pair from the averaged rig beyond which it is dropped; right pairs stay below 6 degrees, and
directions of short baselines vary more."""

_ROTATION_ITERATIONS = 50
_MIN_ROTATION_RESIDUAL = 1e-3
"""Residuals in radians below which L1 weights grow no more."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Initial cameras of one connected part: views in order, `world_to_camera` [n, 4, 4], pairs in use.

    Without known cameras the first view is the world, and the median baseline is 1. `dropped` are wrong pairs, with
    the reason, `undetermined` the views whose distance follows from no pair.
    """

    views: tuple[int, ...]
    world_to_camera: Float[Array, "n 4 4"]
    pairs: tuple[PairPose, ...]
    dropped: tuple[PairPose, ...] = ()
    undetermined: tuple[int, ...] = ()


def choose_pairs(affinity: Float[Array, "V V"]) -> tuple[Pair, ...]:
    """Return the pairs of views to try first, by common evidence `affinity`; pairs without any are never tried."""
    num_views = len(affinity)
    order = _ranking(affinity)
    if num_views <= _ALL_PAIRS:
        return tuple(order)
    chosen: set[Pair] = set()
    for view in range(num_views):
        chosen |= set([pair for pair in order if view in pair][:_PARTNERS])
    for first, second in order:  # a spanning tree of what can be connected
        if not any({first, second} <= {*part} for part in connected_parts(num_views, sorted(chosen))):
            chosen.add((first, second))
    return tuple(pair for pair in order if pair in chosen)


def choose_links(affinity: Float[Array, "V V"], tried: set[Pair], accepted: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return untried pairs that may connect the parts of the graph of accepted pairs."""
    parts = connected_parts(len(affinity), accepted)
    part_of = {view: index for index, part in enumerate(parts) for view in part}
    count: dict[Pair, int] = {}
    chosen = []
    for first, second in _ranking(affinity):
        link = (min(part_of[first], part_of[second]), max(part_of[first], part_of[second]))
        if link[0] != link[1] and (first, second) not in tried and count.get(link, 0) < _LINKS:
            count[link] = count.get(link, 0) + 1
            chosen.append((first, second))
    return tuple(chosen)


def _ranking(affinity: Float[Array, "V V"]) -> list[Pair]:
    num_views = len(affinity)
    largest = max(float(affinity.max(initial=0.0)), 1e-300)
    first_gaps = 1, max(round(num_views / _WIDE), 2)

    def key(pair: Pair) -> tuple[int, bool, int, Pair]:
        gap = min(pair[1] - pair[0], num_views - pair[1] + pair[0])
        level = round(_AFFINITY_STEPS * float(affinity[pair]) / largest)
        return -level, gap not in first_gaps, gap, pair

    return sorted((pair for pair in combinations(range(num_views), 2) if affinity[pair] > 0), key=key)


def connected_parts(num_views: int, links: Sequence[Pair]) -> tuple[tuple[int, ...], ...]:
    """Return the connected parts, largest first, then by their first view."""
    first, second = np.array(list(links), int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(num_views, num_views))
    _, labels = connected_components(graph, directed=False)
    parts = [tuple(map(int, np.flatnonzero(labels == label))) for label in np.unique(labels)]
    return tuple(sorted(parts, key=lambda part: (-len(part), part)))


def main_parts(num_views: int, pairs: Sequence[PairPose], known: Sequence[int] = ()) -> tuple[tuple[int, ...], ...]:
    """Return the parts that pairs connect: first that of `known` views, which are one, if there are any.

    Else the largest, of equal ones that with the most matches: without a loop, a pair of few is wrong more often.
    """
    parts = connected_parts(num_views, [*(pair.views for pair in pairs), *pairwise(known)])
    matches = dict.fromkeys(range(num_views), 0)
    for pair in pairs:
        matches[pair.views[0]] += 0 if pair.matches is None else len(pair.matches.first)

    def order(part: tuple[int, ...]) -> tuple[bool, int, int]:
        return not {*known} <= {*part}, -len(part), -sum(matches[view] for view in part)

    return tuple(sorted(parts, key=order))


def drop_loops(
    pairs: Sequence[PairPose], tolerance: float = 1.0
) -> tuple[tuple[PairPose, ...], tuple[PairPose, ...]]:
    """Drop pairs that contradict loops of three views, until no loop contradicts; return the rest and the dropped.

    The pair with the most contradicting and fewest consistent loops is dropped first; of equal ones the weakest.
    """
    kept = list(pairs)
    dropped: list[PairPose] = []
    while True:
        votes = np.zeros((len(kept), 2), int)
        worst = np.zeros(len(kept))
        for loop, error in _loops(kept):
            bad = error > tolerance * _LOOP_LIMIT_DEG
            votes[list(loop), int(bad)] += 1
            worst[list(loop)] = np.maximum(worst[list(loop)], error if bad else 0.0)
        guilty = [index for index in range(len(kept)) if votes[index, 1]]
        if not guilty:
            return tuple(kept), tuple(dropped)
        index = min(guilty, key=lambda i: (votes[i, 0] - votes[i, 1], kept[i].evidence, kept[i].score, i))
        dropped.append(replace(kept.pop(index), reason=f"contradicts other pairs by {worst[index]:.0f} degrees"))


def confirmed(pairs: Sequence[PairPose]) -> tuple[PairPose, ...]:
    """Return the pairs that need a loop and have one, with an accepted pair in it, as accepted ones."""
    known = [pair for pair in pairs if pair.is_accepted or pair.needs_loop]
    right: set[int] = set()
    for loop, error in _loops(known):
        if error < _CONFIRMED_DEG and any(known[index].is_accepted for index in loop):
            right |= set(loop)
    return tuple(replace(known[i], reason="", needs_loop=False) for i in sorted(right) if known[i].needs_loop)


def views_in_loops(links: Iterable[Pair]) -> set[int]:
    """Return the views with two partners at least, among those that have."""
    kept = {*links}
    while True:
        partners = Counter(view for link in kept for view in link)
        inside = {link for link in kept if min(partners[view] for view in link) > 1}
        if inside == kept:
            return {*partners}
        kept = inside


def _loops(pairs: Sequence[PairPose]) -> list[tuple[tuple[int, int, int], float]]:
    """Return the indices of three pairs that form a loop, and the loop's rotation in degrees."""
    between: defaultdict[Pair, list[tuple[int, Array]]] = defaultdict(list)
    for index, pair in enumerate(pairs):
        rotation = pose_of(pair).rotation
        between[pair.views].append((index, rotation))
        between[pair.views[::-1]].append((index, rotation.T))
    views = sorted({view for link in between for view in link})
    return [
        ((one, two, three), float(rotation_angle_deg(b_to_c @ a_to_b, a_to_c)))
        for a, b, c in combinations(views, 3)
        for (one, a_to_b), (two, b_to_c), (three, a_to_c) in product(between[a, b], between[b, c], between[a, c])
    ]


def average_rotations(
    views: Sequence[int], pairs: Sequence[PairPose], known: KnownPoses = MappingProxyType({})
) -> Float[Array, "n 3 3"]:
    """Return the rotations world to camera with the smallest sum of angles to the pairs'.

    Known cameras keep theirs; without any, the first is the identity. The views are connected by pairs and known
    poses. The start is a spanning tree in order of the pairs.

    Source: Chatterjee & Govindu, "Robust relative rotation averaging", TPAMI 2018 (iteratively reweighted).
    """
    index = {view: row for row, view in enumerate(views)}
    kept = {view: known[view][:3, :3] for view in views if view in known} or {views[0]: np.eye(3)}
    free = np.array([row for row, view in enumerate(views) if view not in kept], int)
    rotations = _spanning_tree(views, pairs, kept)
    ends = np.array([[index[view] for view in pair.views] for pair in pairs]).reshape(-1, 2)
    relative = np.stack([pose_of(pair).rotation for pair in pairs])
    incidence = np.zeros((len(pairs), len(views)))
    incidence[np.arange(len(pairs)), ends[:, 0]] = -1
    incidence[np.arange(len(pairs)), ends[:, 1]] = 1
    for _ in range(_ROTATION_ITERATIONS):
        first, second = rotations[ends[:, 0]], rotations[ends[:, 1]]
        error = Rotation.from_matrix(np.swapaxes(second, 1, 2) @ relative @ first).as_rotvec()
        weight = np.maximum(np.linalg.norm(error, axis=-1), _MIN_ROTATION_RESIDUAL) ** -0.5
        rows = incidence[:, free] * weight[:, None]
        turn = np.linalg.lstsq(rows, error * weight[:, None], rcond=None)[0]
        rotations[free] = rotations[free] @ exp_rotation(turn)
        if np.abs(turn).max(initial=0.0) < 1e-10:
            break
    return rotations


def _spanning_tree(
    views: Sequence[int], pairs: Sequence[PairPose], kept: Mapping[int, Float[Array, "3 3"]]
) -> Float[Array, "n 3 3"]:
    found, ranked = dict(kept), sorted(pairs, key=lambda pair: (-pair.score, pair.views))
    while len(found) < len(views):
        pair = next(pair for pair in ranked if len(found.keys() & {*pair.views}) == 1)
        first, second = pair.views
        if first in found:
            found[second] = pose_of(pair).rotation @ found[first]
        else:
            found[first] = pose_of(pair).rotation.T @ found[second]
    return np.stack([found[view] for view in views])


def place(
    part: Sequence[int],
    pairs: Sequence[PairPose],
    lenses: Sequence[Lens],
    tolerance: float = 1.0,
    known: KnownPoses = MappingProxyType({}),
) -> Placement:
    """Return the initial cameras of a connected part, without the pairs that the others contradict.

    `tolerance` multiplies the limits of contradictions. Where dropped pairs disconnect the part, its main rest is
    placed. `known` cameras, which connect each other, keep their poses.
    """
    inside, dropped = drop_loops([pair for pair in pairs if {*pair.views} <= {*part}], tolerance)
    while True:
        views = main_parts(len(lenses), inside, [*known])[0]
        inside = tuple(pair for pair in inside if pair.views[0] in views)
        if not inside:
            return Placement(views=views[:1], world_to_camera=np.eye(4)[None], pairs=(), dropped=dropped)
        rotations = average_rotations(views, inside, known)
        centers, undetermined, bend = locate(views, inside, rotations, lenses, known)
        of_views = dict(zip(views, rotations, strict=True))
        between = [of_views[second] @ of_views[first].T for first, second in (pair.views for pair in inside)]
        turn = rotation_angle_deg(np.stack(between), np.stack([pose_of(pair).rotation for pair in inside]))
        excess = np.maximum(turn / ROTATION_LIMIT_DEG, bend / DIRECTION_LIMIT_DEG)
        worst = int(excess.argmax())
        if excess[worst] <= tolerance:
            break
        text = f"{turn[worst]:.0f} degrees in rotation and {bend[worst]:.0f} in direction from the other pairs"
        dropped = (*dropped, replace(inside[worst], reason=text))
        inside = inside[:worst] + inside[worst + 1 :]
    cameras = np.tile(np.eye(4), (len(views), 1, 1))
    cameras[:, :3, :3] = rotations
    cameras[:, :3, 3] = -np.einsum("nij,nj->ni", rotations, centers)
    for row, view in enumerate(views):
        cameras[row] = known.get(view, cameras[row])
    kept = [row for row, view in enumerate(views) if view not in undetermined]
    placed = tuple(views[row] for row in kept)
    used = tuple(pair for pair in inside if {*pair.views} <= {*placed})
    return Placement(
        views=placed, world_to_camera=cameras[kept], pairs=used, dropped=dropped, undetermined=undetermined
    )
