"""A synthetic test bed of rig registration: walking skeletons of 33 joints in front of static cameras."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import LensModel, Registration
from page4d.geometry.distortion import Distortion
from page4d.options import RegisterSettings
from page4d.rig.epipolar import pixels_of
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import (
    NUM_JOINTS,
    FocalSource,
    Lens,
    Tracklet,
    ViewPeople,
    direction_angle_deg,
    rotation_angle_deg,
)

Array = NDArray[np.float64]

IMAGE_SIZE = (1080, 1920)
FOCAL_PX = 1650.0
PERSON_HEIGHT = 1.7

SWAPPED_SIDES = np.array(
    [0, 4, 5, 6, 1, 2, 3, 8, 7, 10, 9, *np.arange(11, 33).reshape(-1, 2)[:, ::-1].ravel()], dtype=np.int64
)
"""For every BlazePose landmark its counterpart on the other side of the body."""


@dataclass(frozen=True, kw_only=True)
class Filming:
    """What is filmed, and how well keypoints are found.

    `bias_px` is the standard deviation of errors that persist: half of their variance is constant per view,
    person and joint, the other half changes over tens of instants. `noise_px` is independent. `missed` is the
    share of person-instants that are not detected, `occluded` the share of joint-instants of low visibility with
    large errors, `breaks` the number of times a tracklet ends and a new one begins. `num_false` people per view
    are in no other view. `delays` are instants by which each view lags behind the first. `ratios` and `k1` are the
    focal lengths of the views over `FOCAL_PX` and their radial distortion, 1 and 0 where they are not given.
    """

    angles_deg: tuple[float, ...] = (0.0, 65.0, 130.0)
    num_instants: int = 60
    num_people: int = 1
    noise_px: float = 0.0
    bias_px: float = 0.0
    missed: float = 0.0
    occluded: float = 0.0
    breaks: int = 0
    num_false: int = 0
    delays: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    k1: tuple[float, ...] = ()
    on_treadmill: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PeopleRig:
    """Keypoints of V views with the truth: `world_to_camera` [V, 4, 4], `joints` [P, T, 33, 3] in metres."""

    people: tuple[ViewPeople, ...]
    lenses: tuple[Lens, ...]
    world_to_camera: Array
    joints: Array
    num_instants: int

    def relative_pose(self, first: int, second: int) -> tuple[Array, Array]:
        """Return rotation [3, 3] and unit direction [3] of view `second` relative to view `first`."""
        relative = self.world_to_camera[second] @ np.linalg.inv(self.world_to_camera[first])
        return relative[:3, :3], relative[:3, 3] / np.linalg.norm(relative[:3, 3])


def errors_deg(rig: PeopleRig, views: Sequence[int], cameras: Sequence[Array]) -> tuple[float, float]:
    """Return the largest error of rotation and of direction over all pairs of cameras of `views`."""
    turns, bends = [], []
    for one, other in combinations(range(len(views)), 2):
        relative = cameras[other] @ np.linalg.inv(cameras[one])
        rotation, direction = rig.relative_pose(views[one], views[other])
        turns.append(float(rotation_angle_deg(relative[:3, :3], rotation)))
        bends.append(float(direction_angle_deg(relative[:3, 3], direction)))
    return max(turns), max(bends)


def film_people(filming: Filming) -> PeopleRig:
    """Film walking people with static cameras that look at them from `angles_deg`."""
    rng = np.random.default_rng(filming.seed)
    num_views = len(filming.angles_deg)
    cameras = np.stack([_camera(angle, rng) for angle in filming.angles_deg])
    walkers = [_Walker.random(rng, person, filming) for person in range(filming.num_people)]
    times = np.arange(filming.num_instants, dtype=np.float64)
    delays = filming.delays or (0.0,) * num_views
    ratios, k1 = filming.ratios or (1.0,) * num_views, filming.k1 or (0.0,) * num_views
    lenses = tuple(lens(ratio * FOCAL_PX, bend) for ratio, bend in zip(ratios, k1, strict=True))
    views = []
    for view in range(num_views):
        strangers = [_Walker.random(rng, person, filming) for person in range(filming.num_false)]
        tracklets: list[Tracklet] = []
        for walker in (*walkers, *strangers):
            tracklets += _filmed(walker.joints(times - delays[view]), cameras[view], lenses[view], filming, rng)
        views.append(tuple(tracklets[index] for index in rng.permutation(len(tracklets))))
    return PeopleRig(
        people=tuple(views),
        lenses=lenses,
        world_to_camera=cameras,
        joints=np.stack([walker.joints(times) for walker in walkers]),
        num_instants=filming.num_instants,
    )


def lens(focal: float = FOCAL_PX, k1: float = 0.0) -> Lens:
    """Return the lens of every view, or one of another focal length or radial distortion."""
    height, width = IMAGE_SIZE
    intrinsics = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    bent = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(k1, 0.0, 0.0, 0.0)) if k1 else None
    return Lens(intrinsics=intrinsics, image_size=IMAGE_SIZE, distortion=bent, focal_source=FocalSource.OPTION)


def with_instants(people: ViewPeople, instants: NDArray[np.int64]) -> ViewPeople:
    """Move the keypoints of instant t to `instants[t]`."""
    return tuple(_moved(tracklet, instants[tracklet.instants]) for tracklet in people)


def _moved(tracklet: Tracklet, instants: NDArray[np.int64]) -> Tracklet:
    order = np.argsort(instants)
    return Tracklet(instants=instants[order], joints=tracklet.joints[order], visibility=tracklet.visibility[order])


def _camera(angle_deg: float, rng: np.random.Generator) -> Array:
    """Return `world_to_camera` of a camera 4 m from the origin, with a roll of some degrees; y points down."""
    angle = np.radians(angle_deg)
    center = np.array([4 * np.sin(angle), -1.5 + rng.uniform(-0.4, 0.4), -4 * np.cos(angle)])
    forward = np.array([0.0, -0.95, 0.0]) - center
    forward /= np.linalg.norm(forward)
    roll = np.radians(rng.uniform(-5, 5))
    down = np.array([np.sin(roll), np.cos(roll), 0.0])
    right = np.cross(down, forward)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    camera = np.eye(4)
    camera[:3, :3], camera[:3, 3] = rotation, -rotation @ center
    return camera


def _filmed(joints: Array, camera: Array, lens: Lens, filming: Filming, rng: np.random.Generator) -> list[Tracklet]:
    """Project one person [T, 33, 3] to a view, with errors and gaps."""
    num_instants = len(joints)
    inside = joints @ camera[:3, :3].T + camera[:3, 3]
    plane = inside[..., :2] / inside[..., 2:]
    if lens.distortion is not None:
        plane = lens.distortion.distort(torch.from_numpy(plane)).numpy()
    pixels = pixels_of(plane, lens)
    pixels = pixels + rng.normal(size=pixels.shape) * filming.noise_px + _bias(num_instants, filming.bias_px, rng)
    hidden = rng.random(pixels.shape[:2]) < filming.occluded
    pixels = pixels + np.where(hidden[..., None], rng.normal(size=pixels.shape) * 40, 0.0)
    visibility = np.where(hidden, rng.uniform(0.0, 0.3, hidden.shape), rng.uniform(0.7, 1.0, hidden.shape))
    seen = np.flatnonzero(rng.random(num_instants) >= filming.missed)
    ends = np.sort(rng.choice(np.arange(10, max(num_instants - 10, 11)), filming.breaks, replace=False))
    parts = np.split(seen, np.searchsorted(seen, ends))
    return [Tracklet(instants=part, joints=pixels[part], visibility=visibility[part]) for part in parts if len(part)]


def _bias(num_instants: int, bias_px: float, rng: np.random.Generator) -> Array:
    """Return errors [T, 33, 2] that persist over instants."""
    constant, cosine, sine = rng.normal(size=(3, 1, NUM_JOINTS, 2))
    phase = (np.arange(num_instants) * 2 * np.pi / 40)[:, None, None]
    return bias_px * np.sqrt(0.5) * (constant + cosine * np.cos(phase) + sine * np.sin(phase))


@dataclass(frozen=True, kw_only=True)
class _Walker:
    """A walk: a path of the hips on the floor, with limbs that swing."""

    centre: Array
    reach: Array
    rates: Array
    phases: Array
    stride: float
    turning: float
    scale: float

    @classmethod
    def random(cls, rng: np.random.Generator, person: int, filming: Filming) -> "_Walker":
        angle = 2.4 * person + rng.uniform(0, 1)
        reach = 0.05 if filming.on_treadmill else rng.uniform(0.5, 0.9, 2)
        return cls(
            centre=np.array([np.sin(angle), np.cos(angle)]) * (0.0 if filming.num_people == 1 else 0.7),
            reach=reach * np.ones(2),
            rates=rng.uniform(0.06, 0.13, 2),
            phases=rng.uniform(0, 2 * np.pi, 5),
            stride=rng.uniform(0.5, 0.8),
            turning=0.0 if filming.on_treadmill else rng.uniform(0.03, 0.08),
            scale=rng.uniform(0.92, 1.08),
        )

    def joints(self, times: Array) -> Array:
        """Return joints [T, 33, 3] in metres; x and z span the floor, y points down."""
        body = self.scale * _pose(self.stride * times + self.phases[0], 0.3 * times + self.phases[1])
        heading = self.phases[2] + self.turning * times + 0.3 * np.sin(0.21 * times)
        cosine, sine = np.cos(heading)[:, None], np.sin(heading)[:, None]
        x, y, z = np.moveaxis(body, -1, 0)
        path = self.centre + self.reach * np.sin(self.rates * times[:, None] + self.phases[3:])
        return np.stack([cosine * x + sine * z + path[:, :1], y, cosine * z - sine * x + path[:, 1:]], axis=-1)


def _pose(step: Array, lean: Array) -> Array:
    """Return joints [T, 33, 3] of a walking body at the origin that faces +z, its left side at -x."""
    joints = np.zeros((len(step), NUM_JOINTS, 3))
    nod = 0.25 * np.sin(lean)
    face = [(0, 0.0, 0.02, 0.12), (1, 0.02, -0.03, 0.1), (2, 0.035, -0.03, 0.095), (3, 0.05, -0.03, 0.085)]
    face += [(7, 0.08, -0.01, 0.0), (9, 0.025, 0.07, 0.1)]
    for joint, side, down, forward in face:
        for index, sign in ((joint, -1), (SWAPPED_SIDES[joint], 1)):
            joints[:, index, 0] = sign * side
            joints[:, index, 1] = -1.58 + down * np.cos(nod) + forward * np.sin(nod)
            joints[:, index, 2] = forward * np.cos(nod) - down * np.sin(nod)
    for side, sign in ((0, -1.0), (1, 1.0)):
        swing = sign * np.sin(step)
        joints[:, 11 + side] = [0.19 * sign, -1.4, 0.0]
        joints[:, 23 + side] = [0.1 * sign, -0.9, 0.0]
        upper, fore = -0.5 * swing, -0.5 * swing + 0.5 + 0.4 * np.sin(lean + sign)
        joints[:, 13 + side] = joints[:, 11 + side] + _limb(0.29, upper, 0.15 * sign + 0.1 * sign * np.cos(lean))
        joints[:, 15 + side] = joints[:, 13 + side] + _limb(0.26, fore, 0.05 * sign)
        for finger, (length, spread) in enumerate(((0.09, 0.25), (0.1, 0.0), (0.06, -0.5))):
            joints[:, 17 + 2 * finger + side] = joints[:, 15 + side] + _limb(length, fore + 0.1, spread * sign)
        thigh = 0.5 * swing
        shank = thigh - 0.35 * (1 - sign * np.cos(step))
        joints[:, 25 + side] = joints[:, 23 + side] + _limb(0.43, thigh, 0.03 * sign)
        joints[:, 27 + side] = joints[:, 25 + side] + _limb(0.41, shank, 0.0)
        joints[:, 29 + side] = joints[:, 27 + side] + _limb(0.07, shank - 0.6, 0.0)
        joints[:, 31 + side] = joints[:, 27 + side] + _limb(0.17, shank + 1.3, 0.1 * sign)
    return joints


def _limb(length: float, forward: Array, outward: Array | float) -> Array:
    """Return a bone [T, 3] that hangs down, swung forward and outward by angles in radians."""
    return length * np.stack(
        [np.sin(outward) * np.ones_like(forward), np.cos(forward) * np.cos(outward), np.sin(forward)], axis=-1
    )


def evidence_of(rig: PeopleRig, register: Registration) -> PixelEvidence:
    """Return the evidence of a scene without pictures: lenses and people are those of the rig."""
    names = tuple(f"cam{view:02}" for view in range(len(rig.lenses)))
    scene: Any = SimpleNamespace(view_names=names, views=(), times=np.arange(rig.num_instants) / 30)
    pixels = PixelEvidence(scene, RegisterSettings(register=register))
    pixels.lenses, pixels.people, pixels.instants = rig.lenses, rig.people, tuple(range(rig.num_instants))
    return pixels
