"""Exact scene flow, optical flow and visibility between two rendered frames."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.geometry.camera import Cameras, pixel_grid, project, world_points
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.synthetic.rays import RayPackets, cull, occluded
from page4d.synthetic.render import MAX_DEPTH
from page4d.synthetic.shade import SHADOW_GAP
from page4d.synthetic.world import Snapshots, World

_PACKET_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Flow from B source images to B target images.

    `scene` is the scene flow of each pixel in metres, `optical` the optical flow (x, y) in px. `visible` is True if
    the point projects into the target image, within `MAX_DEPTH` and unoccluded. In the sky, where depth is unknown,
    flow is 0 and `visible` False.
    """

    scene: Float[Tensor, "B H W 3"]
    optical: Float[Tensor, "B H W 2"]
    visible: Bool[Tensor, "B H W"]


def exact_flow(
    world: World,
    depth: Float[Tensor, "B H W"],
    objects: Int[Tensor, "B H W"],
    cameras: tuple[Cameras, Cameras],
    times: Float[Tensor, "B 2"],
) -> Flow:
    """Compute the flow from the first cameras [B] at the first times to the second ones, in the precision of `depth`.

    `depth` and `objects` are those that `render` returns for the source images.
    """
    poses = world.object_to_world(times)
    batch = torch.arange(len(depth), device=depth.device)[:, None, None]
    motion = (poses[:, 1] @ invert_rigid(poses[:, 0])).to(depth.dtype)[batch, objects]
    first, second = (one.to(depth.dtype) for one in cameras)
    points = world_points(depth, first)
    moved = (motion[..., :3, :3] @ points[..., None])[..., 0] + motion[..., :3, 3]
    pixels, target_depth = project(transform_points(second.world_to_camera, moved), second.intrinsics)
    known = depth > 0
    start = pixel_grid(*first.image_size, dtype=depth.dtype, device=depth.device)
    snapshots = Snapshots.of(world, times[:, 1:], depth.dtype)
    return Flow(
        scene=torch.where(known[..., None], moved - points, 0.0),
        optical=torch.where((known & (target_depth > 0))[..., None], pixels - start, 0.0),
        visible=known & visible_points(snapshots, second, moved),
    )


def visible_points(snapshots: Snapshots, cameras: Cameras, points: Float[Tensor, "B H W 3"]) -> Bool[Tensor, "B H W"]:
    """Return which points project into the image of their camera [B], within `MAX_DEPTH` and unoccluded."""
    pixels, depth = project(transform_points(cameras.world_to_camera, points), cameras.intrinsics)
    height, width = cameras.image_size
    inside = (
        (depth > 0)
        & (depth <= MAX_DEPTH)
        & (pixels >= 0).all(-1)
        & (pixels[..., 0] < width)
        & (pixels[..., 1] < height)
    )
    return inside & ~_occluded(snapshots, cameras.centers, points)


def _occluded(
    snapshots: Snapshots, centers: Float[Tensor, "B 3"], points: Float[Tensor, "B H W 3"]
) -> Bool[Tensor, "B H W"]:
    """Return which points are occluded as seen from the camera centre of their world."""
    rows = points.flatten(1, 2)
    count = rows.shape[1]
    rows = torch.cat([rows, rows[:, -1:].expand(-1, -count % _PACKET_SIZE, -1)], dim=1)
    ray = rows - centers[:, None]
    # Rays end slightly before their point, which avoids self-occlusion by its own surface.
    ray = ray * (1 - SHADOW_GAP / ray.norm(dim=-1, keepdim=True).clamp(min=2 * SHADOW_GAP))
    direction = ray.movedim(-1, 0).unflatten(2, (-1, _PACKET_SIZE))
    instant = torch.arange(len(points), device=points.device).repeat_interleave(direction.shape[2])
    packets = RayPackets(
        instant=instant, origin=centers.T.repeat_interleave(direction.shape[2], 1), direction=direction.flatten(1, 2)
    )
    hidden = occluded(snapshots, packets, cull(snapshots, packets, 1.0), 1.0)
    return hidden.reshape(len(points), -1)[:, :count].reshape(points.shape[:3])
