"""The weights that come with page4d, for a first look."""

from pathlib import Path

from page4d.errors import WeightsError

NOTICE = "a demonstration network, trained on synthetic scenes alone: for real footage pass --weights"
"""What is said whenever it is used."""

_FILE = Path(__file__).parent / "files" / "mv-demo.safetensors"


def bundled_weights() -> Path:
    """Return the file of the network that runs where no other is named.

    Raises:
        WeightsError: if it was left out of this installation.
    """
    if not _FILE.is_file():
        raise WeightsError(
            f"the weights that come with page4d are not there: '{_FILE}'",
            "install page4d anew, pass --weights FILE, or --untrained to try everything but the values",
        )
    return _FILE
