"""A run whose filters drop every point."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.clips import write_scene


@pytest.mark.parametrize(("confidence", "is_reported"), [("1", True), ("0", False)])
def test_empty_clouds_are_a_warning(
    confidence: str, is_reported: bool, tmp_path: Path, reconstruct: Callable
) -> None:
    scene = write_scene(tmp_path / "scene")
    ended = reconstruct(scene, tmp_path / "out", "--min-confidence", confidence, "--edge-angle", "90")
    assert ended.code == 0
    text = "warning: all point clouds are empty: no pixel has depth and passes --min-confidence 1 and --edge-angle 90"
    assert (text in ended.err) is is_reported
