"""Cameras of a calibrated scene, as the check of a calibration takes them."""

import numpy as np

from page4d.rig.people_fit import RigCamera
from page4d.rig.records import FocalSource, Lens
from page4d.scene.records import Scene


def calibrated_cameras(scene: Scene) -> tuple[RigCamera, ...] | None:
    """Return the cameras of a scene of two or more static calibrated views; None for any other scene."""
    cameras = []
    for view in scene.views:
        if view.camera is None or view.camera.world_to_camera.ndim != 2:
            return None
        lens = Lens(
            intrinsics=view.camera.intrinsics.double().numpy(),
            image_size=view.source.size,
            distortion=view.camera.distortion,
            focal_source=FocalSource.CALIBRATION,
        )
        pose = np.asarray(view.camera.world_to_camera.double().numpy())
        cameras.append(RigCamera(lens=lens, world_to_camera=pose))
    return tuple(cameras) if len(cameras) > 1 else None
