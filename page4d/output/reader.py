"""An output folder read back, as records and as arrays: every later format, evaluation and viewer starts here.

Arrays are points of a view, maps and cameras over time and views, and an xarray dataset.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

import page4d
from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError, UsageError, counted
from page4d.formats.cameras_json import CaptureCameras, read_cameras_json
from page4d.formats.maps import read_png, read_velocity
from page4d.formats.ply import PointCloud, read_ply
from page4d.formats.tracks import Tracks, read_tracks
from page4d.geometry.camera import unproject
from page4d.geometry.transforms import invert_rigid, move_origin, transform_points
from page4d.installation import require_extra
from page4d.io.folders import given_path
from page4d.io.json_records import read_model
from page4d.output.layout import OUTPUT_FILES, OutputLayout
from page4d.output.pictures import (
    OutputDataset,
    Pictures,
    PictureSize,
    choose_times,
    choose_views,
    instant_index,
    open_pictures,
    picture_size,
)
from page4d.output.record import RunRecord
from page4d.scene.images import resize

_MAPS = {
    "depth": ("{}", "z-depth, 0 where there is none"),
    "confidence": ("1", "0 to 1, higher is better"),
    "dynamic": ("", "True where something moves"),
    "velocity": ("{} s-1", "velocity in the world, 0 where unknown"),
    "velocity_sigma": ("{} s-1", "standard deviation, 0 where the velocity is unknown"),
}
"""The maps of a frame: units, in which {} is that of the run, and meaning."""


def _check_common_size(output: "Output", names: Sequence[str]) -> None:
    sizes = {name: output.map_size(name) for name in names}
    size = sizes[names[0]]
    odd = next((name for name in names if sizes[name] != size), None)
    if odd is not None:
        first, other = (f"{width}x{height}" for height, width in (size, sizes[odd]))
        raise UsageError(
            f"the maps of {names[0]} are {first}, those of {odd} {other}: one array cannot hold both",
            f"give views of one size, such as views=[{', '.join(repr(n) for n in names if sizes[n] == size)}]",
        )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Output:
    """A finished run. Files are read when they are asked for; views go by their true names.

    If `run.world_offset` is not None, the world of cameras, points and tracks is that of the camera files less this.

    Methods that take a view or an instant raise `UsageError` if there is none such, and `InputError` if a file is
    missing or damaged.
    """

    layout: OutputLayout
    run: RunRecord
    cameras: CaptureCameras

    def __repr__(self) -> str:
        """Return folder, size and unit in one line: the records of a run fill pages."""
        size = f"{counted(self.num_times, 'instant')}, {counted(len(self.view_names), 'view')}"
        return f"<Output '{self.layout.folder}': {size}, unit {self.run.unit}>"

    @property
    def num_times(self) -> int:
        """Number of instants T."""
        return len(self.run.times)

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views in order."""
        return self.layout.view_names

    @property
    def has_motion(self) -> bool:
        """Whether the run predicted motion masks."""
        return self.layout.path(OUTPUT_FILES["dynamic"].top).is_dir()

    @property
    def has_moving_points(self) -> bool:
        """Whether the run has motion masks or velocities, which determine the points that move."""
        return self.has_motion or self.has_velocity

    def depth(self, time_index: int, view: str) -> NDArray[np.float32]:
        """Read a depth map [H, W] in units of the scene, 0 where there is none."""
        levels = read_png(self.layout.depth(instant_index(self, time_index), view), np.uint16, self.map_size(view))
        return (levels / self.run.depth_scale).astype(np.float32)

    def confidence(self, time_index: int, view: str) -> NDArray[np.float32]:
        """Read a confidence map [H, W] in [0, 1]."""
        levels = read_png(
            self.layout.confidence(instant_index(self, time_index), view), np.uint8, self.map_size(view)
        )
        return (levels / 255.0).astype(np.float32)

    def dynamic(self, time_index: int, view: str) -> NDArray[np.bool_] | None:
        """Read a motion mask [H, W], True where something moves; None if the run predicted none."""
        path = self.layout.dynamic(instant_index(self, time_index), view)
        if not self.has_motion:
            return None
        return read_png(path, np.uint8, self.map_size(view)) > 127

    @property
    def has_velocity(self) -> bool:
        """Whether the run measured velocities (`motion`)."""
        return self.run.motion is not None

    def velocity(self, time_index: int, view: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Read the velocity [H, W, 3] in the world of every pixel of a depth map, and its standard deviation [H, W].

        Both are in units of the scene per second, and 0 where the velocity is unknown.

        Raises:
            UsageError: if the run measured no velocities.
        """
        index = instant_index(self, time_index)
        if self.run.motion is None:
            raise UsageError(f"'{self.layout.folder}' has no velocities", "run page4d again with ⟨motion=True⟩")
        paths = self.layout.motion(index, view), self.layout.motion_sigma(index, view)
        return read_velocity(*paths, self.map_size(view), self.run.motion.motion_step)

    def maps(self, time_index: int, view: str) -> dict[str, NDArray[Any]]:
        """Read all maps of a frame: `depth`, `confidence`, and what the run has of `dynamic` and `velocity`.

        With the velocity comes its standard deviation, `velocity_sigma`.
        """
        frame = (time_index, view)
        maps: dict[str, NDArray[Any]] = {"depth": self.depth(*frame), "confidence": self.confidence(*frame)}
        if (moving := self.dynamic(*frame)) is not None:
            maps["dynamic"] = moving
        if self.has_velocity:
            maps["velocity"], maps["velocity_sigma"] = self.velocity(*frame)
        return maps

    @property
    def has_tracks(self) -> bool:
        """Whether the run followed points (`tracks`)."""
        return self.run.motion is not None and self.run.motion.tracks is not None

    def tracks(self) -> Tracks:
        """Read the trajectories of points.

        Raises:
            UsageError: if the run followed no points.
        """
        if not self.has_tracks:
            raise UsageError(f"'{self.layout.folder}' has no tracks", "run page4d again with ⟨tracks⟩")
        return read_tracks(self.layout.tracks)

    def points(self, time_index: int) -> PointCloud:
        """Read the merged cloud of an instant; in runs without motion masks, points with a velocity are `dynamic`."""
        cloud = read_ply(self.layout.points(instant_index(self, time_index)))
        if self.has_motion or cloud.velocity is None:
            return cloud
        return replace(cloud, dynamic=np.any(cloud.velocity != 0, axis=1).astype(np.uint8))

    @property
    def has_layers(self) -> bool:
        """Whether the run wrote what does not move once for all instants (`layers`)."""
        return self.run.layers is not None

    def static_points(self) -> PointCloud:
        """Read the points of what does not move, at all instants.

        They are not derived from the merged clouds of runs without layers: that would read every cloud of the run,
        and the noise of depth over time would make several surfaces of one.

        Raises:
            UsageError: if the run wrote no layers.
        """
        if not self.has_layers:
            raise UsageError(
                f"'{self.layout.folder}' has no static points of all instants",
                "run page4d again with ⟨layers=True⟩, or select the points of an instant that do not move",
            )
        return read_ply(self.layout.static_points)

    def moving_points(self, time_index: int) -> PointCloud:
        """Read the points of an instant that move; in runs without layers, from its merged cloud."""
        index = instant_index(self, time_index)
        if self.has_layers:
            return read_ply(self.layout.moving_points(index))
        cloud = self.points(index)
        return cloud[cloud.dynamic != 0]

    def intrinsics_at_maps(self, view: str) -> Float[Tensor, "T 3 3"]:
        """Return a view's intrinsics on the pixel grid of its maps."""
        size = self.map_size(view)  # refuses an unknown view
        return self.cameras.intrinsics_at(self.view_names.index(view), size)

    def map_size(self, view: str) -> tuple[int, int]:
        """Return the (height, width) of a view's maps."""
        self.layout.file_name(view)  # refuses an unknown one
        width, height = self.run.views[self.view_names.index(view)].map_size
        return height, width

    def world_points(self, time_index: int, view: str) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the point [H, W, 3] of every pixel of a depth map, and a mask [H, W] of the pixels with depth.

        Points are in the world, in units of the scene, and NaN where there is no depth. A `UserWarning` counts the
        depths of the run that do not fit the levels of its maps.
        """
        for text in self.run.unmapped_depths:
            warnings.warn(text, stacklevel=2)
        index = instant_index(self, time_index)
        depth = torch.from_numpy(self.depth(index, view)).double()
        pose = self.cameras.world_to_camera[index, self.view_names.index(view)]
        points = transform_points(invert_rigid(pose), unproject(depth, self.intrinsics_at_maps(view)[index]))
        mask = depth > 0
        points[~mask] = torch.nan
        return points.float().numpy(), mask.numpy()

    def pictures(self, scene: Path | str) -> Pictures:
        """Open the run's videos in the folder `scene`, to decode pictures in order; once for a folder.

        Raises:
            InputError: if views, sizes, files or times differ from those of the run.
        """
        given = given_path(scene, "scene")
        folder = given.resolve()
        if folder not in self._opened:
            self._opened[folder] = open_pictures(self, given)
        return self._opened[folder]

    def image(
        self, time_index: int, view: str, scene: Path | str, size: PictureSize = "original"
    ) -> NDArray[np.uint8]:
        """Decode an RGB picture [H, W, 3] from the run's videos in the folder `scene`, without lens distortion.

        At size "original" the intrinsics are `cameras.intrinsics`, at "maps" `intrinsics_at_maps`. A video is decoded
        from a key frame for each picture; `pictures` decodes many in order.

        Raises:
            InputError: if the folder does not hold the videos of the run.
        """
        shape = picture_size(self, view, size)
        (picture,) = self.pictures(scene).read(view, [instant_index(self, time_index)])
        return resize(picture, shape)

    def to_open3d(self, time_index: int) -> Any:
        """Return the merged cloud of an instant as `open3d.t.geometry.PointCloud`.

        Its attributes are positions, colors (uint8), confidence, view, dynamic, and, where the run wrote them,
        normals and the velocity as vx, vy, vz and vsigma.

        Raises:
            CapabilityError: if Open3D cannot be loaded.
        """
        from page4d.formats.open3d import open3d_cloud

        return open3d_cloud(self.points(time_index))

    def arrays(
        self, views: Sequence[str] | None = None, times: Sequence[int] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Read maps and cameras of T instants (indices) and V views, all by default, in the order given.

        The arrays are `depth` [T, V, H, W] in units of the scene (0: none), `conf` [T, V, H, W] in [0, 1], `dynamic`
        [T, V, H, W] (absent if the run predicted no motion), `intrinsics` [T, V, 3, 3] on the pixel grid of the maps,
        `world_to_camera` [T, V, 4, 4], `times` [T] in seconds and `views` [V], the names. Runs with velocities also
        have `velocity` [T, V, H, W, 3] and `velocity_sigma` [T, V, H, W], as `velocity` reads them. Maps are float32
        and bool, cameras and times float64. All is held in memory: 9 bytes per pixel, 25 with velocities.

        Raises:
            UsageError: if the maps of the views differ in size.
        """
        names, instants = choose_views(self, views), choose_times(self, times)
        _check_common_size(self, names)
        shape = (len(instants), len(names))
        arrays: dict[str, NDArray[Any]] = {}
        for place in np.ndindex(shape):
            for name, values in self.maps(instants[place[0]], names[place[1]]).items():
                key = "conf" if name == "confidence" else name
                if key not in arrays:
                    arrays[key] = np.empty(shape + values.shape, values.dtype)
                arrays[key][place] = values
        indices = [self.view_names.index(name) for name in names]
        intrinsics = torch.stack([self.intrinsics_at_maps(name) for name in names], dim=1)[list(instants)]
        return {
            **arrays,
            "intrinsics": intrinsics.numpy(),
            "world_to_camera": self.cameras.world_to_camera[list(instants)][:, indices].numpy(),
            "times": np.array(self.run.times)[list(instants)],
            "views": np.array(names),
        }

    def to_xarray(self, views: Sequence[str] | None = None, times: Sequence[int] | None = None) -> Any:
        """Read maps and cameras of some instants and views as `xarray.Dataset` with the dimensions time, view, y, x.

        The variables are depth, confidence, dynamic, intrinsics and world_to_camera, and for runs with velocities
        velocity (with the dimension axis: x, y, z) and velocity_sigma, as in `arrays`; the coordinates seconds, names
        of views, and pixel centres of the maps; the attributes unit and conventions.

        Raises:
            UsageError: if the maps of the views differ in size.
            CapabilityError: if xarray is not installed.
        """
        require_extra("xarray", "to_xarray")
        arrays = self.arrays(views, times)
        arrays["confidence"] = arrays.pop("conf")
        unit = self.run.unit
        variables: dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, str]]] = {
            "intrinsics": (("time", "view", "pixel_row", "pixel_column"), arrays["intrinsics"], {"units": "px"}),
            "world_to_camera": (("time", "view", "row", "column"), arrays["world_to_camera"], {"units": unit}),
        }
        for name in [name for name in _MAPS if name in arrays]:
            texts = {key: text.format(unit) for key, text in zip(("units", "long_name"), _MAPS[name], strict=True)}
            axes = ("time", "view", "y", "x", "axis")[: arrays[name].ndim]
            variables[name] = (axes, arrays[name], {key: text for key, text in texts.items() if text})
        height, width = arrays["depth"].shape[2:]
        coordinates = {
            "time": ("time", arrays["times"], {"units": "s", "long_name": self.run.conventions["time"]}),
            "view": ("view", arrays["views"]),
            "y": ("y", np.arange(height) + PIXEL_CENTER, {"units": "px"}),
            "x": ("x", np.arange(width) + PIXEL_CENTER, {"units": "px"}),
        }
        if "velocity" in arrays:
            coordinates["axis"] = ("axis", np.array(list("xyz")))
        conventions = {f"convention_{name}": text for name, text in self.run.conventions.items()}
        attributes = {"unit": unit, **conventions, "page4d": page4d.__version__}
        return import_module("xarray").Dataset(variables, coordinates, attributes)

    def dataset(
        self,
        scene: Path | str | None = None,
        views: Sequence[str] | None = None,
        times: Sequence[int] | None = None,
        size: PictureSize = "maps",
    ) -> OutputDataset:
        """Return a PyTorch dataset with an item per instant and view.

        An item has `depth` and `confidence` [H, W], `mask` [H, W], True where something moves (absent if the run
        predicted no motion), `velocity` [H, W, 3] in the world and `velocity_sigma` [H, W] (absent if the run
        measured none), `K` [3, 3], `world_to_camera` [4, 4], `time` in seconds (float64) and `view`, the index in
        `view_names`. With the folder `scene` of the run's videos it has `image` [3, H, W] in [0, 1], of the size
        of the maps or of the original video. `K` belongs to images of this size; maps keep theirs. Everything else is
        float32.

        Raises:
            InputError: if the folder does not hold the videos of the run.
        """
        return OutputDataset(self, scene, choose_views(self, views), choose_times(self, times), size)

    @cached_property
    def _opened(self) -> dict[Path, Pictures]:
        return {}


def check_not_replaced(output: Output) -> None:
    """Refuse what was read from an output that another run has begun to replace meanwhile.

    Raises:
        InputError: if it was complete, and the status or the timings of its record are not those of the open output.
    """
    found = read_model(output.layout.run, RunRecord)
    is_other = (found.status, found.timings) != (output.run.status, output.run.timings)
    if output.run.status == "complete" and is_other:
        raise InputError(
            f"'{output.layout.folder}' was written anew while it was read", "repeat when the other run has ended"
        )


def open_output(folder: Output | Path | str, *, allow_incomplete: bool = False) -> Output:
    """Open the folder of a page4d run and check that its records fit together; an open one is returned.

    Raises:
        InputError: if there is no run, the run did not finish, or its records contradict each other.
    """
    if isinstance(folder, Output):
        return folder
    folder = given_path(folder, "folder")
    if not folder.is_dir():
        raise InputError(f"'{folder}' is not a folder", "give the output folder of a page4d run")
    if not (folder / "run.json").exists():
        raise InputError(f"'{folder}' holds no result: run.json is missing", "give the output folder of a page4d run")
    run = read_model(OutputLayout(folder, ()).run, RunRecord)
    if run.status == "incomplete" and not allow_incomplete:
        raise InputError(f"the run in '{folder}' is incomplete", "finish it with ⟨existing=resume⟩")
    names = tuple(view.name for view in run.views)
    layout = OutputLayout(folder, names, tuple(view.safe_name for view in run.views))
    cameras = read_cameras_json(layout.cameras)
    sizes = tuple(view.original_size[::-1] for view in run.views)
    same_times = len(cameras.times) == len(run.times) and torch.equal(
        cameras.times, torch.tensor(run.times, dtype=torch.float64)
    )
    if cameras.view_names != names or cameras.image_sizes != sizes or not same_times or cameras.scale != run.scale:
        raise InputError(
            f"'{folder}': run.json and cameras.json are of different runs", "restore one of them, or run page4d again"
        )
    if run.world_offset is not None:
        offset = torch.tensor(run.world_offset, dtype=torch.float64)
        cameras = replace(cameras, world_to_camera=move_origin(cameras.world_to_camera, offset))
    return Output(layout=layout, run=run, cameras=cameras)
