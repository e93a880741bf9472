"""Camera head without iterations: pose encodings from the special tokens of all images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import POSE_DIM, Cameras, decode_pose
from page4d.layers.block import Block, BlockConfig, FeedForward, initialise_linears
from page4d.models.config import CameraTransformerConfig
from page4d.models.heads.camera import INITIAL_ENCODING

_MIN_FIELD_OF_VIEW = 0.01
"""Added to the fields of view, in radians."""


class CameraTransformer(nn.Module):
    """Attention blocks across the special tokens of all images, and a pose encoding from each camera token.

    Source: the camera head of the public VGGT-Omega code (reference facts).
    """

    def __init__(self, config: CameraTransformerConfig, dim: int) -> None:
        super().__init__()
        block = BlockConfig(
            dim=dim,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_ratio,
            norm_eps=config.norm_eps,
            layer_scale=config.layer_scale,
        )
        self.token_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.trunk = nn.ModuleList(Block(block) for _ in range(config.depth))
        self.trunk_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.pose_branch = FeedForward(dim, dim // 2, POSE_DIM)
        initialise_linears(self)
        with torch.no_grad():
            self.pose_branch.fc2.bias.copy_(torch.tensor(INITIAL_ENCODING))

    def forward(self, special_tokens: Float[Tensor, "B S N C"]) -> tuple[Float[Tensor, "B S 9"], ...]:
        """Return one encoding per image; fields of view are at least 0.01 rad."""
        state = self.token_norm(special_tokens).flatten(1, 2)
        for block in self.trunk:
            state = block(state)
        camera_tokens = torch.unflatten(state, 1, special_tokens.shape[1:3])[:, :, 0]
        pose = self.pose_branch(self.trunk_norm(camera_tokens))
        return (torch.cat([pose[..., :7], functional.relu(pose[..., 7:]) + _MIN_FIELD_OF_VIEW], dim=-1),)

    def decode(self, encoding: Float[Tensor, "*batch 9"], image_size: tuple[int, int]) -> Cameras:
        """Return the cameras of pose encodings for images of (height, width)."""
        return decode_pose(encoding, image_size)
