"""Maps of a run for formats that contain them as they are: depth, confidence and motion per view and instant."""

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.job import ExportJob


def moving_map(job: ExportJob, place: int, view: int) -> NDArray[np.bool_] | None:
    """Return a motion mask [h, w] at the resolution of the run's maps; None if the run predicted no motion."""
    mask = job.output.dynamic(job.instants[place], job.views[view].name)
    return None if mask is None else job.geometry[view].mapped(mask.astype(np.uint8), place) > 0


def exported_unit(job: ExportJob) -> str:
    """Return the length of one exported unit: "metre", "0.01 metre" or "arbitrary"."""
    unit, scale = job.output.run.unit, job.world.scale
    return unit if scale == 1.0 or unit == "arbitrary" else f"{1 / scale:.9g} {unit}"
