"""Descriptions of networks with any numbers are refused, or their tensors' shapes are found in bounded time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from page4d.choices import TimeEncoding
from page4d.errors import Page4DError, UsageError, WeightsError
from page4d.io.json_records import config_to_json
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import EpipolarConfig, MatchConfig, SparseConfig
from page4d.networks.encoders.build import ENCODER_PRESETS, encoder_from_json
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.convert import tensor_shapes
from page4d.weights.store import describe_weights, save_network
from tests.fuzzing import bounded, fuzz, places_of

HOSTILE = (
    *("9223372036854775808", "1000000000", "65536", "256", "4", "1", "0", "-1", "1e308", "NaN", "Infinity", "0.5"),
    *("9" * 4000, "9" * 5000, "true", '"x"', "null", "{}", "[]", "[0]", "[0, 1, 2, 3]"),
    *("[0, 4611686018427387904]", "[4611686018427387904, 0]", "[" * 2000 + "]" * 2000),
)
_EVERYTHING = replace(
    PRESETS["mv-small"],
    sparse=SparseConfig(layers=(4, 5)),
    epipolar=EpipolarConfig(layers=(2, 3)),
    matches=MatchConfig(),
    time_encoding=TimeEncoding.ALIBI,
)
NETWORKS = {
    "everything": _EVERYTHING,
    **{name: PRESETS[name] for name in ("mv-demo", "pi3", "page4d-mask", "mv-swin", "mv-twins", "mv-navit")},
}
DESCRIPTIONS = {
    **{name: (NetworkConfig.from_json, json.loads(config_to_json(config))) for name, config in NETWORKS.items()},
    **{
        name: (encoder_from_json, json.loads(config_to_json(ENCODER_PRESETS[name])))
        for name in ("vit-s16", "swin-t", "twins-svt-s", "navit")
    },
}


def changed(document: Any, path: tuple[Any, ...], text: str) -> str:
    """Return a document as JSON with a text in one place."""
    document = json.loads(json.dumps(document))
    inner = document
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = "@"
    return json.dumps(document).replace('"@"', text)


@pytest.mark.parametrize("name", DESCRIPTIONS)
@fuzz(20)
@given(draws=st.data())
def test_a_description_with_any_values_is_refused_or_has_shapes(name: str, draws: st.DataObject):
    read, document = DESCRIPTIONS[name]
    spots = places_of(document)[1:]
    text = changed(document, draws.draw(st.sampled_from(spots)), draws.draw(st.sampled_from(HOSTILE)))
    error: Page4DError | None = None
    with bounded(seconds=10):
        try:
            assert tensor_shapes(read(text))
        except Page4DError as refusal:
            error = refusal
    if error is not None:
        assert error.exit_code == 2
        assert len(error.message) < 400
        assert error.hint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("encoder", "embed_dim"), "9223372036854775808"),
        (("depth",), "1000000000"),
        (("depth",), "-1"),
        (("num_heads",), "0"),
        (("mlp_ratio",), "-4.0"),
        (("norm_eps",), "1e400"),
        (("mask", "layers"), "[0, 4611686018427387904]"),
        (("sparse", "memory_tokens"), "1000000000"),
        (("depth_head", "hidden"), "-32"),
        (("encoder", "image_size"), "14000000"),
    ],
)
def test_a_number_beyond_reason_is_named(path: tuple[str, ...], value: str):
    with bounded(seconds=2, megabytes=50), pytest.raises(UsageError, match="configuration: " + r"\.".join(path)):
        NetworkConfig.from_json(changed(DESCRIPTIONS["everything"][1], path, value))


@pytest.fixture
def tiny(tmp_path) -> Path:
    """Return the weights of a small network."""
    torch.manual_seed(0)
    path = tmp_path / "tiny.safetensors"
    save_network(build_network(PRESETS["mv-tiny"]), path, {"licence": "CC0-1.0", "description": "a test"})
    return path


def with_entry(path: Path, entry: str) -> Path:
    """Replace the description of a file."""
    save_file(load_file(path), path, metadata={"page4d": entry})
    return path


def entry_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["page4d"])
    return found


def test_a_large_network_in_the_description_of_a_small_file_is_refused_before_memory_is_used(tiny: Path):
    from page4d.weights import load

    about = entry_of(tiny)
    huge = changed(changed_document(about["config"], ("encoder", "embed_dim"), 65536), ("encoder", "depth"), "256")
    about["config"] = huge
    with bounded(seconds=10), pytest.raises(WeightsError, match=r"tensors missing, first: encoder\."):
        load(with_entry(tiny, json.dumps(about)), "cpu")


def changed_document(config: str, path: tuple[str, str], value: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(config)
    document[path[0]][path[1]] = value
    return document


@fuzz(20)
@given(draws=st.data())
def test_a_changed_description_of_a_file_is_a_weights_error_or_none(draws: st.DataObject, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "described.safetensors"
    if not path.exists():
        save_network(build_network(PRESETS["mv-tiny"]), path, {"licence": "CC0-1.0", "description": "a test"})
    about = entry_of(path)
    spots = places_of(about)[1:]
    text = changed(about, draws.draw(st.sampled_from(spots)), draws.draw(st.sampled_from(HOSTILE)))
    other = path.with_name("changed.safetensors")
    save_file({"x": torch.zeros(1)}, other, metadata={"page4d": text})
    message = ""
    try:
        describe_weights(other)
    except WeightsError as error:
        message = error.message
    assert len(message) < 600
