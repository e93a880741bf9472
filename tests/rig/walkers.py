"""Synthetic people that walk among static cameras, seen as body keypoints with noise and bias."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from page4d.rig.records import NUM_JOINTS, FocalSource, Lens, RigCamera, Tracklet, ViewPeople

FRAME_S = 1 / 30


def look_at(center: np.ndarray, target: np.ndarray, roll: float = 0.0) -> np.ndarray:
    """Return the pose of a camera; y points down in the world's -z."""
    forward = (target - center) / np.linalg.norm(target - center)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    rotation = Rotation.from_rotvec([0, 0, roll]).as_matrix() @ rotation
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, -rotation @ center
    return pose


def lens(focal: float = 1500.0) -> Lens:
    intrinsics = np.array([[focal, 0, 960.0], [0, focal, 540.0], [0, 0, 1]])
    return Lens(intrinsics=intrinsics, image_size=(1080, 1920), focal_source=FocalSource.CALIBRATION)


def ring(num_views: int, rng: np.random.Generator, spread: float = 2 * np.pi) -> tuple[RigCamera, ...]:
    """Return cameras around the origin at irregular angles, distances and heights."""
    cameras = []
    for view in range(num_views):
        angle = spread * (view + rng.uniform(-0.25, 0.25)) / num_views
        distance, height = rng.uniform(3.0, 5.0), rng.uniform(0.8, 2.5)
        center = np.array([distance * np.cos(angle), distance * np.sin(angle), height])
        pose = look_at(center, np.array([0, 0, 1.0]) + rng.normal(size=3) * 0.15, rng.normal() * 0.05)
        cameras.append(RigCamera(lens=lens(rng.uniform(1300, 1700)), world_to_camera=pose))
    return tuple(cameras)


@dataclass(frozen=True)
class Walk:
    """Motion of one person: a smooth random path, with limbs that swing at irregular phases."""

    path: np.ndarray
    phase: np.ndarray
    body: np.ndarray
    swing: np.ndarray

    @staticmethod
    def random(rng: np.random.Generator, *, periodic: bool = False) -> "Walk":
        body = rng.normal(size=(NUM_JOINTS, 3)) * [0.22, 0.22, 0.5] + [0, 0, 1.0]
        swing = rng.normal(size=(NUM_JOINTS, 2, 3)) * 0.12
        path = np.zeros((3, 4)) if periodic else rng.normal(size=(3, 4)) * 0.5
        phase = np.array([2 * np.pi * 2.0, 0.0]) if periodic else np.array([9.0, rng.uniform(1, 3)])
        return Walk(path, phase, body, swing)

    def joints(self, time: float) -> np.ndarray:
        """Return joints [J, 3] at a time in seconds."""
        rates = np.array([0.7, 1.3, 2.1])
        position = (self.path[:, :2] * np.sin(rates[:, None] * time + self.path[:, 2:] * 3)).sum(0)
        phase = self.phase[0] * time + self.phase[1] * np.sin(1.7 * time)
        turn = Rotation.from_rotvec([0, 0, 0.0 if not self.phase[1] else 0.8 * time]).as_matrix()
        moved = self.body + self.swing[:, 0] * np.sin(phase) + self.swing[:, 1] * np.cos(phase)
        return moved @ turn.T + [*position, 0.0]


def observe(
    cameras: tuple[RigCamera, ...],
    walks: list[Walk],
    rng: np.random.Generator,
    *,
    num_instants: int = 60,
    step_s: float = 2 * FRAME_S,
    noise: float = 0.003,
    bias: float = 0.0,
    delays: tuple[float, ...] | None = None,
) -> tuple[ViewPeople, ...]:
    """Return keypoints; `noise` and `bias` (per view and joint) are in units of the focal length, `delays` in s."""
    views = []
    for number, camera in enumerate(cameras):
        delay = 0.0 if delays is None else delays[number]
        tracklets = []
        for walk in rng.permutation(np.array(walks, dtype=object)):
            world = np.stack([walk.joints(instant * step_s + delay) for instant in range(num_instants)])
            local = world @ camera.rotation.T + camera.world_to_camera[:3, 3]
            shift = rng.normal(size=(NUM_JOINTS, 2)) * bias + rng.normal(size=(num_instants, NUM_JOINTS, 2)) * noise
            plane = local[..., :2] / local[..., 2:] + shift
            pixels = plane @ camera.lens.intrinsics[:2, :2].T + camera.lens.intrinsics[:2, 2]
            visibility = rng.uniform(0.4, 1.0, size=(num_instants, NUM_JOINTS))
            seen = np.flatnonzero(rng.uniform(size=num_instants) > 0.05)
            tracklets.append(Tracklet(instants=seen, joints=pixels[seen], visibility=visibility[seen]))
        views.append(tuple(tracklets))
    return tuple(views)
