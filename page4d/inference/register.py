"""Registration of a rig alone: from a scene to its cameras, and to a calibration for other programs."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from page4d.choices import Registration
from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.inference.progress import Observer, SilentObserver
from page4d.inference.registration import reasons, register_scene
from page4d.io.limits import limits_named
from page4d.options import RegisterSettings, SceneOptions
from page4d.rig.opening import open_scene
from page4d.rig.records import RigRegistration
from page4d.scene.records import Scene

_EVIDENCE = (Registration.AUTO, Registration.PEOPLE, Registration.TEXTURE)


@limits_named()
def register(
    scene: Scene | Path | str,
    *,
    settings: RegisterSettings | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> RigRegistration:
    """Determine the cameras of a static rig from people and texture, without a network of page4d.

    A calibration of the scene is ignored, apart from its lenses. Views whose camera moves are left out.

    Args:
        scene: an open scene, or the folder of one.
        settings: of the registration; the defaults if None.
        observer: receives notices and progress.
        **options: fields of `SceneOptions` (if `scene` is a folder) and of `RegisterSettings` by name, such as
            `register="people"` and `focal="26mm"`.

    Raises:
        UsageError: if options are unknown or do not fit the scene.
        InputError: if a video, image or calibration cannot be used.
        WeightsError: if people are requested and the pose model was not fetched.
    """
    names = [{field.name for field in fields(kind)} for kind in (SceneOptions, RegisterSettings)]
    unknown = sorted(options.keys() - set().union(*names))
    if unknown:
        raise UsageError(f"no option is called '{unknown[0]}'", "see help(page4d.register)")
    of_scene, of_settings = ({key: value for key, value in options.items() if key in group} for group in names)
    settings = replace(settings or RegisterSettings(), **of_settings)
    if settings.register not in _EVIDENCE:
        raise UsageError(
            f"no evidence is called '{settings.register}'",
            "use auto, people or texture; the network's cameras are in the result of `page4d reconstruct`",
        )
    observer = observer or SilentObserver()
    if not isinstance(scene, Scene):
        scene = open_scene(scene, SceneOptions(**of_scene), progress=observer.progress)
    elif of_scene:
        raise UsageError(f"{', '.join(of_scene)} with a scene that is open", "pass them to open_scene")
    scene.options.check_resize(settings.intrinsics)
    if scene.num_views < 2:
        raise UsageError("a single view cannot be registered", "give a scene of two views or more")
    return register_scene(scene, settings, notify=observer.notice, progress=observer.progress)


def placed_cameras(found: RigRegistration) -> Calibration:
    """Return the placed cameras as a calibration, in metres if a length is known.

    Raises:
        InputError: naming the reasons, if fewer than two views are placed.
    """
    if found.num_placed < 2:
        raise InputError(
            f"evidence places no camera: {reasons(found)}", "give --focal, more instants, or film people in all views"
        )
    factor = torch.ones(4, 4, dtype=torch.float64)
    factor[:3, 3] = found.metres_per_unit or 1.0
    cameras = tuple(
        CalibratedCamera(
            name=view.name,
            image_size=view.lens.image_size,
            intrinsics=torch.from_numpy(view.lens.intrinsics.copy()),
            world_to_camera=torch.from_numpy(view.world_to_camera.copy()) * factor,
            distortion=view.lens.distortion,
        )
        for view in found.views
        if view.world_to_camera is not None
    )
    scale = Scale.ARBITRARY if found.metres_per_unit is None else Scale.METRIC
    return Calibration(path=Path("registration"), scale=scale, cameras=cameras)
