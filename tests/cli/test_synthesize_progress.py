"""`page4d synthesize` shows its progress on stderr, and writes true motion on request."""

import re
from pathlib import Path

import pytest

from page4d.formats.tracks import read_tracks
from page4d_cli.app import run


def test_progress_without_a_terminal_is_a_plain_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["synthesize", "--views", "1", "--family", "single", "--frames", "20", "--size", "16x16"]
    assert run([*words, "--out", str(tmp_path / "loud")]) == 0
    assert re.fullmatch(
        r"(render: \d+/20 frames, [^\n]*\n)*render: 20/20 frames, 0:0\d:\d\d\n", capfd.readouterr().err
    )
    assert run([*words, "--quiet", "--out", str(tmp_path / "quiet")]) == 0
    assert capfd.readouterr() == ("", "")


def test_true_motion_is_written_on_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["synthesize", "--views", "2", "--frames", "3", "--size", "64x48", "--seed", "9", "--truth-motion"]
    refused = [*words, "--readout", "10", "--out", str(tmp_path / "refused")]
    assert run(refused) == 2
    assert "motion of frames read out over 0.01 s" in capfd.readouterr().err
    assert not (tmp_path / "refused").exists()
    assert run([*words, "--quiet", "--out", str(tmp_path / "capture")]) == 0
    truth = tmp_path / "capture" / "truth"
    assert len(list((truth / "motion").rglob("*.png"))) == 6
    assert read_tracks(truth / "tracks.npz").coords.shape[0] == 3
