"""PLY files of point clouds, compared with Open3D."""

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.errors import InputError, Page4DError, ShapeError
from page4d.formats.ply import PointCloud, encode_ply, read_ply, read_ply_header
from tests.output.clouds import made_cloud, same


def test_the_bytes_follow_the_documented_layout() -> None:
    cloud = PointCloud(
        xyz=np.array([[1, 2, 3]], dtype=np.float32),
        rgb=np.array([[4, 5, 6]], dtype=np.uint8),
        confidence=np.array([0.5], dtype=np.float32),
        view=np.array([7], dtype=np.uint8),
        dynamic=np.array([1], dtype=np.uint8),
    )
    assert encode_ply(cloud.columns, ["unit metre", "two\nlines é"]) == (
        b"ply\nformat binary_little_endian 1.0\ncomment unit metre\ncomment two lines ?\nelement vertex 1\n"
        b"property float x\nproperty float y\nproperty float z\n"
        b"property uchar red\nproperty uchar green\nproperty uchar blue\n"
        b"property float confidence\nproperty uchar view\nproperty uchar dynamic\nend_header\n"
        b"\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x04\x05\x06\x00\x00\x00\x3f\x07\x01"
    )


@pytest.mark.parametrize("number", [0, 1, 1000])
@pytest.mark.parametrize(
    ("options", "names", "num_bytes"),
    [
        ({}, "", 21),
        ({"normals": True}, "nx ny nz", 33),
        ({"velocity": True}, "vx vy vz vsigma", 37),
        ({"normals": True, "velocity": True}, "nx ny nz vx vy vz vsigma", 49),
    ],
)
def test_clouds_are_read_back_exactly(
    tmp_path: Path, number: int, options: dict[str, bool], names: str, num_bytes: int
) -> None:
    cloud = made_cloud(number, **options)
    path = tmp_path / "x.ply"
    path.write_bytes(encode_ply(cloud.columns, ["time 0.5 seconds"]))
    assert same(read_ply(path), cloud)
    header = read_ply_header(path)
    assert header.comments == ("time 0.5 seconds",)
    assert {*names.split()} <= {name for name, _ in header.properties}
    assert header.num_bytes + num_bytes * number == header.num_bytes + cloud.num_bytes == path.stat().st_size


def test_other_property_orders_and_number_types_are_read(tmp_path: Path) -> None:
    cloud = made_cloud(20)
    kinds = {"float": "<f8", "uchar": "<i4"}
    names = {"float": "double", "uchar": "int"}
    layout = [(name, kinds[kind]) for name, kind in reversed(cloud.properties)] + [("extra", "<u2")]
    vertices = np.zeros(20, dtype=layout)
    for name, values in cloud.columns.items():
        vertices[name] = values
    header = ["ply", "format binary_little_endian 1.0", "element vertex 20"]
    header += [f"property {names[kind]} {name}" for name, kind in reversed(cloud.properties)]
    header += ["property uint16 extra", "end_header\n"]
    (tmp_path / "x.ply").write_bytes("\n".join(header).encode() + vertices.tobytes())
    assert same(read_ply(tmp_path / "x.ply"), cloud)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"ply\n", b"pla\n", "no PLY header"),
        (b"binary_little_endian", b"ascii", "not binary little endian"),
        (b"element vertex 3", b"element vertex x", "vertices alone"),
        (b"element vertex 3", b"element vertex 3\nelement face 0", "vertices alone"),
        (b"property uchar view", b"property list uchar int view", "list properties"),
        (b"property uchar view", b"property uchar other", "its properties are"),
        (b"property uchar view", b"property half view", "its properties are"),
        (b"element vertex 3", b"element vertex 99999999999999", "incomplete"),
    ],
)
def test_other_and_damaged_files_are_refused(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    data = encode_ply(made_cloud(3).columns)
    assert old in data
    (tmp_path / "x.ply").write_bytes(data.replace(old, new))
    with pytest.raises(InputError, match=words):
        read_ply(tmp_path / "x.ply")


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is missing"):
        read_ply(tmp_path / "x.ply")
    with pytest.raises(InputError, match="cannot be read"):
        read_ply(tmp_path)
    (tmp_path / "x.ply").write_bytes(encode_ply(made_cloud(3).columns)[:-1])
    with pytest.raises(InputError, match="incomplete: 306 bytes of 307"):
        read_ply(tmp_path / "x.ply")


TRUNCATED = st.builds(
    lambda cut, extra: encode_ply(made_cloud(2).columns)[:cut] + extra, st.integers(0, 340), st.binary(max_size=40)
)


@given(st.binary(max_size=300) | TRUNCATED)
def test_any_bytes_give_a_cloud_or_a_page4d_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.ply"
    path.write_bytes(data)
    with contextlib.suppress(Page4DError):
        read_ply(path)


def test_a_cloud_of_the_wrong_types_is_refused() -> None:
    cloud = made_cloud(3)
    with pytest.raises(ShapeError, match="confidence is float64"):
        replace(cloud, confidence=cloud.confidence.astype(np.float64))
    with pytest.raises(ShapeError, match="velocity without"):
        replace(made_cloud(3, velocity=True), velocity_sigma=None)
