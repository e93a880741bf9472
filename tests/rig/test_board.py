"""Calibration boards: descriptions and files, corners in pictures, and lenses and cameras of rigs of known truth."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from page4d.choices import LensModel, UpAxis
from page4d.conventions import Scale
from page4d.errors import InputError, OutputError, Page4DError, Stopped, UsageError
from page4d.formats import calibrations
from page4d.formats.calibrations import read_calibration
from page4d.geometry.distortion import Distortion
from page4d.rig import board_views
from page4d.rig.board import Board, Pattern, board_of
from page4d.rig.board_corners import Corners, Sighting, _checked, find_boards, without_skew
from page4d.rig.board_rig import (
    TERMS,
    BoardAdjustment,
    State,
    _lens_from,
    board_poses,
    locate_board,
    project,
)
from page4d.rig.board_views import BoardEvidence, BoardViews
from page4d.rig.floor import FloorPoints
from page4d.rig.records import FocalSource, Lens, exp_rotation
from page4d.run import calibration
from page4d_cli.app import run
from tests.scene.clip_writers import write_images

CHARUCO = board_of("charuco:7x5,120mm,90mm,4x4_50")
SIZE = (480, 640)
PINHOLE = (620.0, 624.0, 331.0, 236.0, -0.22, 0.06, 0.001, -0.002, 0.0)
FISHEYE = (260.0, 261.0, 322.0, 238.0, 0.03, -0.01, 0.004, -0.001)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("charuco:7x5,30mm,22mm,4x4_50", ("charuco", 7, 5, 0.03, 0.022, 24)),
        ("charuco:7x5, 3cm, 0.022m, DICT_4X4_50", ("charuco", 7, 5, 0.03, 0.022, 24)),
        ("chessboard:9x6,1in", ("chessboard", 9, 6, 0.0254, 0.0, 54)),
        ("checkerboard:9x6,25mm", ("chessboard", 9, 6, 0.025, 0.0, 54)),
        ("aruco:5x7,40mm,10mm,5x5_100", ("aruco", 5, 7, 0.04, 0.01, 140)),
        ("apriltag:3x2,88mm,26.4mm,36h11", ("aruco", 3, 2, 0.088, 0.0264, 24)),
    ],
)
def test_a_description_is_a_board(text, expected) -> None:
    board = board_of(text)
    found = (board.pattern, board.columns, board.rows, board.side, board.marker, len(board.points))
    assert all(a == (pytest.approx(b) if isinstance(b, float) else b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no board is given"),
        ("charuco", "is not a board"),
        ("charuco:7x5,30mm", "is not a board"),
        ("charuco:7x5,30,22,4x4_50", "'30' is not a length"),
        ("charuco:7x5,22mm,30mm,4x4_50", "markers of 0.03 m in squares of 0.022 m"),
        ("charuco:7x5,30mm,22mm,4x4_51", "no dictionary '4x4_51'"),
        ("charuco:20x20,30mm,22mm,4x4_50", "200 markers, but the dictionary 4x4_50 has 50"),
        ("chessboard:2x6,25mm", "2x6 chessboard"),
        ("chessboard:9x6,25m", "a length of 25 m"),
        ("missing.toml", "missing.toml"),
    ],
)
def test_a_wrong_description_is_refused(text, found) -> None:
    with pytest.raises(Page4DError, match=found) as refused:
        board_of(text)
    assert refused.value.hint


FILES = {
    "charuco.toml": (
        (
            'columns = 4\nrows = 5\nboard_height = 11.0\nboard_width = 8.5\ndictionary = "DICT_4X4_1000"\n'
            'units = "inch"\n'
            "aruco_scale = 0.75\nsquare_size_override_cm = 5.4\ninverted = true\n"
        ),
        "charuco:4x5,54mm,40.5mm,DICT_4X4_1000",
    ),
    "paper.toml": (
        (
            'columns = 4\nrows = 5\nboard_height = 10\nboard_width = 9\ndictionary = "DICT_4X4_50"\nunits = "inch"\n'
            'aruco_scale = 0.5\nsquare_size_override_cm = "null"\n'
        ),
        "charuco:4x5,50.8mm,25.4mm,DICT_4X4_50",
    ),
    "in_VID5.xml": (
        (
            "<?xml version='1.0'?><opencv_storage><Settings><BoardSize_Width>9</BoardSize_Width>"
            '<BoardSize_Height>6</BoardSize_Height><Square_Size>50</Square_Size><Calibrate_Pattern>"CHESSBOARD"'
            "</Calibrate_Pattern><ArUco_Dict_Name>DICT_4X4_50</ArUco_Dict_Name></Settings></opencv_storage>"
        ),
        "chessboard:9x6,50mm",
    ),
    "board.yml": (
        (
            "%YAML:1.0\n---\nsquares_x: 7\nsquares_y: 5\nsquare_length: 0.03\nmarker_length: 0.022\n"
            "dictionary: DICT_4X4_50\n"
        ),
        "charuco:7x5,30mm,22mm,DICT_4X4_50",
    ),
    "config.toml": (
        (
            '[calibration]\nboard_type = "charuco"\nboard_size = [11, 8]\nboard_marker_bits = 4\n'
            "board_marker_dict_number = 50\nboard_marker_length = 18.75\nboard_square_side_length = 25\n"
        ),
        "charuco:11x8,25mm,18.75mm,4x4_50",
    ),
    "Config.toml": (
        "[calibration.calculate.intrinsics]\nintrinsics_corners_nb = [4, 7]\nintrinsics_square_size = 60 # mm\n",
        "chessboard:4x7,60mm",
    ),
    "sleap_anipose.toml": (
        "board_x = 8\nboard_y = 11\nsquare_length = 24.0\nmarker_length = 18.75\nmarker_bits = 4\ndict_size = 1000\n",
        "charuco:8x11,24mm,18.75mm,4x4_1000",
    ),
    "board_checker.toml": ("board_x = 8\nboard_y = 11\nsquare_length = 24.0\n", "chessboard:8x11,24mm"),
    "april.yaml": (
        "target_type: 'checkerboard'\ntargetCols: 6\ntargetRows: 7\nrowSpacingMeters: 0.06\ncolSpacingMeters: 0.06\n",
        "chessboard:6x7,60mm",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_tools_are_read(tmp_path: Path, name) -> None:
    text, expected = FILES[name]
    (tmp_path / name).write_text(text)
    assert str(board_of(str(tmp_path / name))) == expected


@pytest.mark.parametrize(
    ("row", "column", "is_square"), [(0.04, 0.06, False), (0.06, 0.05, False), (0.06, 0.06002, True)]
)
def test_squares_of_unequal_sides_are_refused(tmp_path: Path, row, column, is_square) -> None:
    (tmp_path / "board.yaml").write_text(
        f"targetCols: 6\ntargetRows: 7\nrowSpacingMeters: {row}\ncolSpacingMeters: {column}\n"
    )
    if is_square:
        assert board_of(str(tmp_path / "board.yaml")).side == pytest.approx(row, rel=1e-3)
        return
    with pytest.raises(InputError, match=re.escape(f"sides of a square of {column} and {row}")) as refused:
        board_of(str(tmp_path / "board.yaml"))
    assert refused.value.hint


@pytest.mark.parametrize(
    "text", ["[fps]\nrate = 30\n", 'columns = 4\nrows = "many"\nsquare_size = 3\n', "target_type = 'aprilgrid'\n"]
)
def test_a_file_without_a_board_is_refused(tmp_path: Path, text) -> None:
    (tmp_path / "board.toml").write_text(text)
    with pytest.raises(InputError, match="describes no board"):
        board_of(str(tmp_path / "board.toml"))


def drawn(board: Board, pose: np.ndarray, intrinsics: np.ndarray, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Render a board in front of a camera without distortion; pixel centres are at 0.5."""
    scale = 80 / board.side
    texture = cv2.GaussianBlur(board.picture(80), (0, 0), 1.0)
    x = y = -board.side * (2 if board.pattern is Pattern.CHESSBOARD else 1)
    on_board = np.array([[1 / scale, 0, x], [0, 1 / scale, y], [0, 0, 1]])
    to_camera = np.column_stack([pose[:3, 0], pose[:3, 1], pose[:3, 3]])
    center = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    plane = np.linalg.inv(center) @ intrinsics @ to_camera @ on_board @ center
    fine = np.diag([3.0, 3.0, 1.0])
    shift = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1.0]])
    large = cv2.warpPerspective(texture, shift @ fine @ plane, (3 * size[1], 3 * size[0]), borderValue=120)
    radiance = cv2.resize(large, size[::-1], interpolation=cv2.INTER_AREA) / 255
    return np.rint(255 * (0.03 + 0.97 * radiance) ** (1 / 2.2)).astype(np.uint8)


class Pictures:
    """A source of pictures in memory."""

    def __init__(self, pictures) -> None:
        self.pictures = pictures

    def open(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read(self, indices):
        yield from (np.repeat(self.pictures[index][..., None], 3, 2) for index in indices)


def board_pose(vector, center) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = exp_rotation(np.array(vector, float)), center
    return pose


@pytest.mark.parametrize(
    "board",
    [
        CHARUCO,
        replace(CHARUCO, is_inverted=True),
        replace(board_of("charuco:5x6,120mm,90mm,5x5_100"), is_legacy=True),
        board_of("chessboard:8x5,120mm"),
        board_of("aruco:4x3,160mm,40mm,apriltag_36h11"),
    ],
    ids=str,
)
def test_corners_are_found_where_they_are(board) -> None:
    """Also where the option does not state that the print is inverted or of the legacy pattern, and from behind."""
    intrinsics = np.array([[620.0, 0, 320], [0, 620, 240], [0, 0, 1]])
    middle = np.append(board.outline.mean(0), 0)
    poses = []
    behind = [] if board.pattern is Pattern.CHESSBOARD else [[0.2, 3.6, 0.1]]
    for vector in ([0.1, 0.5, 0.05], [-0.5, -0.2, 0.1], [0.3, 0.1, 2.9], [0.5, 1.0, 0.3], *behind):
        pose = board_pose(vector, [0, 0, 0.0])
        pose[:3, 3] = [0.04, -0.02, 1.6] - pose[:3, :3] @ middle
        poses.append(pose)
    source = Pictures([drawn(board, pose, intrinsics) for pose in poses])
    asked = replace(board, is_inverted=False, is_legacy=False)
    found_board, (found,) = find_boards(asked, [(source, range(len(poses)))], lambda *_: None)
    assert found_board == board
    for pose, corners in zip(poses, found, strict=True):
        assert len(corners.numbers) > 0.8 * len(board.points)
        world = board.points @ pose[:3, :3].T + pose[:3, 3]
        truth = (world @ intrinsics.T)[:, :2] / world[:, 2:]
        error = np.linalg.norm(corners.pixels - truth[corners.numbers], axis=1)
        assert np.median(error) < (0.1 if board.pattern is Pattern.ARUCO else 0.02)
        assert error.max() < (0.3 if board.pattern is Pattern.ARUCO else 0.1)
        if board.pattern is Pattern.ARUCO:
            inward = truth.reshape(-1, 4, 2).mean(1).repeat(4, axis=0) - truth
            assert (corners.growth * inward[corners.numbers]).sum(1).min() > 0
    assert np.median(found[3].sigma) > np.median(found[0].sigma) >= 1  # tilted by 64 and 30 degrees


def test_corners_of_one_row_show_no_board() -> None:
    row = np.column_stack([30.0 * np.arange(6) + 100, np.full(6, 200.0)])
    assert _checked(CHARUCO, np.zeros(SIZE, np.uint8), np.arange(6), row) is None


@pytest.mark.parametrize(
    ("text", "count"), [("7x5,120mm", 2), ("6x6,120mm", 4), ("5x5,120mm", 2), ("6x4,120mm", 2), ("6x5,120mm", 1)]
)
def test_turns_of_a_board_look_the_same_and_each_has_its_pose(text, count) -> None:
    board = board_of(f"chessboard:{text}")
    middle, picture = board.points.mean(0), board.picture(2)
    quarters = []
    for turn in board.turns:
        rotation = np.linalg.lstsq(board.points - middle, board.points[turn] - middle, rcond=None)[0][:2, :2].T
        assert np.abs((board.points - middle)[:, :2] @ rotation.T - (board.points[turn] - middle)[:, :2]).max() < 1e-9
        assert np.linalg.det(rotation) == pytest.approx(1)
        quarters.append(round(np.degrees(np.arctan2(rotation[1, 0], rotation[0, 0])) / 90) % 4)
    same = [k for k in range(4) if np.array_equal(np.rot90(picture, k), picture)]
    assert sorted(quarters) == same
    assert len(same) == count
    lens = np.array(PINHOLE)
    local = board.points @ (pose := board_pose([0.4, -0.5, 0.3], [0.1, -0.2, 1.5]))[:3, :3].T + pose[:3, 3]
    pixels = project(LensModel.BROWN_CONRADY, lens, local)[0]
    own = Sighting(view=0, pose=0, numbers=np.arange(len(pixels)), pixels=pixels)
    exact = 0
    for found, numbers in board_poses(board, LensModel.BROWN_CONRADY, lens, own):
        shown = project(LensModel.BROWN_CONRADY, lens, board.points[numbers] @ found[:3, :3].T + found[:3, 3])[0]
        exact += np.abs(shown - pixels).max() < 0.1
    assert exact == count


def seen(lens: Lens, local: np.ndarray) -> np.ndarray:
    plane = torch.from_numpy(local[:, :2] / local[:, 2:])
    plane = plane if lens.distortion is None else lens.distortion.distort(plane)
    return np.pad(plane.numpy(), ((0, 0), (0, 1)), constant_values=1.0) @ lens.intrinsics[:2].T


def rig(
    board: Board = CHARUCO,
    lens=PINHOLE,
    model: LensModel = LensModel.BROWN_CONRADY,
    *,
    count: int = 16,
    tilt: float = 0.7,
    late_s: float = 0.0,
    step: float = 0.1,
    speed: float = 1.0,
    views=(0, 1, 2),
    seed: int = 1,
    given=None,
):
    """Return the true cameras of three views about 3 m from a moving board, and noisy sightings of its corners."""
    rng = np.random.default_rng(seed)
    cameras = []
    for azimuth in (-0.5, 0.0, 0.6):
        turn = exp_rotation(np.array([0.0, azimuth, 0.0]))
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = turn, [0, 0, 3.0]
        cameras.append(pose)
    times = np.arange(count) * step
    middle = np.append(board.outline.mean(0), 0)
    phase, rate = rng.uniform(0, 7, 6), speed * rng.uniform(2, 5, 6)

    def poses(time):
        found = []
        for row in np.sin(np.outer(time, rate) + phase):
            pose = board_pose(tilt * row[:3], [0, 0, 0])
            pose[:3, 3] = row[3:] * [0.8, 0.6, 0.8] - pose[:3, :3] @ middle
            found.append(pose)
        return found

    sightings = []
    for view in views:
        shift = late_s if view == 1 else 0.0
        now, before, after = (poses(times + shift + change) for change in (0, -0.01, 0.01))
        for place in range(count):
            pixels = []
            for at in (now, before, after):
                pose = cameras[view] @ at[place]
                local = board.points @ pose[:3, :3].T + pose[:3, 3]
                pixels.append(project(model, np.array(lens), local)[0] if given is None else seen(given[view], local))
            inside = (pixels[0] > 2).all(1) & (pixels[0] < np.array(SIZE[::-1]) - 2).all(1)
            if inside.sum() < 12:
                continue
            numbers = np.flatnonzero(inside)
            turned = board.turns[int(rng.integers(len(board.turns)))]
            sightings.append(
                Sighting(
                    view=view,
                    pose=place,
                    numbers=turned[numbers] if inside.all() else numbers,
                    pixels=pixels[0][numbers] + rng.normal(0, 0.1, (len(numbers), 2)),
                    velocity=(pixels[2] - pixels[1])[numbers] / 0.02,
                    acceleration=(pixels[2] - 2 * pixels[0] + pixels[1])[numbers] / 0.01**2,
                )
            )
    return cameras, BoardEvidence(board=board, shared=sightings, alone=[], instants=times)


def center_errors(found, cameras) -> np.ndarray:
    """Return the distances of camera centres in metres after a rigid motion."""
    own, true = (
        np.array([-np.asarray(pose)[:3, :3].T @ np.asarray(pose)[:3, 3] for pose in poses])
        for poses in ([camera.world_to_camera.numpy() for camera in found.calibration.cameras], cameras)
    )
    turn, _ = Rotation.align_vectors(true - true.mean(0), own - own.mean(0))
    return np.linalg.norm(turn.apply(own - own.mean(0)) - (true - true.mean(0)), axis=1)


@pytest.mark.parametrize(
    ("lens", "model"),
    [
        ((*PINHOLE[:4], -0.2, 0, 0, 0, 0), LensModel.BROWN_CONRADY),
        ((*PINHOLE[:4], -0.2, 0.05, 0.002, -0.0015, 0), LensModel.BROWN_CONRADY),
        (FISHEYE, LensModel.FISHEYE),
    ],
    ids=["one term", "terms that no view determines alone", "fisheye"],
)
def test_lenses_and_cameras_are_those_of_the_truth(lens, model) -> None:
    cameras, evidence = rig(CHARUCO, lens, model, count=24)
    found = BoardViews("abc", [SIZE] * 3, evidence, model).result()
    assert found.record.num_placed == 3
    assert not found.record.notices
    for camera, own in zip(found.record.cameras, found.calibration.cameras, strict=True):
        assert own.intrinsics[0, 0] == pytest.approx(lens[0], rel=3e-3)
        assert abs(own.intrinsics[0, 0] - lens[0]) < 4 * camera.focal_std * lens[0]
        assert camera.focal_std < 0.0025
        used = {term for term, value in zip(TERMS[model], lens[4:], strict=True) if value}
        assert set(camera.terms) <= used
        assert bool(camera.terms) == bool(used)
        assert camera.residual_px == pytest.approx(0.118, rel=0.1)  # median of Rayleigh errors of 0.1 px
    assert center_errors(found, cameras).max() < 5e-3


def lens_alone(sightings) -> tuple[BoardAdjustment, State]:
    """Return the adjustment of a lens with one distortion term, and its state."""
    own = [replace(one, view=0) for one in sightings]
    solved = _lens_from(CHARUCO, LensModel.BROWN_CONRADY, own, np.array([*PINHOLE[:4], *[0.0] * 5]), 1, SIZE)
    assert solved is not None
    return solved[1], solved[0]


@pytest.mark.parametrize(
    "groups", [lambda one: np.array([one.pose]), lambda one: one.numbers], ids=["picture", "corner"]
)
def test_deviations_are_those_of_estimates_without_each(groups) -> None:
    """An error of half a pixel is common to the corners of a picture, or, as of the print, to a corner in all."""
    rng = np.random.default_rng(3)
    _, evidence = rig(count=14, views=(1,))
    common = rng.normal(0, 0.5, (len(CHARUCO.points), 2))
    seen = [replace(one, pixels=one.pixels + common[groups(one)]) for one in evidence.shared]
    problem, state = lens_alone(seen)
    without = []
    for group in np.unique(np.concatenate([groups(one) for one in seen])):
        kept = [(one, np.broadcast_to(groups(one) != group, len(one.numbers))) for one in seen]
        own = [replace(one, numbers=one.numbers[rows], pixels=one.pixels[rows]) for one, rows in kept if rows.any()]
        without.append(lens_alone(own)[1].lenses[0])
    expected = np.sqrt((len(without) - 1) * np.var(without, 0))
    deviation = problem.deviations(state)[0][0]
    np.testing.assert_allclose(deviation[[0, 1, 4]], expected[[0, 1, 4]], rtol=0.25)
    assert (deviation > 0).tolist() == [True] * 5 + [False] * 4


@pytest.mark.parametrize("name", ["sigma", "growth"])
def test_errors_of_stated_size_or_direction_hardly_change_a_lens(name) -> None:
    rng = np.random.default_rng(3)
    wrong, stated = [], []
    for one in rig(count=14, views=(1,))[1].shared:
        growth, sigma = rng.normal(0, 1, one.pixels.shape), np.where(one.numbers % 3, 0.1, 3.0)
        change = growth * sigma[:, None] if name == "sigma" else 3 * growth
        wrong.append(replace(one, pixels=one.pixels + change))
        stated.append(replace(wrong[-1], **{name: sigma if name == "sigma" else growth}))
    errors = [np.abs(lens_alone(own)[1].lenses[0, :2] - PINHOLE[:2]).max() for own in (wrong, stated)]
    assert errors[1] < 0.1 * errors[0]


KNOWN = tuple(
    Lens(
        intrinsics=np.array([[PINHOLE[0], 0, PINHOLE[2]], [0, PINHOLE[1], PINHOLE[3]], [0, 0, 1]]),
        image_size=SIZE,
        distortion=Distortion(model=LensModel.BROWN_CONRADY, coefficients=PINHOLE[4:]),
        focal_source=FocalSource.CALIBRATION,
    )
    for _ in range(3)
)


def known_lens(focal, skew=0.0, coefficients=(), model=LensModel.BROWN_CONRADY) -> Lens:
    return Lens(
        intrinsics=np.array([[focal, skew, 322], [0, focal + 2, 238], [0, 0, 1]]),
        image_size=SIZE,
        distortion=Distortion(model=model, coefficients=coefficients) if coefficients else None,
        focal_source=FocalSource.CALIBRATION,
    )


BENT = known_lens(260.0, 0.0, FISHEYE[4:], LensModel.FISHEYE)
PLAIN, SKEWED = known_lens(600.0), known_lens(610.0, 40.0, PINHOLE[4:8])
SKEWED_FISHEYE = replace(BENT, intrinsics=known_lens(260.0, -15.0).intrinsics)
RATIONAL = known_lens(620.0, 0.0, (0.1, 0.05, 0.001, -0.001, 0.01, 0.3, 0.02, 0.01))


@pytest.mark.parametrize(
    ("board", "given", "model"),
    [
        ("charuco:7x5,120mm,90mm,4x4_50", (PLAIN, BENT, RATIONAL), None),
        ("charuco:7x5,120mm,90mm,4x4_50", (SKEWED, SKEWED_FISHEYE, BENT), None),
        ("chessboard:7x5,120mm", (SKEWED, RATIONAL, PLAIN), LensModel.BROWN_CONRADY),  # half turns look the same
        ("chessboard:6x6,120mm", (BENT, BENT, BENT), LensModel.FISHEYE),  # and quarter turns
    ],
)
def test_given_lenses_stay_as_they_are(board, given, model) -> None:
    cameras, evidence = rig(board_of(board), given=given)
    found = BoardViews("abc", [SIZE] * 3, evidence, given=given).result()
    assert found.record.lens_model is model
    for own, lens, camera in zip(found.calibration.cameras, given, found.record.cameras, strict=True):
        assert own.distortion == lens.distortion
        np.testing.assert_array_equal(own.intrinsics.numpy(), lens.intrinsics)
        assert camera.residual_px == pytest.approx(0.118, rel=0.1)
    assert center_errors(found, cameras).max() < 5e-3
    for corners in found.corners:
        pixels = np.concatenate([one.pixels for one in evidence.shared])
        assert np.linalg.norm(pixels[:, None] - corners[None, :20, :2], axis=-1).min(0).max() < 1e-6


FLOOR = board_pose([1.5, 0.0, 0.1], [0.1, 0.9, 0.2])
"""A board below the cameras of `rig`, whose y axes point down."""


@pytest.mark.parametrize(
    ("up", "axis", "turn"),
    [(UpAxis.AUTO, 2, np.eye(4)), (UpAxis.Y, 1, np.diag([1.0, -1, -1, 1]))],
    ids=["its face up", "its face down"],
)
def test_the_world_stands_on_a_board_on_the_floor(up, axis, turn) -> None:
    cameras, evidence = rig(given=KNOWN)
    floor = [pose @ FLOOR @ turn for pose in cameras]
    corners = [CHARUCO.points @ pose[:3, :3].T + pose[:3, 3] for pose in floor]
    numbers = np.arange(len(CHARUCO.points))
    own = [Sighting(view=v, pose=24, numbers=numbers, pixels=seen(KNOWN[v], corners[v])) for v in range(2)]
    evidence = replace(evidence, shared=[*evidence.shared, *own], floor=24)
    found = BoardViews("abc", [SIZE] * 3, evidence, given=KNOWN, up=up).result()
    marks = {f"{n}": {"abc"[v]: tuple(own[v].pixels[n]) for v in range(2)} for n in numbers[::3]}
    points = FloorPoints(label="floor.csv", marks=marks)
    by_points = BoardViews("abc", [SIZE] * 3, replace(evidence, floor=points), given=KNOWN, up=up).result()
    for one, other in zip(found.calibration.cameras, by_points.calibration.cameras, strict=True):
        assert torch.allclose(one.world_to_camera, other.world_to_camera, atol=0.01)
    assert f"({len(marks)} points on the floor, +-" in by_points.record.world.text
    assert found.calibration.up is found.record.world.up is (UpAxis.Z if up is UpAxis.AUTO else up)
    world = np.stack([camera.world_to_camera.numpy() for camera in found.calibration.cameras])
    for pose, local in zip(world, corners, strict=True):
        assert np.abs(((local - pose[:3, 3]) @ pose[:3, :3])[:, axis]).max() < 5e-3
    centers = -np.einsum("vji,vj->vi", world[:, :3, :3], world[:, :3, 3])
    assert (centers[:, axis] > 0.5).all()
    assert np.delete(centers.mean(0), axis) == pytest.approx([0, 0], abs=1e-9)
    shift = np.array([10.0, 20.0, 30.0])
    places = (corners[0] - world[0, :3, 3]) @ world[0, :3, :3] + shift
    surveyed = replace(points, coordinates={name: tuple(places[int(name)]) for name in marks})
    moved = BoardViews("abc", [SIZE] * 3, replace(evidence, floor=surveyed), given=KNOWN, up=up).result().calibration
    for camera, center in zip(moved.cameras, centers, strict=True):
        pose = camera.world_to_camera.numpy()
        assert -pose[:3, :3].T @ pose[:3, 3] == pytest.approx(center + shift, abs=0.01)
    assert 0 < found.record.world.vertical_std_deg < 1
    assert 0 < found.record.world.floor_std < 0.01
    assert "(the board on the floor, +-" in found.record.world.text


def test_errors_of_a_board_on_the_floor_are_of_its_stated_size() -> None:
    cameras, lenses = rig(views=())[0][:2], np.array([PINHOLE] * 2)
    state = State(lenses=lenses, cameras=np.stack(cameras), clocks=np.zeros(2), boards=np.zeros((0, 4, 4)))
    places = [CHARUCO.points @ (pose @ FLOOR)[:3, :3].T + (pose @ FLOOR)[:3, 3] for pose in cameras]
    true = [seen(KNOWN[0], local) for local in places]
    rng, errors = np.random.default_rng(1), []
    for _ in range(40):
        noisy = [pixels + rng.normal(0, 0.2, pixels.shape) for pixels in true]
        own = [Sighting(view=v, pose=0, numbers=np.arange(len(noisy[v])), pixels=noisy[v]) for v in range(2)]
        pose, covariance = locate_board(CHARUCO, [LensModel.BROWN_CONRADY] * 2, state, own, [SIZE] * 2)
        moved = np.linalg.inv(FLOOR) @ pose
        motion = np.append(Rotation.from_matrix(moved[:3, :3]).as_rotvec(), moved[:3, 3])
        errors.append(motion @ np.linalg.solve(covariance, motion) / 6)
    assert np.mean(errors) == pytest.approx(1, rel=0.25)


def test_a_floor_that_no_camera_shows_is_an_error() -> None:
    _, evidence = rig(given=KNOWN)
    with pytest.raises(InputError, match="no placed camera shows the board at the instant"):
        BoardViews("abc", [SIZE] * 3, replace(evidence, floor=24), given=KNOWN).result()


@pytest.mark.parametrize(("late_s", "given"), [(0.01, KNOWN), (-0.03, KNOWN), (0.06, None)])
def test_the_clock_of_a_camera_is_determined(late_s, given) -> None:
    cameras, evidence = rig(count=24, late_s=late_s)
    found = BoardViews("abc", [SIZE] * 3, evidence, given=given).result()
    assert center_errors(found, cameras).max() < 0.008
    assert [camera.clock_s for camera in found.record.cameras] == [None, pytest.approx(-late_s, abs=0.002), None]
    focals = [camera.focal for camera in found.record.cameras]
    np.testing.assert_allclose(focals, (PINHOLE[0] * PINHOLE[1]) ** 0.5, rtol=0.003)
    (notice,) = found.record.notices
    assert re.search(rf"not synchronous: b is \d+ ms {'late' if late_s > 0 else 'early'}", notice.text)


def test_clocks_far_apart_are_the_reason_that_is_given() -> None:
    refusals = []
    for step in (0.03, 0.1):
        with pytest.raises(InputError, match="too few cameras") as refused:
            BoardViews("ab", [SIZE] * 2, rig(count=24, late_s=0.2, step=step, views=(0, 1))[1]).result()
        assert "offsets of the clocks" in refused.value.hint
        refusals.append(str(refused.value))
    assert "b: its clock does not settle: -159 ms" in refusals[0]
    assert "b: it shows the board with others at 24 instants, and agrees with one at 1:" in refusals[1]


@pytest.mark.parametrize(("late_s", "pairings"), [(0.0, 3), (0.06, 3), (-0.9, 3), (0.25, 0)])
def test_instants_are_paired_by_the_clocks_of_the_board(late_s, pairings, tmp_path: Path, monkeypatch) -> None:
    """Frames are searched once, and others only where clocks differ; one that does not settle is left out."""
    cameras, evidence = rig(count=70, late_s=late_s, speed=0.4)
    frames = {(one.view, one.pose): Corners(numbers=one.numbers, pixels=one.pixels) for one in evidence.shared}
    for name in "abc":
        write_images(tmp_path / name, {f"{index:03d}.png": np.zeros((*SIZE, 3), np.uint8) for index in range(70)})
    searched: list[list[list[int]]] = []

    def found(board, footage, _):
        searched.append([own for _, own in footage])
        return board, [[frames.get((view, index)) for index in own] for view, (_, own) in enumerate(footage)]

    monkeypatch.setattr(calibration, "find_boards", found)
    monkeypatch.setattr(calibration, "MAX_PICTURES", 60)
    monkeypatch.setattr(calibration, "_MAX_PAIRINGS", pairings)
    result = calibration.calibrate(tmp_path, board=str(CHARUCO), observer=None, image_fps=10)
    if not pairings:
        assert [camera.placed for camera in result.record.cameras] == [True, False, True]
        assert "its clock" in result.record.cameras[1].reason
        return
    clocks = [None, pytest.approx(-late_s, abs=0.001) if late_s else None, None]
    assert [camera.clock_s for camera in result.record.cameras] == clocks
    assert center_errors(result, cameras).max() < 0.015
    assert max(camera.residual_px for camera in result.record.cameras) < 0.14
    assert (len(searched) > 1) == (abs(late_s) > 0.1)
    assert all(not own for search in searched[1:] for own in (search[0], search[2]))
    assert not any({*first[1]} & {*second[1]} for first, second in pairwise(searched))


@pytest.mark.parametrize(("noise_s", "fps"), [(None, None), (0.012, None), (None, 60)])
def test_frames_between_the_instants_are_taken_at_their_stated_times(
    noise_s, fps, tmp_path: Path, monkeypatch
) -> None:
    """A stated clock is not reported again, also if time stamps of single frames are late, or frames are repeated."""
    cameras, evidence = rig(count=24, late_s=0.047, step=1 / 30)
    frames = {(one.view, one.pose): Corners(numbers=one.numbers, pixels=one.pixels) for one in evidence.shared}
    for name in "abc":
        write_images(tmp_path / name, {f"{index:03d}.png": np.zeros((*SIZE, 3), np.uint8) for index in range(24)})
    clock = {"offset_s": 0.047} if noise_s is None else {"times_s": 0.047 + np.arange(24) / 30}
    if noise_s is not None:
        clock["times_s"] = (clock["times_s"] + noise_s * (np.arange(24) % 7 == 3)).tolist()
    (tmp_path / "sync.json").write_text(json.dumps({"views": {"b": clock}}))

    def found(board, footage, _):
        return board, [[frames.get((view, index)) for index in own] for view, (_, own) in enumerate(footage)]

    monkeypatch.setattr(calibration, "find_boards", found)
    result = calibration.calibrate(tmp_path, board=str(CHARUCO), observer=None, image_fps=30, fps=fps)
    assert [camera.clock_s for camera in result.record.cameras] == [None] * 3
    assert max(camera.residual_px for camera in result.record.cameras) < 0.2
    assert center_errors(result, cameras).max() < 0.015


def test_options_name_the_instant_on_the_floor_and_footage_for_lenses(tmp_path: Path, monkeypatch) -> None:
    _, evidence = rig(count=14, views=(0, 1))
    frames = {(one.view, one.pose): Corners(numbers=one.numbers, pixels=one.pixels) for one in evidence.shared}
    for name, size in (("scene/a", SIZE), ("scene/b", SIZE), ("lens/b", SIZE), ("small/b", (48, 64))):
        write_images(tmp_path / name, {f"{index:03d}.png": np.zeros((*size, 3), np.uint8) for index in range(14)})

    def found(board, footage, _):
        return board, [[frames.get((min(view, 1), index)) for index in own] for view, (_, own) in enumerate(footage)]

    monkeypatch.setattr(calibration, "find_boards", found)
    monkeypatch.setattr(calibration, "MAX_PICTURES", 12)  # of 14: without 4 and 9
    settings = {"board": str(CHARUCO), "observer": None, "image_fps": 10}
    for options, message in (
        ({"floor_at": 14}, "floor_at=14: the scene has 14 instants"),
        ({"floor_at": -1}, "floor_at=-1 is no instant"),
        ({"lenses": tmp_path / "small"}, "lenses: b has 64x48 pixels, in the scene 640x480"),
        ({"lenses": tmp_path, "intrinsics": tmp_path}, "lenses and intrinsics contradict each other"),
    ):
        with pytest.raises(UsageError, match=message):
            calibration.calibrate(tmp_path / "scene", **settings, **options)
    given, search = calibration.BoardSearch.evidence, calibration.BoardSearch
    kept: list[BoardEvidence] = []
    monkeypatch.setattr(search, "evidence", lambda *own, **how: kept.append(given(*own, **how)) or kept[-1])
    result = calibration.calibrate(tmp_path / "scene", **settings, lenses=tmp_path / "lens", floor_at=4)
    assert max(camera.residual_px for camera in result.record.cameras) < 0.2
    (evidence,) = kept
    assert (len(evidence.instants), evidence.floor) == (13, 4)
    assert {one.pose for one in evidence.alone} == set(range(13, 25))
    assert result.record.world is not None


def without_view(evidence: BoardEvidence, view: int, kept) -> BoardEvidence:
    return replace(evidence, shared=[one for one in evidence.shared if one.view != view or kept(one.pose)])


def test_footage_for_lenses_has_a_clock_of_its_own() -> None:
    _, evidence = rig(late_s=0.06)
    own = [replace(one, pose=one.pose + 24, velocity=5 * one.velocity) for one in evidence.shared if one.view == 1]
    found = BoardViews("abc", [SIZE] * 3, replace(evidence, alone=own)).result()
    assert found.record.cameras[1].clock_s == pytest.approx(-0.06, abs=0.002)


def test_no_clock_is_stated_of_a_view_that_is_seen_with_no_other(monkeypatch) -> None:
    """The first view has clock 0, and is not placed either: others are relative to the second one."""
    monkeypatch.setattr(board_views, "FOCAL_LIMIT", 0.003)
    _, evidence = rig(late_s=0.06)
    apart = [replace(one, view=3, pose=one.pose + 24) for one in evidence.shared if one.view == 2]
    evidence = without_view(replace(evidence, shared=[*evidence.shared, *apart]), 0, lambda pose: pose < 5)
    found = BoardViews("abcd", [SIZE] * 4, evidence).result()
    assert [camera.placed for camera in found.record.cameras] == [False, True, True, False]
    assert [camera.clock_s for camera in found.record.cameras[1:]] == [None, pytest.approx(0.06, abs=0.004), None]


def test_skew_is_taken_out_of_motion_as_out_of_pixels() -> None:
    pixels, change = np.array([[300.0, 200.0], [400.0, 300.0]]), np.array([[10.0, 20.0], [30.0, -50.0]])
    one = Sighting(view=0, pose=0, numbers=np.arange(2), pixels=pixels, velocity=change, acceleration=change)
    plain = without_skew(one, SKEWED)
    expected = change[:, 0] - 40 / 612 * change[:, 1]
    for changed in (plain.velocity, plain.acceleration):
        np.testing.assert_allclose(changed, np.column_stack([expected, change[:, 1]]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda evidence: without_view(evidence, 2, lambda _: False), "the board is not found"),
        (
            lambda evidence: without_view(evidence, 2, lambda pose: pose < 2),
            "another view at 2 instants, 3 are needed",
        ),
        (
            lambda evidence: replace(
                evidence, shared=[replace(one, pose=one.pose + 1000 * (one.view == 2)) for one in evidence.shared]
            ),
            "no other view shows the board",
        ),
        (
            lambda evidence: replace(
                evidence,
                shared=[
                    replace(one, pixels=one.pixels + 60 * (one.pose % 2)) if one.view == 2 else one
                    for one in evidence.shared
                ],
            ),
            "does not fit the others",
        ),
    ],
    ids=["unseen", "hardly seen", "apart", "moved"],
)
def test_a_view_that_is_not_determined_is_left_out_with_the_reason(change, reason) -> None:
    _, evidence = rig()
    found = BoardViews("abc", [SIZE] * 3, change(evidence), given=KNOWN).result()
    assert found.calibration.names == ("a", "b")
    (notice,) = found.record.notices
    assert re.search(rf"1 of 3 views are not placed \(c: .*({reason})", notice.text)


@pytest.mark.parametrize(
    ("change", "given", "order"),
    [
        (lambda one: one.view == 1, None, "ab"),
        (lambda one: one.view == 1, KNOWN[:2], "ab"),
        (lambda one: one.view == 0, KNOWN[:2], "ba"),
        (lambda one: one.view == one.pose % 2, KNOWN[:2], "ba"),
    ],
    ids=["second view, lens unknown", "second view", "first view", "never together"],
)
def test_too_few_cameras_are_refused_with_a_reason_for_each_the_cause_first(change, given, order) -> None:
    _, evidence = rig(views=(0, 1))
    evidence = replace(evidence, shared=[one for one in evidence.shared if change(one)])
    with pytest.raises(
        InputError, match=r"too few cameras: {}: .*(board|focal).*; {}: .*(board|focal)".format(*order)
    ):
        BoardViews("ab", [SIZE] * 2, evidence, given=given).result()


def test_too_few_cameras_for_a_wrong_clock_have_a_hint_to_the_clocks() -> None:
    _, evidence = rig(views=(0, 1))
    moved = [replace(one, pixels=one.pixels + 60 * (one.pose % 2) * one.view) for one in evidence.shared]
    evidence = replace(evidence, shared=moved)
    with pytest.raises(InputError, match=r"too few cameras: .*its clock is wrong") as refused:
        BoardViews("ab", [SIZE] * 2, evidence, given=KNOWN[:2]).result()
    assert "offsets of the clocks" in refused.value.hint


def test_a_view_in_too_few_pictures_for_a_lens_does_not_disturb_the_others() -> None:
    cameras, evidence = rig()
    found = BoardViews("abc", [SIZE] * 3, without_view(evidence, 0, lambda pose: pose < 3)).result()
    assert found.calibration.names == ("b", "c")
    pose = found.calibration.cameras[1].world_to_camera.numpy()
    np.testing.assert_allclose(pose, cameras[2] @ np.linalg.inv(cameras[1]), atol=0.03)
    assert [camera.residual_px for camera in found.record.cameras[1:]] == pytest.approx([0.118] * 2, rel=0.1)


def test_boards_without_tilt_do_not_determine_a_focal_length() -> None:
    _, evidence = rig(tilt=0.0, views=(1,))
    alone = replace(evidence, shared=[replace(one, view=0) for one in evidence.shared])
    with pytest.raises(InputError, match=r"focal length not determined: \d+ px .* tilts"):
        BoardViews("a", [SIZE], alone).result()


def test_a_board_that_is_nowhere_is_an_error_with_its_numbers() -> None:
    evidence = BoardEvidence(board=CHARUCO, shared=[], alone=[], instants=np.arange(5.0))
    with pytest.raises(InputError, match="board charuco:7x5,120mm,90mm,4x4_50 is found in no picture") as refused:
        BoardViews("ab", [SIZE] * 2, evidence).result()
    assert "inner corners" in refused.value.hint


def test_the_command_calibrates_a_rig_from_pictures(tmp_path: Path, capsys, monkeypatch) -> None:
    """Focal lengths within 0.3 %, the baseline within 0.5 %."""
    intrinsics = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])
    second = board_pose([0, 0.4, 0], [-0.4, 0, 0.1])
    rng = np.random.default_rng(5)
    board = board_of("chessboard:6x5,60mm")
    middle = np.append(board.outline.mean(0), 0)
    pictures: dict[str, dict[str, np.ndarray]] = {"a": {}, "b": {}}
    for index in range(14):
        pose = board_pose(rng.uniform(-0.55, 0.55, 3), [0, 0, 0])
        pose[:3, 3] = rng.uniform([-0.1, -0.12, 0.75], [0.2, 0.12, 1.1]) - pose[:3, :3] @ middle
        for name, camera in (("a", np.eye(4)), ("b", second)):
            gray = drawn(board, camera @ pose, intrinsics, (240, 320))
            pictures[name][f"{index:03d}.png"] = np.repeat(gray[..., None], 3, 2)
    for name, own in pictures.items():
        write_images(tmp_path / "scene" / name, own)
    out, report = tmp_path / "cameras.json", tmp_path / "corners.png"
    words = ["calibrate", tmp_path / "scene", "--board", "chessboard:6x5,60mm", "--out", out, "--report", report]
    (tmp_path / "scene" / "rig.toml").write_text("[a]\nmatrix = [[300, 0, 160], [0, 300, 120], [0, 0, 1]]\n")
    found: list[tuple] = []  # the same boards for both runs that search them
    monkeypatch.setattr(
        calibration, "find_boards", lambda *given: (found or found.append(find_boards(*given)) or found)[0]
    )
    assert run([*map(str, words), "--json"]) == 0
    printed = capsys.readouterr()
    assert "ignored rig.toml: possibly a calibration; pass --intrinsics FILE to use it" in printed.err
    (tmp_path / "scene" / "my board.toml").write_text(FILES["config.toml"][0])
    assert run(["calibrate", str(tmp_path / "scene"), "--out", str(tmp_path / "other.json")]) == 2
    named = f"--board '{tmp_path}/scene/my board.toml', which describes one"
    assert capsys.readouterr().err.endswith(f"error: no --board is given\nhint:  give {named}\n")
    assert run([*map(str, words[:4]), "--out", str(tmp_path / "rig.yml"), "--lens-model", "fisheye"]) == 2
    assert capsys.readouterr().err.startswith("error: every view has a fisheye lens that the format opencv")
    with monkeypatch.context() as patched:
        patched.setattr(board_views, "FOCAL_LIMIT", 0.0)
        assert run([*map(str, words), "--overwrite"]) == 3
    (hint,) = re.findall("hint: .*", capsys.readouterr().err)
    with monkeypatch.context() as patched:  # a picture that cannot be written costs no calibration
        patched.setattr(calibration, "draw_corners", lambda *_: (tmp_path / "none" / "a.png").write_bytes(b""))
        kept = tmp_path / "kept.json"
        assert run([*map(str, words[:5]), str(kept), "--report", str(tmp_path / "other.png")]) != 0
        assert kept.exists()
    with monkeypatch.context() as patched:  # nor one that is interrupted, and the message names the calibration
        patched.setattr(calibration, "draw_corners", Mock(side_effect=Stopped(15)))
        capsys.readouterr()
        assert run([*map(str, words[:5]), str(tmp_path / "i.json"), "--report", str(tmp_path / "i.png"), "-q"]) == 143
        assert f"the calibration is in '{tmp_path}/i.json'" in capsys.readouterr().err
        assert (tmp_path / "i.json").exists()
    with monkeypatch.context() as patched:  # nor does it hide where cameras are kept that a format does not hold
        for module, name in ((calibrations, "write_calibration"), (calibration, "draw_corners")):
            patched.setattr(module, name, Mock(side_effect=OutputError(f"fault of {name}")))
        capsys.readouterr()
        assert run([*map(str, words[:5]), str(tmp_path / "c.json"), "--report", str(tmp_path / "c.png"), "-q"]) == 5
        assert "error: fault of write_calibration" in capsys.readouterr().err
    assert "give --intrinsics FILE with the calibration in the folder" in hint
    assert hint.count("--intrinsics") == 1
    record = json.loads(printed.out)
    assert [camera["focal"] for camera in record["cameras"]] == pytest.approx([300, 300], rel=3e-3)
    read = read_calibration(out)
    assert read.scale is Scale.METRIC
    apart = read.cameras[1].world_to_camera[:3, 3].norm()
    assert float(apart) == pytest.approx(float(np.linalg.norm(second[:3, 3])), rel=5e-3)
    assert cv2.imread(str(report)) is not None
    assert run([*map(str, words)]) == 2
    assert "exists" in capsys.readouterr().err
