"""`page4d inspect-shapes`: exact shapes of the stages, and published numbers of parameters."""

import json
import subprocess
import sys

import pytest
import torch

from page4d.networks import PRESETS, build_network
from page4d.weights import save_network

TINY = ("--model", "mv-tiny", "--times", "2", "--views", "3", "--size", "42x28")

STAGES = [
    ("encoding", "1 normalized images", [1, 2, 3, 3, 28, 42], 0),
    ("encoding", "2 images in one batch", [6, 3, 28, 42], 0),
    ("encoding", "3 patch tokens (DINOv2)", [6, 6, 32], 32_672),
    ("encoding", "4 register tokens", [6, 4, 32], 256),
    ("encoding", "5 concatenated tokens", [6, 10, 32], 0),
    ("encoding", "6 tokens per image", [1, 2, 3, 10, 32], 0),
    ("encoding", "7 camera token", [1, 2, 3, 11, 32], 64),
    ("mask", "predicted mask (conv head)", [1, 2, 3, 2, 3], 4_961),
    ("mask", "mask, fused with the external mask", [1, 2, 3, 6], 2),
    ("mask", "mask bias of time-attention, layers 1, 2", [3, 22], 0),
    ("mask", "mask bias of view-attention, layers 1, 2", [2, 33], 0),
    ("mask", "weights (lambda) of the mask bias", [4], 4),
    ("trunk", "time-attention (fixed v), 4 layers", [3, 22, 32], 51_328),
    ("trunk", "time-attention: q, k, v", [3, 3, 2, 22, 16], 0),
    ("trunk", "time-attention: hidden layer of the MLP", [3, 22, 128], 0),
    ("trunk", "time-attention: tokens per image", [1, 2, 3, 11, 32], 0),
    ("trunk", "view-attention (fixed t), 4 layers", [2, 33, 32], 51_328),
    ("trunk", "view-attention: q, k, v", [3, 2, 2, 33, 16], 0),
    ("trunk", "view-attention: hidden layer of the MLP", [2, 33, 128], 0),
    ("trunk", "view-attention: tokens per image", [1, 2, 3, 11, 32], 0),
    ("trunk", "outputs of both steps for the heads, layers 0-3", [1, 2, 3, 11, 64], 0),
    ("heads", "pose encodings (t, quaternion, fov)", [1, 2, 3, 9], 65_874),
    ("heads", "depth", [1, 2, 3, 28, 42, 1], 49_106),
    ("heads", "world points", [1, 2, 3, 28, 42, 3], 49_124),
]


def test_the_stages_of_the_tiny_network_are_exact(cli) -> None:
    document = json.loads(cli("inspect-shapes", *TINY, "--json").out)
    found = [(row["part"], row["name"], row["shape"], row["parameters"]) for row in document["stages"]]
    assert found == STAGES
    symbols = {"B": 1, "T": 2, "V": 3, "H": 28, "W": 42, "gh": 2, "gw": 3, "P": 6, "R": 4, "N": 11, "C": 32}
    assert document["symbols"] == symbols | {"h": 2, "d": 16}
    actual = sum(value.numel() for value in build_network(PRESETS["mv-tiny"]).parameters())
    assert document["parameters"] == actual == sum(row["parameters"] for row in document["stages"])


def test_symbolic_shapes_evaluate_to_the_numeric_ones(cli) -> None:
    document = json.loads(cli("inspect-shapes", *TINY, "--batch", "2", "--json").out)
    numbers = document["symbols"]
    for row in document["stages"]:
        assert len(row["symbolic"]) == len(row["shape"]), row["name"]
        for symbol, number in zip(row["symbolic"], row["shape"], strict=True):
            assert eval(symbol, {}, numbers) == number, (row["name"], symbol)
    assert numbers["B"] == 2


def checked(text: str) -> dict:
    """Return a profile with its stages by name."""
    document = json.loads(text)
    assert document["parameters"] == sum(row["parameters"] for row in document["stages"])
    return {**document, "by_name": {row["name"]: row for row in document["stages"]}}


def large(cli, model: str, *more: str) -> dict:
    return checked(cli("inspect-shapes", "--model", model, *more, "--json").out)


MEASURED = """
import contextlib, io, resource, sys
import torch
from page4d.networks.presets import PRESETS
from page4d.networks.profile.network import forward_cost
from page4d.run.memory import peak_bytes
from page4d.weights.loading import load
from page4d_cli.app import run
codes = [run(["inspect-shapes", "--model", "mv-large", "--times", "24", "--views", "4", "--json"])]
with contextlib.redirect_stdout(io.StringIO()):
    for model in ("swin-t", "twins-svt-s", "navit", "mae", "dino"):
        codes.append(run(["inspect-shapes", "--model", model]))
used = resource.getrusage(resource.RUSAGE_SELF)
peak = peak_bytes(torch.device("cpu"))
load()
for name in ("mv-demo", "da3-small"):
    forward_cost(PRESETS[name], times=2, sizes=[(4 * PRESETS[name].patch_size,) * 2] * 2)
compiler = {"sympy", "torch._dynamo"} & sys.modules.keys()
print(sum(codes), used.ru_utime + used.ru_stime, peak, len(compiler), file=sys.stderr)
"""


@pytest.mark.slow
def test_the_largest_networks_take_seconds_and_little_memory_and_have_their_parameters_and_flops() -> None:
    """Most of the time is the import of torch, and of its compiler if a meta kernel is missing.

    Neither loading a network nor a forecast loads the compiler, which takes seconds.
    """
    ended = subprocess.run([sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True)
    code, seconds, peak, compiler = ended.stderr.split()
    assert (code, compiler) == ("0", "0")
    assert float(seconds) < 10, "about 5 s on an idle machine"
    assert int(peak) < 600_000_000
    rows = checked(ended.stdout)["by_name"]
    assert rows["3 patch tokens (DINOv2)"]["parameters"] == 304_371_712
    assert rows["3 patch tokens (DINOv2)"]["shape"] == [96, 1369, 1024]
    assert rows["predicted mask (conv head)"]["parameters"] == pytest.approx(4.73e6, rel=1e-3)
    time, view = rows["time-attention (fixed v), 24 layers"], rows["view-attention (fixed t), 24 layers"]
    assert (time["shape"], view["shape"]) == ([4, 32976, 1024], [24, 5496, 1024])
    assert time["parameters"] == view["parameters"] == 24 * 12_598_528
    # 658 TFLOP of the trunk, and 439 more for the second stream from layer 8 on.
    assert (time["flops"] + view["flops"]) / 1e12 == pytest.approx(658 + 439, rel=2e-3)
    assert rows["3 patch tokens (DINOv2)"]["flops"] / 1e12 == pytest.approx(97.5, rel=5e-3)
    assert rows["7 camera token"]["shape"] == [1, 24, 4, 1374, 1024]


def test_a_public_network_has_its_published_parameters(cli) -> None:
    """VGGT without its track head, and 272,897 of the mask and two fusion weights more."""
    found = large(cli, "page4d-mask", "--times", "1", "--views", "2", "--size", "28")["parameters"]
    assert found == 1_190_595_096 + 272_897 + 2


def test_a_weights_file_is_profiled_with_its_network(cli, tmp_path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "x.safetensors"
    save_network(build_network(PRESETS["mv-tiny"]), path, {"licence": "CC0-1.0", "description": "a test"})
    ended = cli("inspect-shapes", "--weights", path, "--times", "2", "--views", "3", "--size", "42x28", "--json")
    document = json.loads(ended.out)
    assert document["network"] == "x.safetensors"
    assert [(row["part"], row["name"], row["shape"], row["parameters"]) for row in document["stages"]] == STAGES


def test_encoders_and_pretraining_networks_are_profiled(cli) -> None:
    document = large(cli, "vit-b16", "--batch", "3", "--size", "384")
    assert document["parameters"] == 86_567_656
    assert document["stages"][3]["shape"] == [3, 1 + 24 * 24, 768]
    assert large(cli, "mae")["by_name"]["pixels of masked patches"]["shape"] == [1, 147, 768]
    assert large(cli, "dino", "--batch", "2")["by_name"]["logits of all crops"]["shape"] == [20, 65_536]
    ended = cli("inspect-shapes", "--model", "swin-t")
    assert (ended.code, ended.err) == (0, "")
    assert "28,288,354" in ended.out


@pytest.mark.parametrize(
    ("model", "name"), [("mv-vit", "ViT"), ("mv-swin", "Swin"), ("mv-twins", "Twins-SVT"), ("mv-navit", "NaViT")]
)
def test_a_network_names_its_encoder(model: str, name: str, cli) -> None:
    rows = large(cli, model, "--times", "1", "--views", "2")["by_name"]
    assert [row for row in rows if row.startswith("3 ")] == [f"3 patch tokens ({name})"]
