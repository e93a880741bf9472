"""For any file content, a reader returns a calibration or raises a Page4DError."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from page4d.formats.calibrations import read_calibration
from tests.fuzzing import bounded, fuzz, mutated_bytes, read_or_refuse
from tests.scene.calibration_writers import WRITERS, make_rig

NAMES = ("x.qca.txt", "x.toml", "x.json", "intri.yml", "cameras.bin", "cameras.txt", "x.npy", "x.npz", "x.mat", "x")
HOSTILE = (
    *(b"nan", b"NaN", b"inf", b"-1", b"0", b"1e308", b"-1e308", b"1e-320", b"9" * 400, b"true", b"null"),
    *(b'""', b"[]", b"{}", b"&a", b"*a", b"!!x", b"\xff", b"\0", b"\n", b" "),
)

SAME_READERS = ("yaml-xml", "yaml-json", "nerfstudio-applied")

Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def valid() -> dict[str, Contents]:
    """Return the files of every format by relative path."""
    contents = {}
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as raw:
            folder = Path(raw)
            write(folder, make_rig())
            contents[name] = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return contents


def check(path: Path) -> None:
    with bounded():
        found = read_or_refuse(lambda: read_calibration(path))
    if found is None:
        return
    assert len(set(found.names)) == len(found.cameras) > 0
    for camera in found.cameras:
        assert bool(torch.isfinite(camera.world_to_camera).all())


@pytest.mark.parametrize("name", NAMES)
@fuzz(40)
@given(
    content=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
)
def test_arbitrary_content_is_read_or_refused(name: str, content: bytes, folder: Path) -> None:
    partners = {"intri.yml": "extri.yml", "cameras.bin": "images.bin", "cameras.txt": "images.txt"}
    (folder / name).write_bytes(content)
    if name in partners:
        (folder / partners[name]).write_bytes(content)
    check(folder / name)


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in SAME_READERS])
@fuzz(40)
@given(draws=st.data())
def test_mutated_valid_files_are_read_or_refused(
    name: str, draws: st.DataObject, valid: dict[str, Contents], folder: Path
) -> None:
    target = folder / name
    contents = valid[name]
    changed = draws.draw(st.sampled_from(sorted(contents)))
    for path, content in contents.items():
        if path == changed:
            content = draws.draw(mutated_bytes(content, HOSTILE))
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(content)
    check(target)
