"""`page4d convert-weights`: printed and written output, and every failure."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from page4d.weights import load
from page4d.weights.loading import load_encoder
from page4d.weights.store import write_tensors
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


def test_the_table_counts_tensors_and_the_file_loads(source, tmp_path, convert) -> None:
    ended = convert(source, "--to", "page4d-mv")
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["VGGT", "aggregator.blocks.time", "copied", "72"] in rows
    assert ["VGGT", "mask", "token:", "used", "in", "pretraining", "only", "dropped", "1"] in rows
    assert ["page4d", "lambda:", "starts", "at", "0", "new", "4"] in rows
    assert "network  page4d-mv, 386 tensors" in ended.out
    assert "sources  374 tensors used, 1 dropped" in ended.out
    assert "licence  VGGT: VGGT License v1" in ended.out
    assert load(tmp_path / "out.safetensors", "cpu").info.metadata["to"] == "page4d-mv"


def test_invalid_options_write_nothing(source, tmp_path, convert) -> None:
    ended = convert(source, "--to", "moge")
    assert (ended.code, ended.out) == (2, "")
    assert "Invalid value for '--to'" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_the_json_output_has_counts_and_every_row(source, tmp_path, convert) -> None:
    document = json.loads(convert(source, "--json", "--licence", "mine", "--dtype", "bf16").out)
    assert document["out"] == str(tmp_path / "out.safetensors")
    assert len(document["tensors"]) == 375
    assert document["counts"] == {"copied": 374, "derived": 0, "new": 0, "dropped": 1}
    assert document["metadata"]["licence"] == "mine"
    assert document["metadata"]["sources"].startswith('{"VGGT": {"vggt.safetensors": ')


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


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _evil(path: Path, weights: dict) -> None:
    torch.save({"model": weights, "hook": _Evil(path.parent / "executed")}, path)


def _renamed(path: Path, weights: dict) -> None:
    weights["aggregator.frame_blocks.0.norm9.weight"] = weights.pop(NAME)
    save_file(weights, path)


WRONG = {
    "evil pickle": ("x.pt", _evil, "contains Python objects (posix.mkdir) and was not loaded"),
    "renamed": ("x.safetensors", _renamed, "no source tensor becomes 'aggregator.blocks.frame.0.norm1.weight' [32]"),
    "empty": ("x.pt", lambda path, _: path.write_bytes(b""), "is empty"),
}
"""Each for one kind; the tests of `page4d.weights` have all."""


@pytest.mark.parametrize("case", list(WRONG))
def test_an_invalid_source_gives_a_two_line_error_and_writes_nothing(case, weights, tmp_path, convert) -> None:
    name, write, message = WRONG[case]
    write(tmp_path / name, weights)
    ended = convert(tmp_path / name)
    assert ended.code == 4, ended.err
    assert message in ended.err
    first, second = ended.err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("hint:  ")
    assert ended.out == ""
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_missing_and_wrong_settings_are_refused(source, tmp_path, config, convert) -> None:
    ended = convert(source, described=False)
    assert ended.code == 2
    assert "has encoder.embed_dim 32 where the published VGGT has 1024" in ended.err
    assert "--config" in ended.err
    assert convert(source, "--mask", "on").code == 2
    assert convert(source, "--config", config).code == 2
    assert convert(tmp_path / "nowhere.safetensors").code == 4
    assert convert(source, out=tmp_path / "out.pt").code == 2
    assert convert(source, out=tmp_path / "no" / "out.safetensors").code == 5
    config.write_text('{"depth": 2}')
    ended = convert(source)
    assert ended.code == 2
    first, second = ended.err.splitlines()
    assert first == f"error: '{config}': network configuration: encoder: Field required"
    assert second.startswith("hint:  give a network as JSON")


class _FullDisk:
    """A file on a disk with a given number of free bytes."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data) -> int:
        self.room -= memoryview(data).nbytes
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)


@pytest.mark.parametrize("room", [0, 100_000])
def test_a_disk_that_fills_up_keeps_the_older_file(room, source, tmp_path, convert, monkeypatch) -> None:
    monkeypatch.setattr(
        "page4d.weights.store.write_tensors",
        lambda file, *arguments: write_tensors(_FullDisk(file, room), *arguments),
    )
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"older")
    ended = convert(source, "--overwrite")
    assert (ended.code, ended.out) == (5, "")
    assert ended.err.splitlines()[-2:] == [
        f"error: cannot write to '{out}': disk full",
        "hint:  free space, then repeat",
    ]
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
