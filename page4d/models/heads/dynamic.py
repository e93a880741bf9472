"""Dynamic mask: log-odds that patches move, predicted by a small head and fused with an external mask."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.block import FeedForward, initialise_linears
from page4d.models.config import MaskConfig, MaskFusion, MaskHeadKind

_RELEASE_HIDDEN = 256
_MIN_DEVIATION = 1e-6
_MIN_TEMPERATURE = 1e-3
_GATE_LOGIT = 4.0
"""Log-odds of an untrained gate, a probability of 0.98."""


class ConvMaskHead(nn.Module):
    """A depthwise and a full convolution, then one output per patch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mask_head = nn.Sequential(
            nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim),
            nn.GELU(),
            nn.Conv2d(dim, dim // 2, kernel_size=3, padding=1),
            nn.GELU(),
            nn.Conv2d(dim // 2, 1, kernel_size=1),
        )

    @property
    def last(self) -> nn.Module:
        """The layer that is zero in an untrained head."""
        return self.mask_head[4]

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F one rows columns"]:
        """Return the log-odds that a patch moves."""
        logit: Tensor = self.mask_head(features)
        return logit


class TemperedMaskHead(nn.Module):
    """Two depthwise convolutions, one output per patch and a learned temperature.

    `alpha_logit` is a parameter of PAGE-4D's attention bias; it is unused here and kept so that its weights load.

    Source: the mask head of PAGE-4D's `checkpoint_150` (reference facts).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head0 = nn.Sequential(
            nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim),
            nn.GELU(),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim),
            nn.GELU(),
            nn.Conv2d(dim, 1, kernel_size=1),
        )
        self.tau_logit = nn.Parameter(torch.tensor(0.5413))  # softplus gives a temperature of 1
        self.register_buffer("alpha_logit", torch.tensor(0.5413))

    @property
    def last(self) -> nn.Module:
        """The layer that is zero in an untrained head."""
        return self.head0[4]

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F one rows columns"]:
        """Return the log-odds that a patch moves; the layers predict those that it is static."""
        temperature = (functional.softplus(self.tau_logit) + 1e-6).clamp(min=_MIN_TEMPERATURE)
        logit: Tensor = -self.head0(features) / temperature
        return logit


class ReleaseMaskHead(nn.Module):
    """Convolutions on features standardised over each image, plus the mean of these over channels.

    Source: the mask head of the public PAGE-4D release (reference facts).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head0 = nn.Sequential(
            nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim),
            nn.GELU(),
            nn.Conv2d(dim, _RELEASE_HIDDEN, kernel_size=1),
            nn.GELU(),
            nn.Conv2d(_RELEASE_HIDDEN, 1, kernel_size=1),
        )

    @property
    def last(self) -> nn.Module:
        """The layer that is zero in an untrained head."""
        return self.head0[4]

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F one rows columns"]:
        """Return the log-odds that a patch moves; the layers predict those that it is static."""
        mean = features.mean(dim=(2, 3), keepdim=True)
        count = features.shape[2] * features.shape[3]
        variance = (features - mean).square().sum(dim=(2, 3), keepdim=True) / max(count - 1, 1)
        standard = (features - mean) / variance.sqrt().clamp(min=_MIN_DEVIATION)
        logit: Tensor = -(self.head0(standard) + standard.mean(dim=1, keepdim=True))
        return logit


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
        for parameter in self.head.last.parameters():
            nn.init.zeros_(parameter)

    def is_untrained(self) -> bool:
        """Whether the last layer of the head is zero, as initialised."""
        return not any(bool(parameter.any()) for parameter in self.head.last.parameters())

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
