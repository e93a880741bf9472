"""Tiny checkpoints of the published networks in every file format, and the tensor names of the real ones."""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from page4d.weights.published import Settings, read_settings
from page4d.weights.store import TensorSpec

INSIDE = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class Checkpoint:
    """Weights under their original names, with recorded images and outputs."""

    name: str
    settings: Settings
    weights: dict[str, Tensor]
    images: Tensor
    tensors: dict[str, Tensor]

    @property
    def configs(self) -> dict[str, Settings]:
        return {self.settings.model: self.settings}

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.name}.safetensors"
        save_file(self.weights, path)
        return path

    def save_shards(self, folder: Path) -> Path:
        folder = folder / self.name
        folder.mkdir()
        names = sorted(self.weights)
        places = {}
        for number, part in enumerate((names[::2], names[1::2])):
            shard = f"model-{number + 1:05}-of-00002.safetensors"
            save_file({name: self.weights[name] for name in part}, folder / shard)
            places |= dict.fromkeys(part, shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        return folder

    def save_pickle(self, folder: Path, *, zipped: bool = True, **others: object) -> Path:
        path = folder / f"{self.name}.pt"
        held = {"model": self.weights, **others} if others else self.weights
        torch.save(held, path, _use_new_zipfile_serialization=zipped)
        return path


def checkpoint(name: str) -> Checkpoint:
    folder = INSIDE if (INSIDE / f"{name}.safetensors").exists() else SHARED
    path = folder / f"{name}.safetensors"
    if not path.exists():
        pytest.skip(f"{name} is not in tests/golden nor in {SHARED}")
    tensors = load_file(path)
    weights = {key.removeprefix("weights/"): value for key, value in tensors.items() if key.startswith("weights/")}
    return Checkpoint(name, read_settings(folder / f"{name}.json"), weights, tensors["input/images"], tensors)


@cache
def page4d_and_pi3() -> tuple[Checkpoint, Checkpoint]:
    """A pair of one size for the recipe three-stage: VGGT's tensors with a random mask head serve as PAGE-4D."""
    given = checkpoint("vggt_c")
    generator = torch.Generator().manual_seed(0)
    shapes = {"0.weight": (32, 1, 3, 3), "0.bias": (32,), "2.weight": (256, 32, 1, 1), "2.bias": (256,)}
    shapes |= {"4.weight": (1, 256, 1, 1), "4.bias": (1,)}
    head = {
        f"aggregator.spatial_mask_head.head0.{name}": torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    mask = given.settings.mask.model_copy(update={"layers_masked": (2, 3), "mask_after_frame_block": (1,)})
    settings = given.settings.model_copy(update={"model": "page4d", "mask": mask})
    return replace(given, name="page4d_c", settings=settings, weights=given.weights | head), checkpoint("pi3_c")


def expanded(shapes: dict[str, list[int]]) -> dict[str, TensorSpec]:
    """Expand rows in which `blocks.0-23.bias` stands for 24 names."""
    specs = {}
    for row, shape in shapes.items():
        span = re.search(r"\.(\d+)-(\d+)\.", row)
        names = [row]
        if span is not None:
            numbers = range(int(span[1]), int(span[2]) + 1)
            names = [f"{row[: span.start()]}.{number}.{row[span.end() :]}" for number in numbers]
        specs |= dict.fromkeys(names, TensorSpec(shape=tuple(shape), dtype=torch.float32))
    return specs


@cache
def manifest(name: str) -> dict[str, TensorSpec]:
    """Names and shapes of a published checkpoint: vggt, page4d, page4d_notrack, pi3 or pi3x."""
    short = json.loads((INSIDE / "manifests.json").read_text())
    shapes = short[name] if name in ("pi3", "pi3x") else dict(short["vggt"])
    if name.startswith("page4d"):
        shapes |= short["page4d beyond vggt"]
    specs = expanded(shapes)
    if name == "page4d_notrack":
        specs = {name: spec for name, spec in specs.items() if not name.startswith("track_head.")}
    return specs


def close(ours: Tensor, reference: Tensor) -> bool:
    """Compare within the tolerance of the recordings."""
    return bool(((ours - reference).abs() <= 1e-4 + 1e-4 * reference.abs()).all())
