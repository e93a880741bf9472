"""`page4d synthesize` shows its progress on stderr."""

from pathlib import Path

import pytest

from page4d_cli.app import run


def test_progress_is_printed_in_tenths_without_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["synthesize", "--views", "1", "--family", "single", "--frames", "20", "--size", "16x16"]
    assert run([*words, "--out", str(tmp_path / "loud")]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"rendered {done} of 20 frames" for done in range(2, 21, 2)]
    assert run([*words, "--quiet", "--out", str(tmp_path / "quiet")]) == 0
    assert capfd.readouterr() == ("", "")
