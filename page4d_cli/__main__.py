"""Run as `python -m page4d_cli`."""

import gc
import os
import sys


def start() -> None:
    """Run the command line of this process; Ctrl-C is handled also while it is loaded."""
    # Threads of OpenMP that wait give up their core: spinning costs more than the work where other processes run.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # By default the objects of the loaded libraries, a quarter of a million, are searched for cycles a hundred times.
    gc.set_threshold(20_000)
    try:
        from page4d_cli.app import main
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\nhint:  repeat the command\n")
        sys.exit(130)
    try:
        main()
    finally:
        gc.freeze()  # or the end of the process searches all of these objects again, for a second


if __name__ == "__main__":
    start()
