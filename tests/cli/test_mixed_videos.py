"""Runs with a portrait camera and landscape cameras of other sizes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import pytest
from torch import Tensor

from page4d.networks.network import ViewTimeNetwork
from tests.cli.clips import write_video

pytestmark = pytest.mark.usefixtures("constant_forecast")

SIZES = {"cam01": (64, 48), "cam02": (48, 64), "cam03": (36, 64), "cam04": (24, 80)}
"""Height and width of the videos."""

CONTENTS = {"cam01": (56, 42), "cam02": (42, 56), "cam03": (32, 56), "cam04": (17, 56)}
"""Height and width of their images at a long side of 56 px."""

CANVASES = {"cam01": (56, 42), "cam02": (42, 56), "cam03": (42, 56), "cam04": (28, 56)}
"""Height and width of their canvases, in multiples of the patch size of 14 px."""


@pytest.fixture
def scene(tmp_path) -> Path:
    for seed, (name, size) in enumerate(SIZES.items()):
        write_video(tmp_path / "scene" / f"{name}.mp4", 6, size=size, seed=seed)
    return tmp_path / "scene"


def test_each_view_is_reconstructed_at_its_own_size(scene: Path, tmp_path, reconstruct: Callable, monkeypatch):
    sizes: list[list[tuple[int, ...]]] = []
    forward = ViewTimeNetwork.forward

    def recorded(network: ViewTimeNetwork, images: Sequence[Tensor], *rest: object, **options: object) -> object:
        sizes.append([tuple(view.shape[-2:]) for view in images])
        return forward(network, images, *rest, **options)

    out = tmp_path / "out"
    options = ("--size", "56", "--chunk", "4", "--overlap", "2")
    assert reconstruct(scene, out, *options, "--dry-run").code == 0  # measures the cost of the network
    monkeypatch.setattr(ViewTimeNetwork, "forward", recorded)
    ended = reconstruct(scene, out, *options)
    assert ended.code == 0, ended.err
    assert sizes == [list(CANVASES.values())] * 2
    cameras = json.loads((out / "cameras.json").read_text())["views"]
    for name, (height, width) in SIZES.items():
        for kind in ("depth", "confidence"):
            maps = sorted((out / kind / name).glob("*.png"))
            assert len(maps) == 6
            assert cv2.imread(str(maps[0]), cv2.IMREAD_UNCHANGED).shape == CONTENTS[name]
        assert cameras[name]["image_size"] == [width, height]
        lens = cameras[name]["intrinsics"]
        lens = lens[0] if isinstance(lens[0][0], list) else lens
        assert lens[0][2] == pytest.approx(width / 2, abs=0.8)
        assert lens[1][2] == pytest.approx(height / 2, abs=0.8)

    before = {path: path.read_bytes() for path in out.rglob("*.p*") if path.suffix in (".png", ".ply")}
    (out / "state" / "chunk_00001.json").unlink()
    max((out / "depth" / "cam04").glob("*.png")).unlink()
    (out / "run.json").unlink()
    ended = reconstruct(scene, out, *options, "--resume")
    assert ended.code == 0, ended.err
    assert {path: path.read_bytes() for path in before} == before


def test_the_plan_lists_the_size_of_every_view(scene: Path, tmp_path, reconstruct: Callable):
    ended = reconstruct(scene, tmp_path / "out", "--size", "56", "--dry-run")
    assert "images   42x56, 56x42, 56x42, 56x28 px" in ended.out
    ended = reconstruct(scene, tmp_path / "out", "--size", "56", "--dry-run", "--json")
    plan = json.loads(ended.out)
    assert plan["network_sizes"] == [list(reversed(size)) for size in CANVASES.values()]
