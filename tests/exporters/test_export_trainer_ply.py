"""Tests of the point clouds of trainers, read by plyfile."""

import io

import numpy as np
import plyfile

from page4d.formats.ply import encode_trainer_ply

XYZ = np.array([[0.1, -2.5, 3.0], [1e-6, 7.0, -1e6]], dtype=np.float32)
RGB = np.array([[0, 127, 255], [3, 2, 1]], dtype=np.uint8)


def vertices(data: bytes) -> plyfile.PlyElement:
    return plyfile.PlyData.read(io.BytesIO(data))["vertex"]


def test_reads_back_exactly():
    found = vertices(encode_trainer_ply(XYZ, RGB))
    assert [entry.name for entry in found.properties] == "x y z nx ny nz red green blue".split()
    assert np.array_equal(np.stack([found[name] for name in "xyz"], axis=1), XYZ)
    assert np.array_equal(np.stack([found[name] for name in ("red", "green", "blue")], axis=1), RGB)
    assert found["red"].dtype == np.uint8
    assert not any(found[name].any() for name in ("nx", "ny", "nz"))


def test_time_is_a_float_property():
    found = vertices(encode_trainer_ply(XYZ.astype(np.float64), RGB, np.array([0.0, 1.25])))
    assert found["time"].dtype == np.float32
    assert found["time"].tolist() == [0.0, 1.25]
    assert np.array_equal(found["x"], XYZ[:, 0])


def test_size_of_a_point():
    sizes = [len(encode_trainer_ply(XYZ[:n], RGB[:n], np.zeros(n))) for n in (1, 2)]
    assert sizes[1] - sizes[0] == 31


def test_no_points():
    assert len(vertices(encode_trainer_ply(XYZ[:0], RGB[:0]))) == 0
