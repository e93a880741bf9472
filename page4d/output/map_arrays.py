"""The maps and cameras of a result as arrays: points of a view, arrays over time and views, and an xarray dataset."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import page4d
from page4d.conventions import PIXEL_CENTER
from page4d.errors import UsageError
from page4d.geometry.camera import unproject
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.installation import require_extra
from page4d.output.reader import Output, instant_index


def lift_depth(output: Output, time_index: int, view: str) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the world points [H, W, 3] of a depth map and the mask [H, W] of pixels with depth; see `Output`."""
    depth = torch.from_numpy(output.depth(time_index, view)).double()
    pose = output.cameras.world_to_camera[time_index, output.view_names.index(view)]
    points = transform_points(invert_rigid(pose), unproject(depth, output.intrinsics_at_maps(view)[time_index]))
    mask = depth > 0
    points[~mask] = torch.nan
    return points.float().numpy(), mask.numpy()


def choose_views(output: Output, views: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of views, all of the run for None, after a check that they exist.

    Raises:
        UsageError: if there is no such view, or none is chosen.
    """
    chosen = output.view_names if views is None else (views,) if isinstance(views, str) else tuple(views)
    if not chosen:
        raise UsageError("no views", "give at least one, or None for all")
    for view in chosen:
        output.layout.file_name(view)
    return chosen


def choose_times(output: Output, times: Sequence[int] | None) -> tuple[int, ...]:
    """Return the indices of instants, all of the run for None, after a check that they exist.

    Raises:
        UsageError: if there is no such instant, or none is chosen.
    """
    chosen = tuple(range(output.num_times)) if times is None else tuple(times)
    if not chosen:
        raise UsageError("no instants", "give at least one, or None for all")
    return tuple(instant_index(output, index) for index in chosen)


def stack_maps(output: Output, views: Sequence[str] | None, times: Sequence[int] | None) -> dict[str, NDArray[Any]]:
    """Stack maps and cameras of T instants and V views; see `Output.arrays`."""
    names, instants = choose_views(output, views), choose_times(output, times)
    height, width = _common_size(output, names)
    shape = (len(instants), len(names), height, width)
    depth, confidence = np.empty(shape, np.float32), np.empty(shape, np.float32)
    dynamic = np.empty(shape, np.bool_) if output.has_motion else None
    motion = (np.empty((*shape, 3), np.float32), np.empty(shape, np.float32)) if output.has_velocity else None
    for place in np.ndindex(shape[:2]):
        frame = (instants[place[0]], names[place[1]])
        depth[place], confidence[place] = output.depth(*frame), output.confidence(*frame)
        if dynamic is not None:
            dynamic[place] = output.dynamic(*frame)
        if motion is not None:
            motion[0][place], motion[1][place] = output.velocity(*frame)
    indices = [output.view_names.index(name) for name in names]
    intrinsics = torch.stack([output.intrinsics_at_maps(name) for name in names], dim=1)[list(instants)]
    return {
        "depth": depth,
        "conf": confidence,
        **({} if dynamic is None else {"dynamic": dynamic}),
        **({} if motion is None else {"velocity": motion[0], "velocity_sigma": motion[1]}),
        "intrinsics": intrinsics.numpy(),
        "world_to_camera": output.cameras.world_to_camera[list(instants)][:, indices].numpy(),
        "times": np.array(output.run.times)[list(instants)],
        "views": np.array(names),
    }


def _common_size(output: Output, names: Sequence[str]) -> tuple[int, int]:
    sizes = {name: output.map_size(name) for name in names}
    size = sizes[names[0]]
    odd = next((name for name in names if sizes[name] != size), None)
    if odd is not None:
        first, other = (f"{width}x{height}" for height, width in (size, sizes[odd]))
        raise UsageError(
            f"the maps of {names[0]} are {first}, those of {odd} {other}: one array cannot hold both",
            f"give views of one size, such as views=[{', '.join(repr(n) for n in names if sizes[n] == size)}]",
        )
    return size


def as_xarray(output: Output, views: Sequence[str] | None, times: Sequence[int] | None) -> Any:
    """Return maps and cameras as `xarray.Dataset`; see `Output.to_xarray`."""
    require_extra("xarray", "to_xarray")
    arrays = stack_maps(output, views, times)
    maps = ("time", "view", "y", "x")
    unit = output.run.unit
    variables: dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, str]]] = {
        "depth": (maps, arrays["depth"], {"units": unit, "long_name": "z-depth, 0 where there is none"}),
        "confidence": (maps, arrays["conf"], {"units": "1", "long_name": "0 to 1, higher is better"}),
        "intrinsics": (("time", "view", "pixel_row", "pixel_column"), arrays["intrinsics"], {"units": "px"}),
        "world_to_camera": (("time", "view", "row", "column"), arrays["world_to_camera"], {"units": unit}),
    }
    if "dynamic" in arrays:
        variables["dynamic"] = (maps, arrays["dynamic"], {"long_name": "True where something moves"})
    if "velocity" in arrays:
        speed = {"units": f"{unit} s-1"}
        name, spread = "velocity in the world, 0 where unknown", "standard deviation, 0 where the velocity is unknown"
        variables["velocity"] = ((*maps, "axis"), arrays["velocity"], {**speed, "long_name": name})
        variables["velocity_sigma"] = (maps, arrays["velocity_sigma"], {**speed, "long_name": spread})
    height, width = arrays["depth"].shape[2:]
    coordinates = {
        "time": ("time", arrays["times"], {"units": "s", "long_name": output.run.conventions["time"]}),
        "view": ("view", arrays["views"]),
        "y": ("y", np.arange(height) + PIXEL_CENTER, {"units": "px"}),
        "x": ("x", np.arange(width) + PIXEL_CENTER, {"units": "px"}),
    }
    if "velocity" in arrays:
        coordinates["axis"] = ("axis", np.array(list("xyz")))
    conventions = {f"convention_{name}": text for name, text in output.run.conventions.items()}
    attributes = {"unit": unit, **conventions, "page4d": page4d.__version__}
    return import_module("xarray").Dataset(variables, coordinates, attributes)
