"""Registers a capture from evidence and compares its cameras with a true calibration.

    python tools/measure_rig.py SCENE --truth SCENE/Calib.qca.txt --calib-resize crop-center --lens true
    python tools/measure_rig.py SCENE --truth SCENE/truth/cameras.json --lens unknown --seed 1

`--keypoints` reads keypoints from a pickle of a dictionary with `instants` and `people`, instead of the pose model.
"""

import argparse
import pickle
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
from scipy.spatial.transform import Rotation

from page4d.choices import Registration
from page4d.options import RegisterSettings
from page4d.rig.evidence import PixelEvidence
from page4d.rig.lens import START_FOCAL
from page4d.rig.records import FocalSource, Lens, direction_angle_deg, rotation_angle_deg
from page4d.rig.register import Assembly, assembled
from page4d.scene.open import open_scene
from page4d.scene.records import Scene


def lenses_of_truth(scene: Scene, is_known: bool) -> list[Lens]:
    """Return the lenses of the true calibration, or start values with its distortion."""
    lenses = []
    for view in scene.views:
        assert view.camera is not None
        height, width = view.source.size
        start = START_FOCAL * max(height, width)
        unknown = np.array([[start, 0, width / 2], [0, start, height / 2], [0, 0, 1]])
        lenses.append(
            Lens(
                intrinsics=view.camera.intrinsics.double().numpy() if is_known else unknown,
                image_size=(height, width),
                distortion=view.camera.distortion,
                focal_source=FocalSource.CALIBRATION if is_known else FocalSource.UNKNOWN,
            )
        )
    return lenses


def register(scene: Scene, options: argparse.Namespace) -> Assembly:
    """Register the scene, from saved keypoints if they are given."""
    if options.keypoints is None:
        uncalibrated = replace(scene, views=tuple(replace(view, camera=None) for view in scene.views))
        settings = RegisterSettings(
            register=Registration(options.register),
            intrinsics=options.truth if options.lens == "true" else None,
            focal=None if options.lens in ("true", "unknown") else options.lens,
            seed=options.seed,
        )
        return assembled(PixelEvidence(uncalibrated, settings))
    with Path(options.keypoints).open("rb") as file:
        saved = pickle.load(file)
    assembly = Assembly(
        names=scene.view_names,
        lenses=lenses_of_truth(scene, options.lens == "true"),
        people=saved["people"],
        texture=(),
        num_instants=len(saved["instants"]),
        seed=options.seed,
    )
    assembly.run()
    return assembly


def relative(cameras: list[np.ndarray], first: int, second: int) -> np.ndarray:
    """Return the pose of the second camera relative to the first."""
    return cameras[second] @ np.linalg.inv(cameras[first])


def print_pairs(found: Assembly, truth: list[np.ndarray]) -> None:
    """Print every pair that was tried, with its error."""
    for pair in found.pairs.values():
        error = ""
        if pair.rotation is not None and pair.direction is not None:
            true = relative(truth, pair.first, pair.second)
            turn = float(rotation_angle_deg(pair.rotation, true[:3, :3]))
            bend = float(direction_angle_deg(pair.direction, true[:3, 3]))
            error = f"rotation {turn:6.2f} direction {bend:6.2f}"
        control = "" if pair.control is None else f" control {pair.control:.3g}"
        names = f"{found.names[pair.first]}-{found.names[pair.second]}"
        verdict = pair.reason or "accepted"
        print(f"pair {names} {pair.evidence:8} {error} score {pair.score:.3g}{control}: {verdict}")


def print_cameras(found: Assembly, truth: list[np.ndarray], scene: Scene) -> None:
    """Print errors of pairs of placed cameras, of centres after alignment, and of focal lengths."""
    records, of_views = found.placed()
    placed = [index for index, camera in enumerate(of_views) if camera is not None]
    cameras = [np.eye(4) if camera is None else camera.world_to_camera.numpy() for camera in of_views]
    turns, bends = [], []
    for first, second in combinations(placed, 2):
        mine, true = relative(cameras, first, second), relative(truth, first, second)
        turns.append(float(rotation_angle_deg(mine[:3, :3], true[:3, :3])))
        bends.append(float(direction_angle_deg(mine[:3, 3], true[:3, 3])))
        names = f"{found.names[first]}-{found.names[second]}"
        print(f"rig  {names} rotation {turns[-1]:6.2f} direction {bends[-1]:6.2f} degrees")
    if placed:
        print(
            f"rotation {np.median(turns):.2f} ({max(turns):.2f}), direction {np.median(bends):.2f} ({max(bends):.2f})"
        )
        scale, errors = centre_errors([cameras[i] for i in placed], [truth[i] for i in placed])
        print("centres (share of the rig's extent):", " ".join(f"{error:.3f}" for error in errors))
        if found.person_height is not None:
            print(f"height of people: {found.person_height * scale:.3f} in the unit of the calibration")
    for view, true_view in zip(records, scene.views, strict=True):
        assert true_view.camera is not None
        true_lens = true_view.camera.intrinsics.double().numpy()
        ratio = view.focal / float(np.sqrt(true_lens[0, 0] * true_lens[1, 1]))
        state = f"placed, residual {view.residual_px:.1f} px" if view.placed else f"not placed: {view.reason}"
        print(f"{view.view}: {state}; focal / true {ratio:.3f} (std {view.focal_std})")


def centre_errors(cameras: list[np.ndarray], truth: list[np.ndarray]) -> tuple[float, list[float]]:
    """Return the scale of the least-squares similarity, and errors of centres over the largest distance.

    Source: Umeyama (1991).
    """
    mine, true = (np.stack([-c[:3, :3].T @ c[:3, 3] for c in rig]) for rig in (cameras, truth))
    extent = max(float(np.linalg.norm(one - other)) for one, other in combinations(true, 2))
    mine, true = mine - mine.mean(0), true - true.mean(0)
    turns = [t[:3, :3].T @ c[:3, :3] for c, t in zip(cameras, truth, strict=True)]
    rotation = Rotation.from_matrix(turns).mean().as_matrix()
    turned = mine @ rotation.T
    scale = float((turned * true).sum() / (turned**2).sum())
    return scale, [float(error) / extent for error in np.linalg.norm(scale * turned - true, axis=-1)]


def main() -> None:
    """Register and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scene", type=Path)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--calib-resize", default=None)
    parser.add_argument("--lens", default="unknown", help="true, unknown, or a focal length as --focal takes it")
    parser.add_argument("--register", default="auto", choices=["auto", "people", "texture"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keypoints", type=Path)
    options = parser.parse_args()
    scene = open_scene(options.scene, calibration=options.truth, calibration_resize=options.calib_resize)
    truth = [view.camera.world_to_camera.double().numpy() for view in scene.views if view.camera is not None]
    found = register(scene, options)
    print_cameras(found, truth, scene)
    print_pairs(found, truth)
    for stage, seconds in found.seconds.items():
        print(f"{stage}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
