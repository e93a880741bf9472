"""Errors that pixels of an image share with those around them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_SPACING = 1.0
"""Of the length over which errors are alike: what lies between nodes is interpolated."""


class SharedErrors:
    """Errors of pixels as a linear function of M nodes: a lattice over the image, interpolated between.

    Errors of nodes have a variance of 1 and correlate by exp(-distance / `length_px`); `precision` is the inverse of
    their covariance. There are no nodes if the length is 0.

    Source: Rasmussen & Williams (2006), "Gaussian Processes for Machine Learning", eq. 4.18 (the covariance); Wilson
    & Nickisch (2015), "Kernel Interpolation for Scalable Structured Gaussian Processes", section 4.
    """

    def __init__(self, pixels: Float[Tensor, "*images P 2"], image_size: tuple[int, int], length_px: float) -> None:
        spacing, (height, width) = _SPACING * length_px, image_size
        nodes = [_along(side, spacing) if length_px else pixels.new_zeros(0).double() for side in (width, height)]
        self._shares = [
            _shares(pixels[..., axis].double(), along.to(pixels.device)) for axis, along in enumerate(nodes)
        ]
        places = torch.stack(torch.meshgrid(*nodes, indexing="xy"), dim=-1).flatten(0, 1)
        covariance = torch.exp(-torch.cdist(places, places) / length_px) if length_px else places.new_zeros(0, 0)
        self.precision: Float[Tensor, "M M"] = torch.linalg.inv(covariance).to(pixels.device)

    def told(self, part: slice) -> Float[Tensor, "*images p M"]:
        """Return by how much errors of some of the pixels change with those of nodes."""
        across, down = (shares[..., part, :] for shares in self._shares)
        return (down[..., :, None] * across[..., None, :]).flatten(-2)


def _along(side: int, spacing: float) -> Float[Tensor, " M"]:
    """Return where nodes are between 0 and the side of an image, both of which have some."""
    return torch.linspace(0, side, 1 + max(1, math.ceil(side / spacing)), dtype=torch.float64)


def _shares(positions: Float[Tensor, "*images P"], nodes: Float[Tensor, " M"]) -> Float[Tensor, "*images P M"]:
    """Return the weights of nodes when values at positions are interpolated."""
    if not len(nodes):
        return positions.new_zeros(*positions.shape, 0)
    step = nodes[1] - nodes[0]
    return functional.relu(1 - (positions[..., None] - nodes).abs() / step)
