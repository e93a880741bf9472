"""Depth, confidence, motion and velocity maps as PNG files, at the pixels of the network image without its padding.

Velocities have 16 bits and three channels, their standard deviations a file of their own.
"""

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from page4d.conventions import METRIC_DEPTH_SCALE, PIXEL_CENTER, Scale, round_down
from page4d.errors import InputError, OutputError
from page4d.geometry.camera import has_depth
from page4d.geometry.pixels import PixelTransform
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.documents import DocumentError, DocumentMissingError, read_bytes


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor of any device to a contiguous array; half precision and bfloat16 become float32."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.numpy())


def to_bytes(unit: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Round values in [0, 1] to 0 .. 255; values outside are clipped, NaN becomes 0."""
    known = np.nan_to_num(unit.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(known.clip(0.0, 1.0) * 255.0).astype(np.uint8)


DEEPEST_LEVEL = 65535
HEADROOM = 4.0
"""Factor by which depth may exceed the 99.9th percentile of the first chunk."""

FINE_LEVELS = 500
"""Levels of the median depth from which a depth map is fine: steps of 0.2 %."""

_MAX_SAMPLES = 1 << 22
"""Depths that quantiles are taken of; of larger chunks, every nth one."""

DYNAMIC_THRESHOLD = 0.5
"""Pixels above this probability of motion are moving, in masks and clouds; an uninformed predictor returns it."""

CONFIDENCE_MAPPING = "png = round(255 * confidence); 0 also where there is no depth"
DYNAMIC_MAPPING = f"png = 255 where the probability of motion is above {DYNAMIC_THRESHOLD}, else 0"

PNG_PARAMETERS = (cv2.IMWRITE_PNG_COMPRESSION, 3, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE)
"""Take 0.6 times as long as the default strategy at about the same size: filtered rows hold few longer repeats."""


def crop_to_content(values: Tensor, transform: PixelTransform) -> Tensor:
    """Cut the padding off a map [..., H, W]; where the view was cut away it becomes 0.

    With a window, pixels of the map and of the network differ by fractions: the nearest one is taken.
    """
    if transform.window is not None:
        return _nearest_of_window(values, transform)
    rows, columns = transform.content_rows, transform.content_columns
    height, width = transform.content_size
    around = (columns.start, width - columns.stop, rows.start, height - rows.stop)
    return functional.pad(values[..., transform.rows, transform.columns], around)


def _nearest_of_window(values: Tensor, transform: PixelTransform) -> Tensor:
    """Sample a map at the pixels of `transform.map_size`, 0 outside the window."""
    (map_height, map_width), (height, width) = transform.map_size, transform.original_size
    y = (torch.arange(map_height, dtype=torch.float64) + PIXEL_CENTER) * height / map_height
    x = (torch.arange(map_width, dtype=torch.float64) + PIXEL_CENTER) * width / map_width
    rows = transform.to_network(torch.stack([torch.zeros_like(y), y], dim=-1))[:, 1].floor().long()
    columns = transform.to_network(torch.stack([x, torch.zeros_like(x)], dim=-1))[:, 0].floor().long()
    inside_y = (rows >= transform.rows.start) & (rows < transform.rows.stop)
    inside_x = (columns >= transform.columns.start) & (columns < transform.columns.stop)
    sampled = values[..., rows.clamp(0, values.shape[-2] - 1), :][..., columns.clamp(0, values.shape[-1] - 1)]
    return torch.where(inside_y[:, None] & inside_x, sampled, torch.zeros_like(sampled))


def depth_quantiles(
    depth: Float[Tensor, "*batch H W"], valid: Bool[Tensor, "*batch H W"]
) -> tuple[float, float, float] | None:
    """Return the median, the 99.9th percentile and the maximum of known depth; None where there is none."""
    values = to_numpy(depth[valid & has_depth(depth)])
    if values.size == 0:
        return None
    sampled = values[:: -(-values.size // _MAX_SAMPLES)].astype(np.float64)
    middle, far = np.quantile(sampled, (0.5, 0.999))
    return float(middle), float(far), float(values.max())


def choose_depth_scale(
    depth: Float[Tensor, "*batch H W"], valid: Bool[Tensor, "*batch H W"], scale: Scale = Scale.ARBITRARY
) -> float:
    """Choose the PNG levels per unit of depth of a whole capture from its first chunk.

    The 99.9th percentile of the depth uses at most a fourth of the 16 bits: later chunks may be deeper. The maximum
    fits, too, unless outliers would leave the median less than `FINE_LEVELS`. The scale is 1, 2 or 5 times a power of
    ten. Metric depth has `METRIC_DEPTH_SCALE` where that is fine and fits.
    """
    found = depth_quantiles(depth, valid)
    if found is None:
        return METRIC_DEPTH_SCALE
    middle, far, largest = found
    levels, holding_all = round_down(DEEPEST_LEVEL / (HEADROOM * far)), round_down(DEEPEST_LEVEL / largest)
    if holding_all * middle >= FINE_LEVELS:
        levels = min(levels, holding_all)
    is_usual = scale is Scale.METRIC and METRIC_DEPTH_SCALE * middle >= FINE_LEVELS
    return METRIC_DEPTH_SCALE if is_usual and levels >= METRIC_DEPTH_SCALE else levels


def quantize_depth(
    depth: Float[Tensor, "H W"], valid: Bool[Tensor, "H W"], depth_scale: float
) -> tuple[NDArray[np.uint16], int]:
    """Quantize depth to 16-bit levels, and count the pixels whose depth does not fit.

    Depth that is not finite, not positive or not valid becomes 0, and so does depth outside the levels 1 to 65,535,
    which is counted.
    """
    values = to_numpy(depth).astype(np.float64)
    known = to_numpy(valid) & np.isfinite(values) & (values > 0)
    levels = np.rint(np.where(known, values, 0.0) * depth_scale)
    fits = (levels >= 1) & (levels <= DEEPEST_LEVEL)
    return np.where(fits, levels, 0).astype(np.uint16), int(np.count_nonzero(known & ~fits))


def quantize_confidence(confidence: Float[Tensor, "H W"], valid: Bool[Tensor, "H W"]) -> NDArray[np.uint8]:
    """Quantize confidence in [0, 1] to bytes, 0 where it is invalid."""
    return np.where(to_numpy(valid), to_bytes(to_numpy(confidence)), 0).astype(np.uint8)


def quantize_dynamic(dynamic: Float[Tensor, "H W"], valid: Bool[Tensor, "H W"]) -> NDArray[np.uint8]:
    """Threshold probabilities of motion to a mask of 0 and 255."""
    return np.where(to_numpy(valid) & (to_numpy(dynamic) > DYNAMIC_THRESHOLD), 255, 0).astype(np.uint8)


def write_png(path: Path, image: NDArray[Any]) -> WrittenFile:
    """Write a grayscale or RGB image atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    return write_bytes_atomic(path, encode_image(image, ".png", PNG_PARAMETERS))


def encode_image(image: NDArray[Any], suffix: str, parameters: Sequence[int]) -> bytes:
    """Encode an RGB image [H, W, 3], or a grayscale one [H, W], with OpenCV's parameters of a format.

    Raises:
        OutputError: if the format does not take such an image.
    """
    ordered = np.ascontiguousarray(image[..., ::-1]) if image.ndim == 3 else image
    done, encoded = cv2.imencode(suffix, ordered, parameters)
    if not done:
        raise OutputError(f"cannot encode {image.dtype} {image.shape} as {suffix}", "report this as a bug of page4d")
    return encoded.tobytes()


_MAX_PNG_BYTES = 1 << 30
_MAX_PNG_PIXELS = 1 << 28
"""A map of 16,384 x 16,384 pixels."""


def decode_image(data: bytes, flags: int) -> NDArray[Any] | None:
    """Decode an image by OpenCV, without its messages on stderr; None if it is damaged."""
    logging = cv2.utils.logging
    level = logging.setLogLevel(logging.LOG_LEVEL_SILENT)
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    finally:
        logging.setLogLevel(level)


def read_png(
    path: Path, kind: type[np.generic], size: tuple[int, ...], hint: str = "run page4d again with ⟨existing=resume⟩"
) -> NDArray[Any]:
    """Read a PNG of the given number type and (height, width), or (height, width, 3) as RGB.

    Raises:
        InputError: if the file is missing, damaged or of another kind.
    """
    try:
        encoded = read_bytes(path, _MAX_PNG_BYTES)
    except DocumentMissingError as error:
        raise InputError(f"'{path}' is missing", hint) from error
    except DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", "check the file") from error
    sides = struct.unpack(">II", encoded[16:24]) if encoded[:4] == b"\x89PNG" and len(encoded) >= 24 else ()
    if sides and math.prod(sides) > _MAX_PNG_PIXELS:  # of the header: its pixels would fill the memory
        raise InputError(f"'{path}' has {sides[0]}x{sides[1]} pixels, not {size[1]}x{size[0]}", hint)
    image = decode_image(encoded, cv2.IMREAD_UNCHANGED)
    if image is None:
        raise InputError(f"'{path}' is damaged", hint)
    if image.ndim == 3:
        image = np.ascontiguousarray(image[..., ::-1])
    if image.dtype != np.dtype(kind) or image.shape != size:
        raise InputError(f"'{path}' is {image.dtype} {image.shape}, not {np.dtype(kind)} {size}", hint)
    return image


STILL_LEVEL = 32768
"""Level of a velocity of exactly 0; a pixel whose three levels are 0 has an unknown velocity."""

MOTION_MAPPING = (
    f"motion: velocity in the world = (png - {STILL_LEVEL}) * motion_step per second, channels x y z (RGB); 0 0 0 "
    "where it is unknown. motion_sigma: standard deviation = png * motion_step; 0 where the velocity is unknown"
)

FASTEST_LEVEL = 32767


FLOW_SHARE = 1 / 16
"""Share of the side of a picture that is crossed from one instant to the next at the 99.9th percentile of the depth,
for which the levels of velocities are chosen; nearer points may cross more."""


def choose_motion_step(depth_scale: float, speed: float) -> float:
    """Choose the velocity of one level: that of a depth map per second, or more if `speed` exceeds its levels."""
    return 1 / (min(depth_scale, round_down(FASTEST_LEVEL / speed)) if speed > 0 else depth_scale)


def quantize_velocity(
    velocity: Float[Tensor, "H W 3"], sigma: Float[Tensor, "H W"], motion_step: float
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], int]:
    """Quantize velocities and their standard deviations, and count the velocities that do not fit.

    Levels are 0 where a velocity is unknown (sigma 0 or not finite).

    A velocity that is not exactly 0 does not become 0: a component below half a step is kept as one step where all
    components would vanish, and sigma as at least one. Velocities with a component above 32,767 steps, or a sigma
    above 65,535, become unknown and are counted.
    """
    values, spread = to_numpy(velocity).astype(np.float64), to_numpy(sigma).astype(np.float64)
    known = np.isfinite(values).all(-1) & np.isfinite(spread) & (spread > 0)
    values, spread = np.where(known[..., None], values, 0.0), np.where(known, spread, 0.0)
    steps = np.rint(values / motion_step)
    vanished = (steps == 0).all(-1) & (values != 0).any(-1)
    largest = np.abs(values).argmax(-1)[..., None]
    sign = np.sign(np.take_along_axis(values, largest, -1))
    kept = np.where(vanished[..., None], sign, np.take_along_axis(steps, largest, -1))
    np.put_along_axis(steps, largest, kept, -1)
    spread = np.rint(spread / motion_step).clip(min=1)
    fits = known & (np.abs(steps) <= FASTEST_LEVEL).all(-1) & (spread <= DEEPEST_LEVEL)
    levels = np.where(fits[..., None], steps + STILL_LEVEL, 0).astype(np.uint16)
    sigma_levels = np.where(fits, spread, 0).astype(np.uint16)
    return levels, sigma_levels, int(np.count_nonzero(known & ~fits))


def read_velocity(
    velocity: Path, sigma: Path, size: tuple[int, int], motion_step: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read velocities [H, W, 3] and standard deviations [H, W] per second; both are 0 where unknown.

    Raises:
        InputError: if a file is missing, damaged or of another kind.
    """
    levels, spread = read_png(velocity, np.uint16, (*size, 3)), read_png(sigma, np.uint16, size)
    known = (levels != 0).any(-1)
    values = (levels.astype(np.float64) - STILL_LEVEL) * motion_step
    return (
        np.where(known[..., None], values, 0.0).astype(np.float32),
        np.where(known, spread * motion_step, 0.0).astype(np.float32),
    )
