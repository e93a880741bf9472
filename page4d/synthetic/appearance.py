"""What cameras make of light: exposure, white balance, vignetting, blur, noise, tone and compression of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.synthetic.rng import Dice

BLOCK = 8
"""Side in px of the blocks that compression looks at."""


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """How V cameras in each of B worlds turn linear light into images; nothing here changes geometry.

    `exposure` and `balance` are factors. `vignette` is the part of light lost in the corners. `blur` lets that part
    of light go to the neighbours, on each side and twice. `shot_noise` grows with the square root of light,
    `read_noise` is there in the dark. `contrast` is the slope of the tone curve about middle gray, `saturation` a
    factor, and `blocks` the step to which the details of blocks of 8x8 px are rounded.
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
    """Return cameras that are all alike: well exposed, sharp and free of noise."""
    ones, zeros = torch.ones(scenes, views), torch.zeros(scenes, views)
    none = dict.fromkeys(("vignette", "blur", "shot_noise", "read_noise", "blocks"), zeros)
    return Appearance(exposure=ones, balance=torch.ones(scenes, views, 3), contrast=ones, saturation=ones, **none)


def sample_appearance(seeds: Sequence[int], views: int) -> Appearance:
    """Draw the cameras of each seed: a third of all rigs are of one make and setting, the others each as they are."""
    rows = [_rig(Dice(seed, "appearance"), views) for seed in seeds]
    names = [field.name for field in fields(Appearance)]
    return Appearance(**{name: torch.tensor([[one[name] for one in row] for row in rows]) for name in names})


def _rig(dice: Dice, views: int) -> list[dict[str, object]]:
    apart = 0.15 if dice.chance(0.35) else 1.0
    exposure, tone = 0.22 * dice.normal(), 0.1 * dice.normal()
    warmth, green = 0.1 * dice.normal(), 0.03 * dice.normal()
    soft, noisy = dice.chance(0.4), dice.chance(0.6)
    squeezed, saturation = dice.chance(0.35), dice.between(0.75, 1.2)
    grain = dice.log_between(0.004, 0.04)
    cameras: list[dict[str, object]] = []
    for _ in range(views):
        warm = warmth + 0.07 * apart * dice.normal()
        tint = green + 0.02 * apart * dice.normal()
        cameras.append(
            {
                "exposure": math.exp(max(-0.7, min(0.6, exposure + 0.25 * apart * dice.normal()))),
                "balance": (math.exp(warm), math.exp(tint), math.exp(-warm)),
                "vignette": dice.between(0.0, 0.35),
                "blur": dice.between(0.0, 0.11) if soft else 0.0,
                "shot_noise": grain * dice.between(0.5, 1.5) if noisy else 0.0,
                "read_noise": 0.3 * grain * dice.between(0.5, 1.5) if noisy else 0.0,
                "contrast": math.exp(tone + 0.08 * apart * dice.normal()),
                "saturation": saturation + 0.1 * apart * dice.normal(),
                "blocks": dice.log_between(0.006, 0.04) if squeezed else 0.0,
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
    """Turn linear light into images in [0, 1]; noise is drawn from a scene's seed, frame and view."""
    of = {name: value[:, None].to(light) for name, value in vars(appearance).items() if name != "balance"}
    one = {name: value[..., None, None, None] for name, value in of.items()}
    for _ in range(2):
        light = _spread(light, one["blur"]) if bool((appearance.blur > 0).any()) else light
    gain = one["exposure"] * appearance.balance[:, None, :, :, None, None].to(light)
    light = light * gain * _falloff(light, one["vignette"])
    if bool((appearance.read_noise > 0).any()):
        deviation = one["read_noise"] + one["shot_noise"] * light.clamp(min=0).sqrt()
        light = light + deviation * _noise(light, seeds, first_frame, first_view)
    image = tone_curve(light)
    image = 0.5 + (image - 0.5) * one["contrast"]
    gray = image.mean(-3, keepdim=True)
    image = (gray + (image - gray) * one["saturation"]).clamp(0, 1)
    return _compressed(image, one["blocks"]) if bool((appearance.blocks > 0).any()) else image


def tone_curve(light: Float[Tensor, "*image"]) -> Float[Tensor, "*image"]:
    """Turn linear light into display values: a shoulder that never saturates, then a gamma of 2.2."""
    light = light.clamp(min=0)
    return (light * 1.12 / (light * 0.35 + 1)).clamp(0, 1) ** (1 / 2.2)


def _spread(light: Tensor, part: Tensor) -> Tensor:
    """Let a part of the light of each pixel go to either neighbour, along rows and then along columns."""
    for axis in (-1, -2):
        size = light.shape[axis]
        before = torch.cat([light.narrow(axis, 0, 1), light.narrow(axis, 0, size - 1)], dim=axis)
        after = torch.cat([light.narrow(axis, 1, size - 1), light.narrow(axis, size - 1, 1)], dim=axis)
        light = light + part * (before + after - 2 * light)
    return light


def _falloff(light: Tensor, vignette: Tensor) -> Tensor:
    """Return the part of light that is left towards the corners."""
    height, width = light.shape[-2:]
    y = torch.linspace(-1, 1, height, dtype=light.dtype, device=light.device)[:, None]
    x = torch.linspace(-1, 1, width, dtype=light.dtype, device=light.device)
    return 1 - vignette * (x * x + y * y) / 2


def _noise(light: Tensor, seeds: Sequence[int], first_frame: int, first_view: int) -> Tensor:
    """Draw noise for each image on the CPU, where a seed gives the same everywhere."""
    _, times, views = light.shape[:3]
    grains = []
    for seed in seeds:
        for number in range(times * views):
            frame, view = first_frame + number // views, first_view + number % views
            random = torch.Generator("cpu").manual_seed(((seed * 1_000_003 + frame) * 64 + view) % 2**63)
            grains.append(torch.randn(light.shape[3:], generator=random, device="cpu"))
    return torch.stack(grains).reshape(light.shape).to(light)


def _compressed(image: Tensor, step: Tensor) -> Tensor:
    """Round the cosine transform of blocks, fine detail more than coarse; images of step 0 stay as they are.

    In double precision, so that no coefficient is rounded otherwise in another batch.

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
