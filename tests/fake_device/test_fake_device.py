"""Device placement: networks, training and reconstruction run on a fake device without tensors left on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

CHECKS = Path(__file__).with_name("checks.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no Python device backends",
)
def test_all_checks_pass_on_the_fake_device() -> None:
    """In a separate process: a device cannot be unregistered."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
