"""What a pretraining run does, as a frozen record that lives as JSON in its folder and in the encoder it makes."""

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from page4d.encoders.build import EncoderConfig
from page4d.encoders.vit import Pooling, ViTConfig
from page4d.errors import UsageError
from page4d.pretraining.crops import CropConfig
from page4d.pretraining.dino import DINOConfig, ProjectorConfig
from page4d.pretraining.mae import MAEConfig
from page4d.training.supervised.config import OptimizerConfig
from page4d.weights.placement import Precision


class Method(StrEnum):
    """What teaches an encoder without labels."""

    MAE = "mae"
    """Painting hidden patches."""

    DINO = "dino"
    """Saying of parts what an average of itself says of the whole."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Everything that decides what an encoder learns; the same record gives the same weights on one machine.

    `scenes` are folders of videos. At most twice `pool_frames` frames are in memory; each is used `repeats` times
    before others take their place. `decay_fraction` is the part of the budget at its end over which the rate falls.
    The averaged weights, of which the optimizer says how fast they follow, are handed out; of DINO the teacher's are.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    method: Annotated[MAEConfig | DINOConfig, Field(discriminator="kind")]
    scenes: tuple[str, ...] = ()
    seed: int = 0
    crops: CropConfig = field(default_factory=CropConfig)
    batch: int = 64
    pool_frames: int = 512
    repeats: int = 8
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    decay_fraction: float = 0.3
    decay_start_sample: int | None = None
    final_rate: float = 0.0
    accumulation: int = 1
    precision: Precision = Precision.AUTO
    save_every_seconds: float = 120.0
    log_every_steps: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", Precision(self.precision))
        numbers = (self.batch, self.pool_frames, self.repeats, self.accumulation, self.log_every_steps)
        if min(numbers) < 1 or self.seed < 0 or self.save_every_seconds < 0:
            raise UsageError(
                f"batch {self.batch}, pool_frames {self.pool_frames}, repeats {self.repeats}, "
                f"accumulation {self.accumulation}, log_every_steps {self.log_every_steps}, seed {self.seed}, "
                f"save_every_seconds {self.save_every_seconds:g}",
                "give at least 1, and no negative seed or time",
            )
        if Precision.FP16 is self.precision:
            raise UsageError("training in fp16", "use bf16, auto or fp32")
        if not (0 <= self.decay_fraction <= 1 and 0 <= self.final_rate <= 1):
            raise UsageError(
                f"decay_fraction {self.decay_fraction:g}, final_rate {self.final_rate:g}", "give numbers from 0 to 1"
            )
        patch = self.encoder.patch
        small = [self.crops.small_size] if self.crops.num_small else []
        for side in (self.crops.size, *small):
            if side % patch[0] or side % patch[1]:
                raise UsageError(
                    f"crops of {side} px for patches of {patch[1]} x {patch[0]} px", "choose multiples of the patch"
                )
        if isinstance(self.method, DINOConfig) and self.crops.num_large + self.crops.num_small < 2:
            raise UsageError("dino: a single crop", "give two large crops: one is compared with another")
        if isinstance(self.method, MAEConfig) and (self.crops.num_large, self.crops.num_small) != (1, 0):
            raise UsageError(
                f"mae: {self.crops.num_large} large and {self.crops.num_small} small crops", "give one large crop"
            )

    @property
    def encoder(self) -> ViTConfig:
        """What is pretrained."""
        return self.method.encoder

    def to_json(self, indent: int | None = None) -> str:
        """Write the record as JSON with sorted keys, on one line unless `indent` is given."""
        typed = _ADAPTER.validate_python(asdict(self))
        return json.dumps(asdict(typed), sort_keys=True, indent=indent)

    @staticmethod
    def from_json(text: str) -> "PretrainConfig":
        """Read what `to_json` wrote; what is left out takes its default.

        Raises:
            UsageError: if the text is no such record, names an unknown field or holds a wrong type.
        """
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise UsageError(
                f"pretraining configuration: {place or 'text'}: {first['msg']}",
                "page4d pretrain --dry-run prints a whole one",
            ) from error


_ADAPTER = TypeAdapter(PretrainConfig)

_SMALL = ViTConfig(image_size=64, patch_size=8, embed_dim=96, depth=4, num_heads=3)

PRESETS: dict[Method, PretrainConfig] = {
    Method.MAE: PretrainConfig(
        method=MAEConfig(
            encoder=replace(_SMALL, pooling=Pooling.MEAN), decoder_dim=64, decoder_depth=1, decoder_heads=4
        ),
        crops=CropConfig(size=64),
        optimizer=OptimizerConfig(
            learning_rate=2e-3, betas=(0.9, 0.95), weight_decay=0.05, warmup_steps=15, average_decay=0.99
        ),
    ),
    Method.DINO: PretrainConfig(
        method=DINOConfig(
            encoder=_SMALL,
            projector=ProjectorConfig(layers=4, hidden_dim=256, bottleneck_dim=64, classes=256),
            teacher_temperature=0.02,
            teacher_momentum=0.99,
        ),
        crops=CropConfig(
            size=64,
            area=(0.5, 1.0),
            num_large=2,
            small_size=32,
            small_area=(0.15, 0.5),
            num_small=2,
            recoloured=True,
        ),
        batch=32,
        # Faster, and the teacher says the same of every image before the centre has found its place.
        optimizer=OptimizerConfig(
            learning_rate=5e-5, betas=(0.9, 0.999), weight_decay=0.05, warmup_steps=50, max_gradient_norm=3.0
        ),
    ),
}
"""A small encoder that learns on a CPU in minutes; decoder and projector of a size that goes with it."""


def with_encoder(config: PretrainConfig, encoder: EncoderConfig) -> PretrainConfig:
    """Return the run for another encoder, without its head, on crops of that encoder's size.

    Raises:
        UsageError: if it is no ViT, or one that the method cannot teach.
    """
    if not isinstance(encoder, ViTConfig):
        raise UsageError(
            f"{config.method.kind} teaches a ViT, and the encoder is a {encoder.kind}", "give --encoder a ViT"
        )
    bare = replace(encoder, num_classes=None)
    side = min(encoder.image_size, encoder.image_width or encoder.image_size)
    return with_size(config, side, bare)


def with_size(config: PretrainConfig, side: int, encoder: ViTConfig | None = None) -> PretrainConfig:
    """Return the run on crops of another size, small ones of about half of it, perhaps for another encoder."""
    encoder = encoder or config.encoder
    patch = max(encoder.patch)
    small = max(patch, side // 2 // patch * patch)
    return replace(
        config,
        method=replace(config.method, encoder=encoder),
        crops=replace(config.crops, size=side, small_size=small),
    )
