"""Published encoders fill ours: every name, every shape, and the recorded numbers behind them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from page4d.encoders.presets import ENCODER_PRESETS
from page4d.encoders.swin import SwinConfig
from page4d.errors import UsageError, WeightsError
from page4d.weights.accounting import Tag
from page4d.weights.encoder_conversion import EncoderConversion, plan_encoder, write_encoder
from page4d.weights.encoder_families import EncoderFamily, encoder_family
from page4d.weights.loading import load_encoder, load_network
from tests.encoders.recorded import INSIDE, assert_recorded, load_recorded

CASES = {
    "vit_base_patch16_224": ("vit-b16", EncoderFamily.VIT, 0),
    "swin_tiny_patch4_window7_224": ("swin-t", EncoderFamily.SWIN, 0),
    "swin_tiny_microsoft": ("swin-t", EncoderFamily.SWIN_MICROSOFT, 17),
    "twins_svt_small": ("twins-svt-s", EncoderFamily.TWINS, 0),
}


def shapes(name: str) -> dict[str, list[int]]:
    return json.loads((INSIDE / "manifests.json").read_text())[name]


def empty_checkpoint(folder: Path, named: dict[str, list[int]]) -> Path:
    """A file of the real names and shapes; bytes that were never written take no room on the disk."""
    path = folder / "checkpoint.safetensors"
    header, offset = {}, 0
    for name, shape in named.items():
        size = 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return path


@pytest.mark.parametrize("name", list(CASES))
def test_the_published_checkpoint_fills_the_encoder_of_its_size(name: str, tmp_path: Path) -> None:
    preset, family, dropped = CASES[name]
    conversion = plan_encoder([empty_checkpoint(tmp_path, shapes(name))])
    assert conversion.recognised.family is family
    assert conversion.recognised.config == ENCODER_PRESETS[preset]
    account = conversion.account
    assert account.count(Tag.DROPPED) == dropped
    assert account.count(Tag.NEW) == 0
    assert len(conversion.specs) == account.num_used() == len(shapes(name)) - dropped


@pytest.mark.parametrize("name", list(CASES))
def test_a_name_more_or_less_is_refused(name: str, tmp_path: Path) -> None:
    named = shapes(name)
    last = list(named)[-1]
    with pytest.raises(WeightsError, match=r"no rule names 'blocks\.0\.attn\.extra'"):
        plan_encoder([empty_checkpoint(tmp_path, {**named, "blocks.0.attn.extra": [3]})])
    with pytest.raises(WeightsError, match=r"no source tensor becomes 'norm\.weight'"):
        plan_encoder(
            [empty_checkpoint(tmp_path, {key: value for key, value in named.items() if key != "norm.weight"})]
        )
    with pytest.raises(WeightsError, match="is \\[3\\] where"):
        plan_encoder([empty_checkpoint(tmp_path, {**named, last: [3]})])


def converted(weights: dict[str, torch.Tensor], folder: Path) -> tuple[Path, EncoderConversion]:
    save_file(weights, folder / "theirs.safetensors")
    conversion = plan_encoder([folder / "theirs.safetensors"])
    write_encoder(conversion, folder / "ours.safetensors")
    return folder / "ours.safetensors", conversion


@pytest.mark.parametrize("name", ["swin_clampns_a", "swin_pad_a"])
def test_a_converted_file_reproduces_the_recorded_numbers(name: str, tmp_path: Path) -> None:
    """Microsoft's names and timm's."""
    recorded = load_recorded(name)
    path, _ = converted(recorded.part("weights/"), tmp_path)
    loaded = load_encoder(path)
    assert isinstance(loaded.config, SwinConfig)
    assert loaded.info.licence == "MIT (Microsoft)"
    with torch.no_grad():
        assert_recorded(loaded.encoder.classify(recorded["input/images"]), recorded["output/logits"])
    with pytest.raises(WeightsError, match="holds an encoder, no whole network"):
        load_network(path)


def test_tensors_tell_the_sizes_that_are_not_published(tmp_path: Path) -> None:
    """A ViT that was tuned at 384 px, without a head."""
    named = {name: shape for name, shape in shapes("vit_base_patch16_224").items() if not name.startswith("head")}
    named["pos_embed"] = [1, 1 + 24 * 24, 768]
    conversion = plan_encoder([empty_checkpoint(tmp_path, named)])
    expected = replace(ENCODER_PRESETS["vit-b16"], image_size=384, num_classes=None)
    assert conversion.recognised.config == expected
    assert "mean and deviation" in conversion.notices[0]


def test_what_tensors_cannot_tell_is_not_guessed(tmp_path: Path) -> None:
    named = {name: value for name, value in shapes("vit_base_patch16_224").items() if "blocks.11." not in name}
    with pytest.raises(UsageError, match="width 768 and depth 11, which is no published size"):
        plan_encoder([empty_checkpoint(tmp_path, named)])
    twins = {name: value for name, value in shapes("twins_svt_small").items() if "blocks.3.3." not in name}
    with pytest.raises(UsageError, match=r"depths \(2, 2, 10, 3\), which is no published size"):
        plan_encoder([empty_checkpoint(tmp_path, twins)])
    path = empty_checkpoint(tmp_path, shapes("vit_base_patch16_224"))
    with pytest.raises(UsageError, match="2 sources are given"):
        plan_encoder([path, path])


def test_other_networks_are_no_encoders() -> None:
    dino = ["cls_token", "pos_embed", "register_tokens", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"]
    assert encoder_family(dino) is None
    assert encoder_family(["aggregator.frame_blocks.0.norm1.weight"]) is None
    assert encoder_family([]) is None
