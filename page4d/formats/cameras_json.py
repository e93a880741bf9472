"""`cameras.json` of page4d: the output of a run (`views`) or a plain ground truth (`cameras`)."""

import re
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.errors import InputError
from page4d.formats.build import FileSchema, Matrix3, Matrix4, Side, make_camera
from page4d.formats.camera_model import CORRECTION_HINT, CalibratedCamera, Calibration
from page4d.formats.files import check_count, error_context, unreadable, validated
from page4d.geometry.distortion import Distortion, LensModel

_PixelCenter = Annotated[float, Field(ge=0.0, le=1.0)]

_MAX_DRIFT = 1e-6
"""Relative change over time up to which intrinsics are considered constant."""


class _Distortion(FileSchema):
    model: Annotated[LensModel, Field(strict=False)]
    coefficients: list[float]

    def record(self) -> Distortion:
        return Distortion(model=self.model, coefficients=tuple(self.coefficients))


class _TruthCamera(FileSchema):
    world_to_camera: Matrix4 | Annotated[list[Matrix4], Field(min_length=1)]
    intrinsics: Matrix3
    width: Side
    height: Side
    distortion: _Distortion | None = None


class _Truth(FileSchema):
    cameras: dict[str, dict[str, object]]
    convention: str = ""
    pixel_center: _PixelCenter | None = None
    scale: Annotated[Scale | None, Field(strict=False)] = None
    times: list[float] = Field(default=[])


class _OutputView(FileSchema):
    image_size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    static: bool = True
    intrinsics: Matrix3 | Annotated[list[Matrix3], Field(min_length=1)]
    world_to_camera: Matrix4 | Annotated[list[Matrix4], Field(min_length=1)]
    distortion: _Distortion | None = None


class _Conventions(FileSchema):
    pixel_center: str | _PixelCenter = PIXEL_CENTER


class _Output(FileSchema):
    views: dict[str, dict[str, object]]
    conventions: _Conventions = _Conventions()
    pixel_center: _PixelCenter | None = None
    scale: Annotated[Scale, Field(strict=False)] = Scale.ARBITRARY
    times: list[float] = Field(default=[])


def read_page4d_json(path: Path, content: dict[str, object]) -> Calibration:
    """Read the content of a `cameras.json`: the output of a page4d run, or a plain ground truth.

    Raises:
        InputError: if it is neither, or a camera is invalid.
    """
    if "views" in content:
        return _read_output(path, validated(_Output, content, path.name))
    if "cameras" in content:
        return _read_truth(path, validated(_Truth, content, path.name))
    raise unreadable(path, "it has neither the key 'views' nor 'cameras'")


def _read_truth(path: Path, truth: _Truth) -> Calibration:
    check_count(path, len(truth.cameras))
    notices: tuple[str, ...] = ()
    center = truth.pixel_center
    if center is None:
        center = _declared_center(truth.convention)
    if center is None:
        center = PIXEL_CENTER
        notices = (f"{path.name} declares no pixel centre; (0.5, 0.5) is assumed for the top-left pixel",)
    metric = truth.scale is Scale.METRIC or (
        truth.scale is None and bool(re.search(r"\bmet(re|er)s\b", truth.convention))
    )
    cameras = []
    for name, raw in truth.cameras.items():
        camera = validated(_TruthCamera, raw, path.name, name)
        poses = torch.tensor(camera.world_to_camera, dtype=torch.float64)
        with error_context(path.name, name):
            distortion = None if camera.distortion is None else camera.distortion.record()
            if poses.ndim == 3 and truth.times and len(truth.times) != len(poses):
                raise InputError(f"{len(poses)} poses for {len(truth.times)} times", CORRECTION_HINT)
        cameras.append(
            make_camera(
                path.name,
                name,
                intrinsics=torch.tensor(camera.intrinsics, dtype=torch.float64),
                world_to_camera=poses,
                image_size=(camera.height, camera.width),
                distortion=distortion,
                times=tuple(truth.times) if poses.ndim == 3 and truth.times else None,
                pixel_center=center,
            )
        )
    return Calibration(
        path=path,
        scale=Scale.METRIC if metric else Scale.ARBITRARY,
        cameras=tuple(cameras),
        file_unit="m" if metric else None,
        notices=notices,
    )


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
    cameras = []
    notices: list[str] = []
    for name, raw in output.views.items():
        view = validated(_OutputView, raw, path.name, name)
        camera, notice = _output_camera(path.name, name, view, output.times, center)
        cameras.append(camera)
        notices += [] if notice is None else [notice]
    metric = output.scale is Scale.METRIC
    return Calibration(
        path=path,
        scale=output.scale,
        cameras=tuple(cameras),
        file_unit="m" if metric else None,
        notices=tuple(notices),
    )


def _output_camera(
    label: str, name: str, view: _OutputView, times: list[float], pixel_center: float
) -> tuple[CalibratedCamera, str | None]:
    """Build the camera of a view, and a notice if its intrinsics vary over time."""
    poses = torch.tensor(view.world_to_camera, dtype=torch.float64)
    over_time = torch.tensor(view.intrinsics, dtype=torch.float64).reshape(-1, 3, 3)
    with error_context(label, name):
        if poses.ndim == 3 and len(poses) == 1:
            poses = poses[0]
        if poses.ndim == 3 and len(times) != len(poses):
            raise InputError(f"{len(poses)} poses for {len(times)} times", CORRECTION_HINT)
        if len(over_time) > 1 and len(times) != len(over_time):
            raise InputError(f"{len(over_time)} intrinsics for {len(times)} times", CORRECTION_HINT)
        distortion = None if view.distortion is None else view.distortion.record()
    intrinsics, notice = _median_intrinsics(label, name, over_time)
    camera = make_camera(
        label,
        name,
        intrinsics=intrinsics,
        world_to_camera=poses,
        image_size=(view.image_size[1], view.image_size[0]),
        distortion=distortion,
        times=None if poses.ndim == 2 else tuple(times),
        pixel_center=pixel_center,
    )
    return camera, notice


def _median_intrinsics(
    label: str, name: str, over_time: Float[Tensor, "T 3 3"]
) -> tuple[Float[Tensor, "3 3"], str | None]:
    """Return the median over time, and a notice if the intrinsics vary, as predicted ones may."""
    change = float((over_time - over_time[0]).abs().max())
    if change <= _MAX_DRIFT * (1 + float(over_time[0].abs().max())):
        return over_time[0], None
    text = f"{label}: camera {name}: the intrinsics vary by up to {change:.3g} px over time; their median is used"
    return over_time.median(dim=0).values, text
