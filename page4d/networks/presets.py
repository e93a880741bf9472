"""Network configurations by name."""

from dataclasses import replace

from page4d.choices import FullAttention
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import (
    BiasRows,
    CameraEncoderConfig,
    CameraHeadConfig,
    CameraMLPConfig,
    CameraTransformerConfig,
    ConvHeadConfig,
    DenseOutput,
    DPTHeadConfig,
    FrameHeadConfig,
    KnownGeometryConfig,
    MaskConfig,
    MaskHeadKind,
    MaskRule,
    MatchConfig,
    MetricHeadConfig,
    MotionHeadConfig,
    PatchPositions,
    ReferenceView,
    ResidualKind,
    Streams,
)
from page4d.networks.encoders.build import ENCODER_PRESETS, without_head
from page4d.networks.encoders.dino import DinoV2Config, DinoV3Config
from page4d.networks.encoders.stem import StemConfig
from page4d.networks.layers.attention import TableResampling
from page4d.networks.layers.block import FeedForwardKind
from page4d.networks.preprocess import DA3_SIDE

_DEMO_ENCODER = StemConfig()


_TINY_HEAD = DPTHeadConfig(layers=(0, 1, 2, 3), features=16, out_channels=(8, 8, 16, 16), hidden=8)
_TINY = NetworkConfig(
    encoder=DinoV2Config(image_size=70, embed_dim=32, depth=1, num_heads=2),
    depth=4,
    num_heads=2,
    mask=MaskConfig(layers=(1, 2)),
    camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=2),
    depth_head=_TINY_HEAD,
    point_head=_TINY_HEAD,
)

_SMALL_HEAD = DPTHeadConfig(layers=(1, 2, 4, 5), features=64, out_channels=(48, 96, 192, 192))
_SMALL = NetworkConfig(
    encoder=DinoV2Config(image_size=224, embed_dim=192, depth=6, num_heads=3),
    depth=6,
    num_heads=3,
    mask=MaskConfig(layers=(2, 3)),
    camera_head=CameraHeadConfig(trunk_depth=2, num_heads=6),
    depth_head=_SMALL_HEAD,
    point_head=_SMALL_HEAD,
)


def _small_with(encoder: str) -> NetworkConfig:
    """Return the small network on an encoder of published size, with patches of 16 px, fused where need be."""
    chosen = without_head(ENCODER_PRESETS[encoder], level=2)
    camera_head = CameraHeadConfig(trunk_depth=2, num_heads=8)
    return replace(_SMALL, encoder=chosen, num_heads=chosen.embed_dim // 64, camera_head=camera_head)


_DEMO = NetworkConfig(
    encoder=_DEMO_ENCODER,
    depth=4,
    num_heads=4,
    layer_scale=None,
    mask=MaskConfig(layers=(2, 3), streams=Streams.SINGLE, teaches_trunk=True),
    matches=MatchConfig(fine_dim=_DEMO_ENCODER.fine_dim),
    known_cameras=True,
    ray_head=True,
    camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=3, mlp_ratio=2.0),
    depth_head=DPTHeadConfig(
        layers=(0, 1, 2, 3), features=32, out_channels=(32, 48, 64, 96), hidden=32, fine_dim=_DEMO_ENCODER.fine_dim
    ),
    motion_head=MotionHeadConfig(fine_dim=_DEMO_ENCODER.fine_dim),
)

_LARGE = NetworkConfig(
    encoder=DinoV2Config(),
    depth=24,
    num_heads=16,
    mask=MaskConfig(),
    camera_head=CameraHeadConfig(),
    depth_head=DPTHeadConfig(),
    point_head=DPTHeadConfig(),
)

_PI3 = NetworkConfig(
    encoder=DinoV2Config(),
    depth=18,
    num_heads=16,
    schedule=FRAME_GLOBAL,
    norm_eps=1e-6,
    num_registers=5,
    token_slots=1,
    camera_token=False,
    frame_head=FrameHeadConfig(),
)


def _da3(
    embed_dim: int,
    depth: int,
    start: int,
    layers: tuple[int, int, int, int],
    features: int,
    out_channels: tuple[int, int, int, int],
    feed_forward: FeedForwardKind = FeedForwardKind.MLP,
) -> NetworkConfig:
    """Return an any-view network of Depth Anything 3: `depth` blocks that alternate steps from `start` on."""
    return NetworkConfig(
        encoder=DinoV2Config(
            embed_dim=embed_dim,
            depth=start,
            num_heads=embed_dim // 64,
            feed_forward=feed_forward,
            num_registers=0,
            table_resampling=TableResampling.OFFSET,
            final_norm=False,
        ),
        depth=(depth - start + 1) // 2,
        num_heads=embed_dim // 64,
        schedule=FRAME_GLOBAL,
        full_attention=FullAttention.ALWAYS,
        starts_across=start % 2 == 1,
        feed_forward=feed_forward,
        norm_eps=1e-6,
        layer_scale=1.0,
        across_positions=PatchPositions.SHARED,
        num_registers=0,
        reference_view=ReferenceView.SADDLE_BALANCED,
        readout_norm_eps=1e-5,
        camera_encoder=CameraEncoderConfig(),
        camera_head=CameraMLPConfig(),
        depth_head=DPTHeadConfig(
            layers=layers, features=features, out_channels=out_channels, residual=ResidualKind.PLAIN, ray_map=True
        ),
        default_long_side=DA3_SIDE,
    )


_MONO_LAYERS = (4, 11, 17, 23)
_MONO = NetworkConfig(
    encoder=DinoV2Config(
        num_registers=0, table_resampling=TableResampling.OFFSET, final_norm_eps=1e-5, levels=_MONO_LAYERS
    ),
    depth=0,
    num_heads=16,
    num_registers=0,
    camera_token=False,
    depth_head=DPTHeadConfig(
        layers=_MONO_LAYERS, norm_eps=None, residual=ResidualKind.PLAIN, positions=False, confidence=False, sky=True
    ),
    default_long_side=DA3_SIDE,
)
_METRIC = replace(_MONO, metric_focal=300.0)

_GIANT = _da3(1536, 40, 13, (3, 7, 10, 13), 256, (256, 512, 1024, 1024), FeedForwardKind.SWIGLU)

_OMEGA = NetworkConfig(
    encoder=DinoV3Config(),
    depth=24,
    num_heads=16,
    schedule=FRAME_GLOBAL,
    register_layers=(2, 6, 9, 14, 20),
    within_positions=PatchPositions.CENTERED,
    across_positions=PatchPositions.NONE,
    num_registers=16,
    camera_head=CameraTransformerConfig(),
    depth_head=DPTHeadConfig(residual=ResidualKind.PLAIN, output=DenseOutput.PIXEL_SHUFFLE),
)

_PI3X = replace(
    _PI3,
    known_geometry=KnownGeometryConfig(depth_encoder=DinoV2Config(in_channels=2), pose_layers=(0, 4, 8, 12, 16)),
    frame_head=FrameHeadConfig(conv=ConvHeadConfig(), metric=MetricHeadConfig()),
)

_PAGE4D_MASK = MaskConfig(
    layers=tuple(range(10, 20)),
    head=MaskHeadKind.RELEASE,
    rule=MaskRule.PAGE4D,
    streams=Streams.SINGLE,
    bias_rows=BiasRows.SPECIAL,
)

PRESETS: dict[str, NetworkConfig] = {
    "mv-tiny": _TINY,
    "mv-small": _SMALL,
    "mv-demo": _DEMO,
    "mv-vit": _small_with("vit-s16"),
    "mv-swin": _small_with("swin-t"),
    "mv-twins": _small_with("twins-svt-s"),
    "mv-navit": _small_with("navit"),
    "mv-large": _LARGE,
    "vggt": replace(_LARGE, schedule=FRAME_GLOBAL, mask=None),
    "page4d": replace(_LARGE, schedule=FRAME_GLOBAL, mask=None),
    "page4d-mask": replace(_LARGE, schedule=FRAME_GLOBAL, mask=_PAGE4D_MASK),
    "pi3": _PI3,
    "da3-small": _da3(384, 12, 4, (0, 1, 2, 3), 64, (48, 96, 192, 384)),
    "da3-base": _da3(768, 12, 4, (0, 1, 2, 3), 128, (96, 192, 384, 768)),
    "da3-large": _da3(1024, 24, 8, (1, 3, 5, 7), 256, (256, 512, 1024, 1024)),
    "da3-mono": _MONO,
    "da3-metric": _METRIC,
    "da3-giant": _GIANT,
    "da3-nested": replace(_GIANT, metric_network=_METRIC),
    "vggt-omega": _OMEGA,
    "pi3x": _PI3X,
}
"""Networks by name: for tests, for CPUs, on other encoders, as specified, and the public networks.

PAGE-4D has two checkpoints: one that runs without its mask, when it is VGGT with other weights, and one with it.
"""
