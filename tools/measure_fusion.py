"""Compare depth and clouds of calibrated synthetic rigs with and without fusion and fine depth.

    python tools/measure_fusion.py WORK [--scenes 200] [--times 6] [--family arc] [--weights FILE]

Every held-out scene is rendered at 256x192 px and reconstructed with its true, static cameras: without fusion at
the network's size, with fusion at the network's size, and with the default options. Prints a line for each scene,
then the means: AbsRel and <1.25 without alignment, F-score at 1 % of the size of the scene (the diagonal of the
box of its points), standard deviation over time of static depth, and AUSE. Results stay in WORK, so that another
call continues.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import page4d
from page4d.choices import DepthAlignment, DepthSize, SceneFamily
from page4d.geometry.camera import world_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.lab.training.validation import held_out_seed
from page4d.options import ReconstructSettings
from tests.synthetic.scenes import predictions_of

VARIANTS = {
    "unfused": {"fuse": False, "depth_size": DepthSize.NETWORK},
    "fused": {"depth_size": DepthSize.NETWORK},
    "default": {},
}
OUTDOORS = 0.25


def capture_of(index: int, family: SceneFamily, num_times: int) -> SyntheticCapture:
    """Return a held-out capture with static cameras, at a quarter of the numbers outdoors."""
    return SyntheticCapture(
        seed=held_out_seed(index),
        family=family,
        outdoors=index % round(1 / OUTDOORS) == 3,
        num_views=4,
        num_times=num_times,
        image_size=(192, 256),
        fps=3.0,
        photometric=True,
    )


def scene_size(capture: SyntheticCapture) -> float:
    """Return the diagonal of the box that holds 96 % of the true points per axis at the first instant."""
    truth = predictions_of(capture, 0, 1)
    points = world_points(truth.depth, truth.cameras)[truth.valid].double().numpy()
    low, high = np.percentile(points, [2, 98], axis=0)
    return float(np.linalg.norm(high - low))


def flicker(out: Path, capture: SyntheticCapture) -> float:
    """Return the mean relative standard deviation over time of the depth of pixels that never move."""
    output = page4d.open_output(out)
    found = []
    for view, name in enumerate(output.view_names):
        depth = np.stack([np.asarray(output.depth(time, name)) for time in range(output.num_times)])
        moving = np.stack([capture.rendered(time, view).dynamic.numpy() for time in range(output.num_times)]).any(0)
        rows = (np.arange(depth.shape[1]) + 0.5) * moving.shape[0] / depth.shape[1]
        columns = (np.arange(depth.shape[2]) + 0.5) * moving.shape[1] / depth.shape[2]
        static = ~moving[rows.astype(int)[:, None], columns.astype(int)] & (depth > 0).all(axis=0)
        found.append((depth.std(axis=0) / depth.mean(axis=0).clip(1e-9))[static])
    return float(np.concatenate(found).mean())


def measured(folder: Path, capture: SyntheticCapture, weights: str | None) -> dict[str, dict[str, float]]:
    """Reconstruct and evaluate a scene with every variant, unless that was done."""
    cache = folder.with_suffix(".json")
    if cache.exists():
        return json.loads(cache.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    write_capture(capture, folder / "scene")
    settings = {"alignments": (DepthAlignment.METRIC,), "threshold": 0.01 * scene_size(capture)}
    found = {}
    for name, options in VARIANTS.items():
        predictor = page4d.build_predictor(weights, settings=replace(ReconstructSettings(preview=False), **options))
        scene = page4d.open_scene(folder / "scene", calibration=folder / "scene" / "truth" / "cameras.json")
        page4d.reconstruct(scene, predictor, out=folder / name)
        result = page4d.evaluate(folder / name, folder / "scene", **settings)
        depth, points = result.depth.results[0].overall, result.points.overall
        found[name] = {
            "AbsRel": depth.abs_rel,
            "<1.25": depth.delta1,
            "F": points.f_score,
            "precision": points.precision,
            "recall": points.recall,
            "flicker": flicker(folder / name, capture) if capture.num_times > 1 else 0.0,
            "AUSE": result.confidence.ause,
        }
    shutil.rmtree(folder)
    cache.write_text(json.dumps(found))
    return found


def main() -> None:
    """Print a line per scene, then the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--family", type=SceneFamily, default=SceneFamily.ARC)
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(arguments.scenes):
        capture = capture_of(index, arguments.family, arguments.times)
        rows.append(measured(arguments.work / f"{index:04d}", capture, arguments.weights))
        texts = (f"{name} AbsRel {row['AbsRel']:.3f} F {row['F']:.3f}" for name, row in rows[-1].items())
        print(f"{index}: {'; '.join(texts)}", flush=True)
    for name in VARIANTS:
        means = {key: np.mean([row[name][key] for row in rows]) for key in rows[0][name]}
        print(f"{name:8} " + ", ".join(f"{key} {value:.4f}" for key, value in means.items()))


if __name__ == "__main__":
    main()
