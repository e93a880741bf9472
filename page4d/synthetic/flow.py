"""Where the points that one camera sees are at another instant, and where another camera then sees them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.geometry.camera import Cameras, pixel_grid, project, world_points
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.synthetic.rays import Bundles, blocked, reachable
from page4d.synthetic.render import FARTHEST
from page4d.synthetic.shade import SHADOW_GAP
from page4d.synthetic.world import Instants, World

_RAYS = 64


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Motion of everything that B images show, to other images.

    `scene` is the way of each point through the world in metres, `optical` that of its picture in px (x, y), to the
    target camera's image. `visible` is True where the target shows the point: inside its image, nearer than the sky,
    nothing before it.
    Where depth is not known, in the sky, flow is 0 and nothing is visible.
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
    """Follow what is seen with `depth` and `objects` by the first cameras [B] at the first times to the second ones.

    Everything is computed in the precision of `depth`.
    """
    poses = world.object_to_world(times)
    batch = torch.arange(len(depth), device=depth.device)[:, None, None]
    motion = (poses[:, 1] @ invert_rigid(poses[:, 0])).to(depth.dtype)[batch, objects]
    first, second = (_as(one, depth.dtype) for one in cameras)
    points = world_points(depth, first)
    moved = (motion[..., :3, :3] @ points[..., None])[..., 0] + motion[..., :3, 3]
    pixels, far = project(transform_points(second.world_to_camera, moved), second.intrinsics)
    height, width = second.image_size
    inside = (
        (far > 0) & (far <= FARTHEST) & (pixels >= 0).all(-1) & (pixels[..., 0] < width) & (pixels[..., 1] < height)
    )
    known = depth > 0
    start = pixel_grid(*first.image_size, dtype=depth.dtype, device=depth.device)
    frozen = Instants.of(world, times[:, 1:], depth.dtype)
    return Flow(
        scene=torch.where(known[..., None], moved - points, 0.0),
        optical=torch.where((known & (far > 0))[..., None], pixels - start, 0.0),
        visible=known & inside & ~_hidden(frozen, second.centers, moved),
    )


def _hidden(
    frozen: Instants, centers: Float[Tensor, "B 3"], points: Float[Tensor, "B H W 3"]
) -> Bool[Tensor, "B H W"]:
    """Return which points something hides from a camera of their world."""
    rows = points.flatten(1, 2)
    count = rows.shape[1]
    rows = torch.cat([rows, rows[:, -1:].expand(-1, -count % _RAYS, -1)], dim=1)
    ray = rows - centers[:, None]
    # Rays end a little before their point, so that its own surface does not hide it.
    ray = ray * (1 - SHADOW_GAP / ray.norm(dim=-1, keepdim=True).clamp(min=2 * SHADOW_GAP))
    direction = ray.movedim(-1, 0).unflatten(2, (-1, _RAYS))
    instant = torch.arange(len(points), device=points.device).repeat_interleave(direction.shape[2])
    bundles = Bundles(
        instant=instant, origin=centers.T.repeat_interleave(direction.shape[2], 1), direction=direction.flatten(1, 2)
    )
    dark = blocked(frozen, bundles, reachable(frozen, bundles, 1.0), 1.0)
    return dark.reshape(len(points), -1)[:, :count].reshape(points.shape[:3])


def _as(cameras: Cameras, dtype: torch.dtype) -> Cameras:
    return Cameras(
        world_to_camera=cameras.world_to_camera.to(dtype),
        intrinsics=cameras.intrinsics.to(dtype),
        image_size=cameras.image_size,
    )
