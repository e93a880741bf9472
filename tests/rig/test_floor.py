"""Gravity and floor from points that a user marks in pictures."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.choices import UpAxis, WorldFrame
from page4d.errors import InputError
from page4d.rig.floor import FloorPoints, floor_of_points, floor_world, read_floor_points
from page4d.rig.records import RigCamera, direction_angle_deg
from tests.rig.walkers import ring

HEIGHT = 0.5
SQUARE = np.array([[0.5, 0.5, HEIGHT], [-0.5, 0.5, HEIGHT], [-0.5, -0.5, HEIGHT], [0.5, -0.5, HEIGHT]])
TURN, SHIFT, SCALE = Rotation.random(rng=np.random.default_rng(3)).as_matrix(), np.array([3.0, -1, 2]), 0.3
"""From an upright world in metres to that of the cameras."""


def cameras() -> dict[str, RigCamera]:
    """Return three cameras in a world that lies on its side."""
    found = ring(3, np.random.default_rng(1))
    return {
        f"cam{i}": one.placed(one.rotation @ TURN.T, SCALE * TURN @ one.center + SHIFT) for i, one in enumerate(found)
    }


def marked(places: np.ndarray, noise_px: float = 0.0, **moved: tuple[float, float]) -> FloorPoints:
    """Return marks of points of the upright world in all views; `moved` are the errors of single marks in px."""
    rng, marks = np.random.default_rng(4), {}
    for number, place in enumerate(places):
        for view, camera in cameras().items():
            local = camera.rotation @ (SCALE * TURN @ place + SHIFT) + camera.world_to_camera[:3, 3]
            pixel = (camera.lens.intrinsics @ local / local[2])[:2] + rng.normal(size=2) * noise_px
            x, y = pixel + moved.get(f"{view}_p{number}", (0, 0))
            marks.setdefault(f"p{number}", {})[view] = (float(x), float(y))
    return FloorPoints(label="floor.csv", marks=marks)


@pytest.mark.parametrize("places", [SQUARE[:3], SQUARE, np.concatenate([SQUARE, SQUARE * [0.3, 0.5, 1]])])
@pytest.mark.parametrize("noise_px", [0.0, 4.0])
def test_points_on_the_floor_show_it_and_gravity_in_any_world(places: np.ndarray, noise_px: float) -> None:
    found = floor_of_points(marked(places, noise_px), cameras())
    angle = direction_angle_deg(found.up, TURN[:, 2])
    assert angle < 0.05 + 3 * found.std_deg * bool(noise_px)
    assert 0.05 < found.std_deg < 1.0
    assert abs(found.floor - SHIFT @ found.up - SCALE * HEIGHT) < SCALE * (0.002 + 0.02 * bool(noise_px))
    assert found.floor_std < SCALE * 0.05
    world = floor_world(marked(places), cameras(), UpAxis.Z)
    assert (world.frame, world.num_points, world.num_poses) == (WorldFrame.UPRIGHT, len(places), 0)
    assert f"({len(places)} points on the floor, +-" in world.text
    in_world = np.array(world.transform) @ np.append(SCALE * places @ TURN.T + SHIFT, np.ones((len(places), 1)), 1).T
    assert in_world[2] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (marked(SQUARE[:2]), "2 points marked in two placed views, 3 are needed"),
        (
            marked(SQUARE[:1] * np.array([[0, 0, 1], [0.5, 0.5, 1], [0.9, 0.9, 1]]), noise_px=1),
            "uncertain by .* degrees: they are close together or",
        ),
        (marked(SQUARE * [0.002, 0.002, 1], noise_px=1), "uncertain by .* degrees"),
        (marked(SQUARE, cam1_p2=(150, 90)), r"the marks of p2 are not of one point, by \d+ px in cam"),
        (
            marked([*SQUARE, [0.3, 0, HEIGHT], [0, 0.2, HEIGHT + 0.2]]),
            "are not on one plane: p5 is .* of their extent",
        ),
        (marked(np.add(SQUARE, [0, 0, 0.8])), "cameras are on both sides of the plane"),
        (marked(SQUARE, cam1_p0=(0, 5000)), r"p0 is at \(.*\) in cam1, which has 1920x1080 pixels"),
    ],
)
def test_points_that_show_no_floor_are_refused(points: FloorPoints, words: str) -> None:
    with pytest.raises(InputError, match=words):
        floor_of_points(points, cameras())


def test_views_without_a_camera_are_named() -> None:
    with pytest.raises(
        InputError, match="0 points marked in two placed views, 3 are needed; cam1, cam2 has no camera"
    ):
        floor_of_points(marked(SQUARE), {"cam0": cameras()["cam0"]})


@pytest.mark.parametrize(
    "text",
    [
        "point,view,x,y\nA,cam0,1.5,2\nA,cam1,3,4\n",
        "# marked by hand\ny;x;camera;label;note\n2;1,5;cam0;A;\n4;3;cam1;A;far\n",
        "\ufeffPoint\tView\tU\tV\nA\tcam0\t1.5\t2\n\nA\tcam1\t3\t4\n",
    ],
)
def test_tables_of_points_have_any_order_and_delimiter(text: str, tmp_path: Path) -> None:
    (tmp_path / "floor.csv").write_text(text, encoding="utf-8")
    assert read_floor_points(tmp_path / "floor.csv").marks == {"A": {"cam0": (1.5, 2), "cam1": (3, 4)}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "floor.csv has the columns of no table"),
        ("a,b\n1,2\n", "floor.csv has the columns a, b"),
        ("point,view,x,y\nA,cam0,1\n", "row 2 has no pixel"),
        ("point,view,x,y\nA,cam0,1,left\n", "row 2 has no pixel"),
        ("point,view,x,y\nA,cam0,1,2\nA,cam0,3,4\n", "marks A in cam0 twice"),
        ("point,view,x,y\nA,cam0,1,2\nA,cam1,1,2\nB,cam0,3,4\n", "marks B in a single view"),
        (None, "floor.csv"),
    ],
)
def test_tables_that_mark_nothing_are_refused(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "floor.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_floor_points(tmp_path / "floor.csv")
