"""The background of static cameras, from several instants, and what shows it: by masks of motion, color and depth.

The background has one depth, color and uncertainty per pixel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.geometry.statistics import MAD_TO_STD, weighted_median
from page4d.records import Predictions
from page4d.stereo import kernels

MIN_STATIC_SHARE = 0.25
"""Share of the instants at which a pixel must be static for its background to be known."""

_MIN_WEIGHT = 1e-3
"""Added to the confidence, so that pixels of confidence 0 are fused too."""


@dataclass(frozen=True, kw_only=True)
class Background:
    """What V cameras see without the parts that move. Views whose camera moves have no known pixels.

    `log_depth` is in the unit of the world, `spread` its standard deviation over instants, `color` in [0, 1] with the
    noise `color_std` of one instant, and `confidence` in [0, 1].
    """

    log_depth: Float[Tensor, "V H W"]
    spread: Float[Tensor, "V H W"]
    confidence: Float[Tensor, "V H W"]
    color: Float[Tensor, "V 3 H W"]
    color_std: Float[Tensor, "V H W"]
    known: Bool[Tensor, "V H W"]

    def scaled(self, scale: float) -> "Background":
        """Return the background with its depth multiplied by a number."""
        return replace(self, log_depth=self.log_depth + math.log(scale))


@torch.no_grad()
def estimate_background(predictions: Predictions, static_views: Sequence[int]) -> Background | None:
    """Fuse instants [1, T, V, H, W] of static cameras by weighted medians; None if nothing is static.

    The weight of a pixel is its confidence times the probability that it is static; of a single instant, and without
    masks of motion, everything is background.
    """
    static = torch.ones_like(predictions.depth[0])
    if predictions.num_times > 1 and predictions.dynamic is not None:
        static -= predictions.dynamic[0]
    # View by view, as medians take several times the memory.
    parts = [_view_background(predictions, view, static[:, view]) for view in range(len(predictions.view_names))]
    background = Background(**{name: torch.stack([part[name] for part in parts]) for name in parts[0]})
    for view in set(range(len(predictions.view_names))) - set(static_views):
        background.known[view] = False
    return background if bool(background.known.any()) else None


def _view_background(predictions: Predictions, view: int, static: Float[Tensor, "T H W"]) -> dict[str, Tensor]:
    """Return the tensors of one view's background, given the probability that a pixel is static."""
    depth, confidence = predictions.depth[0, :, view], predictions.depth_confidence[0, :, view].nan_to_num()
    has_depth = predictions.known[0, :, view]
    is_static = has_depth & (1 - static <= DYNAMIC_THRESHOLD)
    weight = is_static * static * (confidence + _MIN_WEIGHT)
    log_depth = torch.where(has_depth, depth, 1.0).log()
    fused = median_of_maps(log_depth, weight)
    images = predictions.images[0, :, view]
    color = median_of_maps(images, weight[:, None])
    deviation = (images - color).abs().mean(dim=1)
    return {
        "log_depth": fused,
        "spread": MAD_TO_STD * median_of_maps((log_depth - fused).abs(), weight),
        "confidence": median_of_maps(confidence.clamp(0, 1), weight),
        "color": color,
        "color_std": MAD_TO_STD * median_of_maps(deviation, weight),
        "known": is_static.float().mean(dim=0) >= MIN_STATIC_SHARE,
    }


def median_of_maps(values: Float[Tensor, "T *C H W"], weight: Float[Tensor, "T *_ H W"]) -> Float[Tensor, "*C H W"]:
    """Return the weighted median over instants; channels may share their weight."""
    weight = weight.expand(values.shape)
    return (
        kernels.median_of_maps(values, weight)
        if kernels.apply_to(values, weight)
        else weighted_median(values, weight)
    )


MIN_COLOR_STD = 0.01
"""Lower bound on the noise of colors in [0, 1]: compression hides the noise of flat areas."""

_EQUAL_EVIDENCE = 3.0
"""Color difference, in standard deviations, that is equally likely for a static and for a moving pixel."""

_SLOPE = 2.0
"""Log odds of motion per standard deviation above that."""

_FOR_STATIC, _FOR_MOVING = -1.0, 3.0
"""Bounds on the log odds: a moving surface may have the color of the background, the reverse is rare."""

_MAX_GAIN = 2.0
"""Largest change of the exposure between an instant and the background."""

_GAIN_SIDE_PX = 128
"""Long side of the grid of pixels that the change is measured at."""

_SURE = 0.01

_SAME_COLOR, _SAME_DEPTH = 4.0, 8.0
"""Semiaxes of the ellipse of deviations of color and log depth within which a pixel agrees with the background."""

_MAX_COLOR_NOISE = 3.0
"""Largest noise of a color in units of the median of the view: pixels that something often passes have more."""

_MIN_DEPTH_STD, _MAX_DEPTH_STD = 0.01, 0.03
"""Bounds on the standard deviation of log depth, for the same reason."""


@torch.no_grad()
def sharpen_motion(
    dynamic: Float[Tensor, "T V H W"], images: Float[Tensor, "T V 3 H W"], background: Background
) -> Float[Tensor, "T V H W"]:
    """Return the probability of motion given that of a network and the difference from the background's color.

    Images are in [0, 1]; exposure and white balance of an instant may differ from the background's by a gain per
    channel. Pixels without a known background keep their probability.

    Source: Stauffer & Grimson (1999), "Adaptive background mixture models for real-time tracking": a pixel is
    foreground beyond a number of standard deviations of its background; here one Gaussian, and as log odds.
    """
    sharpened = dynamic.clone()
    for time in range(len(dynamic)):
        for view in range(dynamic.shape[1]):
            known = background.known[view]
            static = known & (dynamic[time, view] <= DYNAMIC_THRESHOLD)
            if not bool(static.any()):
                continue
            difference = _color_difference(images[time, view], background.color[view], static)
            deviation = difference / background.color_std[view].clamp(min=MIN_COLOR_STD)
            evidence = (_SLOPE * (deviation - _EQUAL_EVIDENCE)).clamp(_FOR_STATIC, _FOR_MOVING)
            prior = dynamic[time, view].clamp(_SURE, 1 - _SURE).logit()
            sharpened[time, view] = torch.where(known, (prior + evidence).sigmoid(), dynamic[time, view])
    return sharpened


def _color_difference(
    image: Float[Tensor, "3 H W"], color: Float[Tensor, "3 H W"], static: Bool[Tensor, "H W"]
) -> Float[Tensor, "H W"]:
    """Return the difference around pixels from the color of the background, but for a gain of the `static` ones."""
    step = max(1, max(static.shape) // _GAIN_SIDE_PX)
    few = (..., slice(None, None, step), slice(None, None, step))
    if bool(static[few].any()):
        gain = (image[few] / color[few].clamp(min=1 / 255))[:, static[few]].median(dim=1).values
        image = image / gain.clamp(1 / _MAX_GAIN, _MAX_GAIN)[:, None, None]
    difference = (image - color).abs().mean(dim=0)
    smooth: Tensor = functional.avg_pool2d(difference[None, None], 3, 1, 1, count_include_pad=False)[0, 0]
    return smooth


def color_deviation(images: Float[Tensor, "V 3 H W"], background: Background) -> Float[Tensor, "V H W"]:
    """Return the difference of colors of one instant from the background; above 1, they are of something else.

    It is infinite where the background is unknown.
    """
    found = torch.full_like(background.color_std, torch.inf)
    for view, known in enumerate(background.known):
        if bool(known.any()):
            std = background.color_std[view]
            std = std.clamp(max=_MAX_COLOR_NOISE * std[known].median()).clamp(min=MIN_COLOR_STD)
            difference = _color_difference(images[view], background.color[view], known)
            found[view] = torch.where(known, difference / (_SAME_COLOR * std), torch.inf)
    return found


@torch.no_grad()
def agrees_with_background(predictions: Predictions, background: Background) -> Bool[Tensor, "T V H W"]:
    """Return the pixels of instants [1, T, V, H, W] with the color, and any depth of theirs, of the background.

    They may take its depth, unless a mask has motion there. The unit of depth may differ between instants.
    """
    known = background.known & predictions.known[0]
    ratio = torch.where(known, predictions.depth[0], 1.0).log() - background.log_depth
    limit = _SAME_DEPTH * background.spread.clamp(_MIN_DEPTH_STD, _MAX_DEPTH_STD)
    agrees = torch.zeros_like(known)
    for time, images in enumerate(predictions.images[0]):
        deviation = color_deviation(images, background).square()
        for view, has_depth in enumerate(known[time]):
            if bool(has_depth.any()):
                beyond = (ratio[time, view] - ratio[time, view][has_depth].median()) / limit[view]
                deviation[view] += torch.where(has_depth, beyond, 0.0).square()
        agrees[time] = deviation <= 1
    return agrees


def shows_background(
    dynamic: Float[Tensor, "T V H W"], images: Float[Tensor, "T V 3 H W"], background: Background
) -> tuple[Float[Tensor, "T V H W"], Bool[Tensor, "T V H W"]]:
    """Return the sharpened probability of motion, and the pixels that show a known background."""
    sharpened = sharpen_motion(dynamic, images, background)
    return sharpened, background.known & (sharpened <= DYNAMIC_THRESHOLD)


def without_specks(dynamic: Float[Tensor, "H W"], min_area: float) -> Float[Tensor, "H W"]:
    """Return a probability of motion whose moving and static parts have at least `min_area` pixels each."""
    cleaned = dynamic.clone()
    for is_moving in (True, False):
        part = (cleaned > DYNAMIC_THRESHOLD) == is_moving
        _, labels, statistics, _ = cv2.connectedComponentsWithStats(part.cpu().numpy().astype(np.uint8))
        small = torch.from_numpy((statistics[:, cv2.CC_STAT_AREA] < min_area)[labels]).to(part.device)
        cleaned[part & small] = 1 - cleaned[part & small]
    return cleaned
