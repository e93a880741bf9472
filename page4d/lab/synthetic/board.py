"""A calibration board that moves in front of the cameras of a synthetic capture, painted on a thin box."""

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from torch import Tensor

from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.materials import Material, Pattern
from page4d.lab.synthetic.rigs import WORLD_DOWN, RigSpec, Vector
from page4d.lab.synthetic.world import MotionSpec, ObjectSpec, Shape
from page4d.rig.board import Board, Picture

_SIDES_PX = range(64, 129)
"""Pixels of the drawn board per side of a square or marker, of which gaps between markers are whole pixels too."""

_HALF_THICKNESS_M = 0.003
_SUPERSAMPLE = 4
_INK = 0.03
"""Reflectance of black relative to that of white."""

_TOWARDS, _ACROSS, _UPWARDS = 0.35, 0.15, 0.1
"""Place of the board between the volume and the cameras, and amplitudes of its motion, as shares of that distance."""

_TILT_DEG = 35.0
_CYCLES = (2.0, 3.0, 5.0)
"""Cycles of the motion across and upwards during the capture, and turns of the tilt."""

_WHITE = Material(
    Pattern.PLAIN, ((0.8, 0.8, 0.8),) * 3, ((1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0)), (1.0,) * 3, 0.0, 0.0
)


@dataclass(frozen=True)
class MovingBoard:
    """A board, as an object of a world; the board faces -z of the object, whose x and y are those of the board."""

    board: Board

    def check_size(self, rig: RigSpec) -> None:
        """Refuse a board that would reach into the volume.

        Raises:
            UsageError: naming its size.
        """
        across, reach = float(np.hypot(*self._size)), np.sin(np.radians(_TILT_DEG))
        # A table is also below the board.
        most = 2 * _TOWARDS * float(np.linalg.norm(_away(rig))) / (1.0 if rig.volume.table_height else reach)
        if across > most:
            raise UsageError(
                f"the ⟨board⟩ is {across:.2f} m across, and {most:.2f} m fit in front of the subject",
                "give a smaller board, or ⟨subject=people⟩, whose cameras are farther away",
            )

    def spec(self, rig: RigSpec, duration_s: float) -> ObjectSpec:
        """Return the object, which swings in front of the volume while its tilt turns about the cameras' axis."""
        away = _away(rig)
        distance = float(np.linalg.norm(away))
        forward = -away / distance
        right = np.cross(WORLD_DOWN, forward)
        right /= np.linalg.norm(right)
        down = np.cross(forward, right)
        facing = Rotation.from_matrix(np.stack([right, down, forward], axis=1))
        tilted = facing * Rotation.from_euler("x", _TILT_DEG, degrees=True)
        motion = MotionSpec(
            swing=(_vector(_ACROSS * distance * right), _vector(_UPWARDS * distance * down)),
            swing_hz=(_CYCLES[0] / duration_s, _CYCLES[1] / duration_s),
            axis=_vector(forward),
            turn_rate=2 * np.pi * _CYCLES[2] / duration_s,
        )
        width, height = self._size
        half = (float(width) / 2, float(height) / 2, _HALF_THICKNESS_M)
        center = _vector(np.array(rig.volume.center) + _TOWARDS * away)
        return ObjectSpec(Shape.BOX, half, center, _WHITE, _vector(tilted.as_rotvec()), motion)

    @property
    def _size(self) -> NDArray[np.float64]:
        """Width and height with the margin in metres."""
        return np.array(self._drawn.shape[::-1]) / self._side_px * self.board.side

    @cached_property
    def _side_px(self) -> int:
        gap = self.board.marker / self.board.side
        return min(_SIDES_PX, key=lambda side: round(abs(side * gap - round(side * gap)), 6))

    @cached_property
    def _drawn(self) -> Picture:
        return cv2.GaussianBlur(self.board.picture(self._side_px), (0, 0), 0.8).astype(np.uint8)

    def painted(
        self,
        light: Float[Tensor, "3 H W"],
        objects: Int[Tensor, "H W"],
        number: int,
        object_to_world: Float[Tensor, "4 4"],
        camera: Cameras,
    ) -> Float[Tensor, "3 H W"]:
        """Return the radiance of one image with the pattern on the front of the object with this number."""
        to_camera = (camera.world_to_camera @ object_to_world).numpy()
        back = np.linalg.inv(to_camera)
        if back[2, 3] > -_HALF_THICKNESS_M or not bool((objects == number).any()):
            return light
        scale = self.board.side / self._side_px
        corner = -self._size / 2
        on_object = np.array([[scale, 0, corner[0]], [0, scale, corner[1]], [0, 0, -_HALF_THICKNESS_M], [0, 0, 1]])
        plane = camera.intrinsics.numpy() @ to_camera[:3] @ on_object
        # OpenCV counts pixel centres from 0: those of the drawn board, and of the larger picture.
        shift = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
        plane = np.linalg.inv(shift) @ np.diag([_SUPERSAMPLE, _SUPERSAMPLE, 1.0]) @ plane @ shift
        height, width = objects.shape
        large = cv2.warpPerspective(
            self._drawn, plane, (width * _SUPERSAMPLE, height * _SUPERSAMPLE), borderValue=255
        )
        shown = cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA) / 255
        reflectance = torch.from_numpy(_INK + (1 - _INK) * shown).to(light)
        return torch.where(objects == number, light * reflectance, light)


def _away(rig: RigSpec) -> NDArray[np.float64]:
    """Return the mean position of the cameras from the middle of the volume."""
    return np.array(np.mean([camera.center for camera in rig.cameras], axis=0) - np.array(rig.volume.center))


def _vector(values: NDArray[np.float64]) -> Vector:
    x, y, z = (float(value) for value in values)
    return x, y, z
