"""Registration in runs, with the registration itself replaced: cameras, scale, records and resuming."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from page4d.choices import CameraMotion, ExistingOutput, Poses, Registration, UpAxis, WorldFrame
from page4d.conventions import Scale, ScaleSource
from page4d.errors import InputError, InterruptedRunError, Level, SilentObserver, UsageError, WeightsError
from page4d.formats.calibrations import read_calibration
from page4d.geometry.transforms import camera_centers
from page4d.io.folders import CachedFiles
from page4d.options import SceneOptions
from page4d.output.reader import open_output
from page4d.output.record import RunRecord
from page4d.output.rig_record import PairRecord, RegistrationRecord, WorldRecord
from page4d.output.upward import upward_of
from page4d.rig import evidence, upright
from page4d.rig.camera_motion import ViewMotion
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import FocalSource, Lens, RigRegistration, placed_record
from page4d.run import registration
from page4d.run.plan import plan_run
from page4d.run.reconstruct import reconstruct
from page4d.run.time import registration_stages
from page4d.scene.records import Scene, ViewCamera
from tests.run.test_reconstruct import CAPTURE, SETTINGS, StopAt, bytes_of, in_random_world, uncalibrated
from tests.run.truth import TruthPredictor

UNIT = 0.5
"""Units of the registered rig per metre."""

HEIGHT = 1.7
SEATED = WorldRecord(frame=WorldFrame.FIRST_CAMERA, reason="0 poses of people stand, 10 are needed")
APART = float((CAPTURE.cameras.centers[0, 0] - CAPTURE.cameras.centers[0, 1]).norm())


class FakeRegistration:
    """Returns the true cameras in another world and unit, for the views of `placed`; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.placed = {"cam01", "cam02"}
        self.focal_source = FocalSource.OPTION

    def __call__(self, pixels: PixelEvidence, notify: object) -> RigRegistration:
        del notify
        self.calls += 1
        scene = pixels.scene
        pixels.progress(1, 2, "registering: pairs from people")
        true = CAPTURE.cameras.world_to_camera[0].double()
        records, cameras = [], []
        for name in scene.view_names:
            index = ("cam01", "cam02").index(name)
            pose = (true[index] @ torch.linalg.inv(true[0])).numpy()
            pose[:3, 3] *= UNIT
            lens = Lens(
                intrinsics=CAPTURE.cameras.intrinsics[0, index].double().numpy(),
                image_size=scene.views[0].source.size,
                focal_source=self.focal_source,
            )
            is_placed = name in self.placed
            records.append(placed_record(name, lens, "" if is_placed else "best score 0.21"))
            cameras.append(lens.camera(pose) if is_placed else None)
        accepted = len(self.placed) == 2
        reason = "" if accepted else "score 0.21 below 0.43"
        pair = PairRecord(
            views=("cam01", "cam02"), evidence="people", score=0.6, control=0.2, accepted=accepted, reason=reason
        )
        record = RegistrationRecord(
            asked=pixels.settings.register,
            pairs=[pair],
            cameras=records,
            num_instants=9,
            person_height=HEIGHT * UNIT,
            seconds={"people": 1.0},
        )
        return RigRegistration(record=record, cameras=cameras)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRegistration:
    found = FakeRegistration()
    monkeypatch.setattr(registration, "register_rig", found)
    monkeypatch.setattr(upright, "upright_world", lambda *_: SEATED)
    monkeypatch.setattr(registration, "is_fetched", lambda: True)
    monkeypatch.setattr(upright, "is_fetched", lambda: True)
    monkeypatch.setattr(CachedFiles, "are_present", True)
    monkeypatch.setattr(registration, "model_sha256", lambda: "0" * 64)
    monkeypatch.setattr(evidence, "measure_camera_motion", lambda *_: ())
    return found


def run(out: Path, existing: ExistingOutput = ExistingOutput.REFUSE, **changes):
    scene, predictor = uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE, in_random_world)
    changes = {"register": Registration.AUTO, **changes}
    return reconstruct(scene, predictor, out=out, settings=SETTINGS, existing=existing, **changes)


def test_placed_cameras_are_those_of_the_result(tmp_path: Path):
    record = run(tmp_path / "out")
    assert record.scene.calibration == "registered from people (2 of 2 views)"
    assert (record.scale, record.scale_source) == (Scale.ARBITRARY, None)
    assert [camera.source for camera in record.registration.cameras] == ["evidence"] * 2
    assert record.registration.pairs[0].accepted
    assert record.registration.pose_model is not None
    assert record.timings["register"] > 0
    poses = open_output(tmp_path / "out").cameras.world_to_camera
    apart = (camera_centers(poses[:, 0]) - camera_centers(poses[:, 1])).norm(dim=-1)
    torch.testing.assert_close(apart, torch.full_like(apart, UNIT * APART))
    for view, name in enumerate(("cam01", "cam02")):
        depth = open_output(tmp_path / "out").depth(8, name)
        assert np.abs(depth - UNIT * CAPTURE.rendered(8, view).depth.numpy()).max() <= 0.0006


@pytest.mark.parametrize(
    ("length", "source"), [(f"person={HEIGHT}m", "person"), (f"cam01-cam02={APART:.9f}m", "distance")]
)
def test_a_known_length_makes_a_registered_rig_metric(tmp_path: Path, length: str, source: str):
    record = run(tmp_path / "out", scale_from=length)
    assert (record.scale, record.scale_source) == (Scale.METRIC, ScaleSource(source))
    assert record.registration.metres_per_unit == pytest.approx(1 / UNIT)
    poses = open_output(tmp_path / "out").cameras.world_to_camera
    apart = (camera_centers(poses[:, 0]) - camera_centers(poses[:, 1])).norm(dim=-1)
    torch.testing.assert_close(apart, torch.full_like(apart, APART))


def test_a_resumed_run_keeps_the_registration_and_writes_the_same_bytes(fake: FakeRegistration, tmp_path: Path):
    run(tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "part", observer=StopAt(3))
    assert fake.calls == 2
    run(tmp_path / "part", ExistingOutput.RESUME)
    assert fake.calls == 2
    assert bytes_of(tmp_path / "part") == bytes_of(tmp_path / "whole")
    with pytest.raises(UsageError, match="differs: focal"):
        run(tmp_path / "part", ExistingOutput.RESUME, focal="50")
    assert fake.calls == 2


def test_a_rig_that_is_not_placed_is_the_networks_without_a_warning(fake: FakeRegistration, tmp_path: Path):
    fake.placed = set()
    record = run(tmp_path / "out")
    run(tmp_path / "off", register=Registration.NETWORK)
    assert not record.warnings
    assert [camera.source for camera in record.registration.cameras] == ["network"] * 2
    assert record.registration.cameras[1].reason == "best score 0.21"
    assert (tmp_path / "out/cameras.json").read_bytes() == (tmp_path / "off/cameras.json").read_bytes()


def test_requested_evidence_that_places_nothing_is_an_error(fake: FakeRegistration, tmp_path: Path):
    fake.placed = set()
    with pytest.raises(InputError, match="register='people' places no camera"):
        run(tmp_path / "out", register=Registration.PEOPLE)
    assert not (tmp_path / "out").exists()


def test_a_height_needs_placed_people(fake: FakeRegistration, tmp_path: Path):
    fake.placed = set()
    with pytest.raises(InputError, match="people place 0 of 2 cameras"):
        run(tmp_path / "out", scale_from="person=1.7m")
    with pytest.raises(UsageError, match="without registration"):
        run(tmp_path / "out", scale_from="person=1.7m", register=Registration.NETWORK)


TURN = torch.eye(4, dtype=torch.float64)
TURN[:3] = torch.tensor([[0.0, -1, 0, 0.3], [0, 0, -1, 0.2], [1, 0, 0, 0.1]])
STANDING = WorldRecord(
    frame=WorldFrame.UPRIGHT,
    up=UpAxis.Z,
    transform=TURN.tolist(),
    vertical=TURN[2, :3].tolist(),
    vertical_std_deg=2.0,
    num_poses=30,
)


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> list[WorldRecord]:
    """What people show of gravity, in place of their keypoints: the last element."""
    shown = [STANDING]
    monkeypatch.setattr(upright, "upright_world", lambda *_: shown[-1])
    return shown


def poses_of(folder: Path) -> torch.Tensor:
    return open_output(folder).cameras.world_to_camera


def test_a_registered_rig_stands_upright_and_so_do_runs_with_its_cameras(people: list[WorldRecord], tmp_path: Path):
    assert run(tmp_path / "first", world="first-camera").world is None
    assert run(tmp_path / "out", scale_from=f"person={HEIGHT}m").world == STANDING
    turn = TURN.clone()
    turn[:3, 3] /= UNIT  # the transform is in units of the rig, as the cameras of the first run
    before = poses_of(tmp_path / "first").clone()
    before[..., :3, 3] /= UNIT
    torch.testing.assert_close(poses_of(tmp_path / "out"), before @ torch.linalg.inv(turn))
    out = open_output(tmp_path / "out")
    assert out.cameras.up is UpAxis.Z
    assert upward_of(out, UpAxis.AUTO).found == "the world is upright"
    assert upward_of(open_output(tmp_path / "first"), UpAxis.AUTO).axis is UpAxis.MINUS_Y
    scene = calibrated_by(tmp_path / "out" / "cameras.json")
    run_calibrated(tmp_path / "again", scene=scene)
    torch.testing.assert_close(poses_of(tmp_path / "again"), poses_of(tmp_path / "out"))
    assert open_output(tmp_path / "again").cameras.up is UpAxis.Z
    people.append(SEATED)  # the axis of the file suffices
    run_calibrated(tmp_path / "y", scene=scene, world="upright", up="y")
    turned = poses_of(tmp_path / "y")
    torch.testing.assert_close(turned[..., :3, 1], poses_of(tmp_path / "out")[..., :3, 2])
    assert open_output(tmp_path / "y").cameras.up is UpAxis.Y


def test_a_rig_whose_people_sit_keeps_the_first_camera_and_states_why(people: list[WorldRecord], tmp_path: Path):
    people.append(SEATED)
    assert run(tmp_path / "out").world == SEATED
    run(tmp_path / "first", world="first-camera")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "first")
    for asked, words in (({"world": "upright"}, "world='upright'"), ({"up": "y", "register": "texture"}, "up='y'")):
        with pytest.raises(InputError, match=f"{words}: 0 poses of people stand"):
            run(tmp_path / "asked", **asked)
    assert not (tmp_path / "asked").exists()


def test_a_resumed_run_keeps_its_upright_world(people: list[WorldRecord], tmp_path: Path):
    for name, start in (("registered", run), ("calibrated", run_calibrated)):
        start(tmp_path / name / "whole", world="upright")
        with pytest.raises(InterruptedRunError):
            start(tmp_path / name / "part", world="upright", observer=StopAt(3))
        people.append(SEATED)
        record = start(tmp_path / name / "part", ExistingOutput.RESUME, world="upright")
        people.append(STANDING)
        assert record.world == STANDING
        assert bytes_of(tmp_path / name / "part") == bytes_of(tmp_path / name / "whole")


def run_calibrated(
    out: Path, existing: ExistingOutput = ExistingOutput.REFUSE, scene: Scene | None = None, **changes: object
) -> RunRecord:
    scene, predictor = scene or CAPTURE.scene(), TruthPredictor(CAPTURE)
    return reconstruct(scene, predictor, out=out, settings=SETTINGS, existing=existing, **changes)


def calibrated_by(path: Path) -> Scene:
    """Return the scene with the cameras of a file."""
    found = read_calibration(path)
    views = tuple(
        replace(view, camera=ViewCamera(world_to_camera=camera.world_to_camera, intrinsics=camera.intrinsics))
        for view, camera in zip(CAPTURE.scene().views, found.cameras, strict=True)
    )
    return replace(CAPTURE.scene(), views=views, scale=found.scale, up=found.up)


def test_a_calibrated_rig_keeps_its_world_unless_another_is_chosen(people: list[WorldRecord], tmp_path: Path):
    assert run_calibrated(tmp_path / "given").world is None
    given = poses_of(tmp_path / "given")
    assert b'"up"' not in (tmp_path / "given/cameras.json").read_bytes()
    assert run_calibrated(tmp_path / "upright", world="upright").world == STANDING
    torch.testing.assert_close(poses_of(tmp_path / "upright"), given @ torch.linalg.inv(TURN))
    run_calibrated(tmp_path / "first", world="first-camera")
    first = poses_of(tmp_path / "first")
    torch.testing.assert_close(first[:, 0], torch.eye(4).double().expand(9, 4, 4), atol=1e-6, rtol=0)
    torch.testing.assert_close(first[:, 1], given[:, 1] @ torch.linalg.inv(given[:, 0]))
    people.append(SEATED)
    with pytest.raises(InputError, match="world='upright': 0 poses of people stand"):
        run_calibrated(tmp_path / "refused", world="upright")


def floor_table() -> tuple[torch.Tensor, torch.Tensor, list[list[str]]]:
    """Return a point of a floor below the cameras, the vertical, and rows of marks and places of three points."""
    poses = CAPTURE.cameras.world_to_camera[0].double()
    up = torch.nn.functional.normalize(-poses[:, 1, :3].mean(0) - 0.5 * poses[:, 2, :3].mean(0), dim=0)
    middle = (poses[:, 2, :3] - (poses[:, :3, :3].mT @ poses[:, :3, 3:])[..., 0]).mean(0)
    places = middle + 0.1 * torch.tensor([[1.0, 0], [-1, 1], [-1, -1]]).double() @ torch.linalg.svd(up[None])[2][1:]
    rows = []
    for view, pose in zip(CAPTURE.scene().views, poses, strict=True):
        local = (places @ pose[:3, :3].T + pose[:3, 3]) @ view.camera.intrinsics.T
        pixels = (local[:, :2] / local[:, 2:]).tolist()
        rows += [[f"p{i}", view.name, *map(str, (*pixels[i], *places[i].tolist()))] for i in range(3)]
    return middle, up, rows


def test_a_rig_stands_on_points_that_are_marked(tmp_path: Path):
    middle, up, rows = floor_table()
    poses = CAPTURE.cameras.world_to_camera[0].double()
    (tmp_path / "floor.csv").write_text("\n".join(["point,view,x,y", *(",".join(row[:4]) for row in rows)]))
    record = run_calibrated(tmp_path / "out", world="upright", floor_at=tmp_path / "floor.csv")
    assert record.world.num_points == 3
    found = poses_of(tmp_path / "out")[0].double()
    centers = -(found[:, :3, :3].mT @ found[:, :3, 3:])[..., 0]
    heights = -(poses[:, :3, :3].mT @ poses[:, :3, 3:])[..., 0] @ up - middle @ up
    torch.testing.assert_close(centers[:, 2], heights, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("scale", "factor"), [(Scale.METRIC, 1.0), (Scale.ARBITRARY, 3.0)])
def test_coordinates_of_points_give_a_run_its_world_and_metres(scale: Scale, factor: float, tmp_path: Path):
    """The world is the one of the capture again, upright, larger and in the coordinates of a survey."""
    _, up, rows = floor_table()
    right = torch.linalg.cross(CAPTURE.cameras.world_to_camera[0, 0, 2, :3].double(), up)
    right = right / right.norm()
    turn = torch.stack([right, torch.linalg.cross(up, right), up])
    origin = torch.tensor([400_123.0, 5_432_100, 312]).double()
    lines = ["point,view,x,y,X,Y,Z"]
    for row in rows:
        place = factor * turn @ torch.tensor([float(value) for value in row[4:]]).double() + origin
        lines.append(",".join([*row[:4], *map(repr, place.tolist())]))
    (tmp_path / "floor.csv").write_text("\n".join(lines))
    scene = replace(CAPTURE.scene(), scale=scale)
    record = run_calibrated(tmp_path / "out", scene=scene, world="upright", floor_at=tmp_path / "floor.csv")
    assert record.world.metres_per_unit == pytest.approx(factor, rel=1e-3)
    assert (record.unit, record.scale_source) == ("metre", "calibration" if scale is Scale.METRIC else "points")
    assert any("the cameras are 5.45e+06 from the origin" in text for text in record.warnings)
    poses, given = poses_of(tmp_path / "out")[0].double(), CAPTURE.cameras.world_to_camera[0].double()
    found, true = (-(one[:, :3, :3].mT @ one[:, :3, 3:])[..., 0] for one in (poses, given))
    found = found + torch.tensor(record.world_offset).double()
    torch.testing.assert_close(found, factor * true @ turn.T + origin, atol=0.01, rtol=0)


def run_of_one(out: Path, **changes: object) -> RunRecord:
    """Reconstruct the first view of the scene alone."""
    scene = uncalibrated(CAPTURE.scene())
    return run_calibrated(out, scene=replace(scene, views=scene.views[:1]), **changes)


@pytest.mark.parametrize(
    ("start", "changes", "words"),
    [
        (run_calibrated, {"up": "y"}, "up='y' in the world of the calibration"),
        (run_calibrated, {"up": "y", "world": "first-camera"}, "up='y' with world='first-camera'"),
        (run_calibrated, {"floor_at": "f.csv", "world": "calibration"}, "floor_at with world='calibration'"),
        (run_calibrated, {"floor_at": "f.csv"}, "floor_at in the world of the calibration"),
        (run, {"floor_at": "f.csv", "register": "network"}, "floor_at with the cameras of a network"),
        (run, {"world": "calibration"}, "world='calibration' without a calibration"),
        (run, {"world": "upright", "register": "network"}, "world='upright' with the cameras of a network"),
        (run, {"up": "y", "register": "network"}, "up='y' with the cameras of a network"),
        (run_of_one, {"up": "y"}, "up='y' with the cameras of a network"),
        (run_calibrated, {"register": "people"}, "register='people' with a calibration"),
        (run_calibrated, {"focal": "50"}, "focal with a calibration"),
        (run, {"register": "texture", "camera_motion": CameraMotion.MOVING}, "with camera_motion='moving'"),
    ],
)
def test_worlds_and_evidence_that_cameras_cannot_have_are_refused(
    start: Callable[..., RunRecord], changes: dict[str, object], words: str, tmp_path: Path
):
    with pytest.raises(UsageError, match=words):
        start(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_gravity_needs_static_cameras(tmp_path: Path):
    scene = CAPTURE.scene()
    moving = tuple(
        replace(view, camera=replace(view.camera, world_to_camera=view.camera.world_to_camera.expand(9, 4, 4)))
        for view in scene.views
    )
    with pytest.raises(UsageError, match="world='upright' with moving cameras"):
        run_calibrated(tmp_path / "out", scene=replace(scene, views=moving), world="upright")


def test_a_moving_camera_is_left_out_and_named(fake: FakeRegistration, monkeypatch, tmp_path: Path):
    moving = ViewMotion(view="cam02", is_static=False)
    monkeypatch.setattr(evidence, "measure_camera_motion", lambda *_: (moving,))
    record = run(tmp_path / "out", focal="cam01=50,cam02=60")
    assert fake.calls == 0  # one static view is no rig
    assert [camera.reason for camera in record.registration.cameras] == ["the other cameras move", "the camera moves"]


def test_people_need_their_model(fake: FakeRegistration, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(registration, "is_fetched", lambda: False)
    with pytest.raises(WeightsError, match="was not fetched") as refused:
        run(tmp_path / "out", register=Registration.PEOPLE)
    assert "page4d weights get people" in refused.value.hint
    assert fake.calls == 0


def test_predicted_poses_are_not_registered(fake: FakeRegistration, tmp_path: Path):
    assert run(tmp_path / "out", poses=Poses.PREDICTED).registration is None
    assert fake.calls == 0


def test_a_plan_states_that_the_rig_will_be_registered(fake: FakeRegistration):
    predictor = TruthPredictor(CAPTURE).with_settings(SETTINGS)
    plan = plan_run(uncalibrated(CAPTURE.scene()), predictor)
    assert plan.evidence.is_pending
    stages = registration_stages(plan.scene, plan.settings)
    assert all(stage.seconds > 0 and stage.num_bytes > 0 for stage in stages)
    assert [stage.name for stage in stages] == ["keypoints", "pairs", "texture", "learned texture"]
    assert not plan_run(CAPTURE.scene(), predictor).evidence.is_pending
    moving = replace(plan.settings, camera_motion=CameraMotion.MOVING)
    assert [stage.name for stage in registration_stages(CAPTURE.scene(), moving)] == ["motion"]
    assert fake.calls == 0


PEOPLE = "'page4d weights get people' (once, 35.6 MB, Apache-2.0)"
TEXTURE = "'page4d weights get texture' (once, 117 MB, BSD-3-Clause and Apache-2.0)"


@pytest.mark.parametrize(
    ("missing", "asked", "focal", "placed", "level", "expected"),
    [
        (True, "auto", "50", (), "warning", f"run {PEOPLE} and {TEXTURE}, or give --calibration"),
        (True, "auto", None, (), "warning", f"run {PEOPLE}, or give --calibration, or --focal or --intrinsics"),
        (True, "auto", "50", ("cam01", "cam02"), "info", ""),
        (False, "auto", "50", (), "info", "; give --calibration"),
    ],
)
def test_models_that_can_place_views_are_offered_in_a_warning(
    fake: FakeRegistration, monkeypatch, tmp_path, missing, asked, focal, placed, level, expected
):
    monkeypatch.setattr(registration, "is_fetched", lambda: not missing)
    monkeypatch.setattr(CachedFiles, "are_present", not missing)
    fake.placed, observer = set(placed), Mock(spec=SilentObserver)
    fake.focal_source = FocalSource.UNKNOWN if focal is None else FocalSource.OPTION
    run(tmp_path / "out", observer=observer, register=Registration(asked), focal=focal)
    notices = [call.args[0] for call in observer.notice.mock_calls]
    (notice,) = [notice for notice in notices if notice.text.startswith("cameras ")]
    assert notice.level == level
    assert notice.text.endswith(expected)


def test_the_clock_of_a_single_view_comes_before_a_calibration():
    lens = Lens(intrinsics=np.eye(3), image_size=(48, 64), focal_source=FocalSource.OPTION)
    cameras = [placed_record(name, lens, reason) for name, reason in (("a", ""), ("b", ""), ("c", "no pair"))]
    pair = PairRecord(views=("a", "b"), evidence="people", score=0.6, accepted=True)
    record, scene = RegistrationRecord(asked="auto", cameras=cameras, pairs=[pair]), uncalibrated(CAPTURE.scene())
    first = "the clock of c may be wrong: try ⟨sync=people⟩ or ⟨sync=FILE⟩ first, or give ⟨calibration⟩"
    assert registration._advice(record, scene) == first
    by_people = replace(scene, options=SceneOptions(sync="people"))
    assert registration._advice(record, by_people) == "give ⟨calibration⟩"
    assert registration._advice(record, scene, ["c"]) == "give ⟨calibration⟩"
    still = record.model_copy(update={"pairs": [pair.model_copy(update={"evidence": "texture"})]})
    assert registration._advice(still, scene) == "give ⟨calibration⟩"


@pytest.mark.parametrize(("instants", "score", "is_late"), [(60, 0.39, True), (24, 0.39, False), (60, 0.6, False)])
def test_clocks_are_named_where_people_fit_no_pose_of_any_view(
    instants: int, score: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
):
    """Not where clocks are stated, people are few, or they fit and are refused for other reasons."""
    lens = Lens(intrinsics=np.eye(3), image_size=(48, 64), focal_source=FocalSource.OPTION)
    cameras = [placed_record(name, lens, "no accepted pair") for name in ("cam01", "cam02")]
    pair = PairRecord(views=("cam01", "cam02"), evidence="people", score=score, num_instants=instants, accepted=False)
    found = RigRegistration(
        record=RegistrationRecord(asked="auto", cameras=cameras, pairs=[pair]), cameras=[None] * 2
    )
    monkeypatch.setattr(registration, "register_rig", lambda *_: found)
    for method, expected in (("same start", is_late), ("timestamps.csv", False)):
        pixels = PixelEvidence(replace(uncalibrated(CAPTURE.scene()), synchronisation=method), SETTINGS)
        record = registration.register_scene(pixels, None, Mock(), is_static=True).record
        assert record.clocks_in_doubt == expected
        assert record.advice.startswith("the clocks of all views may be wrong: try --sync people") == expected
        (notice,) = registration.registration_notices(record)
        assert (notice.level == Level.WARNING) == expected


@pytest.mark.parametrize(("reason", "by_people"), [("the camera moves", False), ("no pair", True)])
def test_people_are_no_advice_for_cameras_that_move(reason: str, by_people: bool):
    lens = Lens(intrinsics=np.eye(3), image_size=(48, 64), focal_source=FocalSource.UNKNOWN)
    cameras = [placed_record(name, lens, why) for name, why in (("a", ""), ("b", ""), ("c", reason))]
    record = RegistrationRecord(asked="auto", cameras=cameras, pairs=[])
    advice = registration._advice(record, uncalibrated(CAPTURE.scene()), in_run=False)
    assert ("film people" in advice, "tripods" in advice) == (by_people, not by_people)
