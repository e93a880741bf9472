"""Output folders to evaluate: the ground truth as a result, and copies with known differences."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch

from page4d.formats.cameras_json import write_cameras_json
from page4d.formats.maps import quantize_velocity, write_png
from page4d.formats.ply import encode_ply, read_ply
from page4d.formats.tracks import Tracks, write_tracks
from page4d.geometry.transforms import Sim3
from page4d.output.reader import open_output
from page4d_cli.app import run
from tests.output.output_scene import motion_record


def reconstruct_from_truth(capture: Path, out: Path, *arguments: object) -> Path:
    """Reconstruct a capture from its true cameras, depth and masks: the result equals the truth exactly."""
    truth = capture / "truth"
    command = ["reconstruct", capture, "--out", out, "--no-preview", "--no-check", "--quiet", "--edge-angle", 90]
    command += ["--calibration", truth / "cameras.json", "--depth", truth / "depth", "--masks", truth / "dynamic"]
    assert run([str(word) for word in (*command, *arguments)]) == 0
    return out


def copy_of(out: Path, target: Path) -> Path:
    shutil.copytree(out, target)
    return target


def edit_json(path: Path, change: Callable[[dict], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def move_world(out: Path, similarity: Sim3) -> None:
    """Transform a result by a similarity: cameras, clouds and, through the levels per unit, depth."""
    output = open_output(out)
    cameras = output.cameras
    moved = similarity.apply_to_cameras(cameras.world_to_camera)
    write_cameras_json(output.layout.cameras, replace(cameras, world_to_camera=moved))
    for index in range(output.num_times):
        path = output.layout.points(index)
        cloud = read_ply(path)
        xyz = similarity.apply(torch.from_numpy(cloud.xyz).double()).float().numpy()
        path.write_bytes(encode_ply(replace(cloud, xyz=xyz).columns))
    levels = output.run.depth_scale / float(similarity.scale)
    edit_json(out / "run.json", lambda document: document.update(depth_scale=levels))


def add_motion(
    out: Path, velocity: Callable[[int, int], torch.Tensor], sigma: float = 0.05, step: float = 1e-3
) -> None:
    """Write velocities [H, W, 3] of every instant and view, in the world and per second, as a run with motion does.

    A velocity that is not finite is unknown.
    """
    output = open_output(out)
    for view, name in enumerate(output.view_names):
        for time in range(output.num_times):
            values = velocity(time, view)
            levels, sigma_levels, _ = quantize_velocity(values, torch.full(values.shape[:2], sigma), step)
            for path, image in (
                (output.layout.motion(time, name), levels),
                (output.layout.motion_sigma(time, name), sigma_levels),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_png(path, image)
    record = motion_record(len(output.view_names), output.num_times, step)
    edit_json(out / "run.json", lambda document: document.update(motion=record.model_dump()))


def add_tracks(out: Path, tracks: Tracks) -> None:
    """Write tracks to an output with velocities."""
    (out / "tracks").mkdir(exist_ok=True)
    write_tracks(out / "tracks" / "tracks.npz", tracks)
    edit_json(out / "run.json", lambda document: document["motion"].update(tracks=tracks.num_tracks))


def change_maps(out: Path, kind: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Rewrite the depth, confidence or dynamic maps of all frames."""
    for path in sorted((out / kind).rglob("*.png")):
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        assert cv2.imwrite(str(path), change(image).astype(image.dtype))


def change_cameras(out: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Rewrite the cameras [T, V, 4, 4]."""
    output = open_output(out)
    moved = change(output.cameras.world_to_camera.clone())
    write_cameras_json(output.layout.cameras, replace(output.cameras, world_to_camera=moved))
