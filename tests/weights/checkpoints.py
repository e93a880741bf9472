"""Tiny checkpoints of the published networks in every file format, and the tensor names of the real ones."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.networks.presets import PRESETS
from page4d.weights.store import TensorSpec
from tests.encoders.recorded import INSIDE, load_recorded
from tests.keymaps import recorded_config
from tests.networks.test_recorded_tensors import OUTPUTS


@dataclass(frozen=True)
class Checkpoint:
    """Weights under their original names, with recorded images and outputs."""

    name: str
    config: NetworkConfig
    weights: dict[str, Tensor]
    images: Tensor
    tensors: dict[str, Tensor]

    @property
    def configs(self) -> tuple[NetworkConfig, ...]:
        return (self.config,)

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
    recorded = load_recorded(name, ".")
    return Checkpoint(
        name, recorded_config(name), recorded.part("weights/"), recorded["input/images"], recorded.tensors
    )


@cache
def page4d_and_pi3() -> tuple[Checkpoint, Checkpoint]:
    """A pair of one size for the three-stage network: VGGT's tensors with a random mask head serve as PAGE-4D."""
    given = checkpoint("vggt_c")
    generator = torch.Generator().manual_seed(0)
    shapes = {"0.weight": (32, 1, 3, 3), "0.bias": (32,), "2.weight": (256, 32, 1, 1), "2.bias": (256,)}
    shapes |= {"4.weight": (1, 256, 1, 1), "4.bias": (1,)}
    head = {
        f"aggregator.spatial_mask_head.head0.{name}": torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    config = replace(given.config, mask=replace(PRESETS["page4d-mask"].mask, layers=(2, 3)))
    return replace(given, name="page4d_c", config=config, weights=given.weights | head), checkpoint("pi3_c")


@cache
def manifest(name: str) -> dict[str, TensorSpec]:
    """Names and shapes of a published checkpoint: one of `MANIFESTS`, which names its recording.

    In the file, `blocks.0-23.norm1-2.bias` stands for 48 names.
    """
    short = json.loads((INSIDE / "manifests.json").read_text())
    if name == "da3nested":
        parts = {"model.da3.": manifest("da3_giant"), "model.da3_metric.": manifest("da3metric_large")}
        return {f"{prefix}{row[6:]}": spec for prefix, specs in parts.items() for row, spec in specs.items()}
    base, key = _BEYOND.get(name, ("", name))
    rows = (short[base] if base else {}) | short[key]
    specs = {
        row: TensorSpec(shape=tuple(shape), dtype=torch.float32)
        for short_row, shape in rows.items()
        for row in _expanded(short_row)
    }
    unused = {"page4d_notrack": "track_head.", "pi3x": ("point_head.proj.", "conf_head.proj.")}.get(name)
    return {row: spec for row, spec in specs.items() if unused is None or not row.startswith(unused)}


_BEYOND = {
    "page4d": ("vggt", "page4d beyond vggt"),
    "page4d_notrack": ("vggt", "page4d beyond vggt"),
    "pi3x": ("pi3", "pi3x beyond pi3"),
    "vggt_omega_256_text": ("vggt_omega_512", "vggt_omega_256_text beyond vggt_omega_512"),
}
MANIFESTS = {
    **{name: name for name in ("vggt", "page4d", "page4d_notrack", "pi3", "pi3x")},
    **{name: name for name in ("da3_small", "da3_base", "da3_large", "da3_giant", "da3metric_large")},
    "da3nested": "da3nested_giant_large",
    "vggt_omega_512": "vggt_omega_1b_512",
    "vggt_omega_256_text": "vggt_omega_1b_256_text",
}
"""Names of the manifests and of their recordings; DA3MONO-LARGE's equals that of DA3METRIC-LARGE."""


def _expanded(row: str) -> Iterator[str]:
    literals, spans = re.split(r"\d+-\d+", row), re.findall(r"(\d+)-(\d+)", row)
    for numbers in product(*(range(int(first), int(last) + 1) for first, last in spans)):
        yield "".join(f"{literal}{number}" for literal, number in zip(literals, (*numbers, ""), strict=True))


def empty_checkpoint(folder: Path, named: Mapping[str, Sequence[int]]) -> Path:
    """A sparse file with the real names and shapes."""
    path = folder / "checkpoint.safetensors"
    header, offset = {}, 0
    for name, shape in named.items():
        size = 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return path


def close(ours: Tensor, reference: Tensor) -> bool:
    """Compare within the tolerance of the recordings."""
    return bool(((ours - reference).abs() <= 1e-4 + 1e-4 * reference.abs()).all())


def assert_golden(
    network: torch.nn.Module, given: Checkpoint, run: str = "output", axes: Sequence[int] = (1, 2)
) -> None:
    """Compare all recorded outputs of images that are views of one instant (axis 1), or instants of one view (2)."""
    recorded = {
        name.partition("/")[2]: tensor for name, tensor in given.tensors.items() if name.startswith(f"{run}/")
    }
    assert recorded
    for axis in axes:
        with torch.no_grad():
            out = network(given.images.unsqueeze(axis))
        for name, reference in recorded.items():
            assert close(OUTPUTS[name](out).reshape(reference.shape), reference), (name, axis)
