"""Golden shape tables of networks and encoders; `make golden` regenerates them."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from page4d.choices import SparseStrategy
from page4d.lab.pretraining.profiles import PRETRAINING_PROFILES
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import SparseConfig
from page4d.networks.encoders.build import ENCODER_PRESETS
from page4d.networks.presets import PRESETS
from page4d.networks.profile.encoders import profile_encoder
from page4d.networks.profile.network import profile_network
from page4d.networks.profile.table import Profile

FOLDER = Path(__file__).parents[1] / "golden" / "shapes"
LARGE = PRESETS["mv-large"]
CASES: dict[str, tuple[NetworkConfig, int, int]] = {
    "specification": (replace(LARGE, sparse=SparseConfig(layers=(22, 23))), 24, 4),
    "memory": (replace(LARGE, sparse=SparseConfig(layers=(22, 23), strategy=SparseStrategy.MEMORY)), 2, 4),
    "vggt": (PRESETS["vggt"], 100, 1),
    "pi3": (PRESETS["pi3"], 100, 1),
    "mv-demo": (PRESETS["mv-demo"], 8, 4),
}
ENCODERS: dict[str, Callable[[], Profile]] = {
    **{
        name: partial(profile_encoder, ENCODER_PRESETS[name], batch=3)
        for name in ("vit-b16", "swin-t", "twins-svt-s", "navit")
    },
    **{name: partial(profile, batch=3) for name, profile in PRETRAINING_PROFILES.items()},
}


def written(profile: Profile) -> str:
    lines = [", ".join(f"{symbol}={number}" for symbol, number in profile.symbols.items()), ""]
    for stage in profile.stages:
        axes = f"[{', '.join(stage.symbolic)}] = [{', '.join(map(str, stage.shape))}]"
        flops = f"{stage.parameters} parameters, {stage.flops} FLOP" if stage.parameters else ""
        lines.append(f"{stage.part:<9} {stage.name:<66} {axes:<60} {flops}".rstrip())
    return "\n".join(lines) + "\n"


def check(name: str, profile: Profile) -> None:
    found, path = written(profile), FOLDER / f"{name}.txt"
    if os.environ.get("PAGE4D_REGENERATE"):
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("name", list(CASES))
def test_golden_profile(name: str) -> None:
    config, times, views = CASES[name]
    side = config.encoder.image_size
    check(name, profile_network(config, times=times, views=views, size=(side, side)))


@pytest.mark.parametrize("name", list(ENCODERS))
def test_golden_profile_of_an_encoder(name: str) -> None:
    check(name, ENCODERS[name]())
