"""Sync files: plausible clocks, and notices about unusual ones."""

import json
from pathlib import Path

import pytest

from page4d.errors import UsageError
from page4d.scene.clocks import read_sync_file, synchronise

NAMES = ("cam01", "cam02")


@pytest.mark.parametrize("entry", [{"offset_s": 1e9}, {"offset_s": -1e300}, {"rate": 1e-9}, {"rate": 1000.0}])
def test_clocks_that_no_capture_has_are_refused(entry: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"cam01": entry}))
    with pytest.raises(UsageError, match=rf"view 'cam01': {next(iter(entry))}: Input should be") as raised:
        read_sync_file(path, NAMES)
    assert "not a date" in raised.value.hint


@pytest.mark.parametrize("entry", [{"offset_s": -86_400.0}, {"rate": 0.001}, {"rate": 30.0}, {"rate": 1.0004}])
def test_days_slow_motion_and_time_lapses_are_accepted(entry: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "s.TOML"
    path.write_text("".join(f"cam01.{key} = {value}\n" for key, value in entry.items()))
    clock = read_sync_file(path, NAMES)["cam01"]
    assert (clock.offset_s, clock.rate) == (entry.get("offset_s", 0.0), entry.get("rate", 1.0))


def test_unusual_rates_and_missing_views_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"cam01": {"rate": 0.125}}')
    found = synchronise(NAMES, [], str(path), None)
    assert [notice.text for notice in found.notices] == [
        "s.json has no entry for cam02: offset 0 s and rate 1 are used",
        "s.json: cam01 (0.125): a rate other than 1 means slow motion or a time lapse",
    ]


def test_views_outside_of_the_table_of_views_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"views": {"cam01": {}}, "cam02": {"offset_s": 1}, "comment": "x"}')
    with pytest.raises(UsageError, match="cam02 is not in 'views'"):
        read_sync_file(path, NAMES)
