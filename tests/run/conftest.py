"""Rendered frames, kept for all runs of a capture: rendering takes longer than the runs."""

from collections.abc import Iterator
from functools import lru_cache

import pytest

from page4d.geometry.pixels import PixelTransform
from page4d.lab.synthetic.capture import RenderedFrame, SyntheticCapture
from tests.synthetic.scenes import frames_together

_alone, _together = lru_cache(maxsize=2000)(SyntheticCapture.rendered), lru_cache(maxsize=100)(frames_together)
_MAX_PIXELS = 1_000_000


def _rendered(capture: SyntheticCapture, time: int, view: int, pixels: PixelTransform | None = None) -> RenderedFrame:
    """Render one frame, with all others of a small capture, which takes as long."""
    height, width = capture.image_size
    is_small = capture.num_times * capture.num_views * height * width <= _MAX_PIXELS
    is_plain = set(capture.view_sizes) == {capture.image_size} and not (capture.readout_s or capture.board)
    if pixels is None and is_small and is_plain:
        return _together(capture)[time, view]
    return _alone(capture, time, view, pixels)


@pytest.fixture(scope="module", autouse=True)
def _frames_are_rendered_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SyntheticCapture, "rendered", lambda *frame: _rendered(*frame))
        yield
