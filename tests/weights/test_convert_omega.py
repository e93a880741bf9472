"""Conversion of VGGT-Omega: every published tensor, bias masks, the order of rotary channels, constants."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from page4d.choices import Target
from page4d.errors import UsageError, WeightsError
from page4d.networks.layers.attention import rotary_tables
from page4d.networks.presets import PRESETS
from page4d.weights import load
from page4d.weights.conversion.accounting import Tag
from page4d.weights.conversion.convert import (
    ConvertSettings,
    PlannedConversion,
    account_for,
    plan_conversion,
    report_document,
    tensor_shapes,
    write_conversion,
)
from page4d.weights.conversion.view_time import network_blueprint
from page4d.weights.families.family import Family
from page4d.weights.families.table import read_network, recognize
from page4d.weights.families.vggt_omega import by_axis, queries_and_keys_by_axis
from tests.weights.checkpoints import Checkpoint, checkpoint, manifest

MASK = "aggregator.frame_blocks.1.attn.qkv.bias_mask"


@pytest.mark.parametrize(("text", "dropped"), [(False, 3), (True, 74)])
def test_a_published_checkpoint_fills_the_network(text: bool, dropped: int) -> None:
    specs = manifest("vggt_omega_256_text" if text else "vggt_omega_512")
    assert recognize(specs, "x") is Family.VGGT_OMEGA
    found = read_network(Family.VGGT_OMEGA, specs, "x")
    blueprint = network_blueprint(Target.OWN, {Family.VGGT_OMEGA: found})
    shapes = tensor_shapes(blueprint.config)
    filled = account_for(blueprint, [specs], shapes)
    assert {name: row.shape for name, row in filled.targets().items()} == shapes
    assert (filled.count(Tag.NEW), filled.count(Tag.DROPPED)) == (0, dropped)
    # Encoder and steps within images have rotary positions; all biases of projections have masks.
    assert filled.count(Tag.DERIVED) == 48 + 76 + 24 * 4
    assert sum(row.companion is not None for row in filled.rows) == 76
    assert filled.num_used() + dropped == len(specs) == (1482 if text else 1411)
    preset = PRESETS["vggt-omega"]
    assert blueprint.config.encoder.image_size == (256 if text else 512)
    assert blueprint.config == preset or text


def test_the_order_of_channels_keeps_the_products_of_queries_and_keys() -> None:
    """Rotation of pairs over the whole head, as in DINOv3, equals that of page4d after the change of order."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 16, dtype=torch.float64)
    places = torch.tensor([[0.3, 1.2], [2.1, -0.4]], dtype=torch.float64)

    def rotated(heads: Tensor, place: Tensor) -> Tensor:
        angles = (place[:, None] * 100.0 ** (-torch.arange(4) / 4)).flatten().repeat(2)
        first, second = heads.chunk(2)
        return heads * angles.cos() + torch.cat([-second, first]) * angles.sin()

    theirs = rotated(query, places[0]) @ rotated(key, places[1])
    tables = rotary_tables(places, 16, dtype=torch.float64)
    ours = tables.rotate(torch.stack([by_axis(query, 16), by_axis(key, 16)]))
    torch.testing.assert_close(ours[0] @ ours[1], theirs)
    rows = torch.arange(48.0)
    assert torch.equal(queries_and_keys_by_axis(rows, head_dim=16)[32:], rows[32:]), "values keep their order"


def planned(given: Checkpoint, folder: Path, **changes: Tensor) -> PlannedConversion:
    weights = {name: value for name, value in (given.weights | changes).items() if value is not None}
    torch.save(weights, folder / "omega.pt")
    return plan_conversion([folder / "omega.pt"], ConvertSettings(configs=given.configs))


def test_masks_decide_which_biases_count(tmp_path: Path) -> None:
    given = checkpoint("vggt_omega_c")
    mask = torch.linspace(-1, 2, given.weights[MASK].numel())
    conversion = planned(given, tmp_path, **{MASK: mask})
    written = {}

    def keep(_path, _config, _metadata, specs, read, _on_written) -> None:
        written.update({name: read(name) for name in specs})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("page4d.weights.conversion.convert.save_tensors", keep)
        write_conversion(conversion, tmp_path / "out.safetensors")
    bias = given.weights["aggregator.frame_blocks.1.attn.qkv.bias"]
    expected = queries_and_keys_by_axis(bias * mask, head_dim=16)
    assert torch.equal(written["aggregator.blocks.frame.1.attn.qkv.bias"], expected)
    (row,) = [row for row in report_document(conversion)["tensors"] if row.get("companion") == MASK]
    assert row["target"] == "aggregator.blocks.frame.1.attn.qkv.bias"


def test_masks_that_are_missing_misshaped_or_not_finite_are_refused(tmp_path: Path) -> None:
    given = checkpoint("vggt_omega_c")
    with pytest.raises(WeightsError, match=rf"needs '{MASK}' of its shape, and there is none"):
        planned(given, tmp_path, **{MASK: None})
    with pytest.raises(WeightsError, match=rf"needs '{MASK}' of its shape, and it is \[1\]"):
        planned(given, tmp_path, **{MASK: torch.ones(1)})
    conversion = planned(given, tmp_path, **{MASK: torch.full_like(given.weights[MASK], torch.nan)})
    with pytest.raises(WeightsError, match=f"tensor '{MASK}' holds values that are not finite"):
        write_conversion(conversion, tmp_path / "out.safetensors")


@pytest.mark.parametrize("name", ["aggregator.rope_embed.periods", "aggregator.patch_embed.rope_embed.periods"])
def test_other_wavelengths_are_refused(name: str, tmp_path: Path) -> None:
    given = checkpoint("vggt_omega_c")
    for periods in (given.weights[name] * 1.01, given.weights[name][:2]):
        conversion = planned(given, tmp_path, **{name: periods})
        with pytest.raises(WeightsError, match=rf"{name} is \[1.*page4d uses \[1, 3.16228, 10, ...\]"):
            write_conversion(conversion, tmp_path / "out.safetensors")


def test_a_copy_in_half_precision_is_converted(tmp_path: Path) -> None:
    given = checkpoint("vggt_omega_c")
    halves = {name: value.bfloat16() for name, value in given.weights.items()}
    write_conversion(planned(given, tmp_path, **halves), tmp_path / "out.safetensors")
    gamma = load(tmp_path / "out.safetensors", "cpu").encoder.norm.weight
    assert torch.equal(gamma, halves["aggregator.patch_embed.norm.weight"].float())


def test_a_configuration_must_fit_the_text_head(tmp_path: Path) -> None:
    given = checkpoint("vggt_omega_c")
    weights = {name: value for name, value in given.weights.items() if not name.startswith("text_")}
    torch.save(weights, tmp_path / "omega.pt")
    with pytest.raises(WeightsError, match=r"has encoder\.image_size 512 where its configs has 256"):
        plan_conversion([tmp_path / "omega.pt"], ConvertSettings(configs=given.configs))


def test_the_view_time_network_is_refused(tmp_path: Path) -> None:
    given = checkpoint("vggt_omega_c")
    path = given.save(tmp_path)
    with pytest.raises(UsageError, match="cannot become the view x time network"):
        plan_conversion([path], ConvertSettings(configs=given.configs, target=Target.PAGE4D_MV))
