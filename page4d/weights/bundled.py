"""The bundled demonstration network."""

from pathlib import Path

from page4d.errors import WeightsError

NOTICE = "a demonstration network, trained on synthetic scenes alone: for real footage pass --weights"
"""Notice shown whenever the bundled network is used."""

BUNDLED_NAME = "mv-demo 1.0"
"""Name and version of the bundled network."""

_FILE = Path(__file__).parent / "files" / "mv-demo.safetensors"


def bundled_weights() -> Path:
    """Return the file of the network that is used by default.

    Raises:
        WeightsError: if this installation lacks it.
    """
    if not _FILE.is_file():
        raise WeightsError(
            f"the bundled weights are missing: '{_FILE}'",
            "reinstall page4d, pass --weights FILE, or --untrained to test without trained weights",
        )
    return _FILE
