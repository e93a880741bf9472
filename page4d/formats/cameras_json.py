"""`cameras.json` of page4d, read and written: the cameras of a run (`views`), or plain ones (`cameras`).

As a calibration, both are read whoever wrote them. `read_cameras_json` reads the cameras of a run exactly, and
accepts only what `write_cameras_json` writes.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import BeforeValidator, Field, Strict
from torch import Tensor

import page4d
from page4d.choices import UpAxis
from page4d.conventions import DESCRIPTION, INTEGER_PIXEL_CENTER, PIXEL_CENTER, ClockOrigin, Scale
from page4d.errors import InputError, ShapeError
from page4d.formats.build import FileSchema, Matrix3, Matrix4, Side, WidthHeight, make_camera
from page4d.formats.camera_model import CORRECTION_HINT, ROTATION_TOLERANCE, CalibratedCamera, Calibration
from page4d.formats.files import check_count, error_context, unreadable, validated
from page4d.geometry.camera import resize_intrinsics
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rotation import rotation_defect
from page4d.geometry.transforms import is_constant
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_records import DOUBLES, RESTORE_RECORD, FileModel, format_json, read_model, readable

_PixelCenter = Annotated[float, Field(ge=0.0, le=1.0)]
_BY_VALUE = Strict(strict=False)
"""Annotates what a strict schema takes no value of a file for: an enumeration, or an integer written as 1e18."""

_MAX_DRIFT = 1e-6
"""Relative change over time up to which intrinsics are considered constant."""

_MAX_TRANSLATION = 1e12
"""Largest translation that is read, in units of the scene: differences of larger numbers have no digits left."""


class _Distortion(FileSchema):
    model: Annotated[LensModel, _BY_VALUE]
    coefficients: list[float]

    def record(self) -> Distortion:
        return Distortion(model=self.model, coefficients=tuple(self.coefficients))


class _Camera(FileSchema):
    world_to_camera: Matrix4 | Annotated[list[Matrix4], Field(min_length=1)]
    distortion: _Distortion | None = None

    @property
    def poses(self) -> Tensor:
        """One matrix, or several over time."""
        return torch.tensor(self.world_to_camera, dtype=torch.float64)


class _TruthCamera(_Camera):
    intrinsics: Matrix3
    width: Side
    height: Side


class _OutputView(_Camera):
    image_size: WidthHeight
    static: bool = True
    start_s: float | None = None
    intrinsics: Matrix3 | Annotated[list[Matrix3], Field(min_length=1)]

    @property
    def poses(self) -> Tensor:
        """One matrix, or several over time."""
        given = torch.tensor(self.world_to_camera, dtype=torch.float64)
        return given[0] if len(given) == 1 else given


class _Document(FileSchema):
    pixel_center: _PixelCenter | None = None
    up: object = None
    times: list[float] = Field(default=[])


class _Truth(_Document):
    cameras: dict[str, dict[str, object]]
    convention: str = ""
    scale: Annotated[Scale | None, _BY_VALUE] = None


class _Conventions(FileSchema):
    pixel_center: str | _PixelCenter = PIXEL_CENTER


class _Output(_Document):
    views: dict[str, dict[str, object]]
    conventions: _Conventions = _Conventions()
    start_ns: Annotated[int | None, _BY_VALUE] = None
    scale: Annotated[Scale, _BY_VALUE] = Scale.ARBITRARY


def read(path: Path, content: dict[str, object]) -> Calibration:
    """Read the content of a `cameras.json`: the output of a page4d run, or a plain ground truth."""
    if "views" in content:
        return _read_output(path, validated(_Output, content, path.name))
    if "cameras" in content:
        return _read_truth(path, validated(_Truth, content, path.name))
    raise unreadable(path, "it has neither the key 'views' nor 'cameras'")


def write(calibration: Calibration, path: Path) -> None:
    """Write static cameras as plain cameras, atomically."""
    cameras = {}
    for camera in calibration.cameras:
        assert camera.image_size is not None
        height, width = camera.image_size
        cameras[readable(camera.name)] = {
            "width": width,
            "height": height,
            "intrinsics": camera.intrinsics.tolist(),
            "world_to_camera": camera.world_to_camera.tolist(),
            **({} if camera.distortion is None else {"distortion": asdict(camera.distortion)}),
        }
    head = {"page4d": page4d.__version__, "pixel_center": PIXEL_CENTER, "scale": calibration.scale.value}
    document = {**head, "unit": calibration.scale.unit, **_up_entry(calibration.up), "cameras": cameras}
    write_bytes_atomic(path, (format_json(document) + "\n").encode())


def _read_truth(path: Path, truth: _Truth) -> Calibration:
    check_count(path, len(truth.cameras))
    notices: list[str] = []
    center = _declared_center(truth.convention) if truth.pixel_center is None else truth.pixel_center
    if center is None:
        center = PIXEL_CENTER
        notices = [f"{path.name} declares no pixel centre; (0.5, 0.5) is assumed for the top-left pixel"]
    metric = truth.scale is Scale.METRIC or (
        truth.scale is None and bool(re.search(r"\bmet(re|er)s\b", truth.convention))
    )
    cameras = []
    for name, raw in truth.cameras.items():
        camera = validated(_TruthCamera, raw, path.name, name)
        intrinsics = torch.tensor(camera.intrinsics, dtype=torch.float64)
        given = {"intrinsics": intrinsics, "image_size": (camera.height, camera.width), "pixel_center": center}
        cameras.append(_built(path.name, name, camera, truth.times or None, **given))
    return _calibration(path, Scale.METRIC if metric else Scale.ARBITRARY, cameras, notices, truth)


def _axis(value: object) -> UpAxis | None:
    """Return the axis that points up, None for anything else under this key, as other tools may write."""
    return UpAxis(value) if isinstance(value, str) and value in set(UpAxis) - {UpAxis.AUTO} else None


def _declared_center(text: str) -> float | None:
    """Return the coordinate of the top-left pixel's centre that a description of conventions declares."""
    if "half-integer pixel cent" in text or "(0.5, 0.5)" in text:
        return PIXEL_CENTER
    if "integer pixel cent" in text or re.search(r"\(0(\.0)?, ?0(\.0)?\)", text):
        return INTEGER_PIXEL_CENTER
    return None


def _read_output(path: Path, output: _Output) -> Calibration:
    check_count(path, len(output.views))
    center = output.pixel_center
    if center is None:
        declared = output.conventions.pixel_center
        center = _declared_center(declared) if isinstance(declared, str) else declared
    if center is None:
        raise InputError(f"{path.name}: conventions.pixel_center is unknown", "write (0.5, 0.5) or (0, 0)")
    cameras, notices = [], []
    for name, raw in output.views.items():
        view = validated(_OutputView, raw, path.name, name)
        over_time = torch.tensor(view.intrinsics, dtype=torch.float64).reshape(-1, 3, 3)
        with error_context(path.name, name):
            if len(over_time) > 1 and len(output.times) != len(over_time):
                raise InputError(f"{len(over_time)} intrinsics for {len(output.times)} times", CORRECTION_HINT)
        intrinsics, notice = _median_intrinsics(path.name, name, over_time)
        given = {"intrinsics": intrinsics, "image_size": tuple(view.image_size[::-1]), "pixel_center": center}
        cameras.append(replace(_built(path.name, name, view, output.times, **given), start_s=view.start_s))
        notices += [] if notice is None else [notice]
    return replace(_calibration(path, output.scale, cameras, notices, output), start_ns=output.start_ns)


def _built(label: str, name: str, camera: _Camera, times: list[float] | None, **given: Any) -> CalibratedCamera:
    """Build a camera from its pose or, at `times`, poses, its distortion, and what is `given` to `make_camera`."""
    poses = camera.poses
    with error_context(label, name):
        distortion = None if camera.distortion is None else camera.distortion.record()
        if poses.ndim == 3 and times is not None and len(times) != len(poses):
            raise InputError(f"{len(poses)} poses for {len(times)} times", CORRECTION_HINT)
    known = tuple(times) if poses.ndim == 3 and times is not None else None
    return make_camera(label, name, world_to_camera=poses, distortion=distortion, times=known, **given)


def _calibration(
    path: Path, scale: Scale, cameras: list[CalibratedCamera], notices: list[str], document: _Document
) -> Calibration:
    return Calibration(
        path=path,
        scale=scale,
        cameras=tuple(cameras),
        up=_axis(document.up),
        file_unit="m" if scale is Scale.METRIC else None,
        notices=tuple(notices),
    )


def _median_intrinsics(
    label: str, name: str, over_time: Float[Tensor, "T 3 3"]
) -> tuple[Float[Tensor, "3 3"], str | None]:
    """Return the median over time, and a notice if the intrinsics vary, as predicted ones may."""
    change = float((over_time - over_time[0]).abs().max())
    if change <= _MAX_DRIFT * (1 + float(over_time[0].abs().max())):
        return over_time[0], None
    text = f"{label}: camera {name}: the intrinsics vary by up to {change:.3g} px over time; their median is used"
    return over_time.median(dim=0).values, text


@dataclass(frozen=True, kw_only=True)
class CaptureCameras:
    """Cameras of T instants and V views in double precision; `intrinsics` belong to the original images.

    `image_sizes` are the original (height, width) of every view, `map_sizes` those of its maps, none if it has no
    maps; `times` are seconds on the common clock, whose 0 is the time stamp `start_ns`, None without one, and on
    which views begin at `starts`. The file has `start_ns` only of clocks from time stamps, and no `starts` of those
    from a sync file. `up` is the axis that points up in an upright world, None where it is unknown.
    """

    times: Float[Tensor, " T"]
    view_names: tuple[str, ...]
    image_sizes: tuple[tuple[int, int], ...]
    world_to_camera: Float[Tensor, "T V 4 4"]
    intrinsics: Float[Tensor, "T V 3 3"]
    scale: Scale
    map_sizes: tuple[tuple[int, int], ...] = ()
    start_ns: int | None = None
    starts: tuple[float, ...] = ()
    clock_origin: ClockOrigin = ClockOrigin.EARLIEST
    up: UpAxis | None = None

    def intrinsics_at(self, view: int, size: tuple[int, int]) -> Float[Tensor, "T 3 3"]:
        """Return the intrinsics of a view whose image was resized to a (height, width)."""
        height, width = self.image_sizes[view]
        return resize_intrinsics(self.intrinsics[:, view], size[1] / width, size[0] / height)

    def __post_init__(self) -> None:
        axes = (len(self.times), len(self.view_names))
        for name, size in (("world_to_camera", 4), ("intrinsics", 3)):
            value: Tensor = getattr(self, name)
            if tuple(value.shape) != (*axes, size, size) or value.dtype != torch.float64:
                raise ShapeError(
                    f"capture cameras: {name} is {value.dtype} {tuple(value.shape)}",
                    f"give float64 {(*axes, size, size)}",
                )
        if len(self.image_sizes) != axes[1]:
            raise ShapeError(f"{len(self.image_sizes)} image sizes for {axes[1]} views", "give one per view")


class _RunView(FileModel):
    """One view in `cameras.json`: a single matrix where it is constant, else one per instant."""

    image_size: tuple[int, int]
    static: bool
    start_s: float | None = None
    intrinsics: Annotated[Float[Tensor, "*T 3 3"], DOUBLES]
    world_to_camera: Annotated[Float[Tensor, "*T 4 4"], DOUBLES]
    map_size: tuple[int, int] | None = None
    map_intrinsics: Annotated[Float[Tensor, "*T 3 3"], DOUBLES] | None = None


class _Run(FileModel):
    """The cameras of a run as they are written; sizes are [width, height]."""

    page4d: str
    conventions: dict[str, str]
    scale: Scale
    unit: Literal["metre", "arbitrary"]
    up: Annotated[UpAxis | None, BeforeValidator(_axis)] = None
    start_ns: int | None = None
    times: Annotated[Float[Tensor, " T"], DOUBLES]
    views: dict[str, _RunView]


def write_cameras_json(path: Path, cameras: CaptureCameras) -> WrittenFile:
    """Write the cameras of a run atomically; every number reads back exactly.

    Raises:
        OutputError: if the file cannot be written.
    """
    views: dict[str, Any] = {}
    starts = () if cameras.clock_origin is ClockOrigin.FILE else cameras.starts
    for view, name in enumerate(cameras.view_names):
        height, width = cameras.image_sizes[view]
        poses, intrinsics = cameras.world_to_camera[:, view], cameras.intrinsics[:, view]
        views[readable(name)] = {
            "image_size": [width, height],
            "static": is_constant(poses),
            **({"start_s": starts[view]} if starts else {}),
            "intrinsics": _compact(intrinsics),
            "world_to_camera": _compact(poses),
        }
        if cameras.map_sizes:
            size = cameras.map_sizes[view]
            at_maps = {"map_size": list(size[::-1]), "map_intrinsics": _compact(cameras.intrinsics_at(view, size))}
            views[readable(name)] |= at_maps
    document = {
        "page4d": page4d.__version__,
        "conventions": DESCRIPTION,
        "scale": cameras.scale.value,
        "unit": cameras.scale.unit,
        **_up_entry(cameras.up),
        **({"start_ns": cameras.start_ns} if cameras.clock_origin is ClockOrigin.STAMPS else {}),
        "times": cameras.times.tolist(),
        "views": views,
    }
    return write_bytes_atomic(path, (format_json(document) + "\n").encode())


def _up_entry(up: UpAxis | None) -> dict[str, str]:
    return {} if up is None else {"up": up.value}


def _compact(matrices: Float[Tensor, "T N N"]) -> list[list[float]] | Iterator[list[list[float]]]:
    """Return one matrix where all are the same, else one after the other.

    Together their numbers would take ten times the memory of the text.
    """
    return matrices[0].tolist() if is_constant(matrices) else (matrix.tolist() for matrix in matrices)


def read_cameras_json(path: Path) -> CaptureCameras:
    """Read the cameras of a run, exactly as `write_cameras_json` wrote them.

    Raises:
        InputError: if the file is missing or its content does not fit together.
    """
    content = read_model(path, _Run)
    number = len(content.times)

    def stacked(name: str) -> Tensor:
        views = [getattr(view, name) for view in content.views.values()]
        if not views or any(view.shape[:-2] not in ((), (number,)) for view in views):
            raise InputError(f"'{path}': {name} is not one matrix, or {number}, for every view", RESTORE_RECORD)
        return torch.stack([view.expand(number, -1, -1) for view in views], dim=1)

    poses = stacked("world_to_camera")
    if not bool((rotation_defect(poses[..., :3, :3]) <= ROTATION_TOLERANCE).all()):
        raise InputError(f"'{path}': a world_to_camera has no rotation", RESTORE_RECORD)
    if not bool((poses[..., :3, 3].abs() <= _MAX_TRANSLATION).all()):
        raise InputError(f"'{path}': a camera is too far from the origin", RESTORE_RECORD)
    starts = tuple(view.start_s for view in content.views.values() if view.start_s is not None)
    if len(starts) not in (0, len(content.views)):
        raise InputError(f"'{path}': start_s is in {len(starts)} of {len(content.views)} views", RESTORE_RECORD)
    return CaptureCameras(
        times=content.times,
        view_names=tuple(content.views),
        image_sizes=tuple((view.image_size[1], view.image_size[0]) for view in content.views.values()),
        world_to_camera=poses,
        intrinsics=stacked("intrinsics"),
        scale=content.scale,
        up=content.up,
        start_ns=content.start_ns,
        starts=starts,
        clock_origin=ClockOrigin.EARLIEST if content.start_ns is None else ClockOrigin.STAMPS,
        map_sizes=tuple(view.map_size[::-1] for view in content.views.values() if view.map_size),
    )
