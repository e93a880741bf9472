"""Residual and zero-initialized convolutions of prediction heads."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


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
