"""Golden tensors and configurations of networks."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.networks.config import FRAME_GLOBAL, NetworkConfig, Schedule
from page4d.networks.config_parts import CameraHeadConfig, DPTHeadConfig, FrameHeadConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.presets import PRESETS
from tests.models.small_networks import randomized_network

INSIDE = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class Golden:
    """Recorded tensors, and the metadata of their recording."""

    tensors: dict[str, Tensor]
    meta: dict

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


def load_golden(name: str) -> Golden:
    folder = INSIDE if (INSIDE / f"{name}.safetensors").exists() else SHARED
    if not (folder / f"{name}.safetensors").exists():
        pytest.skip(f"{name} is not in tests/golden nor in {SHARED}")
    return Golden(load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_text()))


def assert_golden(ours: Tensor, reference: Tensor) -> None:
    """Compare by the tolerance of the fixtures: rounding reaches 0.3 of it, the smallest known bug 4.7 times it."""
    assert ours.shape == reference.shape
    excess = (ours - reference).abs() / (1e-4 + 1e-4 * reference.abs())
    assert excess.max() <= 1, f"{excess.max():.2f} times the tolerance"


def recorded_config(meta: dict, schedule: Schedule) -> NetworkConfig:
    """Return the configuration of a fixture of the VGGT family, without a mask."""
    encoder, camera, dense = meta["encoder"], meta["camera_head"], meta["dpt_head"]
    head = DPTHeadConfig(
        layers=tuple(dense["intermediate_layer_idx"]),
        features=dense["features"],
        out_channels=tuple(dense["out_channels"]),
        hidden=dense["output_conv2_hidden"],
    )
    return NetworkConfig(
        encoder=DinoV2Config(
            image_size=encoder["img_size"],
            patch_size=encoder["patch_size"],
            embed_dim=encoder["embed_dim"],
            depth=encoder["depth"],
            num_heads=encoder["num_heads"],
        ),
        depth=meta["depth"],
        num_heads=meta["num_heads"],
        schedule=schedule,
        camera_head=CameraHeadConfig(trunk_depth=camera["trunk_depth"], num_heads=camera["num_heads"]),
        depth_head=head,
        point_head=head,
    )


def recorded_pi3_config(meta: dict) -> NetworkConfig:
    """Return the configuration of a Pi3 fixture."""
    encoder, decoder, heads = meta["encoder"], meta["decoder"], meta["heads"]
    return NetworkConfig(
        encoder=DinoV2Config(
            image_size=encoder["img_size"],
            embed_dim=encoder["embed_dim"],
            depth=encoder["depth"],
            num_heads=encoder["num_heads"],
        ),
        depth=decoder["depth"] // 2,
        num_heads=decoder["num_heads"],
        schedule=FRAME_GLOBAL,
        norm_eps=decoder["block_norm_eps"],
        num_registers=meta["num_register_tokens"],
        token_slots=1,
        camera_token=False,
        frame_head=FrameHeadConfig(
            dim=heads["dec_embed_dim"],
            num_heads=heads["dec_num_heads"],
            depth=heads["depth"],
            point_dim=heads["point_out"],
            camera_dim=heads["camera_out"],
            norm_eps=heads["block_norm_eps"],
        ),
    )


@pytest.fixture(autouse=True)
def _few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> NetworkConfig:
    return PRESETS["mv-tiny"]


@pytest.fixture(scope="session")
def randomized() -> Callable[..., ViewTimeNetwork]:
    def build(seed: int = 0, **changes: object) -> ViewTimeNetwork:
        return randomized_network(replace(PRESETS["mv-tiny"], **changes), seed)

    return build


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    return load_golden


@pytest.fixture(scope="session")
def agrees() -> Callable[[Tensor, Tensor], None]:
    return assert_golden


@pytest.fixture(scope="session")
def config_of() -> Callable[[dict, Schedule], NetworkConfig]:
    return recorded_config


@pytest.fixture(scope="session")
def pi3_config_of() -> Callable[[dict], NetworkConfig]:
    return recorded_pi3_config
