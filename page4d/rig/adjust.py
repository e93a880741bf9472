"""Robust bundle adjustment of a static rig over body keypoints and texture, with one shared unknown focal length.

Source: Triggs et al., "Bundle adjustment - a modern synthesis", 2000: Levenberg-Marquardt with the points eliminated
(Schur complement); robust kernels as in section 3.3.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.rig.records import Array
from page4d.rig.rotations import exp_rotation
from page4d.rig.tracks import Tracks
from page4d.rig.triangulate import triangulate

_PEOPLE_SIGMA = 0.006
"""Cauchy scale of body keypoints in focal lengths: 10 px at 1080p, two thirds of the threshold of pairs. Scales of
0.0015 to 0.01 give the same cameras; larger ones converge faster."""

_TEXTURE_SIGMA = 0.001
"""Cauchy scale of texture features in focal lengths: 1 to 2 px at 1080p."""

_JOINTS_PER_SAMPLE = 8.0
"""Keypoints of a person at an instant have correlated errors: this many count as one independent observation."""

_FOCAL_PRIOR = 0.5
"""Sigma of the logarithm of an unknown focal length around 1.2 long sides: fields of view of 27 to 68 degrees."""

_MAX_POINTS = 12_000
"""Points that are adjusted; more change the result less than its bias, and the time grows with them."""

_MAX_ITERATIONS = 60
_TOLERANCE = 1e-5
"""Relative decrease of the cost at convergence; 1e-9 changes rotations by 0.01 degrees."""

_FIRST_TOLERANCE = 1e-3
"""The same in the first adjustment, which serves to find outliers."""

_OUTLIER = 4.5
"""Observations beyond this many sigmas (3 thresholds of pairs) are dropped after the first adjustment."""

_BEHIND = 1e3
"""Residual in sigmas of a point behind a camera; its derivative is 0."""

_GAUGE = 1e6
"""Weight of the fixed scale, in units of the largest diagonal entry of the normal equations."""

_MAX_FOCAL_STEP = 0.3


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """Adjusted cameras and points of a part of the rig; the first camera and the scale are those of the start.

    `log_focal` is the logarithm of the factor on the unknown focal lengths and `focal_std` its standard deviation,
    None if all are known. `residual_px` are reprojection errors of the observations of `tracks`.
    """

    world_to_camera: Float[Array, "V 4 4"]
    intrinsics: Float[Array, "V 3 3"]
    log_focal: float
    focal_std: float | None
    points: Float[Array, "P 3"]
    tracks: Tracks
    residual_px: Float[Array, " N"]


def adjust(
    world_to_camera: Float[Array, "V 4 4"],
    intrinsics: Float[Array, "V 3 3"],
    tracks: Tracks,
    free_focal: Bool[NDArray[np.bool_], " V"],
) -> Adjustment | None:
    """Triangulate tracks and adjust cameras, points and one shared focal factor of the views in `free_focal`.

    Observations far from the result of a first adjustment are dropped and a second one follows. The result is None
    if no point can be triangulated.
    """
    tracks = _thinned(tracks)
    cameras, matrices, log_focal = world_to_camera, intrinsics, 0.0
    for is_last in (False, True):
        points, usable = triangulate(cameras, matrices, tracks)
        tracks = tracks.select(usable[tracks.point])
        if tracks.num_points == 0:
            return None
        problem = _Problem(tracks, matrices, free_focal, log_focal)
        state = problem.minimise(_State(cameras, points[usable], 0.0), _TOLERANCE if is_last else _FIRST_TOLERANCE)
        cameras, log_focal = state.cameras, log_focal + state.log_focal
        matrices = problem.scaled_intrinsics(state.log_focal)
        distance = np.linalg.norm(problem.residuals(state), axis=-1)
        if not is_last:
            tracks = tracks.select(distance < _OUTLIER)
    return Adjustment(
        world_to_camera=cameras,
        intrinsics=matrices,
        log_focal=log_focal,
        focal_std=problem.focal_std(state) if free_focal.any() else None,
        points=state.points,
        tracks=tracks,
        residual_px=distance * problem.sigma_px,
    )


def _thinned(tracks: Tracks) -> Tracks:
    """Keep at most `_MAX_POINTS` points, evenly spaced."""
    if tracks.num_points <= _MAX_POINTS:
        return tracks
    kept = np.zeros(tracks.num_points, bool)
    kept[np.linspace(0, tracks.num_points - 1, _MAX_POINTS).astype(int)] = True
    return tracks.select(kept[tracks.point])


@dataclass(frozen=True)
class _State:
    cameras: Float[Array, "V 4 4"]
    points: Float[Array, "P 3"]
    log_focal: float


class _Problem:
    """Residuals, Jacobians and steps. Parameters of cameras: a motion in the camera's frame; the shared log focal."""

    def __init__(
        self, tracks: Tracks, intrinsics: Float[Array, "V 3 3"], free: NDArray[np.bool_], log_focal: float
    ) -> None:
        self.tracks, self.intrinsics, self.free = tracks, intrinsics, free
        self.start_log_focal = log_focal
        focal = np.sqrt(intrinsics[:, 0, 0] * intrinsics[:, 1, 1])[tracks.view]
        self.sigma_px = focal * np.where(tracks.is_people, _PEOPLE_SIGMA, _TEXTURE_SIGMA)
        self.weights = tracks.weights / np.where(tracks.is_people, _JOINTS_PER_SAMPLE, 1.0)
        self.starts: Int[NDArray[np.int64], " P"] = np.flatnonzero(np.diff(tracks.point, prepend=-1))

    def scaled_intrinsics(self, log_focal: float) -> Float[Array, "V 3 3"]:
        """Return the intrinsics with the free focal lengths multiplied."""
        scaled = self.intrinsics.copy()
        scaled[self.free, :2, :2] *= np.exp(log_focal)
        return scaled

    def _in_camera(self, state: _State) -> Float[Array, "N 3"]:
        camera = state.cameras[self.tracks.view]
        rotated = np.einsum("nij,nj->ni", camera[:, :3, :3], state.points[self.tracks.point])
        return np.asarray(rotated + camera[:, :3, 3])

    def residuals(self, state: _State) -> Float[Array, "N 2"]:
        """Return reprojection errors in sigmas."""
        local = self._in_camera(state)
        front = local[:, 2] > 0
        plane = local / np.where(front, local[:, 2], 1.0)[:, None]
        matrix = self.scaled_intrinsics(state.log_focal)[self.tracks.view]
        error = np.einsum("nij,nj->ni", matrix[:, :2], plane) - self.tracks.pixels
        return np.where(front[:, None], error / self.sigma_px[:, None], _BEHIND)

    def cost(self, state: _State) -> float:
        """Return the sum of Cauchy kernels and the prior on the focal length."""
        squared = (self.residuals(state) ** 2).sum(-1)
        prior = ((self.start_log_focal + state.log_focal) / _FOCAL_PRIOR) ** 2
        return float(self.weights @ np.log1p(squared) + prior)

    def jacobians(self, state: _State) -> tuple[Float[Array, "N 2 7"], Float[Array, "N 2 3"]]:
        """Return derivatives of the residuals by the camera's motion and log focal, and by the point."""
        view = self.tracks.view
        local = self._in_camera(state)
        front = local[:, 2] > 0
        x, y, z = np.where(front[:, None], local, [0.0, 0.0, 1.0]).T
        zero = np.zeros_like(x)
        plane = np.stack([np.stack([1 / z, zero, -x / z**2], -1), np.stack([zero, 1 / z, -y / z**2], -1)], -2)
        matrix = self.scaled_intrinsics(state.log_focal)[view, :2, :2] / self.sigma_px[:, None, None]
        by_local = matrix @ plane * front[:, None, None]
        cross = np.stack(
            [np.stack([zero, z, -y], -1), np.stack([-z, zero, x], -1), np.stack([y, -x, zero], -1)], axis=-2
        )
        by_focal = matrix @ np.stack([x / z, y / z], -1)[..., None] * (front & self.free[view])[:, None, None]
        by_camera = np.concatenate([by_local @ cross, by_local, by_focal], axis=-1)
        return by_camera, by_local @ state.cameras[view, :3, :3]

    def minimise(self, state: _State, tolerance: float) -> _State:
        """Run Levenberg-Marquardt until the cost decreases no more."""
        cost, damping = self.cost(state), 1e-3
        for _ in range(_MAX_ITERATIONS):
            system = _Normal(self, state)
            while damping < 1e8:
                candidate = system.step(damping)
                new_cost = self.cost(candidate)
                if new_cost < cost:
                    break
                damping *= 10
            else:
                return state
            done = cost - new_cost <= tolerance * cost
            state, cost, damping = candidate, new_cost, max(damping / 10, 1e-9)
            if done:
                break
        return state

    def focal_std(self, state: _State) -> float:
        """Return the standard deviation of the log focal from the curvature of the cost at the optimum.

        The residuals' own variance replaces the assumed one, and correlated keypoints count as fewer.
        """
        squared = (self.residuals(state) ** 2).sum(-1)
        robust = self.weights / (1 + squared)
        variance = float(robust @ squared / (2 * max(robust.sum(), 1e-12)))
        covariance = np.linalg.pinv(_Normal(self, state).reduced(0.0)[0])
        return float(np.sqrt(max(covariance[-1, -1] * max(variance, 1e-12), 0.0)))


class _Normal:
    """Normal equations at a state, weighted by the kernel, with the points eliminated in each step."""

    def __init__(self, problem: _Problem, state: _State) -> None:
        self.problem, self.state = problem, state
        tracks, starts = problem.tracks, problem.starts
        num_views, num_points = len(state.cameras), tracks.num_points
        residual = problem.residuals(state)
        weight = problem.weights / (1 + (residual**2).sum(-1))
        by_camera, by_point = problem.jacobians(state)
        weighted_camera = by_camera * weight[:, None, None]
        size = 6 * num_views + 1
        pose = np.einsum("nri,nrj->nij", weighted_camera, by_camera)
        pull = -np.einsum("nri,nr->ni", weighted_camera, residual)
        self.hessian, self.gradient = np.zeros((size, size)), np.zeros(size)
        for view in range(num_views):
            seen, block = tracks.view == view, slice(6 * view, 6 * view + 6)
            total = pose[seen].sum(0)
            self.hessian[block, block] = total[:6, :6]
            self.hessian[block, -1] = self.hessian[-1, block] = total[:6, 6]
            self.hessian[-1, -1] += total[6, 6]
            self.gradient[block] = pull[seen, :6].sum(0)
        precision = _FOCAL_PRIOR**-2
        self.hessian[-1, -1] += precision
        self.gradient[-1] = pull[:, 6].sum() - precision * (problem.start_log_focal + state.log_focal)
        weighted_point = by_point * weight[:, None, None]
        mixed = np.einsum("nri,nrj->nij", weighted_point, by_camera)
        coupling = np.zeros((num_points, 3, num_views, 6))
        coupling[tracks.point, :, tracks.view] = mixed[..., :6]
        focal = np.add.reduceat(mixed[..., 6:], starts)
        self.coupling = np.concatenate([coupling.reshape(num_points, 3, -1), focal], axis=-1)
        self.point_hessian = np.add.reduceat(np.einsum("nri,nrj->nij", weighted_point, by_point), starts)
        self.point_gradient = np.add.reduceat(-np.einsum("nri,nr->ni", weighted_point, residual), starts)

    def reduced(self, damping: float) -> tuple[Array, Array, Array]:
        """Return the matrix and right side without the first camera, and the inverse of the points' blocks."""
        diagonal = np.einsum("pii->pi", self.point_hessian)
        floor = 1e-12 * diagonal.max(initial=1e-300)
        inverse = np.linalg.inv(self.point_hessian + np.eye(3) * (damping * diagonal + floor)[:, None])
        size = len(self.gradient)
        eliminated = (inverse @ self.coupling).reshape(-1, size)
        flat = self.coupling.reshape(-1, size)
        matrix = self.hessian - flat.T @ eliminated
        matrix += np.diag(damping * np.diag(self.hessian))
        right = self.gradient - eliminated.T @ self.point_gradient.reshape(-1)
        scale = np.zeros(size)  # the direction in which all translations grow
        scale[:-1].reshape(-1, 6)[:, 3:] = self.state.cameras[:, :3, 3]
        scale /= max(float(np.linalg.norm(scale)), 1e-300)
        matrix += _GAUGE * np.diag(self.hessian).max() * np.outer(scale, scale)
        if not self.problem.free.any():
            matrix[-1, :] = matrix[:, -1] = right[-1] = 0.0
            matrix[-1, -1] = 1.0
        return matrix[6:, 6:], right[6:], inverse

    def step(self, damping: float) -> _State:
        """Return the state after one damped step."""
        matrix, right, inverse = self.reduced(damping)
        change = np.concatenate([np.zeros(6), np.linalg.lstsq(matrix, right, rcond=None)[0]])
        points = (inverse @ (self.point_gradient - self.coupling @ change)[..., None])[..., 0]
        motion = change[:-1].reshape(-1, 6)
        turn = exp_rotation(motion[:, :3])
        cameras = self.state.cameras.copy()
        cameras[:, :3, :] = turn @ cameras[:, :3, :]
        cameras[:, :3, 3] += motion[:, 3:]
        focal = float(np.clip(change[-1], -_MAX_FOCAL_STEP, _MAX_FOCAL_STEP))
        return _State(cameras, self.state.points + points, self.state.log_focal + focal)
