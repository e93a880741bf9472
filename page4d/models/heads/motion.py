"""Motion head: per-pixel motion from the differences between an image and its neighbours in time."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.execution import in_chunks
from page4d.models.config import MotionHeadConfig
from page4d.models.inputs.matching import FINE_STRIDE

_SHIFTS = (-1, 1)
"""Next and previous instant, cyclic."""

_COLOUR_CHANNELS = 3


class MotionHead(nn.Module):
    """Refine the dynamic mask from patches to pixels.

    For a static camera, changes in time indicate motion or a change of light; for a moving camera everything changes,
    and the patch tokens separate motion from parallax. The last layer starts at zero: an untrained head outputs the
    upsampled patch mask.
    """

    def __init__(self, config: MotionHeadConfig, dim: int, *, teaches_trunk: bool = False) -> None:
        super().__init__()
        self.teaches_trunk = teaches_trunk
        self.describe = nn.Conv2d(config.fine_dim, config.compared, kernel_size=3, padding=1)
        self.fine = nn.Conv2d(config.fine_dim, config.dim, kernel_size=1)
        self.norm = nn.LayerNorm(dim)
        self.tokens = nn.Linear(dim, config.dim)
        self.differences = nn.Conv2d(2 * (config.compared + _COLOUR_CHANNELS) + 1, config.dim, kernel_size=1)
        self.blocks = nn.ModuleList(ResidualConvolution(config.dim, dilation) for dilation in config.dilations)
        self.out = zero_convolution(config.dim, FINE_STRIDE**2)

    def forward(
        self,
        images: Float[Tensor, "B T V 3 H W"],
        fine: Float[Tensor, "B T V F h w"],
        tokens: Float[Tensor, "B T V P C"],
        logit: Float[Tensor, "B T V rows columns"],
        max_images: int | None = None,
    ) -> Float[Tensor, "B T V H W"]:
        """Return the log-odds that a pixel moves; inputs get a gradient only if the mask teaches the trunk."""
        if not self.teaches_trunk:
            fine, tokens, logit = fine.detach(), tokens.detach(), logit.detach()
        shape, grid, size = logit.shape[:3], (logit.shape[-2], logit.shape[-1]), (fine.shape[-2], fine.shape[-1])
        # Encoder and trunk may run in half precision; the head does not.
        maps, of_patches = fine.flatten(0, 2).to(images), logit.flatten(0, 2)[:, None]
        tokens = tokens.flatten(0, 2)
        described = self.describe(maps)
        colours = functional.avg_pool2d(images.flatten(0, 2), FINE_STRIDE)
        own = torch.cat([described, colours], dim=1)
        neighbours = [torch.unflatten(own, 0, shape).roll(shift, dims=1).flatten(0, 2) for shift in _SHIFTS]

        def of_images(part: slice) -> Tensor:
            difference = torch.stack([(own[part] - other[part]).abs() for other in neighbours])
            patches = of_patches[part].to(own)
            changes = [difference.mean(dim=0), difference.amax(dim=0), _resized(patches, size)]
            context = self.tokens(self.norm(tokens[part].to(own))).transpose(1, 2)
            features = self.differences(torch.cat(changes, dim=1)) + self.fine(maps[part])
            features = features + _resized(torch.unflatten(context, 2, grid), size)
            for block in self.blocks:
                features = block(features)
            refined = functional.pixel_shuffle(self.out(functional.gelu(features)), FINE_STRIDE)
            return refined + _resized(patches, (refined.shape[-2], refined.shape[-1]))

        return torch.unflatten(in_chunks(of_images, len(own), max_images, dim=0)[:, 0], 0, shape)


class ResidualConvolution(nn.Module):
    """A normalized, optionally dilated convolution and a 1 x 1 convolution, with a residual connection."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.spread = nn.Conv2d(channels, channels, kernel_size=3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(self, features: Float[Tensor, "F C h w"]) -> Float[Tensor, "F C h w"]:
        """Refine a feature map."""
        refined: Tensor = features + self.mix(functional.gelu(self.spread(self.norm(features))))
        return refined


def zero_convolution(channels: int, num_out: int) -> nn.Conv2d:
    """Return a 1 x 1 convolution whose weights and biases are initialized to zero."""
    convolution = nn.Conv2d(channels, num_out, kernel_size=1)
    for parameter in convolution.parameters():
        nn.init.zeros_(parameter)
    return convolution


def _resized(features: Float[Tensor, "F C rows columns"], size: tuple[int, int]) -> Float[Tensor, "F C h w"]:
    return functional.interpolate(features, size=size, mode="bilinear", align_corners=False)
