"""Photometric camera model: exposure, white balance, vignetting, blur, noise, tone curve and compression."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.synthetic.rng import Rng

BLOCK = 8
"""Side of a compression block in px."""


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """Photometric parameters of V cameras in each of B worlds.

    `exposure` and `balance` are gains. `vignette` is the share of light lost in the corners. `blur` is the share of
    light that goes to either neighbour, applied twice per axis. The standard deviation of noise is
    `read_noise + shot_noise * sqrt(light)`. `contrast` is the slope of the tone curve about middle grey, `saturation`
    a factor, and `blocks` the quantization step of the cosine transform of blocks of 8x8 px; 0 disables it.
    """

    exposure: Float[Tensor, "B V"]
    balance: Float[Tensor, "B V 3"]
    vignette: Float[Tensor, "B V"]
    blur: Float[Tensor, "B V"]
    shot_noise: Float[Tensor, "B V"]
    read_noise: Float[Tensor, "B V"]
    contrast: Float[Tensor, "B V"]
    saturation: Float[Tensor, "B V"]
    blocks: Float[Tensor, "B V"]


def plain_appearance(scenes: int, views: int) -> Appearance:
    """Return identical cameras with neutral exposure and colour, no blur and no noise."""
    ones, zeros = torch.ones(scenes, views), torch.zeros(scenes, views)
    none = dict.fromkeys(("vignette", "blur", "shot_noise", "read_noise", "blocks"), zeros)
    return Appearance(exposure=ones, balance=torch.ones(scenes, views, 3), contrast=ones, saturation=ones, **none)


def sample_appearance(seeds: Sequence[int], views: int) -> Appearance:
    """Draw the cameras of each seed; in about a third of all rigs they differ little from each other."""
    rows = [_cameras(Rng(seed, "appearance"), views) for seed in seeds]
    names = [field.name for field in fields(Appearance)]
    return Appearance(**{name: torch.tensor([[one[name] for one in row] for row in rows]) for name in names})


def _cameras(rng: Rng, views: int) -> list[dict[str, object]]:
    spread = 0.15 if rng.chance(0.35) else 1.0
    exposure, tone = 0.22 * rng.normal(), 0.1 * rng.normal()
    warmth, green = 0.1 * rng.normal(), 0.03 * rng.normal()
    soft, noisy = rng.chance(0.4), rng.chance(0.6)
    squeezed, saturation = rng.chance(0.35), rng.uniform(0.75, 1.2)
    grain = rng.log_uniform(0.004, 0.04)
    cameras: list[dict[str, object]] = []
    for _ in range(views):
        warm = warmth + 0.07 * spread * rng.normal()
        tint = green + 0.02 * spread * rng.normal()
        cameras.append(
            {
                "exposure": math.exp(max(-0.7, min(0.6, exposure + 0.25 * spread * rng.normal()))),
                "balance": (math.exp(warm), math.exp(tint), math.exp(-warm)),
                "vignette": rng.uniform(0.0, 0.35),
                "blur": rng.uniform(0.0, 0.11) if soft else 0.0,
                "shot_noise": grain * rng.uniform(0.5, 1.5) if noisy else 0.0,
                "read_noise": 0.3 * grain * rng.uniform(0.5, 1.5) if noisy else 0.0,
                "contrast": math.exp(tone + 0.08 * spread * rng.normal()),
                "saturation": saturation + 0.1 * spread * rng.normal(),
                "blocks": rng.log_uniform(0.006, 0.04) if squeezed else 0.0,
            }
        )
    return cameras


def develop(
    light: Float[Tensor, "B T V 3 H W"],
    appearance: Appearance,
    seeds: Sequence[int],
    *,
    first_frame: int = 0,
    first_view: int = 0,
) -> Float[Tensor, "B T V 3 H W"]:
    """Convert linear radiance to images in [0, 1]; the noise depends on the seed, frame and view only."""
    of = {
        name: value[:, None, :, None, None, None].to(light)
        for name, value in vars(appearance).items()
        if name != "balance"
    }
    for _ in range(2):
        light = _blurred(light, of["blur"]) if bool((appearance.blur > 0).any()) else light
    gain = of["exposure"] * appearance.balance[:, None, :, :, None, None].to(light)
    light = light * gain * _vignetting(light, of["vignette"])
    if bool((appearance.read_noise > 0).any()):
        deviation = of["read_noise"] + of["shot_noise"] * light.clamp(min=0).sqrt()
        light = light + deviation * _noise(light, seeds, first_frame, first_view)
    image = tone_curve(light)
    image = 0.5 + (image - 0.5) * of["contrast"]
    gray = image.mean(-3, keepdim=True)
    image = (gray + (image - gray) * of["saturation"]).clamp(0, 1)
    return _compressed(image, of["blocks"]) if bool((appearance.blocks > 0).any()) else image


def tone_curve(light: Float[Tensor, "*image"]) -> Float[Tensor, "*image"]:
    """Map linear radiance to display values by a soft shoulder and a gamma of 2.2."""
    light = light.clamp(min=0)
    return (light * 1.12 / (light * 0.35 + 1)).clamp(0, 1) ** (1 / 2.2)


def _blurred(light: Tensor, share: Tensor) -> Tensor:
    """Convolve rows and columns with the kernel (share, 1 - 2 share, share)."""
    for axis in (-1, -2):
        size = light.shape[axis]
        before = torch.cat([light.narrow(axis, 0, 1), light.narrow(axis, 0, size - 1)], dim=axis)
        after = torch.cat([light.narrow(axis, 1, size - 1), light.narrow(axis, size - 1, 1)], dim=axis)
        light = light + share * (before + after - 2 * light)
    return light


def _vignetting(light: Tensor, vignette: Tensor) -> Tensor:
    """Return the transmission of every pixel, which falls quadratically towards the corners."""
    height, width = light.shape[-2:]
    y = torch.linspace(-1, 1, height, dtype=light.dtype, device=light.device)[:, None]
    x = torch.linspace(-1, 1, width, dtype=light.dtype, device=light.device)
    return 1 - vignette * (x * x + y * y) / 2


def _noise(light: Tensor, seeds: Sequence[int], first_frame: int, first_view: int) -> Tensor:
    """Draw standard normal noise per image on the CPU, so that it does not depend on the device."""
    _, times, views = light.shape[:3]
    images = []
    for seed in seeds:
        for number in range(times * views):
            frame, view = first_frame + number // views, first_view + number % views
            random = torch.Generator("cpu").manual_seed(((seed * 1_000_003 + frame) * 64 + view) % 2**63)
            images.append(torch.randn(light.shape[3:], generator=random, device="cpu"))
    return torch.stack(images).reshape(light.shape).to(light)


def _compressed(image: Tensor, step: Tensor) -> Tensor:
    """Quantize the cosine transform of blocks, high frequencies more than low ones; step 0 leaves an image unchanged.

    Computed in double precision, so that rounding does not depend on the batch.

    Source: ITU-T T.81 (1992), A.3.3, for the transform.
    """
    height, width = image.shape[-2:]
    down, right = -height % BLOCK, -width % BLOCK
    padded = torch.nn.functional.pad(image.flatten(0, 2).double(), (0, right, 0, down), mode="replicate")
    rows, columns = (height + down) // BLOCK, (width + right) // BLOCK
    blocks = padded.reshape(*image.shape[:4], rows, BLOCK, columns, BLOCK).transpose(-2, -3)
    k = torch.arange(BLOCK, dtype=torch.float64, device=image.device)
    basis = torch.cos(math.pi / BLOCK * (k + 0.5) * k[:, None]) * (2 / BLOCK) ** 0.5
    basis[0] /= 2**0.5
    steps = (step.double()[..., None, None] * (1 + k[:, None] + k)).clamp(min=1e-6)
    coded = torch.round(basis @ blocks @ basis.T / steps) * steps
    whole = (basis.T @ coded @ basis).transpose(-2, -3).reshape(*image.shape[:4], height + down, width + right)
    return torch.where(step > 0, whole[..., :height, :width].clamp(0, 1).to(image), image)
