"""Captures of the colour test, written once per session. Tests only read them."""

import pytest

from page4d.exporters.export import Exported
from tests.exporters.capture import UNEVEN, Capture, make_capture
from tests.exporters.trainer_shots import export_one


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


@pytest.fixture(scope="module")
def exported(request: pytest.FixtureRequest, capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The static capture in the format NAME of the tests, with their OPTIONS if there are any."""
    options = getattr(request.module, "OPTIONS", {})
    return export_one(capture, request.module.NAME, tmp_path_factory.mktemp("exported") / "room", **options)
