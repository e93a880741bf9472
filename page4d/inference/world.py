"""Results in the world of a calibrated rig: with its own cameras, or moved there as a whole."""

from dataclasses import dataclass, replace
from enum import StrEnum

from page4d.conventions import Scale
from page4d.geometry.camera import Cameras
from page4d.geometry.registration import DegenerateGeometryError, align_cameras
from page4d.geometry.similarity import Sim3
from page4d.predictions import Predictions


class Poses(StrEnum):
    """Whose cameras the result has where a calibration is given."""

    INPUT = "input"
    PREDICTED = "predicted"


@dataclass(frozen=True)
class Anchored:
    """Predictions in the rig's world; `scale_known` is False where one camera gives no baseline to measure by."""

    predictions: Predictions
    scale_known: bool


def world_of_rig(predictions: Predictions, rig: Cameras) -> tuple[Sim3, bool]:
    """Find the map that brings predicted cameras onto the calibrated ones, and whether it fixes the scale."""
    predicted = predictions.cameras.world_to_camera.reshape(-1, 4, 4)
    known = rig.world_to_camera.reshape(-1, 4, 4).to(predicted)
    try:
        return align_cameras(predicted, known), True
    except DegenerateGeometryError:
        return align_cameras(predicted, known, with_scale=False), False


def use_rig_cameras(predictions: Predictions, rig: Cameras, scale: Scale) -> Anchored:
    """Replace the predicted cameras by calibrated ones and bring depth and points to their scale.

    The scale is the ratio of the distances between the calibrated and between the predicted cameras of this chunk.
    """
    transform, scale_known = world_of_rig(predictions, rig)
    moved = predictions.transformed(transform, scale if scale_known else Scale.ARBITRARY)
    return Anchored(replace(moved, cameras=rig), scale_known)
