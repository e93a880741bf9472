"""Recordings of public networks and encoders, and the key maps of public encoders."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from page4d.networks.encoders.vit import PatchEmbedding, Pooling, ViTConfig

INSIDE = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"


VIT_RULES = (
    (r"cls_token", "cls_token"),
    (r"pos_embedding", "pos_embed"),
    (r"to_patch_embedding\.1\.(.*)", r"patches.embed.patch_norm.\1"),
    (r"to_patch_embedding\.2\.(.*)", r"patches.embed.proj.\1"),
    (r"to_patch_embedding\.3\.(.*)", r"patches.embed.norm.\1"),
    (r"transformer\.layers\.(\d+)\.0\.norm\.(.*)", r"blocks.\1.norm1.\2"),
    (r"transformer\.layers\.(\d+)\.0\.to_qkv\.(.*)", r"blocks.\1.attn.qkv.\2"),
    (r"transformer\.layers\.(\d+)\.0\.to_out\.0\.(.*)", r"blocks.\1.attn.proj.\2"),
    (r"transformer\.layers\.(\d+)\.1\.net\.0\.(.*)", r"blocks.\1.norm2.\2"),
    (r"transformer\.layers\.(\d+)\.1\.net\.1\.(.*)", r"blocks.\1.mlp.fc1.\2"),
    (r"transformer\.layers\.(\d+)\.1\.net\.4\.(.*)", r"blocks.\1.mlp.fc2.\2"),
    (r"transformer\.norm\.(.*)", r"norm.\1"),
    (r"mlp_head\.(.*)", r"head.\1"),
)
"""Key map of the public vision transformer."""


@dataclass(frozen=True)
class Recorded:
    """Recorded tensors with their metadata."""

    tensors: dict[str, Tensor]
    meta: dict

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}

    @property
    def config(self) -> dict:
        return self.meta["config"]


def load_recorded(name: str, kind: str = "encoders") -> Recorded:
    """Load a recording, or skip the test; those of networks are of the kind "."."""
    folder = next((own for own in (INSIDE / kind, SHARED / kind) if (own / f"{name}.safetensors").exists()), None)
    if folder is None:
        pytest.skip(f"{name} is not in tests/golden nor in {SHARED}")
    return Recorded(load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_text()))


def assert_recorded(ours: Tensor, reference: Tensor) -> None:
    """Compare within the tolerance: rounding reaches 0.3 of it, the smallest known mistake 4.7 times it."""
    assert ours.shape == reference.shape
    excess = (ours - reference).abs() / (1e-4 + 1e-4 * reference.abs())
    assert excess.max() <= 1, f"{excess.max():.2f} times the tolerance"


def pair(value: int | list[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def translated(weights: dict[str, Tensor], rules: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    """Rename by the first rule that matches; a name that no rule matches is a mistake."""
    named = {}
    for name, value in weights.items():
        target = next((re.sub(theirs, ours, name) for theirs, ours in rules if re.fullmatch(theirs, name)), None)
        assert target is not None, name
        named[target] = value
    return named


def channels_last(values: Tensor, patch: tuple[int, int]) -> Tensor:
    """Reorder a last axis of (channel, row, column) as (row, column, channel)."""
    return values.unflatten(-1, (-1, *patch)).movedim(-3, -1).flatten(-3)


def vit_config(given: dict, num_classes: int | None = None, *, document: bool = False) -> ViTConfig:
    """Return the configuration of a public vision transformer, or of the one that the specification prints."""
    (height, width), (patch, patch_width) = pair(given["image_size"]), pair(given["patch_size"])
    mean = Pooling.MEAN_WITH_CLASS if document else Pooling.MEAN
    return ViTConfig(
        image_size=height,
        image_width=width,
        patch_size=patch,
        patch_width=patch_width,
        embed_dim=given["dim"],
        depth=given["depth"],
        num_heads=given["heads"],
        head_dim=given["dim_head"],
        mlp_ratio=given["mlp_dim"] / given["dim"],
        qkv_bias=False,
        norm_eps=1e-5,
        patch_embedding=PatchEmbedding.DUAL_NORMED,
        pooling=Pooling.CLASS if given["pool"] == "cls" else mean,
        num_classes=num_classes,
    )
