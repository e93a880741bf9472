"""Measure velocities and tracks on the sample and on three other synthetic captures, calibrated.

    python tools/measure_motion.py WORK [--captures room 301 302 303] [--depth exact page4d]

`room` is the world of samples/room (320x240, 12 fps); the others are rigs of four cameras at 640x480 and 24 fps: 301
people, 302 a table with photometric differences, 303 with moving cameras. Every capture is reconstructed with its
true cameras, from true depth (`--depth`) and from the bundled network's. Prints the errors of moving pixels in cm per
frame, those of certain ones (speed above sigma, as where several views measured it), of these those that stay visible
in their view (every fourth instant) and the 55 % of the smallest sigma, the baseline that nothing moves,
the exactly still share of static pixels, and the median drift of tracks in cm after 5, 10 and 23 frames. Results stay
in WORK, so that another call continues. `SIGMA_FACTOR` of page4d/motion/flow.py is chosen by the share of errors
of moving pixels within 2 sigma: 95 % of those of a normal variable are.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import page4d
from page4d.choices import ExistingOutput, Subject
from page4d.evaluation.motion_scores import MOVING_LIMIT
from page4d.evaluation.record import Evaluation, FlowResult
from page4d.geometry.camera import world_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.truth import moved_points, true_velocity, visible_views
from page4d.lab.synthetic.write import write_capture
from page4d.output.reader import Output

LARGE = SyntheticCapture(num_views=4, num_times=24, image_size=(480, 640), fps=24.0)
CAPTURES = {
    "room": SyntheticCapture(seed=96, num_views=4, subject=Subject.PEOPLE, spacing_deg=20.0, supersample=2),
    "301": replace(LARGE, seed=301, subject=Subject.PEOPLE),
    "302": replace(LARGE, seed=302, subject=Subject.TABLE, photometric=True),
    "303": replace(LARGE, seed=303, moving_cameras=True),
}
DEPTHS = ("exact", "page4d")
TRACKS = 1000

COVER = 0.55
"""Share of the visible moving pixels, those of the smallest sigma, that are measured apart."""


def run(name: str, depth: str, work: Path) -> Output:
    """Render and reconstruct a capture, unless that was done before."""
    scene, out = work / name, work / f"{name}-{depth}"
    if not (scene / "truth" / "tracks.npz").is_file():
        write_capture(CAPTURES[name], scene, truth_motion=True)
    page4d.reconstruct(
        scene,
        out=out,
        existing=ExistingOutput.RESUME,
        calibration=scene / "truth" / "cameras.json",
        depth=scene / "truth" / "depth" if depth == "exact" else None,
        motion=True,
        tracks=TRACKS,
        preview=False,
    )
    return page4d.open_output(out)


def of_visible(output: Output, capture: SyntheticCapture) -> str:
    """Return the line of certain moving pixels whose point stays visible in its view, at every fourth instant."""
    errors, sigmas, ratios, counted = [], [], [], 0
    for index in range(1, output.num_times - 1, 4):
        for view, name in enumerate(output.view_names):
            velocity, sigma = output.velocity(index, name)
            frame, times = capture.rendered(index, view), capture.times
            truth = true_velocity(capture, frame, index, view).numpy()
            points = world_points(frame.depth.double(), capture.cameras_of(view)[index])
            stays = (frame.depth > 0).numpy()
            for end in (index - 1, index + 1):
                moved = moved_points(capture, points, frame.objects, times[index], times[end]).flatten(0, 1)
                stays &= visible_views(capture, moved, end)[:, view].reshape(stays.shape)
            place = tuple(
                ((np.arange(new) + 0.5) * old / new).astype(int)
                for new, old in zip(sigma.shape, truth.shape, strict=False)
            )
            truth, visible = truth[np.ix_(*place)], stays[np.ix_(*place)]
            moving = visible & (np.linalg.norm(truth, axis=-1) / capture.fps > MOVING_LIMIT)
            speed = np.linalg.norm(velocity, axis=-1)
            certain = moving & (sigma > 0) & ((speed == 0) | (speed > sigma))
            error = np.linalg.norm(velocity - truth, axis=-1)
            counted += int(moving.sum())
            errors.append(error[certain] / capture.fps)
            sigmas.append(sigma[certain])
            ratios.append((error / np.maximum(sigma, 1e-9))[certain & (speed > 0)])
    error, ratio = np.concatenate(errors), np.concatenate(ratios)
    best = error[np.concatenate(sigmas).argsort(kind="stable")][: round(COVER * counted)]
    if not len(error):
        return f"{'':34} none stays visible"
    return (
        f"{'  certain, visible before and after':34} {100 * len(error) / counted:5.0f} {100 * error.mean():7.2f} "
        f"{100 * np.median(error):6.2f} {100 * (error < 0.05).mean():5.1f} {100 * (error < 0.1).mean():5.1f}"
        f"   median error / sigma {np.median(ratio):.2f}\n"
        f"{'  those of the smallest sigma':34} {100 * len(best) / counted:5.0f} {100 * best.mean():7.2f} "
        f"{100 * np.median(best):6.2f} {100 * (best < 0.05).mean():5.1f} {100 * (best < 0.1).mean():5.1f}"
    )


def row(name: str, result: FlowResult) -> str:
    """Return one line of the table."""
    if result.errors is None or result.nothing_moves is None:
        return f"{name:34}  none"
    own, baseline = result.errors, result.nothing_moves
    angle = float("nan") if own.angle_deg is None else own.angle_deg
    return (
        f"{name:34} {100 * (result.cover or 0):5.0f} {100 * own.epe:7.2f} {100 * own.epe_median:6.2f} "
        f"{100 * own.acc_strict:5.1f} {100 * own.acc_relaxed:5.1f} {angle:6.1f}   "
        f"{100 * baseline.epe:7.2f} {100 * baseline.epe_median:6.2f}   {own.velocity_median:6.3f}"
    )


def describe(name: str, depth: str, found: Evaluation, output: Output) -> list[str]:
    """Return the lines of one capture."""
    motion, tracks = found.motion, found.tracks
    assert motion is not None
    lines = [
        row(f"{name}, {depth} depth, moving", motion.moving),
        row(f"{name}, {depth} depth, certain", motion.moving_certain),
    ]
    still, within = motion.static.still or 0.0, motion.moving_certain.sigma
    text = f"{'':34} static pixels exactly still {100 * still:.2f} %"
    if within is not None:
        text += f", within 2 sigma {100 * within.within_two:.0f} %"
    lines.append(text)
    lines.insert(2, of_visible(output, CAPTURES[name]))
    if tracks is not None and tracks.dynamic is not None:
        own, stays = tracks.dynamic.tracks, tracks.dynamic.nothing_moves
        drift = ", ".join(
            f"+{steps} {100 * value:.1f} ({100 * (stays.drift[steps] or 0):.0f})"
            for steps, value in own.drift.items()
            if value is not None
        )
        lines.append(f"{'':34} {own.tracks} moving tracks, drift (staying) in cm {drift}")
    return lines


def main() -> None:
    """Measure all captures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--captures", nargs="+", choices=tuple(CAPTURES), default=tuple(CAPTURES))
    parser.add_argument("--depth", nargs="+", choices=DEPTHS, default=DEPTHS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    head = "cover     EPE median   <5cm <10cm  angle   nothing moves   m/s"
    print(f"{'cm per frame':34} {head}")
    for name in options.captures:
        for depth in options.depth:
            output = run(name, depth, options.work)
            found = page4d.evaluate(options.work / f"{name}-{depth}", options.work / name)
            print("\n".join(describe(name, depth, found, output)), flush=True)
            seconds = output.run.timings["motion"] / output.num_times
            print(f"{'':34} {seconds:.2f} s of motion per instant", flush=True)


if __name__ == "__main__":
    main()
