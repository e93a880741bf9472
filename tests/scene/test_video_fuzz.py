"""For any content of a video file, opening a scene and reading all frames succeeds or raises a Page4DError.

`PAGE4D_FUZZ_EXAMPLES=2000 python -m pytest tests/scene/test_video_fuzz.py` runs for minutes.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.scene.open import open_scene
from tests.fuzzing import fuzz, mutated_bytes, read_or_refuse
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


def read_all(folder: Path, *, allow_damaged: bool, sync: str) -> None:
    for view in open_scene(folder, allow_damaged=allow_damaged, max_megapixels=1.0, sync=sync).views:
        with view.source.open() as reader:
            for pixels in reader.read(sorted(set(view.indices))[:40]):
                assert pixels.shape == (*view.source.size, 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", KINDS)
@fuzz(12)
@given(draws=st.data(), allow_damaged=st.booleans(), sync=st.sampled_from(("auto", "auto", "audio", "timecode")))
def test_mutated_videos_are_read_or_refused(
    name: str, draws: st.DataObject, allow_damaged: bool, sync: str, valid: dict[str, bytes], folder: Path
) -> None:
    for file in folder.iterdir():
        file.unlink()
    content = valid[name]
    for _ in range(draws.draw(st.integers(1, 4))):
        content = draws.draw(mutated_bytes(content, HOSTILE))
    (folder / f"1{name}").write_bytes(content)
    (folder / f"2{name}").write_bytes(valid[name])
    read_or_refuse(lambda: read_all(folder, allow_damaged=allow_damaged, sync=sync))
