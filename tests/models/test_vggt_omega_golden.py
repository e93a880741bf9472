"""Converted checkpoints of VGGT-Omega reproduce recorded numbers: encoder, steps, camera head, dense head."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.presets import PRESETS
from page4d.networks.trunk import TrunkOutput
from page4d.weights import load_network
from page4d.weights.conversion.accounting import target_name
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.families.vggt_omega import VGGT_OMEGA, OmegaSettings, by_axis
from tests.models.test_recorded_tensors import Recorder, assert_all, split


@dataclass(frozen=True)
class Case:
    """A converted network with the recorded tensors by kind, and the metadata of the recording."""

    network: ViewTimeNetwork
    recorded: dict[str, dict[str, Tensor]]
    meta: dict

    @property
    def images(self) -> Tensor:
        return self.recorded["input"]["images"]


@pytest.fixture(scope="module", params=["c", "a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable, tmp_path_factory: pytest.TempPathFactory) -> Case:
    loaded = golden(f"vggt_omega_{request.param}")
    recorded = split(loaded.tensors)
    folder = tmp_path_factory.mktemp("omega")
    torch.save(recorded["weights"], folder / "omega.pt")
    settings = OmegaSettings.model_validate(loaded.meta)
    conversion = plan_conversion([folder / "omega.pt"], ConvertSettings(configs={settings.model: settings}))
    write_conversion(conversion, folder / "omega.safetensors")
    network = load_network(folder / "omega.safetensors").network.requires_grad_(False)
    return Case(network, recorded, loaded.meta)


def mids(network: ViewTimeNetwork, recorder: Recorder, images: Tensor) -> dict[str, Tensor]:
    grid = (images.shape[-2] // 16, images.shape[-1] // 16)
    encoder, depth = network.encoder, network.config.depth
    tables, head_dim = encoder.rotary_tables(grid), encoder.config.embed_dim // encoder.config.num_heads
    num_special = 1 + encoder.config.num_registers
    trunk: TrunkOutput = recorder.of("aggregator")[0]
    return {
        "encoder_tokens_in": encoder.embed(recorder.into("encoder")),
        "encoder_block_0": recorder.of("encoder.blocks.0"),
        "patch_tokens": recorder.of("encoder").tokens,
        "rope_cos": by_axis(tables.cos[num_special:].T, head_dim).T,
        "rope_sin": by_axis(tables.sin[num_special:].T, head_dim).T,
        "tokens_in": recorder.into("aggregator.blocks.frame.0"),
        "frame_block_0": recorder.of("aggregator.blocks.frame.0"),
        **{f"inter_frame_block_{layer}": recorder.of(f"aggregator.blocks.global.{layer}") for layer in range(depth)},
        **{f"aggregated_{layer}": tokens for layer, tokens in trunk.levels.items()},
        "camera_trunk_out": recorder.of("camera_head.trunk.3"),
        "dense_level4": recorder.of("depth_head.fusions.3"),
        "dense_fused": recorder.of("depth_head.fusions.0"),
        "dense_depth_raw": recorder.of("depth_head.shuffled.value"),
    }


def test_all_recorded_tensors(case: Case, agrees: Callable) -> None:
    recorder = Recorder(case.network, case.images)
    assert_all(mids(case.network, recorder, case.images), case.recorded["mid"], agrees)
    out = recorder.output
    outputs = {
        "pose_enc": out.pose_encoding[:, 0],
        "extrinsics": out.world_to_camera[:, 0, :, :3],
        "intrinsics": out.intrinsics[:, 0],
        "depth": out.depth[:, 0, ..., None],
        "depth_conf": out.depth_confidence[:, 0],
    }
    recorded = case.recorded["output"]
    assert_all(outputs, {name: value for name, value in recorded.items() if "text" not in name}, agrees)
    assert len(out.pose_encoding_iterations) == 1
    assert out.points is None


def test_instants_under_limits_equal_views(case: Case, agrees: Callable) -> None:
    limits = ForwardLimits(max_images=2, max_tokens=20, max_queries=7)
    out = case.network(case.images.unsqueeze(2), limits=limits)
    agrees(out.pose_encoding[:, :, 0], case.recorded["output"]["pose_enc"])
    agrees(out.depth[:, :, 0, ..., None], case.recorded["output"]["depth"])


def test_every_norm_has_the_recorded_epsilon(case: Case) -> None:
    """The recordings with small residuals, where epsilons matter, are not in the repository."""
    found = {name: module.eps for name, module in case.network.named_modules() if isinstance(module, nn.LayerNorm)}
    recorded = {
        target_name(f"{name}.weight", VGGT_OMEGA).removesuffix(".weight"): eps
        for name, eps in case.meta["layer_norm_eps"].items()
        if not name.startswith("text_alignment_head.")
    }
    assert found == recorded


def test_the_configuration_is_that_of_the_preset_at_another_size(case: Case) -> None:
    """Every choice that is not a size equals that of the published network."""
    found, preset = case.network.config, PRESETS["vggt-omega"]
    sizes = ("encoder", "depth", "num_heads", "register_layers", "num_registers", "depth_head")
    assert {name: value for name, value in vars(found).items() if name not in sizes} == {
        name: value for name, value in vars(preset).items() if name not in sizes
    }
    assert found.register_layers == tuple(case.meta["register_attention_blocks"])
    assert found.encoder.image_size == (256 if case.meta["text_head"] else 512)
    for part in ("residual", "output", "norm_eps", "positions", "fine_dim"):
        assert getattr(found.depth_head, part) == getattr(preset.depth_head, part)
