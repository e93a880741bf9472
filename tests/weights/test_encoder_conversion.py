"""Published encoders convert completely, and converted files reproduce the recorded outputs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from page4d.errors import UsageError, WeightsError
from page4d.networks.encoders.build import ENCODER_PRESETS
from page4d.networks.encoders.swin import SwinConfig
from page4d.weights.conversion.accounting import Tag
from page4d.weights.conversion.convert import ConvertSettings, PlannedConversion, plan_conversion, write_conversion
from page4d.weights.families.family import Family
from page4d.weights.families.table import recognize
from page4d.weights.loading import load, load_encoder
from tests.encoders.recorded import INSIDE, assert_recorded, load_recorded
from tests.weights.checkpoints import empty_checkpoint

CASES = {
    "vit_base_patch16_224": ("vit-b16", Family.VIT, 0),
    "swin_tiny_patch4_window7_224": ("swin-t", Family.SWIN, 0),
    "swin_tiny_microsoft": ("swin-t", Family.SWIN_MICROSOFT, 17),
    "twins_svt_small": ("twins-svt-s", Family.TWINS, 0),
}


def shapes(name: str) -> dict[str, list[int]]:
    return json.loads((INSIDE / "encoders" / "manifests.json").read_text())[name]


def plan(path: Path) -> PlannedConversion:
    return plan_conversion([path], ConvertSettings())


@pytest.mark.parametrize("name", list(CASES))
def test_the_published_checkpoint_fills_the_encoder_of_its_size(name: str, tmp_path: Path) -> None:
    preset, family, dropped = CASES[name]
    conversion = plan(empty_checkpoint(tmp_path, shapes(name)))
    assert list(conversion.sources) == [family]
    assert conversion.blueprint.config == ENCODER_PRESETS[preset]
    account = conversion.account
    assert account.count(Tag.DROPPED) == dropped
    assert account.count(Tag.NEW) == 0
    assert len(conversion.specs) == account.num_used() == len(shapes(name)) - dropped


@pytest.mark.parametrize("name", list(CASES))
def test_an_extra_or_missing_tensor_is_refused(name: str, tmp_path: Path) -> None:
    named = shapes(name)
    last = list(named)[-1]
    with pytest.raises(WeightsError, match=r"no rule matches 'blocks\.0\.attn\.extra'"):
        plan(empty_checkpoint(tmp_path, {**named, "blocks.0.attn.extra": [3]}))
    with pytest.raises(WeightsError, match=r"no source tensor becomes 'norm\.weight'"):
        plan(empty_checkpoint(tmp_path, {key: value for key, value in named.items() if key != "norm.weight"}))
    with pytest.raises(WeightsError, match="is \\[3\\] where"):
        plan(empty_checkpoint(tmp_path, {**named, last: [3]}))


def converted(weights: dict[str, torch.Tensor], folder: Path) -> tuple[Path, PlannedConversion]:
    save_file(weights, folder / "theirs.safetensors")
    conversion = plan(folder / "theirs.safetensors")
    write_conversion(conversion, folder / "ours.safetensors")
    return folder / "ours.safetensors", conversion


@pytest.mark.parametrize("name", ["swin_clampns_a", "swin_pad_a"])
def test_a_converted_file_reproduces_the_recorded_outputs(name: str, tmp_path: Path) -> None:
    """With the tensor names of Microsoft and of timm."""
    recorded = load_recorded(name)
    path, _ = converted(recorded.part("weights/"), tmp_path)
    encoder, config, info = load_encoder(path)
    assert isinstance(config, SwinConfig)
    assert info.licence == "MIT (Microsoft)"
    with torch.no_grad():
        assert_recorded(encoder.classify(recorded["input/images"]), recorded["output/logits"])
    with pytest.raises(WeightsError, match="holds an encoder, not a whole network"):
        load(path, "cpu")


def test_image_size_and_classes_are_read_from_tensors(tmp_path: Path) -> None:
    """A ViT fine-tuned at 384 px, without a head."""
    named = {name: shape for name, shape in shapes("vit_base_patch16_224").items() if not name.startswith("head")}
    named["pos_embed"] = [1, 1 + 24 * 24, 768]
    conversion = plan(empty_checkpoint(tmp_path, named))
    expected = replace(ENCODER_PRESETS["vit-b16"], image_size=384, num_classes=None)
    assert conversion.blueprint.config == expected
    assert "image normalization" in conversion.blueprint.notices[0]


def test_sizes_that_tensors_do_not_determine_must_be_published_ones(tmp_path: Path) -> None:
    named = {name: value for name, value in shapes("vit_base_patch16_224").items() if "blocks.11." not in name}
    with pytest.raises(UsageError, match="width 768 and depth 11, which is not a published size"):
        plan(empty_checkpoint(tmp_path, named))
    twins = {name: value for name, value in shapes("twins_svt_small").items() if "blocks.3.3." not in name}
    with pytest.raises(UsageError, match=r"depths \(2, 2, 10, 3\), which is not a published size"):
        plan(empty_checkpoint(tmp_path, twins))
    path = empty_checkpoint(tmp_path, shapes("vit_base_patch16_224"))
    with pytest.raises(UsageError, match="2 sources are given"):
        plan_conversion([path, path], ConvertSettings())


@pytest.mark.parametrize(
    "names",
    [["cls_token", "pos_embed", "register_tokens", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"], []],
)
def test_other_tensor_names_are_not_recognized(names: list[str]) -> None:
    with pytest.raises(WeightsError, match="holds no known network or encoder"):
        recognize(names, "x")


def test_options_of_networks_are_refused_for_an_encoder(tmp_path: Path) -> None:
    path = empty_checkpoint(tmp_path, shapes("swin_tiny_microsoft"))
    with pytest.raises(UsageError, match="is an encoder; options of networks are given"):
        plan_conversion([path], ConvertSettings(mask=True))


def test_converting_a_page4d_encoder_again_keeps_its_provenance(tmp_path: Path) -> None:
    path, first = converted(load_recorded("swin_pad_a").part("weights/"), tmp_path)
    again = plan(path)
    assert list(again.sources) == [Family.PAGE4D_ENCODER]
    assert (again.licence, again.description) == (first.licence, first.description)
    write_conversion(again, tmp_path / "again.safetensors")
    before, after = (load_encoder(file)[0].state_dict() for file in (path, tmp_path / "again.safetensors"))
    assert all(torch.equal(after[name], value) for name, value in before.items())
