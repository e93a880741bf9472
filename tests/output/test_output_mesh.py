"""Meshes fused from exact depth maps: on the surfaces, coloured, reproducible, and limited in memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from page4d.errors import UsageError
from page4d.formats.open3d import Mesh, fuse_mesh
from page4d.options import PointOptions
from page4d.output.mesh import FOOTPRINTS_PER_VOXEL, check_mesh_voxel, choose_mesh_voxel, fused_mesh
from page4d.records import Predictions
from tests.output.output_scene import made_capture

VOXEL = 0.04
BALL = np.array([-0.3, 0.4, 3.2])
ALL = PointOptions(edge_angle_deg=90)

pytestmark = pytest.mark.usefixtures("open3d")


@pytest.fixture(scope="module")
def capture() -> Predictions:
    return made_capture(1, 224)


@pytest.fixture(scope="module")
def mesh(capture: Predictions) -> Mesh:
    return fused_mesh(capture, ALL, VOXEL)


def distance_to_surfaces(vertices: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the distance to the nearest of floor, wall and ball."""
    points = vertices.astype(np.float64)
    ball = np.linalg.norm(points - BALL, axis=1) - 0.6
    return np.abs(np.stack([points[:, 1] - 1, points[:, 2] - 5, ball])).min(axis=0)


def test_vertices_lie_on_the_surfaces(mesh: Mesh) -> None:
    distance = distance_to_surfaces(mesh.vertices)
    assert len(mesh.vertices) > 10_000
    assert np.median(distance) < 0.05 * VOXEL
    assert np.quantile(distance, 0.9) < 0.5 * VOXEL


def test_a_shift_by_half_a_pixel_is_seen(capture: Predictions, mesh: Mesh) -> None:
    """Pixel centres at integers instead of 0.5 would displace the surfaces."""
    intrinsics = capture.cameras.intrinsics.clone()
    intrinsics[..., :2, 2] -= 0.5
    shifted = fused_mesh(replace(capture, cameras=replace(capture.cameras, intrinsics=intrinsics)), ALL, VOXEL)
    errors = [np.median(distance_to_surfaces(found.vertices)) for found in (mesh, shifted)]
    assert errors[1] > 3 * errors[0]


def test_faces_point_to_the_cameras(mesh: Mesh) -> None:
    first, second, third = (mesh.vertices[mesh.triangles[:, corner]].astype(np.float64) for corner in range(3))
    normals = np.cross(second - first, third - first)
    on_wall = (np.abs(first[:, 2] - 5) < VOXEL / 2) & (np.linalg.norm(normals, axis=1) > 0)
    assert on_wall.sum() > 1000
    assert (normals[on_wall, 2] < 0).mean() > 0.99


def test_colours_are_those_of_the_surfaces(mesh: Mesh) -> None:
    points = mesh.vertices.astype(np.float64)
    on_ball = np.linalg.norm(points - BALL, axis=1) < 0.6 + VOXEL / 4
    on_wall = np.abs(points[:, 2] - 5) < VOXEL / 4
    red, blue = mesh.rgb[:, 0].astype(int), mesh.rgb[:, 2].astype(int)
    assert (red > blue)[on_ball].mean() > 0.95
    assert (red < blue)[on_wall].mean() > 0.95


def test_two_fusions_give_the_same_bytes(capture: Predictions, mesh: Mesh) -> None:
    again = fused_mesh(capture, ALL, VOXEL)
    for name in ("vertices", "rgb", "triangles"):
        assert getattr(again, name).tobytes() == getattr(mesh, name).tobytes()


def test_the_filters_of_points_apply_to_the_mesh(capture: Predictions, mesh: Mesh) -> None:
    near = fused_mesh(capture, replace(ALL, min_confidence=0.6), VOXEL)  # confidence is 1 - depth / 12
    kept = [torch.linalg.inv(pose) for pose in capture.cameras.world_to_camera[0, 0].double()]
    distances = [np.linalg.norm(near.vertices - center[:3, 3].numpy(), axis=1) for center in kept]
    assert 0 < len(near.vertices) < len(mesh.vertices)
    assert np.min(distances, axis=0).max() < 4.8 * 1.4


def test_the_mesh_of_moving_parts_is_the_ball_and_that_of_the_background_is_the_rest(
    capture: Predictions, mesh: Mesh
) -> None:
    background = replace(capture, valid=capture.valid & (capture.dynamic < 0.5), dynamic=None)
    moving, still = fused_mesh(capture, ALL, VOXEL, moving_only=True), fused_mesh(background, ALL, VOXEL)
    off_ball = [np.abs(np.linalg.norm(part.vertices - BALL, axis=1) - 0.6) for part in (moving, still, mesh)]
    assert np.quantile(off_ball[0], 0.99) < VOXEL
    assert (off_ball[1] < VOXEL / 2).mean() < 0.1 * (off_ball[2] < VOXEL / 2).mean()
    assert len(moving.vertices) + len(still.vertices) == pytest.approx(len(mesh.vertices), rel=0.1)
    nothing = fused_mesh(replace(capture, dynamic=None), ALL, VOXEL, moving_only=True)
    assert (len(nothing.vertices), len(nothing.triangles)) == (0, 0)


def test_depth_maps_without_depth_give_an_empty_mesh(capture: Predictions) -> None:
    empty = fused_mesh(replace(capture, depth=torch.zeros_like(capture.depth)), ALL, VOXEL)
    assert (len(empty.vertices), len(empty.triangles)) == (0, 0)
    assert len(fuse_mesh([], VOXEL).vertices) == 0


def test_narrow_surfaces_are_in_the_mesh_wherever_their_pixels_are(capture: Predictions) -> None:
    """Open3D finds blocks of voxels by one pixel of 4x4; without depth there it reports an error."""
    columns, numbers = torch.arange(capture.depth.shape[-1]), []
    for offset in range(4):
        is_kept = (columns % 16 >= offset) & (columns % 16 < offset + 2)
        strips = replace(capture, depth=torch.where(is_kept, capture.depth, 0.0))
        numbers.append(len(fused_mesh(strips, ALL, VOXEL / 2).vertices))
    assert min(numbers) > 20_000
    assert min(numbers) > 0.95 * max(numbers)


def test_the_voxel_size_follows_the_resolution(capture: Predictions) -> None:
    coarse, fine = choose_mesh_voxel(made_capture(1, 112)), choose_mesh_voxel(capture)
    assert coarse / fine == pytest.approx(2, rel=0.02)
    constant = replace(capture, depth=torch.full_like(capture.depth, 3.0))
    focals = constant.cameras.intrinsics[0, 0, :, 0, 0]
    footprint = choose_mesh_voxel(constant) / FOOTPRINTS_PER_VOXEL
    assert 3 / (1.01 * focals.max()) <= footprint <= 3 / focals.min()
    assert choose_mesh_voxel(replace(capture, depth=torch.zeros_like(capture.depth))) == 1.0


def test_surfaces_too_far_for_the_voxels_are_left_out(capture: Predictions) -> None:
    far = capture.depth.clone()
    far[0, 0, :, :20] = 1000.0
    found = fused_mesh(replace(capture, depth=far), ALL, VOXEL)
    assert len(found.vertices) > 1000
    assert np.abs(found.vertices).max() < 20


def test_voxels_that_would_fill_the_memory_are_refused_with_a_size_that_fits(capture: Predictions) -> None:
    check_mesh_voxel(capture, VOXEL, 10**9)
    with pytest.raises(
        UsageError, match=r"mesh with voxels of 0\.04 needs about .* GB, 0\.0 GB are available"
    ) as caught:
        check_mesh_voxel(capture, VOXEL, 10**6)
    size = float(caught.value.hint.removeprefix("use mesh_voxel="))
    check_mesh_voxel(capture, size * 1.05, 10**6)


def test_voxels_as_large_as_the_scene_are_refused(capture: Predictions) -> None:
    with pytest.raises(UsageError, match="is too large for images that are") as caught:
        check_mesh_voxel(capture, 1e9, 10**9)
    check_mesh_voxel(capture, float(caught.value.hint.removeprefix("use mesh_voxel=")), 10**12)


def test_voxels_that_are_too_small_for_the_images_are_refused(capture: Predictions) -> None:
    width = choose_mesh_voxel(capture) / FOOTPRINTS_PER_VOXEL
    check_mesh_voxel(capture, width, 10**9)
    with pytest.raises(UsageError, match="is too small for images whose pixels are") as caught:
        check_mesh_voxel(capture, width / 3, 10**12)
    hint, _ = caught.value.hint.removeprefix("use mesh_voxel=").split(",")
    check_mesh_voxel(capture, float(hint), 10**9)
