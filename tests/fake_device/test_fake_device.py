"""Nothing is left on the CPU by mistake: networks, training and reconstruction on a stand-in for a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

CHECKS = Path(__file__).with_name("checks.py")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch knows no devices that are written in Python",
)
def test_everything_runs_on_another_device() -> None:
    """In a process of its own: a device stays known to torch for as long as it runs."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
