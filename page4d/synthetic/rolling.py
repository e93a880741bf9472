"""Rolling shutter: every image row is exposed at its own instant, with the camera pose of that instant."""

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
    """Render images whose rows are read out from top to bottom over `readout_s` seconds, centred on `times`.

    Depth, motion and object indices of a row are those of its own instant and camera pose. The rig's cameras at
    `times` are exact for the middle row only.
    """
    height, width = image_size
    rows = torch.arange(height, dtype=times.dtype, device=times.device)
    instants = (times[..., None] + ((rows + 0.5) / height - 0.5) * readout_s).flatten(1)
    whole = rig.cameras(instants, image_size)
    intrinsics = whole.intrinsics.clone()
    intrinsics[..., 1, 2] -= rows.repeat(times.shape[1])[:, None]
    cameras = Cameras(world_to_camera=whole.world_to_camera, intrinsics=intrinsics, image_size=(1, width))
    rendered = render(world, cameras, instants, supersample=supersample)

    def join_rows(values: Tensor) -> Tensor:
        """Join the rows [B, T H, V, ..., 1, W] to images."""
        split = values.reshape(len(times), times.shape[1], height, *values.shape[2:])
        return split.transpose(2, -2).squeeze(2)

    return Rendered(**{name: join_rows(value) for name, value in vars(rendered).items()})
