"""Small networks with randomized parameters, and the parameters that no gradient reaches."""

from dataclasses import replace

import torch

from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import (
    CameraEncoderConfig,
    CameraHeadConfig,
    CameraTransformerConfig,
    ConvHeadConfig,
    DPTHeadConfig,
    FrameHeadConfig,
    KnownGeometryConfig,
    MaskConfig,
    MatchConfig,
    MetricHeadConfig,
    MotionHeadConfig,
)
from page4d.networks.encoders.dino import DinoV3Config
from page4d.networks.encoders.stem import StemConfig
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS

DEMO_LIKE = replace(
    PRESETS["mv-demo"],
    encoder=StemConfig(image_size=32, embed_dim=16, fine_dim=8, depth=1, num_heads=2),
    num_heads=2,
    matches=MatchConfig(dim=8, hidden=8, fine_dim=8),
    camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=2),
    depth_head=DPTHeadConfig(layers=(0, 1, 2, 3), features=8, out_channels=(4, 4, 8, 8), hidden=8, fine_dim=8),
    motion_head=MotionHeadConfig(dim=8, compared=4, dilations=(1, 2), fine_dim=8),
)
"""All parts of the bundled network, at minimum width."""

EXPLICIT_INPUTS = NetworkConfig(
    encoder=DEMO_LIKE.encoder,
    depth=4,
    num_heads=2,
    mask=MaskConfig(layers=(2, 3), teaches_trunk=True),
    matches=DEMO_LIKE.matches,
    known_cameras=True,
    ray_head=True,
    camera_head=DEMO_LIKE.camera_head,
    depth_head=DEMO_LIKE.depth_head,
    point_head=DEMO_LIKE.depth_head,
)
"""Matches, rays and known cameras as inputs, with two streams and all VGGT heads."""

SMALL_PI3X = replace(
    PRESETS["pi3x"],
    encoder=PRESETS["mv-tiny"].encoder,
    depth=4,
    num_heads=2,
    known_geometry=KnownGeometryConfig(
        depth_encoder=replace(PRESETS["mv-tiny"].encoder, in_channels=2), pose_layers=(0, 2), num_heads=2
    ),
    frame_head=FrameHeadConfig(
        dim=16,
        depth=1,
        num_heads=2,
        point_dim=16,
        camera_dim=8,
        conv=ConvHeadConfig(widths=(32, 16, 16), hidden=8),
        metric=MetricHeadConfig(dim=16, depth=2, num_heads=2, out_dim=8),
    ),
)
"""All parts of Pi3X."""


OMEGA_LIKE = replace(
    PRESETS["vggt-omega"],
    encoder=DinoV3Config(image_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2),
    depth=4,
    num_heads=2,
    register_layers=(1, 2),
    num_registers=2,
    camera_head=CameraTransformerConfig(depth=1, num_heads=4),
    depth_head=replace(PRESETS["vggt-omega"].depth_head, layers=(0, 1, 2, 3), features=8, out_channels=(4, 4, 8, 8)),
)
"""VGGT-Omega at minimum width, with dense heads that read a register layer."""


SMALL_DA3 = replace(
    PRESETS["da3-giant"],
    encoder=replace(
        PRESETS["da3-giant"].encoder, image_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, norm_eps=1e-5
    ),
    depth=5,
    num_heads=2,
    norm_eps=1e-5,
    camera_encoder=CameraEncoderConfig(depth=1, num_heads=4),
    depth_head=replace(
        PRESETS["da3-giant"].depth_head, layers=(1, 2, 3, 4), features=8, out_channels=(4, 4, 8, 8), hidden=8
    ),
)
"""All parts of Depth Anything 3: SwiGLU, a first layer without its step within views, rays, known cameras."""


SMALL_DA3_MONO = replace(
    PRESETS["da3-mono"],
    encoder=replace(
        PRESETS["da3-mono"].encoder,
        image_size=32,
        patch_size=8,
        embed_dim=32,
        depth=4,
        num_heads=2,
        levels=(0, 1, 2, 3),
    ),
    num_heads=2,
    depth_head=replace(PRESETS["da3-mono"].depth_head, layers=(0, 1, 2, 3), features=8, out_channels=(4, 4, 8, 8)),
)
"""Depth and sky of single images, from levels of the encoder."""

SMALL_DA3_METRIC = replace(SMALL_DA3_MONO, metric_focal=300.0)
"""A single-image network that predicts metres."""

SMALL_DA3_NESTED = replace(SMALL_DA3, metric_network=SMALL_DA3_METRIC)
"""An any-view network whose lengths are scaled by a metric network of another width."""


def demo_like() -> ViewTimeNetwork:
    """Build the network like the bundled one with seed 0 and no zero parameters but those of the motion head."""
    torch.manual_seed(0)
    return fill_zeros(build_network(DEMO_LIKE), except_for="motion_head.out")


def fill_zeros(network: ViewTimeNetwork, except_for: str | None = None) -> ViewTimeNetwork:
    """Randomize parameters that are initialised to zero, so that every part affects the output."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not parameter.any() and not (except_for and name.startswith(except_for)):
                parameter.normal_(std=0.1)
    return network


def randomized_network(config: NetworkConfig, seed: int = 0) -> ViewTimeNetwork:
    """Build a float64 network whose every parameter has an effect: no zeros, residual branches of full size."""
    torch.manual_seed(seed)
    network = build_network(config).double().eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lambda_" in name or name.endswith((".alpha", ".beta")):
                continue
            if name.endswith("gamma"):
                parameter.fill_(1.0)
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def without_gradient(module: torch.nn.Module) -> list[str]:
    """Return the names of parameters whose gradient is missing or zero."""
    return [name for name, value in module.named_parameters() if value.grad is None or not value.grad.any()]
