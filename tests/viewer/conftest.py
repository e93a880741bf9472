"""A capture of 4 views and 4 instants with a gap in time, and what a viewer shows of it. Tests only read it."""

import time
from collections.abc import Callable

import pytest

from page4d.options import ExportSettings
from page4d.viewer.content import ViewerContent, viewer_content
from tests.exporters.capture import UNEVEN, Capture, make_capture


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when something holds; fail after 30 s."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("viewer"), numbers=UNEVEN, size=(60, 80))


@pytest.fixture(scope="session")
def moving_capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("viewer-moving"), moving=True, size=(60, 80))


@pytest.fixture(scope="session")
def content(capture: Capture) -> ViewerContent:
    return viewer_content(capture.output, ExportSettings())
