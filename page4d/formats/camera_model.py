"""Calibrated cameras, the result of every reader, and checks of them: of matrices, lenses and rigs.

What no real camera has is an error, what few have is a doubt that is reported. The limits are those of optics. A
lens that is not a fisheye maps a plane in front of it to a plane, so its field of view ends below 180 degrees; that
of a long telephoto lens with a small crop of the sensor has tenths of a degree. The principal point of a crop may lie
far outside of the image, but not outside of what the lens can show.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.choices import UpAxis
from page4d.conventions import Scale
from page4d.errors import InputError, listed, shortened
from page4d.geometry.camera import denormalize_pixels, normalize_pixels
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rotation import rotation_defect
from page4d.geometry.transforms import camera_centers

MIN_FIELD_DEG, USUAL_MIN_FIELD_DEG = 0.2, 1.0
USUAL_MAX_FIELD_DEG, MAX_FIELD_DEG = 150.0, 170.0
"""Fields of view across the width or height of an image by a lens that is not a fisheye."""

MAX_FISHEYE_DEG = 360.0
MAX_OFF_AXIS_DEG = 80.0
"""Largest angle between the optical axis and the centre of an image, 180 degrees for a fisheye."""

USUAL_SHIFT = 0.4
"""Usual distance of the principal point from the centre of the image, as a share of the side."""

USUAL_ASPECT, MAX_ASPECT = 1.5, 5.0
"""Ratio of the two focal lengths: 2 for anamorphic lenses."""

MAX_SKEW = 0.5
"""Largest skew as a share of the focal length."""

MIN_SHARE, USUAL_SHARE = 0.25, 0.5
"""Share of the undistorted image to which the distortion maps a point of the sensor."""

SMALLEST_FOCAL_PX = 8.0
"""Focal length below which an image of unknown size is too small; a normalized one is about 1."""

MAX_POSITION = 1e8
MAX_EXTENT = 1e7
"""Largest distance from the origin, and between cameras, in units of the calibration."""

MAX_REMOTENESS = 1e3
"""Distance from the origin in sizes of the rig from which coordinates of 7 digits do not suffice."""

SIZE_OF_ONE_PLACE = 100.0
"""Size of a rig at one place, and of a single camera, in this comparison."""

MIN_BASELINE = 1e-6
"""Distance of two cameras at one place, as a share of the size of the rig; and size of a rig at one place."""

_MIN_SPREAD = 0.02
"""Squared sine of half the angle between two optical axes that are not parallel: 16 degrees."""

_GRID = 24
_MAX_COMPARED = 1000
_MAX_INSTANTS = 8
_LENS_HINT = "give the lens in pixels of the calibrated image: correct the calibration or calibrate again"


def check_lens(
    intrinsics: Float[Tensor, "3 3"], image_size: tuple[int, int] | None, distortion: Distortion | None
) -> tuple[str, ...]:
    """Return doubts about a lens with intrinsics in px; `image_size` is (height, width), or None if unknown.

    Raises:
        InputError: if there is no such lens.
    """
    (fx, skew, cx), (_, fy, cy), _ = intrinsics.tolist()
    if image_size is None:
        if min(fx, fy) < SMALLEST_FOCAL_PX:
            raise _normalized(fx, fy)
        return ()
    height, width = image_size
    is_fisheye = distortion is not None and distortion.model is LensModel.FISHEYE
    halves = [side / 2 / focal for side, focal in ((width, fx), (height, fy))]
    fields = [math.degrees(2 * (half if is_fisheye else math.atan(half))) for half in halves]
    field = " x ".join(f"{degrees:.3g}" for degrees in fields)
    widest, most = max(fields), MAX_FISHEYE_DEG if is_fisheye else MAX_FIELD_DEG
    if widest > most and max(fx, fy) < SMALLEST_FOCAL_PX:
        raise _normalized(fx, fy)
    shift = math.hypot((cx - width / 2) / fx, (cy - height / 2) / fy)
    off_axis = math.degrees(shift if is_fisheye else math.atan(shift))
    uneven, aspect = max(abs(cx / width - 0.5), abs(cy / height - 0.5)), max(fx / fy, fy / fx)
    focal, center, size = _focal(fx, fy), f"({cx:.6g}, {cy:.6g})", f"{width}x{height}"
    is_rare = widest < USUAL_MIN_FIELD_DEG or (widest > USUAL_MAX_FIELD_DEG and not is_fisheye)
    findings = [  # with whether no lens, or few lenses have it
        (f"{focal} for {size}: a field of view of {field} degrees", not MIN_FIELD_DEG <= widest <= most, is_rare),
        (
            f"the principal point is {center} for {size}",
            off_axis > (180.0 if is_fisheye else MAX_OFF_AXIS_DEG),
            False,
        ),
        (f"the principal point {center} is far from the centre of {size}", False, uneven > USUAL_SHIFT),
        (f"{focal}, with a skew of {skew:.6g} px", abs(skew) > MAX_SKEW * fx, False),
        (f"{focal}, which differ by a factor of {aspect:.3g}", aspect > MAX_ASPECT, aspect > USUAL_ASPECT),
    ]
    if distortion is not None and not any(is_wrong for _, is_wrong, _ in findings):
        share = visible_share((fx, skew, cx, fy, cy), image_size, distortion)
        found = f"the distortion leaves data in {100 * share:.0f} % of the undistorted image"
        findings.append((found, share < MIN_SHARE, share < USUAL_SHARE))
    if wrong := [found for found, is_wrong, _ in findings if is_wrong]:
        raise InputError(wrong[0], _LENS_HINT)
    return tuple(found for found, _, is_doubtful in findings if is_doubtful)


@lru_cache(maxsize=5_000)  # lenses are checked when they are read, and again at the size of the videos
def visible_share(
    lens: tuple[float, float, float, float, float], image_size: tuple[int, int], distortion: Distortion
) -> float:
    """Return the share of the undistorted image to which the distortion maps one point of the sensor.

    `lens` is (fx, skew, cx, fy, cy) in px.
    """
    height, width = image_size
    intrinsics = torch.tensor([lens[:3], [0.0, *lens[3:]], [0.0, 0.0, 1.0]], dtype=torch.float64)
    size = torch.tensor([width, height], dtype=torch.float64)
    steps = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1) * size
    ideal = normalize_pixels(grid, intrinsics)
    shown = denormalize_pixels(distortion.distort(ideal), intrinsics)
    inside = (shown >= 0).all(-1) & (shown <= size).all(-1)
    return float((inside & distortion.in_domain(ideal)).double().mean())


def check_rig(names: Sequence[str], poses: Sequence[Float[Tensor, "*T 4 4"]]) -> tuple[str, ...]:
    """Return doubts about the poses of the cameras of a scene: at one place, or looking apart.

    Moving cameras are compared at up to 8 instants.

    Raises:
        InputError: if no scene has such distances.
    """
    apart, center = camera_distances(poses)
    size = float(apart.max())
    if size > MAX_EXTENT:
        raise InputError(f"the cameras are {size:.3g} apart", "check the positions and their unit")
    if len(apart) < 2:
        return ()
    if _is_one_place(size, center):
        found = f"the {len(apart)} calibrated cameras are at one place"
        return (f"{found}: without parallax between them, depth cannot be triangulated",)
    together = apart <= MIN_BASELINE * size
    pairs = torch.triu(together, diagonal=1).nonzero().tolist()
    if pairs:
        found = listed([f"{names[first]} and {names[second]}" for first, second in pairs], 4)
        return (f"calibrated cameras at one place: {found}",)
    if _look_apart(poses):
        found = "the optical axes of the calibrated cameras meet behind all of them"
        return (f"{found}: unless they look outwards, the poses have other axes (OpenGL) or are inverted",)
    return ()


def _look_apart(poses: Sequence[Float[Tensor, "*T 4 4"]]) -> bool:
    """Return whether the point closest to the optical axes of cameras that are not parallel is behind all of them."""
    first = torch.stack([pose.reshape(-1, 4, 4)[0] for pose in poses[:_MAX_COMPARED]])
    centers, axes = camera_centers(first), first[:, 2, :3]
    across = torch.eye(3, dtype=axes.dtype) - axes[:, :, None] * axes[:, None]
    normal = across.sum(dim=0)
    if torch.linalg.eigvalsh(normal)[0] < _MIN_SPREAD * len(first):
        return False
    point = torch.linalg.solve(normal, (across @ centers[..., None]).sum(dim=0))[:, 0]
    return bool((((point - centers) * axes).sum(dim=-1) < 0).all())


def world_offset(poses: Sequence[Float[Tensor, "*T 4 4"]]) -> tuple[float, float, float] | None:
    """Return the offset of coordinates that are too large for single precision; None if they are not.

    It is the mean of the cameras' positions, rounded to the power of ten above the size of the rig.
    """
    apart, center = camera_distances(poses)
    size = SIZE_OF_ONE_PLACE if _is_one_place(float(apart.max()), center) else float(apart.max())
    if float(center.norm()) <= MAX_REMOTENESS * size:
        return None
    step = 10.0 ** math.ceil(math.log10(size))
    x, y, z = (float(f"{round(value / step) * step:.12g}") for value in center.tolist())
    return x, y, z


def camera_distances(poses: Sequence[Float[Tensor, "*T 4 4"]]) -> tuple[Float[Tensor, "V V"], Float[Tensor, "3"]]:
    """Return the largest distance of any two cameras at an instant, and the mean of all positions.

    Of more than 1,000 cameras, the first ones are compared.
    """
    paths = [camera_centers(pose.reshape(-1, 4, 4)) for pose in poses[:_MAX_COMPARED]]
    length = max(len(path) for path in paths)
    instants = torch.linspace(0, length - 1, min(length, _MAX_INSTANTS)).long()
    centers = torch.stack([path[instants if len(path) > 1 else [0] * len(instants)] for path in paths], dim=1)
    center = centers.mean(dim=(0, 1))
    return torch.cdist(centers - center, centers - center).amax(dim=0), center  # differences of small numbers


def _is_one_place(size: float, center: Float[Tensor, "3"]) -> bool:
    return size <= MIN_BASELINE * max(1.0, float(center.norm()) * MIN_BASELINE)


def _normalized(fx: float, fy: float) -> InputError:
    return InputError(
        f"{_focal(fx, fy)}: the intrinsics seem to be divided by the image size",
        "multiply fx and cx by the width, fy and cy by the height",
    )


def _focal(fx: float, fy: float) -> str:
    return f"the focal length is {fx:.6g} px" if fx == fy else f"the focal lengths are {fx:.6g} and {fy:.6g} px"


ROTATION_TOLERANCE = 1e-3
"""Largest entry of |R^T R - I| attributed to rounding; files often have 4 to 7 digits."""

MAX_SIDE_PX = 1_000_000
"""Image side above which a file is considered damaged."""

MAX_NAME = 255
"""Longest name of a camera: that of a file."""

MAX_TIME_S = 1e10
"""Largest time of a pose: dates in seconds since 1970 are below 1e10 until the year 2286."""

_SAME = 1e-5
"""Difference of equal numbers in two files."""

METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001}
"""Metres per unit of length."""

CORRECTION_HINT = "correct the calibration file or calibrate again"


@dataclass(frozen=True, kw_only=True)
class CalibratedCamera:
    """A camera of a calibration file, in page4d's conventions and in float64.

    `intrinsics` [3, 3] are in px with the top-left pixel's centre at (0.5, 0.5). `image_size` is (height, width), or
    None if the file does not declare it. If the file states only a field of view, `intrinsics` are for an image of
    `nominal_width`, and the principal point is the centre of any image. `world_to_camera` is [4, 4], or [F, 4, 4] for
    a moving camera: its F frames are identified by `frames` (file stems) or `times` (seconds on the common clock, on
    which its view begins at `start_s`, None where that is unknown).

    Raises:
        InputError: if a matrix or the image size is invalid, or no real lens has such numbers (`check_lens`).
    """

    name: str
    image_size: tuple[int, int] | None
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "*F 4 4"]
    distortion: Distortion | None = None
    frames: tuple[str, ...] | None = None
    times: tuple[float, ...] | None = None
    start_s: float | None = None
    nominal_width: float | None = None

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
            raise InputError(f"camera {shortened(self.name)}: {error.marked_message}", error.marked_hint) from None

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
    or "mm"), or None; `up` is the axis that points up in an upright world, or None; `start_ns` is the time stamp of
    time 0, None without one. `notices` are warnings about a readable file. The cameras of an `unnamed` calibration
    belong to the views in the natural order of their names. `format` is set by `read_calibration`.

    Raises:
        InputError: if there is no camera, or two cameras have the same name.
    """

    path: Path
    scale: Scale
    cameras: tuple[CalibratedCamera, ...]
    format: str = ""
    file_unit: str | None = None
    up: UpAxis | None = None
    start_ns: int | None = None
    notices: tuple[str, ...] = ()
    unnamed: bool = False

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

    def is_same(self, other: "Calibration") -> bool:
        """Return True if two calibrations have the same cameras, up to the digits of text files."""
        return self.names == other.names and all(
            _is_close(camera, twin) for camera, twin in zip(self.cameras, other.cameras, strict=True)
        )


def _is_close(camera: CalibratedCamera, twin: CalibratedCamera) -> bool:
    facts, numbers = zip(*(_facts_and_numbers(one) for one in (camera, twin)), strict=True)
    return facts[0] == facts[1] and all(
        mine.shape == other.shape and torch.allclose(mine, other, atol=_SAME)
        for mine, other in zip(*numbers, strict=True)
    )


def _facts_and_numbers(camera: CalibratedCamera) -> tuple[tuple[object, ...], tuple[Tensor, ...]]:
    lens = camera.distortion
    coefficients = () if lens is None else lens.coefficients
    facts = (camera.frames, camera.image_size, None if lens is None else lens.model, camera.nominal_width)
    rows = (torch.tensor(row, dtype=torch.float64) for row in (coefficients, camera.times or ()))
    return facts, (camera.world_to_camera, camera.intrinsics, *rows)
