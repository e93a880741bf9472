"""Errors of registered cameras against the reference of a public rig, with known differences."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.lab import public_rigs
from page4d.lab.public_rigs import RIGS, Validation, board_errors, rig_errors, validate
from page4d.output.rig_record import RegistrationRecord
from page4d.rig.records import Lens, RigRegistration, placed_record
from page4d.run import registration
from page4d.scene.open import open_scene
from page4d.scene.records import ViewCamera
from page4d_cli.commands.validate import markdown
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]
OFFICE = ROOT / "samples" / "office"
LENS = Lens(intrinsics=np.array([[800.0, 0, 320], [0, 800, 240], [0, 0, 1]]), image_size=(480, 640))


def ring(radius: float = 3.0, focal: float = 1.0) -> list[ViewCamera]:
    """Return four cameras on a circle, 30 degrees apart, that look at its centre."""
    cameras = []
    lens = Lens(intrinsics=LENS.intrinsics * [[focal], [focal], [1]], image_size=LENS.image_size)
    for angle in (0.0, 30.0, 60.0, 90.0):
        pose = np.eye(4)
        pose[:3, :3] = Rotation.from_euler("y", angle, degrees=True).as_matrix()
        pose[2, 3] = radius
        cameras.append(lens.camera(pose))
    return cameras


def registered(cameras: list[ViewCamera | None]) -> RigRegistration:
    """Return the record of a registration that places some cameras."""
    views = [
        placed_record(f"cam_{index}", LENS, "" if camera else "no people") for index, camera in enumerate(cameras)
    ]
    return RigRegistration(record=RegistrationRecord(asked="auto", cameras=views), cameras=cameras)


def moved(cameras: list[ViewCamera], scale: float) -> list[ViewCamera | None]:
    """Return the cameras in another world of another unit."""
    world = np.eye(4)
    world[:3, :3], world[:3, 3] = Rotation.from_rotvec([0.3, -0.2, 1.0]).as_matrix(), [1.0, -2.0, 0.5]
    poses = [camera.world_to_camera.numpy() @ world for camera in cameras]
    return [
        LENS.camera(np.block([[pose[:3, :3], scale * pose[:3, 3:]], [np.zeros((1, 3)), np.ones((1, 1))]]))
        for pose in poses
    ]


def test_cameras_in_another_world_and_unit_have_no_error() -> None:
    errors = rig_errors(registered(moved(ring(), 0.2)), ring(), "unknown", 1.0)
    assert (errors.placed, errors.views, errors.wrong) == (4, 4, 0)
    for value in (errors.rotation_max_deg, errors.direction_max_deg, errors.centers_mm, errors.distances_mm):
        assert value == pytest.approx(0.0, abs=1e-4)
    assert errors.focal == pytest.approx(0.0, abs=1e-12)


def test_a_turned_camera_is_wrong_in_its_pairs() -> None:
    *cameras, turned = moved(ring(), 1.0)
    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_euler("z", 10, degrees=True).as_matrix()
    cameras.append(LENS.camera(turn @ turned.world_to_camera.numpy()))
    errors = rig_errors(registered(cameras), ring(focal=1.1), "unknown", 1.0)
    assert (errors.placed, errors.wrong) == (4, 1)
    # Three of six pairs have the error: the median is the mean of the two middle ones.
    assert (errors.rotation_deg, errors.rotation_max_deg) == (pytest.approx(5.0), pytest.approx(10.0))
    assert errors.centers_mm == pytest.approx(0.0, abs=1e-4)  # a camera turns about its centre
    assert errors.focal == pytest.approx(1 - 1 / 1.1)
    assert rig_errors(registered(cameras), ring(), "known", 1.0).focal is None


def test_distances_are_compared_after_scaling_by_the_longest() -> None:
    true, cameras = ring(), ring()
    cameras[1].world_to_camera[2, 3] += 0.03  # along its optical axis
    errors = rig_errors(registered(list(cameras)), true, "known", 1.0)
    centers = [
        np.stack([-(c.world_to_camera[:3, :3].T @ c.world_to_camera[:3, 3]).numpy() for c in rig])
        for rig in (cameras, true)
    ]
    lengths = [
        np.array([np.linalg.norm(own[a] - own[b]) for a in range(4) for b in range(a + 1, 4) if (a, b) != (0, 3)])
        for own in centers
    ]
    assert errors.distances_mm == pytest.approx(1000 * float(np.sqrt(np.mean((lengths[0] - lengths[1]) ** 2))))


def test_views_that_are_not_placed_are_counted_and_not_compared() -> None:
    errors = rig_errors(registered([*moved(ring(), 1.0)[:3], None]), ring(), "known", 1.0)
    assert (errors.placed, errors.views) == (3, 4)
    assert errors.rotation_max_deg == pytest.approx(0.0, abs=1e-4)
    assert rig_errors(registered([None] * 4), ring(), "known", 1.0).rotation_deg is None


def test_corners_of_a_board_are_triangulated(tmp_path: Path) -> None:
    """A board of 5x4 corners, 30 mm apart, at two instants."""
    grid = np.stack([*np.meshgrid(np.arange(5) * 0.03, np.arange(4) * 0.03), np.zeros((4, 5))], -1).reshape(-1, 3)
    pixels = ["sync_index,cam_id,object_id,keypoint_id,img_loc_x,img_loc_y"]
    corners = ["sync_index,object_id,keypoint_id,x_coord,y_coord,z_coord"]
    cameras = ring()
    for instant in range(2):
        board = grid @ Rotation.from_rotvec([0.2, 0.5 + instant, 0.1]).as_matrix().T
        for key, corner in enumerate(board):
            corners.append(f"{instant},0,{key},{','.join(map(str, corner))}")
            for view, camera in enumerate(cameras):
                local = camera.world_to_camera.numpy() @ [*corner, 1.0]
                x, y, _ = camera.intrinsics.numpy() @ local[:3] / local[2]
                pixels.append(f"{instant},{view},0,{key},{x - 0.5},{y - 0.5}")
    (tmp_path / "xy_CHARUCO.csv").write_text("\n".join(pixels))
    (tmp_path / "xyz_CHARUCO.csv").write_text("\n".join(corners))
    names = [SimpleNamespace(name=f"cam_{view}", source=SimpleNamespace(size=(480, 640))) for view in range(4)]
    scene = SimpleNamespace(views=names)
    for found in (moved(cameras, 0.3), [*moved(cameras, 0.3)[:3], None]):
        distance, flatness = board_errors(tmp_path, registered(found), scene)
        assert (distance, flatness) == (pytest.approx(0.0, abs=1e-3), pytest.approx(0.0, abs=1e-3))
    wrong = moved(cameras, 0.3)
    wrong[1] = moved(ring(radius=3.1), 0.3)[1]
    distance, _ = board_errors(tmp_path, registered(wrong), scene)
    assert distance > 0.05


def test_the_cameras_of_the_office_fit_its_board() -> None:
    scene = open_scene(OFFICE, calibration=OFFICE / "camera_array.toml")
    truth = [view.camera for view in scene.views if view.camera is not None]
    found = registered([*truth])
    assert rig_errors(found, truth, "known", 1.0).centers_mm == pytest.approx(0.0, abs=1e-6)
    corners, flatness = board_errors(OFFICE, found, scene)
    assert (corners, flatness) == (pytest.approx(0.0, abs=2.0), pytest.approx(0.0, abs=1.0))


def test_the_reason_for_cameras_that_are_not_placed_is_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = open_scene(OFFICE, calibration=OFFICE / "camera_array.toml")
    *placed, _ = (view.camera for view in scene.views)
    monkeypatch.setattr(public_rigs, "register", lambda *_, **__: registered([*placed, None]))
    monkeypatch.setattr(registration, "is_fetched", lambda: False)
    ended = cli("validate", "office")
    assert "registered cameras" in ended.out
    for lenses in ("known", "unknown"):
        expected = (
            f"{lenses} lenses: 1 of 4 cameras are not placed: cam_3: no people; run 'page4d weights get people'"
        )
        assert expected in ended.err


@pytest.mark.slow
def test_the_office_is_validated() -> None:
    known, unknown = validate("office", OFFICE, None).cameras
    assert (known.placed, known.wrong, unknown.wrong) == (4, 0, 0)
    assert known.corners_mm == pytest.approx(0.0, abs=5.0)


def test_the_tables_of_the_documentation_are_the_output_of_the_command() -> None:
    results = [
        Validation.model_validate(one) for one in json.loads((ROOT / "tests/golden/validation.json").read_text())
    ]
    assert {result.rig for result in results} == set(RIGS)
    assert markdown(results) in (ROOT / "docs" / "validation.md").read_text()
    rotation = {
        (result.rig, one.lenses): f"{one.rotation_deg or 0:.1f}°" for result in results for one in result.cameras
    }
    clocks = next(result.clocks for result in results if result.rig == "sports")
    depth = next(result.depth for result in results if result.rig == "tabletop")
    readme = (ROOT / "README.md").read_text()
    for figure in (
        f"{rotation['treadmill', 'known']} with known lenses, {rotation['treadmill', 'unknown']} without",
        f"{rotation['caliscope', 'known']} (`caliscope`), {rotation['office', 'known']} (`office`)",
        f"{clocks.median_ms:.0f} ms (`sports`)",
        f"AbsRel {depth.abs_rel:.2f} (`tabletop`",
    ):
        assert figure in readme
