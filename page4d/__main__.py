"""Run as `python -m page4d`."""

from page4d_cli.__main__ import start

if __name__ == "__main__":
    start()
