"""Captures of the colour test, written once per session. Tests only read them."""

import pytest

from tests.exporters.capture import UNEVEN, Capture, make_capture


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A capture of 4 static cameras and 4 instants."""
    return make_capture(tmp_path_factory.mktemp("capture"))


@pytest.fixture(scope="session")
def fast_capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A capture of 4 static cameras and 4 instants with velocities and tracks."""
    return make_capture(tmp_path_factory.mktemp("fast"), velocity=True, tracks=True)


@pytest.fixture(scope="session")
def moving_capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A capture of 4 moving cameras and 4 instants."""
    return make_capture(tmp_path_factory.mktemp("moving"), moving=True)


@pytest.fixture(scope="session")
def uneven_capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A capture of 4 static cameras and 4 instants with a gap in time."""
    return make_capture(tmp_path_factory.mktemp("uneven"), numbers=UNEVEN)
