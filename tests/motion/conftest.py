"""A synthetic rig whose motion is known."""

import pytest

from page4d.choices import Subject
from page4d.lab.synthetic.capture import SyntheticCapture


@pytest.fixture(scope="session")
def capture() -> SyntheticCapture:
    """Four static cameras around people, 12 fps."""
    return SyntheticCapture(
        seed=96, num_views=4, num_times=8, image_size=(96, 128), spacing_deg=20.0, subject=Subject.PEOPLE
    )
