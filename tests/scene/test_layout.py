"""Layouts of scene folders as other tools, cameras and people make them: the right views and frames, or a refusal."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from page4d.errors import InputError, Level
from page4d.scene.layout import Candidate, takes_notice
from page4d.scene.open import open_scene
from tests.scene.clip_writers import Pixels, counter_image, read_counter, write_images, write_video

Tree = dict[str, Pixels]

DEPTH = np.full((48, 64), 1500, np.uint16)
TIMES = range(3)


def number(view: int, time: int = 0) -> int:
    """Return the number that the image of a view shows at a time."""
    return 5 + 300 * view + 37 * time


def tree(*names: str, half: bool = False, times: range = TIMES) -> Tree:
    """Return the images of several views, whose names have the place of a time `t`; videos show that of time 0."""
    size = (24, 32) if half else (48, 64)
    return {
        name.format(t=time): counter_image(number(view, time), size)
        for view, name in enumerate(names)
        for time in (times if "{t" in name else (0,))
        if name != "none"
    }


def depth(*names: str) -> Tree:
    """Return depth maps."""
    return {name.format(t=time): DEPTH for name in names for time in TIMES}


def write_tree(folder: Path, files: Tree) -> Path:
    """Write images, and videos of three equal frames, by their paths."""
    for name, pixels in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in (".png", ".jpg"):
            write_images(path.parent, {path.name: pixels})
        else:
            write_video(path, [pixels if pixels.dtype == np.uint8 else counter_image(4000)] * 3)
    return folder


def numbers_in(folder: Path) -> dict[str, list[int]]:
    """Return the numbers that the frames of every view show."""
    shown = {}
    for view in open_scene(folder).views:
        with view.source.open() as reader:
            shown[view.name] = [read_counter(image / 255) for image in reader.read(view.indices)]
    return shown


def texts(folder: Path, level: Level = Level.WARNING) -> list[str]:
    """Return the notices of a level, without that of the assumed frame rate."""
    notices = [notice for notice in open_scene(folder).notices if notice.level is level]
    return [notice.text for notice in notices if "assuming 30 fps" not in notice.text]


def instants(first: str, last: str) -> str:
    return f"{first} to {last} are instants, each with one image per view"


def maps(left: str) -> str:
    return f"left out {left}: depth maps or masks, read with depth and masks"


def copies(left: str, originals: str) -> str:
    return f"left out {left}: copies of {originals}"


def later(left: str, first: str) -> str:
    return f"left out {left}: later chapters of {first}; join them to use them"


@pytest.mark.parametrize(
    ("files", "views", "notice"),
    [
        (tree("frame{t:05}/cam00.png", "frame{t:05}/cam01.png"), "cam00 cam01", instants("frame00000", "frame00002")),
        (tree("{t}/left.png", "{t}/right.png"), "left right", instants("0", "2")),
        (tree("timestep_{t:02}/3.png", "timestep_{t:02}/7.png"), "3 7", instants("timestep_00", "timestep_02")),
        (tree("{t:03}/view1_{t:03}.png", "{t:03}/view2_{t:03}.png"), "view1 view2", instants("000", "002")),
        (tree("Frame{t}/images/A.png", "Frame{t}/images/B.png"), "A B", instants("Frame0", "Frame2")),
        (
            tree("a/color/{t}.png", "b/color/{t}.png") | depth("a/depth/{t}.png", "b/depth/{t}.png"),
            "a b",
            maps("a/depth/, b/depth/"),
        ),
        (
            tree("cam1/rgb.{t:04}.png", "cam2/rgb.{t:04}.png")
            | depth("cam1/depth.{t:04}.png", "cam2/depth.{t:04}.png"),
            "cam1 cam2",
            maps("cam1/depth.*.png, cam2/depth.*.png"),
        ),
        (
            tree("8362/color_{t:06}.png") | depth("8362/aligned_depth_to_color_{t:06}.png"),
            "8362",
            maps("8362/aligned_depth_to_color_*.png"),
        ),
        (tree("rgb/{t}.png") | depth("depth/{t}.png"), "rgb", maps("depth/")),
        # One folder for all cameras
        (
            tree("cam0_rgb_{t}.png", "cam1_rgb_{t}.png") | depth("cam0_depth_{t}.png", "cam1_depth_{t}.png"),
            "cam0 cam1",
            maps("cam0_depth_*.png, cam1_depth_*.png"),
        ),
    ],
)
def test_plain_layouts_of_images_are_read(files: Tree, views: str, notice: str, tmp_path: Path):
    write_tree(tmp_path, files)
    assert numbers_in(tmp_path) == {
        name: [number(place, time) for time in TIMES] for place, name in enumerate(views.split())
    }
    assert notice in texts(tmp_path, Level.INFO)
    assert texts(tmp_path) == []


def test_an_instant_without_one_image_leaves_a_gap(tmp_path: Path):
    files = tree("t/frame_{t}/cam1.png", "t/frame_{t}/cam2.png", times=range(5))
    write_tree(tmp_path, {name: pixels for name, pixels in files.items() if name != "t/frame_2/cam2.png"})
    assert numbers_in(tmp_path / "t") == {
        f"cam{view + 1}": [number(view, t) for t in (0, 1, 3, 4)] for view in (0, 1)
    }


def small(name: str) -> Tree:
    """Return a video of a view with half the size."""
    return tree(name, half=True)


@pytest.mark.parametrize(
    ("files", "views", "notice"),
    [
        # One folder per camera
        (tree("cam01/color.mp4", "cam02/color.mp4") | tree("cam01/depth.mp4"), {"cam01": 0, "cam02": 1}, []),
        (tree("l/DCIM/100GOPRO/GX010012.MP4", "r/DCIM/100GOPRO/GX010044.MP4"), {"l": 0, "r": 1}, []),
        (
            tree("A/color.mp4", "B/color.mp4", "A/ir.mp4", "B/ir.mp4"),
            {"A": 0, "B": 1},
            ["left out A/ir.mp4, B/ir.mp4: the colour images are A/color.mp4, B/color.mp4"],
        ),
        # Copies
        (
            tree("images/{t}.png") | tree("images_2/{t}.png", half=True),
            {"images": 0},
            [copies("images_2/", "images/")],
        ),
        (tree("2x/{t}.png", half=True) | tree("1x/{t}.png"), {"1x": 0}, [copies("2x/", "1x/")]),
        (
            tree("l.mp4", "r.mp4") | tree("l_half.mp4", "r_half.mp4", half=True),
            {"l": 0, "r": 1},
            [copies("l_half.mp4, r_half.mp4", "l.mp4, r.mp4")],
        ),
        (tree("a.mp4") | small("a_Proxy.mp4"), {"a": 0}, [copies("a_Proxy.mp4", "a.mp4")]),
        (tree("a.mov") | tree("a_proxy.mp4"), {"a": 0}, [copies("a_proxy.mp4", "a.mov")]),
        (tree("a.mp4") | small("a (1).mp4"), {"a": 0}, [copies("a (1).mp4", "a.mp4")]),
        (tree("IMG_0001.MOV") | tree("IMG_E0001.MOV"), {"IMG_0001": 0}, [copies("IMG_E0001.MOV", "IMG_0001.MOV")]),
        (tree("A_0001.MP4") | small("A_0001S03.MP4"), {"A_0001": 0}, [copies("A_0001S03.MP4", "A_0001.MP4")]),
        (
            tree("VID_20240501_123015_00_001.mp4") | small("LRV_20240501_123015_11_001.mp4"),
            {"VID_20240501_123015_00_001": 0},
            [copies("LRV_20240501_123015_11_001.mp4", "VID_20240501_123015_00_001.mp4")],
        ),
        (
            tree("images/{t}.png", "images_undistorted/{t}.png"),
            {"images": 0},
            [copies("images_undistorted/", "images/")],
        ),
        (tree("a.mp4", "a_synced.mp4"), {"a": 0}, [copies("a_synced.mp4", "a.mp4")]),
        (
            tree("a1.mp4", "b.mp4") | tree("a1DLC_resnet50_out.mp4", "b - Kopie.mp4") | tree("a1_pose.mp4"),
            {"a1": 0, "b": 1},
            [copies("a1_pose.mp4, a1DLC_resnet50_out.mp4, b - Kopie.mp4", "a1.mp4, b.mp4")],
        ),
        (
            tree("cam.mp4", "cam left.mp4", "cam10.mp4", "came.mp4"),
            {"cam": 0, "cam left": 1, "cam10": 2, "came": 3},
            [],
        ),
        (
            tree("a/{t}.png", "a/background.png"),
            {"a": 0},
            ["left out a/background.png: no frame number, unlike the others"],
        ),
        (tree("a.mp4", "output/preview.png"), {"a": 0}, ["left out output/: a single image"]),
        (
            tree("a.mp4", "b.mp4", "bg/a.png", "bg/b_empty.png"),
            {"a": 0, "b": 1},
            ["left out bg/: images of several views"],
        ),
        (
            tree("a.mp4", "fig_photos/{t}.png", "extrinsics/{t}.png"),
            {"a": 0},
            ["left out extrinsics/: images of a calibration", "left out fig_photos/: named as photos or figures"],
        ),
        *(
            (
                tree("cam1.mp4", "cam2.mp4", f"{name}.mp4"),
                {"cam1": 0, "cam2": 1},
                [f"left out {name}.mp4: named as a preview, or as composed of several views"],
            )
            for name in (
                *("preview", "all_cameras_grid", "preview_2x2", "Combined Video", "Grid-all-views 1280x720"),
                *("side_by_side", "SideBySide", "quad view", "multi_view", "multiview"),
            )
        ),
        (
            tree("1/x.mp4", "2/y.mp4", "preview.mp4"),
            {"1": 0, "2": 1},
            ["left out preview.mp4: named as a preview, or as composed of several views"],
        ),
        (tree("grid.mp4", "mosaic.mp4"), {"grid": 0, "mosaic": 1}, []),
        (tree("cam1.mp4", "cam3 grid.mp4", "grid left.mp4"), {"cam1": 0, "cam3 grid": 1, "grid left": 2}, []),
        (tree("1/preview.mp4", "2/preview.mp4"), {"1": 0, "2": 1}, []),
        (
            tree("1/x.mp4", "2/y.mp4", "preview/all.mp4"),
            {"1": 0, "2": 1},
            ["left out preview/all.mp4: named as a preview, or as composed of several views"],
        ),
        (tree("grid1.mp4", "grid2.mp4", "wall1.mp4"), {"grid1": 0, "grid2": 1, "wall1": 2}, []),
        (tree("all.mp4", "left.mp4", "side.mp4"), {"all": 0, "left": 1, "side": 2}, []),
        (
            tree("a_rgb.mp4", "a_ir.mp4", "b.mp4", "b_infra1.mp4", "b_infra2.mp4", "c_thermal.mp4"),
            {"a_rgb": 0, "b": 2, "c_thermal": 5},
            ["left out a_ir.mp4, b_infra1.mp4, b_infra2.mp4: the colour images are a_rgb.mp4, b.mp4"],
        ),
        (
            tree("a/{t}.png") | tree("a/1 (1).png", "a/2 - Copy.png"),
            {"a": 0},
            ["left out a/1 (1).png, a/2 - Copy.png: copies of 1, 2"],
        ),
        (
            tree("seq-01/{t}.png", "seq-02/{t}.png"),
            {"seq-01": 0, "seq-02": 1},
            ["seq-01/, seq-02/: named as takes or parts of a data set, used as cameras that record at the same time"],
        ),
        (tree("C0001.MP4") | small("C0001S03.MP4"), {"C0001": 0}, [copies("C0001S03.MP4", "C0001.MP4")]),
        (tree("GX010012.MP4") | small("GL010012.MP4"), {"GX010012": 0}, [copies("GL010012.MP4", "GX010012.MP4")]),
        (
            tree("a.mp4", "b.mp4") | tree("a/{t}.png", "b/{t}.png"),
            {"a": 0, "b": 1},
            ["left out a/, b/: images of a.mp4, b.mp4"],
        ),
        (
            tree("A/M4ROOT/CLIP/C0001.MP4", "B/M4ROOT/CLIP/C0009.MP4") | small("A/M4ROOT/SUB/C0001S03.MP4"),
            {"A": 0, "B": 1},
            [copies("A/M4ROOT/SUB/C0001S03.MP4", "A/M4ROOT/CLIP/C0001.MP4")],
        ),
        (tree("a1.mp4") | tree("a1-h264.mp4"), {"a1": 0}, [copies("a1-h264.mp4", "a1.mp4")]),
        (
            tree("a1.mp4", "video.mp4") | tree("a1_frames/{t}.png", "images/{t}.png"),
            {"a1": 0, "video": 1},
            ["left out a1_frames/, images/: images of a1.mp4, video.mp4"],
        ),
        (tree("1/x.mp4", "2/x.mp4", "calib/{t}.png"), {"1": 0, "2": 1}, ["left out calib/: images of a calibration"]),
        # Chapters
        (
            tree("GOPR0553.MP4", "GP010553.MP4", "GP020553.MP4"),
            {"GOPR0553": 0},
            [later("GP010553.MP4, GP020553.MP4", "GOPR0553.MP4")],
        ),
        (tree("GOPR0553/{t}.png", "GP010553/{t}.png"), {"GOPR0553": 0}, [later("GP010553/", "GOPR0553/")]),
        (
            tree("GX010123.MP4", "GX010124.MP4", "GX020123.MP4"),
            {"GX010123": 0, "GX010124": 1},
            [later("GX020123.MP4", "GX010123.MP4")],
        ),
        (
            tree("DJI_0007_001.MP4", "DJI_0007_002.MP4"),
            {"DJI_0007_001": 0},
            [later("DJI_0007_002.MP4", "DJI_0007_001.MP4")],
        ),
        (
            tree("l/GH010001.MP4", "l/GH020001.MP4", "r/GH010009.MP4"),
            {"l": 0, "r": 2},
            [later("l/GH020001.MP4", "l/GH010001.MP4")],
        ),
        (
            tree("a part 1.mp4", "a part 2.mp4", "b.mp4"),
            {"a part 1": 0, "b": 2},
            [later("a part 2.mp4", "a part 1.mp4")],
        ),
        (
            tree("c/DCIM/G1.MP4", "c/DCIM/P1.JPG", "d/G2.MP4", "d/P2.jpg") | depth("d/mask_{t}.png"),
            {"c": 0, "d": 2},
            ["left out c/DCIM/P1.JPG, d/P2.jpg: photos next to a video"],
        ),
        (
            tree("c/{t:03}.png", "c/all.mp4", "d/{t:03}.png", times=range(10)),
            {"c": 0, "d": 2},
            ["left out c/all.mp4: videos next to images, which are used"],
        ),
        (
            tree("GX010001.MP4", "GX020002.MP4"),
            {"GX010001": 0, "GX020002": 1},
            ["GX020002.MP4: the first chapter of the recording is missing, so it begins later than others"],
        ),
        (
            tree("a/GX010001.MP4", "b/GX020002.MP4"),
            {"a": 0, "b": 1},
            ["b/GX020002.MP4: the first chapter of the recording is missing, so it begins later than others"],
        ),
        (tree("a/video_part1.mp4", "b/video_part2.mp4"), {"a": 0, "b": 1}, []),
        (
            tree("a/video_part1.mp4", "b/video_part1.mp4", "c/video_part2.mp4"),
            {"a": 0, "b": 1, "c": 2},
            ["c/video_part2.mp4: the first chapter of the recording is missing, so it begins later than others"],
        ),
        (
            tree("a_part1.mp4", "b_part2.mp4"),
            {"a_part1": 0, "b_part2": 1},
            ["b_part2.mp4: the first chapter of the recording is missing, so it begins later than others"],
        ),
    ],
)
def test_copies_chapters_and_maps_are_no_views(files: Tree, views: dict[str, int], notice: list[str], tmp_path: Path):
    write_tree(tmp_path, files)
    shown = numbers_in(tmp_path)
    assert {name: numbers[0] for name, numbers in shown.items()} == {
        name: number(view) for name, view in views.items()
    }
    assert texts(tmp_path) == notice


@pytest.mark.parametrize(
    ("files", "found", "hint"),
    [
        (
            tree("{t:06}/01.png", "{t:06}/02.png"),
            "cameras or instants? 000000, 000001, 000002 hold images of the same names: 01, 02",
            "(cam01.jpg) if every folder is an instant",
        ),
        (tree("frame{t}/0001.png", "frame{t}/0002.png"), "cameras or instants?", "else the folders (cam01)"),
        (
            tree("a/cam1.png", "a/cam2.png", "b/cam1.png", "b/cam2.png"),
            "cameras or instants? a, b hold",
            "name the images",
        ),
        (
            tree("a/left_{t}.png", "a/right_{t}.png", "b/left_{t}.png", "b/right_{t}.png"),
            "a/ holds several series of images: left_*.png (3), right_*.png (3)",
            "/a' as the scene, or put every series into a folder of its own",
        ),
        (
            tree("rig/cam0_ir_{t}.png", "rig/cam0_uv_{t}.png", "rig/cam1_ir_{t}.png", "rig/cam1_uv_{t}.png"),
            "cam0_ir_*.png (3), cam0_uv_*.png (3)",
            "a folder of its own",
        ),
        (tree("cam_{t:04}.png"), "no videos", "it contains 3 images"),
        (tree("preview.mp4", "videos/a.mp4", "videos/b.mp4"), "videos' has 2", "give the folder"),
        (tree("preview/a.mp4", "preview/b.mp4"), "preview' has 2", "give the folder"),
        (tree("grid.mp4", "depth.mp4", "cam1/x.mp4"), "no videos of cameras in", "cam1'"),
        (tree("grid/x.mp4", "thumbs/x.mp4"), "grid' has 1", "give the folder"),
        (tree("rig/0_{t:05}.png", "rig/1_{t:05}.png"), "0_*.png (3), 1_*.png (3)", "a folder of its own"),
        (tree("r/u_{t:05}_00.png", "r/u_{t:05}_01.png"), "r/u_*_*.png: names with 3 x 2 numbers", "one number each"),
        (tree("c/{t}.png", "c/{t}.jpg"), "several series of images: *.jpg (3), *.png (3)", "a folder of its own"),
        (
            tree("f{t}/cam1.jpg", "f{t}/cam2.jpg") | depth("f{t}/cam1.png", "f{t}/cam2.png"),
            "f0/ holds several images of a camera: cam1.jpg, cam1.png, cam2.jpg, cam2.png",
            "keep one image per camera",
        ),
        (
            tree("a/x.mp4", "a/y.mp4", "b/x.mp4"),
            "a' has 2",
            "or put one recording of every camera into a folder such as cam01",
        ),
        (tree("2024-05-01/cam1.mp4", "2024-05-02/cam1.mp4"), "2024-05-01' has 1", "a folder such as cam01"),
        (tree("cam1/x.mp4", "cam1/y.mp4", "cam2/z.mp4", "cam2/w.mp4"), "cam2 2", "put the recordings of one take"),
        (tree("take1/x.mp4", "take2/x.mp4"), "take1' has 1", "give one of these folders, or put"),
    ],
)
def test_unclear_layouts_are_refused_with_a_way_out(files: Tree, found: str, hint: str, tmp_path: Path):
    with pytest.raises(InputError) as caught:
        open_scene(write_tree(tmp_path, files))
    assert found in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("names", "lengths", "found"),
    [
        ("t1-A t1-B t2-A t2-B", (9.0, 9.1, 5.0, 5.0), "t1, t2: by names and lengths takes of the cameras A, B"),
        ("c1_run c1_jump c2_run c2_jump", (9.0, 5.0, 9.0, 5.0), "run, jump: by names and lengths takes of"),
        ("Walk 1.5401 Walk 1.5501 Walk.5401 Walk.5501", (9.0, 9.0, 5.0, 5.0), "Walk 1, Walk: by names"),
        ("hd_0 hd_1 vga_0 vga_1", (9.0, 9.0, 9.1, 9.1), ""),
        ("l_front l_back r_front r_back", (9.0, 7.0, 5.0, 6.0), ""),
        ("t1-A t1-B t2-A", (9.0, 9.0, 5.0), ""),
        ("t1-A t1-B t2-A t2-B c", (9.0, 9.0, 5.0, 5.0, 9.0), ""),
        ("A B", (9.0, 5.0), ""),
    ],
)
def test_takes_of_several_cameras_in_one_folder_are_named(names: str, lengths: tuple[float, ...], found: str):
    chosen = [Candidate(name=name, path=Path(name), label=name) for name in re.split(r" (?!\d)", names)]
    assert "".join(notice.text for notice in takes_notice(chosen, lengths)).startswith(found)
    assert bool(takes_notice(chosen, lengths)) == bool(found)


@pytest.mark.parametrize(
    "files",
    [
        tree("frame_7/cam1.png", "frame_7/cam2.png"),
        tree("cam1_ext.png", "cam2_ext.png"),
        tree("rig/cam1.png", "rig/cam2.png"),
    ],
)
def test_one_instant_is_read(files: Tree, tmp_path: Path):
    write_tree(tmp_path, files)
    assert numbers_in(tmp_path) == {"cam1": [number(0)], "cam2": [number(1)]}


@pytest.mark.parametrize(
    "names", ["cam{}_rgb_{{t}} cam{}_depth_{{t}}", "cam{}_rgb cam{}_depth", "cam{}/rgb cam{}/depth"]
)
def test_depth_next_to_the_images_is_read(names: str, tmp_path: Path):
    rgb, maps = ([f"{name.format(view)}.png" for view in (0, 1)] for name in names.split())
    write_tree(tmp_path, tree(*rgb) | depth(*maps))
    pose = np.eye(4)
    camera = {"image_size": [64, 48], "intrinsics": np.diag([90.0, 90, 1]).tolist(), "static": True}
    views = {}
    for view in (0, 1):
        pose[0, 3] = view
        views[f"cam{view}"] = camera | {"world_to_camera": pose.tolist()}
    calibration = tmp_path / "cameras.json"
    calibration.write_text(json.dumps({"pixel_center": 0.5, "times": [0], "scale": "metric", "views": views}))
    scene = open_scene(tmp_path, calibration=calibration, depth=tmp_path)
    for view, name in zip(scene.views, maps, strict=True):
        found = [str(file.relative_to(tmp_path)) for file in view.depth.frames.files]
        assert found == [name.format(t=time) for time in (TIMES if "{t" in name else [0])]
        assert view.depth.indices == tuple(range(len(found)))


def test_messages_name_the_camera_of_a_file_in_its_folder(tmp_path: Path):
    write_tree(tmp_path, tree("a/GX010012.MP4", "b/GX010012.MP4"))
    (tmp_path / "b" / "GX010012.MP4").write_bytes(b"no video")
    with pytest.raises(InputError, match=r"b: GX010012\.MP4"):
        open_scene(tmp_path)


@pytest.mark.parametrize(
    ("files", "of_calibration", "views", "expected"),
    [
        ("index.mp4 thumb.mp4 wrist.mp4", "index thumb wrist", None, "index thumb wrist"),
        ("index.mp4 thumb.mp4 wrist.mp4", "index wrist", None, "index wrist"),
        ("index.mp4 thumb.mp4 wrist.mp4", "index thumb wrist", ("thumb", "index"), "thumb index"),
        ("index.mp4 thumb.mp4 wrist.mp4", "index thumb wrist", 2, "index thumb"),
        ("cam2/x.mp4 cam3/x.mp4 grid/x.mp4", "cam2 cam3 grid", None, "cam2 cam3 grid"),
        ("cam2/x.mp4 cam3/x.mp4 grid/x.mp4", "", ("grid", "cam2"), "grid cam2"),
        ("cam2/x.mp4 cam3/x.mp4 previews/a.mp4 previews/b.mp4", "", None, "cam2 cam3"),
    ],
)
def test_previews_are_views_if_the_calibration_or_the_user_names_them(
    files: str, of_calibration: str, views: int | tuple[str, ...] | None, expected: str, tmp_path: Path
):
    write_tree(tmp_path / "s", tree(*files.split()))
    calibration = tmp_path / "rig.json"
    camera = {"K": np.diag([90.0, 90, 1]).tolist(), "R": np.eye(3).tolist(), "image_size": [64, 48], "unit": "m"}
    cameras = {name: camera | {"t": [count, 0.0, 0.0]} for count, name in enumerate(of_calibration.split())}
    calibration.write_text(json.dumps(cameras))
    scene = open_scene(tmp_path / "s", calibration=calibration if cameras else None, views=views)
    assert " ".join(scene.view_names) == expected
    assert sum(view.camera is not None for view in scene.views) == len({*scene.view_names} & {*cameras})


def test_a_copy_is_used_if_it_is_selected(tmp_path: Path):
    write_tree(tmp_path, tree("images/{t}.png") | tree("images_2/{t}.png", half=True))
    scene = open_scene(tmp_path, views=("images_2",))
    assert scene.views[0].source.size == (24, 32)
    assert not any("left out" in notice.text for notice in scene.notices)


@pytest.mark.parametrize(
    ("files", "views"),
    [
        (tree("cam1.mp4", "cam2.mp4", "cam10.mp4"), "cam1 cam2 cam10"),
        (tree("cam1/{t:06}.png", "cam2/{t:06}.png"), "cam1 cam2"),
        (tree("left.mp4", "right.mp4"), "left right"),
        (tree("left/{t}.png", "right/{t}.png"), "left right"),
        (tree("left{t:02}.png", "right{t:02}.png"), "left right"),
        (tree("rig/{t:05}_cam3.png", "rig/{t:05}_cam4.png"), "cam3 cam4"),
        (tree("camera_2_img_{t:06}.png", "camera_10_img_{t:06}.png"), "camera_2 camera_10"),
        (tree("l/7_{t:05}.png", "r/8_{t:05}.png"), "l r"),
        (tree("l/{t:03}_{t:05}.png", "r/{t:03}_{t:05}.png"), "l r"),
        (tree("c1/2024-05-01_12-3{t}-15.960.png", "c2/2024-05-01_12-3{t}-15.960.png"), "c1 c2"),
        (tree("c1/{t}.png", "c2/{t}.png", "debug/a/{t}.png", "tmp/b/{t}.png"), "c1 c2"),
        (tree("0/{t:05}.png", "1/{t:05}.png"), "0 1"),
        (tree("00/{t:06}.png", "01/{t:06}.png", "02/{t:06}.png"), "00 01 02"),
        (tree("0000/{t:06}.png", "0001/{t:06}.png"), "0000 0001"),
        (tree("001/{t:03}.png", "002/{t:03}.png"), "001 002"),
        (tree("836212060125/{t:06}.png", "839512060362/{t:06}.png"), "836212060125 839512060362"),
        (tree("view0/{t:04}.png", "view1/{t:04}.png"), "view0 view1"),
        (tree("cam1/frame_{t:05}.png", "cam2/frame_{t:05}.png"), "cam1 cam2"),
        (tree("001/frame_{t:02}.png", "002/frame_{t:02}.png"), "001 002"),
        (tree("a/a_{t}.png", "b/b_{t}.png"), "a b"),
        (tree("cam1/cam_{t:04}.png", "cam2/cam_{t:04}.png"), "cam1 cam2"),
        (tree("1x/{t}.png", "2x/{t}.png"), "1x 2x"),
        (tree("1x/{t}.png") | tree("none", "2x/{t}.png", half=True), "1x 2x"),
        (tree("cam/{t}.png") | tree("none", "cam_2/{t}.png", "cam_4/{t}.png", half=True), "cam cam_2 cam_4"),
        (tree("cam2.mp4", "cam4.mp4", "cam8.mp4"), "cam2 cam4 cam8"),
        (tree("c.mp4", "c (1).mp4", "c (2).mp4"), "c (1) c (2) c"),
        (tree("C (1)/C_(1)_{t:04}.png", "C (2)/C_(2)_{t:04}.png"), "C (1) C (2)"),
        (tree("left.mp4", "left_2.mp4", "test.mp4"), "left left_2 test"),
        (tree("c/frame_{t}_0.png", "d/frame_{t}_0.png"), "c d"),
        (tree("2.mp4", "4.mp4", "8.mp4", "16.mp4"), "2 4 8 16"),
        (tree("high.mp4", "low.mp4"), "high low"),
        (tree("DJI_0001.MP4", "DJI_0002.MP4"), "DJI_0001 DJI_0002"),
        (tree("GX010012.MP4", "GX010034.MP4"), "GX010012 GX010034"),
        (tree("GX020012.MP4", "GX020034.MP4"), "GX020012 GX020034"),
        (tree("C0001.MP4", "C0002.MP4"), "C0001 C0002"),
        (tree("IMG_0001.MOV", "IMG_0002.MOV"), "IMG_0001 IMG_0002"),
        (tree("normal.mp4", "tele.mp4", "wide.mp4"), "normal tele wide"),
        (tree("A.mp4", "B/{t}.png"), "A B"),
        (tree("rgb/{t}.png", "ir/{t}.png"), "ir rgb"),
        (tree("a_ir.mp4", "b_ir.mp4", "b2_rgb.mp4"), "a_ir b2_rgb b_ir"),
        (tree("1/1.png", "1/2.png", "2/1.png", "2/2.png"), "1 2"),
        (tree("house/{t}.png"), "house"),
        (tree("a_figure.mp4", "b_photo.mp4", "c.mp4"), "a_figure b_photo c"),
    ],
)
def test_ordinary_layouts_are_read_without_a_warning(files: Tree, views: str, tmp_path: Path):
    write_tree(tmp_path, files)
    scene = open_scene(tmp_path)
    assert " ".join(scene.view_names) == views
    assert [len(view.source.frame_times) for view in scene.views] == [
        len([n for n in files if n.startswith(f"{view}/")]) or 3 for view in scene.view_names
    ]
    assert texts(tmp_path) == []


@pytest.mark.parametrize(
    "files",
    [
        tree("cam1/color/{t:03}.png", "cam2/color/{t:03}.png")
        | depth("cam1/depth/{t:03}.png", "cam2/depth/{t:03}.png"),
        tree("cam1/f{t:03}.color.png") | depth("cam1/f{t:03}.depth.png"),
        tree("cam1/color_{t:06}.png") | depth("cam1/aligned_depth_to_color_{t:06}.png"),
    ],
)
def test_depth_in_the_folders_of_cameras_is_read_on_request(files: Tree, tmp_path: Path):
    for time in TIMES:
        files |= {name: DEPTH + time for name in files if "depth" in name and f"{time}." in name}
    write_tree(tmp_path, files)
    for view in open_scene(tmp_path, depth=tmp_path).views:
        with view.depth.frames.open() as reader:
            shown = [int(image.max()) for image in reader.read(view.depth.indices)]
        assert shown == [1500 + time for time in TIMES]


def test_masks_in_the_folder_of_a_camera_are_read_on_request(tmp_path: Path):
    masks = {f"cam1/mask_{time}.png": counter_image(0, (48, 64)) for time in TIMES}
    write_tree(tmp_path, tree("cam1/frame_{t}.png") | masks)
    (view,) = open_scene(tmp_path, masks=tmp_path).views
    assert view.mask.indices == (0, 1, 2)
