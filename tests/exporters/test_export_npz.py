"""NumPy archives, read back by NumPy."""

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from numpy.typing import NDArray

from page4d.exporters.export import export
from page4d.output.reader import Output
from tests.exporters.capture import Capture


def archive(folder: Path, view: str) -> dict[str, NDArray[Any]]:
    with np.load(folder / f"{view}.npz", allow_pickle=False) as data:
        return dict(data)


@pytest.fixture(scope="module")
def exported(moving_capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(moving_capture.folder, "npz", tmp_path_factory.mktemp("exported") / "npz")[0].folder


def test_arrays_are_those_of_the_run(moving_capture: Capture, exported: Path):
    output = moving_capture.output
    for view, name in enumerate(output.view_names):
        data = archive(exported, name)
        assert data.keys() >= output.arrays([name]).keys() - {"views"}
        assert data["depth"].dtype == data["conf"].dtype == np.float32
        assert data["dynamic"].dtype == bool
        assert (data["depth"] > 0).all()
        for place in range(4):
            np.testing.assert_array_equal(data["depth"][place], output.depth(place, name))
            np.testing.assert_array_equal(data["conf"][place], output.confidence(place, name))
            np.testing.assert_array_equal(data["dynamic"][place], output.dynamic(place, name))
        assert data["dynamic"].any()
        np.testing.assert_array_equal(data["world_to_camera"], moving_capture.world_to_camera[:, view])
        np.testing.assert_allclose(data["intrinsics"], output.intrinsics_at_maps(name), rtol=1e-15)
        np.testing.assert_array_equal(data["times"], moving_capture.times)
        np.testing.assert_array_equal(data["instants"], range(4))
        assert (str(data["view"]), str(data["unit"])) == (name, "metre")
        assert all(array in str(data["conventions"]) for array in data.keys() - {"view", "unit", "conventions"})


def test_scale_selection_and_runs_without_motion(capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Output, "has_motion", False)
    export(capture.folder, "npz", tmp_path / "npz", scale=2.0, instants=(None, None, 3), views=("cam03",))
    assert [path.name for path in sorted((tmp_path / "npz").iterdir())] == ["cam03.npz", "export.json"]
    data = archive(tmp_path / "npz", "cam03")
    assert not {"dynamic", "velocity"} & data.keys()
    assert str(data["unit"]) == "0.5 metre"
    np.testing.assert_array_equal(data["instants"], [0, 3])
    np.testing.assert_allclose(data["depth"][1], 2 * capture.output.depth(3, "cam03"), rtol=1e-6)
    np.testing.assert_allclose(data["world_to_camera"][:, :3, 3], 2 * capture.world_to_camera[[0, 3], 2, :3, 3])


def test_archives_have_no_dates_and_progress_ends_with_the_last_view(capture: Capture, tmp_path: Path):
    steps: list[tuple[int, int]] = []
    export(capture.folder, "npz", tmp_path / "npz", progress=lambda *step: steps.append(step))
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with ZipFile(tmp_path / "npz" / "cam02.npz") as opened:
        assert {entry.date_time for entry in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}
