"""Key maps are complete: every source tensor matches a rule, and every network parameter is filled."""

import pytest
import torch

from page4d.errors import WeightsError
from page4d.networks import PRESETS, build_network
from page4d.weights.conversion.accounting import Rule, target_name
from page4d.weights.families.vggt import VGGT
from tests.keymaps import VGGT_TO_TIME_VIEW, rename
from tests.weights.checkpoints import manifest


@pytest.mark.parametrize(("preset", "rules"), [("vggt", VGGT), ("mv-large", VGGT_TO_TIME_VIEW)])
def test_the_published_checkpoint_fills_the_network_at_full_size(preset: str, rules: tuple[Rule, ...]) -> None:
    with torch.device("meta"):
        ours = build_network(PRESETS[preset]).state_dict()
        theirs = rename({name: torch.empty(spec.shape) for name, spec in manifest("vggt").items()}, rules)
    new = {name for name in ours if "dynamic" in name or "mask_bias" in name}
    assert {name: value.shape for name, value in theirs.items()} == {
        name: value.shape for name, value in ours.items() if name not in new
    }
    assert bool(new) == (preset == "mv-large")


def test_unused_tensors_are_dropped_by_a_rule() -> None:
    assert target_name("track_head.tracker.corr_mlp.fc1.weight", VGGT) is None
    assert target_name("aggregator.patch_embed.mask_token", VGGT) is None


@pytest.mark.parametrize(
    "name", ["", "aggregator", "aggregator.blocks.0", "xdepth_head.norm.weight", "depth_head.new.bias"]
)
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(WeightsError, match="no rule matches the tensor"):
        target_name(name, VGGT)
