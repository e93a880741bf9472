"""Joints in space of people whom several placed cameras see."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from page4d.output.rig_record import FocalSource
from page4d.rig.adjust import joints_of, merge_tracks, rays, triangulate
from page4d.rig.epipolar import relative_pose_of
from page4d.rig.graph import choose_pairs
from page4d.rig.people.keypoints import detect_people
from page4d.rig.people.pairs import common_people, exchange_sides, matches_of, pair_people, resolve_sides
from page4d.rig.records import Array, Evidence, Indices, Lens, PairPose, RigCamera, ViewPeople, direction_angle_deg
from page4d.scene.records import Scene
from page4d.stereo.bodies import HIPS, SHOULDERS


def placed_joints(
    cameras: Sequence[RigCamera],
    people: Sequence[ViewPeople],
    num_instants: int,
    min_parallax_deg: float = 0.0,
) -> tuple[Float[Array, "N J 3"], Indices]:
    """Return the joints of people whom several cameras see, NaN where they are unknown, and their instants [N].

    A joint needs rays with an angle of `min_parallax_deg` between them.
    """
    pairs = []
    for first, second in choose_pairs(common_people(people, num_instants)):
        lenses = (cameras[first].lens, cameras[second].lens)
        pose = relative_pose_of(cameras[first].world_to_camera, cameras[second].world_to_camera)
        both = pair_people(people[first], people[second], lenses)
        if pose is None or not len(both.instants):
            continue
        both = resolve_sides(both, pair_people(people[first], exchange_sides(people[second]), lenses), pose)
        chosen, score = both.assign(pose)
        pairs.append(
            PairPose(
                views=(first, second),
                evidence=Evidence.PEOPLE,
                rotation=pose.rotation,
                direction=pose.direction,
                score=score,
                matches=matches_of(both.subset(chosen), pose, num_instants)[0],
            )
        )
    tracks = merge_tracks(pairs, num_instants)
    poses = np.stack([camera.world_to_camera for camera in cameras])
    intrinsics = np.stack([camera.lens.intrinsics for camera in cameras])
    points, usable = triangulate(poses, intrinsics, tracks)
    if min_parallax_deg and tracks.num_points:
        starts = np.flatnonzero(np.diff(tracks.point, prepend=-1))
        _, direction = rays(poses, intrinsics, tracks)
        mean = np.add.reduceat(direction, starts)[tracks.point]
        usable &= np.maximum.reduceat(2 * direction_angle_deg(direction, mean), starts) >= min_parallax_deg
    joints = joints_of(np.where(usable[:, None], points, np.nan), tracks)
    instants = np.zeros(len(joints), np.int64)
    instants[tracks.person] = tracks.instant
    return joints, instants


_OTHER_SIZE = 1.5
"""Ratio of the length of a trunk to the median of a block beyond which it is none: joints of two people, one of whom
is hidden in each of two views, meet at another distance."""

_MIN_PARALLAX_DEG = 5.0
"""Angle between rays of a joint below which its distance is uncertain: 8 cm at 4 m for 5 px of 1920."""

BLOCK = 512
"""Frames whose people are detected together: videos are opened once for them, and memory is bounded."""

_MIN_LENGTH = 16
"""Instants that are detected together at least."""


class PlacedPeople:
    """The people of a scene whom several of its views with a static camera see, detected in blocks of instants."""

    def __init__(self, scene: Scene, views: Sequence[int]) -> None:
        self._scene = replace(scene, views=tuple(scene.views[view] for view in views))
        self._cameras = [
            RigCamera(
                lens=Lens(
                    intrinsics=view.camera.intrinsics.double().numpy(),
                    image_size=view.source.size,
                    distortion=view.camera.distortion,
                    focal_source=FocalSource.CALIBRATION,
                ),
                world_to_camera=view.camera.world_to_camera.double().numpy(),
            )
            for view in self._scene.views
            if view.camera is not None
        ]
        self._length = max(_MIN_LENGTH, BLOCK // len(self._cameras))
        self._block, self._found = -1, list[Float[Tensor, "P J 3"]]()

    def at(self, instant: int) -> Float[Tensor, "P J 3"]:
        """Return the joints of the people at an instant in the world of the cameras, NaN where they are unknown.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        block, place = divmod(instant, self._length)
        if block != self._block:
            instants = range(block * self._length, self._scene.num_times)[: self._length]
            self._block, self._found = block, self._people(instants)
        return self._found[place]

    def _people(self, instants: range) -> list[Float[Tensor, "P J 3"]]:
        lenses = [camera.lens for camera in self._cameras]
        people = detect_people(self._scene, instants, lenses, keeps_short=True)
        joints, places = placed_joints(self._cameras, people, len(instants), _MIN_PARALLAX_DEG)
        trunks = np.linalg.norm(joints[:, SHOULDERS].mean(1) - joints[:, HIPS].mean(1), axis=-1)
        usual = np.median(trunks[np.isfinite(trunks)]) if np.isfinite(trunks).any() else 1.0
        other = np.abs(np.log(trunks / usual)) > np.log(_OTHER_SIZE)
        places[other | np.isnan(joints[:, SHOULDERS]).any((1, 2))] = -1
        return [torch.from_numpy(joints[places == place]) for place in range(len(instants))]
