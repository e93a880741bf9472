"""Entry point of `python -m page4d`."""

from page4d_cli.app import main

if __name__ == "__main__":
    main()
