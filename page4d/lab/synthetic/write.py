"""Export of a synthetic capture: one video per view, and the ground truth in a subfolder."""

import dataclasses
import json
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.conventions import METRIC_DEPTH_SCALE, PIXEL_CENTER
from page4d.errors import Progress, UsageError
from page4d.formats.maps import encode_image, quantize_depth, quantize_velocity
from page4d.formats.tracks import write_tracks
from page4d.formats.video import VideoFile
from page4d.io.atomic import output_errors
from page4d.io.folders import check_replaceable, new_file, staged_folder
from page4d.lab.synthetic.capture import SyntheticCapture, quantize
from page4d.lab.synthetic.truth import (
    MOTION_DEFINITION,
    OBJECTS_DEFINITION,
    TRACKS_DEFINITION,
    TRUTH_MOTION_STEP,
    SurfacePoints,
    followed_tracks,
    object_poses,
    start_times,
    track_starts,
    true_velocity,
)

QUALITY_CRF = 18
"""Constant rate factor of H.264; lower values give higher quality and larger files."""


def write_capture(
    capture: SyntheticCapture,
    folder: Path,
    *,
    truth_stride: int = 1,
    truth_motion: bool = False,
    quality_crf: int = QUALITY_CRF,
    on_frame: Progress | None = None,
) -> None:
    """Render a capture to `folder`: `cam01.mp4` etc., and `truth/` with cameras, depth and motion masks.

    With `truth_motion`, `truth/motion` has the velocities of the same frames as depth, `truth/objects` and
    `truth/object_poses.npz` the objects of their pixels, and `truth/tracks.npz` trajectories on moving objects.

    `on_frame` receives the number of rendered frames and of all frames, of all views, after each.

    Depth PNGs hold millimetres, masks 255 where an object moves; both are named by frame number and written for every
    `truth_stride`-th frame. Files are reproducible byte for byte with equal versions of torch, PyAV and OpenCV.

    Raises:
        OutputError: if the folder cannot be written; nothing remains in it then.
        UsageError: for a folder that is not empty, odd video sizes, frame rates that H.264 cannot represent, a stride
            below 1, or the motion of one frame or of a rolling shutter.
    """
    _check(capture, truth_stride, truth_motion)
    check_replaceable(folder)
    starts: list[SurfacePoints] = []
    record = capture_record(capture, truth_stride=truth_stride, truth_motion=truth_motion, quality_crf=quality_crf)
    with output_errors(folder), staged_folder(folder) as staged, ExitStack() as stack:
        truth = staged / "truth"
        for kind in ("depth", "dynamic", *(["motion", "objects"] if truth_motion else [])):
            for name in capture.view_names:
                (truth / kind / name).mkdir(parents=True)
        (truth / "cameras.json").write_text(json.dumps(camera_table(capture), indent=1) + "\n", encoding="utf-8")
        (truth / "capture.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        videos: list[VideoFile] = []
        for name in capture.view_names:
            file = stack.enter_context(new_file(staged / f"{name}.mp4"))
            size = capture.view_sizes[len(videos)]
            videos.append(stack.enter_context(VideoFile(file, size, capture.fps, quality_crf)))
        for time in range(capture.num_times):
            for view, name in enumerate(capture.view_names):
                rendered = capture.rendered(time, view)
                videos[view].add(quantize(rendered.image))
                if time % truth_stride == 0:
                    millimetres, _ = quantize_depth(rendered.depth, rendered.depth > 0, METRIC_DEPTH_SCALE)
                    _write_png(truth / "depth" / name / f"{time:06d}.png", millimetres)
                    mask = rendered.dynamic.numpy().astype(np.uint8) * np.uint8(255)
                    _write_png(truth / "dynamic" / name / f"{time:06d}.png", mask)
                if truth_motion and time % truth_stride == 0:
                    velocity, known = true_velocity(capture, rendered, time, view), rendered.depth > 0
                    levels, _, _ = quantize_velocity(velocity, known.to(velocity.dtype), TRUTH_MOTION_STEP)
                    _write_png(truth / "motion" / name / f"{time:06d}.png", levels)
                    numbers = np.where(known.numpy(), rendered.objects.numpy() + 1, 0).astype(np.uint16)
                    _write_png(truth / "objects" / name / f"{time:06d}.png", numbers)
                if truth_motion and time in start_times(capture):
                    starts.append(track_starts(capture, rendered, time, view))
                if on_frame is not None:
                    on_frame(time * capture.num_views + view + 1, capture.num_times * capture.num_views)
        if truth_motion:
            write_tracks(truth / "tracks.npz", followed_tracks(capture, starts))
            np.savez_compressed(truth / "object_poses.npz", poses=object_poses(capture), times=capture.times)


def camera_table(capture: SyntheticCapture) -> dict[str, object]:
    """Return the content of `truth/cameras.json`; moving cameras have one matrix per entry of `times`."""
    static = capture.rig.is_static
    cameras = {}
    for view, name in enumerate(capture.view_names):
        true = capture.cameras_of(view)
        height, width = true.image_size
        cameras[name] = {
            "world_to_camera": (true.world_to_camera[0] if static else true.world_to_camera).tolist(),
            "intrinsics": true.intrinsics[0].tolist(),
            "width": width,
            "height": height,
        }
    rig = "static rig" if static else "moving rig, one world_to_camera per frame"
    convention = (
        "OpenCV axes, world_to_camera 4x4, translation in metres, intrinsics in pixels, "
        f"top-left pixel centre ({PIXEL_CENTER}, {PIXEL_CENTER}); {rig}"
    )
    if capture.readout_s:
        convention += (
            f"; cameras are those of the middle row, rows are taken over {capture.readout_s:g} s from the top"
        )
    times = {} if static else {"times": capture.times.tolist()}
    return {"convention": convention, "pixel_center": PIXEL_CENTER, **times, "cameras": cameras}


def capture_record(
    capture: SyntheticCapture, *, truth_stride: int, truth_motion: bool, quality_crf: int
) -> dict[str, object]:
    """Return the content of `truth/capture.json`: every option, and the command line that reproduces the folder."""
    height, width = capture.image_size
    default = SyntheticCapture()
    words: list[object] = ["page4d", "synthesize", "--seed", capture.seed, "--views", capture.num_views]
    words += ["--frames", capture.num_times, "--size", f"{width}x{height}", "--fps", f"{capture.fps:g}"]
    optional = {
        "--family": capture.family if capture.family is not default.family else None,
        "--subject": capture.subject,
        "--spacing": None if capture.spacing_deg is None else f"{capture.spacing_deg:g}",
        "--board": capture.board,
        "--readout": f"{capture.readout_s * 1000:g}" if capture.readout_s else None,
        "--supersample": capture.supersample if capture.supersample != default.supersample else None,
        "--truth-stride": truth_stride if truth_stride != 1 else None,
        "--crf": quality_crf if quality_crf != QUALITY_CRF else None,
    }
    for word, value in optional.items():
        words += [] if value is None else [word, value]
    flags = {
        "--outdoors": capture.outdoors,
        "--mixed-sizes": capture.mixed_sizes,
        "--moving-cameras": capture.moving_cameras,
        "--photometric": capture.photometric,
        "--truth-motion": truth_motion,
    }
    words += [word for word, given in flags.items() if given]
    written = {"truth_stride": truth_stride, "truth_motion": truth_motion, "quality_crf": quality_crf}
    motion = {"motion": MOTION_DEFINITION, "objects": OBJECTS_DEFINITION, "tracks": TRACKS_DEFINITION}
    return {
        "command": " ".join(map(str, [*words, "--out", "DIR"])),
        "options": dataclasses.asdict(capture) | written,
        "world": "metres, x right, y down, z forward, floor at y = 0",
        "depth": "uint16 millimetres along the optical axis, 0 = sky"
        + (", each row at its own instant" if capture.readout_s else ""),
        "dynamic": "255 = a part of an object that moves during the capture",
        **(motion if truth_motion else {}),
    }


def _check(capture: SyntheticCapture, truth_stride: int, truth_motion: bool) -> None:
    for height, width in capture.view_sizes:
        if height % 2 or width % 2:
            raise UsageError(f"a video of {width}x{height} px", "use an even width and height")
    rate = Fraction(capture.fps).limit_denominator(1001)
    if rate <= 0 or abs(float(rate) - capture.fps) > 1e-3 * capture.fps:
        raise UsageError(f"a video of {capture.fps:g} frames per second", "use a rate between 0.01 and 1000")
    if truth_stride < 1:
        raise UsageError(f"ground truth for every {truth_stride}th frame", "use a stride of at least 1")
    if truth_motion and capture.readout_s:  # its images have no single instant
        raise UsageError(f"motion of frames read out over {capture.readout_s:g} s", "use a readout of 0")
    if truth_motion and capture.num_times < 2:
        raise UsageError("motion in a capture of one frame", "use at least 2 frames")


def _write_png(path: Path, image: NDArray[np.uint8] | NDArray[np.uint16]) -> None:
    """Write a grayscale or RGB image; the folder must exist."""
    path.write_bytes(encode_image(image, ".png", [cv2.IMWRITE_PNG_COMPRESSION, 9]))
