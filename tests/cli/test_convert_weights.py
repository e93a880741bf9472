"""`page4d convert-weights`: printed and written output, and every failure."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from page4d.weights import load
from page4d.weights.loading import load_encoder
from tests.encoders.recorded import load_recorded
from tests.keymaps import recorded_config

GOLDEN = Path(__file__).parents[1] / "golden" / "vggt_c.safetensors"
NAME = "aggregator.frame_blocks.0.norm1.weight"


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    start = "weights/"
    return {name[len(start) :]: value for name, value in load_file(GOLDEN).items() if name.startswith(start)}


@pytest.fixture
def source(weights, tmp_path) -> Path:
    path = tmp_path / "vggt.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture
def config(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "network.json"
    path.write_text(recorded_config("vggt_c").to_json())
    return path


@pytest.fixture
def convert(cli, config, tmp_path):
    def call(*sources: object, out: Path | None = None, described: bool = True):
        more = ("--config", config) if described else ()
        return cli("convert-weights", *sources, *more, "--out", out or tmp_path / "out.safetensors")

    return call


def test_the_json_output_has_counts_and_every_row(source, tmp_path, convert) -> None:
    document = json.loads(convert(source, "--json", "--licence", "mine", "--dtype", "bf16").out)
    assert document["out"] == str(tmp_path / "out.safetensors")
    assert len(document["tensors"]) == 375
    assert document["counts"] == {"copied": 374, "derived": 0, "new": 0, "dropped": 1}
    assert document["metadata"]["licence"] == "mine"
    assert document["metadata"]["sources"].startswith('{"VGGT": {"vggt.safetensors": ')
    assert load(tmp_path / "out.safetensors", "cpu").info.metadata == document["metadata"]


def test_dry_run_writes_nothing_and_quiet_prints_nothing(source, tmp_path, convert) -> None:
    ended = convert(source, "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert "would become" in ended.out
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
    assert convert(source, "--quiet") == type(ended)(0, "", "")


def test_existing_files_are_replaced_with_overwrite_only(source, tmp_path, convert) -> None:
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"mine")
    ended = convert(source)
    assert (ended.code, ended.err) == (
        2,
        f"error: '{out}' already exists\nhint:  choose another name, or pass --overwrite\n",
    )
    assert out.read_bytes() == b"mine"
    assert convert(source, "--overwrite").code == 0
    assert convert(source, "--overwrite", out=source).code == 2


@pytest.mark.parametrize(
    ("options", "changes", "code", "message"),
    [
        (("--to", "moge"), {}, 2, "Invalid value for '--to': 'moge' is"),
        (("--mask", "on"), {}, 2, ""),
        ((), {"described": False}, 2, "has encoder.embed_dim 32 where the published VGGT has 1024"),
        ((), {"out": "out.pt"}, 2, ""),
        ((), {"out": "no/out.safetensors"}, 5, "folder 'no' does not exist"),
        ((), {"name": "nowhere.safetensors"}, 4, "weights 'nowhere.safetensors' do not exist"),
        ((), {"renamed": "norm9"}, 4, "no source tensor becomes 'aggregator.blocks.frame.0.norm1.weight' [32]"),
        ((), {"described": '{"depth": 2}'}, 2, "network.json': network configuration: encoder: Field required"),
    ],
)
def test_what_cannot_be_converted_has_two_lines_and_writes_nothing(
    options, changes, code, message, weights, source, config, convert, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "renamed" in changes:
        save_file(weights | {NAME.replace("norm1", changes["renamed"]): weights.pop(NAME)}, source)
    described = changes.get("described", True)
    if isinstance(described, str):
        config.write_text(described)
    ended = convert(changes.get("name", source), *options, out=changes.get("out"), described=bool(described))
    assert (ended.code, ended.out) == (code, "")
    first, second = ended.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint:  ")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_disk_that_fills_up_keeps_the_older_file(source, tmp_path, convert, file_size_limit) -> None:
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"older")
    with file_size_limit(100_000):
        ended = convert(source, "--overwrite")
    assert (ended.code, ended.out) == (5, "")
    error = f"error: cannot write to '{out}': the file is larger than this process may write"
    assert ended.err.splitlines()[-2].startswith(error)
    assert out.read_bytes() == b"older"
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, source.name]


def test_an_encoder_is_converted_to_its_own_file(tmp_path, cli) -> None:
    save_file(load_recorded("swin_clampns_a").part("weights/"), tmp_path / "swin.safetensors")
    out = tmp_path / "out.safetensors"
    refused = cli("convert-weights", tmp_path / "swin.safetensors", "--out", out, "--to", "page4d-mv")
    assert (refused.code, out.exists()) == (2, False)
    assert "is an encoder; options of networks are given" in refused.err
    ended = cli("convert-weights", tmp_path / "swin.safetensors", "--out", out)
    assert ended.code == 0, ended.err
    rows = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "Swin (Microsoft) relative position bias tables derived 4" in rows
    assert "encoder Swin (Microsoft), 63 tensors, 377 kB; all accounted for" in rows
    assert load_encoder(out)[1].num_heads == (2, 4)
