"""Prior on spatially correlated depth errors: a Gaussian process on a lattice over the image."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_NODE_SPACING = 1.0
"""In correlation lengths."""


class CorrelatedErrors:
    """Errors of pixels as a linear function of M lattice nodes, by bilinear interpolation.

    Errors of nodes have variance 1 and correlate by exp(-distance / `length_px`); `precision` is the inverse of their
    covariance. A length of 0 gives no nodes.

    Source: Rasmussen & Williams (2006), "Gaussian Processes for Machine Learning", eq. 4.18 (the covariance); Wilson
    & Nickisch (2015), "Kernel Interpolation for Scalable Structured Gaussian Processes", section 4.
    """

    def __init__(self, pixels: Float[Tensor, "*images P 2"], image_size: tuple[int, int], length_px: float) -> None:
        spacing, (height, width) = _NODE_SPACING * length_px, image_size
        nodes = [_nodes(side, spacing) if length_px else pixels.new_zeros(0).double() for side in (width, height)]
        self._weights = [
            _linear_weights(pixels[..., axis].double(), along.to(pixels.device)) for axis, along in enumerate(nodes)
        ]
        places = torch.stack(torch.meshgrid(*nodes, indexing="xy"), dim=-1).flatten(0, 1)
        covariance = torch.exp(-torch.cdist(places, places) / length_px) if length_px else places.new_zeros(0, 0)
        self.precision: Float[Tensor, "M M"] = torch.linalg.inv(covariance).to(pixels.device)

    def weights(self, part: slice) -> Float[Tensor, "*images p M"]:
        """Return the interpolation weights of some of the pixels."""
        across, down = (weights[..., part, :] for weights in self._weights)
        return (down[..., :, None] * across[..., None, :]).flatten(-2)


def _nodes(side: int, spacing: float) -> Float[Tensor, " M"]:
    """Return node positions from 0 to the side of an image, both included."""
    return torch.linspace(0, side, 1 + max(1, math.ceil(side / spacing)), dtype=torch.float64)


def _linear_weights(
    positions: Float[Tensor, "*images P"], nodes: Float[Tensor, " M"]
) -> Float[Tensor, "*images P M"]:
    """Return the linear interpolation weights of positions between nodes."""
    if not len(nodes):
        return positions.new_zeros(*positions.shape, 0)
    step = nodes[1] - nodes[0]
    return functional.relu(1 - (positions[..., None] - nodes).abs() / step)
