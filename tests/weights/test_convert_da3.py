"""Conversion of Depth Anything 3: the norm that its ray branches share, unused parts, and other networks."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from page4d.errors import WeightsError
from page4d.networks.config import NetworkConfig
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import SourceStage, build_account
from page4d.weights.conversion.convert import tensor_shapes
from page4d.weights.families.da3 import da3_keys, da3_sizes
from page4d.weights.store import TensorSpec
from tests.keymaps import converted, target_name
from tests.weights.checkpoints import checkpoint

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
