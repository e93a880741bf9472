"""Random changes of colour, so that a network does not recognise a frame by its tint."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_JITTERED, _GREY = 0.8, 0.2
"""How often colours are changed, and taken away.

Source: Grill et al. (2020), BYOL, appendix B; so are the ranges below.
"""

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = 0.4, 0.4, 0.2, 0.1
_SIGMA = (0.1 / 224, 2.0 / 224)
"""Of the blur, as parts of the image's side."""

_REACH = 0.05
"""Half of the blur's kernel, as a part of the image's side."""

_LUMA = (0.299, 0.587, 0.114)
_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
"""RGB to brightness and two axes of colour (NTSC)."""


@dataclass(frozen=True, kw_only=True)
class ColourUse:
    """How often a crop is blurred and solarised."""

    blur: float
    solarise: float


def draw_colours(random: np.random.Generator, use: ColourUse) -> NDArray[np.float32]:
    """Draw brightness, contrast, saturation, hue, greyness, blur and solarisation of a crop."""
    strength = np.array([_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE])
    jitter = random.uniform(-strength, strength) * (random.random() < _JITTERED)
    grey = random.random() < _GREY
    sigma = random.uniform(*_SIGMA) * (random.random() < use.blur)
    solarised = random.random() < use.solarise
    return np.array([*(1 + jitter[:3]), jitter[3], grey, sigma, solarised], dtype=np.float32)


def recolour(images: Float[Tensor, "F 3 H W"], drawn: Float[Tensor, "F 7"]) -> Float[Tensor, "F 3 H W"]:
    """Change images in [0, 1] as drawn."""
    brightness, contrast, saturation, hue, grey, sigma, solarised = drawn[:, :, None, None, None].unbind(1)
    images = (images * brightness).clamp(0, 1)
    images = _between(_luma(images).mean(dim=(2, 3), keepdim=True), images, contrast)
    images = _between(_luma(images), images, saturation * (1 - grey))
    images = _turned(images, hue.flatten() * (1 - grey.flatten()))
    images = _blurred(images, sigma.flatten())
    return torch.where((solarised > 0) & (images >= 0.5), 1 - images, images)


def _between(base: Tensor, images: Tensor, share: Tensor) -> Tensor:
    """Move images away from a base, or towards it."""
    return (base + (images - base) * share).clamp(0, 1)


def _luma(images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F 1 H W"]:
    return (images * images.new_tensor(_LUMA)[:, None, None]).sum(dim=1, keepdim=True)


def _turned(images: Float[Tensor, "F 3 H W"], hue: Float[Tensor, " F"]) -> Float[Tensor, "F 3 H W"]:
    """Turn the hue by a part of the circle."""
    angle = 2 * math.pi * hue
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    turn = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=-1).reshape(-1, 3, 3)
    to_yiq = images.new_tensor(_YIQ)
    return torch.einsum("fij,fjhw->fihw", torch.linalg.inv(to_yiq) @ turn @ to_yiq, images).clamp(0, 1)


def _blurred(images: Float[Tensor, "F 3 H W"], sigma: Float[Tensor, " F"]) -> Float[Tensor, "F 3 H W"]:
    """Blur every image by its own Gaussian; a width of 0 leaves it as it is."""
    frames, channels, height, width = images.shape
    reach = max(1, round(_REACH * max(height, width)))
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    pixels = (sigma * max(height, width)).clamp(min=1e-3)
    kernels = torch.exp(-0.5 * (offsets / pixels[:, None]) ** 2)
    kernels = (kernels / kernels.sum(-1, keepdim=True)).repeat_interleave(channels, dim=0)[:, None]
    flat = functional.pad(images.reshape(1, -1, height, width), (reach,) * 4, mode="reflect")
    across = functional.conv2d(flat, kernels[:, :, None], groups=frames * channels)
    return functional.conv2d(across, kernels[..., None], groups=frames * channels).view_as(images)
