"""Tiny checkpoints of the public networks, in every form in which they come, and the numbers they must give."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from page4d.weights.published import read_settings

INSIDE = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class Checkpoint:
    """Weights under the names of their authors, with recorded images and outputs."""

    name: str
    config: Path
    weights: dict[str, Tensor]
    images: Tensor
    tensors: dict[str, Tensor]

    @property
    def configs(self) -> dict:
        settings = read_settings(self.config)
        return {settings.model: settings}

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

    def save_pickle(self, folder: Path, *, zipped: bool = True, **beside: object) -> Path:
        path = folder / f"{self.name}.pt"
        held = {"model": self.weights, **beside} if beside else self.weights
        torch.save(held, path, _use_new_zipfile_serialization=zipped)
        return path


def checkpoint(name: str) -> Checkpoint:
    folder = INSIDE if (INSIDE / f"{name}.safetensors").exists() else SHARED
    path = folder / f"{name}.safetensors"
    if not path.exists():
        pytest.skip(f"{name} is not in tests/golden nor in {SHARED}")
    tensors = load_file(path)
    weights = {key.removeprefix("weights/"): value for key, value in tensors.items() if key.startswith("weights/")}
    return Checkpoint(name, folder / f"{name}.json", weights, tensors["input/images"], tensors)


def close(ours: Tensor, reference: Tensor) -> bool:
    """The criterion of the fixtures."""
    return bool(((ours - reference).abs() <= 1e-4 + 1e-4 * reference.abs()).all())
