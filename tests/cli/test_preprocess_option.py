"""The option `--preprocess`: published image sizes in the plan of a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.clips import write_scene

UNTRAINED = ("--untrained", "--preset", "mv-tiny")
SIZES = {"native": [70, 56], "vggt-crop": [518, 392], "vggt-pad": [518, 518], "pi3": [574, 434], "da3": [504, 378]}


@pytest.fixture
def scene(tmp_path: Path) -> str:
    return str(write_scene(tmp_path / "scene"))


@pytest.mark.parametrize("preprocess", list(SIZES))
def test_the_plan_has_the_published_size(preprocess: str, scene: str, tmp_path: Path, cli: Callable) -> None:
    ended = cli(
        "reconstruct",
        scene,
        "--out",
        str(tmp_path / "out"),
        *UNTRAINED,
        "--preprocess",
        preprocess,
        "--dry-run",
        "--json",
    )
    assert ended.code == 0
    assert json.loads(ended.out)["network_size"] == SIZES[preprocess]
    assert "--preprocess" not in ended.err


def test_a_size_with_published_preprocessing_is_refused(scene: str, tmp_path: Path, cli: Callable) -> None:
    ended = cli(
        "reconstruct", scene, "--out", str(tmp_path / "out"), *UNTRAINED, "--preprocess", "pi3", "--size", "300"
    )
    assert ended.code == 2
    assert "error: --size 300 with --preprocess pi3" in ended.err
    assert not (tmp_path / "out").exists()
