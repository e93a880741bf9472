"""Adjustment of a static rig over body keypoints and texture, with unknown lenses.

Observations of one scene point are merged from the matches of accepted pairs of views.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.linalg import block_diag

from page4d.rig.edges import Directions
from page4d.rig.least_squares import LeastSquares, Normal, by_motion, in_camera, motions
from page4d.rig.lens import START_FOCAL
from page4d.rig.people.pairs import TOLERANCE
from page4d.rig.records import (
    NUM_JOINTS,
    Array,
    Evidence,
    FocalSource,
    Indices,
    Lens,
    PairPose,
    exp_rotation,
    log_rotation,
)


@dataclass(frozen=True, kw_only=True)
class Observations:
    """N observations of P scene points, ordered by point, at most one per point and view.

    `pixels` are undistorted original pixels, `weights` in (0, 1]. Per point, `person` is the index of the person at
    one instant that it belongs to, `instant` and `joint` those of the keypoint; all three are -1 for texture.
    """

    view: Int[Indices, " N"]
    point: Int[Indices, " N"]
    pixels: Float[Array, "N 2"]
    weights: Float[Array, " N"]
    person: Int[Indices, " P"]
    instant: Int[Indices, " P"]
    joint: Int[Indices, " P"]

    @property
    def num_points(self) -> int:
        """Number of scene points P."""
        return len(self.person)

    @property
    def is_people(self) -> Bool[NDArray[np.bool_], " N"]:
        """Whether each observation is a body keypoint."""
        people: NDArray[np.bool_] = self.joint[self.point] >= 0
        return people

    def select(self, observations: Bool[NDArray[np.bool_], " N"]) -> "Observations":
        """Keep some observations; points with fewer than two of them are dropped."""
        count = np.bincount(self.point[observations], minlength=self.num_points)
        kept = observations & (count >= 2)[self.point]
        points, renumbered = np.unique(self.point[kept], return_inverse=True)
        return Observations(
            view=self.view[kept],
            point=renumbered,
            pixels=self.pixels[kept],
            weights=self.weights[kept],
            person=self.person[points],
            instant=self.instant[points],
            joint=self.joint[points],
        )


def merge_tracks(pairs: Sequence[PairPose], num_instants: int) -> Observations:
    """Merge the matches of pairs into tracks, those of people first.

    Persons (per instant) and texture features that are matched in several pairs become one, in order of the pairs'
    scores; a match that would join two persons or features of one view is ignored.
    """
    kinds = list(Evidence)
    ranked = sorted(pairs, key=lambda pair: (kinds.index(pair.evidence), -pair.score, pair.views))
    groups = _Groups()
    sides: list[tuple[Array, Array, Array]] = []
    for pair in ranked:
        if (match := pair.matches) is None:
            continue
        kind, joints = kinds.index(pair.evidence), NUM_JOINTS if pair.evidence is Evidence.PEOPLE else 1
        both = np.stack([match.first_ids // joints, match.second_ids // joints])
        linked, count = np.unique(both, axis=1, return_counts=True)
        for first, second in linked[:, np.argsort(-count, kind="stable")].T.tolist():
            groups.join((pair.views[0], kind, first), (pair.views[1], kind, second))
        ends = ((match.first_ids, match.first), (match.second_ids, match.second))
        for view, (ids, pixels) in zip(pair.views, ends, strict=True):
            keys = np.stack([np.full_like(ids, kind), np.full_like(ids, view), ids // joints, ids % joints])
            sides.append((keys, pixels.T, match.weights))
    none = (np.zeros((4, 0), np.int64), np.zeros((2, 0)), np.zeros(0))
    keys, pixels, weights = (np.concatenate(column, axis=-1) for column in zip(none, *sides, strict=True))
    seen, once, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    _, view, member, joint = seen
    inverse = inverse.reshape(-1)
    group = np.array([groups.number(tuple(one)) for one in seen[[1, 0, 2]].T.tolist()], np.int64)
    key, point = np.unique(group * NUM_JOINTS + joint, return_inverse=True)
    order = np.lexsort((view, point))
    place = np.zeros(len(key), np.int64)
    place[point] = np.arange(len(point))
    people = kinds.index(Evidence.PEOPLE) == seen[0, place]
    return Observations(
        view=view[order],
        point=point[order],
        pixels=pixels.T[once][order],
        weights=(np.bincount(inverse, weights=weights) / np.bincount(inverse))[order],
        person=np.where(people, key // NUM_JOINTS, -1),
        instant=np.where(people, member[place] % max(num_instants, 1), -1),
        joint=np.where(people, key % NUM_JOINTS, -1),
    ).select(np.ones(len(order), bool))


_Member = tuple[int, ...]
"""A view, the kind of evidence, and a person or feature in it."""


class _Groups:
    """Disjoint sets of members with at most one member per view."""

    def __init__(self) -> None:
        self._group: dict[_Member, int] = {}
        self._members: list[list[_Member]] = []

    def number(self, member: _Member) -> int:
        """Return the number of the member's group."""
        if member not in self._group:
            self._group[member] = len(self._members)
            self._members.append([member])
        return self._group[member]

    def join(self, first: _Member, second: _Member) -> None:
        """Join two groups unless both have a member of one view."""
        one, other = self.number(first), self.number(second)
        views = {member[0] for member in self._members[one]}
        if one == other or any(member[0] in views for member in self._members[other]):
            return
        for member in self._members[other]:
            self._group[member] = one
        self._members[one] += self._members[other]
        self._members[other] = []


_MIN_SPREAD = 1.5e-4
"""Smallest eigenvalue of the sum of I - d d^T over a point's rays: 1 - cos of 1 degree, for two rays."""

_ROUNDS = 5
_SCALE = 0.01
"""Distance of a ray from its point, over the depth, at which the ray's weight is halved: 2 to 3 thresholds of pairs,
so that one wrong ray of three or more does not displace the point."""


def rays(
    world_to_camera: Float[Array, "V 4 4"], intrinsics: Float[Array, "V 3 3"], tracks: Observations
) -> tuple[Float[Array, "N 3"], Float[Array, "N 3"]]:
    """Return the camera centre and the unit direction in the world of every observation."""
    rotation, translation = world_to_camera[:, :3, :3], world_to_camera[:, :3, 3:]
    centers = -(np.swapaxes(rotation, 1, 2) @ translation)[..., 0]
    ones = np.ones((len(tracks.pixels), 1))
    plane = np.concatenate([tracks.pixels, ones], -1)[..., None]
    to_world = np.swapaxes(rotation, 1, 2) @ np.linalg.inv(intrinsics)
    direction = (to_world[tracks.view] @ plane)[..., 0]
    return centers[tracks.view], direction / np.linalg.norm(direction, axis=-1, keepdims=True)


def triangulate(
    world_to_camera: Float[Array, "V 4 4"], intrinsics: Float[Array, "V 3 3"], tracks: Observations
) -> tuple[Float[Array, "P 3"], Bool[NDArray[np.bool_], " P"]]:
    """Return the point nearest to the rays of each track (weighted, robust), and whether it is determined.

    A point is determined if its rays are not parallel and it lies in front of its cameras. Points need at least one
    observation per point.
    """
    if tracks.num_points == 0:
        return np.zeros((0, 3)), np.zeros(0, bool)
    starts = np.flatnonzero(np.diff(tracks.point, prepend=-1))
    center, direction = rays(world_to_camera, intrinsics, tracks)
    across = np.eye(3) - direction[:, :, None] * direction[:, None, :]
    spread = np.linalg.eigvalsh(np.add.reduceat(across, starts))[:, 0]
    weight: Array = tracks.weights
    points: Array = np.zeros((tracks.num_points, 3))
    for _ in range(_ROUNDS):
        weighted = across * weight[:, None, None]
        matrix = np.add.reduceat(weighted, starts) + 1e-12 * np.eye(3)
        right = np.add.reduceat((weighted @ center[..., None])[..., 0], starts)
        points = np.asarray(np.linalg.solve(matrix, right[..., None])[..., 0], np.float64)
        offset = points[tracks.point] - center
        depth = (offset * direction).sum(-1)
        distance: Array = np.linalg.norm(offset - depth[:, None] * direction, axis=-1)
        relative = distance / (_SCALE * np.maximum(np.abs(depth), 1e-12))
        # Nearer cameras see an error larger: divide distances by depth.
        weight = tracks.weights / (1 + relative**2) / np.maximum(depth**2, 1e-24)
        weight = weight / np.maximum.reduceat(weight, starts)[tracks.point]
    local = np.einsum("nj,nj->n", world_to_camera[tracks.view, 2, :3], points[tracks.point])
    front = np.minimum.reduceat(local + world_to_camera[tracks.view, 2, 3], starts) > 0
    return points, front & (spread > _MIN_SPREAD)


def joints_of(points: Float[Array, "P 3"], tracks: Observations) -> Float[Array, "N J 3"]:
    """Return the joints of the person of every number, who is one at an instant; NaN where they are unknown."""
    people = tracks.joint >= 0
    joints = np.full((int(tracks.person.max(initial=-1)) + 1, NUM_JOINTS, 3), np.nan)
    joints[tracks.person[people], tracks.joint[people]] = points[people]
    return joints


CORRELATED_POSES = 10
"""Poses of people that count as an independent one: those of a third of a second."""

_PEOPLE_SIGMA = 0.006
"""Cauchy scale of body keypoints in focal lengths: 10 px at 1080p, two thirds of the threshold of pairs. Scales of
0.0015 to 0.01 give the same cameras; larger ones converge faster."""

TEXTURE_SIGMA = 0.001
"""Cauchy scale of texture features in focal lengths: 1 to 2 px at 1080p."""

_JOINTS_PER_SAMPLE = 8.0
"""Keypoints of a person at an instant have correlated errors: this many count as one independent observation."""

_FOCAL_PRIOR = 0.5
"""Sigma of the mean logarithm of unknown focal lengths around 1.2 long sides: fields of view of 27 to 68 degrees."""

_FOCAL_SPREAD = 0.1
"""Sigma of the logarithms of unknown focal lengths, in long sides, around their mean: where a lens is not determined,
it has the focal length of the others. Estimates from people change by 2 % between 0.05 and 1."""

_K1_PRIOR = 0.4
"""Sigma of k1 of an unknown lens around 0, for cameras of -0.35 to 0.2: 0.15 would halve some estimates from people,
whose keypoints count little."""

_MAX_POINTS = 12_000
"""Points that are adjusted; more change the result less than its bias, and the time grows with them."""

_MAX_ITERATIONS = 60
_TOLERANCE = 1e-5
"""Relative decrease of the cost at convergence; 1e-9 changes rotations by 0.01 degrees."""

_FIRST_TOLERANCE = 1e-3
"""The same in the first adjustment, which serves to find outliers."""

_OUTLIER = 4.5
"""Observations beyond this many sigmas (3 thresholds of pairs) are dropped after the first adjustment."""

_INDEPENDENT, _PEOPLE_INDEPENDENT = 4.0, 0.07
"""Observations of texture per view, and weights of people, that count as independent against directions of edges:
rotations from people are 1.4 degrees wrong."""

_HELD_FOCAL = 0.005
_HELD_CALIBRATED, _HELD_ASSUMED, _HELD_CROPPED = (0.02, 0.005), (0.05, 0.02), (0.05, 0.04)
"""Standard deviations of lens parameters that are not estimated: of the log focal length of known lenses; of k1, and
of the principal point in long sides along both axes, of calibrated lenses, of others, and of pictures that were
cropped. With 0.001, errors of rotations of `caliscope_a` are four times the stated ones; docs/validation.md has
those with these values. Of 12 calibrated lenses principal points are 0.2 to 2.7 % off the centre, 1.4 % in the root
mean square; those that edges show of 16 cropped pictures are wrong by 2.8 % in the median."""

_PARTS = np.array([0] * 11 + [1, 2] * 6 + [3, 4] * 5)
"""Parts of the body of all joints, whose errors are biased together: head, arms and legs."""

_CELLS = 4
"""Cells per side of a picture whose texture has common errors."""

RESIDUAL_LIMIT = TOLERANCE
"""Median residual in focal lengths beyond which a camera does not fit the others."""

_GRID = 5
_DEPTHS = (0.25, 0.75)
"""Pixels per side of a picture, and quantiles of the depths of its points, at which epipolar lines are examined."""

BEHIND = 1e3
"""Residual in sigmas of a point behind a camera; its derivative is 0."""

_SAME_PLACE = 1e-6
"""Distance of fixed cameras from the origin up to which they are at one point."""

_MAX_LENS_STEP = np.array([0.3, 0.1])
_MAX_K1 = 0.6
"""Bounds of steps of log focal lengths and k1, and of k1."""

_UNBENDINGS = 20
"""Rounds in which distortion is inverted: errors fall by a factor of 2 at k1 = -0.3 and the edge of wide lenses."""

_FAR = 1.0
"""Squared radius in focal lengths beyond which distortion grows no more: the polynomial would fold back."""


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """Adjusted cameras and points of a part of the rig; fixed cameras and the scale are those of the start.

    Of each lens, `log_focal` is the logarithm of the factor on its focal length, `focal_std` its standard deviation;
    `k1` and `k1_std` are those of radial distortion. All are 0 where the lens is known. `residual_px` are errors of
    reprojection of the observations of `tracks`. `directed` are the cameras with directions of edges. `covariance` is
    that of the motions of all cameras in their frames (rotation vector, translation), their log focal lengths, k1,
    and principal points in focal lengths; `evidence_covariance` is that if lens parameters that stay are right.
    """

    world_to_camera: Float[Array, "V 4 4"]
    intrinsics: Float[Array, "V 3 3"]
    log_focal: Float[Array, " V"]
    focal_std: Float[Array, " V"]
    k1: Float[Array, " V"]
    k1_std: Float[Array, " V"]
    points: Float[Array, "P 3"]
    tracks: Observations
    residual_px: Float[Array, " N"]
    directed: tuple[int, ...] = ()
    covariance: Float[Array, "10V 10V"]
    evidence_covariance: Float[Array, "10V 10V"]

    @property
    def evidence_std(self) -> Float[Array, " V"]:
        """Standard deviations of the log focal lengths if lens parameters that are not estimated are right."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.evidence_covariance)[6::10], 0.0)))

    def distance_std(self, first: int, second: int) -> float:
        """Return the relative standard deviation of the distance between two cameras, in a rig of fixed size."""
        both = self.world_to_camera[[first, second]]
        rotation = np.swapaxes(both[:, :3, :3], 1, 2)
        apart = np.subtract(*(rotation @ both[:, :3, 3:])[..., 0])
        change = np.concatenate([both[0, :3, :3] @ apart, -both[1, :3, :3] @ apart])
        moved = np.concatenate([np.arange(10 * view + 3, 10 * view + 6) for view in (first, second)])
        variance = float(change @ self.covariance[np.ix_(moved, moved)] @ change)
        return float(np.sqrt(max(variance, 0.0)) / max(float(apart @ apart), 1e-300))

    def rotation_std_deg(self, *, of_evidence: bool = False) -> Float[Array, "V V"]:
        """Return the standard deviations of the rotations between every two cameras, in all or from evidence."""
        turns = self.world_to_camera[:, :3, :3]
        covariance = self.evidence_covariance if of_evidence else self.covariance
        blocks = covariance.reshape(len(turns), 10, len(turns), 10)[:, :3, :, :3]
        variance = np.einsum("iaia->i", blocks)
        common = np.einsum("iajb,jbc,iac->ij", blocks, turns, turns)
        return np.asarray(np.degrees(np.sqrt(np.maximum(variance[:, None] + variance - 2 * common, 0.0))))

    def epipolar_std_px(self, sizes: Sequence[tuple[int, int]]) -> Float[Array, "V V"]:
        """Return standard deviations, in pixels of the second view, of the epipolar lines of pixels of the first.

        They are root mean squares over pixels spread over the first picture, at the depths of most points in front of
        it; `sizes` are the (height, width) of the pictures. NaN where no such point is seen in both views.
        """
        cells = (np.arange(_GRID) + 0.5) / _GRID
        grid = np.stack(np.meshgrid(cells, cells, [1.0], indexing="ij"), -1).reshape(-1, 3)
        std = np.full((len(sizes), len(sizes)), np.nan)
        for first, second in np.argwhere(~np.eye(len(sizes), dtype=bool)):
            camera, matrix = self.world_to_camera[first], self.intrinsics[second]
            rays = grid * [*sizes[first][::-1], 1.0] @ np.linalg.inv(self.intrinsics[first]).T
            depths = self.points @ camera[2, :3] + camera[2, 3]
            if not (depths > 0).any():
                continue
            depth = np.quantile(depths[depths > 0], _DEPTHS)
            local = (depth[:, None, None] * rays).reshape(-1, 3)
            relative = self.world_to_camera[second] @ np.linalg.inv(camera)
            seen = local @ relative[:3, :3].T + relative[:3, 3]
            pixels = seen @ matrix[:2].T / seen[:, 2:]
            shown = (seen[:, 2] > 0) & ((pixels > 0) & (pixels < sizes[second][::-1])).all(-1)
            if not shown.any():
                continue
            local, seen = local[shown], seen[shown]
            by_seen = matrix[:2, :2] @ by_local(seen)
            along = (by_seen @ relative[:3, :3] @ local[..., None])[..., 0]  # direction of the epipolar line
            across = np.stack([-along[:, 1], along[:, 0]], -1) / np.linalg.norm(along, axis=-1, keepdims=True)
            by_seen = across[:, None] @ by_seen
            # A pixel of the first camera keeps its place: the scene moves with the camera instead.
            change = np.concatenate([-by_seen @ relative[:3, :3] @ _by_camera(local), by_seen @ _by_camera(seen)], -1)
            both = np.concatenate([np.arange(10 * view, 10 * view + 10) for view in (first, second)])
            variance = (change @ self.covariance[np.ix_(both, both)] @ np.swapaxes(change, 1, 2)).mean()
            std[first, second] = np.sqrt(max(float(variance), 0.0))
        return std


def adjust(
    world_to_camera: Float[Array, "V 4 4"],
    lenses: Sequence[Lens],
    tracks: Observations,
    groups: Int[Indices, " V"],
    *,
    k1: Mapping[int, float] = MappingProxyType({}),
    texture_sigma: float = TEXTURE_SIGMA,
    fixed: Collection[int] = (0,),
    directions: Mapping[int, Directions] = MappingProxyType({}),
) -> Adjustment | None:
    """Triangulate tracks and adjust cameras, points and unknown lenses, each of a group of equal ones; -1 is known.

    The distortion of the unknown lenses with a `k1` is estimated, too; tracks are undistorted by that value.
    `texture_sigma` is the Cauchy scale of texture in focal lengths. `fixed` cameras stay; if they are at one point,
    which for several must be the origin, the scale stays, too. `directions` are those of straight edges in some
    views, of the same three orthogonal axes. Observations far from the result of a first adjustment are dropped and a
    second one follows. The result is None if no point can be triangulated.
    """
    bent = np.zeros(len(groups))
    bent[list(k1)] = list(k1.values())
    matrices = np.stack([lens.intrinsics for lens in lenses])
    tracks = _through(_distorted, bent, matrices, _thinned(tracks))
    values = np.zeros((groups.max(initial=-1) + 1, 2))
    values[groups[list(k1)], 1] = list(k1.values())
    cameras, axes = world_to_camera, np.eye(3)
    for view, seen in [*directions.items()][:1]:
        axes = cameras[view, :3, :3].T @ seen.rotation
    for is_last in (False, True):
        points, usable = triangulate(cameras, matrices, _through(_undistorted, bent, matrices, tracks))
        tracks = tracks.select(usable[tracks.point])
        if tracks.num_points == 0:
            return None
        problem = _Problem(tracks, lenses, groups, groups[list(k1)], texture_sigma, fixed, directions)
        start = _State(cameras, points[usable], values, axes)
        tolerance = _TOLERANCE if is_last else _FIRST_TOLERANCE
        state = problem.minimise(start, tolerance, _MAX_ITERATIONS)
        bent = problem.of_views(state.lenses)[:, 1]
        cameras, values, axes = state.cameras, state.lenses, state.axes
        matrices = problem.scaled_intrinsics(values)
        distance = np.linalg.norm(problem.residuals(state), axis=-1)
        if not is_last:
            tracks = tracks.select(distance < _OUTLIER)
    problem = _Problem(tracks, lenses, groups, groups[list(k1)], texture_sigma, fixed, directions, holds=True)
    noise, covariance = problem.covariance(state)
    std = np.sqrt(np.maximum([np.diag(one).reshape(-1, 10)[:, 6:8] for one in (covariance, noise)], 0.0))
    return Adjustment(
        world_to_camera=cameras,
        intrinsics=matrices,
        log_focal=problem.of_views(values)[:, 0],
        focal_std=np.where(groups < 0, 0.0, std[0, :, 0]),
        k1=bent,
        k1_std=std[1, :, 1],
        points=state.points,
        tracks=tracks,
        residual_px=distance * problem.sigma_px,
        directed=(*directions,),
        covariance=covariance,
        evidence_covariance=noise,
    )


def _thinned(tracks: Observations) -> Observations:
    """Keep at most `_MAX_POINTS` points, evenly spaced."""
    if tracks.num_points <= _MAX_POINTS:
        return tracks
    kept = np.zeros(tracks.num_points, bool)
    kept[np.linspace(0, tracks.num_points - 1, _MAX_POINTS).astype(int)] = True
    return tracks.select(kept[tracks.point])


def _through(
    change: Callable[[Float[Array, "N 2"], Float[Array, " N"]], Float[Array, "N 2"]],
    k1: Float[Array, " V"],
    intrinsics: Float[Array, "V 3 3"],
    tracks: Observations,
) -> Observations:
    """Return tracks with distorted or undistorted pixels."""
    if not k1.any():
        return tracks
    matrix, center = intrinsics[tracks.view, :2, :2], intrinsics[tracks.view, :2, 2]
    plane = np.asarray(np.linalg.solve(matrix, (tracks.pixels - center)[..., None])[..., 0], np.float64)
    changed = change(plane, k1[tracks.view])
    return replace(tracks, pixels=(matrix @ changed[..., None])[..., 0] + center)


def _distorted(plane: Float[Array, "N 2"], k1: Float[Array, " N"]) -> Float[Array, "N 2"]:
    """Return distorted normalised coordinates."""
    return np.asarray(plane * (1 + k1 * np.minimum((plane**2).sum(-1), _FAR))[:, None])


def _undistorted(plane: Float[Array, "N 2"], k1: Float[Array, " N"]) -> Float[Array, "N 2"]:
    """Return the ideal of distorted normalised coordinates."""
    ideal = plane
    for _ in range(_UNBENDINGS):
        ideal = plane / (1 + k1 * np.minimum((ideal**2).sum(-1), _FAR))[:, None]
    return ideal


@dataclass(frozen=True)
class _State:
    """Cameras, points, per group of lenses the log factor on the focal length and k1, and three orthogonal axes."""

    cameras: Float[Array, "V 4 4"]
    points: Float[Array, "P 3"]
    lenses: Float[Array, "G 2"]
    axes: Float[Array, "3 3"]


def by_local(local: Float[Array, "N 3"]) -> Float[Array, "N 2 3"]:
    """Return the derivatives of x / z and y / z."""
    x, y, z = local.T
    zero = np.zeros_like(x)
    return np.stack([np.stack([1 / z, zero, -x / z**2], -1), np.stack([zero, 1 / z, -y / z**2], -1)], -2)


def _by_camera(local: Float[Array, "N 3"]) -> Float[Array, "N 3 10"]:
    """Return the derivatives of points by the camera's motion and lens, which magnifies and shifts x and y."""
    magnified = local * [1.0, 1.0, 0.0]
    squared = (magnified**2).sum(-1, keepdims=True) / local[:, 2:] ** 2
    shift = local[:, 2:, None] * np.eye(3)[:, :2]
    return np.concatenate([by_motion(local), np.stack([magnified, squared * magnified], -1), shift], -1)


def _held(lens: Lens) -> tuple[float, float]:
    """Return the standard deviations of k1 and of the principal point in long sides, if they are not estimated."""
    if lens.focal_source is FocalSource.CALIBRATION:
        return _HELD_CALIBRATED
    return _HELD_ASSUMED if lens.is_centered else _HELD_CROPPED


class _Problem(LeastSquares[_State]):
    """Adjustment of cameras, by motions in their frames, and of the lenses of groups; blocks are points."""

    def __init__(
        self,
        tracks: Observations,
        lenses: Sequence[Lens],
        groups: Int[Indices, " V"],
        bent: Collection[int],
        texture_sigma: float,
        fixed: Collection[int],
        directions: Mapping[int, Directions],
        *,
        holds: bool = False,
    ) -> None:
        self.tracks, self.lenses, self.groups, self.directions = tracks, lenses, groups, directions
        self.view, self.block = tracks.view, tracks.point
        self.intrinsics = np.stack([lens.intrinsics for lens in lenses])
        focal, side = np.array([(lens.focal, max(lens.image_size)) for lens in lenses]).T
        self.sigma_px = focal[tracks.view] * np.where(tracks.is_people, _PEOPLE_SIGMA, texture_sigma)
        self.weights = tracks.weights / np.where(tracks.is_people, _JOINTS_PER_SAMPLE, 1.0)
        num_groups, num_views = groups.max(initial=-1) + 1, len(groups)
        relative = np.log(focal / (side * START_FOCAL))
        self.prior_mean = np.zeros((num_groups, 2))
        self.prior_mean[groups[groups >= 0], 0] = -relative[groups >= 0]
        mean = np.full((num_groups, num_groups), 1 / max(num_groups, 1))
        precision = mean / max(num_groups, 1) / _FOCAL_PRIOR**2 + (np.eye(num_groups) - mean) / _FOCAL_SPREAD**2
        # Columns of the parameters of each view; those that are held are the last, or own ones, which are not free.
        cameras = np.arange(6 * num_views).reshape(-1, 6)
        of_lenses = cameras.size + np.arange(2 * num_groups).reshape(2, -1)
        self.axes = cameras.size + of_lenses.size + np.arange(3)
        size = cameras.size + of_lenses.size + 3
        self.holds, num_own = holds, 4 * num_views if holds else 0
        stays = np.stack([groups < 0, ~np.isin(groups, [*bent]), *np.ones((2, num_views), bool)], -1)
        own = size + holds * np.arange(stays.size).reshape(stays.shape)
        own[:, :2] = np.where(stays[:, :2], own[:, :2], cameras.size + groups[:, None] + [0, num_groups])
        self.columns = np.concatenate([cameras, own[:, : 4 if holds else 2]], axis=1)
        slope = block_diag(np.linalg.cholesky(precision).T, np.eye(num_groups) / _K1_PRIOR)
        self.prior_slope = np.pad(slope, ((0, 0), (cameras.size, 3 + num_own)))
        self.free = np.arange(size + num_own) < size
        self.free[self.axes] = bool(directions)
        self.free[cameras[list(fixed)]] = False
        self.free[of_lenses[1]] = np.isin(np.arange(num_groups), [*bent])
        held = np.array([(_HELD_FOCAL, *_held(lens)) for lens in lenses])[:, [0, 1, 2, 2]]
        held[:, 2:] *= (side / focal)[:, None]
        self.held = np.where(stays, held, 0.0).ravel()
        self.fixed = list(fixed)
        independent = np.where(tracks.is_people, _PEOPLE_INDEPENDENT, _INDEPENDENT)
        self.inflation = np.maximum(np.bincount(tracks.view, self.weights / independent, num_views), 1.0)

    def of_views(self, lenses: Float[Array, "G 2"]) -> Float[Array, "V 2"]:
        """Return the log factor on the focal length, and k1, of every view."""
        return np.concatenate([lenses, np.zeros((1, 2))])[self.groups]

    def scaled_intrinsics(self, lenses: Float[Array, "G 2"]) -> Float[Array, "V 3 3"]:
        """Return the intrinsics with the unknown focal lengths multiplied."""
        scaled = self.intrinsics.copy()
        scaled[:, :2, :2] *= np.exp(self.of_views(lenses)[:, 0, None, None])
        return scaled

    def residuals(self, state: _State) -> Float[Array, "N 2"]:
        """Return reprojection errors in sigmas."""
        local = in_camera(state.cameras[self.view], state.points[self.block])
        front = local[:, 2] > 0
        plane = local / np.where(front, local[:, 2], 1.0)[:, None]
        plane[:, :2] = _distorted(plane[:, :2], self.of_views(state.lenses)[self.view, 1])
        matrix = self.scaled_intrinsics(state.lenses)[self.view]
        error = np.einsum("nij,nj->ni", matrix[:, :2], plane) - self.tracks.pixels
        return np.where(front[:, None], error / self.sigma_px[:, None], BEHIND)

    def linearized(self, state: _State) -> tuple[Float[Array, "N 2"], Float[Array, "N 2 8"], Float[Array, "N 2 3"]]:
        """Return these, and derivatives by the camera's motion, log focal length and k1, and by the point."""
        local = in_camera(state.cameras[self.view], state.points[self.block])
        front = local[:, 2] > 0
        local = np.where(front[:, None], local, [0.0, 0.0, 1.0])
        matrix = self.scaled_intrinsics(state.lenses)[self.view, :2, :2] / self.sigma_px[:, None, None]
        matrix = matrix * front[:, None, None]
        k1, plane = self.of_views(state.lenses)[self.view, 1], local[:, :2] / local[:, 2:]
        squared = np.minimum((plane**2).sum(-1), _FAR)
        grows = np.where(squared < _FAR, 2 * k1, 0.0)
        bend = (
            np.eye(2) * (1 + k1 * squared)[:, None, None] + grows[:, None, None] * plane[:, :, None] * plane[:, None]
        )
        slope = matrix @ bend @ by_local(local)
        by_lens = matrix @ np.stack([_distorted(plane, k1), squared[:, None] * plane], -1)
        parts = [slope @ by_motion(local), by_lens, *([matrix] if self.holds else [])]
        by_camera = np.concatenate(parts, -1)
        return self.residuals(state), by_camera, slope @ state.cameras[self.view, :3, :3]

    def prior(self, state: _State) -> tuple[Float[Array, " R"], Float[Array, "R F"]]:
        """Return the deviations of unknown focal lengths and of k1, and of those from directions."""
        slope = self.prior_slope
        begin = self.axes[0] - len(slope)
        value = slope[:, begin : self.axes[0]] @ (state.lenses - self.prior_mean).T.ravel()
        values, slopes = zip(
            (value, slope), *(self.of_directions(view, state) for view in self.directions), strict=True
        )
        return np.concatenate(values), np.concatenate(slopes)

    def of_directions(self, view: int, state: _State) -> tuple[Float[Array, " 4"], Float[Array, "4 F"]]:
        """Return the deviations of a view from its directions, and their derivatives."""
        seen, rotation = self.directions[view], state.cameras[view, :3, :3]
        turn = log_rotation(seen.rotation @ (rotation @ state.axes).T)
        value = np.append(turn, seen.log_focal - self.of_views(state.lenses)[view, 0])
        slope = np.zeros((4, len(self.free) + 1))
        slope[:3, self.columns[view, :3]], slope[3, self.columns[view, 6]] = -np.eye(3), -1.0
        slope[:3, self.axes] = -rotation
        if self.holds:  # directions that were seen with another principal point are turned
            slope[:2, self.columns[view, 8:]] = [[0.0, 1.0], [-1.0, 0.0]]
        values, vectors = np.linalg.eigh(self.inflation[view] * seen.information)
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        return root @ value, root @ slope[:, :-1]

    def gauge(self, state: _State) -> Float[Array, "G F"]:
        """Return the direction in which all translations grow, if the scale is not given by fixed cameras."""
        is_fixed = len(self.fixed) < 2 or np.abs(state.cameras[self.fixed, :3, 3]).max() < _SAME_PLACE
        scale = np.zeros((int(is_fixed), len(self.free)))
        scale[:, : 6 * len(state.cameras)].reshape(-1, len(state.cameras), 6)[..., 3:] = state.cameras[:, :3, 3]
        return scale / max(float(np.linalg.norm(scale)), 1e-300)

    def moved(self, state: _State, change: Float[Array, " F"], blocks: Float[Array, "P 3"]) -> _State:
        """Return the state after a step, of bounded length for lenses."""
        size = 6 * len(state.cameras)
        lenses = state.lenses + np.clip(
            change[size:-3].reshape(2, len(state.lenses)).T, -_MAX_LENS_STEP, _MAX_LENS_STEP
        )
        lenses[:, 1] = np.clip(lenses[:, 1], -_MAX_K1, _MAX_K1)
        cameras = motions(change[:size].reshape(-1, 6)) @ state.cameras
        return _State(cameras, state.points + blocks, lenses, exp_rotation(change[-3:]) @ state.axes)

    def covariance(self, state: _State) -> tuple[Float[Array, "10V 10V"], Float[Array, "10V 10V"]]:
        """Return the covariance of the motions and lenses of all cameras at the optimum: from evidence, and all.

        Errors of evidence are those observed: common ones of texture in a cell of a picture, of people at several
        instants, and of a part of the body at all of them. What stays of lenses has errors of `_held`.

        Source: White, "Maximum likelihood estimation of misspecified models", 1982: the sandwich estimator; Triggs et
        al., "Bundle adjustment - a modern synthesis", 2000, section 4.3: the kernel; Schmidt, "Application of
        state-space methods to navigation problems", 1966: parameters that are not estimated.
        """
        system = Normal(self, state)
        full, free = system.reduced()[0], np.flatnonzero(self.free)
        inverse = system.solved(full[np.ix_(free, free)], np.eye(len(free)))
        prior = self.prior(state)[1]
        known = prior.T @ prior
        for seen in self.directions:
            slope = self.of_directions(seen, state)[1]
            known += (self.inflation[seen] - 1) * slope.T @ slope
        noise, effect = np.zeros_like(full), np.zeros((len(full), len(self.held)))
        held = np.arange(len(full) - len(self.held), len(full))
        noise[np.ix_(free, free)] = inverse @ known[np.ix_(free, free)] @ inverse
        for clusters in self._clusters():
            noise[np.ix_(free, free)] += system.clustered(clusters) / system.curvature**2
        effect[free], effect[held] = -inverse @ full[np.ix_(free, held)], np.eye(len(held))
        columns = self.columns.reshape(-1)
        effect = effect[columns] * self.held
        noise = noise[np.ix_(columns, columns)]
        return noise, noise + effect @ effect.T

    def _clusters(self) -> tuple[Int[Indices, " P"], Int[Indices, " P"]]:
        """Return clusters of points: by instants or cells of the first view; by parts of the body (-1: none)."""
        tracks = self.tracks
        first = np.flatnonzero(np.diff(tracks.point, prepend=-1))
        view, sizes = tracks.view[first], np.array([lens.image_size[::-1] for lens in self.lenses])
        cell = np.clip(_CELLS * tracks.pixels[first] / sizes[view], 0, _CELLS - 1).astype(np.int64)
        of_texture = -1 - _CELLS * (_CELLS * view + cell[:, 0]) - cell[:, 1]
        are_people = tracks.joint >= 0
        within = np.where(are_people, tracks.instant // CORRELATED_POSES, of_texture)
        return within - within.min(initial=0), np.where(are_people, _PARTS[tracks.joint], -1)
