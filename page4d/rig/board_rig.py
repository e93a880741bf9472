"""Lenses and cameras of a rig from a calibration board: bundle adjustment with the poses of the board as unknowns.

A lens alone is a rig of one camera. Source: Triggs et al., "Bundle adjustment - a modern synthesis", 2000; Zhang, "A
flexible new technique for camera calibration", 2000.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise

import cv2
import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from page4d.choices import LensModel
from page4d.errors import InputError
from page4d.rig.board import Board
from page4d.rig.board_corners import Sighting, spread
from page4d.rig.graph import connected_parts
from page4d.rig.least_squares import LeastSquares, Normal, by_motion, in_camera, motions
from page4d.rig.lens import START_FOCAL
from page4d.rig.records import Array, Indices
from page4d.scene.timeline import nearest_frames

TERMS = {LensModel.BROWN_CONRADY: ("k1", "k2", "p1", "p2", "k3"), LensModel.FISHEYE: ("k1", "k2", "k3", "k4")}
"""Coefficients of the lens models in the order of OpenCV."""

STEPS = {LensModel.BROWN_CONRADY: (0, 1, 2, 4, 5), LensModel.FISHEYE: (1, 2, 3, 4)}
"""Numbers of coefficients that are estimated, step by step, where the data determine the new ones."""

SIGNIFICANT = 3.5
"""Standard deviations by which a new coefficient must differ from 0."""

_PRIOR = {"focal": 0.5, "aspect": 0.01, "center": 0.05, "k": 0.5, "p": 0.02, "clock": 0.1}
"""Weak priors: scale of the log focal length, of the log ratio of its two values, of the principal point in long
sides, of distortion coefficients, and of clocks in seconds. They bound what a few pictures leave undetermined."""

_SCALE = 3 * (2 * np.log(2)) ** 0.5
"""Standard deviations in the scale of errors, which is three times the median of the length of those of a corner."""

_STARTS = (0.45, 0.65, 0.9, 1.3, 2.0, 3.5)
"""Focal lengths in long sides from which a lens is sought."""

_JITTER_S, _GROWTH_PX, _NOISE_PX = 0.002, 1.0, 0.5
"""Expected errors of the times of single frames, of edges of markers, and of corners: errors that move all corners of
a picture along the motion of the board, or the edges of all markers inwards, count less. Cameras of four webcams with
clocks up to 125 ms apart are the same within 0.1 degrees for 2 to 10 ms. Blur, tone curves and other edges near them
shift the edges of markers by up to 0.5 px."""

_ITERATIONS, _TOLERANCE = 30, 1e-6
_LEAST_SCALE_PX = 0.05
"""Least scale of the errors of corners."""

_BEHIND_PX = 1e4

_FEW = 8
"""Pictures from which the start value of a lens is sought."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Lenses (fx, fy, cx, cy, coefficients), `world_to_camera` and clocks of views, and `board_to_world` of poses.

    A clock is how many seconds earlier than its time a frame was taken.
    """

    lenses: Float[Array, "V L"]
    cameras: Float[Array, "V 4 4"]
    clocks: Float[Array, " V"]
    boards: Float[Array, "P 4 4"]


def lens_matrix(lens: Float[Array, " L"]) -> Float[Array, "3 3"]:
    """Return the intrinsics of a lens."""
    return np.array([[lens[0], 0.0, lens[2]], [0.0, lens[1], lens[3]], [0.0, 0.0, 1.0]])


def project(
    model: LensModel, lens: Float[Array, " L"], points: Float[Array, "n 3"]
) -> tuple[Float[Array, "n 2"], Float[Array, "n 2 3"], Float[Array, "n 2 L"]]:
    """Project points of the camera's frame; return pixels and their derivatives by the points and by the lens.

    Coefficients beyond those of the model are not used.
    """
    matrix = lens_matrix(lens)
    none = np.zeros(3)
    if model is LensModel.FISHEYE:
        pixels, jacobian = cv2.fisheye.projectPoints(points[:, None], none, none, matrix, lens[4:8])
        slopes = np.asarray(jacobian, np.float64).reshape(len(points), 2, -1)
        by_lens = np.pad(slopes[..., :8], ((0, 0), (0, 0), (0, len(lens) - 8)))
        return np.asarray(pixels, np.float64).reshape(-1, 2), slopes[..., 11:14], by_lens
    pixels, jacobian = cv2.projectPoints(points, none, none, matrix, lens[4:])
    slopes = np.asarray(jacobian, np.float64).reshape(len(points), 2, -1)
    return np.asarray(pixels, np.float64).reshape(-1, 2), slopes[..., 3:6], slopes[..., 6 : 6 + len(lens)]


class BoardAdjustment(LeastSquares[State]):
    """Adjustment of lenses, cameras and clocks; blocks are the poses of the board.

    Parameters are those of the lenses, then motions and clocks of the cameras. `scale_px` is the scale of errors.
    """

    def __init__(
        self,
        board: Board,
        models: Sequence[LensModel],
        sightings: Sequence[Sighting],
        free_lens: Bool[NDArray[np.bool_], "V L"],
        free_camera: Bool[NDArray[np.bool_], " V"],
        sizes: Sequence[tuple[int, int]],
    ) -> None:
        self.models, self.sightings = models, sorted(sightings, key=lambda one: (one.view, one.pose))
        lengths = [len(one.numbers) for one in self.sightings]
        self.view, self.block, self.later = (
            np.repeat([getattr(one, name) for one in self.sightings], lengths) for name in ("view", "pose", "later")
        )
        self.weights = np.ones(len(self.view))
        self.number = np.concatenate([one.numbers for one in self.sightings])
        self.corner = board.points[self.number]
        self.sigma = np.concatenate([np.broadcast_to(one.sigma, len(one.numbers)) for one in self.sightings])
        self.pixels, self.velocity, self.acceleration = (
            np.concatenate([np.broadcast_to(getattr(one, name), one.pixels.shape) for one in self.sightings])
            for name in ("pixels", "velocity", "acceleration")
        )
        self.common = []
        for one, (start, stop) in zip(self.sightings, pairwise(np.cumsum([0, *lengths])), strict=True):
            for change, deviation in ((one.velocity, _JITTER_S), (one.growth, _GROWTH_PX)):
                if np.any(change):
                    along = (change / self.sigma[start:stop, None]).ravel()
                    size = float(np.linalg.norm(along))
                    lost = 1 - 1 / float(np.hypot(1, deviation * size / _NOISE_PX))
                    self.common.append((slice(start, stop), along / size, lost))
        self.sizes = np.array(sizes, float)
        num_views, self.num_lens = free_lens.shape
        self.free = np.concatenate([free_lens.ravel(), np.repeat(free_camera, 7)])
        lenses, cameras = np.split(np.arange(len(self.free)), [free_lens.size])
        self.columns = np.concatenate([lenses.reshape(num_views, -1), cameras.reshape(num_views, 7)], axis=1)
        self.scale_px = 10.0

    def residuals(self, state: State) -> Float[Array, "N 2"]:
        """Return reprojection errors in scales, without most of those that all corners of a picture share."""
        return self._scaled(self.errors_px(state)[0])[0]

    def linearized(self, state: State) -> tuple[Float[Array, "N 2"], Float[Array, "N 2 K"], Float[Array, "N 2 6"]]:
        """Return these, and derivatives by lens, motion and clock of the camera, and by the motion of the board."""
        residual, by_view, by_board = self._scaled(*self.errors_px(state, jacobian=True))
        return residual, by_view, by_board

    def _scaled(self, *parts: Array) -> list[Array]:
        found = [part / (self.scale_px * self.sigma.reshape(-1, *[1] * (part.ndim - 1))) for part in parts]
        for rows, along, lost in self.common:
            for part in found:
                block = part[rows].reshape(len(along), -1)
                block -= lost * np.outer(along, along @ block)
        return found

    def errors_px(self, state: State, jacobian: bool = False) -> list[Array]:
        """Return reprojection errors [N, 2], and if requested their derivatives [N, 2, L + 7], [N, 2, 6]."""
        later = (state.clocks[self.view] + self.later)[:, None]
        pixels = self.pixels + later * (self.velocity + later / 2 * self.acceleration)
        local = in_camera(state.cameras[self.view], in_camera(state.boards[self.block], self.corner))
        residual = np.full((len(local), 2), _BEHIND_PX)
        by_view, by_board = np.zeros((len(local), 2, self.num_lens + 7)), np.zeros((len(local), 2, 6))
        front = local[:, 2] > 1e-6
        for view in np.unique(self.view):
            rows = (self.view == view) & front
            if not rows.any():
                continue
            projected, by_point, by_lens = project(self.models[view], state.lenses[view], local[rows])
            residual[rows] = projected - pixels[rows]
            if jacobian:
                turn = state.cameras[view, :3, :3] @ state.boards[self.block[rows], :3, :3]
                by_clock = -(self.velocity + later * self.acceleration)[rows, :, None]
                by_view[rows] = np.concatenate([by_lens, by_point @ by_motion(local[rows]), by_clock], axis=-1)
                by_board[rows] = by_point @ turn @ by_motion(self.corner[rows])
        residual[~np.isfinite(residual).all(1)] = _BEHIND_PX
        residual = np.clip(residual, -_BEHIND_PX, _BEHIND_PX)
        return [residual, *map(np.nan_to_num, (by_view, by_board))] if jacobian else [residual]

    def errors(self, state: State) -> Float[Array, " N"]:
        """Return the reprojection error of every corner in pixels."""
        return np.asarray(np.linalg.norm(self.errors_px(state)[0], axis=1))

    def prior(self, state: State) -> tuple[Float[Array, " R"], Float[Array, "R F"]]:
        """Return the deviations of the lenses and clocks."""
        lenses, long_side = state.lenses, self.sizes.max(1)
        start, sigma = START_FOCAL * long_side, np.ones_like(lenses)
        sigma[:, 2:4] = _PRIOR["center"] * long_side[:, None]
        for view, model in enumerate(self.models):
            sigma[view, 4 : 4 + len(TERMS[model])] = [_PRIOR[term[0]] for term in TERMS[model]]
        value = lenses / sigma
        value[:, 0] = np.log(lenses[:, :2].prod(1) / start**2) / 2 / _PRIOR["focal"]
        value[:, 1] = np.log(lenses[:, 0] / lenses[:, 1]) / _PRIOR["aspect"]
        value[:, 2:4] = (lenses[:, 2:4] - self.sizes[:, ::-1] / 2) / sigma[:, 2:4]
        slope = np.zeros((lenses.size + len(lenses), len(self.free)))
        own = np.arange(lenses.size).reshape(lenses.shape)
        slope[own[:, :1], own[:, :2]] = 1 / lenses[:, :2] / 2 / _PRIOR["focal"]
        slope[own[:, 1:2], own[:, :2]] = np.array([1, -1]) / lenses[:, :2] / _PRIOR["aspect"]
        slope[own[:, 2:], own[:, 2:]] = 1 / sigma[:, 2:]
        slope[np.arange(lenses.size, len(slope)), self.columns[:, -1]] = 1 / _PRIOR["clock"]
        return np.append(value, state.clocks / _PRIOR["clock"]), slope

    def fit(self, state: State, rounds: int = 3) -> State:
        """Return the state of lowest cost; the scale of the errors is estimated anew in every round."""
        for _ in range(rounds):
            state = self.minimise(state, _TOLERANCE, _ITERATIONS)
            errors = self.scale_px * np.linalg.norm(self.residuals(state), axis=1)
            self.scale_px = float(np.clip(3 * np.median(errors), _LEAST_SCALE_PX, self.scale_px))
        return state

    def moved(self, state: State, change: Float[Array, " F"], blocks: Float[Array, "P 6"]) -> State | None:
        """Return the state after a step, None if a focal length is not positive."""
        lenses, cameras = np.split(change, [state.lenses.size])
        lenses, cameras = state.lenses + lenses.reshape(state.lenses.shape), cameras.reshape(-1, 7)
        if (lenses[:, :2] < 1).any():
            return None
        return State(
            lenses=lenses,
            cameras=motions(cameras[:, :6]) @ state.cameras,
            clocks=state.clocks + cameras[:, 6],
            boards=state.boards @ motions(blocks),
        )

    def deviations(self, state: State) -> tuple[Float[Array, "V L"], Float[Array, " V"]]:
        """Return standard deviations of the lenses and clocks, 0 of those that are not free.

        Errors of a pose of the board are correlated, as by blur, and those of a corner, as of its print: the larger
        one of the deviations that count each pose, or each corner of the board, as one measurement.

        Source: Triggs et al., section 4.3: second derivatives of the kernel, here in the mean over directions.
        """
        system, residual, prior = Normal(self, state), self.residuals(state), self.prior(state)[1]
        system.hessian += (1 / system.curvature - 1) * prior.T @ prior  # the curvature is that of the kernel alone
        full, _, inverse = system.reduced()
        matrix = full[np.ix_(self.free, self.free)]
        by_view, by_board = ((part * residual[..., None]).sum(1) for part in system.weighted)
        pulls = np.zeros((self.number.max() + 1, len(self.free)))
        of_boards = np.zeros((len(pulls), *system.block_gradient.shape))
        np.add.at(pulls, (self.number[:, None], self.columns[self.view]), by_view)
        np.add.at(of_boards, (self.number, self.block), by_board)
        pulls -= np.tensordot(of_boards, inverse @ system.coupling, 2)
        by_corner, by_prior = (system.solved(matrix, part[:, self.free].T) for part in (pulls, prior / _SCALE))
        by_pose = np.diag(system.clustered(np.arange(len(inverse))))
        deviation = np.zeros(len(self.free))
        variance = np.maximum(by_pose, (by_corner**2).sum(1)) + (by_prior**2).sum(1)
        deviation[self.free] = np.sqrt(variance) / system.curvature
        return deviation[self.columns[:, : self.num_lens]], deviation[self.columns[:, -1]]


def board_poses(
    board: Board, model: LensModel, lens: Float[Array, " L"], sighting: Sighting
) -> list[tuple[Float[Array, "4 4"], Indices]]:
    """Return the poses of a board in the frame of its camera that explain a sighting, the best first.

    There are two of a plane, and several of a board with symmetries, each with its numbering.
    """
    is_fisheye = model is LensModel.FISHEYE
    undistort = cv2.fisheye.undistortPoints if is_fisheye else cv2.undistortPoints
    pixels, coefficients = sighting.pixels[:, None].astype(np.float64), lens[4:8] if is_fisheye else lens[4:]
    plane = np.asarray(undistort(pixels, lens_matrix(lens), coefficients)).reshape(-1, 2)
    usable = np.isfinite(plane).all(1) & (np.abs(plane) < 20).all(1)
    if usable.sum() < 4:
        return []
    found = []
    for turn in board.turns:
        numbers = turn[sighting.numbers]
        points = board.points[numbers][usable]
        _, rotations, shifts, *_ = cv2.solvePnPGeneric(
            points, plane[usable], np.eye(3), None, flags=cv2.SOLVEPNP_IPPE
        )
        for rotation, shift in zip(rotations, shifts, strict=True):
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = cv2.Rodrigues(rotation)[0], shift.ravel()
            local = points @ pose[:3, :3].T + pose[:3, 3]
            if np.isfinite(local).all() and local[:, 2].min() > 0:
                error = np.linalg.norm(local[:, :2] / local[:, 2:] - plane[usable], axis=1).mean()
                found.append((float(error), pose, numbers))
    found.sort(key=lambda one: one[0])
    return [(pose, numbers) for _, pose, numbers in found]


def calibrate_lens(
    board: Board, model: LensModel, sightings: Sequence[Sighting], size: tuple[int, int]
) -> tuple[Float[Array, " L"], tuple[str, ...]] | None:
    """Estimate the lens of one view: its parameters, and the terms that are determined.

    None without a sighting from which the pose of the board follows.
    """
    few, found = spread(board, sightings, _FEW, size), []
    for start in _STARTS:
        lens = np.array([start * max(size)] * 2 + [size[1] / 2, size[0] / 2] + [0.0] * len(TERMS[model]))
        if solved := _lens_from(board, model, few, lens, STEPS[model][1], size, rounds=1):
            state, problem = solved
            found.append((float(np.median(problem.errors(state))), state.lenses[0]))
    if not found:
        return None
    _, lens = min(found, key=lambda one: one[0])
    kept: tuple[Array, tuple[str, ...]] | None = None
    last = 0
    for count in STEPS[model]:
        lens = np.append(lens[: 4 + count], np.zeros(len(lens) - 4 - count))
        solved = _lens_from(board, model, sightings, lens, count, size)
        if solved is None:
            break
        lens, deviation = solved[0].lenses[0], solved[1].deviations(solved[0])[0][0]
        if kept is None or (np.abs(lens) > SIGNIFICANT * deviation)[4 + last : 4 + count].any():
            kept = lens, TERMS[model][:count]
        last = count
    return kept


def _lens_from(
    board: Board,
    model: LensModel,
    sightings: Sequence[Sighting],
    lens: Float[Array, " L"],
    num_terms: int,
    size: tuple[int, int],
    rounds: int = 2,
) -> tuple[State, BoardAdjustment] | None:
    """Adjust a lens, the first of whose coefficients are free, and the poses of its board."""
    poses = [board_poses(board, model, lens, one) for one in sightings]
    used = [(one, found[0]) for one, found in zip(sightings, poses, strict=True) if found]
    if not used:
        return None
    free = np.arange(len(lens))[None] < 4 + num_terms
    own = [
        replace(one, view=0, pose=place, numbers=found[1], velocity=0.0, acceleration=0.0)
        for place, (one, found) in enumerate(used)
    ]
    problem = BoardAdjustment(board, [model], own, free, np.zeros(1, bool), [size])
    boards = np.stack([found[0] for _, found in used])
    start = State(lenses=lens[None], cameras=np.eye(4)[None], clocks=np.zeros(1), boards=boards)
    return problem.fit(start, rounds), problem


_SAME_POSE = 0.1
"""Difference of two poses of one camera relative to another, in radians and shares of the distance."""

MIN_COMMON = 3
"""Instants at which two views must agree on their relative pose."""

_COMPARED = 40
"""Instants of a pair of views whose relative poses are compared."""

_CLOCK_STEP_S = 0.05
"""Step of the differences of clocks at which the relative poses of two views are compared."""

_CLOCKS = tuple(sorted((step * _CLOCK_STEP_S for step in range(-40, 41) if step), key=abs))


def pair_pose(first: Sequence[Array], second: Sequence[Array]) -> tuple[Float[Array, "4 4"], int]:
    """Return the pose of the second view relative to the first that most instants agree on, and their number.

    Per instant, `first` and `second` have the candidate poses [n, 4, 4] of the board in each view.
    """
    relative = [
        (two[:, None] @ np.linalg.inv(one)[None]).reshape(-1, 4, 4) for one, two in zip(first, second, strict=True)
    ]
    instant = np.repeat(np.arange(len(relative)), [len(one) for one in relative])
    poses = np.concatenate(relative)
    far = np.repeat([one[0, 2, 3] for one in first], [len(one) for one in relative])
    trace = np.einsum("aij,bij->ab", poses[:, :3, :3], poses[:, :3, :3])
    apart = np.arccos(np.clip((trace - 1) / 2, -1, 1))
    apart += np.linalg.norm(poses[:, None, :3, 3] - poses[None, :, :3, 3], axis=-1) / far
    nearest = np.minimum.reduceat(apart, np.flatnonzero(np.diff(instant, prepend=-1)), axis=1)
    best = int(np.minimum(nearest, _SAME_POSE).sum(1).argmin())
    return poses[best], int((nearest[best] < _SAME_POSE).sum())


def pair_clock(
    first: Mapping[float, Array], second: Mapping[float, Array], clocks: Sequence[float]
) -> tuple[Float[Array, "4 4"], int, float]:
    """Return `pair_pose` of two views by the instants of their candidates, and how many seconds early the second is.

    Where less than half of the instants agree, this is the one of `clocks` at which most do, if more than half.
    """
    best: tuple[Array, int, float] = np.eye(4), 0, 0.0
    times, others = np.array([*first]), np.array([*second])
    for clock in (0.0, *clocks) if first and second else ():
        near = others[nearest_frames(others - clock, times)]
        common = np.flatnonzero(np.abs(near - clock - times) <= _CLOCK_STEP_S / 2)
        few = common[np.unique(np.linspace(0, len(common) - 1, min(_COMPARED, len(common))).astype(int))]
        if len(few):
            between, count = pair_pose([first[one] for one in times[few]], [second[one] for one in near[few]])
            if not clock or count > max(best[1], len(few) / 2):
                best = between, count, clock
            if not clock and count >= len(few) / 2:
                break
    return best


def place_rig(
    board: Board,
    models: Sequence[LensModel],
    lenses: Float[Array, "V L"],
    sightings: Sequence[Sighting],
    instants: Float[Array, " T"] | None = None,
) -> tuple[State, list[Sighting], dict[int, int]]:
    """Return initial cameras of the largest part of the views that sees the board together, and its sightings.

    Poses of the board are renumbered, its corners where it has symmetries. The last value counts
    the instants that a view which is left out shares with others. The first view of the part is the world. Other
    clocks are tried if the times of the poses, `instants`, are given.

    Raises:
        InputError: if no sighting has a pose.
    """
    candidates, num_views = _candidates(board, models, lenses, sightings), len(lenses)
    seen: list[dict[float, Array]] = [{} for _ in range(num_views)]
    for (view, number), poses in candidates.items():
        seen[view][float(number if instants is None else instants[number])] = poses
    if not any(seen):
        raise InputError("no picture of the board fits its lens", "check ⟨intrinsics⟩ and ⟨board⟩")
    support, early = np.zeros((2, num_views, num_views))
    relative: dict[tuple[int, int], Array] = {}
    for first, second in combinations(range(num_views), 2):
        between, count, clock = pair_clock(seen[first], seen[second], () if instants is None else _CLOCKS)
        relative[first, second], relative[second, first] = between, np.asarray(np.linalg.inv(between), np.float64)
        support[first, second] = support[second, first] = count
        early[first, second], early[second, first] = clock, -clock
    links = [(i, j) for i, j in combinations(range(num_views), 2) if support[i, j] >= MIN_COMMON]
    part = next(part for part in connected_parts(num_views, links) if any(seen[view] for view in part))
    tree = minimum_spanning_tree(-np.where(support >= MIN_COMMON, support, 0))
    order, before = breadth_first_order(tree, part[0], directed=False)
    cameras, clocks = np.tile(np.eye(4), (num_views, 1, 1)), np.zeros(num_views)
    for view in order[1:]:
        cameras[view] = relative[before[view], view] @ cameras[before[view]]
        clocks[view] = clocks[before[view]] + early[before[view], view]
    shared = {view: int(support[view].max(initial=0)) for view in range(num_views) if view not in part}
    boards: list[Array] = []
    kept: list[Sighting] = []
    for number in sorted({number for view, number in candidates if view in part}):
        own = [
            one for one in sightings if one.pose == number and one.view in part and (one.view, number) in candidates
        ]
        pose, numbered = _placed_board(board, models, lenses, cameras, own, candidates)
        kept += [replace(one, pose=len(boards)) for one in numbered]
        boards.append(pose)
    state = State(lenses=lenses, cameras=cameras, clocks=clocks, boards=np.stack(boards))
    return state, kept, shared


def _candidates(
    board: Board, models: Sequence[LensModel], lenses: Float[Array, "V L"], sightings: Sequence[Sighting]
) -> dict[tuple[int, int], Float[Array, "n 4 4"]]:
    """Return the poses of the board that explain each sighting, by view and pose, if there are any."""
    found = {(one.view, one.pose): board_poses(board, models[one.view], lenses[one.view], one) for one in sightings}
    return {key: np.stack([pose for pose, _ in poses]) for key, poses in found.items() if poses}


def _placed_board(
    board: Board,
    models: Sequence[LensModel],
    lenses: Float[Array, "V L"],
    cameras: Float[Array, "V 4 4"],
    sightings: Sequence[Sighting],
    candidates: Mapping[tuple[int, int], Float[Array, "n 4 4"]],
) -> tuple[Float[Array, "4 4"], list[Sighting]]:
    """Return the candidate of one pose of the board that fits all its sightings best, and these with its numbers."""

    def error(one: Sighting, pose: Float[Array, "4 4"]) -> float:
        """Return the mean error in focal lengths, bounded so that a wrong view has no veto."""
        lens, local = lenses[one.view], in_camera((cameras[one.view] @ pose)[None], board.points[one.numbers])
        if (local[:, 2] <= 0).any():
            return 1.0
        pixels = project(models[one.view], lens, local)[0]
        return float(min(np.linalg.norm(pixels - one.pixels, axis=1).mean() / lens[0], 1.0))

    placed = np.concatenate([np.linalg.inv(cameras[one.view]) @ candidates[one.view, one.pose] for one in sightings])
    turns = [[replace(one, numbers=turn[one.numbers]) for turn in board.turns] for one in sightings]
    errors = [sum(min(error(turn, pose) for turn in turned) for turned in turns) for pose in placed]
    best = placed[int(np.argmin(errors))]
    return best, [min(turned, key=partial(error, pose=best)) for turned in turns]


def locate_board(
    board: Board,
    models: Sequence[LensModel],
    state: State,
    sightings: Sequence[Sighting],
    sizes: Sequence[tuple[int, int]],
) -> tuple[Float[Array, "4 4"], Float[Array, "6 6"]] | None:
    """Return `board_to_world` from sightings of one pose in known cameras, and the covariance of its motions.

    None if no sighting has a pose.
    """
    own = [replace(one, pose=0) for one in sightings]
    candidates = _candidates(board, models, state.lenses, own)
    own = [one for one in own if (one.view, 0) in candidates]
    if not own:
        return None
    pose, own = _placed_board(board, models, state.lenses, state.cameras, own, candidates)
    still = np.zeros(state.lenses.shape, bool)
    problem = BoardAdjustment(board, models, own, still, np.zeros(len(sizes), bool), sizes)
    fitted = problem.fit(replace(state, boards=pose[None]))
    _, _, inverse = Normal(problem, fitted).reduced()
    return fitted.boards[0], inverse[0] / _SCALE**2
