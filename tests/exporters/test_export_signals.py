"""A signal during a search for neighbours, whose threads must end before an exception leaves it."""

import subprocess
import sys

STOPPED = """
import os, signal, threading
import numpy as np
from page4d.errors import Stopped
from page4d.exporters.splat import splat_radii
from page4d_cli.console import StopRequest, raising_stop

xyz = np.random.default_rng(0).random((40000, 3)).astype(np.float32)
stopped = 0
for delay in np.linspace(0.02, 0.14, 7):
    try:
        with raising_stop(StopRequest()):
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            splat_radii(xyz)
            timer.join()
            signal.pause()
    except Stopped:
        stopped += 1
print(stopped)
"""


def test_a_signal_ends_a_search_without_a_crash() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
