"""Configuration of a DINOv2 encoder from its tensors."""

from page4d.networks.encoders.dino import DinoV2Config
from page4d.weights.families.settings import EncoderSettings
from page4d.weights.families.specs import Specs, shape_of, table_side


def read_dinov2(specs: Specs, prefix: str, settings: EncoderSettings) -> DinoV2Config:
    """Return the configuration of the encoder whose tensor names begin with `prefix`."""
    dim, channels, patch, _ = shape_of(specs, f"{prefix}patch_embed.proj.weight", 4)
    return DinoV2Config(
        image_size=table_side(specs, f"{prefix}pos_embed") * patch,
        patch_size=patch,
        in_channels=channels,
        embed_dim=dim,
        depth=settings.depth,
        num_heads=settings.num_heads,
        mlp_ratio=shape_of(specs, f"{prefix}blocks.0.mlp.fc1.weight", 2)[0] / dim,
        num_registers=shape_of(specs, f"{prefix}register_tokens", 3)[1],
        norm_eps=settings.norm_eps,
    )
