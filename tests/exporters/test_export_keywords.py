"""Exports from Python: keywords and their usual types."""

from pathlib import Path

import pytest

import page4d
from page4d.errors import UsageError
from page4d.options import ExportSettings
from tests.exporters.capture import Capture, make_capture


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("keywords"), size=(30, 40))


def test_a_name_is_a_view_and_a_range_is_instants(capture: Capture, tmp_path: Path) -> None:
    (done,) = page4d.export(capture.output, "npz", tmp_path / "new", views="cam02", instants=range(1, 4, 2))
    assert [view.name for view in done.record.views] == ["cam02"]
    assert [one.instant for one in done.record.instants] == [1, 3]
    assert ExportSettings(hold_out="cam01").hold_out == ("cam01",)


def test_a_list_of_instants_is_not_taken_for_start_stop_and_step() -> None:
    with pytest.raises(UsageError, match="instants is a list"):
        ExportSettings(instants=[0, 2, 3])
