"""The fingerprint of a run: all that the bytes of its result depend on. Only an equal run is resumed."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

import page4d
from page4d.choices import CalibrationMatch
from page4d.errors import UsageError
from page4d.formats.calibrations import read_lenses
from page4d.io.atomic import file_sha256
from page4d.io.input_files import reading_again
from page4d.io.json_records import readable
from page4d.options import ReconstructSettings, describe_settings, option_name
from page4d.rig.records import RigRegistration
from page4d.run.plan import RunPlan
from page4d.run.predictor import PRECISION_NAMES
from page4d.run.state_records import RunState
from page4d.scene.identity import files_of, identify
from page4d.scene.records import FrameSource, Scene

_WITHOUT_EFFECT = ("preview", "strict_seams", "check_calibration", "memory_bytes", "max_frames", "max_megapixels")
_TEXTS = {"companions": "masks or depth"}
"""Names in messages of what is recorded under a key that is no option."""

_RESOLVED = ("sync", "calibration", "masks", "depth", "bodies")
"""Options whose effect is recorded instead: clocks, cameras, companions, and the model of body keypoints."""


def check_fingerprint(folder: Path, earlier: RunState, plan: RunPlan) -> None:
    """Refuse a recorded run whose inputs or settings were not those of the plan.

    Raises:
        UsageError: naming the differences.
    """
    _refuse(folder, _differences(earlier.fingerprint, fingerprint_of(plan)))


def earlier_registration(
    folder: Path, earlier: RunState | None, scene: Scene, settings: ReconstructSettings
) -> RigRegistration | None:
    """Return the registration of the run to continue; None if there is none.

    Raises:
        UsageError: naming the differences, if the run had other inputs or settings.
    """
    if earlier is None or earlier.registration is None:
        return None
    recorded, now = earlier.fingerprint, input_fingerprint(scene, settings)
    _refuse(folder, _differences({key: recorded.get(key) for key in now}, now))
    return earlier.registration


def _refuse(folder: Path, differs: list[str]) -> None:
    if differs:
        of_files = {"inputs", _TEXTS["companions"]} & {*differs}
        copied = "; copies of inputs must keep their times, as with `cp -a`" if of_files else ""
        raise UsageError(
            f"'{folder}' holds results of another run (differs: {', '.join(differs)})",
            f"use ⟨existing=overwrite⟩ to replace them, or another folder{copied}",
        )


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of differing inputs and settings: those of their options where these exist."""
    names = []
    for key in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(key), now.get(key)
        if before == after:
            continue
        if key == "points" and isinstance(before, dict) and isinstance(after, dict):
            names += _differences(before, after)
        else:
            names.append(_TEXTS.get(key) or option_name(key))
    return list(dict.fromkeys(names))


def fingerprint_of(plan: RunPlan) -> dict[str, JsonValue]:
    """Return everything that the result's bytes depend on.

    Files of options are identified by content, inputs by names, sizes, times and their ends, not by folder. Settings
    are included by their names, so that a difference can be reported by the option.
    """
    scene, predictor, registration = plan.scene, plan.predictor, plan.evidence.registration
    placed = [] if registration is None else registration.model_dump(mode="json")["cameras"]
    return {
        **input_fingerprint(scene, plan.settings),
        "network": predictor.record.name,
        "preset": predictor.record.preset,
        "weights": predictor.record.sha256,
        "motion-masks": predictor.record.motion_masks,
        "precision": PRECISION_NAMES[predictor.precision],
        "device": predictor.device.type,
        "descriptors": plan.descriptors,
        "cameras": _cameras_fingerprint(scene),
        "pose-model": None if registration is None else registration.record.pose_model,
        "bodies": plan.pose_model,
        "registered": _digest([placed]) if any(placed) else None,
    }


def input_fingerprint(scene: Scene, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Return the part of the fingerprint that is known before a scene without calibration is registered."""
    described = describe_settings(scene.options, settings)
    return {
        **{name: value for name, value in described.items() if name not in (*_WITHOUT_EFFECT, *_RESOLVED)},
        **_option_fingerprints(scene, settings),
        "version": page4d.__version__,
        "mask_meaning": scene.mask_meaning.value,
        "depth_levels": scene.depth_levels,
        "inputs": {readable(view.name): _source_fingerprint(view.source) for view in scene.views},
        "companions": {
            f"{readable(view.name)} {kind}": _source_fingerprint(paired.frames)
            for view in scene.views
            for kind, paired in (("mask", view.mask), ("depth", view.depth))
            if paired is not None
        },
        "instants": _digest([scene.times.tolist(), [view.indices for view in scene.views]]),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _option_fingerprints(scene: Scene, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Identify what is read of the files of options: their names, and other files in a folder, may differ."""
    floor, names = settings.floor_at, scene.view_names
    by_name = names if scene.options.calibration_match is CalibrationMatch.NAME else None
    lenses = () if settings.intrinsics is None else read_lenses(settings.intrinsics, by_name).cameras
    tracks = [] if settings.tracks2d is None else [settings.tracks2d / f"{name}.npz" for name in names]
    sizes = [[lens.name, lens.image_size, lens.nominal_width] for lens in lenses]
    with reading_again("a file of ⟨floor_at⟩ or ⟨tracks2d⟩"):
        return {
            "intrinsics": _digest([sizes, [f"{lens.intrinsics.tolist()}{lens.distortion}" for lens in lenses]]),
            "floor_at": None if floor is None else file_sha256(floor),
            "tracks2d": [file_sha256(file) if file.is_file() else None for file in tracks],
        }


def _source_fingerprint(source: FrameSource) -> str:
    ends = repr(identify(source))
    with reading_again(source.label):
        changed = [[path.name, path.stat().st_mtime_ns] for path in files_of(source)]
    return _digest([source.label, changed, ends])


def _cameras_fingerprint(scene: Scene) -> str | None:
    if scene.calibration is None:
        return None
    cameras = [view.camera for view in scene.views if view.camera is not None]
    parts = [f"{each.world_to_camera.tolist()}{each.intrinsics.tolist()}{each.distortion}" for each in cameras]
    return _digest([parts, str(scene.world_offset), scene.up])
