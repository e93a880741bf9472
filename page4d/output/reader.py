"""An output folder read back: every later format, evaluation and viewer starts here."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import InputError, UsageError
from page4d.geometry.camera import resize_intrinsics
from page4d.output.cameras import CaptureCameras, read_cameras_json
from page4d.output.layout import OutputLayout
from page4d.output.maps import read_png
from page4d.output.ply import PointCloud, read_ply
from page4d.output.run_record import RunRecord, ViewRecord, read_run


@dataclass(frozen=True, kw_only=True)
class Output:
    """A finished run. Files are read when they are asked for; views go by their true names."""

    layout: OutputLayout
    run: RunRecord
    cameras: CaptureCameras

    @property
    def num_times(self) -> int:
        """Number of instants T."""
        return len(self.run.times)

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views in order."""
        return self.layout.view_names

    def depth(self, time_index: int, view: str) -> NDArray[np.float32]:
        """Read a depth map [H, W] in units of the scene, 0 where there is none."""
        levels = read_png(self.layout.depth(self._index(time_index), view), np.uint16, self._map_size(view))
        return (levels / self.run.depth_scale).astype(np.float32)

    def confidence(self, time_index: int, view: str) -> NDArray[np.float32]:
        """Read a confidence map [H, W] in [0, 1]."""
        levels = read_png(self.layout.confidence(self._index(time_index), view), np.uint8, self._map_size(view))
        return (levels / 255.0).astype(np.float32)

    def dynamic(self, time_index: int, view: str) -> NDArray[np.bool_] | None:
        """Read a motion mask [H, W], True where something moves; None if the run predicted none."""
        path = self.layout.dynamic(self._index(time_index), view)
        if not path.parent.parent.exists():
            return None
        return read_png(path, np.uint8, self._map_size(view)) > 127

    def points(self, time_index: int) -> PointCloud:
        """Read the merged cloud of an instant."""
        return read_ply(self.layout.points(self._index(time_index)))

    def intrinsics_at_maps(self, view: str) -> Float[Tensor, "T 3 3"]:
        """Return a view's intrinsics on the pixel grid of its maps."""
        record = self._view(view)
        (map_width, map_height), (width, height) = record.map_size, record.original_size
        intrinsics = self.cameras.intrinsics[:, self.view_names.index(view)]
        return resize_intrinsics(intrinsics, map_width / width, map_height / height)

    def _view(self, view: str) -> ViewRecord:
        self.layout.file_name(view)
        return self.run.views[self.view_names.index(view)]

    def _map_size(self, view: str) -> tuple[int, int]:
        width, height = self._view(view).map_size
        return height, width

    def _index(self, time_index: int) -> int:
        if not (0 <= time_index < self.num_times and time_index == int(time_index)):
            raise UsageError(f"no instant {time_index}", f"the run has instants 0 to {self.num_times - 1}")
        return int(time_index)


def open_output(folder: Path | str, *, allow_incomplete: bool = False) -> Output:
    """Open the folder of a page4d run and check that its records fit together.

    Raises:
        InputError: if there is no run, the run did not finish, or its records contradict each other.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"'{folder}' is not a folder", "give the output folder of a page4d run")
    run = _read_finished_run(folder, allow_incomplete)
    names = tuple(view.name for view in run.views)
    layout = OutputLayout(folder, names, tuple(view.safe_name for view in run.views))
    cameras = read_cameras_json(layout.cameras)
    sizes = tuple(view.original_size[::-1] for view in run.views)
    same_times = len(cameras.times) == len(run.times) and torch.equal(
        cameras.times, torch.tensor(run.times, dtype=torch.float64)
    )
    if cameras.view_names != names or cameras.image_sizes != sizes or not same_times or cameras.scale != run.scale:
        raise InputError(
            f"'{folder}': run.json and cameras.json are of different runs",
            "restore one of them, or run page4d again",
        )
    return Output(layout=layout, run=run, cameras=cameras)


def _read_finished_run(folder: Path, allow_incomplete: bool) -> RunRecord:
    layout = OutputLayout(folder, ())
    if not layout.run.exists():
        raise InputError(f"'{folder}' holds no result: run.json is missing", "give the output folder of a page4d run")
    run = read_run(layout)
    if run.status == "incomplete" and not allow_incomplete:
        raise InputError(f"the run in '{folder}' is incomplete", "finish it with --resume")
    return run
