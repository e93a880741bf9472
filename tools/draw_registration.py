"""Draws keypoints of people in all views, and cameras before and after registration from above.

    python tools/draw_registration.py SCENE --truth FILE --before cameras.json --after cameras.json --out PICTURE

The cameras of a file are placed so that those of the first view coincide, and scaled to the true distances from it.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.choices import UpAxis
from page4d.output.upward import choose_up
from page4d.plotting.canvas import blank, font, tile, view_color
from page4d.rig.evidence import PixelEvidence
from page4d.scene.open import open_scene
from page4d.scene.records import Scene

Matrix = NDArray[np.float64]
Poses = dict[str, tuple[Matrix, float]]
"""World-to-camera pose and half the horizontal field of view in radians, by view."""

HEIGHT, GAP, FACTOR = 600, 12, 2
"""Height of the panels and gap in pixels; everything is drawn larger by the factor and reduced."""

LIMBS = ((15, 13, 11, 12, 14, 16), (11, 23, 25, 27, 31), (12, 24, 26, 28, 32), (23, 24))
"""Chains of BlazePose joints: arms and shoulders, left and right side with leg, hips."""

GREY = (150, 150, 150)


def poses_of(scene: Scene) -> Poses:
    """Return the calibrated poses of a scene."""
    poses = {}
    for view in scene.views:
        assert view.camera is not None
        half = np.arctan(view.source.size[1] / 2 / float(view.camera.intrinsics[0, 0]))
        poses[view.name] = (view.camera.world_to_camera.double().numpy(), float(half))
    return poses


def center(pose: Matrix) -> Matrix:
    """Return the position of a camera."""
    return -pose[:3, :3].T @ pose[:3, 3]


def aligned(poses: Poses, truth: Poses) -> Poses:
    """Return poses in the true world: equal at the first view, scaled to the true distances from it."""
    first = next(iter(truth))
    start = np.linalg.inv(poses[first][0])
    spans = [
        [float(np.linalg.norm(center(rig[name][0]) - center(rig[first][0]))) for name in truth]
        for rig in (truth, poses)
    ]
    scale = np.sqrt(np.square(spans[0]).sum() / np.square(spans[1]).sum())
    moved = {}
    for name in truth:
        relative = poses[name][0] @ start
        relative[:3, 3] *= scale
        moved[name] = (relative @ truth[first][0], poses[name][1])
    return moved


def draw_people(scene: Scene, width: int) -> list[Image.Image]:
    """Draw the keypoints of the middle instant, in the pictures of all views."""
    pixels = PixelEvidence(scene)
    instants, people = pixels.instants, pixels.people
    middle = len(instants) // 2
    pictures = []
    for view, found in zip(scene.views, people, strict=True):
        with view.source.open() as reader:
            frame = next(iter(reader.read([view.indices[instants[middle]]])))
        height = round(width * frame.shape[0] / frame.shape[1])
        picture = tile(frame, width, height)
        pen = ImageDraw.Draw(picture)
        for tracklet in found:
            for at in np.flatnonzero(tracklet.instants == middle):
                joints = tracklet.joints[at] * width / frame.shape[1]
                for a, b in (ends for chain in LIMBS for ends in pairwise(chain)):
                    pen.line([*joints[a], *joints[b]], fill=(255, 210, 0), width=2 * FACTOR)
        pen.text((6 * FACTOR, 4 * FACTOR), view.name, fill="white", font=font(20 * FACTOR))
        pictures.append(picture)
    return pictures


def draw_from_above(poses: Poses, truth: Poses, title: str, bounds: tuple[Matrix, float]) -> Image.Image:
    """Draw cameras as triangles of their horizontal field of view, the true ones in grey below them."""
    side = HEIGHT * FACTOR
    picture, pen = blank(side, side)
    up = choose_up(UpAxis.AUTO, np.stack([pose for pose, _ in truth.values()])[None], is_calibrated=True).vector
    across = np.cross(up, [0.0, 0.0, 1.0] if abs(up[2]) < 0.9 else [1.0, 0.0, 0.0])
    across /= np.linalg.norm(across)
    axes = np.stack([across, np.cross(up, across)])
    middle, extent = bounds
    length = 0.3 * extent

    def pixel(point: Matrix) -> tuple[float, float]:
        x, y = axes @ (point - middle) / extent * side * 0.8
        return side / 2 + float(x), side / 2 - float(y)

    for poses_drawn, is_true in ((truth, True), (poses, False)):
        for index, (name, (pose, half)) in enumerate(poses_drawn.items()):
            color = GREY if is_true else view_color(index)
            place, spread = center(pose), np.tan(half)
            ends = [place + length * pose[:3, :3].T @ np.array([sign * spread, 0.0, 1.0]) for sign in (-1, 1)]
            corners = [pixel(place), pixel(ends[0]), pixel(ends[1])]
            pen.polygon(corners, outline=color, width=(6 if is_true else 3) * FACTOR)
            if not is_true:
                x, y = corners[0]
                pen.ellipse((x - 10, y - 10, x + 10, y + 10), fill=color)
                pen.text((x + 16, y + 6), name, fill=color, font=font(20 * FACTOR))
    pen.text((12 * FACTOR, 8 * FACTOR), title, fill="black", font=font(24 * FACTOR))
    pen.text((12 * FACTOR, side - 36 * FACTOR), "grey: calibration", fill=GREY, font=font(20 * FACTOR))
    return picture


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scene", type=Path)
    for name in ("truth", "before", "after", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--calib-resize", default=None)
    options = parser.parse_args()
    truth, before, after = (
        poses_of(open_scene(options.scene, calibration=file, calibration_resize=resize))
        for file, resize in ((options.truth, options.calib_resize), (options.before, None), (options.after, None))
    )
    rigs = [aligned(poses, truth) for poses in (before, after)]
    places = np.stack([center(pose) for rig in (truth, *rigs) for pose, _ in rig.values()])
    bounds = ((places.min(0) + places.max(0)) / 2, float(np.ptp(places, axis=0).max()))
    panels = [
        draw_from_above(rig, truth, title, bounds)
        for rig, title in zip(rigs, ("cameras of the network", "registered"), strict=True)
    ]
    scene = open_scene(options.scene)
    people = draw_people(scene, round(HEIGHT * FACTOR / 2 * 9 / 16))
    width = people[0].width
    sheet, _ = blank(2 * (width + GAP) + 2 * (HEIGHT + GAP) * FACTOR, HEIGHT * FACTOR)
    for index, picture in enumerate(people):
        sheet.paste(picture, ((index % 2) * (width + GAP), (index // 2) * HEIGHT * FACTOR // 2))
    for index, panel in enumerate(panels):
        sheet.paste(panel, (2 * (width + GAP) + index * (HEIGHT + GAP) * FACTOR, 0))
    sheet.resize((sheet.width // FACTOR, sheet.height // FACTOR), Image.Resampling.LANCZOS).save(
        options.out, quality=85
    )


if __name__ == "__main__":
    main()
