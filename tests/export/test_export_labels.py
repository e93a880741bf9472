"""`label` of a view in `export.json`: the name of its files, also in formats that number or reorder views."""

from pathlib import Path

import pytest

from tests.export.capture import NAMES, Capture
from tests.export.trainer_shots import export_one


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
def test_labels_are_names_of_files(
    name: str, pattern: str, labels: tuple[str, ...], capture: Capture, tmp_path: Path
):
    hold_out = (NAMES[3],) if name in ("4dgaussians-dynerf", "spacetime") else ()
    exported = export_one(capture, name, tmp_path / "room", views=NAMES[1:], hold_out=hold_out, instants=(0, 2, 1))
    views = {view.name: view.label for view in exported.record.views}
    assert views == dict(zip(NAMES[1:], labels, strict=True))
    assert all((exported.folder / pattern.format(label)).is_file() for label in labels)
