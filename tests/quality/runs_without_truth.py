"""Runs whose depth is the truth of a synthetic capture, disturbed on request, with the videos beside them."""

from collections.abc import Callable
from pathlib import Path

from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.options import ReconstructSettings
from page4d.records import Predictions
from page4d.run.reconstruct import reconstruct
from page4d.scene.open import open_scene
from tests.run.truth import TruthPredictor

CAPTURE = SyntheticCapture(seed=3, num_views=3, num_times=3, image_size=(72, 96))

Disturb = Callable[[int, Predictions], Predictions]


def write_run(
    folder: Path, disturb: Disturb | None = None, capture: SyntheticCapture = CAPTURE, scene: Path | None = None
) -> tuple[Path, Path]:
    """Write the videos of a capture, unless `scene` has them, and a run with its true depth; return both folders."""
    out = folder / "out"
    if scene is None:
        scene = folder / "scene"
        write_capture(capture, scene)
    predictor = TruthPredictor(capture) if disturb is None else TruthPredictor(capture, disturb)
    settings = ReconstructSettings(preview=False, check_calibration=False)
    reconstruct(open_scene(scene), predictor, out=out, settings=settings)
    return scene, out
