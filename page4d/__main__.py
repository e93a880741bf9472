"""Entry point of `python -m page4d`."""

import os
import sys

if __name__ == "__main__":
    try:
        from page4d_cli.app import main
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        sys.exit(130)
    main()
