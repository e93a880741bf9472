"""The pictures of a run are those that it read, and another capture is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from page4d.choices import Poses
from page4d.errors import InputError, UsageError
from page4d.formats.cameras_json import CaptureCameras
from page4d.geometry.pixels import fit_views
from page4d.io.json_records import write_model
from page4d.options import ReconstructSettings, describe_settings
from page4d.output.instant import write_capture_cameras
from page4d.output.layout import OutputLayout
from page4d.output.pictures import Pictures, open_pictures
from page4d.output.reader import Output, open_output
from page4d.output.record import NetworkRecord, RunRecord, SceneRecord, source_record, view_record
from page4d.run.predictor import MeasuredDepth
from page4d.run.reconstruct import reconstruct
from page4d.scene.batches import open_batches
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from tests.scene.calibration_writers import RigCamera, write_toml
from tests.scene.clip_writers import counter_clip, read_counter, write_images, write_sync, write_video

SIZE = (48, 64)
MATRIX = torch.tensor([[60.0, 0, 33], [0, 58, 22], [0, 0, 1]], dtype=torch.float64)


def finished_run(folder: Path, scene: Scene, poses: Poses = Poses.INPUT) -> Output:
    """Write the records of a run of the scene."""
    layout = OutputLayout(folder, scene.view_names)
    sizes = [view.source.size for view in scene.views]
    calibrated = [view.camera.intrinsics for view in scene.views if view.camera and poses is Poses.INPUT]
    intrinsics = torch.stack(calibrated or [MATRIX] * scene.num_views)
    cameras = CaptureCameras(
        times=torch.from_numpy(scene.times),
        view_names=scene.view_names,
        image_sizes=tuple(sizes),
        world_to_camera=torch.eye(4, dtype=torch.float64).expand(scene.num_times, scene.num_views, 4, 4),
        intrinsics=intrinsics.expand(scene.num_times, scene.num_views, 3, 3),
        scale=scene.scale,
    )
    write_capture_cameras(layout, cameras)
    run = RunRecord(
        status="complete",
        settings=describe_settings(scene.options, ReconstructSettings(poses=poses)),
        scale=scene.scale,
        unit=scene.scale.unit,
        depth_scale=1000.0,
        scene=SceneRecord(name=scene.name),
        views=[
            view_record(layout, view, transform, source_record(view))
            for view, transform in zip(scene.views, fit_views(sizes, 56, 14), strict=True)
        ],
        times=scene.times.tolist(),
        network=NetworkRecord(name="truth", trained=True),
    )
    write_model(layout.run, run)
    return open_output(folder)


def calibrated(folder: Path, **lenses: tuple[float, ...]) -> Path:
    """Write cameras with these distortions, side by side."""
    matrix = MATRIX.numpy() + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    rig = [
        RigCamera(name, np.eye(3), np.array([float(place), 0.0, 0.0]), matrix, lens, SIZE)
        for place, (name, lens) in enumerate(lenses.items())
    ]
    return write_toml(folder, rig)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    """Two clips of 30 frames with frame numbers as pictures; `late` starts 0.2 s after `early`."""
    folder = tmp_path_factory.mktemp("videos")
    for view in ("early", "late"):
        write_video(folder / f"{view}.mp4", counter_clip(range(30), SIZE))
    write_sync(folder, {"late": (0.2, 1.0)})
    return folder


def read_all(pictures: Pictures) -> list[list[np.ndarray]]:
    scene = pictures.scene
    return [list(pictures.read(name, range(scene.num_times))) for name in scene.view_names]


def source_frames(scene: Scene) -> list[list[np.ndarray]]:
    frames = []
    for view in scene.views:
        with view.source.open() as reader:
            frames.append(list(reader.read(view.indices)))
    return frames


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 3},
        {"fps": 10},
        {"fps": 60, "frames": (3, 9)},
        {"frames": (5, None)},
        {"views": ("late", "early")},
    ],
    ids=str,
)
def test_pictures_are_the_frames_that_the_run_read(videos: Path, options: dict[str, Any], tmp_path):
    scene = open_scene(videos, **options)
    output = finished_run(tmp_path, scene)
    pictures = open_pictures(output, videos)
    assert [view.indices for view in pictures.scene.views] == [view.indices for view in scene.views]
    for mine, frames, view in zip(read_all(pictures), source_frames(scene), scene.views, strict=True):
        assert [read_counter(picture / 255.0) for picture in mine] == list(view.indices)
        assert all(
            np.array_equal(one, other) and one.dtype == np.uint8 for one, other in zip(mine, frames, strict=True)
        )
    some = list(pictures.read("late", [0, scene.num_times - 1]))
    assert [read_counter(picture / 255.0) for picture in some] == [
        pictures.scene.views[-1 if options.get("views") is None else 0].indices[place] for place in (0, -1)
    ]


def test_a_run_whose_sync_file_is_gone_is_found_by_its_clocks(videos: Path, tmp_path):
    copy = tmp_path / "scene"
    copy.mkdir()
    for file in videos.glob("*.mp4"):
        (copy / file.name).write_bytes(file.read_bytes())
    sync = write_sync(tmp_path, {"early": (0.3, 1.0), "late": (0.0, 1.001)})
    scene = open_scene(copy, sync=sync)
    output = finished_run(tmp_path / "out", scene)
    sync.unlink()
    found = open_pictures(output, copy)
    assert [view.indices for view in found.scene.views] == [view.indices for view in scene.views]


def test_deep_numbered_images_are_shortened_to_eight_bits(tmp_path):
    numbers = {"a": [3, 4, 6, 7], "b": [2, 3, 4, 5, 6, 7]}
    for view, of_view in numbers.items():
        write_images(tmp_path / "scene" / view, {f"{n:03d}.png": counter_clip([n], SIZE)[0] for n in of_view})
    for file in (tmp_path / "scene" / "b").iterdir():
        cv2.imwrite(str(file), cv2.imread(str(file)).astype(np.uint16) * 257)
    output = finished_run(tmp_path / "out", open_scene(tmp_path / "scene", image_fps=12.5))
    pictures = open_pictures(output, tmp_path / "scene").read("b", range(4))
    for picture, number in zip(pictures, [3, 4, 6, 7], strict=True):
        assert picture.dtype == np.uint8
        assert np.array_equal(picture, counter_clip([number], SIZE)[0])


@pytest.mark.parametrize("poses", list(Poses))
def test_lens_distortion_is_removed_as_in_the_run(poses: Poses, tmp_path):
    rng = np.random.default_rng(0)
    smooth = np.kron(rng.integers(0, 255, (6, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    write_images(tmp_path / "scene" / "a", {"0.png": smooth})
    write_images(tmp_path / "scene" / "b", {"0.png": smooth})
    calibration = calibrated(tmp_path, a=(0.0,) * 4, b=(-0.2, 0.05, 0.001, -0.002))
    scene = open_scene(tmp_path / "scene", calibration=calibration)
    output = finished_run(tmp_path / "out", scene, poses)
    assert output.run.views[0].undistorted is None
    pictures = open_pictures(output, tmp_path / "scene")
    with open_batches(scene, 64, 1) as reader:
        batch = reader.read(0, 1).images[0, 0]
    for place, name in enumerate(("a", "b")):
        (picture,) = pictures.read(name, [0])
        assert np.array_equal(picture, (batch[place].permute(1, 2, 0) * 255).round().numpy())
    assert not np.array_equal(picture, smooth)


def swapped(scene: Path) -> None:
    early, late = ((scene / f"{name}.mp4").read_bytes() for name in ("early", "late"))
    (scene / "early.mp4").write_bytes(late)
    (scene / "late.mp4").write_bytes(early)


def changed_byte(scene: Path) -> None:
    data = bytearray((scene / "late.mp4").read_bytes())
    place = data.index(b"mdat") + 40  # within the text of the encoder's options
    data[place] ^= 1
    (scene / "late.mp4").write_bytes(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda scene: (scene / "late.mp4").unlink(), r"has no late\.mp4 of the run; it has early\.mp4"),
        (
            lambda scene: write_video(scene / "late.mp4", counter_clip(range(30), (96, 128))),
            r"late\.mp4 is 128x96, the run has 64x48",
        ),
        (
            lambda scene: write_video(scene / "late.mp4", counter_clip(range(20), SIZE)),
            r"late\.mp4 is not the file of the run: [\d,]+ bytes, the run has [\d,]+",
        ),
        (
            lambda scene: write_video(scene / "early.mp4", counter_clip(range(30), SIZE), rate=20),
            r"early\.mp4 is not the file of the run",
        ),
        (changed_byte, r"late\.mp4 is not the file of the run: its content differs"),
        (swapped, r"early\.mp4 is not the file of the run"),
    ],
    ids=["missing", "size", "shorter", "other rate", "changed", "swapped"],
)
def test_another_capture_is_refused(change: Callable[[Path], object], words: str, tmp_path):
    scene = tmp_path / "scene"
    scene.mkdir()
    for view, first in (("early", 0), ("late", 30)):
        write_video(scene / f"{view}.mp4", counter_clip(range(first, first + 30), SIZE))
    write_sync(scene, {"late": (0.2, 1.0)})
    output = finished_run(tmp_path / "out", open_scene(scene))
    change(scene)
    with pytest.raises(InputError, match=words) as raised:
        open_pictures(output, scene)
    assert raised.value.exit_code == 3
    assert "give the videos of the run" in raised.value.hint


def test_frames_at_other_times_are_refused(videos: Path, tmp_path):
    output = finished_run(tmp_path, open_scene(videos, frames=(0, 2)))
    record = json.loads(output.layout.run.read_text())
    record["views"][1]["source"]["seconds"][1] += 1e-3
    output.layout.run.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"late\.mp4: frame 1 is at 0\.033333 s, in the run at 0\.034333 s"):
        open_pictures(open_output(tmp_path), videos)
    record["views"][1]["source"]["frames"][1] = 99
    output.layout.run.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"late\.mp4 has 30 frames, the run used frame 99"):
        open_pictures(open_output(tmp_path), videos)
    del record["views"][1]["source"]["frames"][1]
    output.layout.run.write_text(json.dumps(record))
    with pytest.raises(InputError, match="1 frames of a view for 2 times"):
        open_output(tmp_path)


def test_a_run_without_record_of_its_files_is_refused(videos: Path, tmp_path):
    output = finished_run(tmp_path, open_scene(videos, frames=(0, 2)))
    record = json.loads(output.layout.run.read_text())
    record["views"][1]["source"] = None
    output.layout.run.write_text(json.dumps(record))
    with pytest.raises(InputError, match="the run did not record the files of late"):
        open_pictures(open_output(tmp_path), videos)


def test_views_and_instants_are_checked(videos: Path, tmp_path):
    pictures = open_pictures(finished_run(tmp_path, open_scene(videos, frames=(0, 4))), videos)
    with pytest.raises(UsageError, match="no view is called 'cam'"):
        pictures.read("cam", [0])
    for instants in ([4], [-1]):
        with pytest.raises(UsageError, match="no instant"):
            pictures.read("late", instants)
    for instants in ([1, 0], [1, 1]):
        with pytest.raises(UsageError, match="do not increase"):
            pictures.read("late", instants)
    assert len(list(pictures.read("late", iter([0, 2])))) == 2


def test_a_real_run_records_its_files(tmp_path):
    scene_folder, depth = tmp_path / "scene", tmp_path / "depth"
    for view in ("a", "b"):
        write_images(scene_folder / view, {f"{n}.png": counter_clip([n], SIZE)[0] for n in range(3)})
        flat = np.full(SIZE, 2000, np.uint16)
        write_images(depth / view, {f"{n}.png": flat for n in range(3)})
    calibration = calibrated(tmp_path, a=(-0.1, 0.0, 0.0, 0.0), b=(-0.1, 0.0, 0.0, 0.0))
    scene = open_scene(scene_folder, calibration=calibration, depth=depth, stride=2)
    reconstruct(
        scene, MeasuredDepth(scene), out=tmp_path / "out", settings=ReconstructSettings(long_side=56, preview=False)
    )
    output = open_output(tmp_path / "out")
    for view in output.run.views:
        assert (view.source.frames, view.source.seconds) == ([0, 2], [0.0, 2 / 30])
        assert view.source.bytes == sum(file.stat().st_size for file in (scene_folder / view.name).iterdir())
        assert view.undistorted.intrinsics == [[60, 0, 33.5], [0, 58, 22.5], [0, 0, 1]]
    assert '"frames": [0, 2]' in output.layout.run.read_text()
    assert len(list(open_pictures(output, scene_folder).read("b", [0, 1]))) == 2
    write_images(scene_folder / "b", {"1.png": counter_clip([9], SIZE)[0]})
    with pytest.raises(InputError, match="b/ is not the folder of the run"):
        open_pictures(output, scene_folder)
