"""Exactness of all output formats: the ground truth of the sample, read back by independent readers."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import map_coordinates

from page4d.installation import open3d_or_none
from page4d_cli.app import run

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "samples" / "room"
FIRST_FRAME, NUM_FRAMES = 3, 3


@dataclass(frozen=True)
class Result:
    """An output folder and its ground truth; intrinsics have integer pixel centres, as in OpenCV."""

    out: Path
    truth: Path
    names: tuple[str, ...]
    world_to_camera: dict[str, NDArray[np.float64]]
    intrinsics: dict[str, NDArray[np.float64]]

    @property
    def record(self) -> dict:
        return json.loads((self.out / "run.json").read_text())

    def true_depth(self, time: int, view: str) -> NDArray[np.float64]:
        image = cv2.imread(str(self.truth / "depth" / view / f"{time + FIRST_FRAME:06d}.png"), cv2.IMREAD_UNCHANGED)
        assert image.dtype == np.uint16
        return image / 1000.0


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    out, truth = tmp_path_factory.mktemp("sample") / "out", SAMPLE / "truth"
    arguments = ["--calibration", truth / "cameras.json", "--depth", truth / "depth", "--masks", truth / "dynamic"]
    arguments += ["--frames", f"{FIRST_FRAME}:{FIRST_FRAME + NUM_FRAMES}", "--chunk", 2, "--overlap", 1, "--views", 2]
    arguments += ["--quiet", "--no-check", "--edge-angle", 90, *([] if open3d_or_none() is None else ["--mesh"])]
    assert run([str(part) for part in ["reconstruct", SAMPLE, "--out", out, *arguments]]) == 0
    cameras = dict(list(json.loads((truth / "cameras.json").read_text())["cameras"].items())[:2])
    shift = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    return Result(
        out=out,
        truth=truth,
        names=tuple(cameras),
        world_to_camera={name: np.array(camera["world_to_camera"]) for name, camera in cameras.items()},
        intrinsics={name: np.array(camera["intrinsics"]) - shift for name, camera in cameras.items()},
    )


def times_of(result: Result) -> range:
    return range(len(result.record["times"]))


def test_depth_pngs_contain_the_measurements_in_millimetres(result: Result):
    assert result.record["depth_scale"] == 1000
    for time in times_of(result):
        for name in result.names:
            with Image.open(result.out / "depth" / name / f"frame_{time:06d}.png") as image:
                assert image.mode == "I;16"
                levels = np.asarray(image)
            assert np.array_equal(levels, np.round(result.true_depth(time, name) * 1000))


def test_confidence_and_motion_pngs_equal_the_input(result: Result):
    for time in times_of(result):
        for name in result.names:
            has_depth = result.true_depth(time, name) > 0
            confidence = np.asarray(Image.open(result.out / "confidence" / name / f"frame_{time:06d}.png"))
            assert np.array_equal(confidence, np.where(has_depth, 255, 0))
            found = np.asarray(Image.open(result.out / "dynamic" / name / f"frame_{time:06d}.png"))
            true = Image.open(result.truth / "dynamic" / name / f"{time + FIRST_FRAME:06d}.png")
            assert np.array_equal(found, np.asarray(true))


def test_cameras_json_equals_the_calibration(result: Result):
    views = json.loads((result.out / "cameras.json").read_text())["views"]
    assert result.record["unit"] == "metre"
    assert all(chunk["seam"]["residual"] < 1e-6 for chunk in result.record["chunks"][1:])
    for name in result.names:
        assert views[name]["static"] is True
        assert np.allclose(views[name]["world_to_camera"], result.world_to_camera[name], atol=1e-6)
        to_half = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
        assert np.allclose(views[name]["intrinsics"], result.intrinsics[name] + to_half, atol=1e-9)


def test_every_point_projects_onto_its_pixel_and_depth(result: Result, open3d: ModuleType):
    """Project each point into its view with the calibration, and compare with the centre and depth of a pixel."""
    for time in times_of(result):
        cloud = open3d.t.io.read_point_cloud(str(result.out / "points" / f"frame_{time:06d}.ply"))
        xyz = cloud.point.positions.numpy().astype(np.float64)
        views = cloud.point.view.numpy()[:, 0]
        expected = sum(int((result.true_depth(time, name) > 0).sum()) for name in result.names)
        assert len(xyz) == expected
        for view, name in enumerate(result.names):
            pose, depth = result.world_to_camera[name], result.true_depth(time, name)
            points = xyz[views == view] @ pose[:3, :3].T + pose[:3, 3]
            pixels = points @ result.intrinsics[name].T
            pixels = pixels[:, :2] / pixels[:, 2:]
            column, row = np.round(pixels).astype(int).T
            off_center = np.abs(pixels - np.round(pixels))
            assert off_center.max() < 0.01
            assert np.abs(points[:, 2] - depth[row, column]).max() <= 0.001
            assert len(np.unique(row * depth.shape[1] + column)) == int((depth > 0).sum())


def test_the_mesh_lies_on_the_surfaces(result: Result, open3d: ModuleType):
    """Project each vertex into every view: its depth in the view that sees it is that of the pixel."""
    voxel = result.record["mesh_voxel_size"]
    for time in times_of(result)[:2]:
        mesh = open3d.io.read_triangle_mesh(str(result.out / "mesh" / f"frame_{time:06d}.ply"))
        vertices = np.asarray(mesh.vertices)
        error = np.full(len(vertices), np.inf)
        for name in result.names:
            pose, depth = result.world_to_camera[name], result.true_depth(time, name)
            points = vertices @ pose[:3, :3].T + pose[:3, 3]
            pixels = (points @ result.intrinsics[name].T)[:, :2] / points[:, 2:]
            inside = (points[:, 2] > 0) & (pixels > 0).all(1) & (pixels < np.array(depth.shape)[::-1] - 1).all(1)
            column, row = pixels[inside].T
            seen = map_coordinates(depth, (row, column), order=1)
            error[inside] = np.minimum(error[inside], np.abs(seen - points[inside, 2]))
        assert len(vertices) > 100_000
        assert np.median(error) < 0.15 * voxel
        assert np.quantile(error, 0.9) < voxel
        assert len(np.unique(np.asarray(mesh.vertex_colors), axis=0)) > 1000


def test_preview_pictures_are_not_uniform(result: Result):
    for name in ("contact_sheet.png", "cloud.png"):
        assert cv2.imread(str(result.out / "preview" / name)).std() > 10
