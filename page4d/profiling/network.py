"""Profile of a network at any size, from a run on the meta device."""

import torch
from torch import Tensor

from page4d.encoders.stem import StemConfig
from page4d.errors import UsageError
from page4d.layers.embed import patch_grid
from page4d.layers.execution import NO_LIMITS, ForwardLimits
from page4d.models.conditioning import Conditioning
from page4d.models.config import FullAttention, NetworkConfig, SparseStrategy
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.sparse import cell_counts, dilated_neighbours
from page4d.profiling.meta_run import meta_run, on_meta_device
from page4d.profiling.network_stages import network_stages
from page4d.profiling.table import Profile, ProfileBuilder


def profile_network(
    config: NetworkConfig,
    *,
    times: int,
    views: int,
    size: tuple[int, int],
    batch: int = 1,
    limits: ForwardLimits = NO_LIMITS,
) -> Profile:
    """Run a network of this configuration on the meta device.

    All parts run: gates are open, and cameras, keypoints and masks are given to networks that use them, except a mask
    that would replace the motion head. A network that treats all images as views of one instant has T = 1.

    Raises:
        ShapeError: if the sides of `size` (height, width) are not multiples of the patch size.
        UsageError: if there are no images.
    """
    if min(times, views, batch) < 1:
        raise UsageError(f"{batch} x {times} x {views} images", "give at least one time, one view and a batch of one")
    grid = patch_grid(*size, config.patch_size)
    with on_meta_device():
        network = build_network(config).eval().requires_grad_(False)
    with meta_run(network) as run:
        images = torch.empty(batch, times, views, 3, *size)
        takes_mask = config.mask is not None and config.motion_head is None
        mask = torch.empty(batch, times, views, *size) if takes_mask else None
        network(images, mask, conditioning=_conditioning(config, images, grid), limits=limits)
    joint = config.full_attention is FullAttention.ALWAYS
    if joint or (config.full_attention is FullAttention.ONE_VIEW and views == 1):
        times, views = 1, times * views
    symbols = _symbols(network, (batch, times, views), grid)
    builder = ProfileBuilder(network=network, run=run, symbols=symbols)
    return builder.profile(network_stages(builder))


def _conditioning(config: NetworkConfig, images: Tensor, grid: tuple[int, int]) -> Conditioning:
    """Return all conditioning inputs of the network."""
    leading = images.shape[:3]
    cameras = config.known_cameras or config.epipolar is not None
    return Conditioning(
        keypoints=None if config.sparse is None else images.new_empty(*leading, *grid),
        intrinsics=images.new_empty(*leading, 3, 3) if cameras else None,
        world_to_camera=images.new_empty(*leading, 4, 4) if cameras else None,
    )


def _symbols(network: ViewTimeNetwork, leading: tuple[int, int, int], grid: tuple[int, int]) -> dict[str, int]:
    config, special = network.config, network.aggregator.special
    patches, width = grid[0] * grid[1], config.encoder.embed_dim
    symbols = {
        **dict(zip("BTV", leading, strict=True)),
        "H": grid[0] * config.patch_size,
        "W": grid[1] * config.patch_size,
        "gh": grid[0],
        "gw": grid[1],
        "P": patches,
        "R": special.register_token.shape[2],
        "N": special.count + patches,
        "C": width,
        "h": config.num_heads,
        "d": width // config.num_heads,
    }
    if isinstance(config.encoder, StemConfig):
        symbols["F"] = config.encoder.fine_dim
    if config.matches is not None:
        symbols["G"] = len(config.matches.targets)
        symbols["Q"] = patches * config.matches.finer**2
    if config.sparse is not None:
        if config.sparse.strategy is SparseStrategy.LANDMARK:
            rows, columns = cell_counts(grid, config.sparse.landmarks)
            symbols["L"] = special.count + rows * columns
        elif config.sparse.strategy is SparseStrategy.DILATED:
            symbols["E"] = max(map(len, dilated_neighbours(*leading[1:], config.sparse.dilations)))
        else:
            symbols["M"] = config.sparse.memory_tokens
    return symbols
