"""Calibrated cameras are assigned to views by name or order, to their image sizes and instants."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation, Slerp

from page4d.choices import CalibrationResize
from page4d.conventions import Scale
from page4d.errors import InputError, Level, UsageError
from page4d.formats.cameras_json import CaptureCameras, write_cameras_json
from page4d.geometry.camera import project
from page4d.geometry.transforms import transform_points
from page4d.options import SceneOptions
from page4d.rig.lens import lenses_of
from page4d.scene.batches import open_batches, scene_cameras
from page4d.scene.clocks import Synchronisation
from page4d.scene.open import open_scene
from page4d.scene.records import Clock, Scene
from tests.scene.clip_writers import counter_image, write_counter_clip, write_images, write_sync

SIZE = (48, 64)
INTRINSICS = [[70.0, 0.0, 31.0], [0.0, 71.0, 25.5], [0.0, 0.0, 1.0]]


def pose(angle: float, shift: float = 0.0) -> list[list[float]]:
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_rotvec([0.1, angle, -0.05]).as_matrix()
    matrix[:3, 3] = [0.1 + shift, -0.2, 3.0 + shift / 2]
    return matrix.tolist()


def write_calibration(path: Path, cameras: dict[str, dict[str, Any]], **more: Any) -> Path:
    """Write `cameras.json` in the layout of a run."""
    views = {
        name: {"image_size": [SIZE[1], SIZE[0]], "intrinsics": INTRINSICS, "world_to_camera": pose(0.1 * count)} | own
        for count, (name, own) in enumerate(cameras.items())
    }
    path.write_text(json.dumps({"views": views, "scale": "metric", "pixel_center": 0.5} | more))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rig").mkdir()
    for name in "abc":
        write_counter_clip(tmp_path / "rig" / f"{name}.mp4", 6, size=SIZE)
    return tmp_path / "rig"


@pytest.mark.parametrize("long_side", [64, 28, 100])
def test_points_project_to_the_same_network_pixels(long_side: int, folder: Path, tmp_path: Path) -> None:
    """Transformed original pixels equal the projections of the camera at network resolution."""
    write_counter_clip(folder / "c.mp4", 6, size=(80, 48))  # a portrait camera among landscapes
    own = {"c": {"image_size": [48, 80], "intrinsics": [[90.0, 0.3, 25.0], [0.0, 88.0, 39.0], [0.0, 0.0, 1.0]]}}
    scene = open_scene(folder, calibration=write_calibration(tmp_path / "cameras.json", {"a": {}, "b": {}} | own))
    assert scene.scale is Scale.METRIC
    with open_batches(scene, long_side=long_side, multiple=14) as reader:
        batch = reader.read(1, 4)
    assert batch.cameras.world_to_camera.shape == (1, 3, 3, 4, 4)
    points = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (50, 3)))
    for count, view in enumerate(scene.views):
        shown, depth = project(transform_points(view.camera.world_to_camera, points), view.camera.intrinsics)
        assert (depth > 0).all()
        camera = batch.cameras[0, 2, count]
        found, _ = project(transform_points(camera.world_to_camera, points), camera.intrinsics)
        torch.testing.assert_close(batch.pixel_transforms[count].to_network(shown), found, rtol=0, atol=1e-9)
        assert camera.image_size == batch.images.shape[-2:]


def test_cameras_are_matched_by_name_in_any_order(folder: Path, tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "cameras.json", {"c": {}, "a": {}, "b": {}})
    scene = open_scene(folder, calibration=calibration)
    for view, count in zip(scene.views, (1, 2, 0), strict=True):
        np.testing.assert_allclose(view.camera.world_to_camera, pose(0.1 * count))
    assert scene.calibration == "cameras.json"


def test_cameras_are_matched_in_file_order_on_request(folder: Path, tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "cameras.json", {"z": {}, "y": {}, "x": {}})
    with pytest.raises(InputError, match="no name in common: the cameras are z, y, x, the videos a, b, c"):
        open_scene(folder, calibration=calibration)
    scene = open_scene(folder, calibration=calibration, calibration_match="order")
    for count, view in enumerate(scene.views):
        np.testing.assert_allclose(view.camera.world_to_camera, pose(0.1 * count))
    assert "cameras of cameras.json in its order: z is a, y is b, x is c" in [one.text for one in scene.notices]
    with pytest.raises(InputError, match="has 3 cameras, 2 views are used"):
        open_scene(folder, calibration=calibration, calibration_match="order", views=2)


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ("name", "paired with views by a common part of their names: int_c_img is c, int_b_img is b, int_a_img is a"),
        ("order", "in its order: int_c_img is a, int_b_img is b, int_a_img is c; their names pair otherwise"),
    ],
)
def test_names_that_contain_those_of_views_are_paired(match: str, text: str, folder: Path, tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "cameras.json", {f"int_{name}_img": {} for name in "cba"})
    scene = open_scene(folder, calibration=calibration, calibration_match=match)
    order = (2, 1, 0) if match == "name" else (0, 1, 2)
    for count, view in zip(order, scene.views, strict=True):
        np.testing.assert_allclose(view.camera.world_to_camera, pose(0.1 * count))
    assert [notice.level for notice in scene.notices if text in notice.text] == [Level.WARNING]


def test_unmatched_names_are_listed(folder: Path, tmp_path: Path) -> None:
    more = write_calibration(tmp_path / "more.json", {name: {} for name in "abcde"})
    (folder / "d2").mkdir()  # an ignored folder of another name
    (folder / "d2" / "0.exr").touch()
    with pytest.raises(InputError, match=r"calibration has 5 cameras, scene has 3 videos; missing video for d, e$"):
        open_scene(folder, calibration=more)
    assert open_scene(folder, calibration=more, views=("c", "a")).view_names == ("c", "a")
    fewer = write_calibration(tmp_path / "fewer.json", {"b": {}})
    assert open_scene(folder, calibration=fewer, views=("b",)).num_views == 1
    part = write_calibration(tmp_path / "part.json", {name: {} for name in "abc"})
    assert open_scene(folder, calibration=part, views=2).num_views == 2


@pytest.mark.parametrize(
    ("cameras", "changes", "expected"),
    [
        ("a", {}, ("a", "fewer.json has no camera for b, c")),
        ("ab", {"again": ("b",)}, ("a", "fewer.json has no camera for c")),
        ("abc", {"again": ("c", "a")}, ("b", "")),
        ("abcd", {"views": ("a", "b", "c"), "again": ("b",)}, ("ac", "")),
        ("abD", {}, (InputError, "missing video for D")),
        ("bcd", {}, (InputError, "missing video for d; rename the videos, or pass ⟨calibration_match=order⟩")),
        (["a", "b", "C"], {"views": ("a", "b", "c")}, (InputError, "no camera for c, and no video for its camera C")),
        (["a", "b", "c2"], {"views": ("a", "b", "c")}, ("ab", "fewer.json has no camera for c")),
        ("ab", {"again": ("d",)}, (UsageError, "no view is called 'd'")),
        ("ab", {"again": ("a", "b")}, (UsageError, "names all calibrated views")),
        ("", {"again": ("a",)}, (UsageError, "again⟩ without ⟨calibration")),
    ],
)
def test_a_calibration_of_some_views_gives_their_cameras_alone(
    cameras: str, changes: dict[str, Any], expected: tuple[Any, str], folder: Path, tmp_path: Path
) -> None:
    """A name that is only nearly that of a camera is an error; other views are named in a notice."""
    file = write_calibration(tmp_path / "fewer.json", {name: {} for name in cameras}) if cameras else None
    known, text = expected
    if not isinstance(known, str):
        with pytest.raises(known) as raised:
            open_scene(folder, calibration=file, **changes)
        assert text in f"{raised.value.marked_message}; {raised.value.marked_hint}"
        return
    scene, whole = open_scene(folder, calibration=file, **changes), open_scene(folder)
    assert [view.name for view in scene.views if view.camera is not None] == list(known)
    assert [notice.text for notice in scene.notices if notice not in whole.notices] == [text] * bool(text)
    assert scene.has_static_rig == (len(known) > 1)
    again = [name in changes.get("again", ()) for name in scene.view_names]
    assert [lens.is_known for lens in lenses_of(scene)] == [
        view.camera is not None or is_again for view, is_again in zip(scene.views, again, strict=True)
    ]


def sized(width: int, height: int) -> dict[str, Any]:
    return {"image_size": [width, height]}


APART = "a: calibration is for 72x54, video is 64x48; c: calibration is for {}, video is 64x48"
RESIZE = "scale' if the whole image was resized, crop-center if its edges were cut off, or pad"
TURNED = ("a: calibration is for 48x64, video is 64x48", "rotate the videos", "pad-center' if the videos have bars")


@pytest.mark.parametrize(
    ("sizes", "resize", "message", "hints"),
    [
        ({"a": (72, 54), "c": (64, 50)}, None, APART.format("64x50"), (RESIZE,)),
        ({"a": (72, 54), "c": (32, 24)}, "crop-center", APART.format("32x24"), ()),
        *(({"a": (48, 64)}, resize, TURNED[0], TURNED[1:]) for resize in (None, "crop-center", "scale")),
    ],
)
def test_every_camera_of_an_image_size_that_cannot_be_is_listed(
    sizes: Any, resize: str | None, message: str, hints: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    own = {name: sized(*sizes.get(name, SIZE[::-1])) for name in "abc"}
    with pytest.raises(InputError) as caught:
        open_scene(folder, calibration=write_calibration(tmp_path / "c.json", own), calibration_resize=resize)
    assert caught.value.message == message
    assert all(hint in caught.value.hint for hint in hints)


def test_a_calibration_of_pictures_before_bars_fits_between_them(folder: Path, tmp_path: Path) -> None:
    sizes = {"a": (48, 64), "b": (64, 48), "c": (128, 64)}
    calibration = write_calibration(tmp_path / "c.json", {name: sized(*size) for name, size in sizes.items()})
    scene = open_scene(folder, calibration=calibration, calibration_resize="pad-center")
    offsets = [(14.0, 0.0, 0.75), (0.0, 0.0, 1.0), (0.0, 8.0, 0.5)]  # left, top, scale: 36x48 and 64x32 of 64x48
    given = np.array(INTRINSICS)
    for view, (left, top, scale) in zip(scene.views, offsets, strict=True):
        expected = np.diag([scale, scale, 1]) @ given + [[0, 0, left], [0, 0, top], [0, 0, 0]]
        np.testing.assert_allclose(view.camera.intrinsics, expected, atol=1e-12)


@pytest.mark.parametrize("resize", ["crop-center", "scale"])
def test_a_calibration_of_another_size_is_cropped_or_scaled(resize: str, folder: Path, tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "c.json", {"a": sized(72, 54), "b": {}, "c": sized(85, 48)})
    scene = open_scene(folder, calibration=calibration, calibration_resize=resize)
    texts = [notice.text for notice in scene.notices]
    assert f"a: calibration is for 72x54, video is 64x48; {resize} applied" in texts
    doubt = ", with pixels stretched by 0.753: wrong if edges were cut off" if resize == "scale" else ""
    assert f"c: calibration is for 85x48, video is 64x48; {resize} applied{doubt}" in texts
    matrix = np.array(INTRINSICS)
    for view, (width, height) in zip(scene.views, ((72, 54), (64, 48), (85, 48)), strict=True):
        if resize == "scale":
            expected = np.diag([64 / width, 48 / height, 1]) @ matrix
        else:
            expected = matrix - [[0, 0, (width - 64) / 2], [0, 0, (height - 48) / 2], [0, 0, 0]]
        np.testing.assert_allclose(view.camera.intrinsics, expected, atol=1e-12)


def moving(times: list[float]) -> tuple[dict[str, Any], Any]:
    poses = [pose(0.5 * time, time) for time in times]
    return {"static": False, "world_to_camera": poses}, np.array(poses)


def test_poses_of_a_moving_camera_are_interpolated_on_the_common_clock(folder: Path, tmp_path: Path) -> None:
    write_sync(folder, {"a": (2.0, 1.0), "b": (2.01, 1.0), "c": (2.0, 1.0)})
    known = [1.99, 2.05, 2.11, 2.2]
    own, poses = moving(known)
    calibration = write_calibration(tmp_path / "cameras.json", {"a": own, "b": {}, "c": own}, times=known)
    scene = open_scene(folder, calibration=calibration)
    assert scene.times[0] == pytest.approx(2.0)
    found = scene.views[0].camera.world_to_camera.numpy()
    assert found.shape == (scene.num_times, 4, 4)
    turns = Slerp(known, Rotation.from_matrix(poses[:, :3, :3]))(scene.times).as_matrix()
    centers = np.stack([-pose[:3, :3].T @ pose[:3, 3] for pose in poses])
    places = np.stack([np.interp(scene.times, known, centers[:, axis]) for axis in range(3)], axis=-1)
    np.testing.assert_allclose(found[:, :3, :3], turns, atol=1e-9)
    np.testing.assert_allclose(-np.einsum("tji,tj->ti", found[:, :3, :3], found[:, :3, 3]), places, atol=1e-9)
    cut = open_scene(folder, calibration=calibration, frames=(2, 5))
    with open_batches(cut, long_side=64, multiple=1) as reader:
        batch = reader.read(1, 3)
    np.testing.assert_allclose(batch.cameras.world_to_camera[0, :, 0], found[3:5], atol=1e-12)


STAMPED, NUMBERED = 1_700_000_000_000_000_000, 0
OF_FILE = {"a": 0.0, "b": 0.2, "c": 0.3}
TRIMMED = {name: start + 0.5 for name, start in OF_FILE.items()}


@pytest.mark.parametrize(
    ("first_ns", "clocks", "again", "views", "more"),
    [
        (STAMPED, None, None, "b", {}),
        (STAMPED, None, None, "cb", {}),
        (STAMPED, None, None, "bc", {"trimmed": 5}),
        (STAMPED, None, (0.0, 0.7), "ba", {"ahead": 0.5, "found": "-0.700 to +0.700 s later by people than"}),
        (STAMPED, None, (0.7, 0.0), "ba", {"ahead": 0.5}),
        (STAMPED, (0.0, 0.2, 0.3), None, "b", {"ahead": 0.5}),
        (STAMPED, (0.0, 0.2, 0.3), (0.1, 0.0), "cb", {"ahead": 0.5}),
        (STAMPED, OF_FILE, OF_FILE, "b", {"ahead": 0.5}),
        (STAMPED, OF_FILE, OF_FILE, "ba", {"ahead": 0.5}),
        (STAMPED, OF_FILE, TRIMMED, "bc", {"ahead": 0.5, "trimmed": 5}),
        (NUMBERED, OF_FILE, TRIMMED, "abc", {"trimmed": 5}),
        (NUMBERED, None, None, "b", {}),
        (NUMBERED, None, None, "cb", {}),
        (NUMBERED, None, OF_FILE, "ab", {}),
        (NUMBERED, None, {"b": 0.0}, "b", {"found": "-0.200 to -0.200 s later by file s.json than in its run"}),
        (NUMBERED, (0.0, 0.0, 0.0), (0.0,), "c", {}),
        (NUMBERED, (0.0, 0.2, 0.3), (0.0, 0.1003), "bc", {}),
        (NUMBERED, (0.0, 0.2, 0.3), (0.0, 0.2, 0.34), "abc", {"shown": "ab"}),
        (NUMBERED, (0.0, 0.2, 0.3), (0.0, 0.2), "bc", {"found": "-0.200 to -0.100 s later by people than"}),
        (NUMBERED, (0.0, 0.2, 0.3), (0.0, 0.2), "bc", {"moving": "c", "shown": "c"}),
        (NUMBERED, None, None, "b", {"name": "rig_{}"}),
        (NUMBERED, None, None, "bc", {"name": "x{}", "calibration_match": "order", "used": "bc"}),
    ],
)
def test_poses_of_a_run_are_those_of_the_same_frames_in_another_selection_of_its_views(
    first_ns: int, clocks: Any, again: Any, views: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Clocks are from names of images, a file (by view), or measured (in the order of the views)."""
    usual = {"ahead": 0.0, "trimmed": 0, "found": None, "moving": "abc", "shown": "abc", "name": "{}", "used": "abc"}
    more = usual | more
    folder, cut = tmp_path / "rig", more.pop("trimmed")
    for name, first in {"a": 0, "b": 2, "c": 3}.items():
        late = 10**9 * more["ahead"] * (name != "a")
        shown = {f"{first_ns + int(late) + (first + k) * 10**8:010}.png": counter_image(k, SIZE) for k in range(12)}
        write_images(folder / name, shown)

    def opened(clocks: Any, views: str, **changes: Any) -> Scene:
        given = {}
        if isinstance(clocks, dict):
            given["sync"] = tmp_path / "s.json"
            given["sync"].write_text(json.dumps({"views": {name: {"offset_s": clocks[name]} for name in clocks}}))
        elif clocks is not None:
            of_views = tuple(Clock(offset_s=start) for start in clocks)
            given["synchronisation"] = Synchronisation(clocks=of_views, method="people")
        return open_scene(folder, views=tuple(views), image_fps=10, **given, **changes)

    run = opened(clocks, "abc")
    frame_s = {view.name: view.clock.to_common(view.source.frame_times) for view in run.views}
    times = torch.arange(-20, 40, dtype=torch.float64) / 10
    paths = torch.from_numpy(moving(times.tolist())[1])
    used = more.pop("used")
    cameras = CaptureCameras(
        times=times,
        view_names=tuple(more["name"].format(name) for name in used),
        image_sizes=(SIZE,) * len(used),
        world_to_camera=torch.stack([paths if n in more["moving"] else paths[:1].expand_as(paths) for n in used], 1),
        intrinsics=torch.tensor(INTRINSICS, dtype=torch.float64).expand(60, len(used), -1, -1),
        scale=Scale.METRIC,
        start_ns=run.start_ns,
        starts=tuple(view.clock.offset_s for view in run.views if view.name in used),
        clock_origin=run.clock_origin,
    )
    write_cameras_json(tmp_path / "cameras.json", cameras)
    for name in "abc":
        for file in sorted((folder / name).iterdir())[:cut]:
            file.unlink()
    given = {"calibration": tmp_path / "cameras.json", **more}
    found, shown, *_ = (given.pop(key) for key in ("found", "shown", "moving", "name", "ahead"))
    if found:
        with pytest.raises(InputError, match=re.escape(found)):
            opened(again, views, **given)
        return
    scene = opened(again, views, **given)
    for index, view in enumerate(scene.views):
        true = torch.from_numpy(moving(frame_s[view.name][np.array(view.indices) + cut].tolist())[1])
        if view.name in shown:
            found = scene.in_files(index, view.camera.world_to_camera)
            torch.testing.assert_close(found, true, rtol=0, atol=2e-3)


def test_poses_that_do_not_cover_the_scene_are_refused(folder: Path, tmp_path: Path) -> None:
    known = [0.0, 0.05, 0.1]
    own, _ = moving(known)
    calibration = write_calibration(tmp_path / "c.json", {"a": own, "b": {}, "c": {}}, times=known)
    with pytest.raises(
        InputError, match=r"c\.json: camera a has poses for 0\.000-0\.100 s, the scene needs 0\.000-0\.167"
    ):
        open_scene(folder, calibration=calibration)
    assert open_scene(folder, calibration=calibration, frames=(0, 4)).num_times == 4
    backwards = write_calibration(tmp_path / "c.json", {"a": own, "b": {}, "c": {}}, times=[0.0, 0.2, 0.1])
    with pytest.raises(InputError, match="times do not increase"):
        open_scene(folder, calibration=backwards)


def write_frames(folder: Path, numbers: list[int]) -> None:
    write_images(folder, {f"{number:03}.png": counter_image(number, SIZE) for number in numbers})


def frame_poses(path: Path, numbers: list[int]) -> dict[int, Any]:
    """Write a `transforms.json` with one pose per image of a moving camera."""
    flip = np.diag([1.0, -1.0, -1.0, 1.0])
    poses = {number: np.array(pose(0.01 * number, 0.1 * number)) for number in numbers}
    frames = [
        {"file_path": f"a/{number:03}.png", "transform_matrix": (np.linalg.inv(matrix) @ flip).tolist()}
        for number, matrix in poses.items()
    ]
    lens = {"fl_x": 70, "fl_y": 71, "cx": 31, "cy": 25.5, "w": SIZE[1], "h": SIZE[0]}
    path.write_text(json.dumps(lens | {"frames": frames}))
    return poses


def test_poses_of_a_moving_camera_are_matched_by_file_name(tmp_path: Path) -> None:
    write_frames(tmp_path / "rig" / "a", [3, 4, 6, 7, 8])
    poses = frame_poses(tmp_path / "transforms.json", [8, 7, 6, 5, 4, 3])
    scene = open_scene(tmp_path / "rig", calibration=tmp_path / "transforms.json", image_fps=30)
    np.testing.assert_allclose(
        scene.views[0].camera.world_to_camera, [poses[number] for number in (3, 4, 6, 7, 8)], atol=1e-9
    )
    write_frames(tmp_path / "rig" / "a", [9, 10])
    with pytest.raises(InputError, match="camera a has no pose for 2 of 7 frames, first 009"):
        open_scene(tmp_path / "rig", calibration=tmp_path / "transforms.json", image_fps=30)


def test_one_pose_per_video_frame_is_matched_in_order(folder: Path, tmp_path: Path) -> None:
    poses = frame_poses(tmp_path / "transforms.json", [4, 3, 5, 6, 8, 7])
    by_name = open_scene(folder, calibration=tmp_path / "transforms.json", views=("a",), frames=(1, 6), stride=2)
    np.testing.assert_allclose(by_name.views[0].camera.world_to_camera, [poses[n] for n in (4, 6, 8)], atol=1e-9)
    moving = [pose(0.1 * count) for count in range(6)]
    camera = {"world_to_camera": moving, "intrinsics": INTRINSICS, "width": SIZE[1], "height": SIZE[0]}
    (tmp_path / "truth.json").write_text(json.dumps({"pixel_center": 0.5, "cameras": {"a": camera}}))
    in_order = open_scene(folder, calibration=tmp_path / "truth.json", views=("a",), frames=(2, 5))
    np.testing.assert_allclose(in_order.views[0].camera.world_to_camera, moving[2:5], atol=1e-9)


def test_poses_that_cannot_be_paired_with_a_videos_frames_are_refused(folder: Path, tmp_path: Path) -> None:
    for numbers, hint in (([0, 1, 2], "one pose per frame"), ([0, 1, 2, 3, 4, 9], "numbered without a gap")):
        frame_poses(tmp_path / "transforms.json", numbers)
        with pytest.raises(InputError, match=rf"camera a has {len(numbers)} poses, a\.mp4 has 6 frames") as caught:
            open_scene(folder, calibration=tmp_path / "transforms.json", views=("a",))
        assert hint in caught.value.hint


def test_scenes_without_calibration_have_no_cameras(folder: Path) -> None:
    assert scene_cameras(open_scene(folder), (), 0, 1) is None


def test_options_given_as_text_are_converted(folder: Path, tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "c.json", {"a": {}, "b": {}, "c": {}})
    options = SceneOptions(calibration=str(calibration), calibration_resize="scale")
    assert options.calibration == calibration
    assert options.calibration_resize is CalibrationResize.SCALE
    with pytest.raises(UsageError, match="scene options: calibration_match is 'nmae'"):
        open_scene(folder, calibration=calibration, calibration_match="nmae")
