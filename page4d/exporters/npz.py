"""NumPy archives: one .npz file per view with depth, confidence, motion, cameras and times of all instants.

Of a run with tracks each view has a second file, with the names of the results of TAPIP3D and SpatialTrackerV2.

Arrays are written instant by instant, so memory does not grow with their number.

Source: numpy.lib.format, version 1.0 of the .npy format; an .npz file is a ZIP archive of .npy files.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from page4d.conventions import DESCRIPTION
from page4d.errors import UsageError
from page4d.exporters.job import ExportJob, Written, exported_unit
from page4d.exporters.pictures import scaled
from page4d.formats.tracks import Tracks
from page4d.io.atomic import real_path
from page4d.io.folders import new_file

_CONVENTIONS = (
    "depth [T, h, w], float32: z-depth along the optical axis, 0 where there is none",
    "conf [T, h, w], float32: confidence from 0 to 1, higher is better",
    "dynamic [T, h, w], bool: True where something moves; missing if the run predicted no motion",
    (
        "velocity [T, h, w, 3], float32: of the pixel's point in the world, per second; 0 where the point "
        "stands still or the velocity is unknown; missing if the run measured none"
    ),
    "velocity_sigma [T, h, w], float32: its standard deviation; 0 where the velocity is unknown",
    "intrinsics [T, 3, 3]: of the maps, in pixels; " + DESCRIPTION["pixel_center"],
    "world_to_camera [T, 4, 4]: acting on column vectors; " + DESCRIPTION["axes"],
    "times [T]: seconds on the common clock; instants [T]: indices in the run",
)

_TRACK_CONVENTIONS = (
    "coords [T, N, 3], float32: positions in the world; before a track begins its first one, after it ends its last",
    "exists [T, N], bool: False before a track begins and after it ends",
    "visibs [T, N], bool: True where the view sees the point",
    "sigma [T, N], float32: standard deviation of the motion since the track began",
    "colors [N, 3], uint8: at its beginning; ids [N]: numbers of the tracks in the run",
    "intrinsics [T, 3, 3]: of the pictures of image_size (height, width), in pixels; " + DESCRIPTION["pixel_center"],
    "extrinsics [T, 4, 4]: world to camera, acting on column vectors; " + DESCRIPTION["axes"],
    "times [T]: seconds on the common clock; instants [T]: indices in the run",
)


def check(job: ExportJob) -> None:
    """Refuse views whose files would have the same name.

    Raises:
        UsageError: naming the view.
    """
    labels = {view.label for view in job.views}
    taken = [view.label for view in job.views if f"tracks_{view.label}" in labels]
    if taken and job.output.has_tracks:
        raise UsageError(
            f"the tracks of '{taken[0]}' would have the file of another view", "export it alone (⟨views⟩)"
        )


def write(job: ExportJob, folder: Path) -> Written:
    """Write an archive per view, and of a run with tracks another."""
    for view, record in enumerate(job.views):
        with new_file(folder / f"{record.label}.npz") as file, ZipFile(file, "w") as archive:
            _write_maps(archive, job, view)
            _write_cameras(archive, job, view)
        if (tracks := job.tracks) is not None:
            with new_file(folder / f"tracks_{record.label}.npz") as file, ZipFile(file, "w") as archive:
                _write_tracks(archive, job, view, tracks)
    return Written(times=tuple(job.seconds.tolist()), remarks=job.output.run.unmapped)


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how to read the result."""
    path = real_path(folder) / f"{job.views[0].label}.npz"
    return f"In Python: data = numpy.load({str(path)!r}); data['depth'][0]\nThe arrays: print(data['conventions'])"


def _write_maps(archive: ZipFile, job: ExportJob, view: int) -> None:
    def depth(place: int) -> NDArray[Any]:
        # One step of progress per instant in all, however many views there are.
        if (view * job.num_times + place) % len(job.views) == len(job.views) - 1:
            job.advance()
        return job.depth(place, view)

    def moving(place: int) -> NDArray[Any]:
        mask = job.moving(place, view, at_maps=True)
        assert mask is not None
        return mask

    _write_stack(archive, "depth", depth, job.num_times)
    _write_stack(archive, "conf", lambda place: job.confidence(place, view), job.num_times)
    if job.output.has_motion:
        _write_stack(archive, "dynamic", moving, job.num_times)
    if job.output.has_velocity:
        _write_stack(archive, "velocity", lambda place: job.velocity(place, view)[0], job.num_times)
        _write_stack(archive, "velocity_sigma", lambda place: job.velocity(place, view)[1], job.num_times)


def _write_cameras(archive: ZipFile, job: ExportJob, view: int) -> None:
    height, width = job.depth(0, view).shape
    arrays = {
        "intrinsics": scaled(job.intrinsics[:, view], job.sizes[view], (height, width)),
        "world_to_camera": job.world_to_camera[:, view],
    }
    _write_arrays(archive, job, view, arrays, _CONVENTIONS)


def _write_tracks(archive: ZipFile, job: ExportJob, view: int, tracks: Tracks) -> None:
    arrays = {
        "coords": tracks.held_coords().astype("<f4"),
        "exists": tracks.exists,
        "visibs": tracks.view_visibs[..., view],
        "sigma": tracks.sigma.astype("<f4"),
        "colors": tracks.colors,
        "ids": tracks.ids.astype("<i8"),
        "intrinsics": job.intrinsics[:, view],
        "image_size": np.array(job.sizes[view], dtype="<i8"),
        "extrinsics": job.world_to_camera[:, view],
    }
    _write_arrays(archive, job, view, arrays, _TRACK_CONVENTIONS)


def _write_arrays(
    archive: ZipFile, job: ExportJob, view: int, arrays: dict[str, NDArray[Any]], conventions: Sequence[str]
) -> None:
    """Write the arrays of a view, and those that describe them."""
    facts = {
        "times": job.seconds,
        "instants": np.array(job.instants, dtype="<i8"),
        "view": np.array(job.views[view].name),
        "unit": np.array(exported_unit(job)),
        "conventions": np.array("\n".join(conventions)),
    }
    for name, values in (arrays | facts).items():
        with _member(archive, name) as file:
            np.lib.format.write_array(file, np.asarray(values, order="C"), version=(1, 0), allow_pickle=False)


def _write_stack(archive: ZipFile, name: str, read: Callable[[int], NDArray[Any]], number: int) -> None:
    """Write maps [h, w, ...] of one shape as an array [T, h, w, ...]."""
    with _member(archive, name) as file:
        for place in range(number):
            values = read(place)
            values = values.astype(values.dtype.newbyteorder("<"), copy=False)
            if place == 0:
                header = {
                    "descr": np.lib.format.dtype_to_descr(values.dtype),
                    "fortran_order": False,
                    "shape": (number, *values.shape),
                }
                np.lib.format.write_array_header_1_0(file, header)
            file.write(values.tobytes())


def _member(archive: ZipFile, name: str) -> IO[bytes]:
    """Open an array of the archive; without a date, so that a second export has the same bytes."""
    entry = ZipInfo(f"{name}.npy")
    entry.compress_type = ZIP_DEFLATED
    return archive.open(entry, "w", force_zip64=True)
