"""Robust bundle adjustment of any rig: Levenberg-Marquardt with points, or poses of a board, eliminated.

Source: Triggs et al., "Bundle adjustment - a modern synthesis", 2000: the Schur complement;
robust kernels as in section 3.3.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.rig.records import Array, Indices, exp_rotation

_FIRST_DAMPING, _LEAST_DAMPING, _MAX_DAMPING = 1e-3, 1e-9, 1e8
_GAUGE = 1e6
"""Weight of a fixed direction, in units of the largest diagonal entry of the normal equations."""

_LEAST_SHARE = 1e-8
"""Share that is added to the information on every parameter, as nothing may determine some; the weight of fixed
directions is rounded by 1e-10."""

_MAX_SHARE, _LEAST_REST = 0.9, 1e-3
"""Share of the information on a direction up to which the jackknife leaves a cluster of several blocks out, and the
least rest by which it divides: what a single block determines alone is not tested."""

StateT = TypeVar("StateT")


class LeastSquares(ABC, Generic[StateT]):
    """Levenberg-Marquardt over N observations, each of a view and of one of M blocks (points, poses), with priors.

    Errors are in sigmas under Cauchy kernels. The F parameters of views are solved for where they are `free`, after
    the B parameters of every block have been eliminated. `columns` are the K parameters of each view; F is none.
    """

    view: Int[Indices, " N"]
    block: Int[Indices, " N"]
    weights: Float[Array, " N"]
    columns: Int[Indices, "V K"]
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
    """Normal equations at a state, weighted by the kernel, with the blocks eliminated in each step.

    `pulls` [M, F] are what every block adds to the right side; `by_view` are derivatives of the observations, and
    `weighted` these and those by block, times the weights. `curvature` is the ratio of the second derivatives of the
    kernel, in the mean over directions, to its weights.
    """

    def __init__(self, problem: LeastSquares[StateT], state: StateT) -> None:
        self.problem, self.state = problem, state
        residual, by_view, by_block = problem.linearized(state)
        kernel = 1 / (1 + (residual**2).sum(-1))
        weight = problem.weights * kernel
        self.curvature = float(weight @ kernel / weight.sum())
        size, num_blocks = len(problem.free), int(problem.block.max()) + 1
        self.by_view = by_view
        self.weighted = by_view * weight[:, None, None], by_block * weight[:, None, None]
        # Rows of one view and block follow each other; several views may have one lens.
        starts = np.flatnonzero(np.diff(problem.view, prepend=-1) | np.diff(problem.block, prepend=-1))
        block, columns = problem.block[starts], problem.columns[problem.view[starts]]
        own = np.concatenate([by_block, -residual[..., None]], axis=-1)
        rows = block[:, None] * (size + 1) + columns
        mixed = _summed(
            rows, np.add.reduceat(np.swapaxes(self.weighted[0], 1, 2) @ own, starts), num_blocks * (size + 1)
        )
        mixed = mixed.reshape(num_blocks, size + 1, -1)
        within = _summed(block, np.add.reduceat(np.swapaxes(self.weighted[1], 1, 2) @ own, starts), num_blocks)
        self.coupling = np.ascontiguousarray(np.swapaxes(mixed[:, :-1, :-1], 1, 2))
        self.pulls = mixed[:, :-1, -1]
        self.block_hessian, self.block_gradient = within[..., :-1], within[..., -1]
        value, slope = problem.prior(state)
        self.hessian = self._of_views(np.ones(num_blocks, bool)) + slope.T @ slope
        self.gradient = self.pulls.sum(0) - slope.T @ value

    def _of_views(self, blocks: Bool[NDArray[np.bool_], " M"]) -> Float[Array, "F F"]:
        """Return the matrix of all parameters from the observations of some blocks, before their elimination."""
        rows, hessian = np.flatnonzero(blocks[self.problem.block]), np.zeros((len(self.problem.free) + 1,) * 2)
        of_rows = self.problem.view[rows]
        for view in np.unique(of_rows):
            columns, seen = self.problem.columns[view], rows[of_rows == view]
            weighted, by_view = (part[seen].reshape(-1, len(columns)) for part in (self.weighted[0], self.by_view))
            hessian[np.ix_(columns, columns)] += weighted.T @ by_view
        return hessian[:-1, :-1]

    def reduced(self, damping: float = 0.0) -> tuple[Array, Array, Array]:
        """Return the matrix and right side of all parameters, and the inverse of the blocks."""
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
        return matrix, right, inverse

    def clustered(self, clusters: Int[Indices, " M"]) -> Float[Array, "free free"]:
        """Return the covariance of the free parameters at an optimum where blocks of a cluster have common errors.

        It is that of the jackknife over clusters, of one linear step each; a number below 0 is no cluster. Where one
        cluster has nearly all information there are no others to compare it with: its blocks count as independent,
        with the ratio of common to independent errors of all clusters elsewhere. Priors count as exact.

        Source: Bell and McCaffrey, "Bias reduction in standard errors for linear regression with multi-stage
        samples", 2002; the ratio is the design effect of Kish, "Survey Sampling", 1965.
        """
        full, _, inverse = self.reduced()
        free, numbers = self.problem.free, np.unique(clusters[clusters >= 0])
        covariance = self.solved(full[np.ix_(free, free)], np.eye(free.sum()))
        solved = inverse @ self.coupling
        pulls = (self.pulls - (self.block_gradient[:, None] @ solved)[:, 0])[:, free]
        left_out, alone = np.zeros((len(covariance), len(numbers))), [np.zeros((len(covariance), 0))]
        errors = np.zeros(2)
        for column, number in enumerate(numbers):
            blocks = clusters == number
            own = self._of_views(blocks) - np.tensordot(self.coupling[blocks], solved[blocks], ((0, 1), (0, 1)))
            seen, share, changes, unit = self._shares(own[np.ix_(free, free)], covariance)
            by_block = pulls[np.ix_(blocks, seen)] @ unit
            shared = ((share < _MAX_SHARE) | (blocks.sum() == 1)) & (len(numbers) > 1)
            total, rest = by_block[:, shared].sum(0), np.maximum(1 - share[shared], _LEAST_REST)
            left_out[:, column] = changes[:, shared] @ (total / rest)
            alone.append(changes[:, ~shared] @ by_block[:, ~shared].T)
            errors += (total**2 / rest).sum(), (by_block[:, shared] ** 2).sum()
        independent, ratio = np.concatenate(alone, axis=1), max(errors[0] / max(errors[1], 1e-300), 1.0)
        factor = 1 - 1 / max(len(numbers), 1)
        return np.asarray(factor * left_out @ left_out.T + ratio * independent @ independent.T)

    def _shares(
        self, own: Float[Array, "free free"], covariance: Float[Array, "free free"]
    ) -> tuple[Int[Indices, " S"], Float[Array, " K"], Float[Array, "free K"], Float[Array, "S K"]]:
        """Return what a cluster with some information determines, given the covariance from all information.

        These are the free parameters that it concerns; its share of the information on each of K directions; the
        changes of all parameters by a unit pull along each; and the pulls of unit size along them by those of these
        parameters.
        """
        seen = np.flatnonzero(np.diag(own) > 0)
        scale = self.scale[seen]
        values, vectors = np.linalg.eigh(own[np.ix_(seen, seen)] * np.outer(scale, scale))
        values, vectors = values[values > _LEAST_SHARE], vectors[:, values > _LEAST_SHARE]
        root = vectors * values**0.5 / scale[:, None]  # the information is root @ root.T
        share, turn = np.linalg.eigh(root.T @ covariance[np.ix_(seen, seen)] @ root)
        return seen, share, covariance[:, seen] @ root @ turn, scale[:, None] * (vectors / values**0.5) @ turn

    @property
    def scale(self) -> Float[Array, " free"]:
        """Units of the free parameters, in which their information is 1 before blocks are eliminated."""
        diagonal = np.diag(self.hessian)[self.problem.free]
        return np.asarray(np.where(diagonal > 0, diagonal, 1.0) ** -0.5)

    def solved(self, matrix: Float[Array, "free free"], right: Float[Array, "free R"]) -> Float[Array, "free R"]:
        """Solve for the free parameters; what nothing determines has a large but finite solution."""
        scaled = matrix * np.outer(self.scale, self.scale) + _LEAST_SHARE * np.eye(len(matrix))
        return np.asarray(self.scale[:, None] * np.linalg.solve(scaled, self.scale[:, None] * right))

    def step(self, damping: float) -> StateT | None:
        """Return the state after one damped step."""
        matrix, right, inverse = self.reduced(damping)
        free, change = self.problem.free, np.zeros(len(self.gradient))
        matrix, scale = matrix[np.ix_(free, free)], self.scale
        change[free] = scale * np.linalg.lstsq(matrix * np.outer(scale, scale), right[free] * scale, rcond=None)[0]
        blocks = (inverse @ (self.block_gradient - self.coupling @ change)[..., None])[..., 0]
        return self.problem.moved(self.state, change, blocks)


def _summed(places: Int[Indices, "*rows"], values: Float[Array, "..."], count: int) -> Float[Array, "..."]:
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
