"""`page4d synthesize` shows its progress on stderr."""

import re
from pathlib import Path

import pytest

from page4d_cli.app import run


def test_progress_without_a_terminal_is_a_plain_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["synthesize", "--views", "1", "--family", "single", "--frames", "20", "--size", "16x16"]
    assert run([*words, "--out", str(tmp_path / "loud")]) == 0
    assert re.fullmatch(
        r"(render: \d+/20 frames, [^\n]*\n)*render: 20/20 frames, 0:0\d:\d\d\n", capfd.readouterr().err
    )
    assert run([*words, "--quiet", "--out", str(tmp_path / "quiet")]) == 0
    assert capfd.readouterr() == ("", "")
