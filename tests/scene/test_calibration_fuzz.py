"""For any file content, a reader returns a calibration or raises a Page4DError."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from page4d.errors import Page4DError
from page4d.formats.camera_model import Calibration
from page4d.formats.read import read_calibration
from tests.fuzzing import bounded, fuzz, mutated_bytes
from tests.scene.calibration_writers import WRITERS, make_rig

NAMES = ("x.qca.txt", "x.toml", "x.json", "intri.yml", "cameras.bin", "cameras.txt", "x")
HOSTILE = (
    *(b"nan", b"NaN", b"inf", b"-1", b"0", b"1e308", b"-1e308", b"1e-320", b"9" * 400, b"true", b"null"),
    *(b'""', b"[]", b"{}", b"&a", b"*a", b"!!x", b"\xff", b"\0", b"\n", b" "),
)

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


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that is reused by all examples of a test."""
    with tempfile.TemporaryDirectory() as raw:
        yield Path(raw)


def read_or_refuse(path: Path) -> None:
    outcome: Calibration | Page4DError
    with bounded():
        try:
            outcome = read_calibration(path)
        except Page4DError as error:
            outcome = error
    if isinstance(outcome, Page4DError):
        assert outcome.exit_code in (2, 3)
        assert outcome.hint
        return
    assert len(set(outcome.names)) == len(outcome.cameras) > 0
    for camera in outcome.cameras:
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
    read_or_refuse(folder / name)


@pytest.mark.parametrize("name", WRITERS)
@fuzz(60)
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
    read_or_refuse(target)
