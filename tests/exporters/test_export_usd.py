"""USD: cameras, points and times as the USD library reads them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.conventions import Scale
from page4d.errors import OutputError
from page4d.exporters.export import export
from page4d.exporters.formats import find_format
from page4d.exporters.job import ExportJob
from page4d.exporters.plan import plan_job
from page4d.exporters.points import point_spacing
from page4d.exporters.usd import prim_names, write
from page4d.options import ExportSettings
from tests.exporters.capture import Capture, make_capture, project

pytest.importorskip("pxr")

LARGEST_ERROR_PX = 1e-3
COLORS = "primvars:displayColor"
CHANGING = ("points", "extent", COLORS, "primvars:confidence", "primvars:dynamic", "primvars:view")


@dataclass
class Exported:
    """A stage that was exported, read by the USD library."""

    folder: Path
    stage: Any

    @property
    def points(self) -> Any:
        return self.stage.GetPrimAtPath("/World/points")

    def camera(self, name: str) -> Any:
        from pxr import UsdGeom

        return UsdGeom.Camera(self.stage.GetPrimAtPath(f"/World/cameras/{name}"))

    def values(self, name: str, code: float) -> NDArray[Any]:
        """Return the values of an attribute of the points at a time code."""
        return np.array(self.points.GetAttribute(name).Get(code))

    def world(self, xyz: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return points [N, 3] of the prim in the world of the stage."""
        from pxr import UsdGeom

        matrix = np.array(UsdGeom.Xformable(self.points).ComputeLocalToWorldTransform(0.0))
        return xyz.astype(np.float64) @ matrix[:3, :3] + matrix[3, :3]

    def pixels(self, xyz: NDArray[np.float32], name: str, code: float) -> NDArray[np.float64]:
        """Project points [N, 3] of the prim by the frustum of a camera, to pixels of its picture."""
        camera = self.camera(name)
        frustum = camera.GetCamera(code).frustum
        matrix = np.array(frustum.ComputeViewMatrix() * frustum.ComputeProjectionMatrix())
        world = self.world(xyz)
        clip = np.concatenate([world, np.ones((len(world), 1))], axis=1) @ matrix
        device = clip[:, :2] / clip[:, 3:]
        size = np.array(camera.GetPrim().GetAttribute("userProperties:imageSize").Get())
        return (device * [1.0, -1.0] + 1.0) / 2.0 * size


def exported(capture: Capture, folder: Path, **options: Any) -> Exported:
    from pxr import Usd

    export(capture.folder, "usd", folder, **options)
    (scene,) = folder.glob("scene.usd?")
    return Exported(folder, Usd.Stage.Open(str(scene)))


def remarks_of(result: Exported) -> str:
    return " ".join(json.loads((result.folder / "export.json").read_text())["remarks"])


def job_of(capture: Capture, **options: Any) -> ExportJob:
    return plan_job(capture.output, find_format("usd"), ExportSettings(**options), None)


def codes_of(attribute: Any) -> list[float]:
    return attribute.GetTimeSamples()


def largest_error(result: Exported, capture: Capture, place: int, view: int, other: int | None = None) -> float:
    """Return the largest distance in px between our projection of a view's points and that of USD."""
    cloud = capture.output.points(place)
    xyz = cloud.xyz[cloud.view == view]
    expected, _ = project(xyz, capture.intrinsics[place, view], capture.world_to_camera[place, view])
    name = capture.predictions.view_names[view if other is None else other]
    found = result.pixels(result.values("points", place)[: len(cloud.view)][cloud.view == view], name, place)
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
def test_frustums_project_points_to_our_pixels(moving_capture: Capture, tmp_path, split: bool):
    result = exported(moving_capture, tmp_path / "usd", split=split)
    for place in range(4):
        for view in range(4):
            assert largest_error(result, moving_capture, place, view) < LARGEST_ERROR_PX
            assert largest_error(result, moving_capture, place, view, other=(view + 1) % 4) > 1.0


@pytest.mark.parametrize("up", [axis for axis in UpAxis if axis is not UpAxis.AUTO])
def test_the_root_turns_the_axis_that_points_up_to_y(capture: Capture, tmp_path, up: UpAxis):
    result = exported(capture, tmp_path / "usd", up=up, instants=(0, 1, 1))
    axis = np.zeros((1, 3), dtype=np.float32)
    axis[0, "xyz".index(up[-1])] = -1 if up.startswith("-") else 1
    np.testing.assert_array_equal(result.world(axis), [[0, 1, 0]])
    corners = result.world(np.eye(3, dtype=np.float32))
    assert np.linalg.det(corners) == pytest.approx(1.0)
    assert largest_error(result, capture, 0, 2) < LARGEST_ERROR_PX
    assert (f"/World turns {up} to y" in remarks_of(result)) == (up is not UpAxis.Y)


@pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
def test_points_have_the_values_of_the_clouds(capture: Capture, tmp_path, split: bool):
    result = exported(capture, tmp_path / "usd", split=split)
    assert codes_of(result.points.GetAttribute("points")) == [0.0, 1.0, 2.0, 3.0]
    assert not result.points.GetAttribute("velocities").IsAuthored()
    assert not result.stage.GetPrimAtPath("/World/tracks")
    (width,) = result.values("widths", 0)
    assert width == pytest.approx(point_spacing(capture.output.points(0).xyz))
    for place in range(4):
        cloud = capture.output.points(place)
        number = cloud.num_points
        np.testing.assert_array_equal(result.values("points", place)[:number], cloud.xyz)
        np.testing.assert_array_equal(result.values("primvars:confidence", place)[:number], cloud.confidence)
        np.testing.assert_array_equal(result.values("primvars:view", place)[:number], cloud.view)
        np.testing.assert_array_equal(result.values("primvars:dynamic", place)[:number], cloud.dynamic)
        linear = result.values(COLORS, place)[:number]
        encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
        np.testing.assert_allclose(encoded * 255, cloud.rgb, atol=0.01)
        lower, upper = result.values("extent", place)
        np.testing.assert_allclose(lower, cloud.xyz.min(axis=0) - width / 2, atol=1e-6)
        np.testing.assert_allclose(upper, cloud.xyz.max(axis=0) + width / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("split", "unsaved"),
    [(True, 1 << 30), (False, 1), (False, 5_000_000)],
    ids=["clips", "saved after every instant", "saved after some instants"],
)
def test_files_in_pieces_have_the_values_of_the_single_file(
    capture: Capture, tmp_path, monkeypatch, split: bool, unsaved: int
):
    single = exported(capture, tmp_path / "single")
    monkeypatch.setattr("page4d.exporters.usd._UNSAVED_BYTES", unsaved)
    pieces = exported(capture, tmp_path / "pieces", split=split)
    for name in CHANGING:
        for code in (-1.0, 0.0, 0.4, 1.0, 1.9, 2.0, 3.0, 9.0):
            np.testing.assert_array_equal(pieces.values(name, code), single.values(name, code))
    properties = set(single.points.GetPropertyNames())
    authored = properties & set(single.points.GetAuthoredPropertyNames())
    assert set(pieces.points.GetAuthoredPropertyNames()) == authored


def test_a_missing_clip_costs_one_instant(capture: Capture, tmp_path):
    from pxr import Usd

    export(capture.folder, "usd", tmp_path / "usd", split=True)
    (tmp_path / "usd/points/frame_000001.usdc").unlink()
    result = Exported(tmp_path / "usd", Usd.Stage.Open(str(tmp_path / "usd/scene.usda")))
    assert result.points.GetAttribute("points").Get(1.0) is None
    for place in (0, 2, 3):
        xyz = capture.output.points(place).xyz
        np.testing.assert_array_equal(result.values("points", place)[: len(xyz)], xyz)


def test_a_clip_opens_alone(capture: Capture, tmp_path):
    from pxr import Usd, UsdGeom

    export(capture.folder, "usd", tmp_path / "usd", split=True, instants=(1, 4, 2))
    assert sorted(path.name for path in (tmp_path / "usd/points").glob("*.usdc")) == [
        "frame_000001.usdc",
        "frame_000003.usdc",
    ]
    stage = Usd.Stage.Open(str(tmp_path / "usd/points/frame_000003.usdc"))
    result = Exported(tmp_path, stage)
    assert stage.GetStartTimeCode() == stage.GetEndTimeCode() == 1.0
    assert UsdGeom.GetStageUpAxis(stage) == "Y"
    xyz = capture.output.points(3).xyz
    np.testing.assert_array_equal(result.values("points", 1)[: len(xyz)], xyz)
    np.testing.assert_array_equal(result.world(np.float32([[0, -1, 0]])), [[0, 1, 0]])


@pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
def test_instants_of_equal_size_are_not_blended(capture: Capture, tmp_path, split: bool):
    result = exported(capture, tmp_path / "usd", split=split, max_points=60)
    for place in range(3):
        here, between = result.values("points", place), result.values("points", place + 0.5)
        np.testing.assert_array_equal(between, here)
        assert len(np.unique(here, axis=0)) == 60
        assert len(here) - 60 == place % 2


def test_uneven_instants_have_fractions_of_frames(tmp_path):
    capture = make_capture(tmp_path, numbers=(0, 2, 4, 5, 8), size=(30, 40))
    result = exported(capture, tmp_path / "usd", instants=(1, None, 1))
    assert codes_of(result.points.GetAttribute("points")) == [0.0, 1.0, 1.5, 3.0]
    stage = result.stage
    assert (stage.GetTimeCodesPerSecond(), stage.GetFramesPerSecond()) == (6.0, 6.0)
    assert (stage.GetStartTimeCode(), stage.GetEndTimeCode()) == (0.0, 3.0)
    assert stage.GetRootLayer().customLayerData["page4d"]["firstSecond"] == 2 / 12


def test_only_what_changes_has_time_samples(capture: Capture, moving_capture: Capture, tmp_path):
    still, moving = exported(capture, tmp_path / "still"), exported(moving_capture, tmp_path / "moving")
    changing = ("xformOp:transform", "focalLength")
    constant = ("horizontalAperture", "clippingRange")
    for name in (*changing, *constant):
        assert codes_of(still.camera("cam02").GetPrim().GetAttribute(name)) == []
    for name in changing:
        assert codes_of(moving.camera("cam02").GetPrim().GetAttribute(name)) == [0.0, 1.0, 2.0, 3.0]
    for name in constant:
        assert codes_of(moving.camera("cam02").GetPrim().GetAttribute(name)) == []


def test_pixels_have_the_aspect_of_the_focal_lengths(capture: Capture, tmp_path):
    result = exported(capture, tmp_path / "usd", instants=(0, 1, 1))
    for view, name in enumerate(capture.predictions.view_names):
        x, y = result.camera(name).GetPrim().GetAttribute("userProperties:pixelAspect").Get()
        assert min(x, y) == 1.0
        assert x / y == pytest.approx(capture.intrinsics[0, view, 1, 1] / capture.intrinsics[0, view, 0, 0])


def test_the_clipping_range_contains_the_points_of_the_view(moving_capture: Capture, tmp_path):
    result = exported(moving_capture, tmp_path / "usd")
    for view, name in enumerate(moving_capture.predictions.view_names):
        near, far = result.camera(name).GetClippingRangeAttr().Get()
        for place in range(4):
            cloud = moving_capture.output.points(place)
            _, z = project(cloud.xyz, np.eye(3), moving_capture.world_to_camera[place, view])
            assert near < z[cloud.view == view].min()
            assert z.max() < far < 10 * z.max()


def test_metadata_and_scale(tmp_path):
    from pxr import UsdGeom

    names = ("cam-1", "cam_1")
    capture = make_capture(tmp_path, names=names, size=(30, 40), scale=Scale.ARBITRARY)
    result = exported(capture, tmp_path / "usd", scale=10.0)
    stage = result.stage
    assert stage.GetDefaultPrim().GetPath() == "/World"
    assert (UsdGeom.GetStageUpAxis(stage), UsdGeom.GetStageMetersPerUnit(stage)) == ("Y", 1.0)
    data = stage.GetRootLayer().customLayerData["page4d"]
    assert (data["unit"], data["scale"]) == ("arbitrary", 10.0)
    for view, prim in enumerate(("cam_1", "cam_1_2")):
        assert result.camera(prim).GetPrim().GetAttribute("userProperties:view").Get() == names[view]
        cloud = capture.output.points(1)
        np.testing.assert_allclose(result.values("points", 1), 10 * cloud.xyz, rtol=1e-6)
        expected, _ = project(cloud.xyz, capture.intrinsics[1, view], capture.world_to_camera[1, view])
        np.testing.assert_allclose(result.pixels(10 * cloud.xyz, prim, 1), expected, atol=LARGEST_ERROR_PX)


def test_names_of_prims():
    names = ["cam01", "1", "a b", "a-b", "a_b", "a_b_2", "Küche", "左", "右"]
    assert prim_names(names) == ["cam01", "_1", "a_b", "a_b_2", "a_b_3", "a_b_2_2", "K_che", "_", "__2"]


@pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
@pytest.mark.parametrize("name", ["moving_capture", "fast_capture"])
def test_the_validators_of_usd_find_nothing(name: str, request, tmp_path, split: bool):
    validation = pytest.importorskip("pxr.UsdValidation")
    from pxr import Tf, Usd

    export(request.getfixturevalue(name).folder, "usd", tmp_path / "usd", split=split)
    try:
        validators = validation.ValidationRegistry().GetOrLoadAllValidators()
    except Tf.ErrorException:
        pytest.skip("this release of usd-core has no validators")
    assert validators
    context = validation.ValidationContext(validators)
    for path in (tmp_path / "usd").rglob("*.usd?"):
        assert [error.GetErrorAsString() for error in context.Validate(Usd.Stage.Open(str(path)))] == []


@pytest.mark.parametrize("unsaved", [1, 1 << 30], ids=["after some instants", "at the end"])
def test_a_full_disk_is_an_error_of_the_output(
    capture: Capture, tmp_path, monkeypatch, unsaved: int, file_size_limit
):
    monkeypatch.setattr("page4d.exporters.usd._UNSAVED_BYTES", unsaved)
    message = r"scene.usdc': the file is larger than this process may write"
    with pytest.raises(OutputError, match=message), file_size_limit(5_000_000):
        export(capture.folder, "usd", tmp_path / "usd")
    assert list(tmp_path.iterdir()) == []
    export(capture.folder, "usd", tmp_path / "usd")


def test_a_file_in_place_of_the_folder_is_an_error_of_the_output(capture: Capture, tmp_path):
    (tmp_path / "file").write_text("")
    for split in (False, True):
        with pytest.raises(OutputError, match=r"cannot write to .*file"):
            write(job_of(capture, split=split), tmp_path / "file")


def test_the_next_step_names_the_file_and_the_frame_rate(capture: Capture, tmp_path):
    for split, name in ((False, "scene.usdc"), (True, "scene.usda")):
        job = job_of(capture, split=split)
        text = job.format.code.next_step(job, tmp_path)
        assert str(tmp_path / name) in text
        assert "12 fps" in text
