"""Errors and warnings about unusual videos, as the command line shows them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.clips import truncate, write_video

Cli = Callable[..., Any]


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", ["cam01.mkv", "cam01.ts"])
def test_a_truncated_video_is_an_error_or_shortened(name: str, cli: Cli, tmp_path: Path) -> None:
    write_video(tmp_path / "cam02.mp4", 12)
    cabac = {"preset": "medium"}  # the arithmetic decoder detects missing bytes
    truncate(write_video(tmp_path / name, 12, seed=1, noisy=True, options=cabac), 0.7)
    refused = cli("inspect-scene", tmp_path)
    assert refused.code == 3
    assert f"error: {name} ends early, after frame" in words(refused.err)
    assert "hint: pass --allow-damaged to use the" in words(refused.err)
    used = cli("inspect-scene", tmp_path, "--allow-damaged")
    assert used.code == 0
    assert "intact frames are used" in words(used.out + used.err)


def test_interlaced_footage_is_a_warning(cli: Cli, tmp_path: Path) -> None:
    write_video(tmp_path / "cam01.mkv", options={"x264-params": "interlaced=1"})
    ended = cli("inspect-scene", tmp_path)
    assert ended.code == 0
    assert "cam01: interlaced" in words(ended.out + ended.err)


def test_the_folder_with_the_videos_is_named(cli: Cli, tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "cam01.mp4")
    ended = cli("inspect-scene", tmp_path)
    assert ended.code == 3
    assert f"but '{tmp_path / 'videos'}' has 1" in ended.err.replace("\n", "")
    assert "hint: give the folder" in words(ended.err)


def test_a_name_with_a_colon_is_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(tmp_path / "plain.mp4").rename(tmp_path / "http:cam01.mp4")
    monkeypatch.chdir(tmp_path)
    assert cli("inspect-scene", ".").code == 0
