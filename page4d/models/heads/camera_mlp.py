"""A camera head that decodes the camera token of each image separately."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import Cameras, decode_pose
from page4d.geometry.rotation import matrix_from_quaternion, wxyz_from_xyzw
from page4d.layers.block import initialise_linears

_MIN_TANGENT = 1e-6


class CameraMLP(nn.Module):
    """Decode the first special token of every image into translation, quaternion and fields of view.

    The layers predict the camera-to-world pose. Returned encodings are of its inverse, like those of other camera
    heads.

    Source: the camera decoder of the public Depth Anything 3 code (reference facts).
    """

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

    def decode(self, encoding: Float[Tensor, "*batch 9"], image_size: tuple[int, int]) -> Cameras:
        """Return the cameras of pose encodings for images of (height, width).

        Tangents of half fields of view are at least 1e-6: focal lengths are finite.
        """
        return decode_pose(encoding, image_size, min_tangent=_MIN_TANGENT)
