"""Camera encoder: known cameras as an input, as one token per image in place of the learned camera token."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.geometry.camera import POSE_DIM, Cameras, encode_pose
from page4d.geometry.transforms import camera_centers, invert_rigid
from page4d.layers.block import Block, BlockConfig, FeedForward, initialise_linears
from page4d.layers.execution import full_precision
from page4d.models.config import CameraEncoderConfig
from page4d.models.size_groups import SizeGroups

_MIN_UNIT = 0.1


class CameraEncoder(nn.Module):
    """Encode the poses and fields of view of all images by blocks that attend across images.

    Source: the camera encoder of the public Depth Anything 3 code (reference facts).
    """

    def __init__(self, config: CameraEncoderConfig, dim: int) -> None:
        super().__init__()
        block = BlockConfig(
            dim=dim,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_ratio,
            norm_eps=config.norm_eps,
            layer_scale=config.layer_scale,
        )
        self.pose_branch = FeedForward(POSE_DIM, dim // 2, dim)
        self.token_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.blocks = nn.ModuleList(Block(block) for _ in range(config.depth))
        self.trunk_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        initialise_linears(self)

    def forward(
        self,
        world_to_camera: Float[Tensor, "B T V 4 4"],
        intrinsics: Float[Tensor, "B T V 3 3"],
        sizes: SizeGroups,
        patch_size: int,
    ) -> Float[Tensor, "B T V C"]:
        """Return a token per image, in full precision; intrinsics are in pixels of each view's own image."""
        with full_precision(world_to_camera.device):
            encoding = camera_encodings(scale_cameras(world_to_camera), intrinsics, sizes, patch_size)
            tokens = self.token_norm(self.pose_branch(encoding.flatten(1, 2).to(self.trunk_norm.weight)))
            for block in self.blocks:
                tokens = block(tokens)
            return torch.unflatten(self.trunk_norm(tokens), 1, encoding.shape[1:3])


def scale_cameras(world_to_camera: Float[Tensor, "B T V 4 4"]) -> Float[Tensor, "B T V 4 4"]:
    """Return the poses relative to the first image, in units of the median distance of the cameras from it.

    The median is the lower one of all images of the batch, the first ones included, and at least 0.1: also for a
    single image, or for cameras at one place, the result is finite. All scenes of a batch have the same unit.

    Source: the input preparation of the public Depth Anything 3 code (reference facts).
    """
    relative = world_to_camera @ invert_rigid(world_to_camera[:, :1, :1])
    distances = camera_centers(relative).norm(dim=-1)
    unit = distances.median().clamp(min=_MIN_UNIT)
    scaled = relative[..., :3, 3] / unit
    return torch.cat([torch.cat([relative[..., :3, :3], scaled[..., None]], dim=-1), relative[..., 3:, :]], dim=-2)


def camera_encodings(
    world_to_camera: Float[Tensor, "B T V 4 4"],
    intrinsics: Float[Tensor, "B T V 3 3"],
    sizes: SizeGroups,
    patch_size: int,
) -> Float[Tensor, "B T V 9"]:
    """Return the pose encodings of the camera-to-world poses (see `geometry.pose_encoding`)."""
    camera_to_world = sizes.chosen(invert_rigid(world_to_camera))
    groups = zip(camera_to_world, sizes.chosen(intrinsics.to(world_to_camera)), sizes.grids, strict=True)
    encodings: Sequence[Tensor] = [
        encode_pose(
            Cameras(
                world_to_camera=poses,  # the encoding is of the inverse pose
                intrinsics=own,
                image_size=(grid[0] * patch_size, grid[1] * patch_size),
            )
        )
        for poses, own, grid in groups
    ]
    return sizes.stacked(encodings)
