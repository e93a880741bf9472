"""Background subtraction: masks of motion sharpened by the colors of the background."""

import cv2
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.fusion.background import Background

_MIN_COLOR_STD = 0.01
"""Lower bound on the noise of colors in [0, 1]: compression hides the noise of flat areas."""

_EQUAL_EVIDENCE = 3.0
"""Color difference, in standard deviations, that is equally likely for a static and for a moving pixel."""

_SLOPE = 2.0
"""Log odds of motion per standard deviation above that."""

_FOR_STATIC, _FOR_MOVING = -1.0, 3.0
"""Bounds on the log odds: a moving surface may have the color of the background, the reverse is rare."""

_MAX_GAIN = 2.0
"""Largest change of the exposure between an instant and the background."""

_SURE = 0.01


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
            known, color = background.known[view], background.color[view]
            static = known & (dynamic[time, view] <= DYNAMIC_THRESHOLD)
            if not bool(static.any()):
                continue
            gain = (images[time, view] / color.clamp(min=1 / 255))[:, static].median(dim=1).values
            gain = gain.clamp(1 / _MAX_GAIN, _MAX_GAIN)[:, None, None]
            difference = (images[time, view] / gain - color).abs().mean(dim=0)
            smooth = functional.avg_pool2d(difference[None, None], 3, 1, 1, count_include_pad=False)[0, 0]
            deviation = smooth / background.color_std[view].clamp(min=_MIN_COLOR_STD)
            evidence = (_SLOPE * (deviation - _EQUAL_EVIDENCE)).clamp(_FOR_STATIC, _FOR_MOVING)
            prior = dynamic[time, view].clamp(_SURE, 1 - _SURE).logit()
            sharpened[time, view] = torch.where(known, (prior + evidence).sigmoid(), dynamic[time, view])
    return sharpened


def without_specks(dynamic: Float[Tensor, "H W"], min_area: float) -> Float[Tensor, "H W"]:
    """Return a probability of motion whose moving and static parts have at least `min_area` pixels each."""
    cleaned = dynamic.clone()
    for is_moving in (True, False):
        part = (cleaned > DYNAMIC_THRESHOLD) == is_moving
        _, labels, statistics, _ = cv2.connectedComponentsWithStats(part.cpu().numpy().astype(np.uint8))
        small = torch.from_numpy((statistics[:, cv2.CC_STAT_AREA] < min_area)[labels]).to(part.device)
        cleaned[part & small] = 1 - cleaned[part & small]
    return cleaned
