"""Fewer repetitions of the same estimation than footage needs: rendered and simulated evidence is clean."""

import pytest

from page4d.rig import texture_pairs
from page4d.rig.people import pose


@pytest.fixture(autouse=True)
def _few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texture_pairs, "_NUM_STARTS", 1)
    monkeypatch.setattr(texture_pairs, "_NUM_SPLITS", 2)
    monkeypatch.setattr(pose, "NUM_CONTROLS", 1)
