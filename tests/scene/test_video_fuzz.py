"""For any content of a video file, opening a scene and reading all frames succeeds or raises a Page4DError.

`PAGE4D_FUZZ_EXAMPLES=2000 python -m pytest tests/scene/test_video_fuzz.py` runs for minutes.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.errors import Page4DError
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from tests.fuzzing import fuzz
from tests.scene.clip_writers import write_counter_clip

RATED = {"b": "2000000"}
SOUND = 0.3 * np.random.default_rng(0).standard_normal(9600)
KINDS: dict[str, dict[str, Any]] = {
    "a.mp4": {"sound": SOUND},
    "fragmented.mp4": {"muxer_options": {"movflags": "frag_keyframe+empty_moov"}},
    "a.mkv": {"sound": SOUND},
    "a.webm": {"codec": "libvpx", "options": RATED},
    "a.ts": {"sound": SOUND},
    "a.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "a.mov": {"codec": "prores_ks", "pixel_format": "yuv422p10le"},
    "a.flv": {},
    "a.mpg": {"codec": "mpeg2video", "rate": 25, "options": RATED},
    "a.wmv": {"codec": "wmv2", "options": RATED},
    "a.gif": {"codec": "gif", "pixel_format": "rgb8", "rate": 25},
    "a.y4m": {"codec": "rawvideo"},
    "a.h264": {},
}
HOSTILE = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1", b"\0", b"\xff" * 8)


@pytest.fixture(scope="module")
def valid() -> dict[str, bytes]:
    """Return a valid file of every kind."""
    with tempfile.TemporaryDirectory() as raw:
        return {
            name: write_counter_clip(Path(raw) / name, 6, **settings).read_bytes() for name, settings in KINDS.items()
        }


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that is reused by all examples of a test."""
    with tempfile.TemporaryDirectory() as raw:
        yield Path(raw)


def read_or_refuse(folder: Path, *, allow_damaged: bool, sync: str) -> None:
    outcome: Scene | Page4DError
    try:
        outcome = open_scene(folder, allow_damaged=allow_damaged, max_megapixels=1.0, sync=sync)
        for view in outcome.views:
            with view.source.open() as reader:
                for pixels in reader.read(sorted(set(view.indices))[:40]):
                    assert pixels.shape == (*view.source.size, 3)
    except Page4DError as error:
        outcome = error
    if isinstance(outcome, Page4DError):
        assert outcome.exit_code in (2, 3)
        assert outcome.hint
        assert "\n" not in outcome.message


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Return a few changes: their kind, place as a share of the file, and bytes; headers are changed most often."""
    kinds = st.sampled_from(("overwrite", "overwrite", "flip", "cut", "insert", "end"))
    places = st.one_of(st.floats(0, 1), st.floats(0, 0.2), st.floats(0.8, 1))
    data = st.one_of(st.sampled_from(HOSTILE), st.binary(min_size=1, max_size=8))
    return draw(st.lists(st.tuples(kinds, places, data), min_size=1, max_size=4))


def mutate(content: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, place, data in changes:
        at = int(place * len(content))
        if kind == "overwrite":
            content = content[:at] + data + content[at + len(data) :]
        elif kind == "flip" and at < len(content):
            content = content[:at] + bytes([content[at] ^ (1 << data[0] % 8)]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at] + content[at + 10 * len(data) :]
        elif kind == "insert":
            content = content[:at] + data + content[at:]
        elif kind == "end":
            content = content[:at]
    return content


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", KINDS)
@fuzz(12)
@given(changes=mutations(), allow_damaged=st.booleans(), sync=st.sampled_from(("auto", "auto", "audio", "timecode")))
def test_mutated_videos_are_read_or_refused(
    name: str,
    changes: list[tuple[str, float, bytes]],
    allow_damaged: bool,
    sync: str,
    valid: dict[str, bytes],
    folder: Path,
) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / f"1{name}").write_bytes(mutate(valid[name], changes))
    (folder / f"2{name}").write_bytes(valid[name])
    read_or_refuse(folder, allow_damaged=allow_damaged, sync=sync)
