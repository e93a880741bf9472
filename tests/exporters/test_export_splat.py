"""Splats, read back by independent readers, and a signal during their search for neighbours."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from page4d.errors import Stopped
from page4d.exporters.export import export
from page4d.exporters.splat import splat_radii
from page4d_cli.stopping import StopRequest, raising_stop
from tests.exporters.capture import Capture
from tests.forks import forked

plyfile = pytest.importorskip("plyfile")

NAMES = "x y z nx ny nz f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3".split()


def columns(path: Path, names: str) -> NDArray[Any]:
    vertices = plyfile.PlyData.read(str(path))["vertex"]
    return np.stack([vertices[name] for name in names.split()], axis=1)


def test_a_file_per_instant_with_the_fields_of_splats(capture: Capture, tmp_path: Path) -> None:
    done = export(capture.folder, "splat", tmp_path / "splat")[0]
    paths = sorted((tmp_path / "splat").glob("*.ply"))
    assert [path.name for path in paths] == [f"frame_{place:06d}.ply" for place in range(4)]
    assert "splat" in done.next_step
    for place, path in enumerate(paths):
        properties = plyfile.PlyData.read(str(path))["vertex"].properties
        assert [each.name for each in properties] == NAMES
        assert {each.val_dtype for each in properties} == {"f4"}
        cloud = capture.output.points(place)
        np.testing.assert_array_equal(columns(path, "x y z"), cloud.xyz)
        np.testing.assert_array_equal(columns(path, "rot_0 rot_1 rot_2 rot_3"), [[1, 0, 0, 0]] * cloud.num_points)
        colors = 0.5 + 0.28209479177387814 * columns(path, "f_dc_0 f_dc_1 f_dc_2")
        np.testing.assert_allclose(colors, cloud.rgb / 255, atol=1e-6)
        opacity = 1 / (1 + np.exp(-columns(path, "opacity")[:, 0].astype(float)))
        np.testing.assert_allclose(opacity, cloud.confidence.clip(0.02, 0.98), atol=1e-6)


def test_radii_are_of_the_spacing(capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "splat", tmp_path / "splat", max_points=500, instants=(1, 2, 1))
    path = tmp_path / "splat" / "frame_000000.ply"
    xyz = columns(path, "x y z").astype(float)
    assert len(xyz) == 500
    distances = np.sort(np.linalg.norm(xyz[:, None] - xyz, axis=2), axis=1)
    for scale in columns(path, "scale_0 scale_1 scale_2").T:
        np.testing.assert_allclose(np.exp(scale), 0.7 * distances[:, 3], rtol=1e-5)


@pytest.mark.parametrize(
    ("xyz", "expected"),
    [
        ([], []),
        ([[0, 0, 5]], [0.005]),
        ([[0, 0, 0]], [1e-6]),
        ([[0, 0, 0], [0, 0, 2]], [1.4, 1.4]),
        ([[0, 0, 0], [0, 0, 1], [0, 0, 3]], [2.1, 1.4, 2.1]),
        ([[1, 1, 1]] * 6, [7e-10] * 6),
        ([[0, 0, 0]] * 4 + [[0, 0, 2], [0, 2, 0], [2, 0, 0], [2, 2, 0], [2, 2, 2]], None),
    ],
)
def test_radii_of_few_points_and_of_points_at_one_place(xyz: list[Any], expected: list[float] | None) -> None:
    radii = splat_radii(np.array(xyz, dtype=np.float32).reshape(-1, 3))
    assert np.isfinite(np.log(radii)).all()
    if expected is not None:
        np.testing.assert_allclose(radii, expected, rtol=1e-6)
    else:
        np.testing.assert_allclose(radii[:4], 0.7 * 2e-3)


def stopped() -> None:
    """Print how many searches a signal ended."""
    xyz = np.random.default_rng(0).random((40000, 3)).astype(np.float32)
    number = 0
    for delay in np.linspace(0.02, 0.14, 7):
        try:
            with raising_stop(StopRequest()):
                timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                splat_radii(xyz)
                timer.join()
                signal.pause()
        except Stopped:
            number += 1
    print(number)


def test_a_signal_ends_a_search_without_a_crash(tmp_path: Path) -> None:
    code, out, err = forked(tmp_path, stopped).ended()
    assert (code, out) == (0, "7\n"), err
