"""Third-party files are read safely: their code does not run, and defects are reported."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from page4d.errors import WeightsError
from page4d.weights.sources import open_source
from page4d.weights.store import describe_weights
from tests.fuzzing import bounded, fuzz

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4).half()}


class Evil:
    """Unpickling it creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_reported_and_does_not_run(zipped: bool, tmp_path: Path):
    path, marker = tmp_path / "evil.pt", tmp_path / "executed"
    torch.save({"model": TENSORS, "extra": Evil(marker)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match=r"'.*evil.pt' contains Python objects \((posix|nt)\.mkdir\)") as caught:
        open_source(path)
    assert "does not run code" in caught.value.hint
    assert caught.value.exit_code == 4
    assert not marker.exists()
    with path.open("rb") as file:
        torch.load(file, weights_only=False)
    assert marker.exists(), "the pickle does run code without the safeguard"


def test_code_in_a_bare_pickle_does_not_run(tmp_path: Path):
    path, marker = tmp_path / "evil.bin", tmp_path / "executed"
    path.write_bytes(pickle.dumps(Evil(marker), protocol=2))
    with pytest.raises(WeightsError):
        open_source(path)
    assert not marker.exists()


def test_a_pickle_named_safetensors_is_not_read(tmp_path: Path):
    path, marker = tmp_path / "evil.safetensors", tmp_path / "executed"
    torch.save([Evil(marker)], path)
    with pytest.raises(WeightsError, match="a PyTorch checkpoint with a wrong suffix"):
        open_source(path)
    assert not marker.exists()


def test_tensors_are_read_by_name(tmp_path: Path):
    save_file(TENSORS, tmp_path / "x.safetensors")
    torch.save({"state_dict": TENSORS}, tmp_path / "x.pth")
    for name in ("x.safetensors", "x.pth"):
        source = open_source(tmp_path / name)
        assert {key: (spec.shape, spec.dtype) for key, spec in source.specs.items()} == {
            "a": ((2, 3), torch.float32),
            "b": ((4,), torch.float16),
        }
        assert all(torch.equal(source.read(key), value) for key, value in TENSORS.items())
        assert list(source.sha256()) == [name]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1, 2], "holds no named tensors, but list"),
        ({}, "holds no named tensors"),
        ({"epoch": 3, "lr": 0.1}, "holds no named tensors, but epoch, lr"),
        ({"model": {"a": torch.ones(1), "b": 3}}, "entry 'b' is int, not a plain tensor"),
        ({1: torch.ones(1)}, "holds a tensor under 1"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "has type complex64"),
        ({"a": torch.ones(2).to(torch.float8_e4m3fn)}, "has type float8_e4m3fn"),
        ({"a": torch.ones(2, device="meta")}, "on the device meta"),
        ({"a": torch.eye(2).to_sparse()}, "is Tensor, not a plain tensor"),
    ],
)
def test_the_content_of_a_checkpoint_without_plain_tensors_is_reported(held: object, message: str, tmp_path: Path):
    torch.save(held, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=message):
        open_source(tmp_path / "x.pt")


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.bin"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a git-lfs pointer"),
        (b"\n<!DOCTYPE html><html></html>", "is a web page"),
        (b"PK\x03\x04" + bytes(80), "damaged"),
        (bytes(range(200)), "damaged"),
        (b"\x80\x02}q\x00.", "damaged|holds no tensors"),
    ],
)
def test_files_of_other_types_are_recognized(name: str, content: bytes, message: str, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        open_source(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "legacy"])
def test_a_truncated_file_is_damaged_at_every_length(suffix: str, tmp_path: Path):
    path = tmp_path / f"x.{suffix}"
    if suffix == "safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path, _use_new_zipfile_serialization=suffix == "pt")
    content = path.read_bytes()
    for kept in (1, 5, 9, 40, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:kept])
        with pytest.raises(WeightsError):
            open_source(path)


def test_flipped_bytes_never_raise_another_error(tmp_path: Path):
    buffer = io.BytesIO()
    torch.save(TENSORS, buffer)
    with zipfile.ZipFile(buffer) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (record,) = [name for name in entries if name.endswith("data.pkl")]
    path = tmp_path / "x.pt"
    refused = 0
    for place in range(0, len(entries[record]), 2):
        changed = bytearray(entries[record])
        changed[place] ^= 0x15
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, bytes(changed) if name == record else content)
        try:
            open_source(path)
        except WeightsError:
            refused += 1
    assert refused > 20


def deflated(path: Path, num_bytes: int) -> Path:
    """Write a checkpoint of zeros as a ZIP archive whose entries are compressed."""
    torch.save({"a": torch.zeros(num_bytes // 4)}, path)
    packed = path.with_name("packed.pt")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as smaller:
        for name in archive.namelist():
            smaller.writestr(name, archive.read(name))
    path.unlink()
    return packed


def test_an_archive_that_inflates_beyond_its_size_is_refused_before_it_is_read(tmp_path: Path):
    path = deflated(tmp_path / "x.pt", 200 * 10**6)
    assert path.stat().st_size < 10**6
    with bounded(seconds=1, megabytes=20), pytest.raises(WeightsError, match="and would become 200 MB in memory"):
        open_source(path)


def test_objects_that_would_fill_the_memory_are_refused(tmp_path: Path):
    """Empty lists of 12 MB need 1.1 GB and minutes."""
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\2](" + b"]" * 20 * 10**6 + b"e.")
        archive.writestr("a/version", "3\n")
    with bounded(seconds=1, megabytes=20), pytest.raises(WeightsError, match="more than tensors: 20 MB of objects"):
        open_source(path)


def test_tensors_without_memory_of_their_own_are_refused(tmp_path: Path):
    torch.save({"a": torch.zeros(1).expand(10**12)}, tmp_path / "x.pt")
    with bounded(seconds=1, megabytes=20), pytest.raises(WeightsError, match="would become 4,000,000 MB in memory"):
        open_source(tmp_path / "x.pt")
    tied = torch.ones(100)
    torch.save({"a": tied, "b": tied, "c": torch.ones(1).expand(5)}, tmp_path / "tied.pt")
    assert torch.equal(open_source(tmp_path / "tied.pt").read("b"), tied)


def test_wrappers_inside_each_other_end(tmp_path: Path):
    endless: dict[str, object] = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="holds no named tensors, but model"):
        open_source(tmp_path / "x.pt")


@fuzz(150)
@given(draws=st.data())
def test_changed_files_are_read_or_refused(draws: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.getbasetemp()
    kind = draws.draw(st.sampled_from(("safetensors", "zip", "legacy")))
    path = folder / ("x.safetensors" if kind == "safetensors" else "x.pt")
    if kind == "safetensors":
        save_file(TENSORS, path, metadata={"page4d": "{}"})
    else:
        torch.save({"model": TENSORS}, path, _use_new_zipfile_serialization=kind == "zip")
    content = bytearray(path.read_bytes())
    for _ in range(draws.draw(st.integers(1, 4))):
        start = draws.draw(st.integers(0, len(content) - 1))
        match draws.draw(st.sampled_from(("flip", "overwrite", "cut", "end"))):
            case "flip":
                content[start] ^= 1 << draws.draw(st.integers(0, 7))
            case "overwrite":
                content[start : start + 8] = draws.draw(st.sampled_from((b"\xff" * 8, b"9" * 8, b"{" * 8, bytes(8))))
            case "cut":
                del content[start : start + draws.draw(st.integers(1, 64))]
            case "end":
                del content[start + 1 :]
        if not content:
            break
    path.write_bytes(content)
    with bounded(seconds=5):
        for read in (open_source, describe_weights):
            try:
                read(path)
            except WeightsError as error:
                assert_short(error.message)


def assert_short(message: str) -> None:
    assert len(message) < 600


def index(folder: Path, places: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards_are_joined_by_their_index(tmp_path: Path):
    save_file({"a": TENSORS["a"]}, tmp_path / "one.safetensors")
    save_file({"b": TENSORS["b"]}, tmp_path / "two.safetensors")
    with pytest.raises(WeightsError, match=r"and 2 \.safetensors files"):
        open_source(tmp_path)
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    source = open_source(tmp_path)
    assert all(torch.equal(source.read(key), value) for key, value in TENSORS.items())
    assert list(source.sha256()) == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": "one.safetensors", "b": "two.safetensors"}, "two.safetensors' do not exist"),
        ({"a": "../one.safetensors"}, r"no \.safetensors file of its folder"),
        ({"a": "/etc/passwd"}, r"no \.safetensors file of its folder"),
        ({"a": None}, "has no 'weight_map'"),
        ({"a": "one.safetensors", "c": "one.safetensors"}, "lacks tensor 'c'"),
        ({"c": "one.safetensors"}, "lacks tensor 'c'"),
        ({}, "names no tensors"),
        ([], "has no 'weight_map'"),
        (None, "has no 'weight_map'"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(places: object, message: str, tmp_path: Path):
    save_file({"a": TENSORS["a"]}, tmp_path / "one.safetensors")
    index(tmp_path, places)
    with pytest.raises(WeightsError, match=message):
        open_source(tmp_path)


def test_a_tensor_that_the_index_does_not_list_is_refused(tmp_path: Path):
    save_file(TENSORS, tmp_path / "one.safetensors")
    index(tmp_path, {"a": "one.safetensors"})
    with pytest.raises(WeightsError, match="holds 'b', which the index does not list"):
        open_source(tmp_path)


def test_missing_files_are_reported(tmp_path: Path):
    with pytest.raises(WeightsError, match="do not exist"):
        open_source(tmp_path / "x.safetensors")
    with pytest.raises(WeightsError, match=r"has no safetensors\.index\.json and 0"):
        open_source(tmp_path)


def test_an_index_that_is_no_document_is_refused(tmp_path: Path):
    place = tmp_path / "model.safetensors.index.json"
    os.mkfifo(place)
    with pytest.raises(WeightsError, match="not a regular file"):  # reading it would never end
        open_source(tmp_path)
    for text, message in (("[" * 100_000, "nested"), ('{"weight_map": {}, "weight_map": {}}', "weight_map")):
        place.unlink()
        place.write_text(text)
        with pytest.raises(WeightsError, match=message):
            open_source(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_of_a_training_on_several_devices_is_read(zipped: bool, tmp_path: Path):
    """With prefixed names, tied weights, counts as integers, half precision, and the state of an optimizer."""
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": value for name, value in layer.state_dict().items()}
    state["module.tied"] = state["module.0.weight"]
    path = tmp_path / "ddp.pt"
    content = {"model": state, "optimizer": optimizer.state_dict(), "epoch": 3, "ema": dict(state), "seed": 2**63}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    source = open_source(path)
    assert {"0.weight", "tied", "1.num_batches_tracked"} <= set(source.specs)
    assert torch.equal(source.read("tied"), layer[0].weight)
