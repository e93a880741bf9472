"""Exports from Python: keywords, their usual types, and the help."""

import inspect
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path

import pytest

import page4d
from page4d.errors import UsageError
from page4d.exporters.formats import FORMATS
from page4d.options import ExportSettings, settings_from
from tests.exporters.capture import Capture, make_capture


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("keywords"), size=(30, 40))


def test_the_help_lists_formats_and_options_with_defaults() -> None:
    text = inspect.getdoc(page4d.export)
    assert text is not None
    found = re.findall(r"- (\w+)=(.+): ", text)
    assert [name for name, _ in found] == [field.name for field in fields(ExportSettings)]
    defaults = {field.name: getattr(ExportSettings(), field.name) for field in fields(ExportSettings)}
    for name, value in found:
        expected = defaults[name]
        assert value == (repr(expected.value) if isinstance(expected, Enum) else repr(expected))
    named = re.search(r"The formats are ([^;]+);", text)
    assert named is not None
    assert re.split(r",\s+|\s+and\s+", named[1]) == sorted(FORMATS, key=named[1].index)
    assert len(re.split(r",\s+|\s+and\s+", named[1])) == len(FORMATS)


def test_a_name_is_a_view_and_a_range_is_instants(capture: Capture, tmp_path: Path) -> None:
    (done,) = page4d.export(capture.output, "npz", tmp_path / "new", views="cam02", instants=range(1, 4, 2))
    assert [view.name for view in done.record.views] == ["cam02"]
    assert [one.instant for one in done.record.instants] == [1, 3]
    assert settings_from({"hold_out": "cam01"}).hold_out == ("cam01",)


def test_a_list_of_instants_is_not_taken_for_start_stop_and_step() -> None:
    with pytest.raises(UsageError, match="instants is a list"):
        settings_from({"instants": [0, 2, 3]})
