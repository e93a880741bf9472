"""Checks of the output folder before a run: existing results, and input files inside it."""

from pathlib import Path

from page4d.choices import ExistingOutput
from page4d.errors import UsageError
from page4d.inference.run_state import CONTRACT_NAMES, is_occupied
from page4d.io.atomic import check_folder, real_path
from page4d.scene.identity import files_of
from page4d.scene.records import Scene


def check_target(out: Path, existing: ExistingOutput) -> None:
    """Refuse, before any work, an output that cannot be written or already holds a result.

    Raises:
        OutputError: if it is a file or cannot be created.
        UsageError: if it holds a result that is neither to be resumed nor overwritten.
    """
    check_folder(out)
    if not is_occupied(out):
        return
    if existing is ExistingOutput.REFUSE:
        raise UsageError(f"'{out}' already holds a result", "use --resume, --overwrite or another folder")
    if existing is ExistingOutput.OVERWRITE and not (out / "state" / "run.json").is_file():
        raise UsageError(f"'{out}' holds files that page4d did not write", "use another folder, or move them")


def check_inputs_outside(scene: Scene, out: Path) -> None:
    """Refuse an output whose files would overwrite input files.

    Raises:
        UsageError: naming the first such file.
    """
    own = [real_path(out / name) for name in CONTRACT_NAMES]
    sidecars = [paired.frames for view in scene.views for paired in (view.mask, view.depth) if paired is not None]
    read = [path for source in (*(view.source for view in scene.views), *sidecars) for path in files_of(source)]
    for path in (*read, *scene.other_files):
        if any(real_path(path).is_relative_to(folder) for folder in own):
            raise UsageError(f"the output would overwrite the input '{path}'", "use another folder for --out")
