"""Written captures, read back with PyAV and OpenCV: frames, times, depth, masks and cameras are as rendered."""

import json
import math
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from page4d.choices import SceneFamily, Subject
from page4d.errors import OutputError, UsageError
from page4d.lab.synthetic import write
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.scene.open import open_scene

OPTIONS = {"seed": 3, "num_views": 2, "num_times": 5, "image_size": (96, 128), "fps": 12.0, "supersample": 2}

WRITTEN = ("truth_stride", "truth_motion", "quality_crf")
"""Options of the files, not of the capture."""


@pytest.fixture(scope="module")
def capture():
    return SyntheticCapture(**OPTIONS)


@pytest.fixture(scope="module")
def folder(capture, tmp_path_factory):
    path = tmp_path_factory.mktemp("synthetic") / "capture"
    write_capture(capture, path, truth_stride=2)
    return path


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_folder_contains_the_documented_files(folder):
    stems = [
        f"truth/{kind}/{name}/{i:06d}.png"
        for kind in ("depth", "dynamic")
        for name in ("cam01", "cam02")
        for i in (0, 2, 4)
    ]
    expected = {"cam01.mp4", "cam02.mp4", "truth/cameras.json", "truth/capture.json", *stems}
    assert set(files_of(folder)) == expected


@pytest.mark.parametrize("view", [0, 1])
def test_videos_hold_every_frame_at_its_time(capture, folder, view):
    with av.open(str(folder / f"{capture.view_names[view]}.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.height, stream.width, stream.average_rate) == (96, 128, 12)
        frames = list(container.decode(stream))
    assert [frame.time for frame in frames] == pytest.approx(capture.times.tolist(), abs=1e-9)
    for time, frame in enumerate(frames):
        error = frame.to_ndarray(format="rgb24").astype(float) - capture.frame(time, view)
        assert 10 * math.log10(255**2 / np.mean(error**2)) > 30


def test_opencv_reads_the_rendered_colours(capture, folder):
    video = cv2.VideoCapture(str(folder / "cam02.mp4"))
    assert int(video.get(cv2.CAP_PROP_FRAME_COUNT)) == 5
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(12)
    read, image = video.read()
    video.release()
    assert read
    assert abs(image[:, :, ::-1].astype(float).mean((0, 1)) - capture.frame(0, 1).mean((0, 1))).max() < 2


def test_depth_is_right_to_half_a_millimetre_and_masks_to_the_pixel(capture, folder):
    for view, name in enumerate(capture.view_names):
        for time in (0, 2, 4):
            truth = capture.rendered(time, view)
            depth = cv2.imread(str(folder / f"truth/depth/{name}/{time:06d}.png"), cv2.IMREAD_UNCHANGED)
            assert depth.dtype == np.uint16
            assert np.abs(depth / 1000 - truth.depth.numpy()).max() < 0.000501
            mask = cv2.imread(str(folder / f"truth/dynamic/{name}/{time:06d}.png"), cv2.IMREAD_UNCHANGED)
            assert mask.dtype == np.uint8
            assert np.array_equal(mask, np.where(truth.dynamic.numpy(), 255, 0))


def test_cameras_are_right_to_the_digit(capture, folder):
    table = json.loads((folder / "truth/cameras.json").read_text())
    assert table["pixel_center"] == 0.5
    assert "static rig" in table["convention"]
    assert list(table["cameras"]) == ["cam01", "cam02"]
    for view, camera in enumerate(table["cameras"].values()):
        assert camera["world_to_camera"] == capture.cameras.world_to_camera[0, view].tolist()
        assert camera["intrinsics"] == capture.cameras.intrinsics[0, view].tolist()
        assert (camera["width"], camera["height"]) == (128, 96)


def test_the_record_rebuilds_the_capture(capture, folder):
    record = json.loads((folder / "truth/capture.json").read_text())
    assert record["command"] == (
        "page4d synthesize --seed 3 --views 2 --frames 5 --size 128x96 --fps 12 --supersample 2 --truth-stride 2 "
        "--out DIR"
    )
    options = dict(record["options"])
    assert [options.pop(name) for name in WRITTEN] == [2, False, 18]
    options["image_size"] = tuple(options["image_size"])
    assert SyntheticCapture(**options) == capture


def test_the_same_capture_gives_the_same_bytes_and_another_seed_others(tmp_path):
    small = {"num_views": 1, "num_times": 3, "image_size": (48, 64)}
    for name, seed in (("first", 4), ("second", 4), ("other", 5)):
        write_capture(SyntheticCapture(seed=seed, **small), tmp_path / name)
    first, second, other = (files_of(tmp_path / name) for name in ("first", "second", "other"))
    assert first == second
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_moving_cameras_are_written_frame_by_frame(tmp_path):
    capture = SyntheticCapture(num_views=1, num_times=3, image_size=(32, 32), moving_cameras=True, spacing_deg=15.0)
    write_capture(capture, tmp_path / "out", quality_crf=30)
    table = json.loads((tmp_path / "out/truth/cameras.json").read_text())
    assert "moving rig" in table["convention"]
    assert table["cameras"]["cam01"]["world_to_camera"] == capture.cameras.world_to_camera[:, 0].tolist()
    command = json.loads((tmp_path / "out/truth/capture.json").read_text())["command"]
    assert "--spacing 15 --crf 30 --moving-cameras" in command


@pytest.mark.parametrize(
    "options",
    [
        {"mixed_sizes": True, "photometric": True, "seed": 2, "num_views": 4},
        {"family": SceneFamily.RING, "outdoors": True, "moving_cameras": True, "readout_s": 0.02},
        {"family": SceneFamily.SINGLE, "num_views": 1, "subject": Subject.TABLE},
    ],
)
def test_written_captures_are_read_back_as_equal_scenes(options, tmp_path):
    capture = SyntheticCapture(**({"num_views": 2, "num_times": 2, "image_size": (32, 48)} | options))
    write_capture(capture, tmp_path / "out")
    scene = open_scene(tmp_path / "out", calibration=tmp_path / "out/truth/cameras.json")
    assert scene.view_names == capture.view_names
    assert np.allclose(scene.times, capture.times)
    for number, view in enumerate(scene.views):
        assert view.source.size == capture.view_sizes[number]
        poses, expected = view.camera.world_to_camera, capture.cameras_of(number).world_to_camera
        assert poses.ndim == (2 if capture.rig.is_static else 3)
        assert np.allclose(poses, expected[0] if capture.rig.is_static else expected, atol=1e-9)
        with view.source.open() as reader:
            frame = next(iter(reader.read([1])))
        assert np.abs(frame.astype(float) - capture.frame(1, number)).mean() < 12
        mask = cv2.imread(str(tmp_path / f"out/truth/dynamic/{view.name}/000001.png"), cv2.IMREAD_UNCHANGED)
        assert mask.shape == capture.view_sizes[number]
    record = json.loads((tmp_path / "out/truth/capture.json").read_text())
    again = {name: value for name, value in record["options"].items() if name not in WRITTEN}
    again["image_size"] = tuple(again["image_size"])
    assert SyntheticCapture(**again) == capture
    for word in ("--mixed-sizes", "--photometric", "--outdoors", "--moving-cameras"):
        assert (word in record["command"]) == options.get(word[2:].replace("-", "_"), False)
    assert ("--readout 20" in record["command"]) == ("readout_s" in options)
    assert ("rows are taken" in json.loads((tmp_path / "out/truth/cameras.json").read_text())["convention"]) == (
        "readout_s" in options
    )


def test_a_folder_that_is_not_empty_is_refused(capture, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        write_capture(capture, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(OutputError, match="a part of the path is a file"):
        write_capture(capture, tmp_path / "notes.txt" / "inside")


def test_a_mount_point_is_refused_before_the_work(capture, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    with pytest.raises(UsageError, match="is a mount point"):
        write_capture(capture, tmp_path, on_frame=lambda *_: pytest.fail("a frame was rendered"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(28, "No space left on device"), "disk full"), (KeyboardInterrupt(), None)],
    ids=["full disk", "Ctrl-C"],
)
@pytest.mark.parametrize("at", [1, 4])
def test_a_capture_that_cannot_be_finished_leaves_an_empty_folder(error, expected, at, tmp_path, monkeypatch):
    capture = SyntheticCapture(num_views=2, num_times=2, image_size=(24, 32))
    real, calls, folder = write._write_png, [], tmp_path / "out"
    folder.mkdir()

    def failing(path, image):
        calls.append(path)
        assert list(folder.iterdir()) == []  # the folder is complete or empty, also if the process is killed
        if len(calls) == at:
            raise error
        real(path, image)

    monkeypatch.setattr(write, "_write_png", failing)
    expectation = pytest.raises(KeyboardInterrupt) if expected is None else pytest.raises(OutputError, match=expected)
    with expectation:
        write_capture(capture, folder)
    assert list(tmp_path.iterdir()) == [folder]
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    write_capture(capture, folder)


def test_a_disk_that_is_full_for_the_videos_is_named(capture, tmp_path, file_size_limit):
    with pytest.raises(OutputError, match="larger than this process may write"), file_size_limit(2000):
        write_capture(capture, tmp_path, truth_stride=1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "stride", "message"),
    [({"image_size": (47, 64)}, 1, "64x47"), ({"fps": 1e-4}, 1, "frames per second"), ({}, 0, "every 0th frame")],
)
def test_impossible_videos_are_refused_before_anything_is_written(tmp_path, wrong, stride, message):
    with pytest.raises(UsageError, match=message):
        write_capture(SyntheticCapture(**wrong), tmp_path / "out", truth_stride=stride)
    assert not (tmp_path / "out").exists()
