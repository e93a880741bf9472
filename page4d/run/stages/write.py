"""Files of instants: their options, decided at the first instant of a run, and their writing."""

from dataclasses import replace

import numpy as np
import torch
from pydantic import PositiveFloat

from page4d.errors import UsageError
from page4d.formats.maps import FLOW_SHARE, choose_depth_scale, choose_motion_step, depth_quantiles
from page4d.formats.open3d import CloudWriter, cloud_writer
from page4d.installation import load_open3d
from page4d.io.json_records import FileModel
from page4d.networks.layers.execution import on_threads
from page4d.output.instant import InstantOptions, instant_writers, write_instant
from page4d.output.layout import OutputLayout
from page4d.output.mesh import check_mesh_voxel, choose_mesh_voxel
from page4d.records import Predictions
from page4d.run.memory import usable_bytes
from page4d.run.plan import RunPlan
from page4d.run.stage import History, Instant, Stage
from page4d.scene.records import Scene


class FileScales(FileModel):
    """Levels of the depth maps per unit of depth, the velocity of a level of velocity maps, and the size of voxels.

    Voxels are in units of depth, None without meshes.
    """

    depth_scale: PositiveFloat
    motion_step: PositiveFloat
    mesh_voxel_size: PositiveFloat | None


class FileOptions(Stage[FileScales]):
    """Chooses the options of all files of a run, with the scales that its first chunk gives."""

    name, decision = "scales", FileScales

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan

    def __call__(self, instant: Instant) -> Instant:
        """Add the options of the files of an instant."""
        settings, chunk = self._plan.settings, instant.chunk
        if self.decided is None:
            depth_scale = choose_depth_scale(chunk.depth, chunk.valid, chunk.scale)
            self.decided = FileScales(
                depth_scale=depth_scale,
                motion_step=choose_motion_step(depth_scale, self._largest_speed(chunk)),
                mesh_voxel_size=_mesh_voxel(self._plan, instant.predictions) if settings.mesh else None,
            )
        options = InstantOptions(
            depth_scale=self.decided.depth_scale,
            motion_step=self.decided.motion_step,
            points=replace(settings.points, min_views=instant.min_views),
            mesh_voxel=self.decided.mesh_voxel_size or 1.0,
            seed=settings.seed,
            world_offset=self._plan.scene.world_offset,
            writers=instant_writers(mesh=settings.mesh),
        )
        return replace(instant, options=options)

    def _largest_speed(self, chunk: Predictions) -> float:
        """Return the speed of far points that cross `FLOW_SHARE` of a picture between instants; 0 without motion."""
        found = depth_quantiles(chunk.depth, chunk.valid) if self._plan.settings.motion else None
        if found is None:
            return 0.0
        tangent = max(chunk.cameras.image_size) / float(chunk.cameras.intrinsics[..., 0, 0].min())
        return found[1] * tangent * FLOW_SHARE / float(np.median(np.diff(self._plan.scene.times)))


def _mesh_voxel(plan: RunPlan, first: Predictions) -> float:
    """Return the voxel size of all meshes, from the first instant unless the user set it.

    Raises:
        UsageError: if the size of the user does not fit the images or the memory.
    """
    size = plan.settings.mesh_voxel or choose_mesh_voxel(first)
    on_cpu = plan.predictor.device.type == "cpu"
    check_mesh_voxel(first, size, plan.memory_limit.num_bytes if on_cpu else usable_bytes(torch.device("cpu")))
    return size


class FileWriters(FileModel):
    """Which writer writes the clouds."""

    cloud_writer: CloudWriter


class Writer(Stage[FileWriters]):
    """Writes the files of instants; all clouds of a run are by one writer."""

    name, decision = "files", FileWriters

    def __init__(self, layout: OutputLayout, scene: Scene) -> None:
        self._layout, self._scene = layout, scene

    def restore(self, history: History) -> None:
        """Restore the decision.

        Raises:
            UsageError: if clouds would be written by another writer here.
        """
        super().restore(history)
        if self.decided is None or self.decided.cloud_writer == (here := self._cloud_writer()):
            return
        _, reason, fix = load_open3d()
        raise UsageError(
            f"the clouds so far were written by {self.decided.cloud_writer}, the others would be by {here}"
            + (f": {reason}" if reason else ""),
            (f"{fix}; or " if fix else "") + "use ⟨existing=overwrite⟩ to start again",
        )

    def _cloud_writer(self) -> CloudWriter:
        return cloud_writer(needs_comments=self._scene.world_offset is not None)

    @on_threads(1)  # each kind of file
    def __call__(self, instant: Instant) -> Instant:
        """Write the files of an instant."""
        assert instant.options is not None
        if self.decided is None:
            self.decided = FileWriters(cloud_writer=self._cloud_writer())
        written = write_instant(self._layout, instant.index, instant.predictions, instant.options)
        return replace(instant, written=instant.written + written)
