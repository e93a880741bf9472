"""One small capture with ground truth, and an output folder that equals it."""

from pathlib import Path

import pytest

from page4d.choices import Subject
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from tests.evaluation.outputs import copy_of, reconstruct_from_truth


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three views of four instants, 64x48."""
    folder = tmp_path_factory.mktemp("evaluation") / "capture"
    write_capture(
        SyntheticCapture(seed=1, num_views=3, num_times=4, image_size=(48, 64), subject=Subject.PEOPLE), folder
    )
    return folder


@pytest.fixture(scope="session")
def perfect(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ground truth of the capture as the output of a run; read-only."""
    return reconstruct_from_truth(capture, tmp_path_factory.mktemp("evaluation") / "perfect", "--size", 64)


@pytest.fixture
def out(perfect: Path, tmp_path: Path) -> Path:
    """A copy of `perfect` to change."""
    return copy_of(perfect, tmp_path / "out")


@pytest.fixture
def truth(capture: Path, tmp_path: Path) -> Path:
    """A copy of the ground truth to change."""
    return copy_of(capture / "truth", tmp_path / "truth")
