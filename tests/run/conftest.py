"""Rendered frames, kept for all runs of a capture: rendering takes longer than the runs."""

from collections.abc import Iterator
from functools import lru_cache

import pytest

from page4d.lab.synthetic.capture import SyntheticCapture

_rendered = lru_cache(maxsize=2000)(SyntheticCapture.rendered)


@pytest.fixture(scope="module", autouse=True)
def _frames_are_rendered_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SyntheticCapture, "rendered", lambda *frame: _rendered(*frame))
        yield
