"""Calibration records: the result of every reader, validated on construction."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import InputError, shortened
from page4d.geometry.distortion import Distortion
from page4d.geometry.rigid import camera_centers
from page4d.geometry.rotation import rotation_defect
from page4d.scene.calibration.plausibility import MAX_POSITION, check_lens

ROTATION_TOLERANCE = 1e-3
"""Largest entry of |R^T R - I| attributed to rounding; files often have 4 to 7 digits."""

MAX_SIDE_PX = 1_000_000
"""Image side above which a file is considered damaged."""

MAX_NAME = 255
"""Longest name of a camera: that of a file."""

MAX_TIME_S = 1e10
"""Largest time of a pose: dates in seconds since 1970 are below 1e10 until the year 2286."""

CORRECTION_HINT = "correct the calibration file or calibrate again"


@dataclass(frozen=True, kw_only=True)
class CalibratedCamera:
    """A camera of a calibration file, in page4d's conventions and in float64.

    `intrinsics` [3, 3] are in px with the top-left pixel's centre at (0.5, 0.5). `image_size` is (height, width), or
    None if the file does not declare it. `world_to_camera` is [4, 4], or [F, 4, 4] for a moving camera: its F frames
    are identified by `frames` (file stems) or `times` (seconds on the common clock).

    Raises:
        InputError: if a matrix or the image size is invalid, or no real lens has such numbers (`plausibility.py`).
    """

    name: str
    image_size: tuple[int, int] | None
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "*F 4 4"]
    distortion: Distortion | None = None
    frames: tuple[str, ...] | None = None
    times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check(len(self.name) <= MAX_NAME, f"the name has {len(self.name):,} characters")
        self._check_intrinsics()
        self._check_pose()
        if self.image_size is not None:
            height, width = self.image_size
            plausible = min(height, width) > 0 and max(height, width) <= MAX_SIDE_PX
            self._check(plausible, f"the image size is {width}x{height}")
        try:
            check_lens(self.intrinsics, self.image_size, self.distortion)
        except InputError as error:
            raise InputError(f"camera {shortened(self.name)}: {error.message}", error.hint) from None

    def _check_intrinsics(self) -> None:
        shape = tuple(self.intrinsics.shape)
        self._check(shape == (3, 3), f"the intrinsics have shape {shape}, expected (3, 3)")
        self._check(bool(torch.isfinite(self.intrinsics).all()), "the intrinsics contain a non-finite number")
        focal = float(min(self.intrinsics[0, 0], self.intrinsics[1, 1]))
        self._check(focal > 0, f"the focal length is {focal:g} px")
        lower = [*self.intrinsics[2].tolist(), float(self.intrinsics[1, 0])]
        self._check(lower == [0, 0, 1, 0], "the intrinsics are not of the form [[fx, s, cx], [0, fy, cy], [0, 0, 1]]")

    def _check_pose(self) -> None:
        shape = tuple(self.world_to_camera.shape)
        valid = shape[-2:] == (4, 4) and len(shape) in (2, 3) and 0 not in shape
        self._check(valid, f"the pose has shape {shape}, expected (4, 4) or (frames, 4, 4)")
        self._check(bool(torch.isfinite(self.world_to_camera).all()), "the pose contains a non-finite number")
        rotation = self.world_to_camera[..., :3, :3]
        worst = float(rotation_defect(rotation).max())
        determinant = float(torch.linalg.det(rotation).min())
        self._check(worst <= ROTATION_TOLERANCE, f"the rotation is not a rotation matrix (det {determinant:.2f})")
        last = self.world_to_camera.new_tensor([0.0, 0.0, 0.0, 1.0])
        self._check(bool((self.world_to_camera[..., 3, :] == last).all()), "the last row of the pose is not 0 0 0 1")
        self._check(all(abs(time) <= MAX_TIME_S for time in self.times or ()), "the times are not plausible")
        farthest = float(camera_centers(self.world_to_camera).norm(dim=-1).max())
        self._check(farthest <= MAX_POSITION, f"the camera is {farthest:.3g} from the origin")
        for key, values in (("frames", self.frames), ("times", self.times)):
            num_poses = shape[0] if len(shape) == 3 else 1
            fits = values is None or (len(shape) == 3 and len(values) == num_poses)
            self._check(fits, f"{len(values or ())} {key} for {num_poses} poses")

    def _check(self, holds: bool, found: str) -> None:
        if not holds:
            raise InputError(f"camera {shortened(self.name)}: {found}", CORRECTION_HINT)

    @property
    def is_static(self) -> bool:
        """True if the camera does not move."""
        return self.world_to_camera.ndim == 2


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All cameras of a calibration file.

    `scale` is METRIC if the camera positions are in metres. `file_unit` is the unit that the file declares ("m", "cm"
    or "mm"), or None. `notices` are warnings about a readable file. `format` is set by `read_calibration`.

    Raises:
        InputError: if there is no camera, or two cameras have the same name.
    """

    path: Path
    scale: Scale
    cameras: tuple[CalibratedCamera, ...]
    format: str = ""
    file_unit: str | None = None
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        label = self.path.name or str(self.path)
        if not self.cameras:
            raise InputError(f"cannot read calibration '{label}': it contains no camera", CORRECTION_HINT)
        repeated = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if repeated:
            name = shortened(repeated[0])
            raise InputError(f"{label}: camera {name}: the name appears twice", "give each camera its own name")

    @property
    def names(self) -> tuple[str, ...]:
        """Camera names in the order of the file."""
        return tuple(camera.name for camera in self.cameras)
