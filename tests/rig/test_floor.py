"""Gravity and floor from points that a user marks in pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.choices import UpAxis, WorldFrame
from page4d.errors import InputError
from page4d.rig.floor import FloorPoints, Vertical, floor_of_points, read_floor_points
from page4d.rig.records import RigCamera, direction_angle_deg
from page4d.rig.survey import floor_world
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
            marked(SQUARE[:1] * [[0, 0, 1], [0.5, 0.5, 1], [0.9, 0.9, 1]], noise_px=1),
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


ORIGIN = np.array([400_123.4, 5_432_100.7, 312.5])
Y_UP = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
"""From a world with y up to one with z up."""


Z_UP, MIRRORED = np.eye(3), np.diag([1.0, -1, 1])


def surveyed(
    places: np.ndarray,
    axes: np.ndarray = Z_UP,
    known: tuple[int, ...] = (0, 1, 2, 3, 4),
    factor: float = 1.0,
    noise_px: float = 0.5,
    **wrong: float,
) -> FloorPoints:
    """Return marks with coordinates in a world with these axes and a distant origin; `wrong` are errors of X in m."""
    points = marked(places, noise_px)
    return replace(
        points,
        coordinates={
            name: tuple(factor * axes.T @ (place - [0, 0, HEIGHT]) + axes.T @ ORIGIN + [wrong.get(name, 0.0), 0, 0])
            for number, (name, place) in enumerate(zip(points.marks, places, strict=True))
            if number in known
        },
    )


METRES = {name: one.placed(one.rotation, one.center / SCALE) for name, one in cameras().items()}
BOXES = np.concatenate([SQUARE, [[0.2, -0.3, HEIGHT + 0.7]]])


@pytest.mark.parametrize(
    ("points", "is_metric", "axis"),
    [
        (surveyed(SQUARE), False, UpAxis.Z),
        (surveyed(SQUARE), True, UpAxis.Z),
        (surveyed(SQUARE[:3]), False, UpAxis.Z),
        (surveyed(BOXES), False, UpAxis.Z),
        (surveyed(SQUARE, known=(1, 3)), False, UpAxis.Z),
        (surveyed(np.concatenate([SQUARE, [[0, 0.5, HEIGHT]]]), known=(0, 1, 4)), True, UpAxis.Z),
        (surveyed(SQUARE, Y_UP), False, UpAxis.Y),
    ],
)
def test_coordinates_of_points_give_the_world_and_metres(points: FloorPoints, is_metric: bool, axis: UpAxis) -> None:
    rig = METRES if is_metric else cameras()
    world = floor_world(points, rig, UpAxis.AUTO, is_metric=is_metric)
    frame, scale = np.array(world.transform), world.metres_per_unit
    assert world.up is axis
    assert (world.num_points, world.num_coordinates) == (len(points.marks), len(points.coordinates))
    assert scale == pytest.approx(1 if is_metric else 1 / SCALE, rel=0.003)
    assert (world.metres_std is None) if is_metric else (0 < world.metres_std < 0.01)
    axes = Y_UP if axis is UpAxis.Y else Z_UP
    assert direction_angle_deg(np.array(world.vertical), TURN[:, 2]) < 3 * world.vertical_std_deg < 3
    for camera, true in zip(rig.values(), ring(3, np.random.default_rng(1)), strict=True):
        found = scale * (frame[:3, :3] @ camera.center + frame[:3, 3])
        assert found == pytest.approx(axes.T @ (true.center - [0, 0, HEIGHT] + ORIGIN), abs=0.03)


@pytest.mark.parametrize(
    ("points", "rig", "up", "words"),
    [
        (
            surveyed(SQUARE, known=(2,)),
            cameras(),
            "auto",
            "1 point with coordinates marked in two placed views, 2 are",
        ),
        (
            surveyed(SQUARE[:2]),
            cameras(),
            "auto",
            "2 points with coordinates, on a line, do not determine which way is up$",
        ),
        (surveyed(SQUARE, p2=0.3), cameras(), "auto", "do not fit the marks, p. by 0.* m"),
        (surveyed(SQUARE, MIRRORED), cameras(), "auto", "cameras are below the floor in the coordinates"),
        (surveyed(BOXES, MIRRORED), cameras(), "auto", "do not fit the marks"),
        (surveyed(SQUARE), cameras(), "y", "are on a plane across z, and y is up"),
        (surveyed(SQUARE, Z_UP[[1, 2, 0]]), cameras(), "auto", "on a plane across x, and z is up"),
        (surveyed(SQUARE, Y_UP, known=(0, 1)), cameras(), "x", "on a line that is not level, and x is up"),
        (surveyed(SQUARE, factor=1000), METRES, "auto", r"are 100\d times as long as by the cameras"),
        (surveyed(SQUARE, factor=1.05), METRES, "auto", r"are 1\.0.* times as long as by the cameras"),
        (surveyed(0.02 * SQUARE + [0, 0, 0.5]), cameras(), "auto", "leave the axes uncertain by"),
    ],
)
def test_coordinates_that_give_no_world_are_refused(
    points: FloorPoints, rig: dict[str, RigCamera], up: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        floor_world(points, rig, UpAxis(up), is_metric=rig is METRES)


def test_points_of_an_uneven_floor_are_no_contradiction() -> None:
    points = surveyed(SQUARE, known=(1, 3))
    uneven = {name: (x, y, z + 0.04 * (name == "p1")) for name, (x, y, z) in points.coordinates.items()}
    world = floor_world(replace(points, coordinates=uneven), cameras(), UpAxis.AUTO)
    assert direction_angle_deg(np.array(world.vertical), TURN[:, 2]) < 2


@pytest.mark.parametrize("is_metric", [False, True])
def test_gravity_of_people_completes_coordinates_on_a_line(is_metric: bool) -> None:
    rig, scale, shift = (METRES, 1.0, SHIFT / SCALE) if is_metric else (cameras(), SCALE, SHIFT)
    places = SQUARE[[1, 3]] + [0, 0, 0.3]  # corners of a table: the floor is that of the people
    tilted = TURN @ [0.01, 0, 1]
    people = Vertical(up=tilted, std_deg=1.7, floor=tilted @ shift, floor_std=0.01, num_poses=40)
    world = floor_world(surveyed(places), rig, UpAxis.AUTO, is_metric=is_metric, other_vertical=lambda: people)
    assert world.metres_per_unit == pytest.approx(1 / scale, rel=0.003)
    assert direction_angle_deg(np.array(world.vertical), TURN[:, 2]) < 1
    assert 1 < world.vertical_std_deg < 2
    assert world.floor == pytest.approx(world.vertical @ shift, abs=0.02)
    assert "coordinates of 2 points, within 0.00" in world.text
    assert "gravity from 40 poses of people" in world.text
    frame, true = np.array(world.transform), ring(3, np.random.default_rng(1))
    found = np.array(
        [world.metres_per_unit * (frame[:3, :3] @ camera.center + frame[:3, 3]) for camera in rig.values()]
    )
    assert found == pytest.approx(np.array([camera.center - [0, 0, HEIGHT] + ORIGIN for camera in true]), abs=0.05)
    steep = surveyed(places + np.array([[0, 0, 0.3], [0, 0, 0]]))
    steep = replace(steep, coordinates={name: (*place[:2], 0.0) for name, place in steep.coordinates.items()})
    with pytest.raises(InputError, match=r"line of its points slopes by 1\d degrees against its coordinates"):
        floor_world(steep, rig, UpAxis.AUTO, is_metric=is_metric, other_vertical=lambda: people)
    with pytest.raises(InputError, match=r"which way is up, nor do people: nobody stands$"):
        floor_world(surveyed(places), rig, UpAxis.AUTO, is_metric=is_metric, other_vertical=lambda: "nobody stands")


@pytest.mark.parametrize(
    ("points", "found"),
    [
        (marked(SQUARE), "0 points marked in two placed views, 3 are needed"),
        (surveyed(SQUARE), "0 points with coordinates marked in two placed views, 2 are needed"),
    ],
)
def test_views_without_a_camera_are_named(points: FloorPoints, found: str) -> None:
    with pytest.raises(InputError, match=f"{found}; no camera: cam1, cam2"):
        floor_world(points, {"cam0": cameras()["cam0"]}, UpAxis.AUTO)


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
    ("text", "place"),
    [
        ("point,view,x,y,X,Y,Z\nA,cam0,1.5,2,1,2,3\nA,cam1,3,4,,,\n", (1, 2, 3)),
        ("Z;Y;X;y;x;camera;label\n3;2,5;1;2;1,5;cam0;A\n3;2,5;1;4;3;cam1;A\n", (1, 2.5, 3)),
        ("point,view,u,v,x,y\nA,cam0,1.5,2,1,2\nA,cam1,3,4,1,2\n", (1, 2, 0)),
        ("Point,View,X,Y\nA,cam0,1.5,2\nA,cam1,3,4\n", None),
    ],
)
def test_tables_have_coordinates_of_points(text: str, place: tuple[float, ...] | None, tmp_path: Path) -> None:
    (tmp_path / "floor.csv").write_text(text)
    found = read_floor_points(tmp_path / "floor.csv")
    assert found.marks == {"A": {"cam0": (1.5, 2), "cam1": (3, 4)}}
    assert found.coordinates == ({} if place is None else {"A": place})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "floor.csv has the columns of no table"),
        ("a,b\n1,2\n", "floor.csv has the columns a, b"),
        ("point,view,x,y\nA,cam0,1\n", "row 2 has no pixel"),
        ("point,view,x,y\nA,cam0,1,left\n", "row 2 has no pixel"),
        ("point,view,x,y\nA,cam0,1,2\nA,cam0,3,4\n", "marks A in cam0 twice"),
        ("point,view,x,y\nA,cam0,1,2\nA,cam1,1,2\nB,cam0,3,4\n", "marks B in a single view"),
        ("point,view,x,y,X,Z\nA,cam0,1,2,3,4\n", "has the coordinates X, Z"),
        ("point,view,u,v,world_x,world_y\nA,cam0,1,2,3,4\n", "has the coordinates world_x, world_y"),
        ("point,view,x,y,X (mm),Y (mm)\nA,cam0,1,2,3,4\n", r"has the coordinates x \(mm\), y \(mm\)"),
        ("point,view,x,y,X,Y\nA,cam0,1,2,3,east\n", "row 2 has no coordinates"),
        ("point,view,x,y,X,Y\nA,cam0,1,2,3,\n", "row 2 has no coordinates"),
        ("point,view,x,y,X,Y\nA,cam0,1,2,3,4\nA,cam1,1,2,3,5\n", "gives A two places"),
        ("point,view,x,y,X,Y\nA,c,1,2,0,0\nA,d,1,2,0,0\nB,c,1,3,0,0\nB,d,1,3,,\n", "gives A, B one place"),
        (None, "floor.csv"),
    ],
)
def test_tables_that_mark_nothing_are_refused(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "floor.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_floor_points(tmp_path / "floor.csv")
