"""The files of random values for tests at full size have the published structure, and convert."""

import math
import runpy
from pathlib import Path

import pytest
import torch

from page4d.weights import load
from page4d.weights.catalogue import CATALOGUE, CatalogueEntry
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.families.identity import Identity
from page4d.weights.families.table import read_network, recognize
from page4d.weights.sources import open_source
from page4d.weights.store import TensorSpec, is_finite
from tests.weights.checkpoints import checkpoint, manifest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "random_checkpoint.py"), run_name="random_checkpoint")


@pytest.mark.parametrize(("name", "golden"), [("da3-base", "vggt_c"), ("vggt-omega", "vggt_omega_c")])
def test_small_files_of_both_formats_convert(name: str, golden: str, tmp_path: Path, monkeypatch) -> None:
    given = checkpoint(golden)
    specs = {key: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for key, value in given.weights.items()}
    monkeypatch.setitem(TOOL["write_checkpoint"].__globals__, "manifest", lambda _: specs)
    path = TOOL["write_checkpoint"](name, tmp_path)
    assert path.name == CATALOGUE[name].file
    source = open_source(path)
    assert source.specs == specs
    again = open_source(TOOL["write_checkpoint"](name, tmp_path / "again"))
    assert all(torch.equal(source.read(key), again.read(key)) for key in specs)
    write_conversion(
        plan_conversion([path], ConvertSettings(configs=given.configs)), tmp_path / "network.safetensors"
    )
    with torch.no_grad():
        output = load(tmp_path / "network.safetensors", "cpu")(given.images[:, None])
    assert is_finite(output.depth)
    assert float(output.depth.std()) > 0


@pytest.mark.parametrize("name", ["da3-small", "da3-giant", "da3-nested", "da3-mono", "da3-metric"])
def test_the_record_identifies_the_network(name: str) -> None:
    specs = manifest(TOOL["MANIFESTS"].get(name, name.replace("-", "_")))
    record = TOOL["hub_record"](CATALOGUE[name])
    found = read_network(recognize(specs, "x"), specs, "x", identity=Identity(record=record))
    assert found.name == (CATALOGUE[name].network or name)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_the_manifest_has_the_size_and_the_family_of_the_catalogue(entry: CatalogueEntry) -> None:
    specs = manifest(TOOL["MANIFESTS"].get(entry.name, entry.name.replace("-", "_")))
    num_values = sum(math.prod(spec.shape) for spec in specs.values())
    assert (entry.num_values, entry.num_bytes) == (num_values, 4 * num_values)
    assert recognize(specs, entry.name) == entry.family
