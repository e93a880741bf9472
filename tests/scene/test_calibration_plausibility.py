"""Lenses and rigs: what no camera has is refused, what few have is reported, and real cameras pass."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch

from page4d.errors import InputError
from page4d.formats.build import brown_conrady, fisheye, pinhole
from page4d.formats.calibrations import read_calibration
from page4d.formats.camera_model import CalibratedCamera, camera_distances, check_lens, check_rig, world_offset
from page4d.geometry.distortion import Distortion
from tests.scene.calibration_writers import WRITERS, RigCamera, make_rig

HD = (1080, 1920)


def lens(
    focal: float, center: tuple[float, float] = (960.0, 540.0), focal_y: float | None = None, skew: float = 0.0
) -> torch.Tensor:
    return pinhole(focal, focal if focal_y is None else focal_y, *center, skew)


REAL: dict[str, tuple[torch.Tensor, tuple[int, int] | None, Distortion | None]] = {
    "phone": (lens(1500), HD, brown_conrady((0.21, -0.9, 0.0, 0.0, 1.1))),
    "webcam": (pinhole(620, 620, 318, 243), (480, 640), brown_conrady((-0.42, 0.25, 0.001, -0.001, -0.09))),
    "GoPro, Brown-Conrady": (lens(890), HD, brown_conrady((-0.27, 0.09, 0.0, 0.0, -0.013))),
    "GoPro, fisheye": (lens(860), HD, fisheye((0.04, 0.016, -0.011, 0.003))),
    "fisheye of 200 degrees": (lens(310), HD, fisheye((0.01, -0.002, 0.0, 0.0))),
    "fisheye of 250 degrees in a square": (pinhole(240, 240, 540, 540), (1080, 1080), fisheye((0.0,) * 4)),
    "telephoto of 600 mm, full frame": (lens(600 / 36 * 1920), HD, None),
    "telephoto of 600 mm, 16 mm sensor": (lens(600 / 16 * 1920), HD, brown_conrady((0.8, -30.0, 0.0, 0.0))),
    "wide angle of 11 mm": (lens(11 / 36 * 1920), HD, None),
    "mobile mapping, k6": (lens(1000), HD, brown_conrady((2.1, 0.4, 0.0, 0.0, 0.02, 2.4, 1.0, 0.1))),
    "COLMAP, long focal length": (lens(9000), HD, brown_conrady((-4.0, 90.0, 0.0, 0.0))),
    "anamorphic": (lens(1800, focal_y=1300), HD, None),
    "slightly skewed": (lens(1800, skew=-3.0), HD, None),
    "8 x 8 thermal array": (pinhole(7.5, 7.5, 4, 4), (8, 8), None),
    "size unknown": (lens(1500), None, None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_lenses_pass_without_doubt(name: str) -> None:
    assert check_lens(*REAL[name]) == ()


UNUSUAL = {
    "very long telephoto": (lens(200_000), None, "a field of view of 0.55 x 0.309 degrees"),
    "extreme wide angle": (lens(200), None, "a field of view of 156 x 139 degrees"),
    "half anamorphic": (lens(1000, focal_y=2000), None, r"1000 and 2000 px, which differ by a factor of 2"),
    "crop at the edge of a sensor": (lens(3000, (5000, 540)), None, r"the principal point \(5000, 540\) is far"),
    "normalized centre": (lens(1000, (0.5, 0.5)), None, r"the principal point \(0.5, 0.5\) is far from the centre"),
    "strong pincushion": (lens(1500), brown_conrady((6.0, 0.0, 0.0, 0.0)), r"the distortion leaves data in \d\d %"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_lenses_are_accepted_with_a_doubt(name: str) -> None:
    intrinsics, distortion, message = UNUSUAL[name]
    doubts = check_lens(intrinsics, HD, distortion)
    assert any(re.search(message, doubt) for doubt in doubts), doubts


NO_DATA = "the distortion leaves data in 0 % of the undistorted image"
IMPOSSIBLE = {
    "normalized": (pinhole(0.8, 1.4, 1.0, 1.0), None, "the intrinsics seem to be divided by the image size"),
    "focal length of a lens in mm": (lens(24), None, "a field of view of 177 x 175 degrees"),
    "a long focal length": (lens(1e6), None, "the focal length is 1e[+]06 px for 1920x1080"),
    "a principal point": (lens(1000, (1e5, 540)), None, r"the principal point is \(100000, 540\) for 1920x1080"),
    "a negative principal point": (lens(1000, (960, -1e4)), None, r"the principal point is \(960, -10000\)"),
    "an aspect": (lens(1000, focal_y=1e4), None, "the focal lengths are 1000 and 10000 px"),
    "a skew": (lens(1000, skew=800), None, "a skew of 800 px"),
    "k1": (lens(1500), brown_conrady((1e6, 0, 0, 0)), NO_DATA),
    "negative k1": (lens(1500), brown_conrady((-1e6, 0, 0, 0)), NO_DATA),
    "p1": (lens(1500), brown_conrady((0, 0, 500.0, 0)), NO_DATA),
    "huge": (lens(1500), brown_conrady((0, 0, 0, 1e300)), NO_DATA),
    "k6": (lens(1500), brown_conrady((0, 0, 0, 0, 0, 1e5, 0, 0)), NO_DATA),
    "k1 of a fisheye": (lens(600), fisheye((1e3, 0, 0, 0)), "the distortion leaves data in"),
    "negative k1 of a fisheye": (lens(600), fisheye((-1e3, 0, 0, 0)), "the distortion leaves data in"),
    "k4 of a fisheye": (lens(600), fisheye((0, 0, 0, 1e12)), "the distortion leaves data in"),
    "a fisheye around itself": (lens(100), fisheye((0.0,) * 4), "a field of view of"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_lenses_that_do_not_exist_are_refused(name: str) -> None:
    intrinsics, distortion, message = IMPOSSIBLE[name]
    with pytest.raises(InputError, match=message) as raised:
        check_lens(intrinsics, HD, distortion)
    assert raised.value.hint
    camera = {"image_size": HD, "intrinsics": intrinsics, "distortion": distortion}
    with pytest.raises(InputError, match=f"^camera a: .*{message}"):
        CalibratedCamera(name="a", world_to_camera=torch.eye(4, dtype=torch.float64), **camera)


def test_normalized_intrinsics_of_unknown_size_are_refused() -> None:
    with pytest.raises(InputError, match="seem to be divided by the image size") as raised:
        check_lens(pinhole(0.8, 1.4, 0.5, 0.5), None, None)
    assert raised.value.hint == "multiply fx and cx by the width, fy and cy by the height"


def scaled_down(camera: RigCamera) -> RigCamera:
    """Return a camera with intrinsics divided by the image size, as some tools write them."""
    divided = camera.intrinsics / [[camera.size[1]], [camera.size[0]], [1]]
    return dataclasses.replace(camera, intrinsics=divided)


@pytest.mark.parametrize("name", WRITERS)
def test_normalized_intrinsics_are_refused_in_every_format(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, [scaled_down(camera) for camera in make_rig()])
    with pytest.raises(
        InputError, match=r"camera cam(era)?_?0.?: the focal lengths .* seem to be divided by the image size"
    ):
        read_calibration(tmp_path)


def poses(centers: list[tuple[float, float, float]]) -> list[torch.Tensor]:
    result = torch.eye(4, dtype=torch.float64).repeat(len(centers), 1, 1)
    result[:, :3, 3] = -torch.tensor(centers, dtype=torch.float64)
    return list(result)


def test_rigs_of_any_usual_size_pass() -> None:
    for scale in (1e-5, 1.0, 1000.0, 1e6):
        assert check_rig("abc", poses([(0, 0, 0), (scale, 0, 0), (0, scale / 50, scale)])) == ()
    assert check_rig("a", poses([(1e6, 0, 0)])) == ()


def test_cameras_at_one_place_are_reported() -> None:
    (found,) = check_rig("abc", poses([(1, 2, 3)] * 3))
    assert found.startswith("the 3 calibrated cameras are at one place: without parallax")
    (found,) = check_rig("abc", poses([(1, 2, 3e6)] * 2))
    assert "at one place" in found
    (found,) = check_rig(["x", "y", "z"], poses([(0, 0, 0), (5, 0, 0), (5, 0, 1e-9)]))
    assert found == "calibrated cameras at one place: y and z"
    (found,) = check_rig([f"c{i}" for i in range(9)], poses([(0, 0, 0)] * 8 + [(1, 0, 0)]))
    assert found == ("calibrated cameras at one place: c0 and c1, c0 and c2, c0 and c3, c0 and c4, ... (28 in all)")


def test_optical_axes_that_meet_behind_all_cameras_are_reported() -> None:
    rig = [torch.from_numpy(camera.world_to_camera) for camera in make_rig()]
    assert check_rig("abc", rig) == ()
    flipped = [torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)) @ pose for pose in rig]
    (found,) = check_rig("abc", flipped)
    assert found.startswith("the optical axes of the calibrated cameras meet behind all of them")
    assert check_rig("abc", [rig[0], *flipped[1:]]) == ()


def test_moving_cameras_are_compared_over_time() -> None:
    path = torch.stack(poses([(float(x), 0, 0) for x in range(20)]))
    still = poses([(0, 0, 0)])[0]
    assert check_rig("ab", [path, still]) == ()
    assert "at one place" in check_rig("ab", [path, path.clone()])[0]
    assert float(camera_distances([path[:2], still])[0].max()) == 1.0


@pytest.mark.parametrize(
    ("positions", "offset"),
    [
        ([(0, 0, 0), (10, 0, 2)], None),
        ([(9e3, 0, 0), (9e3 + 10, 0, 0)], None),
        ([(500000, 5000000, 300), (500021, 5000002, 305)], (500000, 5000000, 300)),
        ([(5e5, 0, 0), (5e5 + 0.2, 0, 0)], (500000, 0, 0)),
        ([(-123456.7, 7654321.2, -8), (-123459.7, 7654321.2, -8)], (-123460, 7654320, -10)),
        ([(3000, 2000, 1500)], None),
        ([(500000, 5000000, 300)], (500000, 5000000, 300)),
        ([(5e5, 0, 0), (5e5, 0, 0)], (500000, 0, 0)),
    ],
)
def test_coordinates_too_large_for_single_precision_have_an_offset(
    positions: list[tuple[float, float, float]], offset: tuple[float, float, float] | None
) -> None:
    assert world_offset(poses(positions)) == offset


def test_many_remote_cameras_are_not_at_one_place() -> None:
    """Squares of coordinates have no digits left for differences."""
    assert check_rig("a" * 40, poses([(5e5 + 0.1 * x, 5e6, 300) for x in range(40)])) == ()


def test_giant_and_too_remote_rigs_are_refused() -> None:
    with pytest.raises(InputError, match=r"the cameras are 2e[+]07 apart"):
        check_rig("ab", poses([(1e7, 0, 0), (-1e7, 0, 0)]))
    with pytest.raises(InputError, match=r"camera a: the camera is 1e[+]09 from the origin"):
        CalibratedCamera(name="a", image_size=HD, intrinsics=lens(1500), world_to_camera=poses([(0, 0, 1e9)])[0])


def test_the_limits_are_angles() -> None:
    at_limit = 960 / math.tan(math.radians(170) / 2)
    with pytest.raises(InputError, match="a field of view of 170"):
        check_lens(lens(at_limit * 0.999), HD, None)
    assert check_lens(lens(at_limit * 1.001), HD, None)
