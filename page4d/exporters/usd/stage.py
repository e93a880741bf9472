"""Stages of USD: metadata, time codes, the prim that turns the world to y up, and saving."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from page4d.choices import UpAxis
from page4d.errors import OutputError
from page4d.exporters.job import ExportJob
from page4d.exporters.world import turn_up
from page4d.io.atomic import output_error

ROOT = "/World"

_DIGITS = 6
"""Decimals of time codes: programs evaluate whole frames, so 2.9999999 must be 3."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO, errno.ENOENT)


def time_codes(job: ExportJob) -> tuple[float, ...]:
    """Return the time code of every instant: 0, 1, 2, ... for regular steps, else frames since the first instant."""
    if job.is_regular:
        return tuple(map(float, range(job.num_times)))
    frames = (job.seconds - job.seconds[0]) * job.frame_rate
    return tuple(round(float(frame), _DIGITS) for frame in frames)


def create_stage(path: Path, job: ExportJob, codes: Sequence[float]) -> Any:
    """Create a file with the metadata of a stage and the prim /World, and return its `Usd.Stage`.

    Raises:
        OutputError: if it cannot be created.
    """
    from pxr import Gf, Usd, UsdGeom

    with _usd_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = Usd.Stage.CreateNew(str(path))
    rate = round(job.frame_rate, _DIGITS)
    stage.SetTimeCodesPerSecond(rate)
    stage.SetFramesPerSecond(rate)
    stage.SetStartTimeCode(codes[0])
    stage.SetEndTimeCode(codes[-1])
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.y)
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.GetRootLayer().customLayerData = {
        "page4d": {"unit": job.output.run.unit, "scale": job.world.scale, "firstSecond": float(job.seconds[0])}
    }
    root = UsdGeom.Xform.Define(stage, ROOT)
    turn = turn_up(job.world.exported_up, UpAxis.Y)
    matrix = Gf.Matrix4d(1.0).SetRotateOnly(Gf.Matrix3d(*turn.T.ravel()))  # USD multiplies row vectors
    root.AddTransformOp().Set(matrix)
    stage.SetDefaultPrim(root.GetPrim())
    return stage


def save_stage(stage: Any, path: Path) -> None:
    """Write what changed since the last time to the file of a stage.

    Raises:
        OutputError: if it cannot be written; the stage must not be used any more.
    """
    with _usd_errors(path):
        if not stage.GetRootLayer().Save():
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@contextmanager
def _usd_errors(path: Path) -> Iterator[None]:
    """Translate errors of USD on writing a file, which state the cause only as text."""
    from pxr import Tf

    try:
        yield
    except OSError as error:
        raise output_error(error, path) from error
    except Tf.ErrorException as error:
        text = str(error)
        for number in _DISK_ERRORS:
            if os.strerror(number) in text:
                raise output_error(OSError(number, os.strerror(number)), path) from error
        reason = text.strip().splitlines()[-1].rpartition(" : ")[2].strip("'")
        raise OutputError(f"cannot write to '{path}': {reason}", "choose another folder") from error
