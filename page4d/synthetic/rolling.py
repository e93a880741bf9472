"""Rolling shutters: the rows of an image are taken one after the other, each at its own instant and camera pose."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.synthetic.render import Rendered, render
from page4d.synthetic.rig import Rig
from page4d.synthetic.world import World


def render_rolling(
    world: World,
    rig: Rig,
    times: Float[Tensor, "B T"],
    image_size: tuple[int, int],
    readout_s: float,
    *,
    supersample: int = 1,
) -> Rendered:
    """Render images whose rows are taken evenly over `readout_s` seconds about `times`, from the top downwards.

    Depth, motion and object numbers of a row are those of its own instant, seen by the camera where it is then. The
    rig's cameras at `times` are right for the middle of the image only.
    """
    height, width = image_size
    rows = torch.arange(height, dtype=times.dtype, device=times.device)
    instants = (times[..., None] + ((rows + 0.5) / height - 0.5) * readout_s).flatten(1)
    whole = rig.cameras(instants, image_size)
    intrinsics = whole.intrinsics.clone()
    intrinsics[..., 1, 2] -= rows.repeat(times.shape[1])[:, None]
    cameras = Cameras(world_to_camera=whole.world_to_camera, intrinsics=intrinsics, image_size=(1, width))
    seen = render(world, cameras, instants, supersample=supersample)

    def whole_images(values: Tensor) -> Tensor:
        """Put the rows [B, T H, V, ..., 1, W] together."""
        split = values.reshape(len(times), times.shape[1], height, *values.shape[2:])
        return split.transpose(2, -2).squeeze(2)

    return Rendered(**{name: whole_images(value) for name, value in vars(seen).items()})
