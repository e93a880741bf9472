"""Run as `python -m page4d_cli`."""

from page4d_cli.app import main

main()
