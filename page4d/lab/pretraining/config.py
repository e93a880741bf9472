"""Configuration of pretraining, stored as JSON in the folder of the run and in its encoder."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field, PositiveInt

from page4d.choices import PretrainMethod
from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.lab.pretraining.data import CropConfig
from page4d.lab.pretraining.dino import DINOConfig, ProjectorConfig
from page4d.lab.pretraining.mae import MAEConfig
from page4d.lab.training.optimizers import OptimizerConfig
from page4d.lab.training.schedule import Fraction, RunConfig
from page4d.networks.encoders.build import EncoderConfig
from page4d.networks.encoders.vit import Pooling, ViTConfig
from page4d.networks.layers.execution import Count


@config_record("pretraining")
class PretrainConfig(RunConfig):
    """Configuration of a run; the same configuration gives the same weights on one machine.

    `scenes` are folders of videos. At most twice `pool_frames` frames are in memory; each is used `repeats` times
    before it is replaced. The released encoder is the EMA of MAE, or the teacher of DINO.
    """

    method: Annotated[MAEConfig | DINOConfig, Field(discriminator="kind")]
    scenes: tuple[str, ...] = ()
    crops: CropConfig = CropConfig()
    batch: Count = 64
    pool_frames: Annotated[int, Field(ge=1, le=10**6)] = 512
    repeats: Count = 8
    decay_fraction: Fraction = 0.3
    log_every_steps: PositiveInt = 5

    COMMAND = "pretrain"

    def __post_init__(self) -> None:
        super().__post_init__()
        patch, crops = self.encoder.patch, self.crops
        for side in (crops.size, *([crops.small_size] if crops.num_small else [])):
            if side % patch[0] or side % patch[1]:
                raise UsageError(
                    f"crops of {side} px for patches of {patch[1]} x {patch[0]} px", "choose multiples of the patch"
                )
        if isinstance(self.method, DINOConfig) and crops.num_large + crops.num_small < 2:
            raise UsageError("dino: a single crop", "give two large crops: each is compared with the others")
        if isinstance(self.method, MAEConfig) and (crops.num_large, crops.num_small) != (1, 0):
            raise UsageError(f"mae: {crops.num_large} large and {crops.num_small} small crops", "give one large crop")

    @property
    def encoder(self) -> ViTConfig:
        """Encoder to pretrain."""
        return self.method.encoder


_SMALL = ViTConfig(image_size=64, patch_size=8, embed_dim=96, depth=4, num_heads=3)

PRESETS: dict[PretrainMethod, PretrainConfig] = {
    PretrainMethod.MAE: PretrainConfig(
        method=MAEConfig(
            encoder=replace(_SMALL, pooling=Pooling.MEAN), decoder_dim=64, decoder_depth=1, decoder_heads=4
        ),
        crops=CropConfig(size=64),
        optimizer=OptimizerConfig(
            learning_rate=2e-3, betas=(0.9, 0.95), weight_decay=0.05, warmup_steps=15, average_decay=0.99
        ),
    ),
    PretrainMethod.DINO: PretrainConfig(
        method=DINOConfig(
            encoder=_SMALL,
            projector=ProjectorConfig(layers=4, hidden_dim=256, bottleneck_dim=64, classes=256),
            teacher_temperature=0.02,
            teacher_momentum=0.99,
        ),
        crops=CropConfig(
            size=64, area=(0.5, 1.0), num_large=2, small_size=32, small_area=(0.15, 0.5), num_small=2, recoloured=True
        ),
        batch=32,
        # With a higher learning rate the teacher collapses before the centre has adapted.
        optimizer=OptimizerConfig(
            learning_rate=5e-5, betas=(0.9, 0.999), weight_decay=0.05, warmup_steps=50, max_gradient_norm=3.0
        ),
    ),
}
"""A small encoder that trains on a CPU in minutes, with a decoder and a projector of matching size."""


def with_encoder(config: PretrainConfig, encoder: EncoderConfig) -> PretrainConfig:
    """Return the run for another encoder, without its head, on crops of that encoder's image size.

    Raises:
        UsageError: if the encoder is not a ViT, or does not fit the method.
    """
    if not isinstance(encoder, ViTConfig):
        raise UsageError(
            f"{config.method.kind} trains a ViT, and the encoder is a {encoder.kind}", "give ⟨encoder⟩ a ViT"
        )
    bare = replace(encoder, num_classes=None)
    side = min(encoder.image_size, encoder.image_width or encoder.image_size)
    return with_size(config, side, bare)


def with_size(config: PretrainConfig, side: int, encoder: ViTConfig | None = None) -> PretrainConfig:
    """Return the run on crops of another size, with small crops of about half, and optionally another encoder."""
    encoder = encoder or config.encoder
    patch = max(encoder.patch)
    small = max(patch, side // 2 // patch * patch)
    return replace(
        config,
        method=replace(config.method, encoder=encoder),
        crops=replace(config.crops, size=side, small_size=small),
    )
