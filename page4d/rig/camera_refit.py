"""The pose of one camera from the points that it shares with cameras whose poses are trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from page4d.rig.epipolar import relative_pose_of, sampson_errors, unit_rays
from page4d.rig.people.pairs import PersonPairs
from page4d.rig.people.pose import PeoplePose, quick_people_pose
from page4d.rig.records import Array, Evidence, RigCamera

_WIDE = 3.0
"""Tolerances at which starts are ranked and people are assigned: 3.4 degrees for people."""

_SCALES = (2.5, 0.75, 0.3)
"""Scales of the Cauchy loss in tolerances, from wide to narrow."""

_MAX_INSTANTS = 25
"""Instants of a refit; all of them are 33 joints each, and their errors repeat."""

_NUM_STARTS = 3


@dataclass(frozen=True, kw_only=True)
class SharedPoints:
    """Points that two views share by one kind of evidence, at some instants.

    Matches of texture are the joints of one person. `tolerance` is the Sampson error, in focal lengths, at which a
    point no longer supports cameras.
    """

    evidence: Evidence
    people: PersonPairs
    num_instants: int
    tolerance: float

    def score(self, first: RigCamera, second: RigCamera, scale: float = 1.0) -> float:
        """Return the score of two cameras at some tolerances, in [0, 1]."""
        pose = relative_pose_of(first.world_to_camera, second.world_to_camera)
        people = self.people.through((first.lens, second.lens))
        are_mirrored = [np.linalg.det(camera.lens.intrinsics) < 0 for camera in (first, second)]
        if sum(are_mirrored) == 1 and self.evidence is Evidence.PEOPLE:
            people = people.with_sides_exchanged()
        return people.assign(pose, scale * self.tolerance)[1]

    @cached_property
    def thinned(self) -> "SharedPoints":
        """The points at no more than `_MAX_INSTANTS` instants."""
        return replace(self, people=self.people.thinned(_MAX_INSTANTS))

    @cached_property
    def pose(self) -> PeoplePose | None:
        """The relative pose that fits the points, estimated quickly."""
        return quick_people_pose(self.people)


Shared = Mapping[int, SharedPoints]
"""Points shared with other views, the view to be fitted first."""


def refit_rotation(view: int, cameras: Sequence[RigCamera], shared: Shared) -> RigCamera:
    """Turn a camera about its centre until its points fit those of the other cameras best.

    Source: with known centres, a point seen by another camera gives one linear equation in the rotation.
    """
    shared = {other: pair.thinned for other, pair in shared.items()}
    camera = cameras[view]
    rolls = [Rotation.from_euler("z", angle, degrees=True).as_matrix() @ camera.rotation for angle in (90, 180, 270)]
    rotations = [camera.rotation, *rolls, _linear_rotation(view, cameras, shared)]
    rotations += [rotation for rotation, _ in _pair_poses(cameras, shared).values()]
    return _best(cameras, shared, [camera.placed(rotation, camera.center) for rotation in rotations], False)


def refit_pose(view: int, cameras: Sequence[RigCamera], shared: Shared) -> RigCamera | None:
    """Return the camera at the pose that fits two or more other cameras best; None if they do not determine it."""
    shared = {other: pair.thinned for other, pair in shared.items()}
    poses = _pair_poses(cameras, shared)
    center = _meeting_point([(cameras[other].center, ray) for other, (_, ray) in poses.items()])
    if center is None:
        return None
    starts = [cameras[view].placed(rotation, center) for rotation, _ in poses.values()]
    return _best(cameras, shared, [cameras[view], *starts], True)


def mean_score(camera: RigCamera, cameras: Sequence[RigCamera], shared: Shared, scale: float = 1.0) -> float:
    """Return the mean score of a camera with the others."""
    scores = [pair.score(camera, cameras[other], scale) for other, pair in shared.items()]
    return float(np.mean(scores)) if scores else 0.0


def _best(cameras: Sequence[RigCamera], shared: Shared, starts: Sequence[RigCamera], free_center: bool) -> RigCamera:
    """Refine the best starts at the wide scale, and the best of these at the narrow ones."""
    kept = sorted(starts, key=lambda start: -mean_score(start, cameras, shared, _WIDE))[:_NUM_STARTS]
    for scale in _SCALES:
        refined = [_refined(start, cameras, shared, free_center, scale) for start in kept]
        kept = [max(refined, key=lambda camera: mean_score(camera, cameras, shared))]
    return kept[0]


def _refined(
    camera: RigCamera, cameras: Sequence[RigCamera], shared: Shared, free_center: bool, scale: float
) -> RigCamera:
    centers = np.stack([cameras[other].center for other in shared])
    unit = float(np.linalg.norm(centers - camera.center, axis=-1).mean()) or 1.0
    points = {other: _matched(pair, camera, cameras[other]).points() for other, pair in shared.items()}

    def moved(step: Array) -> RigCamera:
        center = camera.center + unit * step[3:] if free_center else camera.center
        return camera.placed(Rotation.from_rotvec(step[:3]).as_matrix() @ camera.rotation, center)

    def residuals(step: Array) -> Array:
        candidate, parts = moved(step), []
        for other, (own, others, weights) in points.items():
            pose = relative_pose_of(candidate.world_to_camera, cameras[other].world_to_camera)
            errors = np.ones(len(own)) if pose is None else sampson_errors(pose.essential, own, others)
            parts.append(np.sqrt(weights) * errors / shared[other].tolerance)
        return np.concatenate(parts)

    solution = least_squares(residuals, np.zeros(6 if free_center else 3), loss="cauchy", f_scale=scale, max_nfev=20)
    return moved(solution.x)


def _matched(shared: SharedPoints, camera: RigCamera, other: RigCamera) -> PersonPairs:
    """Return the pairs of the same person under a pose, all pairs where too few fit."""
    people, pose = shared.people, relative_pose_of(camera.world_to_camera, other.world_to_camera)
    rows, _ = people.assign(pose, _WIDE * shared.tolerance)
    return people.subset(rows) if len(rows) >= 0.5 * people.common_instants else people


def _pair_poses(
    cameras: Sequence[RigCamera], shared: Shared
) -> dict[int, tuple[Float[Array, "3 3"], Float[Array, " 3"]]]:
    """Return the rotation of the camera, and its direction from each other camera with a pose, in the world."""
    poses = {}
    for other, pair in shared.items():
        found = pair.pose
        if found is not None:  # x_other = rotation @ x_view + direction
            rotation, direction = found.pose.rotation, found.pose.direction
            poses[other] = (rotation.T @ cameras[other].rotation, cameras[other].rotation.T @ direction)
    return poses


def _linear_rotation(view: int, cameras: Sequence[RigCamera], shared: Shared) -> Float[Array, "3 3"]:
    """Solve n^T R^T x = 0 for the rotation R of the camera: n are normals of the epipolar planes of others' rays."""
    products = []
    for other, points in shared.items():
        pair = points.people
        rows = pair.weights > 0
        rows &= pair.weights >= (np.median(pair.weights) if pair.weights.size else 0.0)
        own = unit_rays(pair.first[rows])
        world = unit_rays(pair.second[rows]) @ cameras[other].rotation
        normals = np.cross(cameras[view].center - cameras[other].center, world)
        normals /= np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)
        products.append((normals[:, :, None] * own[:, None, :]).reshape(-1, 9))
    stacked = np.concatenate(products)
    if len(stacked) < 9:
        return cameras[view].rotation
    transposed = np.linalg.eigh(stacked.T @ stacked)[1][:, 0].reshape(3, 3)
    u, _, vh = np.linalg.svd(transposed * np.sign(np.linalg.det(transposed)))
    return np.asarray((u @ np.diag([1.0, 1.0, np.linalg.det(u @ vh)]) @ vh).T)


def _meeting_point(lines: Sequence[tuple[Float[Array, " 3"], Float[Array, " 3"]]]) -> Float[Array, " 3"] | None:
    """Return the point closest to lines of an origin and a unit direction; None where they are nearly parallel."""
    projections = [np.eye(3) - np.outer(ray, ray) for _, ray in lines]
    normal = sum(projections, np.zeros((3, 3)))
    if len(lines) < 2 or np.linalg.cond(normal) > 1e4:
        return None
    right = sum((p @ origin for p, (origin, _) in zip(projections, lines, strict=True)), np.zeros(3))
    return np.asarray(np.linalg.solve(normal, right))
