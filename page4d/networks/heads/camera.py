"""Camera heads: pose encodings from the camera tokens, with or without iterations, or of each image separately."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import POSE_DIM
from page4d.geometry.rotation import matrix_from_quaternion, wxyz_from_xyzw
from page4d.networks.config_parts import CameraHeadConfig, CameraTransformerConfig
from page4d.networks.layers.block import Block, BlockConfig, FeedForward, initialise_linears

_MODULATION_EPS = 1e-6
INITIAL_ENCODING = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
"""Output of an untrained head after the last iteration: identity pose and fields of view of 1 rad."""


class CameraHead(nn.Module):
    """Refine pose encodings iteratively by blocks that attend across images, modulated by the current encoding.

    Source: the camera head of Wang et al. (2025), VGGT; adaptive norms of Peebles & Xie (2023).
    """

    min_tangent = None

    def __init__(self, config: CameraHeadConfig, dim: int) -> None:
        super().__init__()
        self.num_iterations = config.num_iterations
        block = BlockConfig.of(config, dim)
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


class CameraMLP(nn.Module):
    """Decode the first special token of every image into translation, quaternion and fields of view.

    The layers predict the camera-to-world pose. Returned encodings are of its inverse, like those of other camera
    heads.

    Source: the camera decoder of the public Depth Anything 3 code (reference facts).
    """

    min_tangent = 1e-6
    """Bound of the tangents of half fields of view: focal lengths are finite."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(dim, dim)
        self.hidden2 = nn.Linear(dim, dim)
        self.translation = nn.Linear(dim, 3)
        self.quaternion = nn.Linear(dim, 4)
        self.field_of_view = nn.Linear(dim, 2)
        initialise_linears(self)
        with torch.no_grad():  # an untrained head predicts the identity pose and fields of view of 1 rad
            self.quaternion.bias[3] = 1
            self.field_of_view.bias.fill_(1)

    def forward(self, special_tokens: Float[Tensor, "B S N C"]) -> tuple[Float[Tensor, "B S 9"], ...]:
        """Return the pose encodings of the world-to-camera poses, as the only iteration."""
        encoding = self.camera_to_world(special_tokens)
        translation, quaternion, fields = encoding[..., :3], encoding[..., 3:7], encoding[..., 7:]
        rotation = matrix_from_quaternion(wxyz_from_xyzw(quaternion))
        inverse = -(rotation.transpose(-1, -2) @ translation[..., None])[..., 0]
        conjugate = torch.cat([-quaternion[..., :3], quaternion[..., 3:]], dim=-1)
        return (torch.cat([inverse, conjugate, fields], dim=-1),)

    def camera_to_world(self, special_tokens: Float[Tensor, "B S N C"]) -> Float[Tensor, "B S 9"]:
        """Return the pose encodings of the camera-to-world poses; quaternions may have any length."""
        hidden = functional.relu(self.hidden2(functional.relu(self.hidden1(special_tokens[:, :, 0]))))
        fields = functional.relu(self.field_of_view(hidden))
        return torch.cat([self.translation(hidden), self.quaternion(hidden), fields], dim=-1)


_MIN_FIELD_OF_VIEW = 0.01
"""Added to the fields of view, in radians."""


class CameraTransformer(nn.Module):
    """Attention blocks across the special tokens of all images, and a pose encoding from each camera token.

    Source: the camera head of the public VGGT-Omega code (reference facts).
    """

    min_tangent = None

    def __init__(self, config: CameraTransformerConfig, dim: int) -> None:
        super().__init__()
        block = BlockConfig.of(config, dim)
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
