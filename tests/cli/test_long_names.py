"""Names beyond the limits of a file system: two short lines that name the cause."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.clips import write_scene

LONG = "x" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        (LONG,),
        ("scene", "--masks", LONG),
        ("scene", "--sync", LONG),
        ("scene", "--views", LONG),
        ("scene", "--views", "9" * 5000),
        ("scene", "--frames", LONG),
    ],
    ids=["scene", "masks", "sync", "views", "digits", "frames"],
)
def test_names_that_are_too_long_are_errors_of_usage(
    arguments: tuple[str, ...], tmp_path: Path, cli: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scene(tmp_path / "scene")
    ended = cli("inspect-scene", *arguments)
    assert ended.code == 2
    assert len(ended.err) < 700
    assert "xxx..." in ended.err or "999..." in ended.err or "is not of the form" in ended.err
