"""Cameras before and after refinement, without calibration, against the true ones.

    python tools/measure_refinement.py SCENE CALIBRATION [--instants 4] [--calib-resize crop-center] [--weights FILE]

Prints, for every view, the focal length in units of the true one, and for every pair of views the error of the
relative rotation in degrees: of the network, and after refinement with and without the comparison with held-out
evidence.
"""

import argparse
import time
from pathlib import Path

import torch

from page4d.choices import Poses
from page4d.evaluation.cameras import pair_errors
from page4d.geometry.camera import Cameras
from page4d.networks.output import RigOutput
from page4d.options import ReconstructSettings
from page4d.run.predictor import NetworkPredictor, build_predictor
from page4d.scene.batches import FrameBatch, open_batches
from page4d.scene.open import open_scene
from page4d.stereo.refine import refinement_of


def read(options: argparse.Namespace, predictor: NetworkPredictor) -> FrameBatch:
    """Read instants spread evenly over the clip."""
    extra = {"calibration_resize": options.calib_resize} if options.calib_resize else {}
    scene = open_scene(options.scene, calibration=options.calibration, **extra)
    size = predictor.default_long_side
    assert size is not None
    with open_batches(scene, size, predictor.multiple) as reader:
        return reader.read(options.start, options.start + options.instants)


def show(name: str, output: RigOutput, truth: Cameras) -> None:
    """Print median focal ratios over time, and pair errors of the rotations at all instants."""
    assert output.world_to_camera is not None
    assert output.intrinsics is not None
    focal, true = (matrix[0, ..., 0, 0].double().cpu() for matrix in (output.intrinsics, truth.intrinsics))
    ratio = (focal / true).quantile(0.5, dim=0)
    found = output.world_to_camera[0].double().cpu()
    errors = torch.stack(
        [
            pair_errors(one, other).rotation_deg
            for one, other in zip(found, truth.world_to_camera[0].double(), strict=True)
        ]
    ).quantile(0.5, dim=0)
    print(f"{name:>10}  focal/true {_row(ratio, 2)}   pair rotation, degrees {_row(errors, 1)}", flush=True)


def _row(values: torch.Tensor, digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--calib-resize")
    parser.add_argument("--instants", type=int, default=4)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--weights")
    options = parser.parse_args()
    predictor = build_predictor(options.weights, settings=ReconstructSettings(poses=Poses.PREDICTED))
    batch = read(options, predictor)
    assert batch.cameras is not None
    output = predictor.run(batch)
    show("network", output, batch.cameras)
    begin = time.process_time()
    images, conditioning = predictor._images(batch), predictor._conditioning(batch, None)
    refined = refinement_of(predictor.network, output, images, conditioning)
    show("refined", refined.output, batch.cameras)
    print(f"refinement: {time.process_time() - begin:.1f} s of CPU")


if __name__ == "__main__":
    main()
