"""Pose encoding of the VGGT family: translation, quaternion (xyzw) and fields of view."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import rigid
from page4d.geometry.rotation import matrix_from_quaternion, quaternion_from_matrix, wxyz_from_xyzw, xyzw_from_wxyz

POSE_DIM = 9


def encode_pose(cameras: Cameras) -> Float[Tensor, "*batch 9"]:
    """Encode cameras as [translation of world_to_camera, quaternion xyzw, vertical and horizontal field of view].

    Fields of view are in radians. The principal point is not encoded.

    Source: "absT_quaR_FoV" of the public VGGT code (reference facts, July 2025).
    """
    height, width = cameras.image_size
    quaternion = xyzw_from_wxyz(quaternion_from_matrix(cameras.world_to_camera[..., :3, :3]))
    field_of_view = torch.stack(
        [
            2 * torch.atan(height / 2 / cameras.intrinsics[..., 1, 1]),
            2 * torch.atan(width / 2 / cameras.intrinsics[..., 0, 0]),
        ],
        dim=-1,
    )
    return torch.cat([cameras.world_to_camera[..., :3, 3], quaternion, field_of_view], dim=-1)


def decode_pose(
    encoding: Float[Tensor, "*batch 9"], image_size: tuple[int, int], min_tangent: float | None = None
) -> Cameras:
    """Decode cameras whose principal point is the centre of an image of (height, width).

    The quaternion may have any non-zero length. A field of view of 0 gives an infinite focal length,
    unless the tangent of half the field of view is bounded from below by `min_tangent`.

    Source: "absT_quaR_FoV" of the public VGGT code (reference facts, July 2025).
    """
    height, width = image_size
    tangents = torch.tan(encoding[..., 7:] / 2)
    if min_tangent is not None:
        tangents = tangents.clamp(min=min_tangent)
    rotation = matrix_from_quaternion(wxyz_from_xyzw(encoding[..., 3:7]))
    intrinsics = encoding.new_zeros(*encoding.shape[:-1], 3, 3)
    intrinsics[..., 0, 0] = width / 2 / tangents[..., 1]
    intrinsics[..., 1, 1] = height / 2 / tangents[..., 0]
    intrinsics[..., 0, 2] = width / 2
    intrinsics[..., 1, 2] = height / 2
    intrinsics[..., 2, 2] = 1
    return Cameras(world_to_camera=rigid(rotation, encoding[..., :3]), intrinsics=intrinsics, image_size=image_size)
