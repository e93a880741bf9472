"""Conversion of VGGT-Omega and Depth Anything 3: bias masks, rotary channels, constants, shared norms."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from page4d.choices import Target
from page4d.errors import UsageError, WeightsError
from page4d.networks.config import NetworkConfig
from page4d.networks.layers.attention import rotary_tables
from page4d.networks.presets import PRESETS
from page4d.weights import load
from page4d.weights.conversion.accounting import SourceStage, build_account
from page4d.weights.conversion.convert import (
    ConvertSettings,
    PlannedConversion,
    plan_conversion,
    report_document,
    tensor_shapes,
    write_conversion,
)
from page4d.weights.families.da3 import da3_keys, da3_sizes
from page4d.weights.families.vggt_omega import by_axis, queries_and_keys_by_axis
from page4d.weights.store import TensorSpec
from tests.keymaps import converted, target_name
from tests.weights.checkpoints import Checkpoint, checkpoint

MASK = "aggregator.frame_blocks.1.attn.qkv.bias_mask"


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


SHARED_NORM = "model.head.scratch.output_conv2_aux.0.2.weight"


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return checkpoint("da3_b").weights


@pytest.fixture(scope="module")
def config() -> NetworkConfig:
    return checkpoint("da3_b").config


def test_the_shared_norm_is_read_by_its_published_name(weights: Mapping[str, Tensor], config: NetworkConfig):
    """Other names of the same tensor are dropped, if a file has them."""
    others = {SHARED_NORM.replace(".0.2.", f".{level}.2."): weights[SHARED_NORM] for level in (1, 2, 3)}
    for given in (weights, weights | others):
        _, state = converted(given, config)
        assert torch.equal(state["depth_head.ray_branch.norm.weight"], weights[SHARED_NORM])


def test_the_gaussian_head_is_dropped(weights: Mapping[str, Tensor], config: NetworkConfig):
    _, state = converted(weights, config)
    found, tensors = converted(weights | {"model.gs_head.projects.0.weight": torch.zeros(2)}, config)
    assert (found, tensors.keys()) == (config, state.keys())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.head.scratch.output_conv1_aux.3.5.weight", "does not exist"),
        ("model.backbone.pretrained.register_tokens", "no rule matches"),
        ("model.cam_dec.fc_rot.weight", "no rule matches"),
    ],
)
def test_a_further_tensor_is_refused(weights: Mapping[str, Tensor], config: NetworkConfig, name: str, message: str):
    with pytest.raises(WeightsError, match=message):
        converted(weights | {name: torch.zeros(2)}, config)


@pytest.mark.parametrize(("preset", "start"), [("da3-small", 4), ("da3-large", 8), ("da3-giant", 13)])
def test_odd_blocks_attend_across_views(preset: str, start: int):
    """From the first block of the trunk on, which is even or odd."""
    keys = da3_keys(PRESETS[preset])
    for block in range(start, start + 4):
        name = target_name(f"model.backbone.pretrained.blocks.{block}.norm1.weight", keys)
        step = "global" if block % 2 else "frame"
        assert name == f"aggregator.blocks.{step}.{(block - start + start % 2) // 2}.norm1.weight"


def test_the_nested_checkpoint_has_the_same_names_after_another_prefix(
    weights: Mapping[str, Tensor], config: NetworkConfig
):
    _, state = converted(weights, config)
    prefix = "model.da3."
    nested = {
        name.replace("model.", prefix, 1): TensorSpec(shape=tuple(value.shape), dtype=value.dtype)
        for name, value in weights.items()
    }
    own = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in weights.items()}
    assert da3_sizes(nested, prefix) == da3_sizes(own)
    stage = SourceStage(origin="nested", keys=da3_keys(config, prefix))
    assert build_account([(stage, nested)], tensor_shapes(config), {}, {}).targets().keys() == state.keys()
