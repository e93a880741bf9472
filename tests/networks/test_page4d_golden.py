"""PAGE-4D without its mask equals VGGT; its mask biases special tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from page4d.networks.config import Step
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import ReleaseBias, Stream
from tests.keymaps import converted_network, recorded_config

MASK = PRESETS["page4d-mask"].mask
PARTS = ("pose_encoding", "depth", "depth_confidence", "points", "points_confidence")


@dataclass(frozen=True)
class Case:
    """A recorded network, with and without its mask."""

    masked: ViewTimeNetwork
    plain: ViewTimeNetwork
    vggt: ViewTimeNetwork
    tensors: dict[str, Tensor]

    @property
    def images(self) -> Tensor:
        return self.tensors["input/images"].unsqueeze(1)


@pytest.fixture(scope="module", params=["a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable) -> Case:
    loaded = golden(f"page4d_{request.param}")
    config = recorded_config(f"page4d_{request.param}")
    weights = loaded.part("weights/")
    masked, plain = (converted_network(weights, config, mask=mask) for mask in (True, False))
    of_vggt = {name: value for name, value in weights.items() if "spatial_mask_head" not in name}
    return Case(masked, plain, converted_network(of_vggt, replace(config, mask=None)), loaded.tensors)


def test_without_the_mask_page4d_equals_vggt(case: Case) -> None:
    """Exactly: a mask head of zeros, no mask head, and VGGT."""
    zeroed = build_network(case.masked.config).eval().requires_grad_(False)
    zeroed.load_state_dict(case.masked.state_dict())
    for parameter in zeroed.aggregator.dynamic.last_layer.parameters():
        parameter.zero_()
    expected = case.vggt(case.images)
    for network in (case.plain, zeroed):
        out = network(case.images)
        assert all(torch.equal(getattr(out, name), getattr(expected, name)) for name in PARTS)


def test_dynamic_logits_reproduce_the_recorded_ones(case: Case, agrees: Callable) -> None:
    """Recorded logits are those of static patches, without the mean of the features."""
    out = case.masked(case.images)
    mean = case.tensors["mid/mask_feature_norm"].mean(dim=1)
    agrees(-out.dynamic_logit.flatten(0, 2), case.tensors["mid/mask_logit"][:, 0] + mean)


def first_masked_block(network: ViewTimeNetwork, images: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Return the output [B, S, N, C] of the first masked global block, and that of the last global block."""
    kept: list[Tensor] = []
    blocks = [network.aggregator.blocks["global"][at] for at in (layer, network.config.depth - 1)]
    handles = [block.register_forward_hook(lambda *call: kept.append(call[-1])) for block in blocks]
    network(images)
    for handle in handles:
        handle.remove()
    first, last = (tokens.reshape(*images.shape[:1], images.shape[2], -1, tokens.shape[-1]) for tokens in kept)
    return first, last


def test_the_mask_biases_special_tokens_only(case: Case) -> None:
    """In the first masked layer; the next layers spread the difference to all tokens."""
    layer = case.masked.config.mask.layers[0]
    masked, plain = (first_masked_block(network, case.images, layer) for network in (case.masked, case.plain))
    special = case.masked.config.num_registers + 1
    assert torch.equal(masked[0][:, :, special:], plain[0][:, :, special:])
    assert (masked[0] - plain[0])[:, :, :special].abs().max() > 1e-2
    assert (masked[1] - plain[1])[:, :, special:].abs().max() > 1e-2


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
