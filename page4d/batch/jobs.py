"""The jobs of a batch: scenes and their output folders."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import UsageError
from page4d.export.run_record import RunRecord
from page4d.inference.progress import Observer


@dataclass(frozen=True, kw_only=True)
class SceneJob:
    """A scene and its output folder, which is below the root of the batch and named after the scene."""

    scene: Path
    out: Path

    @property
    def name(self) -> str:
        """Name of the scene in the batch: that of its output folder."""
        return self.out.name


Work = Callable[[SceneJob, Observer], RunRecord]
"""Runs a job; can be sent to another process."""


def scene_jobs(scenes: Sequence[Path], root: Path) -> list[SceneJob]:
    """Assign each scene the output folder `root/<name of the scene>`.

    Raises:
        UsageError: if two scenes have the same name, or an output folder is a scene.
    """
    by_name: dict[str, list[Path]] = defaultdict(list)
    for scene in scenes:
        by_name[scene.resolve().name].append(scene)
    for name, same in by_name.items():
        if len(same) > 1:
            listed = ", ".join(f"'{scene}'" for scene in same)
            raise UsageError(
                f"{len(same)} scenes are called '{name}': {listed}", "run them separately, with different --out"
            )
        if not name:
            raise UsageError(f"'{same[0]}' has no name", "give a folder below it")
    jobs = [SceneJob(scene=same[0], out=root / name) for name, same in by_name.items()]
    for job in jobs:
        if job.out.resolve() == job.scene.resolve():
            raise UsageError(f"the output folder of '{job.scene}' is the scene itself", "give another --out")
    return jobs
