"""Colour augmentation: jitter, greyscale, blur and solarisation."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_JITTERED, _GREY = 0.8, 0.2
"""Probabilities of jitter and of greyscale.

Source: Grill et al. (2020), BYOL, appendix B; so are the ranges below.
"""

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = 0.4, 0.4, 0.2, 0.1
_SIGMA = (0.1 / 224, 2.0 / 224)
"""Range of the blur's standard deviation, as a fraction of the image side."""

_RADIUS = 0.05
"""Radius of the blur kernel, as a fraction of the image side."""

_LUMA = (0.299, 0.587, 0.114)
_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
"""RGB to luma and two chroma axes (NTSC)."""


@dataclass(frozen=True, kw_only=True)
class ColourProbabilities:
    """Probabilities of blur and solarisation of a crop."""

    blur: float
    solarise: float


def draw_colours(random: np.random.Generator, probabilities: ColourProbabilities) -> NDArray[np.float32]:
    """Draw brightness, contrast, saturation, hue, greyscale, blur and solarisation of a crop."""
    strength = np.array([_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE])
    jitter = random.uniform(-strength, strength) * (random.random() < _JITTERED)
    grey = random.random() < _GREY
    sigma = random.uniform(*_SIGMA) * (random.random() < probabilities.blur)
    solarised = random.random() < probabilities.solarise
    return np.array([*(1 + jitter[:3]), jitter[3], grey, sigma, solarised], dtype=np.float32)


def recolour(images: Float[Tensor, "F 3 H W"], drawn: Float[Tensor, "F 7"]) -> Float[Tensor, "F 3 H W"]:
    """Apply drawn augmentations to images in [0, 1]."""
    brightness, contrast, saturation, hue, grey, sigma, solarised = drawn[:, :, None, None, None].unbind(1)
    images = (images * brightness).clamp(0, 1)
    images = _blend(_luma(images).mean(dim=(2, 3), keepdim=True), images, contrast)
    images = _blend(_luma(images), images, saturation * (1 - grey))
    images = _rotate_hue(images, hue.flatten() * (1 - grey.flatten()))
    images = _blur(images, sigma.flatten())
    return torch.where((solarised > 0) & (images >= 0.5), 1 - images, images)


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Interpolate or extrapolate from a base to the images."""
    return (base + (images - base) * factor).clamp(0, 1)


def _luma(images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F 1 H W"]:
    return (images * images.new_tensor(_LUMA)[:, None, None]).sum(dim=1, keepdim=True)


def _rotate_hue(images: Float[Tensor, "F 3 H W"], hue: Float[Tensor, " F"]) -> Float[Tensor, "F 3 H W"]:
    """Rotate the hue by a fraction of the circle."""
    angle = 2 * math.pi * hue
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    turn = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=-1).reshape(-1, 3, 3)
    to_yiq = images.new_tensor(_YIQ)
    return torch.einsum("fij,fjhw->fihw", torch.linalg.inv(to_yiq) @ turn @ to_yiq, images).clamp(0, 1)


def _blur(images: Float[Tensor, "F 3 H W"], sigma: Float[Tensor, " F"]) -> Float[Tensor, "F 3 H W"]:
    """Blur every image by its Gaussian; with sigma 0 it is unchanged."""
    frames, channels, height, width = images.shape
    radius = max(1, round(_RADIUS * max(height, width)))
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    pixels = (sigma * max(height, width)).clamp(min=1e-3)
    kernels = torch.exp(-0.5 * (offsets / pixels[:, None]) ** 2)
    kernels = (kernels / kernels.sum(-1, keepdim=True)).repeat_interleave(channels, dim=0)[:, None]
    flat = functional.pad(images.reshape(1, -1, height, width), (radius,) * 4, mode="reflect")
    across = functional.conv2d(flat, kernels[:, :, None], groups=frames * channels)
    return functional.conv2d(across, kernels[..., None], groups=frames * channels).view_as(images)
