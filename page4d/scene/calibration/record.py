"""What every calibration reader returns, checked on construction with the camera at fault named."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import InputError
from page4d.geometry.distortion import Distortion
from page4d.geometry.rotation import rotation_defect

ROTATION_TOLERANCE = 1e-3
"""Largest entry of |R^T R - I| that counts as rounding; files often carry 4 to 7 digits."""


@dataclass(frozen=True, kw_only=True)
class CalibratedCamera:
    """A camera as a calibration file describes it, in page4d's conventions and in float64.

    `intrinsics` [3, 3] are px with the top-left pixel's centre at (0.5, 0.5), for an image of `image_size` (height,
    width). `world_to_camera` is [4, 4], or [F, 4, 4] for a camera that moves; then `frames` names its F frames by file
    stem, or `times` gives them in seconds on the common clock.

    Raises:
        InputError: if a matrix is not what its name says; the message names the camera.
    """

    name: str
    image_size: tuple[int, int]
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "*F 4 4"]
    distortion: Distortion | None = None
    frames: tuple[str, ...] | None = None
    times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check(bool(torch.isfinite(self.intrinsics).all()), "the intrinsics hold a number that is not finite")
        self._check(bool(torch.isfinite(self.world_to_camera).all()), "the pose holds a number that is not finite")
        focal = float(min(self.intrinsics[0, 0], self.intrinsics[1, 1]))
        self._check(focal > 0, f"the focal length is {focal:g} px")
        self._check(min(self.image_size) > 0, f"the image size is {self.image_size[1]}x{self.image_size[0]}")
        rotation = self.world_to_camera[..., :3, :3]
        worst = float(rotation_defect(rotation).max())
        determinant = float(torch.linalg.det(rotation).min())
        self._check(worst <= ROTATION_TOLERANCE, f"rotation is not a rotation matrix (det {determinant:.2f})")

    def _check(self, holds: bool, found: str) -> None:
        if not holds:
            raise InputError(f"camera {self.name}: {found}", "correct the calibration file or calibrate again")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All cameras of a calibration file. `scale` says whether its unit of length is known to be the metre."""

    path: Path
    format: str
    scale: Scale
    cameras: tuple[CalibratedCamera, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Camera names in the file's order."""
        return tuple(camera.name for camera in self.cameras)
