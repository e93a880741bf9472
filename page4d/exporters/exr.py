"""OpenEXR depth: one file per view and instant, with true z-depth for compositing.

Channels: Z (float32, 0 where there is no depth) and confidence.V (float16). Blender reads Z of a file without colours
only if another channel belongs to a layer; the layer and its channel are named as Blender names single values.
"""

import errno
import os
from importlib import import_module
from pathlib import Path

import numpy as np

from page4d.exporters.job import ExportJob, Written, exported_unit
from page4d.io.atomic import output_error, real_path
from page4d.output.layout import frame_name


def write(job: ExportJob, folder: Path) -> Written:
    """Write depth/<view>/frame_000000.exr and so on."""
    for place in range(job.num_times):
        for view, record in enumerate(job.views):
            _write_depth(job, place, view, folder / "depth" / record.label / f"{frame_name(place)}.exr")
        job.advance()
    return Written(times=tuple(range(job.num_times)), remarks=job.output.run.unmapped_depths)


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how to use the result."""
    path = real_path(folder) / "depth" / job.views[0].label / "frame_######.exr"
    frames = f"frames 0 to {job.num_times - 1}" if job.num_times > 1 else "frame 0"
    return (
        f"Nuke: Read '{path}', {frames}, channel depth.Z\n"
        "Blender: Compositor > Add > Input > Image, output Depth; 0 where there is no depth"
    )


def _write_depth(job: ExportJob, place: int, view: int, path: Path) -> None:
    openexr = import_module("OpenEXR")  # optional: an extra
    depth = np.ascontiguousarray(job.depth(place, view), dtype=np.float32)
    confidence = np.ascontiguousarray(job.confidence(place, view).astype(np.float16))
    header = {
        "compression": openexr.ZIP_COMPRESSION,
        "type": openexr.scanlineimage,
        "page4d:unit": exported_unit(job),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        openexr.File(header, {"Z": depth, "confidence.V": confidence}).write(str(path))
    except OSError as error:
        raise output_error(error, path) from error
    except RuntimeError as error:  # OpenEXR gives the system's text, without its number
        number = next((number for number in errno.errorcode if os.strerror(number) in str(error)), 0)
        raise output_error(OSError(number, str(error)), path) from error
