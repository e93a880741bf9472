"""Pinhole cameras: projection, unprojection, viewing rays, and intrinsics: resized, cropped, or fitted to points.

The pose encoding of the VGGT family is translation, quaternion (xyzw) and fields of view.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.conventions import PIXEL_CENTER
from page4d.errors import ShapeError
from page4d.geometry.rotation import matrix_from_quaternion, quaternion_from_matrix, wxyz_from_xyzw, xyzw_from_wxyz
from page4d.geometry.transforms import camera_centers, invert_rigid, rigid, transform_points

MIN_DEPTH = 1e-6
"""Points of a smaller z-depth, also those behind a camera, are projected as if they had this one."""


@dataclass(frozen=True, kw_only=True)
class Cameras:
    """Pinhole cameras that share one image size: `world_to_camera` [..., 4, 4] and `intrinsics` [..., 3, 3] in px.

    `image_size` is (height, width), the pixel grid that the intrinsics refer to.
    """

    world_to_camera: Float[Tensor, "*batch 4 4"]
    intrinsics: Float[Tensor, "*batch 3 3"]
    image_size: tuple[int, int]

    def __post_init__(self) -> None:
        if self.world_to_camera.shape[-2:] != (4, 4) or self.intrinsics.shape[-2:] != (3, 3):
            raise ShapeError(
                f"cameras of shapes {tuple(self.world_to_camera.shape)} and {tuple(self.intrinsics.shape)}",
                "pass world_to_camera [..., 4, 4] and intrinsics [..., 3, 3]",
            )
        if self.world_to_camera.shape[:-2] != self.intrinsics.shape[:-2]:
            raise ShapeError(
                f"batch axes {tuple(self.world_to_camera.shape[:-2])} and {tuple(self.intrinsics.shape[:-2])} differ",
                "pass one intrinsic matrix per camera",
            )

    @property
    def centers(self) -> Float[Tensor, "*batch 3"]:
        """Camera positions in the world."""
        return camera_centers(self.world_to_camera)

    @property
    def camera_to_world(self) -> Float[Tensor, "*batch 4 4"]:
        """Camera poses: the inverse of `world_to_camera`."""
        return invert_rigid(self.world_to_camera)

    def by_time(self, num_times: int) -> "Cameras":
        """Return cameras [B, T*V] as [B, T, V]."""
        return self.map(lambda matrices: torch.unflatten(matrices, 1, (num_times, -1)))

    def to(self, target: torch.dtype | torch.device | str) -> "Cameras":
        """Convert to a precision, or copy to a device."""
        return self.map(lambda matrices: matrices.to(target))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Cameras":
        """Apply a function to the poses and to the intrinsics."""
        return replace(self, world_to_camera=function(self.world_to_camera), intrinsics=function(self.intrinsics))

    def __getitem__(self, index: object) -> "Cameras":
        """Index the batch axes like a tensor."""
        return self.map(lambda matrices: matrices[index])  # type: ignore[index]


def pixel_grid(
    height: int,
    width: int,
    *,
    pixel_center: float = PIXEL_CENTER,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "H W 2"]:
    """Return the (x, y) coordinate of every pixel's centre."""
    x = torch.arange(width, dtype=dtype, device=device) + pixel_center
    y = torch.arange(height, dtype=dtype, device=device) + pixel_center
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def normalize_pixels(
    pixels: Float[Tensor, "*grid 2"], intrinsics: Float[Tensor, "*batch 3 3"]
) -> Float[Tensor, "*grid 2"]:
    """Convert pixel coordinates, including skew, to normalized image coordinates (x / z, y / z)."""
    matrix = intrinsics.reshape(*intrinsics.shape[:-2], *(1,) * (pixels.ndim - intrinsics.ndim + 1), 3, 3)
    y = (pixels[..., 1] - matrix[..., 1, 2]) / matrix[..., 1, 1]
    x = (pixels[..., 0] - matrix[..., 0, 2] - matrix[..., 0, 1] * y) / matrix[..., 0, 0]
    return torch.stack([x, y], dim=-1)


def denormalize_pixels(
    plane: Float[Tensor, "*grid 2"], intrinsics: Float[Tensor, "*batch 3 3"]
) -> Float[Tensor, "*grid 2"]:
    """Convert normalized image coordinates to pixel coordinates; the inverse of `normalize_pixels`."""
    matrix = intrinsics.reshape(*intrinsics.shape[:-2], *(1,) * (plane.ndim - intrinsics.ndim + 1), 3, 3)
    x = matrix[..., 0, 0] * plane[..., 0] + matrix[..., 0, 1] * plane[..., 1] + matrix[..., 0, 2]
    y = matrix[..., 1, 1] * plane[..., 1] + matrix[..., 1, 2]
    return torch.stack([x, y], dim=-1)


def project(
    points: Float[Tensor, "*grid 3"], intrinsics: Float[Tensor, "*batch 3 3"]
) -> tuple[Float[Tensor, "*grid 2"], Float[Tensor, "*grid"]]:
    """Project points of the camera frame to pixels; return the pixels and the z-depths.

    Points in or behind the camera plane have a depth of at most 0 and invalid pixels: mask by `depth > 0`.

    Source: Hartley & Zisserman (2004), eq. 6.10.
    """
    depth = points[..., 2]
    return denormalize_pixels(points[..., :2] / depth[..., None], intrinsics), depth


def has_depth(depth: Float[Tensor, "*batch"]) -> Bool[Tensor, "*batch"]:
    """Return where a depth is finite and positive."""
    known: Tensor = depth.isfinite() & (depth > 0)
    return known


def unproject(
    depth: Float[Tensor, "*batch H W"], intrinsics: Float[Tensor, "*batch 3 3"], pixel_center: float = PIXEL_CENTER
) -> Float[Tensor, "*batch H W 3"]:
    """Unproject a z-depth map to points in the camera frame (x right, y down, z forward).

    Points have the unit of `depth`. Depth 0 yields the camera centre: mask by `depth > 0`.

    Raises:
        ShapeError: if the batch axes of `depth` and `intrinsics` differ.

    Source: Hartley & Zisserman (2004), eq. 6.10.
    """
    if depth.shape[:-2] != intrinsics.shape[:-2]:
        raise ShapeError(
            f"depth has batch axes {tuple(depth.shape[:-2])}, intrinsics {tuple(intrinsics.shape[:-2])}",
            "pass one intrinsic matrix per depth map",
        )
    return camera_rays(intrinsics, depth.shape[-2:], pixel_center) * depth[..., None]


def camera_rays(
    intrinsics: Float[Tensor, "*batch 3 3"], image_size: tuple[int, ...], pixel_center: float = PIXEL_CENTER
) -> Float[Tensor, "*batch H W 3"]:
    """Return the viewing ray of every pixel in the camera frame, scaled to z = 1.

    `image_size` is (height, width). The product of a ray and a z-depth is the point.
    """
    column, row = (
        torch.arange(side, dtype=intrinsics.dtype, device=intrinsics.device) + pixel_center
        for side in reversed(image_size)
    )
    matrix = intrinsics[..., None, None, :, :]
    y = (row[:, None] - matrix[..., 1, 2]) / matrix[..., 1, 1]
    rays = torch.ones(*intrinsics.shape[:-2], *image_size, 3, dtype=intrinsics.dtype, device=intrinsics.device)
    rays[..., 0] = (column - matrix[..., 0, 2] - matrix[..., 0, 1] * y) / matrix[..., 0, 0]
    rays[..., 1] = y
    return rays


def world_points(
    depth: Float[Tensor, "*batch H W"], cameras: Cameras, pixel_center: float = PIXEL_CENTER
) -> Float[Tensor, "*batch H W 3"]:
    """Unproject z-depth maps to points in the world."""
    return transform_points(cameras.camera_to_world, unproject(depth, cameras.intrinsics, pixel_center))


def resize_intrinsics(
    intrinsics: Float[Tensor, "*batch 3 3"], scale_x: float, scale_y: float
) -> Float[Tensor, "*batch 3 3"]:
    """Return the intrinsics of the image resized by the given factors (pixel centres at 0.5)."""
    return intrinsics.new_tensor([[scale_x], [scale_y], [1.0]]) * intrinsics


def crop_intrinsics(intrinsics: Float[Tensor, "*batch 3 3"], left: float, top: float) -> Float[Tensor, "*batch 3 3"]:
    """Return the intrinsics of the image cropped by `left` columns and `top` rows; negative values pad."""
    shift = torch.zeros_like(intrinsics)
    shift[..., 0, 2] = left
    shift[..., 1, 2] = top
    return intrinsics - shift


def move_pixel_center(
    intrinsics: Float[Tensor, "*batch 3 3"], source: float, target: float = PIXEL_CENTER
) -> Float[Tensor, "*batch 3 3"]:
    """Convert intrinsics between two coordinates of the top-left pixel's centre, `source` and `target`."""
    return crop_intrinsics(intrinsics, source - target, source - target)


def fit_intrinsics(
    local_points: Float[Tensor, "*batch H W 3"], weights: Float[Tensor, "*batch H W"] | None = None
) -> Float[Tensor, "*batch 3 3"]:
    """Fit focal lengths by weighted least squares of reprojection errors; the principal point is the image centre.

    Points are in the camera frame, one per pixel. A focal length that is not positive, as of an untrained network,
    falls back to the longer image side.
    """
    height, width = local_points.shape[-3:-1]
    depth = local_points[..., 2].clamp(min=MIN_DEPTH)
    weights = torch.ones_like(depth) if weights is None else weights

    def mean(values: Tensor) -> Tensor:
        return (weights * values).sum((-2, -1)) / weights.sum((-2, -1))

    columns, rows = pixel_grid(height, width, dtype=depth.dtype, device=depth.device).unbind(-1)
    intrinsics = depth.new_zeros(*depth.shape[:-2], 3, 3)
    intrinsics[..., 2, 2] = 1
    for axis, pixels, size in ((0, columns, width), (1, rows, height)):
        plane = local_points[..., axis] / depth
        slope = mean(plane * (pixels - size / 2)) / mean(plane.square())
        intrinsics[..., axis, axis] = torch.where((slope > 0) & slope.isfinite(), slope, max(height, width))
        intrinsics[..., axis, 2] = size / 2
    return intrinsics


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
