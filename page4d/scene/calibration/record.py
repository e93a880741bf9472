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

LARGEST_SIDE_PX = 1_000_000
"""Image sides beyond this are a damaged file, not a camera."""

CORRECT_THE_FILE = "correct the calibration file or calibrate again"


@dataclass(frozen=True, kw_only=True)
class CalibratedCamera:
    """A camera as a calibration file describes it, in page4d's conventions and in float64.

    `intrinsics` [3, 3] are px with the top-left pixel's centre at (0.5, 0.5), for an image of `image_size` (height,
    width), or None where the file does not state it. `world_to_camera` is [4, 4], or [F, 4, 4] for a camera that
    moves; then `frames` names its F frames by file stem, or `times` gives them in seconds on the common clock.

    Raises:
        InputError: if a matrix is not what its name says; the message names the camera.
    """

    name: str
    image_size: tuple[int, int] | None
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "*F 4 4"]
    distortion: Distortion | None = None
    frames: tuple[str, ...] | None = None
    times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check_intrinsics()
        self._check_pose()
        if self.image_size is not None:
            height, width = self.image_size
            sane = min(height, width) > 0 and max(height, width) <= LARGEST_SIDE_PX
            self._check(sane, f"the image size is {width}x{height}")

    def _check_intrinsics(self) -> None:
        shape = tuple(self.intrinsics.shape)
        self._check(shape == (3, 3), f"the intrinsics have shape {shape}, not (3, 3)")
        self._check(bool(torch.isfinite(self.intrinsics).all()), "the intrinsics hold a number that is not finite")
        focal = float(min(self.intrinsics[0, 0], self.intrinsics[1, 1]))
        self._check(focal > 0, f"the focal length is {focal:g} px")
        lower = [*self.intrinsics[2].tolist(), float(self.intrinsics[1, 0])]
        self._check(lower == [0, 0, 1, 0], "the intrinsics are not of the form [[fx, s, cx], [0, fy, cy], [0, 0, 1]]")

    def _check_pose(self) -> None:
        shape = tuple(self.world_to_camera.shape)
        valid = shape[-2:] == (4, 4) and len(shape) in (2, 3) and 0 not in shape
        self._check(valid, f"the pose has shape {shape}, not (4, 4) or (frames, 4, 4)")
        self._check(bool(torch.isfinite(self.world_to_camera).all()), "the pose holds a number that is not finite")
        rotation = self.world_to_camera[..., :3, :3]
        worst = float(rotation_defect(rotation).max())
        determinant = float(torch.linalg.det(rotation).min())
        self._check(worst <= ROTATION_TOLERANCE, f"rotation is not a rotation matrix (det {determinant:.2f})")
        last = self.world_to_camera.new_tensor([0.0, 0.0, 0.0, 1.0])
        self._check(bool((self.world_to_camera[..., 3, :] == last).all()), "the pose's last row is not 0 0 0 1")
        for key, values in (("frames", self.frames), ("times", self.times)):
            counts = values is None or (len(shape) == 3 and len(values) == shape[0])
            self._check(counts, f"the {key} are not as many as the poses")

    def _check(self, holds: bool, found: str) -> None:
        if not holds:
            raise InputError(f"camera {self.name}: {found}", CORRECT_THE_FILE)

    @property
    def is_static(self) -> bool:
        """True if the camera stands still."""
        return self.world_to_camera.ndim == 2


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All cameras of a calibration file.

    `scale` says whether the cameras stand in metres. `file_unit` is the unit that the file states ("m", "cm", "mm"),
    None where it states none. `notices` are texts that the user should see although the file could be read.

    Raises:
        InputError: if there is no camera or two share a name; the message names the file.
    """

    path: Path
    format: str
    scale: Scale
    cameras: tuple[CalibratedCamera, ...]
    file_unit: str | None = None
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        label = self.path.name or str(self.path)
        if not self.cameras:
            raise InputError(f"cannot read calibration '{label}': it holds no camera", CORRECT_THE_FILE)
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise InputError(f"{label}: camera {twice[0]}: the name appears twice", "give every camera its own name")

    @property
    def names(self) -> tuple[str, ...]:
        """Camera names in the file's order."""
        return tuple(camera.name for camera in self.cameras)
