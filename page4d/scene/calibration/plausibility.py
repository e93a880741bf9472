"""Plausibility of lenses and rigs: what no real camera has is an error, what few have is a doubt that is reported.

The limits are those of optics. A lens that is not a fisheye maps a plane in front of it to a plane, so its field of
view ends below 180 degrees; that of a long telephoto lens with a small crop of the sensor has tenths of a degree.
The principal point of a crop may lie far outside of the image, but not outside of what the lens can show.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import InputError, listed
from page4d.geometry.camera import denormalize_pixels, normalize_pixels
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rigid import camera_centers

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

USUAL_REMOTENESS, MAX_REMOTENESS = 1e3, 1e6
"""Distance from the origin in sizes of the rig: coordinates of points have 7 digits."""

MIN_BASELINE = 1e-6
"""Distance of two cameras at one place, as a share of the size of the rig; and size of a rig at one place."""

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
    doubts = []
    is_fisheye = distortion is not None and distortion.model is LensModel.FISHEYE
    fields = [_field_deg(side, focal, is_fisheye) for side, focal in ((width, fx), (height, fy))]
    if max(fields) > (MAX_FISHEYE_DEG if is_fisheye else MAX_FIELD_DEG):
        if max(fx, fy) < SMALLEST_FOCAL_PX:
            raise _normalized(fx, fy)
        raise InputError(f"{_focal(fx, fy)} for {width}x{height}: {_degrees(fields)}", _LENS_HINT)
    if max(fields) < MIN_FIELD_DEG:
        raise InputError(f"{_focal(fx, fy)} for {width}x{height}: {_degrees(fields)}", _LENS_HINT)
    if max(fields) < USUAL_MIN_FIELD_DEG or (max(fields) > USUAL_MAX_FIELD_DEG and not is_fisheye):
        doubts.append(f"{_focal(fx, fy)} for {width}x{height}: {_degrees(fields)}")
    shift = math.hypot((cx - width / 2) / fx, (cy - height / 2) / fy)
    off_axis = math.degrees(shift if is_fisheye else math.atan(shift))
    if off_axis > (180.0 if is_fisheye else MAX_OFF_AXIS_DEG):
        raise InputError(f"the principal point is ({cx:.6g}, {cy:.6g}) for {width}x{height}", _LENS_HINT)
    if max(abs(cx / width - 0.5), abs(cy / height - 0.5)) > USUAL_SHIFT:
        doubts.append(f"the principal point ({cx:.6g}, {cy:.6g}) is far from the centre of {width}x{height}")
    aspect = max(fx / fy, fy / fx)
    if abs(skew) > MAX_SKEW * fx:
        raise InputError(f"{_focal(fx, fy)}, with a skew of {skew:.6g} px", _LENS_HINT)
    unequal = f"{_focal(fx, fy)}, which differ by a factor of {aspect:.3g}"
    if aspect > MAX_ASPECT:
        raise InputError(unequal, _LENS_HINT)
    if aspect > USUAL_ASPECT:
        doubts.append(unequal)
    if distortion is not None:
        share = visible_share((fx, skew, cx, fy, cy), image_size, distortion)
        found = f"the distortion leaves data in {100 * share:.0f} % of the undistorted image"
        if share < MIN_SHARE:
            raise InputError(found, _LENS_HINT)
        if share < USUAL_SHARE:
            doubts.append(found)
    return tuple(doubts)


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
    """Return doubts about the positions of the cameras of a scene: at one place, or far from the origin.

    Moving cameras are compared at up to 8 instants.

    Raises:
        InputError: if no scene has such distances.
    """
    paths = [camera_centers(pose.reshape(-1, 4, 4)) for pose in poses[:_MAX_COMPARED]]
    length = max(len(path) for path in paths)
    instants = torch.linspace(0, length - 1, min(length, _MAX_INSTANTS)).long()
    centers = torch.stack([path[instants if len(path) > 1 else [0] * len(instants)] for path in paths], dim=1)
    apart = torch.cdist(centers, centers).amax(dim=0)
    size, remote = float(apart.max()), float(centers.norm(dim=-1).max())
    if size > MAX_EXTENT:
        raise InputError(f"the cameras are {size:.3g} apart", "check the positions and their unit")
    if len(paths) < 2:
        return ()
    if size <= MIN_BASELINE * max(1.0, remote * MIN_BASELINE):
        found = f"the {len(paths)} calibrated cameras are at one place"
        return (f"{found}: without parallax between them, depth cannot be triangulated",)
    if remote > MAX_REMOTENESS * size:
        raise InputError(
            f"the cameras are {remote:.3g} from the origin, but {size:.3g} apart", "subtract a common offset"
        )
    doubts = []
    if remote > USUAL_REMOTENESS * size:
        doubts.append(
            f"the cameras are {remote:.3g} from the origin, but {size:.3g} apart: point clouds have 7 digits; "
            "subtract a common offset"
        )
    together = apart <= MIN_BASELINE * size
    pairs = torch.triu(together, diagonal=1).nonzero().tolist()
    if pairs:
        found = listed([f"{names[first]} and {names[second]}" for first, second in pairs], 4)
        doubts.append(f"calibrated cameras at one place: {found}")
    return tuple(doubts)


def _normalized(fx: float, fy: float) -> InputError:
    return InputError(
        f"{_focal(fx, fy)}: the intrinsics seem to be divided by the image size",
        "multiply fx and cx by the width, fy and cy by the height",
    )


def _field_deg(side: int, focal: float, is_fisheye: bool) -> float:
    return math.degrees(side / focal if is_fisheye else 2 * math.atan(side / 2 / focal))


def _focal(fx: float, fy: float) -> str:
    return f"the focal length is {fx:.6g} px" if fx == fy else f"the focal lengths are {fx:.6g} and {fy:.6g} px"


def _degrees(fields: Sequence[float]) -> str:
    return f"a field of view of {fields[0]:.3g} x {fields[1]:.3g} degrees"
