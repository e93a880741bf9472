"""PAGE-4D reproduces the recorded numbers with its mask, and is VGGT without it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from page4d.models.config import PRESETS, MaskConfig
from page4d.models.network import NetworkOutput, ViewTimeNetwork, build_network
from page4d.models.schedule import FRAME_GLOBAL, Step
from page4d.models.streams import ReleaseBias, Stream
from page4d.weights.keymap import PAGE4D, PAGE4D_WITHOUT_MASK, VGGT, rename

MASK = PRESETS["page4d-mask"].mask
PARTS = {
    "pose_encoding": "pose_enc",
    "depth": "depth",
    "depth_confidence": "depth_conf",
    "points": "world_points",
    "points_confidence": "world_points_conf",
}


@dataclass(frozen=True)
class Case:
    """A recorded network, with its mask and without."""

    masked: ViewTimeNetwork
    plain: ViewTimeNetwork
    mask: MaskConfig
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
    return Case(masked, plain, mask, loaded.tensors)


def assert_outputs(out: NetworkOutput, tensors: dict[str, Tensor], prefix: str, agrees: Callable) -> None:
    for ours, theirs in PARTS.items():
        value = getattr(out, ours)[:, 0]
        agrees(value[..., None] if ours == "depth" else value, tensors[f"{prefix}/{theirs}"])


def test_with_the_mask(case: Case, agrees: Callable) -> None:
    assert_outputs(case.masked(case.images), case.tensors, "output", agrees)


def test_without_the_mask(case: Case, agrees: Callable) -> None:
    assert_outputs(case.plain(case.images), case.tensors, "output_nomask", agrees)


def test_without_the_mask_it_is_vggt(case: Case) -> None:
    """Bit for bit: a head that says nothing, no head at all, and VGGT."""
    silent = build_network(case.masked.config).eval().requires_grad_(False)
    silent.load_state_dict(case.masked.state_dict())
    for parameter in silent.aggregator.dynamic.head.last.parameters():
        parameter.zero_()
    vggt = build_network(case.plain.config).eval().requires_grad_(False)
    weights = {
        name.removeprefix("weights/"): value
        for name, value in case.tensors.items()
        if name.startswith("weights/") and "spatial_mask_head" not in name
    }
    vggt.load_state_dict(rename(weights, VGGT))
    expected = vggt(case.images)
    for network in (case.plain, silent):
        out = network(case.images)
        assert all(torch.equal(getattr(out, name), getattr(expected, name)) for name in PARTS)


def test_the_mask_on_the_way(case: Case, agrees: Callable) -> None:
    """Where the mask is taken, what it says, and the first block that hears it."""
    seen: dict[str, tuple] = {}

    def record(name: str) -> Callable:
        def hook(_: nn.Module, arguments: tuple, result: object) -> None:
            seen[name] = (*arguments, result)

        return hook

    first = case.mask.layers[0]
    trunk = case.masked.aggregator
    handles = [
        trunk.dynamic.register_forward_hook(record("mask")),
        trunk.blocks["global"][first].register_forward_hook(record("block")),
        trunk.blocks["global"][first].attn.register_forward_hook(record("attention")),
    ]
    out = case.masked(case.images)
    for handle in handles:
        handle.remove()
    mid = {name.removeprefix("mid/"): value for name, value in case.tensors.items() if name.startswith("mid/")}
    agrees(seen["mask"][0][:, 0], mid["mask_tokens_in"][:, :, 5:])
    # The recorded logit speaks of what is static and leaves out the mean of the features.
    mean = mid["mask_feature_norm"].mean(dim=1)
    agrees(-out.dynamic_logit.flatten(0, 2), mid["mask_logit"][:, 0] + mean)
    tokens, _, bias, _, result = seen["block"]
    agrees(tokens, mid["masked_global_in"])
    agrees(bias.key[:, None], mid["mask_key_value"])
    agrees(bias.row, mid["mask_row_weight"])
    agrees(seen["attention"][-1], mid["masked_global_attn_out"])
    agrees(result, mid["masked_global_block_out"])
    for layer in (case.mask.layers[0], case.mask.layers[-1]):
        if f"aggregated_{layer}" in mid and layer in case.masked.config.dense_layers:
            patches = mid["patch_tokens"].unflatten(0, (case.images.shape[0], 1, -1))
            grid = (case.images.shape[-2] // 14, case.images.shape[-1] // 14)
            agrees(trunk(patches, grid).levels[layer][:, 0], mid[f"aggregated_{layer}"])


def test_special_tokens_turn_towards_what_is_static() -> None:
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
