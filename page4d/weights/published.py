"""Settings of the published networks that tensor shapes do not determine, such as numbers of heads."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from page4d.errors import UsageError
from page4d.io.config import config_from_json

_MAX_BYTES = 2**20


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class EncoderSettings(_Settings):
    """The DINOv2 encoder; options with a single supported value are checked."""

    num_heads: int
    embed_dim: int
    depth: int
    norm_eps: float
    interpolate_antialias: Literal[True] = True
    interpolate_offset: float = Field(default=0.0, ge=0, le=0)
    qkv_bias: Literal[True] = True
    qk_norm: Literal[False] = False


class CameraHeadSettings(_Settings):
    """The iterative camera head."""

    num_heads: int
    num_iterations: int
    trunk_depth: int
    trans_act: Literal["linear"] = "linear"
    quat_act: Literal["linear"] = "linear"
    fl_act: Literal["relu"] = "relu"


class DenseHeadSettings(_Settings):
    """The dense heads."""

    intermediate_layer_idx: tuple[int, int, int, int]
    pos_embed: Literal[True] = True


class DepthSettings(_Settings):
    """Output activations of the depth head."""

    activation: Literal["exp"] = "exp"
    conf_activation: Literal["expp1"] = "expp1"


class PointSettings(_Settings):
    """Output activations of the point head."""

    activation: Literal["inv_log"] = "inv_log"
    conf_activation: Literal["expp1"] = "expp1"


class MaskSettings(_Settings):
    """PAGE-4D's mask."""

    layers_masked: tuple[int, ...] = tuple(range(10, 20))
    mask_after_frame_block: tuple[int] = (9,)
    scale: float = Field(default=64.0, ge=64, le=64)


class VGGTSettings(_Settings):
    """VGGT, or PAGE-4D (VGGT with a mask)."""

    model: Literal["vggt", "page4d"]
    embed_dim: int
    depth: int
    num_heads: int
    block_norm_eps: float
    rope_freq: float
    encoder: EncoderSettings
    camera_head: CameraHeadSettings
    dpt_head: DenseHeadSettings
    depth_head: DepthSettings = DepthSettings()
    point_head: PointSettings = PointSettings()
    mask: MaskSettings = MaskSettings()
    aa_order: tuple[Literal["frame"], Literal["global"]] = ("frame", "global")
    aa_block_size: Literal[1] = 1


class DecoderSettings(_Settings):
    """Pi3's trunk."""

    embed_dim: int
    depth: int
    num_heads: int
    block_norm_eps: float
    qk_norm_eps: float


class FrameHeadSettings(_Settings):
    """Pi3's heads."""

    dec_num_heads: int
    block_norm_eps: float
    qk_norm: Literal[False] = False


class Pi3Settings(_Settings):
    """Pi3."""

    model: Literal["pi3"]
    encoder: EncoderSettings
    decoder: DecoderSettings
    heads: FrameHeadSettings
    rope_freq: float


Settings = VGGTSettings | Pi3Settings

_ADAPTER: TypeAdapter[Settings] = TypeAdapter(Annotated[Settings, Field(discriminator="model")])

_ENCODER = EncoderSettings(num_heads=16, embed_dim=1024, depth=24, norm_eps=1e-6)


def _vggt(model: Literal["vggt", "page4d"]) -> VGGTSettings:
    return VGGTSettings(
        model=model,
        embed_dim=1024,
        depth=24,
        num_heads=16,
        block_norm_eps=1e-5,
        rope_freq=100,
        encoder=_ENCODER,
        camera_head=CameraHeadSettings(num_heads=16, num_iterations=4, trunk_depth=4),
        dpt_head=DenseHeadSettings(intermediate_layer_idx=(4, 11, 17, 23)),
    )


PUBLISHED: dict[str, Settings] = {
    "vggt": _vggt("vggt"),
    "page4d": _vggt("page4d"),
    "pi3": Pi3Settings(
        model="pi3",
        encoder=_ENCODER,
        decoder=DecoderSettings(embed_dim=1024, depth=36, num_heads=16, block_norm_eps=1e-6, qk_norm_eps=1e-5),
        heads=FrameHeadSettings(dec_num_heads=16, block_norm_eps=1e-6),
        rope_freq=100,
    ),
}
"""The published checkpoints, by network."""


def read_settings(path: Path) -> Settings:
    """Read the constructor arguments of a public network from a JSON file.

    Raises:
        UsageError: if the file cannot be read, lacks a field, or holds an unsupported value.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read --config '{path}': {error.strerror}", "give a JSON file") from error
    return config_from_json(
        _ADAPTER,
        text,
        f"--config '{path}': network",
        'give the constructor arguments of the network as JSON, such as {"model": "vggt", "num_heads": 16, ...}',
    )
