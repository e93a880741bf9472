"""Claims of several formats: labels of views, equal bytes, calibrations, refusals, keywords from Python."""

from pathlib import Path

import numpy as np
import pytest

import page4d
from page4d.errors import OutputError, UsageError
from page4d.exporters.export import export, plan_exports
from page4d.options import ExportSettings
from page4d.scene.open import open_scene
from tests.exporters.capture import NAMES, Capture, make_capture
from tests.exporters.trainer_shots import export_one, files_of


@pytest.mark.parametrize(
    ("name", "pattern", "labels"),
    [
        ("4dgaussians-dynerf", "{}/images/0000.png", ("cam01", "cam02", "cam00")),
        ("spacetime", "colmap_0/images/{}.png", ("cam01", "cam02", "cam00")),
        ("fudan-4dgs", "images/{}_0000.png", ("cam00", "cam01", "cam02")),
        ("dynamic3dgs", "ims/{}/000000.jpg", ("0", "1", "2")),
        ("4dgaussians", "{}/frame_00001.jpg", ("cam01", "cam02", "cam03")),
        ("easyvolcap", "images/{}/000000.jpg", NAMES[1:]),
    ],
)
def test_labels_are_names_of_files(name: str, pattern: str, labels: tuple[str, ...], capture: Capture, tmp_path):
    hold_out = (NAMES[3],) if name in ("4dgaussians-dynerf", "spacetime") else ()
    exported = export_one(capture, name, tmp_path / "room", views=NAMES[1:], hold_out=hold_out, instants=(0, 2, 1))
    views = {view.name: view.label for view in exported.record.views}
    assert views == dict(zip(NAMES[1:], labels, strict=True))
    assert all((exported.folder / pattern.format(label)).is_file() for label in labels)


@pytest.mark.parametrize(
    ("name", "options", "number"), [("chan", {}, 4), ("glb", {"animated": True}, 1), ("usd", {"split": True}, 6)]
)
def test_a_second_export_has_the_same_bytes(
    name: str, options: dict[str, bool], number: int, moving_capture: Capture, tmp_path
):
    """Of moving cameras; tests/cli/test_export_command.py exports static ones to every format."""
    if name == "usd":
        pytest.importorskip("pxr")
    for folder in ("first", "second"):
        export(moving_capture.folder, name, tmp_path / folder, **options)
    first, second = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert first == second
    assert len(first) == number
    assert name != "chan" or not any(b"-0 " in content for content in first.values())


@pytest.mark.parametrize(
    ("name", "place"), [("colmap", "sparse/0"), ("nerfstudio", "transforms.json"), ("easyvolcap", "")]
)
def test_cameras_are_read_as_a_calibration(name: str, place: str, capture: Capture, tmp_path):
    folder = export_one(capture, name, tmp_path / "room", instants=(0, 2, 1)).folder
    scene = open_scene(capture.scene, image_fps=12.0, calibration=folder / place)
    for view, camera in enumerate(source.camera for source in scene.views):
        assert (camera.is_static, camera.distortion) == (True, None)
        np.testing.assert_allclose(camera.world_to_camera, capture.world_to_camera[0, view], atol=1e-12)
        np.testing.assert_allclose(camera.intrinsics, capture.intrinsics[0, view], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "place"), [("exr", "depth/cam01/frame_000000.exr"), ("glb", "scene.glb"), ("glb", "scene.bin")]
)
def test_a_folder_in_the_way_is_named(name: str, place: str, capture: Capture, tmp_path: Path):
    if name == "exr":
        pytest.importorskip("OpenEXR")
    job, _ = plan_exports(capture.folder, name, tmp_path / name, overwrite=False)[0]
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(OutputError, match="a folder is in the way"):
        job.format.code.write(job, tmp_path)


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("keywords"), size=(30, 40))


def test_a_name_is_a_view_and_a_range_is_instants(capture: Capture, tmp_path):
    (done,) = page4d.export(capture.output, "npz", tmp_path / "new", views="cam02", instants=range(1, 4, 2))
    assert [view.name for view in done.record.views] == ["cam02"]
    assert [one.instant for one in done.record.instants] == [1, 3]
    assert ExportSettings(hold_out="cam01").hold_out == ("cam01",)


def test_a_list_of_instants_is_not_taken_for_start_stop_and_step():
    with pytest.raises(UsageError, match="instants is a list"):
        ExportSettings(instants=[0, 2, 3])
