"""Previews of a finished output: contact sheet, point cloud, and a video of the 4D cloud."""

import numpy as np
from numpy.typing import NDArray

from page4d.formats.maps import write_png
from page4d.inference.domain import ADVICE, OOD_WARNING
from page4d.inference.run_state import PREVIEW_NAMES
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.output.preview.cloud import cloud_views, orbit_video
from page4d.output.preview.contact_sheet import chosen_instants, contact_sheet, read_frames
from page4d.output.reader import Output
from page4d.output.record import RunRecord
from page4d.scene.batches import open_batches
from page4d.scene.records import Scene

_LONG_SIDE = 480


def write_previews(output: Output, scene: Scene) -> list[WrittenFile]:
    """Write `contact_sheet.png`, `cloud.png` and `orbit.mp4` to `preview/`, with the `banner` of the run."""
    notice = banner(output.run)
    instants = chosen_instants(output.num_times)
    images = _images_at(scene, instants)
    frames = [read_frames(output, instant, images[instant]) for instant in instants]
    sheet = contact_sheet(frames, output.run.scale, notice)
    middle = instants[len(instants) // 2]
    cloud = cloud_views(output.points(middle), output.cameras, middle, notice)
    sheet_path, cloud_path, orbit_path = map(output.layout.preview, PREVIEW_NAMES)
    return [
        write_png(sheet_path, sheet),
        write_png(cloud_path, cloud),
        write_bytes_atomic(orbit_path, orbit_video(output, notice)),
    ]


def banner(run: RunRecord) -> str:
    """Return why the result is not to be trusted: an untrained network, or footage unlike its training set."""
    if not run.network.trained:
        return run.network.notice
    return next((text.split(ADVICE)[0] for text in run.warnings if text.startswith(OOD_WARNING)), "")


def _images_at(scene: Scene, instants: list[int]) -> dict[int, list[NDArray[np.uint8]]]:
    """Decode some instants of all views at preview size, seeking from one to the next."""
    images = {}
    with open_batches(scene, _LONG_SIDE, 1) as reader:
        for instant in instants:
            batch = reader.read(instant, instant + 1)
            pixels = (batch.images[0, 0] * 255).round().byte().permute(0, 2, 3, 1).numpy()
            images[instant] = [
                pixels[view, transform.rows, transform.columns]
                for view, transform in enumerate(batch.pixel_transforms)
            ]
    return images
