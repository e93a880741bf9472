"""Clouds and trajectories through Open3D: the same content as without it, verified, and never incomplete; meshes."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from page4d.errors import OutputError
from page4d.formats import open3d as open3d_files
from page4d.formats.open3d import Mesh, encode_trajectory, open3d_cloud, write_cloud, write_mesh, write_trajectory
from page4d.formats.ply import encode_ply, read_ply, read_ply_header
from tests.output.clouds import made_cloud, same
from tests.output.output_scene import export, made_capture


def trajectory(length: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return poses with a rotation, and intrinsics with skew."""
    draw = torch.Generator().manual_seed(1)
    poses = torch.eye(4, dtype=torch.float64).repeat(length, 1, 1)
    poses[:, :3, :3] = torch.linalg.qr(torch.randn(length, 3, 3, generator=draw, dtype=torch.float64))[0]
    poses[:, :3, 3] = torch.randn(length, 3, generator=draw, dtype=torch.float64) / 3
    intrinsics = torch.tensor([[501.3, 0.1, 319.7], [0, 499.9, 240.1], [0, 0, 1]], dtype=torch.float64)
    return poses, intrinsics.repeat(length, 1, 1)


def triangle() -> Mesh:
    return Mesh(
        vertices=np.array([[0, 0, 0.1], [1, 0, 0], [0, 1, 0]], dtype=np.float32),
        rgb=np.array([[255, 0, 128], [1, 2, 3], [254, 127, 0]], dtype=np.uint8),
        triangles=np.array([[0, 1, 2]], dtype=np.int32),
    )


@pytest.mark.parametrize("normals", [False, True])
@pytest.mark.parametrize("velocity", [False, True])
def test_a_cloud_is_written_and_read_by_open3d(tmp_path, open3d: ModuleType, normals: bool, velocity: bool):
    cloud = made_cloud(500, normals=normals, velocity=velocity)
    written = write_cloud(tmp_path / "new" / "x.ply", cloud, ["unit metre"])
    header = read_ply_header(written.path)
    assert header.comments == ("Created by Open3D",)
    assert sorted(header.properties) == sorted(cloud.properties)
    assert velocity or written.path.read_bytes()[header.num_bytes :] == encode_ply(cloud.columns)[-cloud.num_bytes :]
    assert same(read_ply(written.path), cloud)
    assert written.num_bytes == written.path.stat().st_size
    assert [path.name for path in written.path.parent.iterdir()] == ["x.ply"]
    read, converted = open3d.t.io.read_point_cloud(str(written.path)), open3d_cloud(cloud)
    assert set(read.point) == set(converted.point)
    for name in converted.point:
        assert np.array_equal(read.point[name].numpy(), converted.point[name].numpy())
    assert not velocity or np.array_equal(read.point["vz"].numpy()[:, 0], cloud.velocity[:, 2])


@pytest.mark.usefixtures("without_open3d")
def test_clouds_and_trajectories_are_written_without_open3d(tmp_path):
    for cloud in (made_cloud(500), made_cloud(500, normals=True)):
        written = write_cloud(tmp_path / "x.ply", cloud, ["unit metre"]).path
        assert written.read_bytes() == encode_ply(cloud.columns, ["unit metre"])
    poses, intrinsics = trajectory()
    written = write_trajectory(tmp_path / "x.json", poses, intrinsics, (480, 640)).path
    assert written.read_bytes() == encode_trajectory(poses.numpy(), intrinsics.numpy(), (480, 640))


def test_clouds_and_meshes_without_content_are_written(tmp_path):
    assert write_cloud(tmp_path / "x.ply", made_cloud(0)).path.read_bytes() == encode_ply(made_cloud(0).columns)


def test_trajectories_have_the_same_content_with_and_without_open3d(tmp_path, open3d: ModuleType):
    poses, intrinsics = trajectory()
    path = write_trajectory(tmp_path / "x.open3d.json", poses, intrinsics, (480, 640)).path
    assert json.loads(path.read_text()) == json.loads(
        encode_trajectory(poses.numpy(), intrinsics.numpy(), (480, 640))
    )
    again = tmp_path / "again.json"
    open3d.io.write_pinhole_camera_trajectory(str(again), open3d.io.read_pinhole_camera_trajectory(str(path)))
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("number", [0, 1])
def test_open3d_reads_meshes_and_would_write_the_same_content(tmp_path, open3d: ModuleType, number: int):
    mesh = Mesh(triangle().vertices[: 3 * number], triangle().rgb[: 3 * number], triangle().triangles[:number])
    path = write_mesh(tmp_path / "mesh" / "x.ply", mesh, ["offset 1 2 3"]).path
    assert b"comment offset 1 2 3\nelement vertex" in path.read_bytes()
    found = open3d.io.read_triangle_mesh(str(path))
    assert np.array_equal(np.asarray(found.vertices), mesh.vertices)
    assert np.array_equal(np.rint(np.asarray(found.vertex_colors) * 255), mesh.rgb)
    assert np.array_equal(np.asarray(found.triangles), mesh.triangles)
    if number:
        open3d.io.write_triangle_mesh(str(tmp_path / "again.ply"), found)
        again = (tmp_path / "again.ply").read_bytes()
        assert again.replace(b"Created by Open3D", b"offset 1 2 3") == path.read_bytes()


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_an_incomplete_file_of_open3d_is_replaced(tmp_path, open3d: ModuleType, monkeypatch, kept: int):
    """Open3D reports success on a full disk."""
    write = open3d.t.io.write_point_cloud

    def truncated(path: str, cloud: object) -> bool:
        write(path, cloud)
        Path(path).write_bytes(Path(path).read_bytes()[:kept])
        return True

    monkeypatch.setattr(open3d.t.io, "write_point_cloud", truncated)
    cloud = made_cloud(500)
    path = write_cloud(tmp_path / "x.ply", cloud).path
    assert path.read_bytes() == encode_ply(cloud.columns)
    assert [path.name for path in tmp_path.iterdir()] == ["x.ply"]


@pytest.mark.parametrize("cameras_or_bytes", ["cameras", "bytes"])
def test_an_incomplete_trajectory_of_open3d_is_replaced(
    tmp_path, open3d: ModuleType, monkeypatch, cameras_or_bytes: str
):
    write = open3d.io.write_pinhole_camera_trajectory

    def shortened(path: str, cameras: object) -> bool:
        if cameras_or_bytes == "cameras":
            cameras.parameters = cameras.parameters[:-1]
        written = bool(write(path, cameras))
        if cameras_or_bytes == "bytes":
            Path(path).write_bytes(Path(path).read_bytes()[:-40])
        return written

    monkeypatch.setattr(open3d.io, "write_pinhole_camera_trajectory", shortened)
    poses, intrinsics = trajectory()
    path = write_trajectory(tmp_path / "x.open3d.json", poses, intrinsics, (480, 640)).path
    assert path.read_bytes() == encode_trajectory(poses.numpy(), intrinsics.numpy(), (480, 640))


@pytest.mark.usefixtures("open3d")
def test_files_beyond_the_limit_of_the_process_are_errors_and_leave_nothing(tmp_path, file_size_limit):
    one = triangle()
    many = Mesh(one.vertices.repeat(100, 0), one.rgb.repeat(100, 0), one.triangles)
    for write, arguments in (
        (write_cloud, (made_cloud(1000),)),
        (write_trajectory, (*trajectory(30), (480, 640))),
        (write_mesh, (many,)),
    ):
        with pytest.raises(OutputError, match="cannot write to"), file_size_limit(3000):
            write(tmp_path / "out" / write.__name__, *arguments)
    assert not list((tmp_path / "out").iterdir())


def test_the_limit_of_the_process_counts_as_room(tmp_path, file_size_limit):
    with file_size_limit(10_000):
        assert open3d_files.has_room_for(tmp_path / "x", 10_000)
        assert not open3d_files.has_room_for(tmp_path / "x", 10_001)


def test_normals_are_read_only_where_all_three_are_there(tmp_path):
    cloud = made_cloud(7, normals=True)
    (tmp_path / "x.ply").write_bytes(encode_ply(cloud.columns).replace(b"property float nz", b"property float nw"))
    assert read_ply(tmp_path / "x.ply").normals is None


@pytest.mark.usefixtures("open3d")
def test_files_that_need_comments_have_them_with_open3d(tmp_path):
    cloud = made_cloud(50)
    path = write_cloud(tmp_path / "x.ply", cloud, ["offset 1 2 3"], needs_comments=True).path
    assert path.read_bytes() == encode_ply(cloud.columns, ["offset 1 2 3"])


@pytest.mark.usefixtures("open3d")
def test_the_documented_fusion_of_maps_gives_the_true_surfaces(tmp_path, monkeypatch):
    """Of the scene of `made_capture`: a floor at y = 1, a wall at z = 5, and a ball of radius 0.6 in front of it."""
    export(tmp_path / "out", made_capture(1), writers=("depth",))
    text = (Path(__file__).parents[2] / "docs/python_api.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "VoxelBlockGrid" in block)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    vertices = namespace["mesh"].vertex.positions.numpy()
    to_ball = np.abs(np.linalg.norm(vertices - [-0.3, 0.4, 3.2], axis=1) - 0.6)
    errors = np.minimum(np.minimum(np.abs(vertices[:, 1] - 1), np.abs(vertices[:, 2] - 5)), to_ball)
    assert len(vertices) > 10_000
    assert np.median(errors) < 0.005
    assert np.quantile(errors, 0.9) < 0.02
