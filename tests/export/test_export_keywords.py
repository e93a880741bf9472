"""Exports from Python: keywords, their usual types, errors in these words, and the help."""

import inspect
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path

import pytest

import page4d
from page4d.errors import InputError, UsageError
from page4d.exporters.formats import FORMATS
from page4d.exporters.keywords import named_as_keywords, settings_from
from page4d.options import ExportSettings
from tests.export.capture import Capture, make_capture


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


@pytest.mark.parametrize(
    ("formats", "options", "words"),
    [
        (
            "colmap",
            {},
            "colmap needs the pictures; give scene FOLDER with cam01, cam02, cam03, ... (4 in all), or images=False",
        ),
        ("npz", {"text": True}, "npz takes no text; leave it out; these formats take it: colmap"),
        ("npz", {"views": "cam9"}, "views: no view is called 'cam9'; the views are cam01, cam02, cam03, cam04"),
        ("npz", {"instants": range(9)}, "instants: no instant 8; the run has instants 0 to 3"),
        ("np", {}, "no format 'np'; did you mean npz?; list the formats with 'page4d export --list'"),
    ],
)
def test_errors_name_keywords(
    capture: Capture, tmp_path: Path, formats: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        page4d.export(capture.output, formats, tmp_path / "new", **options)
    assert f"{caught.value.message}; {caught.value.hint}" == words
    assert str(caught.value) == caught.value.message


def test_ranges_and_flags_in_hints() -> None:
    with pytest.raises(InputError) as caught, named_as_keywords():
        raise InputError("a--b and x --y", "choose some, such as --instants 0:300, or --pinhole common")
    assert caught.value.message == "a--b and x y"
    assert caught.value.hint == "choose some, such as instants=range(0, 300), or pinhole='common'"
