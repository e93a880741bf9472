"""Run as `python -m page4d_cli`."""

import os
import sys


def start() -> None:
    """Run the command line of this process; Ctrl-C is handled also while it is loaded."""
    # Threads of OpenMP that wait give up their core: spinning costs more than the work where other processes run.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from page4d_cli.app import main
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
