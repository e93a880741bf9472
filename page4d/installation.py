"""Commands that install the optional parts of page4d."""

import shlex
import sys

EXTRAS = {"ray": ("ray>=2.52,<3",), "train": ("tensorboard>=2.14",)}
"""Packages of each optional part, as in pyproject.toml."""


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra such as `ray` for the running Python, from any folder.

    It names the packages, as page4d itself is on no package index.
    """
    return pip_install(*EXTRAS[extra])


def pip_install(*words: str) -> str:
    """Return the shell command by which pip installs packages for the running Python."""
    return " ".join(map(shlex.quote, (sys.executable or "python3", "-m", "pip", "install", *words)))
