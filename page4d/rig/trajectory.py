"""The trajectory of a calibrated rig that moves as one through a static scene, from texture.

Features are followed from instant to instant in every view, and matched between views, whose known distances give the
unit of length. At each instant the rig has the pose under which most of the points of earlier instants are seen, in
all views together; the poses of the last instants and their points are adjusted.

Source: Pless, "Using many cameras as one", CVPR 2003.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from page4d.errors import InputError, Level, Notice, Notify, counted
from page4d.output.rig_record import RegistrationRecord
from page4d.rig.adjust import BEHIND, TEXTURE_SIGMA, Observations, by_local, triangulate
from page4d.rig.epipolar import relative_pose_of
from page4d.rig.evidence import PixelEvidence
from page4d.rig.least_squares import LeastSquares, by_motion, in_camera, motions
from page4d.rig.records import Array, Lens, RigRegistration, direction_angle_deg, of_stage, placed_record
from page4d.rig.texture import ROOT_SIFT, TOLERANCE, InstantTexture, extract_texture, match_near

_BLOCK = 8
"""Instants whose features are in memory at once."""

_MAX_FEATURES = 1500
METHOD = replace(ROOT_SIFT, max_instants=_BLOCK, max_side_px=1280)
"""How features are found and followed."""

_RANGE_DEG = 75.0
"""Angle between the optical axes of views up to which their texture is matched."""

_WINDOW, _FREE = 6, 3
"""Instants that are adjusted together, and how many of the last of them may still change."""

_MIN_POINTS = 30
_MIN_SHARE = 0.4
"""Fewest points of earlier instants that the rig sees again at a new one, and their least share of those in view: the
others move, or are wrong."""

_OUTLIER = 4.5
"""Errors in sigmas beyond which an observation is left out."""

_ITERATIONS, _CONVERGED = 12, 1e-4


def moving_rig(pixels: PixelEvidence, notify: Notify) -> RigRegistration:
    """Return the cameras of a rig that moves as one; the world is that of its calibration at the first instant.

    Raises:
        InputError: if views share too little texture at an instant, or with the next instant; or a frame cannot be
            decoded.
    """
    scene, lenses = pixels.scene, pixels.lenses
    given = [(view.name, view.camera) for view in scene.views if view.camera is not None]
    path = _Path(np.stack([camera.world_to_camera.double().numpy() for _, camera in given]), lenses)
    step = of_stage(pixels.progress, "registering: motion of the rig")
    for start in range(0, scene.num_times, _BLOCK):
        block = range(start, min(start + _BLOCK, scene.num_times))
        views = extract_texture(scene, block, lenses, METHOD)
        for instant in block:
            path.add([view[instant].first(_MAX_FEATURES) for view in views], f"{scene.times[instant]:.3f} s")
            step(instant + 1, scene.num_times)
    for view, share in enumerate(path.fits / np.maximum(path.known, 1)):
        if path.known[view] >= _MIN_POINTS and share < _MIN_SHARE:
            raise InputError(
                f"{scene.view_names[view]} does not move with the rig: {share:.0%} of its points of texture fit",
                "leave it out with ⟨views⟩, or correct the calibration or its clock",
            )
    world_to_rig, error = torch.from_numpy(np.stack(path.poses)), float(np.median(path.errors or [0.0]))
    cameras = [replace(camera, world_to_camera=camera.world_to_camera.double() @ world_to_rig) for _, camera in given]
    records = [
        placed_record(name, lens, source="calibration", residual_px=error * lens.focal)
        for (name, _), lens in zip(given, lenses, strict=True)
    ]
    notify(Notice(f"the rig moves as one, from texture of {counted(scene.num_times, 'instant')}", Level.INFO))
    record = RegistrationRecord(asked=pixels.settings.register, cameras=records, num_instants=scene.num_times)
    return RigRegistration(record=record, cameras=[*cameras])


@dataclass(frozen=True)
class _Seen:
    """Features of an instant: their views, the tracks of all instants that they are of, and their pixels."""

    view: Int[NDArray[np.int64], " K"]
    track: Int[NDArray[np.int64], " K"]
    pixels: Float[Array, "K 2"]


class _Path:
    """Poses of the rig so far, and points [M, 3] of the tracks of the last instants, NaN where they are unknown.

    `known` and `fits` count, per view, points of earlier instants that are seen again, and those that fit the poses.
    """

    def __init__(self, rig: Float[Array, "V 4 4"], lenses: Sequence[Lens]) -> None:
        self.rig, self.lenses = rig, lenses
        self.intrinsics = np.stack([lens.intrinsics for lens in lenses])
        self.focal = np.array([lens.focal for lens in lenses])
        self.poses: list[Array] = []
        self.errors: list[float] = []
        self.known, self.fits = np.zeros((2, len(rig)))
        self.points: Array = np.zeros((0, 3))
        self._seen: list[_Seen] = []
        self._last: tuple[Sequence[InstantTexture], list[NDArray[np.int64]]] | None = None
        self._pairs = [
            ((one, other), pose)
            for one, other in combinations(range(len(rig)), 2)
            if direction_angle_deg(rig[one, 2, :3], rig[other, 2, :3]) < _RANGE_DEG
            and (pose := relative_pose_of(rig[one], rig[other])) is not None
        ]

    def add(self, features: Sequence[InstantTexture], time: str) -> None:
        """Add the features of the next instant, and the pose of the rig there."""
        tracks = self._tracks(features)
        view = np.repeat(np.arange(len(features)), [len(one.points) for one in features])
        pixels = np.concatenate([one.points for one in features])
        self._seen.append(_Seen(view, np.concatenate(tracks), pixels))
        self.poses.append(self._located(self._seen[-1], time) if self.poses else np.eye(4))
        self._adjust()
        if len(self.poses) == 1 and (count := int(np.isfinite(self.points[:, 0]).sum())) < _MIN_POINTS:
            raise InputError(
                f"the views of the rig show the distance of {count} points of texture at {time}, not {_MIN_POINTS}",
                "give the poses of every instant with ⟨calibration⟩",
            )
        self._seen = self._seen[-_WINDOW:]
        kept = np.unique(np.concatenate([one.track for one in self._seen]))
        self.points = self.points[kept]
        self._seen = [_Seen(one.view, np.searchsorted(kept, one.track), one.pixels) for one in self._seen]
        self._last = features, [np.searchsorted(kept, own) for own in tracks]

    def _tracks(self, features: Sequence[InstantTexture]) -> list[NDArray[np.int64]]:
        """Return the tracks of features: those of the last instant and of other views, or new ones."""
        first = new = len(self.points)
        tracks = []
        for view, texture in enumerate(features):
            own = first + np.arange(len(texture.points))
            first += len(own)
            if self._last is not None:
                before, known = self._last[0][view], self._last[1][view]
                places = METHOD.match(before, texture, (self.lenses[view],) * 2)
                own[places[:, 1]] = known[places[:, 0]]
            tracks.append(own)
        self.points = np.concatenate([self.points, np.full((first - new, 3), np.nan)])
        for (one, other), pose in self._pairs:
            first_view, second_view = ({0: features[view]} for view in (one, other))
            found = match_near(first_view, second_view, (self.lenses[one], self.lenses[other]), pose, TOLERANCE)
            for target, source, here, there in (
                (other, one, found.second_ids, found.first_ids),
                (one, other, found.first_ids, found.second_ids),
            ):
                mine, theirs = tracks[target][here], tracks[source][there]
                joins = (mine >= new) & (mine != theirs) & ~np.isin(theirs, tracks[target])
                tracks[target][here[joins]] = theirs[joins]
        return tracks

    def _errors(self, pose: Array, seen: _Seen, points: Array) -> Array:
        """Return reprojection errors in focal lengths, infinite behind a camera."""
        local = in_camera((self.rig @ pose)[seen.view], points)
        plane = np.einsum(
            "nij,nj->ni", self.intrinsics[seen.view][:, :2], local / np.where(local[:, 2:] > 0, local[:, 2:], 1)
        )
        error = np.linalg.norm(plane - seen.pixels, axis=-1) / self.focal[seen.view]
        return np.where(local[:, 2] > 0, error, np.inf)

    def _located(self, seen: _Seen, time: str) -> Array:
        """Return the pose under which most points of earlier instants are seen: of those that single views give."""
        import cv2  # a local import keeps start-up short

        known = np.isfinite(self.points[seen.track, 0])
        seen = _Seen(seen.view[known], seen.track[known], seen.pixels[known])
        points = self.points[seen.track]
        candidates = [self.poses[-1]]
        if len(self.poses) > 1:
            candidates.append(self.poses[-1] @ np.linalg.inv(self.poses[-2]) @ self.poses[-1])
        for view, matrix in enumerate(self.intrinsics):
            mine = seen.view == view
            if mine.sum() < 8:
                continue
            cv2.setRNGSeed(0)
            limit = 2 * TOLERANCE * self.focal[view]
            found, turn, shift, _ = cv2.solvePnPRansac(
                points[mine], seen.pixels[mine], matrix, None, reprojectionError=limit, iterationsCount=200
            )
            if found:
                pose = motions(np.concatenate([turn, shift]).reshape(1, 6))[0]
                candidates.append(np.linalg.inv(self.rig[view]) @ pose)
        fits = [self._errors(pose, seen, points) < 2 * TOLERANCE for pose in candidates]
        best = int(np.argmax([fit.sum() for fit in fits]))
        if fits[best].sum() < max(_MIN_POINTS, _MIN_SHARE * len(points)):
            raise InputError(
                f"the motion of the rig is lost at {time}: {fits[best].sum()} of {len(points)} points of texture fit",
                "use more instants (⟨fps⟩, ⟨stride⟩), or give the poses of every instant with ⟨calibration⟩",
            )
        self.known += np.bincount(seen.view, minlength=len(self.rig))
        self.fits += np.bincount(seen.view[fits[best]], minlength=len(self.rig))
        return candidates[best]

    def _adjust(self) -> None:
        """Adjust the poses of the last instants, and the points of their tracks."""
        first = max(len(self.poses) - _WINDOW, 0)
        seen, poses = self._seen[-_WINDOW:], np.stack(self.poses[first:])
        view = np.concatenate([one.view + len(self.rig) * place for place, one in enumerate(seen)])
        track, pixels = (np.concatenate([getattr(one, name) for one in seen]) for name in ("track", "pixels"))
        order = np.lexsort((view, track))
        names, point = np.unique(track[order], return_inverse=True)
        tracks = Observations(
            view=view[order],
            point=point,
            pixels=pixels[order],
            weights=np.ones(len(order)),
            person=names,
            instant=np.full(len(names), -1),
            joint=np.full(len(names), -1),
        ).select(np.ones(len(order), bool))
        self.points[names] = np.nan
        state = _State(poses, np.zeros((0, 3)))
        for _ in range(2):
            cameras = (self.rig @ state.poses[:, None]).reshape(-1, 4, 4)
            points, usable = triangulate(cameras, np.tile(self.intrinsics, (len(poses), 1, 1)), tracks)
            tracks, state = tracks.select(usable[tracks.point]), _State(state.poses, points[usable])
            if tracks.num_points == 0:
                return
            problem = _Problem(self.rig, self.intrinsics, tracks, len(poses), max(_WINDOW - _FREE, 1) if first else 1)
            if problem.free.any():
                state = problem.minimise(state, _CONVERGED, _ITERATIONS)
            errors = np.linalg.norm(problem.residuals(state), axis=-1)
            fits = np.bincount(tracks.point, errors < _OUTLIER, tracks.num_points) >= 2
            kept = tracks.select((errors < _OUTLIER) & fits[tracks.point])
            state = _State(state.poses, state.points[np.isin(tracks.person, kept.person)])
            tracks = kept
        self.points[tracks.person] = state.points
        self.poses[first:] = list(state.poses)
        self.errors.append(float(np.median(errors)) * TEXTURE_SIGMA)


@dataclass(frozen=True)
class _State:
    """Poses of the rig [n, 4, 4] and points [P, 3]."""

    poses: Float[Array, "n 4 4"]
    points: Float[Array, "P 3"]


class _Problem(LeastSquares[_State]):
    """Adjustment of poses of a rig, by motions in its frame; a view of an instant has the parameters of its pose."""

    def __init__(
        self,
        rig: Float[Array, "V 4 4"],
        intrinsics: Float[Array, "V 3 3"],
        tracks: Observations,
        num: int,
        num_fixed: int,
    ) -> None:
        self.view, self.block, self.weights, self.pixels = tracks.view, tracks.point, tracks.weights, tracks.pixels
        self.instant, view = np.divmod(tracks.view, len(rig))
        self.turn, self.shift, self.matrix = rig[view, :3, :3], rig[view, :3, 3], intrinsics[view, :2]
        self.sigma_px = TEXTURE_SIGMA * np.sqrt(intrinsics[view, 0, 0] * intrinsics[view, 1, 1])[:, None]
        self.columns = np.arange(6 * num).reshape(-1, 1, 6).repeat(len(rig), axis=1).reshape(-1, 6)
        self.free = np.arange(6 * num) >= 6 * num_fixed

    def linearized(self, state: _State) -> tuple[Float[Array, "N 2"], Float[Array, "N 2 6"], Float[Array, "N 2 3"]]:
        """Return reprojection errors in sigmas, and their derivatives by the motion of the rig and by the point."""
        in_rig = in_camera(state.poses[self.instant], state.points[self.block])
        local = np.einsum("nij,nj->ni", self.turn, in_rig) + self.shift
        front = local[:, 2] > 0
        local = np.where(front[:, None], local, [0.0, 0.0, 1.0])
        error = np.einsum("nij,nj->ni", self.matrix, local / local[:, 2:]) - self.pixels
        error = np.where(front[:, None], error / self.sigma_px, BEHIND)
        by_rig = self.matrix[:, :, :2] @ by_local(local) @ self.turn * (front[:, None] / self.sigma_px)[..., None]
        return error, by_rig @ by_motion(in_rig), by_rig @ state.poses[self.instant, :3, :3]

    def moved(self, state: _State, change: Float[Array, " F"], blocks: Float[Array, "P 3"]) -> _State:
        """Return the state after a step."""
        return _State(motions(change.reshape(-1, 6)) @ state.poses, state.points + blocks)
