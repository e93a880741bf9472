"""A signal during a search for neighbours, whose threads must end before an exception leaves it."""

import os
import signal
import threading
from pathlib import Path

import numpy as np

from page4d.errors import Stopped
from page4d.exporters.splat import splat_radii
from page4d_cli.console import StopRequest, raising_stop
from tests.forks import forked


def stopped() -> None:
    """Print how many searches a signal ended."""
    xyz = np.random.default_rng(0).random((40000, 3)).astype(np.float32)
    number = 0
    for delay in np.linspace(0.02, 0.14, 7):
        try:
            with raising_stop(StopRequest()):
                timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                splat_radii(xyz)
                timer.join()
                signal.pause()
        except Stopped:
            number += 1
    print(number)


def test_a_signal_ends_a_search_without_a_crash(tmp_path: Path) -> None:
    code, out, err = forked(tmp_path, stopped).ended()
    assert (code, out) == (0, "7\n"), err
