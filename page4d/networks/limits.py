"""Default limits of a forward pass, from the size of the network and the memory of its device."""

from collections.abc import Iterable
from functools import cache

import torch

from page4d.io.machine import total_memory
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.stem import StemConfig
from page4d.networks.layers.block import patch_grid
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits

_SHARE = {"cuda": 1 / 16, "cpu": 1 / 64}
"""Share of the memory of a device for what a layer allocates at once; a GPU needs large kernels to be busy."""

MAX_CPU_BYTES = 256_000_000
"""What a layer allocates at once on a CPU with 16 GB or more: larger parts are no faster."""

_FLOAT_BYTES = 4
_MIN_QUERIES = 256


def default_limits(config: NetworkConfig, sizes: Iterable[tuple[int, int]], device: torch.device) -> ForwardLimits:
    """Return limits under which a layer allocates a small part of the memory of a device at once.

    `sizes` are the (height, width) of images in pixels. They depend on the memory of the device, not on what is free,
    so that a run can be repeated. None on the meta device.
    """
    if device.type == "meta":
        return NO_LIMITS
    share = _SHARE.get(device.type, _SHARE["cpu"]) * device_bytes(device)
    return limits_within(config, sizes, share if device.type == "cuda" else min(share, MAX_CPU_BYTES))


def limits_within(config: NetworkConfig, sizes: Iterable[tuple[int, int]], num_bytes: float) -> ForwardLimits:
    """Return limits under which a layer allocates about `num_bytes` at once, or what one image or sequence needs.

    Counted are the activations of a block (queries, keys, values, attention, both layers of the MLP) and of the last
    convolutions of dense heads, in float32.
    """
    width, ratio = config.encoder.embed_dim, config.mlp_ratio
    token_bytes = _FLOAT_BYTES * width * (4 + 2 * ratio)
    pixel_bytes = _FLOAT_BYTES * _channels(config)
    largest = max(height * width for height, width in sizes)
    tokens = max(rows * columns for rows, columns in (patch_grid(*size, config.patch_size) for size in sizes))
    image_bytes = max(tokens * token_bytes, largest * pixel_bytes)
    limits = ForwardLimits(
        max_images=max(1, int(num_bytes / image_bytes)),
        max_tokens=max(1, int(num_bytes / token_bytes)),
        max_queries=max(_MIN_QUERIES, int(num_bytes / token_bytes)),
    )
    if config.metric_network is None:
        return limits
    metric = limits_within(config.metric_network, sizes, num_bytes)
    return ForwardLimits(**{name: min(value, getattr(metric, name)) for name, value in vars(limits).items()})


@cache
def device_bytes(device: torch.device) -> int:
    """Return the memory of a GPU, or of the machine or the container of this process."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return total_memory()


def _channels(config: NetworkConfig) -> float:
    """Return the most channels per pixel that the maps of a dense head, or a fine feature map, have at once."""
    found = [3 * config.encoder.fine_dim / 4] if isinstance(config.encoder, StemConfig) else [3.0]
    found += [
        (3 * head.features / 2 + 2 * head.hidden) / (4 if head.fine_dim else 1)
        for head in (config.depth_head, config.point_head)
        if head is not None
    ]
    if config.frame_head is not None and config.frame_head.conv is not None:
        found.append(2 * config.frame_head.conv.widths[-1] + 2 * config.frame_head.conv.hidden)
    if config.motion_head is not None:
        found.append(config.motion_head.dim)  # four maps of half the size
    return max(found)
