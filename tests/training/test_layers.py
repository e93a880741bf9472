"""Dependencies within `page4d.training`: the engine imports no training method, validation no supervised training."""

from pathlib import Path

import pytest

TRAINING = Path(__file__).parents[2] / "page4d" / "training"


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("engine", ("page4d.training.supervised", "page4d.training.validation", "page4d.pretraining")),
        ("validation", ("page4d.training.supervised", "page4d.pretraining")),
    ],
)
def test_a_lower_layer_does_not_import_a_higher_one(package: str, forbidden: tuple[str, ...]) -> None:
    files = sorted((TRAINING / package).glob("*.py"))
    assert files
    for file in files:
        assert not [name for name in forbidden if name in file.read_text()], file
