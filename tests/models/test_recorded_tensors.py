"""One forward pass reproduces all recorded tensors of the public networks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from page4d.networks.config import FRAME_GLOBAL
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import token_positions
from page4d.weights.families.pi3 import PI3
from page4d.weights.families.vggt import PAGE4D, VGGT
from tests.keymaps import PAGE4D_WITHOUT_MASK, rename


class Recorder:
    """Records the inputs and outputs of all modules in one forward pass, by name."""

    def __init__(self, network: ViewTimeNetwork, images: Tensor, **options: object) -> None:
        self.inputs: dict[str, tuple] = {}
        self.outputs: dict[str, object] = {}
        handles = [module.register_forward_hook(self._keeper(name)) for name, module in network.named_modules()]
        self.output: NetworkOutput = network(images.unsqueeze(1), **options)
        for handle in handles:
            handle.remove()

    def _keeper(self, name: str) -> Callable:
        def keep(_: nn.Module, arguments: tuple, result: object) -> None:
            self.inputs.setdefault(name, arguments)
            self.outputs.setdefault(name, result)

        return keep

    def into(self, name: str) -> Tensor:
        return self.inputs[name][0]

    def of(self, name: str) -> Tensor:
        return self.outputs[name]


def shared_mids(network: ViewTimeNetwork, recorder: Recorder, images: Tensor, first: str, second: str) -> dict:
    """Return intermediate tensors of all networks: encoder tokens, trunk tokens, and the first two blocks."""
    grid = (images.shape[-2] // 14, images.shape[-1] // 14)
    normalised = recorder.into("encoder")
    return {
        "encoder_pos_embed": network.encoder.position_table(grid),
        "encoder_tokens_in": network.encoder.embed(normalised),
        "patch_tokens": recorder.of("encoder").tokens,
        "positions": token_positions(grid, 5).expand(images.shape[0] * images.shape[1], -1, -1),
        "tokens_in": recorder.into("aggregator.blocks.frame.0"),
        first: recorder.of("aggregator.blocks.frame.0"),
        second: recorder.of("aggregator.blocks.global.0"),
    }


def vggt_mids(network: ViewTimeNetwork, recorder: Recorder, images: Tensor) -> dict[str, Tensor]:
    batch, frames = images.shape[:2]
    mids = shared_mids(network, recorder, images, "frame_block_0", "global_block_0")
    for layer in range(network.config.depth):
        halves = [recorder.of(f"aggregator.blocks.{step}.{layer}") for step in network.config.schedule]
        mids[f"aggregated_{layer}"] = torch.cat(
            [half.reshape(batch, frames, -1, half.shape[-1]) for half in halves], -1
        )
    for index, pose in enumerate(recorder.output.pose_encoding_iterations):
        mids[f"pose_enc_iter_{index}"] = pose[:, 0]
    for head in ("depth_head", "point_head"):
        mids[f"{head}_fused"] = recorder.of(f"{head}.fused_conv")
    return mids


def mask_mids(network: ViewTimeNetwork, recorder: Recorder, images: Tensor) -> dict[str, Tensor]:
    first = network.config.mask.layers[0]
    block = f"aggregator.blocks.global.{first}"
    tokens, _, bias = recorder.inputs[block][:3]
    before = recorder.of(f"aggregator.blocks.frame.{first - 1}")
    return {
        "mask_tokens_in": before.reshape(*images.shape[:2], -1, before.shape[-1]),
        "mask_feature_norm": recorder.into("aggregator.dynamic.head.head0"),
        "mask_logit": recorder.of("aggregator.dynamic.head.head0"),
        "mask_key_value": bias.key[:, None],
        "mask_row_weight": bias.row,
        "masked_global_in": tokens,
        "masked_global_attn_out": recorder.of(f"{block}.attn"),
        "masked_global_block_out": recorder.of(block),
    }


def vggt_outputs(out: NetworkOutput) -> dict[str, Tensor]:
    return {
        "pose_enc": out.pose_encoding[:, 0],
        "extrinsics": out.world_to_camera[:, 0, :, :3].float(),
        "intrinsics": out.intrinsics[:, 0].float(),
        "depth": out.depth[:, 0, ..., None],
        "depth_conf": out.depth_confidence[:, 0],
        "world_points": out.points[:, 0],
        "world_points_conf": out.points_confidence[:, 0],
    }


def assert_all(ours: dict[str, Tensor], recorded: dict[str, Tensor], agrees: Callable) -> None:
    """Compare all recorded tensors; the fixtures record some layers only."""
    assert recorded
    assert recorded.keys() <= ours.keys()
    for name, reference in recorded.items():
        try:
            agrees(ours[name].to(reference.dtype).reshape(reference.shape), reference)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def split(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group recorded tensors by kind; other kinds fail."""
    kinds: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        kinds.setdefault(kind, {})[rest] = value
    assert kinds.keys() <= {"weights", "input", "output", "output_nomask", "mid"}
    assert kinds["input"].keys() == {"images"}
    return kinds


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_vggt(golden: Callable, config_of: Callable, agrees: Callable, name: str) -> None:
    loaded = golden(f"vggt_{name}")
    kinds = split(loaded.tensors)
    network = build_network(config_of(loaded.meta, FRAME_GLOBAL)).eval().requires_grad_(False)
    network.load_state_dict(rename(kinds["weights"], VGGT))
    images = kinds["input"]["images"]
    recorder = Recorder(network, images)
    assert_all(vggt_mids(network, recorder, images), kinds["mid"], agrees)
    assert_all(vggt_outputs(recorder.output), kinds["output"], agrees)


@pytest.mark.parametrize("name", ["a", "b"])
def test_page4d(golden: Callable, config_of: Callable, agrees: Callable, name: str) -> None:
    loaded = golden(f"page4d_{name}")
    kinds = split(loaded.tensors)
    plain = config_of(loaded.meta, FRAME_GLOBAL)
    mask = replace(PRESETS["page4d-mask"].mask, layers=tuple(loaded.meta["mask"]["layers_masked"]))
    network = build_network(replace(plain, mask=mask)).eval().requires_grad_(False)
    ours = network.state_dict() | rename(kinds["weights"], PAGE4D)
    network.load_state_dict(ours)
    images = kinds["input"]["images"]
    recorder = Recorder(network, images)
    assert_all(vggt_mids(network, recorder, images) | mask_mids(network, recorder, images), kinds["mid"], agrees)
    assert_all(vggt_outputs(recorder.output), kinds["output"], agrees)
    without = build_network(plain).eval().requires_grad_(False)
    without.load_state_dict(rename(kinds["weights"], PAGE4D_WITHOUT_MASK))
    assert_all(vggt_outputs(without(images.unsqueeze(1))), kinds["output_nomask"], agrees)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_pi3(golden: Callable, pi3_config_of: Callable, agrees: Callable, name: str) -> None:
    loaded = golden(f"pi3_{name}")
    kinds = split(loaded.tensors)
    network = build_network(pi3_config_of(loaded.meta)).eval().requires_grad_(False)
    network.load_state_dict(rename(kinds["weights"], PI3))
    images = kinds["input"]["images"]
    recorder = Recorder(network, images)
    out = recorder.output
    mids = shared_mids(network, recorder, images, "decoder_block_0", "decoder_block_1") | {
        "decoder_out": recorder.into("frame_head"),
        "point_hidden": recorder.of("frame_head.point_decoder"),
        "conf_hidden": recorder.of("frame_head.confidence_decoder"),
        "camera_hidden": recorder.of("frame_head.camera_decoder"),
        "camera_rot9d": recorder.of("frame_head.pose.rotation"),
        "camera_trans": recorder.of("frame_head.pose.translation"),
    }
    assert_all(mids, kinds["mid"], agrees)
    outputs = {
        "points": out.points,
        "local_points": out.local_points,
        "conf": out.confidence_logits,
        "camera_poses": out.camera_to_world,
    }
    assert_all(outputs, kinds["output"], agrees)
