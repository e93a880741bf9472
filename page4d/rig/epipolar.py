"""Relative poses of two calibrated views from corresponding points: errors, hypotheses, robust refinement.

Points are normalised image coordinates, x = (u - c_x) / f_x, of undistorted images; a pose (rotation, direction) maps
points of the first view to the second, x2 = rotation @ x1 + s * direction with s > 0 and a unit `direction`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from page4d.rig.records import Array, Lens, PairPose, direction_angle_deg, rotation_angle_deg

MIN_POINTS = 8
"""Fewest points of a hypothesis: five determine it, and fewer than eight leave no redundancy."""

MAX_RANSAC_POINTS = 1500
"""Points of one RANSAC; more cost time without changing the best hypothesis."""

MAX_RANSAC_ITERATIONS = 500
"""Bound on RANSAC: 99 % probability of a sample of five inliers where their share is 40 %."""

MAX_STEPS = 30
_STEP_TOLERANCE = 1e-9
_MIN_SQUARED_SINE = 0.03**2
"""Squared sine of the angle between two rays below which noise of keypoints can change the sign of a depth."""


@dataclass(frozen=True, kw_only=True)
class RelativePose:
    """The pose of a second view relative to a first: x2 = rotation @ x1 + s * direction."""

    rotation: Float[Array, "3 3"]
    direction: Float[Array, " 3"]

    @property
    def essential(self) -> Float[Array, "3 3"]:
        """The essential matrix [direction]_x rotation, for which x2^T E x1 = 0."""
        return _skew(self.direction) @ self.rotation

    def apart_deg(self, other: "RelativePose") -> tuple[float, float]:
        """Return the angles to another pose in degrees: of rotation, and between the directions."""
        turn = rotation_angle_deg(self.rotation, other.rotation)
        return float(turn), float(direction_angle_deg(self.direction, other.direction))


def pose_of(pair: PairPose) -> RelativePose:
    """Return the relative pose of a pair that has one."""
    assert pair.rotation is not None
    assert pair.direction is not None
    return RelativePose(rotation=pair.rotation, direction=pair.direction)


def relative_pose_of(first: Float[Array, "4 4"], second: Float[Array, "4 4"]) -> RelativePose | None:
    """Return the relative pose of two cameras (`world_to_camera`); None if their centres coincide."""
    relative = second @ np.linalg.inv(first)
    length = np.linalg.norm(relative[:3, 3])
    if length <= 1e-9 * (1 + np.linalg.norm(first[:3, 3]) + np.linalg.norm(second[:3, 3])):
        return None
    return RelativePose(rotation=relative[:3, :3], direction=relative[:3, 3] / length)


def normalized_points(pixels: Float[Array, "*batch 2"], lens: Lens) -> Float[Array, "*batch 2"]:
    """Convert undistorted pixels to normalised image coordinates."""
    intrinsics = lens.intrinsics
    y = (pixels[..., 1] - intrinsics[1, 2]) / intrinsics[1, 1]
    x = (pixels[..., 0] - intrinsics[0, 2] - intrinsics[0, 1] * y) / intrinsics[0, 0]
    return np.stack([x, y], axis=-1)


def pixels_of(points: Float[Array, "*batch 2"], lens: Lens) -> Float[Array, "*batch 2"]:
    """Convert normalised image coordinates to undistorted pixels."""
    pixels: Array = points @ lens.intrinsics[:2, :2].T + lens.intrinsics[:2, 2]
    return pixels


def undistorted_pixels(pixels: Float[Array, "*batch 2"], lens: Lens) -> Float[Array, "*batch 2"]:
    """Convert original to undistorted pixels; NaN where no ray exists."""
    if lens.distortion is None or lens.distortion.is_identity:
        return pixels
    return pixels_of(lens.distortion.undistort(torch.from_numpy(normalized_points(pixels, lens))).numpy(), lens)


def unit_rays(points: Float[Array, "*batch 2"]) -> Float[Array, "*batch 3"]:
    """Convert normalised image coordinates to unit vectors."""
    rays = _homogeneous(points)
    return np.asarray(rays / np.linalg.norm(rays, axis=-1, keepdims=True))


def sampson_errors(
    essential: Float[Array, "3 3"], first: Float[Array, "K 2"], second: Float[Array, "K 2"]
) -> Float[Array, " K"]:
    """Return signed Sampson errors, the first-order distance to the epipolar constraint in units of the points.

    A fundamental matrix with pixels gives pixels.

    Source: Hartley & Zisserman (2004), 11.4.3.
    """
    rays_first, rays_second = _homogeneous(first), _homogeneous(second)
    line_second, line_first = rays_first @ essential.T, rays_second @ essential
    squared = _dot(line_second[:, :2], line_second[:, :2]) + _dot(line_first[:, :2], line_first[:, :2])
    errors: Array = _dot(rays_second, line_second) / np.sqrt(np.maximum(squared, np.finfo(np.float64).tiny))
    return errors


def in_front(
    pose: RelativePose, first: Float[Array, "K 2"], second: Float[Array, "K 2"]
) -> Bool[NDArray[np.bool_], " K"]:
    """Return whether the rays of both views meet in front of both cameras; true where rays are nearly parallel.

    Source: the least-squares solution of depth1 * rotation @ x1 - depth2 * x2 = -direction.
    """
    depth_first, depth_second, squared_sine = _relative_depths(pose, first, second)
    return ((depth_first > 0) & (depth_second > 0)) | (squared_sine < _MIN_SQUARED_SINE)


def tangents(direction: Float[Array, " 3"]) -> Float[Array, "2 3"]:
    """Return two unit vectors orthogonal to `direction` and to each other."""
    cross = _skew(direction)  # numpy.cross takes ten times as long
    tangent = cross[:, np.argmin(np.abs(direction))]
    tangent = tangent / np.linalg.norm(tangent)
    return np.stack([tangent, cross @ tangent])


def decompose_essential(
    essential: Float[Array, "3 3"],
    first: Float[Array, "K 2"],
    second: Float[Array, "K 2"],
    weights: Float[Array, " K"],
) -> RelativePose:
    """Return the pose, of the four that share an essential matrix, with the most support in front of both cameras.

    Points are weighted by the squared sine of the angle between their rays: the depth of nearly parallel rays has a
    random sign.

    Source: Hartley & Zisserman (2004), 9.6.2.
    """
    u, _, vh = np.linalg.svd(essential)
    turn = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    best, most = None, -1.0
    for middle in (turn, turn.T):
        rotation = u @ middle @ vh
        rotation = rotation * np.sign(np.linalg.det(rotation))
        pose = RelativePose(rotation=rotation, direction=u[:, 2])
        depth_first, depth_second, squared_sine = _relative_depths(pose, first, second)
        for sign in (1, -1):  # depths change their sign with the direction
            votes = float((squared_sine * weights)[(sign * depth_first > 0) & (sign * depth_second > 0)].sum())
            if votes > most:
                best, most = RelativePose(rotation=rotation, direction=sign * u[:, 2]), votes
    assert best is not None
    return best


def estimate_pose(
    first: Float[Array, "K 2"],
    second: Float[Array, "K 2"],
    threshold: float,
    seed: int = 0,
    max_points: int = MAX_RANSAC_POINTS,
    max_iterations: int = MAX_RANSAC_ITERATIONS,
) -> RelativePose | None:
    """Estimate the pose by RANSAC with five-point samples; None if there are too few points or no solution.

    `threshold` is in units of the points. The result depends only on the arguments.

    Source: Barath et al., "MAGSAC++", CVPR 2020, as implemented in OpenCV; Nister (2004).
    """
    if len(first) < MIN_POINTS:
        return None
    import cv2  # a local import keeps start-up short

    if len(first) > max_points:
        chosen = np.sort(np.random.default_rng(seed).choice(len(first), max_points, replace=False))
        first, second = first[chosen], second[chosen]
    settings = cv2.UsacParams()
    settings.confidence, settings.maxIterations, settings.threshold = 0.999, max_iterations, threshold
    settings.score, settings.loMethod = cv2.SCORE_METHOD_MAGSAC, cv2.LOCAL_OPTIM_SIGMA
    settings.loIterations, settings.loSampleSize = 10, 50
    settings.randomGeneratorState, settings.isParallel = seed, False
    try:
        essential, mask = cv2.findEssentialMat(
            first, second, np.eye(3), np.eye(3), np.zeros(5), np.zeros(5), settings
        )
    except cv2.error:
        return None
    if essential is None or mask is None or essential.shape != (3, 3) or not np.isfinite(essential).all():
        return None
    supported = np.asarray(mask, dtype=np.float64).ravel()
    return decompose_essential(np.asarray(essential, dtype=np.float64), first, second, supported)


def refine_pose(
    pose: RelativePose,
    first: Float[Array, "K 2"],
    second: Float[Array, "K 2"],
    weights: Float[Array, " K"],
    scale: float,
    max_steps: int = MAX_STEPS,
) -> RelativePose:
    """Minimise the weighted Cauchy loss of Sampson errors over rotation and direction (five parameters).

    `scale` of the loss is in units of the points. Iteratively reweighted Levenberg-Marquardt with analytic
    derivatives; a step that does not decrease the loss is not taken.

    Source: Triggs et al., "Bundle adjustment - a modern synthesis", 2000, section 4; Sampson errors as in
    Hartley & Zisserman (2004), 11.4.3.
    """
    first, second = _homogeneous(first).T.copy(), _homogeneous(second).T.copy()
    errors, jacobian = _errors_and_derivatives(pose, first, second)
    loss, damping = _cauchy_loss(errors, weights, scale), 1e-4
    for _ in range(max_steps):
        weighted = jacobian * (weights / (1 + np.square(errors / scale)))
        normal = weighted @ jacobian.T
        gradient = weighted @ errors
        diagonal = np.diagonal(normal) + 1e-9 * np.trace(normal) + np.finfo(np.float64).tiny
        step = -np.linalg.solve(normal + damping * np.diag(diagonal), gradient)
        candidate = _moved(pose, step)
        new_errors, new_jacobian = _errors_and_derivatives(candidate, first, second)
        new_loss = _cauchy_loss(new_errors, weights, scale)
        if new_loss <= loss:
            gain = loss - new_loss
            pose, errors, jacobian, loss, damping = candidate, new_errors, new_jacobian, new_loss, damping / 10
            if np.abs(step).max() < _STEP_TOLERANCE or gain <= 1e-9 * loss:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    return pose


def _cauchy_loss(errors: Array, weights: Array, scale: float) -> float:
    return float((weights * np.log1p(np.square(errors / scale))).sum())


def _moved(pose: RelativePose, step: Array) -> RelativePose:
    """Rotate by the rotation vector `step[:3]` and move the direction by `step[3:]` in its tangent plane."""
    import cv2  # its rotation takes a hundredth of the time of SciPy's

    direction = pose.direction + step[3:] @ tangents(pose.direction)
    return RelativePose(
        rotation=cv2.Rodrigues(step[:3])[0] @ pose.rotation, direction=direction / np.linalg.norm(direction)
    )


def _errors_and_derivatives(pose: RelativePose, first: Array, second: Array) -> tuple[Array, Array]:
    """Return Sampson errors [K] of points [3, K] and their derivatives [5, K] to the steps of `_moved`."""
    moved = (_skew(tangent) for tangent in tangents(pose.direction))
    essentials = np.stack([*(_skew(pose.direction) @ _TURNS), *moved]) @ pose.rotation
    line_second, line_first = essentials @ first, essentials[:, :, :2].swapaxes(1, 2) @ second
    residuals = np.einsum("pck,ck->pk", line_second, second)  # a product and its sum take three times as long
    lines = np.concatenate([line_second[:, :2], line_first], axis=1)
    growth = np.einsum("ck,pck->pk", lines[0], lines)
    length = np.sqrt(np.maximum(growth[0], np.finfo(np.float64).tiny))
    errors = residuals[0] / length
    return errors, (residuals[1:] - errors * growth[1:] / length) / length


def _relative_depths(pose: RelativePose, first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Return positive multiples of the depths in both views, and the squared sine of the angle between the rays."""
    ray_first = _homogeneous(first) @ pose.rotation.T
    ray_first /= np.linalg.norm(ray_first, axis=-1, keepdims=True)
    ray_second = unit_rays(second)
    cosine = _dot(ray_first, ray_second)
    along_first, along_second = ray_first @ pose.direction, ray_second @ pose.direction
    return cosine * along_second - along_first, along_second - cosine * along_first, 1 - np.square(cosine)


def _dot(first: Array, second: Array) -> Array:
    """Return the scalar products [K] of vectors [K, D], by columns: a sum over short rows takes twice the time."""
    total: Array = first[:, 0] * second[:, 0]
    for column in range(1, first.shape[1]):
        total += first[:, column] * second[:, column]
    return total


def _homogeneous(points: Array) -> Array:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def _skew(vector: Array) -> Array:
    x, y, z = vector
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


_TURNS = np.stack([np.eye(3), *map(_skew, np.eye(3))])
"""The identity and its derivatives to a rotation vector."""
