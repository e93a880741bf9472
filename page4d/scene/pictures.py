"""Check of folders for pictures: one in a scene would be a view of it the next time."""

from collections.abc import Iterable
from pathlib import Path

from page4d.errors import UsageError
from page4d.io.atomic import real_path
from page4d.scene.discover import RESERVED_FOLDERS


def check_is_no_view(folder: Path, scenes: Iterable[Path]) -> None:
    """Refuse a folder for pictures directly below a scene.

    Raises:
        UsageError: naming the scene.
    """
    target = real_path(folder)
    for scene in scenes:
        is_ignored = target.name.startswith(".") or target.name.lower() in RESERVED_FOLDERS
        if target.parent == real_path(scene) and not is_ignored:
            raise UsageError(
                f"the pictures in '{folder}' would be a view of the scene '{scene}' next time",
                "give a folder outside the scene",
            )
