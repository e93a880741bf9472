"""Motion head and dynamic mask: per-pixel motion between neighbouring instants, and log-odds that patches move.

The dynamic mask of a small head is fused with an external mask.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.networks.config_parts import MaskConfig, MaskFusion, MaskHeadKind, MotionHeadConfig
from page4d.networks.inputs.matching import FINE_STRIDE
from page4d.networks.layers.block import FeedForward, initialise_linears
from page4d.networks.layers.execution import in_chunks

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
        self.out = nn.Conv2d(config.dim, FINE_STRIDE**2, kernel_size=1)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)

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
        return features + self.mix(functional.gelu(self.spread(self.norm(features))))


def _resized(features: Float[Tensor, "F C rows columns"], size: tuple[int, int]) -> Float[Tensor, "F C h w"]:
    return functional.interpolate(features, size=size, mode="bilinear", align_corners=False)


_RELEASE_HIDDEN = 256
_MIN_DEVIATION = 1e-6
_MIN_TEMPERATURE = 1e-3
_GATE_LOGIT = 4.0
"""Log-odds of an untrained gate, a probability of 0.98."""


def _mask_layers(dim: int, hidden: int, kernel_size: int, groups: int = 1) -> nn.Sequential:
    """Build a depthwise convolution, one to `hidden` channels and one output per patch, drawn in this order."""
    return nn.Sequential(
        nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim),
        nn.GELU(),
        nn.Conv2d(dim, hidden, kernel_size, padding=kernel_size // 2, groups=groups),
        nn.GELU(),
        nn.Conv2d(hidden, 1, kernel_size=1),
    )


class ConvMaskHead(nn.Module):
    """A depthwise and a full convolution, then one output per patch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mask_head = _mask_layers(dim, dim // 2, kernel_size=3)

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F one rows columns"]:
        """Return the log-odds that a patch moves."""
        return self.mask_head(features)


class TemperedMaskHead(nn.Module):
    """Two depthwise convolutions, one output per patch and a learned temperature.

    `alpha_logit` is a parameter of PAGE-4D's attention bias; it is unused here and kept so that its weights load.

    Source: the mask head of PAGE-4D's `checkpoint_150` (reference facts).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head0 = _mask_layers(dim, dim, kernel_size=3, groups=dim)
        self.tau_logit = nn.Parameter(torch.tensor(0.5413))  # softplus gives a temperature of 1
        self.register_buffer("alpha_logit", torch.tensor(0.5413))

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F one rows columns"]:
        """Return the log-odds that a patch moves; the layers predict those that it is static."""
        temperature = (functional.softplus(self.tau_logit) + 1e-6).clamp(min=_MIN_TEMPERATURE)
        return -self.head0(features) / temperature


class ReleaseMaskHead(nn.Module):
    """Convolutions on features standardised over each image, plus the mean of these over channels.

    Source: the mask head of the public PAGE-4D release (reference facts).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head0 = _mask_layers(dim, _RELEASE_HIDDEN, kernel_size=1)

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F one rows columns"]:
        """Return the log-odds that a patch moves; the layers predict those that it is static."""
        mean = features.mean(dim=(2, 3), keepdim=True)
        count = features.shape[2] * features.shape[3]
        variance = (features - mean).square().sum(dim=(2, 3), keepdim=True) / max(count - 1, 1)
        standard = (features - mean) / variance.sqrt().clamp(min=_MIN_DEVIATION)
        return -(self.head0(standard) + standard.mean(dim=1, keepdim=True))


MASK_HEADS: dict[MaskHeadKind, type[ConvMaskHead | TemperedMaskHead | ReleaseMaskHead]] = {
    MaskHeadKind.CONV: ConvMaskHead,
    MaskHeadKind.CKPT150: TemperedMaskHead,
    MaskHeadKind.RELEASE: ReleaseMaskHead,
}


def external_log_odds(
    mask: Float[Tensor, "B T V H W"], patch_size: int, floor: float
) -> Float[Tensor, "B T V rows columns"]:
    """Average mask probabilities over patches and convert them to log-odds, clipped to [floor, 1 - floor]."""
    pooled = functional.avg_pool2d(mask.flatten(0, 2)[:, None], patch_size)[:, 0]
    return torch.logit(torch.unflatten(pooled, 0, mask.shape[:3]), eps=floor)


class DynamicMask(nn.Module):
    """Fuse the head's prediction with an external mask: log-odds alpha * predicted + beta * external."""

    def __init__(self, config: MaskConfig, dim: int) -> None:
        super().__init__()
        self.head = MASK_HEADS[config.head](dim)
        self.teaches_trunk = config.teaches_trunk
        self.gated = config.fusion is MaskFusion.GATED
        if self.gated:
            self.alpha_gate, self.beta_gate = _new_gate(dim), _new_gate(dim)
        else:
            self.alpha = nn.Parameter(torch.ones(()))
            self.beta = nn.Parameter(torch.ones(()))
        for parameter in self.last_layer.parameters():
            nn.init.zeros_(parameter)

    @property
    def last_layer(self) -> nn.Module:
        """The layer that is zero in an untrained head."""
        return [part for part in self.head.modules() if isinstance(part, nn.Conv2d)][-1]

    def is_untrained(self) -> bool:
        """Whether the last layer of the head is zero, as initialised."""
        return not any(bool(parameter.any()) for parameter in self.last_layer.parameters())

    def forward(
        self,
        patches: Float[Tensor, "B T V P C"],
        grid: tuple[int, int],
        external: Float[Tensor, "B T V rows columns"] | None = None,
    ) -> Float[Tensor, "B T V rows columns"]:
        """Return the log-odds that a patch moves; patch tokens get a gradient only if the mask teaches the trunk."""
        if not self.teaches_trunk:
            patches = patches.detach()
        features = torch.unflatten(patches.flatten(0, 2).transpose(1, 2), 2, grid)
        predicted = torch.unflatten(self.head(features)[:, 0], 0, patches.shape[:3])
        alpha, beta = self._weights(patches)
        fused: Tensor = alpha * predicted.to(alpha.dtype)
        return fused if external is None else fused + beta * external

    def _weights(self, patches: Float[Tensor, "B T V P C"]) -> tuple[Tensor, Tensor]:
        """Return alpha and beta, scalars or [B, T, V, 1, 1]."""
        if not self.gated:
            return self.alpha, self.beta
        image = patches.mean(dim=3)
        return self.alpha_gate(image).sigmoid()[..., None], self.beta_gate(image).sigmoid()[..., None]


def _new_gate(dim: int) -> FeedForward:
    """Build a gate that is nearly open at initialisation."""
    gate = FeedForward(dim, dim // 4, 1)
    initialise_linears(gate)
    nn.init.constant_(gate.fc2.bias, _GATE_LOGIT)
    return gate
