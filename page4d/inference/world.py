"""Which world a result lives in and whose cameras it has: the calibrated rig's, or the first camera's."""

from dataclasses import replace
from enum import StrEnum

import torch

from page4d.conventions import Scale
from page4d.geometry.camera import Cameras
from page4d.geometry.registration import DegenerateGeometryError, align_cameras
from page4d.geometry.similarity import Sim3
from page4d.predictions import Predictions
from page4d.scene.records import Scene


class Poses(StrEnum):
    """Whose cameras the result has where a calibration is given."""

    INPUT = "input"
    PREDICTED = "predicted"


class World:
    """The world of one run.

    It is fixed if every chunk arrives in it by itself, because its cameras are the rig's. Otherwise the first chunk
    is placed and the others are stitched to it.
    """

    def __init__(self, scene: Scene, poses: Poses, *, predictor_uses_rig: bool) -> None:
        self._scale = scene.scale
        self._has_rig = all(view.camera is not None for view in scene.views)
        self._replaces_cameras = self._has_rig and poses is Poses.INPUT and not predictor_uses_rig
        self.is_fixed = self._has_rig and (poses is Poses.INPUT or predictor_uses_rig)
        self.scale_is_known = self._has_rig

    @property
    def scale(self) -> Scale:
        """What a unit of length means in the result; known once the first chunk has been settled."""
        return self._scale if self.scale_is_known else Scale.ARBITRARY

    @property
    def lacks_baseline(self) -> bool:
        """True if a rig is given that does not tell the scale: one camera in one place."""
        return self._has_rig and not self.scale_is_known

    def settle(self, predictions: Predictions, rig: Cameras | None) -> Predictions:
        """Give a chunk the rig's cameras, and bring its depth and points to their scale.

        The scale is the ratio of the distances between the calibrated and between the predicted cameras of the chunk.
        Predictions that keep their own cameras are returned as they are.
        """
        if not self._replaces_cameras:
            return predictions
        assert rig is not None
        moved = predictions.transformed(self._onto_rig(predictions, rig))
        return replace(moved, cameras=rig)

    def place_first(self, predictions: Predictions, rig: Cameras | None) -> Sim3:
        """Return the map that brings the first chunk into the world.

        Without a rig that is the camera frame of the first view at the first instant.
        """
        if rig is not None and self._has_rig:
            return self._onto_rig(predictions, rig)
        first = predictions.cameras.world_to_camera[0, 0, 0].to(torch.float64)
        return Sim3(scale=torch.ones((), dtype=torch.float64), rotation=first[:3, :3], translation=first[:3, 3])

    def _onto_rig(self, predictions: Predictions, rig: Cameras) -> Sim3:
        predicted = predictions.cameras.world_to_camera.reshape(-1, 4, 4)
        known = rig.world_to_camera.reshape(-1, 4, 4).to(predicted)
        try:
            return align_cameras(predicted, known)
        except DegenerateGeometryError:
            self.scale_is_known = False
            return align_cameras(predicted, known, with_scale=False)
