"""page4d: 4D reconstruction from synchronized videos.

The public names are imported on first use, so that `import page4d` costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from page4d.errors import Page4DError
    from page4d.evaluation.evaluate import evaluate
    from page4d.exporters.export import export
    from page4d.options import (
        CalibrateSettings,
        ExportSettings,
        PointOptions,
        ReconstructSettings,
        RegisterSettings,
        SceneOptions,
    )
    from page4d.output.reader import Output, open_output
    from page4d.quality.page import report
    from page4d.quality.record import QualityReport
    from page4d.rig.opening import open_scene
    from page4d.rig.records import RigRegistration
    from page4d.run.calibration import BoardCalibration, calibrate
    from page4d.run.predictor import build_predictor
    from page4d.run.reconstruct import reconstruct
    from page4d.run.registration import register
    from page4d.scene.records import Scene
    from page4d.weights.loading import load

__version__ = "0.3.0.dev0"

_MODULES = {
    "BoardCalibration": "page4d.run.calibration",
    "CalibrateSettings": "page4d.options",
    "ExportSettings": "page4d.options",
    "Output": "page4d.output.reader",
    "Page4DError": "page4d.errors",
    "PointOptions": "page4d.options",
    "QualityReport": "page4d.quality.record",
    "ReconstructSettings": "page4d.options",
    "RegisterSettings": "page4d.options",
    "RigRegistration": "page4d.rig.records",
    "Scene": "page4d.scene.records",
    "SceneOptions": "page4d.options",
    "build_predictor": "page4d.run.predictor",
    "calibrate": "page4d.run.calibration",
    "evaluate": "page4d.evaluation.evaluate",
    "export": "page4d.exporters.export",
    "load": "page4d.weights.loading",
    "open_output": "page4d.output.reader",
    "open_scene": "page4d.rig.opening",
    "reconstruct": "page4d.run.reconstruct",
    "register": "page4d.run.registration",
    "report": "page4d.quality.page",
}

__all__ = [
    "BoardCalibration",
    "CalibrateSettings",
    "ExportSettings",
    "Output",
    "Page4DError",
    "PointOptions",
    "QualityReport",
    "ReconstructSettings",
    "RegisterSettings",
    "RigRegistration",
    "Scene",
    "SceneOptions",
    "__version__",
    "build_predictor",
    "calibrate",
    "evaluate",
    "export",
    "load",
    "open_output",
    "open_scene",
    "reconstruct",
    "register",
    "report",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'page4d' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
