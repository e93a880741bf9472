"""Iterative camera head: pose encodings from the camera tokens of all images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import POSE_DIM, Cameras, decode_pose
from page4d.layers.block import Block, BlockConfig, FeedForward, initialise_linears
from page4d.models.config import CameraHeadConfig

_MODULATION_EPS = 1e-6
INITIAL_ENCODING = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
"""Output of an untrained head after the last iteration: identity pose and fields of view of 1 rad."""


class CameraHead(nn.Module):
    """Refine pose encodings iteratively by blocks that attend across images, modulated by the current encoding.

    Source: the camera head of Wang et al. (2025), VGGT; adaptive norms of Peebles & Xie (2023).
    """

    def __init__(self, config: CameraHeadConfig, dim: int) -> None:
        super().__init__()
        self.num_iterations = config.num_iterations
        block = BlockConfig(
            dim=dim,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_ratio,
            norm_eps=config.norm_eps,
            layer_scale=config.layer_scale,
        )
        self.token_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.empty_pose = nn.Parameter(torch.zeros(1, 1, POSE_DIM))
        self.embed_pose = nn.Linear(POSE_DIM, dim)
        self.modulation = nn.Linear(dim, 3 * dim)
        self.modulated_norm = nn.LayerNorm(dim, eps=_MODULATION_EPS, elementwise_affine=False)
        self.trunk = nn.ModuleList(Block(block) for _ in range(config.trunk_depth))
        self.trunk_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.pose_branch = FeedForward(dim, dim // 2, POSE_DIM)
        initialise_linears(self)
        with torch.no_grad():
            self.pose_branch.fc2.bias.copy_(torch.tensor(INITIAL_ENCODING) / self.num_iterations)

    def forward(self, special_tokens: Float[Tensor, "B S N C"]) -> tuple[Float[Tensor, "B S 9"], ...]:
        """Return the encoding after every iteration, from the first token of every image; the last is the result.

        Returned fields of view are clipped at 0; the iteration continues from unclipped ones.
        """
        tokens = self.token_norm(special_tokens[:, :, 0])
        pose = self.empty_pose.expand(*tokens.shape[:2], -1)
        encodings = []
        for iteration in range(self.num_iterations):
            shift, scale, gate = self.modulation(functional.silu(self.embed_pose(pose))).chunk(3, dim=-1)
            state = tokens + gate * (self.modulated_norm(tokens) * (1 + scale) + shift)
            for block in self.trunk:
                state = block(state)
            change = self.pose_branch(self.trunk_norm(state))
            pose = change if iteration == 0 else pose + change
            encodings.append(torch.cat([pose[..., :7], functional.relu(pose[..., 7:])], dim=-1))
        return tuple(encodings)

    def decode(self, encoding: Float[Tensor, "*batch 9"], image_size: tuple[int, int]) -> Cameras:
        """Return the cameras of pose encodings for images of (height, width)."""
        return decode_pose(encoding, image_size)
