"""Compare the grades of `page4d report` with true errors on synthetic captures of varied quality.

    python tools/measure_report.py WORK [--captures 60] [--first-seed 2000] [--no-scene] [--fit]

Captures have right and wrong calibrations (turned, displaced and swapped cameras, wrong focal lengths), noise, blur,
darkness, unequal clocks, few views, wide rigs, open ground, upside-down and inverted pictures, a small network size
and untrained weights. Results stay in WORK, so that another call reports them again without a new reconstruction.
Prints a line for each capture and Spearman's rank correlations of the score with the true errors.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.spatial.transform import Rotation
from scipy.stats import spearmanr

import page4d
from page4d.choices import SceneFamily
from page4d.evaluation.comparison import compare, true_camera
from page4d.formats.video import VideoFile
from page4d.geometry.alignment import align_points_robust
from page4d.geometry.camera import Cameras, resize_intrinsics, world_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.quality.grade import measured_ranges
from page4d.quality.record import Overall
from page4d.scene.open import open_scene

Picture = NDArray[np.uint8]
NUM_TIMES = 3
LEAST_WEIGHT = 0.15
MAX_CONFIDENCE_WEIGHT = 1.0


@dataclass
class Case:
    """A capture, and what is done to its pictures, clocks and calibration."""

    label: str
    capture: SyntheticCapture
    pictures: Callable[[Picture], Picture] | None = None
    late_views: int = 0
    calibration: Callable[[dict[str, Any]], None] | None = None
    is_calibrated: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def draw_case(seed: int, size: tuple[int, int]) -> Case:
    """Return the case of a seed."""
    random = np.random.default_rng(seed)
    views = int(random.integers(3, 6))
    common: dict[str, Any] = {"seed": seed, "num_times": NUM_TIMES, "image_size": size, "num_views": views}
    is_calibrated = bool(random.random() < 0.7)
    factors = (0.6, 0.8, 1.25, 1.6)
    kinds: list[Callable[[], Case]] = [
        lambda: Case("clean", SyntheticCapture(**common)),
        lambda: Case("two views", SyntheticCapture(**{**common, "num_views": 2})),
        lambda: Case("noise", SyntheticCapture(**common), noise(random, random.uniform(8, 60))),
        lambda: Case("blur", SyntheticCapture(**common), blur(random.uniform(1, 6))),
        lambda: Case("dark", SyntheticCapture(**common), darken(random.uniform(0.03, 0.3))),
        lambda: Case("inverted", SyntheticCapture(**common), lambda picture: 255 - picture),
        lambda: Case("upside down", SyntheticCapture(**common), lambda picture: picture[::-1, ::-1].copy()),
        lambda: Case("late views", SyntheticCapture(**{**common, "num_times": 12, "fps": 6.0}), late_views=6),
        lambda: Case(
            "wide", SyntheticCapture(**{**common, "spacing_deg": float(random.uniform(25, 70)), "num_views": 4})
        ),
        lambda: Case("ring", SyntheticCapture(**{**common, "family": SceneFamily.RING, "num_views": 5})),
        lambda: Case("outdoors", SyntheticCapture(**{**common, "outdoors": True})),
        lambda: Case("small", SyntheticCapture(**common), options={"long_side": int(random.choice([48, 64]))}),
        lambda: Case("untrained", SyntheticCapture(**common), options={"untrained": True}),
        lambda: Case("one turned", SyntheticCapture(**common), calibration=turn(random, random.uniform(1, 20), 1)),
        lambda: Case("turned", SyntheticCapture(**common), calibration=turn(random, random.uniform(0.5, 8), views)),
        lambda: Case("moved", SyntheticCapture(**common), calibration=displace(random, random.uniform(0.05, 1))),
        lambda: Case("swapped", SyntheticCapture(**common), calibration=swap(random)),
        lambda: Case("focal", SyntheticCapture(**common), calibration=zoom(float(random.choice(factors)))),
    ]
    case = kinds[seed % len(kinds)]()
    case.is_calibrated = case.calibration is not None or is_calibrated
    case.label += "" if case.is_calibrated else ", no calibration"
    return case


def noise(random: np.random.Generator, sigma: float) -> Callable[[Picture], Picture]:
    """Return a filter that adds Gaussian noise."""
    return lambda picture: np.clip(picture + random.normal(0, sigma, picture.shape), 0, 255).astype(np.uint8)


def blur(sigma: float) -> Callable[[Picture], Picture]:
    """Return a Gaussian filter; `sigma` is in pixels."""
    return lambda picture: np.asarray(cv2.GaussianBlur(picture, (0, 0), sigma), np.uint8)


def darken(gain: float) -> Callable[[Picture], Picture]:
    """Return a filter that multiplies intensities."""
    return lambda picture: (picture * gain).astype(np.uint8)


def turn(random: np.random.Generator, degrees: float, count: int) -> Callable[[dict[str, Any]], None]:
    """Return a change that turns `count` cameras about random axes through their centres."""

    def change(cameras: dict[str, Any]) -> None:
        for name in random.permutation(sorted(cameras))[:count]:
            axis = random.normal(size=3)
            rotation = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
            pose = np.array(cameras[name]["world_to_camera"])
            pose[:3] = rotation @ pose[:3]
            cameras[name]["world_to_camera"] = pose.tolist()

    return change


def displace(random: np.random.Generator, metres: float) -> Callable[[dict[str, Any]], None]:
    """Return a change that moves the centre of a camera."""

    def change(cameras: dict[str, Any]) -> None:
        name = str(random.choice(sorted(cameras)))
        step = random.normal(size=3)
        pose = np.array(cameras[name]["world_to_camera"])
        pose[:3, 3] += metres * step / np.linalg.norm(step)
        cameras[name]["world_to_camera"] = pose.tolist()

    return change


def swap(random: np.random.Generator) -> Callable[[dict[str, Any]], None]:
    """Return a change that swaps two cameras."""

    def change(cameras: dict[str, Any]) -> None:
        one, other = random.permutation(sorted(cameras))[:2]
        cameras[one], cameras[other] = cameras[other], cameras[one]

    return change


def zoom(factor: float) -> Callable[[dict[str, Any]], None]:
    """Return a change that multiplies all focal lengths."""

    def change(cameras: dict[str, Any]) -> None:
        for camera in cameras.values():
            for axis in range(2):
                camera["intrinsics"][axis][axis] *= factor

    return change


def write_scene(case: Case, folder: Path) -> None:
    """Write the videos, `truth/` and the calibration `rig.json` of a case."""
    write_capture(case.capture, folder)
    truth = folder / "truth"
    if case.pictures is not None or case.late_views:
        scene = open_scene(folder)
        for index, view in enumerate(scene.views):
            delay = case.late_views if index % 2 else 0
            with view.source.open() as reader:
                frames = list(reader.read(range(case.capture.num_times)))
            kept = frames[delay : delay + NUM_TIMES] if case.late_views else frames
            size = kept[0].shape[:2]
            path = folder / f"{view.name}.mp4"
            with path.open("wb") as file, VideoFile(file, size, case.capture.fps, 18) as video:
                for frame in kept:
                    video.add(frame if case.pictures is None else case.pictures(np.asarray(frame, np.uint8)))
            for kind in ("depth", "dynamic"):
                for path in sorted((truth / kind / view.name).iterdir()):
                    time = int(path.stem)
                    if time < delay or time >= delay + NUM_TIMES:
                        path.unlink()
                    elif delay:
                        path.rename(path.with_name(f"{time - delay:06d}.png"))
        rewritten = open_scene(folder)
        assert rewritten.num_times == NUM_TIMES
    table = json.loads((truth / "cameras.json").read_text())
    if case.calibration is not None:
        case.calibration(table["cameras"])
    (folder / "rig.json").write_text(json.dumps(table))


def reconstruct_case(case: Case, folder: Path) -> None:
    """Render and reconstruct a case, unless that was done."""
    if (folder / "truth.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    write_scene(case, folder / "scene")
    (folder / "scene" / "rig.json").rename(folder / "rig.json")
    calibration = {"calibration": folder / "rig.json"} if case.is_calibrated else {}
    page4d.reconstruct(folder / "scene", out=folder / "out", **calibration, **case.options)
    found = page4d.evaluate(folder / "out", folder / "scene", threshold=0.05)
    (folder / "truth.json").write_text(json.dumps(found.document()))


def point_error(folder: Path) -> float:
    """Return the mean distance of points from the truth as a share of their depth, at most 1, after a similarity.

    Every pixel is unprojected with the predicted depth and camera, and with the true ones. The similarity is the
    robust one of all points, so that wrong cameras count, but neither the world frame nor the unit does.
    """
    comparison = compare(folder / "out", folder / "scene")
    output = comparison.output
    found, true, depth = [], [], []
    for instant in comparison.instants:
        for frame in comparison.depth_frames(instant):
            view, size = frame.view, frame.view.truth.image_size
            height, width = output.cameras.image_sizes[view.index]
            own = resize_intrinsics(output.cameras.intrinsics[instant, view.index], size[1] / width, size[0] / height)
            pose = true_camera(view, instant)
            assert pose is not None
            for points, values, matrix, camera in (
                (found, frame.prediction, own, output.cameras.world_to_camera[instant, view.index]),
                (true, frame.truth, view.truth.intrinsics, pose),
            ):
                placed = Cameras(world_to_camera=camera.double(), intrinsics=matrix.double(), image_size=size)
                points.append(world_points(values.double(), placed)[frame.counted])
            depth.append(frame.truth.double()[frame.counted])
    source, target, distance = (torch.cat(parts) for parts in (found, true, depth))
    every = max(1, len(source) // 20_000)
    transform, _ = align_points_robust(source[::every], target[::every])
    return float(((transform.apply(source) - target).norm(dim=-1) / distance).clamp(max=1).mean())


def true_errors(folder: Path) -> dict[str, float]:
    """Return the point error, AbsRel after a scale, and the share of points that are not within 5 cm (1 - F)."""
    found = json.loads((folder / "truth.json").read_text())
    by_name = {result["alignment"]: result["overall"] for result in found["depth"]["results"]}
    points = (found["points"] or {}).get("overall") or {}
    return {
        "points": point_error(folder),
        "abs_rel": by_name["scale"]["abs_rel"],
        "missed": 1.0 - (points.get("f_score") or 0.0),
    }


def fit(rows: list[tuple[Overall, float]], *, with_pictures: bool) -> dict[str, float]:
    """Return the weights of `page4d.quality.grade`: bounded least squares of log errors.

    Every measurement keeps a weight: these captures are from one network, and others fail in other ways. That of
    confidence is bounded, since its calibration differs between networks.
    """
    ranges = [measured_ranges(overall) for overall, _ in rows]
    names = [name for name in ranges[0] if with_pictures or name != "photo"]
    matrix = np.array([[1.0, *(found[name] for name in names)] for found in ranges])
    lowest = [-np.inf, *(LEAST_WEIGHT for _ in names)]
    highest = [np.inf, *(MAX_CONFIDENCE_WEIGHT if name == "confidence" else np.inf for name in names)]
    found = lsq_linear(matrix, np.log([error for _, error in rows]), (lowest, highest)).x
    return dict(zip(("base", *names), found.tolist(), strict=True))


def main() -> None:
    """Print a line for each capture, then the correlations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--captures", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=2000)
    parser.add_argument("--size", default="128x96")
    parser.add_argument("--no-scene", action="store_true", help="do not compare the pictures")
    parser.add_argument("--fit", action="store_true", help="fit the weights of the grade")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    width, height = map(int, arguments.size.split("x"))
    rows = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.captures):
        case = draw_case(seed, (height, width))
        folder = arguments.work / f"{seed:06d}"
        reconstruct_case(case, folder)
        report = page4d.report(folder / "out", scene=None if arguments.no_scene else folder / "scene")
        errors = true_errors(folder)
        rows.append((report, errors))
        texts = (f"{name} {value:.3f}" for name, value in errors.items())
        found = f"grade {report.grade.letter}, expected {report.grade.expected_error:.3f}"
        print(f"{seed} {case.label:28} {found}; true {', '.join(texts)}", flush=True)
    scores = [report.grade.expected_error for report, _ in rows]
    for name in rows[0][1]:
        print(f"Spearman with {name}: {spearmanr(scores, [errors[name] for _, errors in rows]).statistic:.3f}")
    ratios = np.log([report.grade.expected_error / errors["points"] for report, errors in rows])
    print(f"expected / true point error: median {np.exp(np.median(ratios)):.2f}, spread {np.exp(ratios.std()):.2f}")
    if arguments.fit:
        pairs = [(report.overall, errors["points"]) for report, errors in rows]
        for name, value in fit(pairs, with_pictures=not arguments.no_scene).items():
            print(f"{name:16} {value:.2f}")


if __name__ == "__main__":
    main()
