"""The samples: the recorded rigs, the recorded command of the synthetic one, and `page4d demo`."""

import csv
import json
import tomllib
from collections import defaultdict
from functools import partial
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

import page4d
from page4d.choices import Sample
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d_cli.app import run
from page4d_cli.commands import demo
from page4d_cli.commands.reconstruct import reconstruct

WRITTEN = ("truth_stride", "truth_motion", "quality_crf")
"""Options of the files, not of the capture."""

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "samples" / "room"
GYM, OFFICE = ROOT / "samples" / "gym", ROOT / "samples" / "office"


def test_the_sample_equals_the_rendering_of_its_recorded_options():
    options = json.loads((SAMPLE / "truth" / "capture.json").read_text())["options"]
    settings = {name: value for name, value in options.items() if name not in WRITTEN}
    capture = SyntheticCapture(**(settings | {"image_size": tuple(options["image_size"])}))
    cameras = json.loads((SAMPLE / "truth" / "cameras.json").read_text())["cameras"]
    assert tuple(cameras) == capture.view_names
    for view, name in enumerate(capture.view_names):
        assert np.allclose(cameras[name]["world_to_camera"], capture.cameras.world_to_camera[0, view], atol=1e-12)
    view, time = 2, 20
    with av.open(str(SAMPLE / "cam03.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24").astype(float) for frame in container.decode(video=0)]
    assert len(frames) == 24
    rendered = capture.rendered(time, view)
    error = np.square(frames[time] - capture.frame(time, view)).mean()
    assert 10 * np.log10(255**2 / error) > 30
    stored = cv2.imread(str(SAMPLE / "truth" / "depth" / "cam03" / f"{time:06d}.png"), cv2.IMREAD_UNCHANGED)
    assert np.abs(stored / 1000 - rendered.depth.numpy()).max() <= 0.00051


def rows_of(name: str) -> list[dict[str, str]]:
    with (OFFICE / name).open() as file:
        return list(csv.DictReader(file))


def test_the_cameras_of_the_office_project_the_corners_of_its_board_to_where_they_were_seen():
    scene = page4d.open_scene(OFFICE, calibration=OFFICE / "camera_array.toml")
    assert (scene.num_views, scene.num_times, scene.scale) == (4, 24, "metric")
    assert scene.synchronisation == "time stamps in timestamps.csv"
    axes = ("x_coord", "y_coord", "z_coord")
    corners = {
        (row["sync_index"], row["keypoint_id"]): [float(row[axis]) for axis in axes]
        for row in rows_of("xyz_CHARUCO.csv")
    }
    errors: dict[int, list[float]] = defaultdict(list)
    for row in rows_of("xy_CHARUCO.csv"):
        key = (row["sync_index"], row["keypoint_id"])
        if key in corners:
            view = int(row["cam_id"])
            camera = scene.views[view].camera
            pose, matrix = camera.world_to_camera.numpy(), camera.intrinsics.numpy().copy()
            matrix[:2, 2] -= 0.5  # OpenCV's pixel centres are integers
            point, turn = np.array(corners[key]), cv2.Rodrigues(pose[:3, :3])[0]
            lens = np.array(camera.distortion.coefficients)
            seen = cv2.projectPoints(point, turn, pose[:3, 3], matrix, lens)[0].ravel()
            errors[view].append(np.hypot(*(seen - [float(row["img_loc_x"]), float(row["img_loc_y"])])))
    assert {view: len(found) > 100 and np.median(found) < 2 for view, found in errors.items()} == dict.fromkeys(
        range(4), True
    )


def test_the_cameras_of_the_gym_are_those_of_its_pictures_at_half_size():
    scene = page4d.open_scene(GYM, calibration=GYM / "Calib.qca.txt")
    assert (scene.num_views, scene.num_times, scene.scale) == (4, 16, "metric")
    assert [view.source.size for view in scene.views] == [(960, 540)] * 2 + [(960, 544)] * 2
    matrix = scene.views[0].camera.intrinsics  # of 1088 px in the file of the capture, whose pictures have 1080 px
    left = (1088 - 1080) / 2
    expected = [107599.671875 / 64 / 2, (34110.316406 / 64 + 0.5 - left) / 2, (60680.792969 / 64 + 0.5) / 2]
    assert [matrix[0, 0], *matrix[:2, 2]] == pytest.approx(expected, abs=1e-9)


def test_a_wheel_has_all_samples_and_the_licence_of_each():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]
    folders = {f"samples/{sample}" for sample in Sample}
    assert built["wheel"]["force-include"] == {folder: f"page4d/{folder}" for folder in folders}
    assert folders < set(built["sdist"]["include"])
    licensed = {f"samples/{sample}/LICENSE" for sample in Sample if sample is not Sample.ROOM}
    assert licensed < set(project["project"]["license-files"])


@pytest.mark.parametrize("sample", Sample)
def test_the_demo_reconstructs_a_sample(sample, tmp_path, monkeypatch, capsys):
    smallest = {"long_side": 28, "preview": False, "check_calibration": False}
    network = {"network__untrained": True, "network__preset": "mv-tiny", "scene__frames": (0, 2)}
    small = partial(reconstruct, **network, **{f"settings__{name}": value for name, value in smallest.items()})
    monkeypatch.setattr(demo, "reconstruct", small)
    monkeypatch.setattr("page4d.evaluation.evaluate.report_points", lambda *_: None)
    out = tmp_path / "out"
    assert run(["demo", sample.value, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    record = page4d.open_output(out).run
    folder, file = ROOT / "samples" / sample, demo.CALIBRATIONS.get(sample)
    known = f" --calibration {folder / file} --min-confidence 0.25" if file else ""
    assert f"page4d reconstruct {folder}{known} --out {out}\n" in printed.err
    expected = ("metric", False, 0.25) if file else ("arbitrary", True, 0.0)
    assert (record.scale, "\ntruth " in printed.out, record.settings["points"]["min_confidence"]) == expected
    assert run(["demo", sample.value, "--out", str(out)]) == 2
    assert "already holds a result" in capsys.readouterr().err
    assert run(["demo", sample.value, "--out", str(out), "--resume"]) == 0
    capsys.readouterr()
    assert run(["demo", sample.value, "--out", str(out), "--weights", "da3-base"]) == 2
    refused = capsys.readouterr().err
    assert f" --out {out} --weights da3-base\n" in refused
    assert "--weights and --untrained contradict each other" in refused
