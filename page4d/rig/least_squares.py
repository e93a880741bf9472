"""Robust bundle adjustment of any rig: Levenberg-Marquardt with points, or poses of a board, eliminated.

Source: Triggs et al., "Bundle adjustment - a modern synthesis", 2000: the Schur complement;
robust kernels as in section 3.3.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.rig.records import Array, exp_rotation

_Indices = NDArray[np.int64]

_FIRST_DAMPING, _LEAST_DAMPING, _MAX_DAMPING = 1e-3, 1e-9, 1e8
_GAUGE = 1e6
"""Weight of a fixed direction, in units of the largest diagonal entry of the normal equations."""

StateT = TypeVar("StateT")


class LeastSquares(ABC, Generic[StateT]):
    """Levenberg-Marquardt over N observations, each of a view and of one of M blocks (points, poses), with priors.

    Errors are in sigmas under Cauchy kernels. The F parameters of views are solved for where they are `free`, after
    the B parameters of every block have been eliminated. `columns` are the K parameters of each view; F is none.
    """

    view: Int[_Indices, " N"]
    block: Int[_Indices, " N"]
    weights: Float[Array, " N"]
    columns: Int[_Indices, "V K"]
    free: Bool[NDArray[np.bool_], " F"]

    def residuals(self, state: StateT) -> Float[Array, "N 2"]:
        """Return the errors in sigmas."""
        return self.linearized(state)[0]

    @abstractmethod
    def linearized(self, state: StateT) -> tuple[Float[Array, "N 2"], Float[Array, "N 2 K"], Float[Array, "N 2 B"]]:
        """Return the errors, and their derivatives by the parameters of the view and of the block."""

    def prior(self, state: StateT) -> tuple[Float[Array, " R"], Float[Array, "R F"]]:  # noqa: ARG002
        """Return errors of parameters from their expected values in sigmas, if there are any, and the derivatives."""
        return np.zeros(0), np.zeros((0, len(self.free)))

    @abstractmethod
    def moved(self, state: StateT, change: Float[Array, " F"], blocks: Float[Array, "M B"]) -> StateT | None:
        """Return a state after a step, None if there is none."""

    def gauge(self, state: StateT) -> Float[Array, "G F"]:  # noqa: ARG002
        """Return unit vectors of parameters along which a state stays although no error determines it."""
        return np.zeros((0, len(self.free)))

    def cost(self, state: StateT) -> float:
        """Return the sum of Cauchy kernels and priors."""
        return float(
            self.weights @ np.log1p((self.residuals(state) ** 2).sum(-1)) + (self.prior(state)[0] ** 2).sum()
        )

    def minimise(self, state: StateT, tolerance: float, iterations: int) -> StateT:
        """Return a state after steps that decrease the cost, until they do so by less than a share of it."""
        cost, damping = self.cost(state), _FIRST_DAMPING
        for _ in range(iterations):
            system = Normal(self, state)
            while damping < _MAX_DAMPING:
                candidate = system.step(damping)
                new_cost = np.inf if candidate is None else self.cost(candidate)
                if candidate is not None and new_cost < cost:
                    break
                damping *= 10
            else:
                return state
            done = cost - new_cost <= tolerance * cost
            state, cost, damping = candidate, new_cost, max(damping / 10, _LEAST_DAMPING)
            if done:
                break
        return state


class Normal(Generic[StateT]):
    """Normal equations at a state, by default weighted by the kernel, with the blocks eliminated in each step."""

    def __init__(
        self, problem: LeastSquares[StateT], state: StateT, weight: Float[Array, " N"] | None = None
    ) -> None:
        self.problem, self.state = problem, state
        residual, by_view, by_block = problem.linearized(state)
        if weight is None:
            weight = problem.weights / (1 + (residual**2).sum(-1))
        size, num_blocks = len(problem.free), int(problem.block.max()) + 1
        weighted = by_view * weight[:, None, None]
        hessian = np.zeros((size + 1, size + 1))
        for view, columns in enumerate(problem.columns):
            both = (part[problem.view == view].reshape(-1, len(columns)) for part in (weighted, by_view))
            hessian[np.ix_(columns, columns)] += next(both).T @ next(both)
        # Rows of one view and block follow each other; several views may have one lens.
        starts = np.flatnonzero(np.diff(problem.view, prepend=-1) | np.diff(problem.block, prepend=-1))
        block, columns = problem.block[starts], problem.columns[problem.view[starts]]
        own = np.concatenate([by_block, -residual[..., None]], axis=-1)
        rows = block[:, None] * (size + 1) + columns
        mixed = _summed(rows, np.add.reduceat(np.swapaxes(weighted, 1, 2) @ own, starts), num_blocks * (size + 1))
        mixed = mixed.reshape(num_blocks, size + 1, -1)
        weighted = by_block * weight[:, None, None]
        within = _summed(block, np.add.reduceat(np.swapaxes(weighted, 1, 2) @ own, starts), num_blocks)
        self.coupling = np.ascontiguousarray(np.swapaxes(mixed[:, :-1, :-1], 1, 2))
        self.block_hessian, self.block_gradient = within[..., :-1], within[..., -1]
        value, slope = problem.prior(state)
        self.hessian = hessian[:-1, :-1] + slope.T @ slope
        self.gradient = mixed[:, :-1, -1].sum(0) - slope.T @ value

    def reduced(self, damping: float = 0.0) -> tuple[Array, Array, Array]:
        """Return the matrix and right side of the free parameters, and the inverse of the blocks."""
        diagonal = np.einsum("pii->pi", self.block_hessian)
        floor = 1e-12 * diagonal.max(initial=1e-300)
        inverse = np.linalg.inv(
            self.block_hessian + np.eye(diagonal.shape[1]) * (damping * diagonal + floor)[:, None]
        )
        size = len(self.gradient)
        eliminated = (inverse @ self.coupling).reshape(-1, size)
        matrix = self.hessian - self.coupling.reshape(-1, size).T @ eliminated
        matrix += np.diag(damping * np.diag(self.hessian))
        right = self.gradient - eliminated.T @ self.block_gradient.reshape(-1)
        still = self.problem.gauge(self.state)
        matrix += _GAUGE * np.diag(self.hessian).max() * still.T @ still
        free = self.problem.free
        return matrix[np.ix_(free, free)], right[free], inverse

    def step(self, damping: float) -> StateT | None:
        """Return the state after one damped step."""
        matrix, right, inverse = self.reduced(damping)
        free, change = self.problem.free, np.zeros(len(self.gradient))
        diagonal = np.diag(self.hessian)[free]
        scale = np.where(diagonal > 0, diagonal, 1.0) ** -0.5  # parameters have several units
        change[free] = scale * np.linalg.lstsq(matrix * np.outer(scale, scale), right * scale, rcond=None)[0]
        blocks = (inverse @ (self.block_gradient - self.coupling @ change)[..., None])[..., 0]
        return self.problem.moved(self.state, change, blocks)


def _summed(places: Int[_Indices, "*rows"], values: Float[Array, "..."], count: int) -> Float[Array, "..."]:
    """Return the sums of values [*rows, ...] at each place; `numpy.add.at` takes several times as long."""
    parts = values.reshape(places.size, -1).T
    sums = np.stack([np.bincount(places.ravel(), part, count) for part in parts], axis=-1)
    return np.asarray(sums.reshape(count, *values.shape[places.ndim :]), float)


def in_camera(poses: Float[Array, "N 4 4"], points: Float[Array, "N 3"]) -> Float[Array, "N 3"]:
    """Return points after the transforms of each."""
    return np.asarray(np.einsum("nij,nj->ni", poses[:, :3, :3], points) + poses[:, :3, 3])


def motions(vectors: Float[Array, "N 6"]) -> Float[Array, "N 4 4"]:
    """Return transforms by a rotation vector and a translation."""
    poses = np.tile(np.eye(4), (len(vectors), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = exp_rotation(vectors[:, :3]), vectors[:, 3:]
    return poses


def by_motion(local: Float[Array, "N 3"]) -> Float[Array, "N 3 6"]:
    """Return the derivatives of points by a motion of their frame: rotation vector and translation."""
    x, y, z = local.T
    zero = np.zeros_like(x)
    turn = np.stack([zero, z, -y, -z, zero, x, y, -x, zero], -1).reshape(-1, 3, 3)
    return np.concatenate([turn, np.broadcast_to(np.eye(3), turn.shape)], -1)
