"""page4d: 4D reconstruction from synchronized videos.

The public names are imported on first use, so that `import page4d` costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from page4d.errors import Page4DError as Page4DError
    from page4d.evaluation.evaluate import evaluate as evaluate
    from page4d.exporters.export import export as export
    from page4d.options import CalibrateSettings as CalibrateSettings
    from page4d.options import ExportSettings as ExportSettings
    from page4d.options import PointOptions as PointOptions
    from page4d.options import ReconstructSettings as ReconstructSettings
    from page4d.options import RegisterSettings as RegisterSettings
    from page4d.options import SceneOptions as SceneOptions
    from page4d.output.reader import Output as Output
    from page4d.output.reader import open_output as open_output
    from page4d.quality.page import report as report
    from page4d.quality.record import QualityReport as QualityReport
    from page4d.rig.board_views import BoardCalibration as BoardCalibration
    from page4d.rig.opening import open_scene as open_scene
    from page4d.rig.records import RigRegistration as RigRegistration
    from page4d.run.calibration import calibrate as calibrate
    from page4d.run.predictor import build_predictor as build_predictor
    from page4d.run.reconstruct import reconstruct as reconstruct
    from page4d.run.registration import register as register
    from page4d.scene.records import Scene as Scene
    from page4d.weights.loading import load as load

__version__ = "0.3.0.dev0"

_MODULES = {
    "BoardCalibration": "page4d.rig.board_views",
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

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'page4d' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
