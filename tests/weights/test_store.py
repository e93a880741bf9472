"""Saved networks round-trip, and invalid files are reported."""

import copy
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import page4d
from page4d.errors import OutputError, UsageError, WeightsError
from page4d.networks import PRESETS, ViewTimeNetwork, build_network
from page4d.weights import describe_weights, load, save_network

METADATA = {"licence": "CC0-1.0", "description": "a test", "trained_on": "nothing"}


@pytest.fixture(scope="module")
def network() -> ViewTimeNetwork:
    torch.manual_seed(0)
    return build_network(PRESETS["mv-tiny"])


@pytest.fixture
def saved(network: ViewTimeNetwork, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_network(network, path, METADATA)
    return path


def rewritten(path: Path, change) -> Path:
    """Write the file again with its tensors changed and its description kept."""
    with safe_open(path, framework="pt") as file:
        entries = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=entries)
    return path


def test_round_trip_is_exact(network: ViewTimeNetwork, saved: Path) -> None:
    loaded = load(saved, "cpu")
    assert loaded.config == network.config
    before, after = network.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    images, mask = torch.rand(1, 2, 2, 3, 28, 42), torch.rand(1, 2, 2, 28, 42)
    with torch.no_grad():
        ours, theirs = network.eval()(images, mask), loaded(images, mask)
    assert torch.equal(ours.depth, theirs.depth)
    assert torch.equal(ours.pose_encoding, theirs.pose_encoding)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_the_file_records_its_provenance(saved: Path) -> None:
    info = load(saved, "cpu").info
    assert describe_weights(saved) == (PRESETS["mv-tiny"], info)
    assert info.path == saved
    assert info.sha256 == hashlib.sha256(saved.read_bytes()).hexdigest()
    assert (info.licence, info.description) == ("CC0-1.0", "a test")
    assert info.metadata["trained_on"] == "nothing"


def test_equal_networks_give_equal_bytes(network: ViewTimeNetwork, saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    save_network(network, again, dict(reversed(METADATA.items())))
    assert again.read_bytes() == saved.read_bytes()


def test_half_precision_loads_as_float32(network: ViewTimeNetwork, saved: Path) -> None:
    rewritten(saved, lambda tensors: tensors.update({name: value.half() for name, value in tensors.items()}))
    state = load(saved, "cpu").state_dict()
    assert {value.dtype for value in state.values()} == {torch.float32}
    for name, value in network.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-6)


def test_an_unwritable_path_is_named(network: ViewTimeNetwork, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write to '.*nowhere/x.safetensors'") as caught:
        save_network(network, tmp_path / "nowhere" / "x.safetensors", METADATA)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("metadata", [{}, {"licence": "MIT"}, {"licence": "", "description": "x"}])
def test_a_licence_and_a_description_are_required(network: ViewTimeNetwork, tmp_path: Path, metadata: dict) -> None:
    with pytest.raises(UsageError, match="metadata lacks"):
        save_network(network, tmp_path / "x.safetensors", metadata)


FOREIGN = {
    "empty": ("x.safetensors", b"", "is empty"),
    "pointer": (
        "x.safetensors",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "is a git-lfs pointer",
    ),
    "page": ("x.safetensors", b"\n<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
    "old page": ("x.safetensors", b"<HTML><head></head></HTML>", "is a web page"),
    "zip": ("x.safetensors", b"PK\x03\x04" + bytes(60), "is a PyTorch checkpoint"),
    "pickle": ("x.safetensors", b"\x80\x02}q\x00.", "is a PyTorch checkpoint"),
    "suffix": ("x.pt", bytes(64), "is a PyTorch checkpoint"),
    "noise": ("x.safetensors", bytes(range(200)), "is damaged"),
    "short": ("x.safetensors", b"\1\0\0", "is damaged"),
    "readme": ("README.md", "# Poids : à lire\n".encode() * 99, "is not a weights file"),
    "index": ("model.safetensors.index.json", b'{"metadata": {}}', "is not a weights file"),
    "video": ("x.mp4", b"\0\0\0\x20ftypisom" + bytes(99), "is not a weights file"),
    "image": ("x.safetensors", b"\x89PNG\r\n\x1a\n" + bytes(99), "is damaged"),
}


@pytest.mark.parametrize("case", list(FOREIGN))
def test_files_of_other_types_are_recognized(tmp_path: Path, case: str) -> None:
    name, content, message = FOREIGN[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=f"'{path}' {message}") as caught:
        describe_weights(path)
    assert caught.value.hint
    assert caught.value.exit_code == 4


def test_a_pytorch_checkpoint_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    torch.save({"a": torch.ones(2)}, path)
    with pytest.raises(WeightsError, match="may contain code, and was not loaded") as caught:
        describe_weights(path)
    assert "convert" in caught.value.hint


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="do not exist") as caught:
        load(tmp_path / "x.safetensors", "cpu")
    assert "page4d weights list" in caught.value.hint
    with pytest.raises(WeightsError, match="are a folder, not a file"):
        load(tmp_path, "cpu")


def test_a_folder_of_a_run_is_refused_with_the_name_of_its_weights(saved: Path) -> None:
    saved.rename(saved.with_name("weights.safetensors"))
    with pytest.raises(WeightsError, match="are a folder, not a file") as caught:
        load(saved.parent, "cpu")
    assert str(saved.with_name("weights.safetensors")) in caught.value.hint


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_neither_loaded_nor_written(
    network: ViewTimeNetwork, saved: Path, value: float
) -> None:
    name = "camera_head.pose_branch.fc1.bias"

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][3] = value

    before = saved.read_bytes()
    spoiled = copy.deepcopy(network)
    with torch.no_grad():
        spoil(dict(spoiled.named_parameters()))
    with pytest.raises(WeightsError, match=f"tensor '{name}' holds values that are not finite"):
        save_network(spoiled, saved, METADATA)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    with pytest.raises(WeightsError, match=f"tensor '{name}' holds values that are not finite"):
        load(rewritten(saved, spoil), "cpu")


def test_values_beyond_half_precision_are_refused_in_half_precision_only(saved: Path) -> None:
    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        tensors["aggregator.blocks.time.0.mlp.fc1.weight"][0, :2] = 3e38  # their sum overflows

    rewritten(saved, enlarge)
    load(saved, "cpu")
    with pytest.raises(WeightsError, match=r"exceeds the range of torch\.float16") as caught:
        load(saved, "cpu", "fp16")
    assert "bf16" in caught.value.hint


def test_whole_numbers_are_not_loaded_as_weights(saved: Path) -> None:
    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        name = next(iter(tensors))
        tensors[name] = tensors[name].to(torch.uint8)

    with pytest.raises(WeightsError, match=r"is torch\.uint8, the network's torch\.float32"):
        load(rewritten(saved, quantize), "cpu")


def test_a_file_can_be_pinned_by_its_hash(saved: Path) -> None:
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert load(saved, "cpu", sha256=digest).info.sha256 == digest
    for text in (digest.upper(), f"sha256:{digest}", f" {digest}\n"):
        assert page4d.load(saved, sha256=text).config == PRESETS["mv-tiny"]
    other = "0" * 64
    for read in (load, describe_weights):
        with pytest.raises(WeightsError, match=rf"^tiny\.safetensors has sha256 {digest[:12]}\.\., expected 0{{12}}"):
            read(saved, sha256=other)
    for path, given, message in (
        (saved, digest[:-1], "is not a SHA-256"),
        (saved, "x" * 64, "is not a SHA-256"),
        (None, digest, "sha256 without weights"),
    ):
        with pytest.raises(UsageError, match=message):
            page4d.load(path, sha256=given)


@pytest.mark.parametrize("kept", [6, 100, 0.5, 0.999])
def test_a_truncated_file_is_reported_as_damaged(saved: Path, kept: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(kept if kept > 1 else kept * len(content))])
    with pytest.raises(WeightsError, match=r"is damaged \(incomplete\)"):
        load(saved, "cpu")


def test_tensors_without_a_description_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(2)}, path, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="holds tensors but no page4d network"):
        describe_weights(path)


def described(config: object = "{}", version: object = 1, metadata: object = METADATA) -> str:
    return json.dumps({"version": version, "config": config, "metadata": metadata})


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{", "damaged description"),
        ("[]", "damaged description"),
        (json.dumps({"version": 1, "config": "{}"}), "damaged description: 'metadata'"),
        (described(metadata={}), "damaged description: 'licence'"),
        (described(metadata=[]), "damaged description"),
        (described(version=2), "format version 2"),
        (described(version="x" * 10_000), "format version"),
        ('{"version": ' + "9" * 5000 + "}", "damaged description"),
        (described(), "network configuration: encoder"),
        (described(config=3), "network configuration"),
        (described(config="[" * 10_000), "network configuration"),
        (DEEP, "damaged description"),
        ('{"version": 1, "config": ' + DEEP + "}", "damaged description"),
    ],
    ids=lambda value: value[:40],
)
def test_a_damaged_description_is_reported(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(2)}, path, metadata={"page4d": entry})
    for read in (describe_weights, lambda path: load(path, "cpu")):
        with pytest.raises(WeightsError, match=message) as caught:
            read(path)
        assert len(caught.value.message) < 500


def test_missing_unexpected_and_misshaped_tensors_are_named(saved: Path) -> None:
    name = "aggregator.blocks.time.0.norm1.weight"
    rewritten(saved, lambda tensors: tensors.update({name: torch.ones(7)}))
    with pytest.raises(
        WeightsError, match=rf"1 tensor misshaped, first: {name} is \[7\] where the network has \[32\]"
    ):
        load(saved, "cpu")
    rewritten(saved, lambda tensors: tensors.pop(name))
    with pytest.raises(WeightsError, match=f"1 tensor missing, first: {name}"):
        load(saved, "cpu")
    rewritten(saved, lambda tensors: tensors.update({name: torch.ones(32), "extra": torch.ones(1)}))
    with pytest.raises(WeightsError, match="1 tensor unexpected, first: extra"):
        load(saved, "cpu")
