"""PAGE-4D's mask reproduces recorded layers, tokens and weights; without the mask PAGE-4D equals VGGT."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from page4d.models.config import PRESETS, MaskConfig
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.schedule import FRAME_GLOBAL, Step
from page4d.models.streams import ReleaseBias, Stream
from page4d.models.trunk import Aggregator
from page4d.weights.keymap import PAGE4D, VGGT
from tests.keymaps import PAGE4D_WITHOUT_MASK, rename

MASK = PRESETS["page4d-mask"].mask
PARTS = ("pose_encoding", "depth", "depth_confidence", "points", "points_confidence")


@dataclass(frozen=True)
class Case:
    """A recorded network, with and without its mask."""

    masked: ViewTimeNetwork
    plain: ViewTimeNetwork
    tensors: dict[str, Tensor]

    @property
    def images(self) -> Tensor:
        return self.tensors["input/images"].unsqueeze(1)


@pytest.fixture(scope="module", params=["a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable, config_of: Callable) -> Case:
    loaded = golden(f"page4d_{request.param}")
    plain_config = config_of(loaded.meta, FRAME_GLOBAL)
    mask = replace(MASK, layers=tuple(loaded.meta["mask"]["layers_masked"]))
    weights = loaded.part("weights/")
    masked = build_network(replace(plain_config, mask=mask)).eval().requires_grad_(False)
    ours = rename(weights, PAGE4D)
    new = {name: value for name, value in masked.state_dict().items() if name not in ours}
    assert set(new) == {"aggregator.dynamic.alpha", "aggregator.dynamic.beta"}
    masked.load_state_dict({**ours, **new})
    plain = build_network(plain_config).eval().requires_grad_(False)
    plain.load_state_dict(rename(weights, PAGE4D_WITHOUT_MASK))
    return Case(masked, plain, loaded.tensors)


def test_without_the_mask_page4d_equals_vggt(case: Case) -> None:
    """Exactly: a mask head of zeros, no mask head, and VGGT."""
    zeroed = build_network(case.masked.config).eval().requires_grad_(False)
    zeroed.load_state_dict(case.masked.state_dict())
    for parameter in zeroed.aggregator.dynamic.head.last.parameters():
        parameter.zero_()
    vggt = build_network(case.plain.config).eval().requires_grad_(False)
    weights = {
        name.removeprefix("weights/"): value
        for name, value in case.tensors.items()
        if name.startswith("weights/") and "spatial_mask_head" not in name
    }
    vggt.load_state_dict(rename(weights, VGGT))
    expected = vggt(case.images)
    for network in (case.plain, zeroed):
        out = network(case.images)
        assert all(torch.equal(getattr(out, name), getattr(expected, name)) for name in PARTS)


def test_dynamic_logits_reproduce_the_recorded_ones(case: Case, agrees: Callable) -> None:
    """Recorded logits are those of static patches, without the mean of the features."""
    out = case.masked(case.images)
    mean = case.tensors["mid/mask_feature_norm"].mean(dim=1)
    agrees(-out.dynamic_logit.flatten(0, 2), case.tensors["mid/mask_logit"][:, 0] + mean)


class Recorded(nn.Module):
    """A block with a recorded output."""

    def __init__(self, recorded: Tensor) -> None:
        super().__init__()
        self.recorded = recorded

    def forward(self, tokens: Tensor, *_: object, **__: object) -> Tensor:
        return self.recorded.reshape(tokens.shape)


@pytest.fixture(scope="module")
def part(golden: Callable) -> Any:
    return golden("page4d_a_trunk")


def trunk_of(part: Any, config_of: Callable, mask: MaskConfig | None) -> Aggregator:
    """Return the trunk of case a with the recorded output of layer 1; layers 0 and 5 have no effect."""
    config = replace(config_of(part.meta, FRAME_GLOBAL), mask=mask)
    trunk = Aggregator(config).eval().requires_grad_(False)
    names = PAGE4D if mask is not None else PAGE4D_WITHOUT_MASK
    ours = rename(part.part("weights/"), names)
    missing = trunk.load_state_dict({name.removeprefix("aggregator."): value for name, value in ours.items()}, False)
    assert missing.unexpected_keys == []
    for step, output in zip(config.schedule, part.tensors["mid/aggregated_1"].chunk(2, dim=-1), strict=True):
        trunk.blocks[step][1] = Recorded(output)
    return trunk


def test_masked_layers_reproduce_the_recorded_ones(part: Any, config_of: Callable, agrees: Callable) -> None:
    """Layer and value of the mask, the biased layers, and the unbiased one after them."""
    trunk = trunk_of(part, config_of, replace(MASK, layers=tuple(part.meta["mask"]["layers_masked"])))
    recorded: dict[str, tuple] = {}

    def keeper(name: str) -> Callable:
        def keep(_: nn.Module, arguments: tuple, result: object) -> None:
            recorded[name] = (*arguments, result)

        return keep

    first = trunk.blocks["global"][2]
    first.register_forward_hook(keeper("block"))
    first.attn.register_forward_hook(keeper("attention"))
    trunk.dynamic.head.head0.register_forward_hook(keeper("logit"))
    levels = trunk.transform(torch.zeros(1, 1, 3, 25, 64), (4, 5)).levels
    for layer in (2, 4):
        agrees(levels[layer][:, 0], part.tensors[f"mid/aggregated_{layer}"])
    bias = recorded["block"][2]
    agrees(bias.key[:, None], part.tensors["mid/mask_key_value"])
    agrees(bias.row, part.tensors["mid/mask_row_weight"])
    agrees(recorded["logit"][-1], part.tensors["mid/mask_logit"])
    agrees(recorded["attention"][-1], part.tensors["mid/masked_global_attn_out"])


def test_the_mask_biases_special_tokens_only(part: Any, config_of: Callable) -> None:
    """In the first masked layer; the next one spreads the difference to all tokens."""
    plain = trunk_of(part, config_of, None).transform(torch.zeros(1, 1, 3, 25, 64), (4, 5)).levels
    masked = part.tensors["mid/aggregated_2"]
    within, across = (masked - plain[2][:, 0]).abs().chunk(2, dim=-1)
    assert within.max() < 1e-4
    assert across[:, :, 5:].max() < 1e-4
    assert across[:, :, :5].max() > 1e-2
    assert (part.tensors["mid/aggregated_4"] - plain[4][:, 0])[:, :, 5:].abs().max() > 1e-2


def test_a_mask_head_of_zeros_leaves_vggt_unchanged(golden: Callable, config_of: Callable, agrees: Callable) -> None:
    loaded = golden("vggt_c")
    config = replace(config_of(loaded.meta, FRAME_GLOBAL), mask=replace(MASK, layers=(1, 2)))
    network = build_network(config).eval().requires_grad_(False)
    network.load_state_dict(network.state_dict() | rename(loaded.part("weights/"), VGGT))
    out = network(loaded.tensors["input/images"].unsqueeze(1))
    agrees(out.depth[:, 0, ..., None], loaded.tensors["output/depth"])
    agrees(out.pose_encoding[:, 0], loaded.tensors["output/pose_enc"])


def test_special_tokens_attend_more_to_static_patches() -> None:
    mask = torch.rand(1, 2, 3, 4)
    bias = ReleaseBias(num_special=2)
    assert bias(mask, Stream.SHARED, Step.FRAME) is None
    assert bias(mask, Stream.SHARED, Step.TIME) is None
    for step, groups in ((Step.GLOBAL, 1), (Step.VIEW, 2)):
        of_step = bias(mask, Stream.SHARED, step)
        keys = of_step.key.reshape(2, 3, 6)
        assert of_step.key.shape == (groups, 36 // groups)
        assert not keys[..., :2].any()
        torch.testing.assert_close(keys[..., 2:], 0.5 - mask[0])
        assert torch.equal(of_step.row.reshape(6, 6), torch.tensor([64.0, 64, 0, 0, 0, 0]).expand(6, -1))
