"""A network with every part of the one that comes with page4d, as small as can be."""

from dataclasses import replace

import torch

from page4d.encoders.stem import StemConfig
from page4d.models.config import (
    PRESETS,
    CameraHeadConfig,
    DPTHeadConfig,
    MatchConfig,
    MotionHeadConfig,
)
from page4d.models.network import ViewTimeNetwork, build_network

DEMO_LIKE = replace(
    PRESETS["mv-demo"],
    encoder=StemConfig(image_size=32, embed_dim=16, fine_dim=8, depth=1, num_heads=2),
    num_heads=2,
    matches=MatchConfig(dim=8, hidden=8, fine_dim=8),
    camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=2),
    depth_head=DPTHeadConfig(layers=(0, 1, 2, 3), features=8, out_channels=(4, 4, 8, 8), hidden=8, fine_dim=8),
    motion_head=MotionHeadConfig(dim=8, compared=4, dilations=(1, 2), fine_dim=8),
)


def demo_like() -> ViewTimeNetwork:
    """Build it with the weights of one seed, nothing of it silent but the motion head."""
    torch.manual_seed(0)
    network = build_network(DEMO_LIKE)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not parameter.any() and not name.startswith("motion_head.out"):
                parameter.normal_(std=0.1)
    return network
