"""What is to be made of evidence along rays, learned: which depth is meant, and whom to believe."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.convolution import ResidualConvolution, silent_convolution
from page4d.models.head_config import ReadingConfig
from page4d.models.sizes import Grid

_EVIDENCE_SCALE = 5.0
"""Log-likelihoods that make inputs of about 1."""

_NUM_OTHERS = 4
"""Numbers of a patch beside evidence and token: mean correction, depth, confidence, and whether poses are known."""


@dataclass(frozen=True, kw_only=True)
class AlongRays:
    """What is known of the depth of the patches of images of one size.

    `evidence` is for each of K corrections, logarithms of factors that depth may be wrong by, and `share` how
    probable each is with what neighbours say; `mean` is their mean. Depth is in a unit of its scene.
    """

    evidence: Float[Tensor, "F P K"]
    share: Float[Tensor, "F P K"]
    mean: Float[Tensor, "F P"]
    log_depth: Float[Tensor, "F P"]
    log_confidence: Float[Tensor, "F P"]
    tokens: Float[Tensor, "F P C"]
    knows_poses: bool


class RayReading(nn.Module):
    """Convolutions over the patches of an image. The last layer starts at zero: an untrained one corrects nothing.

    Source: Sayed et al. (2022), SimpleRecon, section 3.1: two-dimensional convolutions over what a cost volume holds.
    """

    def __init__(self, config: ReadingConfig, dim: int, num_tried: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.tokens = nn.Linear(dim, config.token_dim)
        self.join = nn.Linear(2 * num_tried + config.token_dim + _NUM_OTHERS, config.dim)
        self.blocks = nn.ModuleList(ResidualConvolution(config.dim) for _ in range(config.depth))
        self.out = silent_convolution(config.dim, 1)

    def forward(self, rays: AlongRays, grid: Grid) -> Float[Tensor, "F P"]:
        """Return the logarithm of the factor by which each patch's depth is wrong."""
        kind = self.join.weight
        evidence = (rays.evidence - rays.evidence.mean(dim=-1, keepdim=True)) / _EVIDENCE_SCALE
        num_tried = evidence.shape[-1]
        others = [rays.mean, rays.log_depth, rays.log_confidence, torch.full_like(rays.mean, rays.knows_poses)]
        tokens = self.tokens(self.norm(rays.tokens.to(kind)))
        told = [evidence, rays.share * num_tried / _EVIDENCE_SCALE, torch.stack(others, dim=-1)]
        features = self.join(torch.cat([*(one.to(kind) for one in told), tokens], dim=-1))
        features = torch.unflatten(features.transpose(1, 2), 2, grid)
        for block in self.blocks:
            features = block(features)
        correction: Tensor = self.out(functional.gelu(features)).flatten(1)
        return correction
