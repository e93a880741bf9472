"""Rendered frames and samples of them, kept for all runs of a capture: these take longer than the runs."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from page4d.lab.synthetic.capture import RenderedFrame, SyntheticCapture
from page4d.rig.samples import ViewSample, sample_views
from page4d.scene.records import Scene
from tests.synthetic.scenes import frames_together

_alone, _together = lru_cache(maxsize=2000)(SyntheticCapture.rendered), lru_cache(maxsize=100)(frames_together)
_MAX_PIXELS = 1_000_000


def _rendered(capture: SyntheticCapture, time: int, view: int) -> RenderedFrame:
    """Render one frame, with all others of a small capture, which takes as long."""
    height, width = capture.image_size
    is_small = capture.num_times * capture.num_views * height * width <= _MAX_PIXELS
    is_plain = set(capture.view_sizes) == {capture.image_size} and not (capture.readout_s or capture.board)
    if is_small and is_plain:
        return _together(capture)[time, view]
    return _alone(capture, time, view)


_scene = lru_cache(SyntheticCapture.scene)
_samples: dict[Any, tuple[Scene, tuple[ViewSample, ...]]] = {}


def _sampled(scene: Scene, *progress: Any) -> tuple[ViewSample, ...]:
    """Sample the same sources once; their scenes are kept, so that no others get their ids."""
    key = tuple((view.name, id(view.source), tuple(view.indices)) for view in scene.views)
    if key not in _samples:
        _samples[key] = scene, sample_views(scene, *progress)
    return _samples[key][1]


@pytest.fixture(scope="module", autouse=True)
def _frames_are_rendered_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SyntheticCapture, "rendered", lambda *frame: _rendered(*frame))
        patched.setattr(SyntheticCapture, "scene", lambda capture: _scene(capture))
        patched.setattr("page4d.rig.evidence.sample_views", _sampled)
        yield
    _samples.clear()
