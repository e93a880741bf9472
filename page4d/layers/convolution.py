"""Convolutions that refine a map of features, and the last one of a head that starts by saying nothing."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class ResidualConvolution(nn.Module):
    """A normalised, perhaps dilated, convolution and a mixing of channels, added to the input."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.spread = nn.Conv2d(channels, channels, kernel_size=3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(self, features: Float[Tensor, "F C h w"]) -> Float[Tensor, "F C h w"]:
        """Refine a map of features."""
        refined: Tensor = features + self.mix(functional.gelu(self.spread(self.norm(features))))
        return refined


def silent_convolution(channels: int, num_out: int) -> nn.Conv2d:
    """Return a convolution of single places that gives zeros until it is trained."""
    silent = nn.Conv2d(channels, num_out, kernel_size=1)
    for parameter in silent.parameters():
        nn.init.zeros_(parameter)
    return silent
