"""Joints in space of people whom several placed cameras see."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from page4d.output.rig_record import FocalSource
from page4d.rig.adjust import joints_of, merge_tracks, triangulate
from page4d.rig.epipolar import relative_pose_of
from page4d.rig.graph import choose_pairs
from page4d.rig.people.keypoints import detect_people
from page4d.rig.people.model import pose_model
from page4d.rig.people.pairs import common_people, exchange_sides, matches_of, pair_people, resolve_sides
from page4d.rig.records import Array, Evidence, Indices, Lens, PairPose, RigCamera, ViewPeople
from page4d.scene.records import Scene


def placed_joints(
    cameras: Sequence[RigCamera], people: Sequence[ViewPeople], num_instants: int
) -> tuple[Float[Array, "N J 3"], Indices]:
    """Return the joints of people whom several cameras see, NaN where they are unknown, and their instants [N]."""
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
    joints = joints_of(np.where(usable[:, None], points, np.nan), tracks)
    instants = np.zeros(len(joints), np.int64)
    instants[tracks.person] = tracks.instant
    return joints, instants


_SHOULDERS = [11, 12]
"""Landmarks without which nobody is a body."""

BLOCK = 128
"""Instants whose people are detected together: videos are opened once for them, and memory is bounded."""


class PlacedPeople:
    """The people of a scene whom several of its views with a static camera see, detected in blocks of instants.

    Raises:
        CapabilityError: if the pose model cannot run on this platform.
    """

    def __init__(self, scene: Scene, views: Sequence[int]) -> None:
        pose_model()  # an error now, not after the network has run
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
        self._block, self._found = -1, list[Float[Tensor, "P J 3"]]()

    def at(self, instant: int) -> Float[Tensor, "P J 3"]:
        """Return the joints of the people at an instant in the world of the cameras, NaN where they are unknown.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        block, place = divmod(instant, BLOCK)
        if block != self._block:
            self._block, self._found = block, self._people(range(block * BLOCK, self._scene.num_times)[:BLOCK])
        return self._found[place]

    def _people(self, instants: range) -> list[Float[Tensor, "P J 3"]]:
        lenses = [camera.lens for camera in self._cameras]
        people = detect_people(self._scene, instants, lenses, keeps_short=True)
        joints, places = placed_joints(self._cameras, people, len(instants))
        places[np.isnan(joints[:, _SHOULDERS]).any((1, 2))] = -1
        return [torch.from_numpy(joints[places == place]) for place in range(len(instants))]
