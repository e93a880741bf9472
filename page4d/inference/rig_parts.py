"""Parts of registration that are imported on first use: they load OpenCV and the runner of the pose model."""

import hashlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page4d.io.digest import file_sha256
from page4d.notices import Notice
from page4d.rig.records import RigRegistration
from page4d.scene.records import Scene
from page4d.settings import RegisterSettings

if TYPE_CHECKING:
    from page4d.rig.scene_check import SceneCheck

StageProgress = Callable[[int, int, str], None]
"""Receives the steps done of a stage, all its steps, and its name, such as "registering: keypoints cam02"."""


def _part(module: str, name: str) -> Any:
    return getattr(import_module(f"page4d.rig.{module}"), name)


def is_available() -> bool:
    """Return whether this installation has the registration of rigs."""
    return all(find_spec(f"page4d.rig.{name}") is not None for name in ("register", "camera_motion", "people.model"))


def register_rig(
    scene: Scene,
    settings: RegisterSettings,
    notify: Callable[[Notice], None],
    progress: StageProgress,
) -> RigRegistration:
    """Register the static views of a scene from evidence."""
    found: RigRegistration = _part("register", "register_rig")(scene, settings, notify, progress)
    return found


def moving_views(scene: Scene, progress: Callable[[int, int], None]) -> list[str]:
    """Return the names of the views whose camera moves."""
    motions = _part("camera_motion", "measure_camera_motion")(scene, progress)
    return [found.view for found in motions if found.is_static is False]


def check_scene(scene: Scene, progress: StageProgress) -> "SceneCheck | None":
    """Compare the calibration and the clocks of a scene with people."""
    found: SceneCheck | None = _part("scene_check", "check_scene")(scene, progress)
    return found


def has_pose_model() -> bool:
    """Return whether the model of body keypoints was fetched."""
    return bool(_part("people.model", "is_fetched")())


def pose_model_files() -> tuple[Path, ...]:
    """Return the files of the model of body keypoints."""
    return tuple(_part("people.model", "model_files")())


def pose_model_sha256() -> str:
    """Return one hash of all files of the pose model."""
    return hashlib.sha256("".join(file_sha256(file) for file in pose_model_files()).encode()).hexdigest()
