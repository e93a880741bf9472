"""SHA-256 of files, and its comparison with an expected one."""

import hashlib
import re
from pathlib import Path

from page4d.errors import UsageError, shortened

_SHOWN = 12
"""Digits of a hash in messages."""


def parse_sha256(text: str) -> str:
    """Return the hexadecimal digits of a SHA-256 in lower case; blanks around them and "sha256:" are left out.

    Raises:
        UsageError: if the text is not a SHA-256.
    """
    digits = text.strip().lower().removeprefix("sha256:")
    if re.fullmatch(r"[0-9a-f]{64}", digits) is None:
        raise UsageError(f"'{shortened(text)}' is not a SHA-256", "give 64 hexadecimal digits, as sha256sum prints")
    return digits


def parse_pin(weights: str | Path | None, sha256: str | None) -> str | None:
    """Return the SHA-256 that weights must have, if one is given.

    Raises:
        UsageError: if it is not a SHA-256, or no weights are given.
    """
    if sha256 is None:
        return None
    if weights is None:
        raise UsageError("--sha256 without weights", "give the weights file that it belongs to")
    return parse_sha256(sha256)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_mismatch(found: str, expected: str) -> str:
    """Return both hashes, shortened, for a message."""
    return f"has sha256 {found[:_SHOWN]}.., expected {expected[:_SHOWN]}.."
