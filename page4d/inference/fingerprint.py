"""What a run's bytes depend on, so that a run is continued only as it was begun."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import JsonValue

import page4d
from page4d.errors import UsageError
from page4d.inference.report import RunInputs
from page4d.inference.run_state import RunState
from page4d.inference.settings import ReconstructSettings
from page4d.io.json_model import readable
from page4d.scene.records import Scene

_EDGE_BYTES = 1 << 20
_WITHOUT_EFFECT = ("preview", "strict_seams", "memory_bytes", "max_frames", "max_megapixels")
_NAMES_A_FILE = ("sync", "calibration", "masks", "depth")

_OPTION_NAMES = {
    "long_side": "size",
    "camera_motion": "cameras",
    "max_megapixels": "max-pixels",
    "calibration_resize": "calib-resize",
    "source": "points-from",
    "edge_angle_deg": "edge-angle",
    "voxel_size": "voxel",
}
"""Settings that the command line calls otherwise; in the others a dash stands for the underscore."""


def check_fingerprint(folder: Path, earlier: RunState | None, fingerprint: dict[str, JsonValue]) -> RunState:
    """Return the earlier run if its inputs and settings were the same.

    Raises:
        UsageError: naming what differs.
    """
    if earlier is None:
        raise UsageError(f"'{folder}' holds files but no record of a page4d run", "use another folder")
    differs = _differences(earlier.fingerprint, fingerprint)
    if differs:
        raise UsageError(
            f"'{folder}' holds results of another run (differs: {', '.join(differs)})",
            "use --overwrite to replace them, or another folder",
        )
    return earlier


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name what differs, by the names of the options where there is one."""
    names = []
    for key in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(key), now.get(key)
        if before == after:
            continue
        if key == "points" and isinstance(before, dict) and isinstance(after, dict):
            names += _differences(before, after)
        else:
            names.append(_OPTION_NAMES.get(key, key.replace("_", "-")))
    return names


def fingerprint_of(inputs: RunInputs, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Describe everything that the result's bytes depend on.

    Of files the content counts, not the path: a run may be continued from another folder. The options of the command
    are in it so that a difference goes by the name that the user knows.
    """
    scene = inputs.scene
    plain: dict[str, JsonValue] = {**inputs.command, **json.loads(json.dumps(asdict(settings)))}
    return {
        **{name: value for name, value in plain.items() if name not in (*_WITHOUT_EFFECT, *_NAMES_A_FILE)},
        "version": page4d.__version__,
        "network": inputs.network.name,
        "preset": inputs.network.preset,
        "weights": inputs.network.sha256,
        "precision": inputs.precision,
        "device": inputs.device.type,
        "mask_meaning": scene.mask_meaning.value,
        "depth_levels": scene.depth_levels,
        "inputs": {
            readable(view.name): _source_fingerprint(view.source.label, files_of(view.source)) for view in scene.views
        },
        "companions": {
            f"{readable(view.name)} {kind}": _source_fingerprint(paired.frames.label, files_of(paired.frames))
            for view in scene.views
            for kind, paired in (("mask", view.mask), ("depth", view.depth))
            if paired is not None
        },
        "instants": hashlib.sha256(
            json.dumps([scene.times.tolist(), [view.indices for view in scene.views]]).encode()
        ).hexdigest(),
        "cameras": _cameras_fingerprint(scene),
    }


def files_of(source: Any) -> list[Path]:
    """Return the files that frames come from; none for frames that are rendered or held in memory."""
    files = getattr(source, "files", None)
    path = getattr(source, "path", None)
    return list(files) if files else [path] if path else []


def _source_fingerprint(label: str, files: list[Path]) -> str:
    digest = hashlib.sha256(os.fsencode(label))
    for path in files:
        size = path.stat().st_size
        digest.update(os.fsencode(f"{path.name} {size} {path.stat().st_mtime_ns}"))
        if len(files) == 1:
            with path.open("rb") as file:
                digest.update(file.read(_EDGE_BYTES))
                file.seek(max(size - _EDGE_BYTES, 0))
                digest.update(file.read(_EDGE_BYTES))
    return digest.hexdigest()


def _cameras_fingerprint(scene: Scene) -> str | None:
    if scene.calibration is None:
        return None
    parts = [
        f"{camera.world_to_camera.tolist()}{camera.intrinsics.tolist()}{camera.distortion}"
        for camera in (view.camera for view in scene.views)
        if camera is not None
    ]
    return hashlib.sha256("".join(parts).encode()).hexdigest()
