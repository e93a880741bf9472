"""VGGT-style constructor of the view x time network."""

from collections.abc import Sequence

from page4d.choices import SparseStrategy
from page4d.errors import UsageError
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import CameraHeadConfig, DPTHeadConfig, MaskConfig, SparseConfig, Streams
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.network import ViewTimeNetwork

_DEPTH = 24
_HEAD_DIM = 64
_LARGE_DIM = 1024
_CAMERA_HEADS = 16


class VGGT(ViewTimeNetwork):
    """The view x time network of 24 layers with random weights; `NetworkConfig` has all options.

    Args:
        img_size: side in pixels of the encoder's position table; images of other sizes interpolate it.
        patch_size: side of a patch in pixels.
        embed_dim: width, a multiple of 64.
        enable_camera: predict cameras.
        enable_point: predict points in the world.
        enable_depth: predict depth.
        enable_dual_stream: use separate token states for cameras and geometry from the first masked layer.
        enable_sparse_global: add sparse attention across all images.
        sparse_global_layers: layers, counted from 1, that it follows.
        sparse_strategy: "landmark", "dilated" or "memory".

    Raises:
        UsageError: if the arguments contradict each other.
    """

    def __init__(
        self,
        img_size: int = 518,
        patch_size: int = 14,
        embed_dim: int = _LARGE_DIM,
        *,
        enable_camera: bool = True,
        enable_point: bool = True,
        enable_depth: bool = True,
        enable_dual_stream: bool = True,
        enable_sparse_global: bool = False,
        sparse_global_layers: Sequence[int] = (23, 24),
        sparse_strategy: str = SparseStrategy.LANDMARK,
    ) -> None:
        dense = _dense_head(embed_dim)
        heads = max(1, embed_dim // _HEAD_DIM)
        sparse = None
        if enable_sparse_global:
            layers = tuple(layer - 1 for layer in sparse_global_layers)
            sparse = SparseConfig(layers=layers, strategy=_strategy(sparse_strategy))
        super().__init__(
            NetworkConfig(
                encoder=DinoV2Config(
                    image_size=img_size, patch_size=patch_size, embed_dim=embed_dim, num_heads=heads
                ),
                depth=_DEPTH,
                num_heads=heads,
                mask=MaskConfig(streams=Streams.DUAL if enable_dual_stream else Streams.SINGLE),
                sparse=sparse,
                camera_head=CameraHeadConfig(num_heads=_CAMERA_HEADS) if enable_camera else None,
                depth_head=dense if enable_depth else None,
                point_head=dense if enable_point else None,
            )
        )


def _dense_head(embed_dim: int) -> DPTHeadConfig:
    """Return the dense head of the large network, scaled to this width."""
    large = DPTHeadConfig()
    first, second, third, fourth = (max(4, width * embed_dim // _LARGE_DIM // 4 * 4) for width in large.out_channels)
    features = max(8, large.features * embed_dim // _LARGE_DIM // 8 * 8)
    return DPTHeadConfig(features=features, out_channels=(first, second, third, fourth))


def _strategy(name: str) -> SparseStrategy:
    if name not in list(SparseStrategy):
        raise UsageError(f"unknown sparse strategy '{name}'", f"choose from {', '.join(SparseStrategy)}")
    return SparseStrategy(name)
