"""Random values in the structure of a published checkpoint: the names and shapes of its tensors, and its files.

    python tools/random_checkpoint.py da3-base OUT [--seed N]

writes the files of the repository, such as OUT/model.safetensors and OUT/config.json, for tests of conversion,
download and memory at full size. Predictions of such a network are finite and meaningless. One tensor at a time is in
memory. A .pt file lacks the checksums of its tensors, which only readers without memory mapping compare.
"""

import argparse
import json
import mmap
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.errors import Page4DError
from page4d.weights.catalogue import CATALOGUE, CatalogueEntry, find_entry
from page4d.weights.families.family import Family
from page4d.weights.families.table import FAMILIES
from page4d.weights.store import TensorSpec, write_tensors
from tests.weights.checkpoints import manifest

MANIFESTS = {
    "da3-mono": "da3metric_large",
    "da3-metric": "da3metric_large",
    "da3-nested": "da3nested",
    "page4d": "page4d_notrack",
    "page4d-mask": "page4d_notrack",
    "vggt-commercial": "vggt",
    "vggt-omega": "vggt_omega_512",
    "vggt-omega-text": "vggt_omega_256_text",
}
"""Manifests that are not named as their checkpoint."""

DEVIATION, LAYER_SCALE = 0.02, 0.01


def main() -> None:
    """Write the files of the checkpoint that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CATALOGUE, metavar="NAME", help=", ".join(CATALOGUE))
    parser.add_argument("out", type=Path, help="folder of the files; it is created")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        write_checkpoint(given.name, given.out, given.seed)
    except (Page4DError, OSError) as error:
        sys.exit(f"error: {error}")


def write_checkpoint(name: str, out: Path, seed: int = 0) -> Path:
    """Write the files of a checkpoint into a folder, and return that of its weights."""
    entry = find_entry(name)
    specs = manifest(MANIFESTS.get(entry.name, entry.name.replace("-", "_")))
    out.mkdir(parents=True, exist_ok=True)
    path = out / entry.file
    generator = torch.Generator().manual_seed(seed)
    if path.suffix == ".safetensors":
        with path.open("wb") as file:
            write_tensors(file, specs, lambda name: values(name, specs[name].shape, generator), {})
    else:
        write_pickled(path, specs, generator)
    record = hub_record(entry)
    if record:
        (out / "config.json").write_text(json.dumps(record, indent=1) + "\n")
    return path


def values(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return values with which activations stay finite: scales of norms are 1, constants are the published ones."""
    part = name.rpartition(".")[2]
    if part in ("image_mean", "image_std"):
        return torch.tensor(IMAGE_MEAN if part == "image_mean" else IMAGE_DEVIATION).reshape(shape)
    if part == "periods":
        return 100.0 ** (torch.arange(shape[0]) / shape[0])
    if part == "bias_mask":  # of queries, keys and values
        return torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(shape[0] // 3)
    if part == "gamma":
        return torch.full(shape, LAYER_SCALE)
    if part == "weight" and len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator).mul_(DEVIATION)


def write_pickled(path: Path, specs: dict[str, TensorSpec], generator: torch.Generator) -> None:
    """Write the structure of a PyTorch checkpoint without its values, then fill it through a memory mapping."""
    with torch.serialization.skip_data():  # untouched memory is not allocated
        torch.save({name: torch.empty(spec.shape) for name, spec in specs.items()}, path)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        mapped = torch.load(path, mmap=True)
    for name, tensor in mapped.items():
        tensor.copy_(values(name, specs[name].shape, generator))


def hub_record(entry: CatalogueEntry) -> dict[str, Any]:
    """Return the content of the repository's `config.json`, or nothing where the conversion does not read it."""
    reader = FAMILIES[Family(entry.family)].network
    name = entry.network or entry.name
    if reader is None or name not in reader.names:
        return {}
    config: dict[str, Any] = {}
    for setting, value in reader.assumed(reader.published[name]).items():
        *parts, key = setting.split(".")
        record = config
        for part in parts:
            record = record.setdefault(part, {})
        record[key] = value
    return {"model_name": name, "config": config} if config else {}


if __name__ == "__main__":
    main()
