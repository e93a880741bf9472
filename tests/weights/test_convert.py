"""Converted checkpoints reproduce the outputs of the original code, from every file format."""

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from page4d.choices import Target
from page4d.errors import OutputError, UsageError, WeightsError
from page4d.weights import load
from page4d.weights.conversion.accounting import Tag
from page4d.weights.conversion.convert import (
    ConvertSettings,
    check_output,
    plan_conversion,
    report_document,
    write_conversion,
)
from page4d.weights.store import TensorSpec, write_tensors
from tests.weights.checkpoints import Checkpoint, assert_golden, checkpoint, page4d_and_pi3


def converted(source: Path, given: Checkpoint, out: Path, **settings: object):
    conversion = plan_conversion([source], ConvertSettings(configs=given.configs, **settings))
    write_conversion(conversion, out)
    return load(out, "cpu")


@pytest.mark.parametrize("form", ["safetensors", "shards", "folder", "pickle", "legacy pickle", "training pickle"])
def test_every_file_format_gives_the_golden_outputs_of_vggt(form: str, tmp_path):
    given = checkpoint("vggt_c")
    if form == "safetensors":
        source = given.save(tmp_path)
    elif form == "shards":
        source = given.save_shards(tmp_path)
    elif form == "folder":
        source = tmp_path / "snapshot"
        source.mkdir()
        given.save(source)
    elif form == "training pickle":
        source = given.save_pickle(tmp_path, steps=3, args=argparse.Namespace(lr=0.1))
    else:
        source = given.save_pickle(tmp_path, zipped=form == "pickle")
    assert_golden(converted(source, given, tmp_path / "out.safetensors"), given, axes=[1])


@pytest.mark.parametrize(
    ("mask", "target", "run"),
    [
        (True, Target.OWN, "output"),
        (False, Target.OWN, "output_nomask"),
        (False, Target.PAGE4D_MV, "output_nomask"),
        (True, Target.PAGE4D_MV, "output_nomask"),
    ],
)
def test_page4d_with_and_without_its_mask(mask: bool, target: Target, run: str, tmp_path):
    """In the view x time network the mask acts through lambda, which starts at 0."""
    given = checkpoint("page4d_a")
    source = given.save_pickle(tmp_path, epoch=1)
    loaded = converted(source, given, tmp_path / "out.safetensors", mask=mask, target=target)
    assert_golden(loaded, given, run, axes=[1])


def test_three_stage_runs_and_holds_the_tensors_of_the_account(tmp_path):
    upper, lower = page4d_and_pi3()
    settings = ConvertSettings(configs=upper.configs + lower.configs)
    conversion = plan_conversion([upper.save(tmp_path), lower.save(tmp_path)], settings)
    assert conversion.target == Target.PAGE4D_MV
    write_conversion(conversion, tmp_path / "out.safetensors")
    loaded = load(tmp_path / "out.safetensors", "cpu")
    state = loaded.state_dict()
    for target, row in conversion.account.targets().items():
        if row.tag is Tag.COPIED:
            origin = lower if row.origin == "Pi3" else upper
            assert torch.equal(state[target], origin.weights[row.source]), target
    registers = state["aggregator.special.register_token"]
    assert torch.equal(registers[:, 0], lower.weights["register_token"][:, 0, :4])
    assert torch.equal(registers[:, 0], registers[:, 1])
    assert float(state["aggregator.dynamic.alpha"]) == 0
    assert not any(float(value) for name, value in state.items() if "lambda" in name)
    with torch.no_grad():
        assert loaded(lower.images.unsqueeze(2)).depth.isfinite().all()
    assert "Pi3" in loaded.info.licence
    assert "VGGT" in loaded.info.licence
    assert loaded.info.commercial is None, "of a structure that the user describes"


def test_the_file_records_its_provenance_and_is_reproducible_to_the_byte(tmp_path):
    given = checkpoint("vggt_c")
    source = given.save(tmp_path)
    out = tmp_path / "a.safetensors"
    loaded = converted(source, given, out, target=Target.PAGE4D_MV)
    converted(source, given, tmp_path / "b.safetensors", target=Target.PAGE4D_MV)
    assert out.read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    metadata = loaded.info.metadata
    assert (metadata["families"], "published" in metadata) == ("vggt", False)
    assert json.loads(metadata["sources"]) == {
        "VGGT": {"vggt_c.safetensors": hashlib.sha256(source.read_bytes()).hexdigest()}
    }
    assert metadata["tool"].startswith("page4d ")
    assert "VGGT License v1" in loaded.info.licence
    assert loaded.info.commercial is None, "two checkpoints have this structure, and one permits commercial use"
    assert converted(source, given, tmp_path / "c.safetensors", licence="mine").info.licence == "mine"


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2)])
def test_half_precision_halves_the_file(dtype: torch.dtype, bound: float, tmp_path):
    given = checkpoint("vggt_c")
    out = tmp_path / "out.safetensors"
    loaded = converted(given.save(tmp_path), given, out, dtype=dtype)
    with safe_open(out, framework="pt") as file:
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {str(dtype)}  # noqa: SIM118
    reference = given.weights["aggregator.frame_blocks.0.attn.qkv.weight"]
    kept = loaded.state_dict()["aggregator.blocks.frame.0.attn.qkv.weight"]
    assert float(((kept - reference).abs() / reference.abs().clamp(min=1e-3)).max()) < bound


def test_the_report_has_one_row_per_tensor(tmp_path):
    given = checkpoint("vggt_c")
    conversion = plan_conversion([given.save(tmp_path)], ConvertSettings(configs=given.configs))
    document = json.loads(json.dumps(report_document(conversion)))
    assert document["counts"] == {"copied": 374, "derived": 0, "new": 0, "dropped": 1}
    assert {row["source"] for row in document["tensors"]} == set(given.weights)
    assert sum(rule["tensors"] for rule in document["rules"]) == 375


@pytest.mark.parametrize(
    ("network", "name", "value", "dtype", "message"),
    [
        ("vggt_c", "camera_head.trunk_norm.bias", 1e6, torch.float16, "reaches 1e\\+06, which torch.float16"),
        ("vggt_c", "camera_head.trunk_norm.bias", float("nan"), torch.float32, "not finite"),
        ("pi3_c", "image_mean", 0.1, None, "is"),
    ],
)
def test_values_out_of_range_and_another_image_normalization_are_refused_and_leave_no_file(
    network: str, name: str, value: float, dtype: torch.dtype | None, message: str, tmp_path
):
    given = checkpoint(network)
    source = replace(given, weights={**given.weights, name: given.weights[name] + value}).save(tmp_path)
    with pytest.raises(WeightsError, match=f"{name}'? .*{message}"):
        converted(source, given, tmp_path / "out.safetensors", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_sources_that_do_not_fit_each_other_are_refused(tmp_path):
    given = checkpoint("vggt_c")
    source = given.save(tmp_path)
    again = given.save_pickle(tmp_path)
    settings = ConvertSettings(configs=given.configs)
    with pytest.raises(UsageError, match="are both VGGT"):
        plan_conversion([source, again], settings)
    other = checkpoint("pi3_c")
    both = replace(settings, configs=given.configs + other.configs)
    with pytest.raises(UsageError, match="no network combines VGGT and Pi3"):
        plan_conversion([source, other.save(tmp_path)], both)
    with pytest.raises(UsageError, match="configs describes 2 networks of 1 source"):
        plan_conversion([source], both)


def test_unusable_outputs_are_refused(tmp_path, monkeypatch):
    given = checkpoint("vggt_c")
    source = given.save(tmp_path)
    conversion = plan_conversion([source], ConvertSettings(configs=given.configs))
    with pytest.raises(UsageError, match="already exists"):
        check_output(source)
    with pytest.raises(UsageError, match="is one of the sources"):
        check_output(source, conversion, overwrite=True)
    with pytest.raises(OutputError, match="does not exist"):
        check_output(tmp_path / "nowhere" / "x.safetensors")
    with pytest.raises(UsageError, match=r"does not end in \.safetensors"):
        check_output(tmp_path / "x.pt")
    monkeypatch.setattr("shutil.disk_usage", lambda _: argparse.Namespace(free=1000))
    with pytest.raises(OutputError, match=r"its disk has 0\.00 GB free"):
        check_output(tmp_path / "x.safetensors", conversion)


def test_streamed_bytes_equal_those_of_the_safetensors_package(tmp_path):
    tensors = {"b": torch.rand(3, 2), "a": torch.rand(()), "é": torch.arange(5), "empty": torch.zeros(0, 3)}
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in tensors.items()}
    path, shown = tmp_path / "x", []
    with path.open("wb") as file:
        write_tensors(file, specs, tensors.__getitem__, {"k": '{"v"} é'}, lambda *amounts: shown.append(amounts))
    assert path.read_bytes() == save(tensors, {"k": '{"v"} é'})
    assert shown == [(40, 68), (44, 68), (68, 68), (68, 68)]
