"""Invalid and unusual input: one case per kind, with messages and exit code.

Numbers in the names of the cases are rows of a list of kinds of input (1 to 48, 55 to 60).
"""

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.cli import clips
from tests.cli.clips import picture, sound_track, truncate, write_image_folder, write_scene, write_video
from tests.scene.clip_writers import set_rotation

Maker = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A folder, a command on it, and its outcome: fragments of stderr (with code 0: of all output) and exit code."""

    name: str
    make: Maker
    fragments: tuple[str, ...]
    code: int = 3
    arguments: tuple[str, ...] = ()
    command: str = "inspect-scene"


def with_valid_video(maker: Maker, name: str = "cam01.mp4") -> Maker:
    """Make a scene of a valid video and the tested one."""

    def make(folder: Path) -> None:
        write_video(folder / "cam02.mp4", seed=1)
        maker(folder / name)

    return make


def content(data: bytes) -> Maker:
    return lambda path: path.write_bytes(data)


def png_file(path: Path) -> None:
    path.write_bytes(cv2.imencode(".png", picture(0))[1].tobytes())


def images(maker: Maker) -> Maker:
    """Make a scene of two image folders with the tested file in one of them."""

    def make(folder: Path) -> None:
        for seed, name in enumerate(("cam01", "cam02")):
            write_image_folder(folder / name, seed=seed)
        maker(folder / "cam01" / "000002.png")

    return make


def write_depth_folder(folder: Path, frames: int) -> None:
    """Write numbered depth maps of 2 m."""
    folder.mkdir(parents=True)
    for index in range(frames):
        cv2.imwrite(str(folder / f"{index:06d}.png"), np.full((48, 64), 2000, np.uint16))


def six_views(folder: Path) -> None:
    write_scene(folder, [f"cam{number}" for number in (1, 2, 3, 4, 10, 11)], frames=2)


def twins(folder: Path) -> None:
    write_video(folder / "cam01.mp4")
    shutil.copy(folder / "cam01.mp4", folder / "cam02.mp4")


def with_file(name: str, text: str) -> Maker:
    def make(folder: Path) -> None:
        write_scene(folder)
        (folder / name).write_text(text)

    return make


def with_sound(*seeds: int) -> Maker:
    def make(folder: Path) -> None:
        for number, seed in enumerate(seeds, 1):
            write_video(folder / f"cam{number:02}.mp4", 12, seed=number, sound=sound_track(1.0, seed))

    return make


def calibration(*names: str, image_size: tuple[int, int] = (64, 48), **changes: object) -> str:
    """Return a `cameras.json` of parallel cameras; `changes` apply to the last one."""
    cameras = {}
    for place, name in enumerate(names):
        pose = np.eye(4)
        pose[0, 3] = place
        cameras[name] = {
            "world_to_camera": pose.tolist(),
            "intrinsics": [[60.0, 0, 32], [0, 60, 24], [0, 0, 1]],
            "width": image_size[0],
            "height": image_size[1],
        }
    cameras[names[-1]].update(changes)
    return json.dumps({"pixel_center": 0.5, "scale": "metric", "cameras": cameras})


def calibrated(*names: str, **changes: object) -> Maker:
    return with_file("rig.json", calibration(*names, **changes))


def rig_toml(rotation: str = "[0.0, 0.0, 0.0]", matrix: str = "[[60.0,0,32],[0,60.0,24],[0,0,1]]") -> Maker:
    cameras = "".join(
        f'[{name}]\nname = "{name}"\nsize = [64.0, 48.0]\nmatrix = {matrix}\ndistortions = [0.0, 0.0, 0.0, 0.0]\n'
        f"rotation = {rotation}\ntranslation = [0.0, 0.0, 0.0]\nfisheye = false\n"
        for name in ("cam01", "cam02")
    )
    return with_file("Calib.toml", cameras)


MIRROR = [[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1]]
RIG = ("--calibration", "{scene}/rig.json")
TOML = ("--calibration", "{scene}/Calib.toml")
IMAGE_FPS = ("--image-fps", "10")

USAGE = (
    Case("01 scene missing", lambda folder: folder.rmdir(), ("scene folder '{scene}' does not exist",), 2),
    Case("06 views 0", write_scene, ("Invalid value for '--views'", "0 is not in the range"), 2, ("--views", "0")),
    Case("06 views -1", write_scene, ("Invalid value for '--views'",), 2, ("--views", "-1")),
    Case(
        "06 views x",
        write_scene,
        ("--views: no view is called 'x', the views are cam01, cam02",),
        2,
        ("--views", "x"),
    ),
    Case("06 views ,", write_scene, ("Invalid value for '--views'",), 2, ("--views", "cam01,")),
    Case("06 views twice", write_scene, ("--views contains a view twice",), 2, ("--views", "cam01,cam01")),
    Case("07 unknown option", write_scene, ("No such option", "--views"), 2, ("--view", "2")),
    Case("07 unknown command", write_scene, ("No such command", "inspect-scene"), 2, (), "inspect-scen"),
    Case("07 frames", write_scene, ("Invalid value for '--frames'", "A:B"), 2, ("--frames", "1:2:3")),
    Case("07 nothing chosen", write_scene, ("--frames 9: selects nothing",), 2, ("--frames", "9:")),
    Case("07 fps nan", write_scene, ("--fps",), 2, ("--fps", "nan")),
    Case("07 max-pixels nan", write_scene, ("scene options: max_megapixels is nan",), 2, ("--max-pixels", "nan")),
    Case("07 unit alone", write_scene, ("--calibration-unit without --calibration",), 2, ("--calibration-unit", "m")),
    Case("07 masks missing", write_scene, ("masks folder", "does not exist"), 2, ("--masks", "{scene}/no")),
    Case("37 fps beyond memory", write_scene, ("frames; the limit is 100,000",), 2, ("--fps", "1e8")),
    Case("37 fps beyond reason", write_scene, ("fps is 1e+300", "less than or equal to"), 2, ("--fps", "1e300")),
)

FOLDERS = (
    Case("03 empty folder", lambda _: None, ("no videos in '{scene}' (supported: mp4, mov, mkv, webm",)),
    Case("03 loose images", lambda f: png_file(f / "1.png"), ("no videos in", "it contains 1 image: put the images")),
    Case(
        "04 too few",
        write_scene,
        ("--views 4, but '{scene}' has 2 videos: cam01.mp4, cam02.mp4",),
        3,
        ("--views", "4"),
    ),
    Case(
        "05 too many",
        six_views,
        ("using 4 of 6 videos: cam1.mp4, cam2.mp4, cam3.mp4, cam4.mp4; not used: cam10.mp4, cam11.mp4",),
        0,
        ("--views", "4"),
    ),
    Case(
        "18 broken link",
        with_valid_video(lambda p: p.symlink_to("gone.mp4")),
        ("cam01.mp4 is a link to a file that does not",),
    ),
    Case(
        "18 link to itself",
        with_valid_video(lambda p: p.symlink_to(p.name)),
        ("cam01.mp4 is a link to a file that does not",),
    ),
    Case(
        "19 folder called .mp4",
        with_valid_video(lambda p: p.mkdir()),
        ("warning: ignored cam01.mp4: a folder without images",),
        0,
    ),
    Case(
        "19 image folder called .mp4",
        with_valid_video(write_image_folder),
        ("cam01.mp4/: images have no time stamps",),
        0,
    ),
    Case("20 pipe", with_valid_video(clips.fifo), ("cam01.mp4 is not a regular file",)),
    Case(
        "20 pipe among images",
        images(lambda p: (p.unlink(), clips.fifo(p))),
        ("000002.png is not a regular file",),
        3,
        IMAGE_FPS,
    ),
    Case("20 device", with_valid_video(lambda p: p.symlink_to("/dev/zero")), ("cam01.mp4 is not a regular file",)),
    Case("42 identical", twins, ("warning: cam01.mp4 and cam02.mp4 are the same file",), 0),
)

VIDEOS = (
    Case("00 metadata not utf-8", with_valid_video(clips.latin1_metadata), ("cam01.mp4   h264",), 0),
    Case(
        "40 damaged sound",
        lambda f: [clips.damaged_sound(f / f"cam{v}.mp4", v) for v in (1, 2)],
        ("the audio track of cam1.mp4 cannot be decoded",),
        3,
        ("--sync", "audio"),
    ),
    Case(
        "43 names that differ in suffixes only",
        lambda f: [write_video(f / name, seed=seed) for seed, name in enumerate(("a.mov", "a.mp4", "a.mp4.mov"))],
        ("a.mov a.mov", "a.mp4 a.mp4", "a.mp4.mov a.mp4.mov"),
        0,
    ),
    Case("08 empty", with_valid_video(content(b"")), ("cam01.mp4 is empty",)),
    Case(
        "09 text",
        with_valid_video(content(b"hello world\n" * 99)),
        ("cam01.mp4 is not a video (unknown file format)",),
    ),
    Case("09 one byte", with_valid_video(content(b"\0")), ("cam01.mp4 is not a video (unknown file format)",)),
    Case(
        "09 web page",
        with_valid_video(content(b"<!DOCTYPE html><html></html>")),
        ("cam01.mp4 is a web page, not a video",),
    ),
    Case(
        "09 lfs",
        with_valid_video(content(b"version https://git-lfs.github.com/spec/v1\n")),
        ("is a git-lfs pointer",),
    ),
    Case("10 png", with_valid_video(png_file), ("cam01.mp4 is a PNG image, not a video",)),
    Case(
        "11 ffconcat",
        with_valid_video(content(b"ffconcat version 1.0\nfile cam02.mp4\n")),
        ("cam01.mp4 is a playlist (concat)",),
    ),
    Case(
        "11 m3u8", with_valid_video(content(b"#EXTM3U\n#EXTINF:1,\ncam02.mp4\n")), ("cam01.mp4 is a playlist (m3u8)",)
    ),
    Case("12 sound only", with_valid_video(clips.audio_only), ("cam01.mp4 has no video stream",)),
    Case("12 wav", with_valid_video(clips.wave_file), ("cam01.mp4 is not a video",)),
    Case(
        "13 moov missing",
        with_valid_video(clips.without_moov),
        ("cam01.mp4 is incomplete (recording or copy did not finish)",),
    ),
    Case(
        "14 cut off",
        with_valid_video(clips.truncated_faststart),
        ("cam01.mp4 ends early, after frame", "of 24", "pass --allow-damaged"),
    ),
    Case(
        "14 allowed",
        with_valid_video(clips.truncated_faststart),
        ("cam01.mp4 is damaged:", "intact frames are used"),
        0,
        ("--allow-damaged",),
    ),
    Case(
        "16 unknown codec",
        with_valid_video(lambda p: clips.replace_fourcc(p, b"zzzz")),
        ("cam01.mp4 uses a codec", "cannot decode"),
    ),
    Case(
        "17 encrypted",
        with_valid_video(lambda p: clips.replace_fourcc(p, b"encv")),
        ("cam01.mp4 uses a codec or encryption",),
    ),
    Case(
        "22 huge",
        with_valid_video(clips.huge_header, "cam01.avi"),
        ("cam01.avi is 16000x16000 (256 Mpx); the limit is 64 Mpx (--max-pixels)",),
    ),
    Case(
        "22 limit set",
        write_scene,
        ("cam01.mp4 is 64x48 (0 Mpx); the limit is 0.001 Mpx",),
        3,
        ("--max-pixels", "0.001"),
    ),
    Case("27 rotated", with_valid_video(lambda p: set_rotation(write_video(p), 90)), ("cam01: rotated", "48x64"), 0),
    Case(
        "28 aspect",
        with_valid_video(lambda p: write_video(p, pixel_aspect=Fraction(4, 3))),
        ("cam01: pixels are 1.333:1", "85x48"),
        0,
    ),
    Case(
        "29 hdr",
        with_valid_video(
            lambda p: write_video(
                p,
                codec="libx265",
                pixel_format="yuv420p10le",
                transfer=16,
            )
        ),
        ("warning:         cam01: HDR (PQ); converted to SDR",),
        0,
    ),
    Case(
        "30 alpha vp9",
        with_valid_video(lambda p: write_video(p, codec="libvpx-vp9", pixel_format="yuva420p"), "cam01.webm"),
        ("cam01: alpha ignored",),
        0,
    ),
    Case(
        "30 alpha prores",
        with_valid_video(lambda p: write_video(p, codec="prores_ks", pixel_format="yuva444p10le"), "cam01.mov"),
        ("cam01: alpha ignored",),
        0,
    ),
    Case(
        "31 variable rate",
        with_valid_video(lambda p: write_video(p, 8, pts=[0, 50, 100, 200, 210, 350, 400, 550], ticks=600)),
        ("cam01: variable frame rate; frames are selected by time stamp",),
        0,
    ),
    Case(
        "32 no time stamps",
        with_valid_video(lambda p: write_video(p, muxer="h264"), "cam01.h264"),
        ("cam01: no time stamps; assuming",),
        0,
    ),
    Case(
        "36 one frame",
        lambda f: write_scene(f, frames=1),
        ("warning:         1 instant: motion cannot be estimated",),
        0,
    ),
)

IMAGES = (
    Case(
        "23 bomb",
        images(clips.png_bomb),
        ("cam01/000002.png is 60000x60000 (3600 Mpx); the limit is 64 Mpx (--max-pixels)",),
        3,
        IMAGE_FPS,
    ),
    Case(
        "23 small bomb",
        images(lambda p: clips.png_bomb(p, 10000)),
        ("cam01/000002.png is 10000x10000 (100 Mpx); the limit is 64 Mpx (--max-pixels)",),
        3,
        IMAGE_FPS,
    ),
    Case("24 text", images(content(b"hello")), ("cam01/000002.png is not a readable image",), 3, IMAGE_FPS),
    Case("24 empty", images(content(b"")), ("000002.png is empty",), 3, IMAGE_FPS),
    Case(
        "25 sizes differ",
        images(lambda p: cv2.imwrite(str(p), picture(0, (24, 32)))),
        ("cam01/000002.png is 32x24, the others 64x48",),
        3,
        IMAGE_FPS,
    ),
    Case(
        "25 no rate",
        images(lambda _: None),
        ("warning:         cam01/, cam02/: images have no time stamps; assuming 30 fps",),
        0,
    ),
)

CLOCKS = (
    Case(
        "32 sound needs time stamps",
        lambda f: (
            write_video(f / "cam01.h264", muxer="h264"),
            write_video(f / "cam02.mp4", sound=sound_track(0.3)),
        ),
        ("cam01.h264 has no audio track",),
        3,
        ("--sync", "audio"),
    ),
    Case(
        "33 rates differ",
        lambda f: (write_video(f / "cam01.mp4", 8, fps=24), write_video(f / "cam02.mp4", 4, seed=1)),
        ("cam02 is 12 fps, others 24; pairing by time, every 2nd frame",),
        0,
    ),
    Case(
        "34 lengths differ",
        lambda f: (write_video(f / "cam01.mp4", 12), write_video(f / "cam02.mp4", 8, seed=1)),
        ("common span 0.00-0.58 s (8 frames); cam02 ends first",),
        0,
    ),
    Case(
        "35 no overlap",
        with_file("sync.toml", "[cam02]\noffset_s = 9.0\n"),
        ("the videos do not overlap in time after the",),
    ),
    Case(
        "37 hours",
        lambda f: [write_video(f / f"cam{v}.mp4", 2, pts=[0, 36_000 * 12], ticks=12, seed=v) for v in range(2)],
        ("2,160,001 frames; the limit is 100,000", "give --stride, --fps or --frames, or raise --max-frames"),
        2,
        ("--fps", "60"),
    ),
    Case("37 limit set", lambda f: write_scene(f, frames=6), ("6 frames; the limit is 5",), 2, ("--max-frames", "5")),
    Case(
        "38 unknown view",
        with_file("sync.toml", "[cam9]\noffset_s = 1.0\n"),
        ("sync.toml: no view is called 'cam9', the views are cam01, cam02",),
        2,
    ),
    Case("39 toml", with_file("sync.toml", "[cam01]\noffset_s = 1.0\nrate =\n"), ("sync.toml: line 3:",), 2),
    Case("39 json", with_file("sync.json", '{"cam01":\n {"offset_s": 1.0,}}'), ("sync.json: line 2:",), 2),
    Case(
        "39 nan toml", with_file("sync.toml", "[cam01]\noffset_s = nan\n"), ("sync.toml: view 'cam01': offset_s",), 2
    ),
    Case(
        "39 nan json",
        with_file("sync.json", '{"cam01": {"offset_s": NaN}}'),
        ("sync.json: line 1: NaN is not a JSON number",),
        2,
    ),
    Case("39 rate", with_file("sync.json", '{"cam01": {"rate": 0}}'), ("sync.json: view 'cam01': rate",), 2),
    Case(
        "39 absurd offset",
        with_file("sync.json", '{"cam02": {"offset_s": 1e300}}'),
        ("sync.json: view 'cam02': offset_s", "give offset_s in seconds after another view (not a date)"),
        2,
    ),
    Case("39 date", with_file("sync.toml", "[cam01]\noffset_s = 1.7e9\n"), ("view 'cam01': offset_s",), 2),
    Case("39 slow rate", with_file("sync.json", '{"cam01": {"rate": 1e-9}}'), ("view 'cam01': rate",), 2),
    Case("39 fast rate", with_file("sync.json", '{"cam01": {"rate": 1000}}'), ("view 'cam01': rate",), 2),
    Case("39 twice", with_file("sync.json", '{"cam01": {}, "cam01": {}}'), ("key 'cam01' appears twice",), 2),
    Case("39 not there", write_scene, ("sync file 'nowhere.json' does not exist",), 2, ("--sync", "nowhere.json")),
    Case(
        "39 bytes",
        lambda f: (write_scene(f), (f / "sync.json").write_bytes(b"\xff\xfe\0")),
        ("sync.json: it is not UTF-8 text (perhaps UTF-16)",),
        2,
    ),
    Case("40 no sound", write_scene, ("cam01.mp4 has no audio track", "pass --sync FILE"), 3, ("--sync", "audio")),
    Case("40 no time code", write_scene, ("cam01.mp4 has no embedded time code",), 3, ("--sync", "timecode")),
    Case(
        "41 other sound",
        with_sound(1, 2),
        ("audio of cam01 and cam02 does not match (score", "need 15)"),
        3,
        ("--sync", "audio"),
    ),
    Case("41 same sound", with_sound(1, 1), ("synchronisation  audio", "cam02 starts"), 0, ("--sync", "audio")),
)

CALIBRATIONS = (
    Case(
        "45 one camera too many",
        calibrated("cam01", "cam02", "cam05"),
        ("calibration has 3 cameras, scene has 2 videos; missing video for cam05",),
        3,
        RIG,
    ),
    Case("45 one camera too few", calibrated("cam01"), ("rig.json has no camera for cam02",), 3, RIG),
    Case(
        "45 other names",
        calibrated("left", "right"),
        ("no name in common: the cameras are left, right, the videos cam01, cam02",),
        3,
        RIG,
    ),
    Case(
        "45 by order",
        calibrated("left", "right", "top"),
        ("rig.json has 3 cameras, 2 views are used",),
        3,
        (*RIG, "--calibration-match", "order"),
    ),
    Case(
        "46 other size",
        calibrated("cam01", "cam02", image_size=(72, 48)),
        ("cam01: calibration is for 72x48, video is 64x48", "pass --calib-resize scale if the whole image"),
        3,
        RIG,
    ),
    Case(
        "46 other size, declared",
        calibrated("cam01", "cam02", image_size=(72, 48)),
        ("cam01: calibration is for 72x48, video is 64x48; crop-center applied",),
        0,
        (*RIG, "--calib-resize", "crop-center"),
    ),
    Case(
        "47 mirror",
        calibrated("cam01", "cam02", world_to_camera=MIRROR),
        ("rig.json", "cam02", "rotation", "-1.00"),
        3,
        RIG,
    ),
    Case("47 nan", rig_toml(rotation="[nan, 0.0, 0.0]"), ("Calib.toml", "cam01"), 3, TOML),
    Case(
        "47 normalized",
        rig_toml(matrix="[[0.8,0,0.5],[0,1.1,0.5],[0,0,1]]"),
        ("the intrinsics seem to be divided by the image size", "multiply fx and cx by the width"),
        3,
        TOML,
    ),
    Case("47 field of view", rig_toml(matrix="[[6e4,0,32],[0,6e4,24],[0,0,1]]"), ("a field of view of",), 3, TOML),
    Case("47 centre", rig_toml(matrix="[[60.0,0,9e3],[0,60.0,24],[0,0,1]]"), ("the principal point is",), 3, TOML),
    Case("47 one place", rig_toml(), ("Calib.toml: the 2 calibrated cameras are at one place",), 0, TOML),
    Case("47 focal length", rig_toml(matrix="[[-5.0,0,32],[0,60.0,24],[0,0,1]]"), ("Calib.toml", "cam01"), 3, TOML),
    Case("48 garbage", with_file("rig.json", "\x01\x02 nonsense"), ("rig.json",), 3, RIG),
    Case(
        "48 yaml garbage",
        with_file("intri.yml", "%YAML:1.0\n--- [\x03"),
        ("intri.yml",),
        3,
        ("--calibration", "{scene}/intri.yml"),
    ),
    Case(
        "48 entity bomb",
        with_file("a.qca.txt", '<!DOCTYPE b [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><calibration>&b;</calibration>'),
        ("a.qca.txt",),
        3,
        ("--calibration", "{scene}/a.qca.txt"),
    ),
    Case(
        "48 unknown kind",
        with_file("rig.dat", "x"),
        ("rig.dat", "supported"),
        3,
        ("--calibration", "{scene}/rig.dat"),
    ),
    Case("48 missing", write_scene, ("nothing.toml",), 3, ("--calibration", "nothing.toml")),
    Case(
        "48 pipe",
        lambda f: (write_scene(f), clips.fifo(f / "rig.toml")),
        ("rig.toml",),
        3,
        ("--calibration", "{scene}/rig.toml"),
    ),
)

RECONSTRUCT = ("--out", "{out}", "--untrained", "--preset", "mv-tiny", "--size", "28", "--no-preview")
DECODING = (
    Case(
        "15 flipped bytes",
        lambda f: [clips.flipped_bytes(f / f"cam{v}.mp4") for v in (1, 2)],
        ("cam1.mp4 has", "damaged", "pass --allow-damaged"),
        3,
        RECONSTRUCT,
        "reconstruct",
    ),
    Case(
        "15 allowed",
        lambda f: [clips.flipped_bytes(f / f"cam{v}.mp4") for v in (1, 2)],
        ("cam1.mp4 is damaged", "intact frames are used"),
        0,
        (*RECONSTRUCT, "--allow-damaged", "--frames", "8:14"),
        "reconstruct",
    ),
    Case(
        "24 truncated png",
        images(lambda p: truncate(p, 0.6)),
        ("cam01/000002.png is damaged",),
        3,
        (*RECONSTRUCT, *IMAGE_FPS),
        "reconstruct",
    ),
    Case(
        "24 truncated jpeg",
        images(
            lambda p: (
                cv2.imwrite(str(p.with_suffix(".jpg")), picture(0)),
                p.unlink(),
                truncate(p.with_suffix(".jpg"), 0.6),
            )
        ),
        ("cam01/000002.jpg is damaged",),
        3,
        (*RECONSTRUCT, *IMAGE_FPS),
        "reconstruct",
    ),
    Case(
        "24 truncated 16-bit png",
        images(lambda p: (cv2.imwrite(str(p), picture(0).astype(np.uint16) * 257), truncate(p, 0.6))),
        ("cam01/000002.png is damaged",),
        3,
        (*RECONSTRUCT, *IMAGE_FPS),
        "reconstruct",
    ),
    Case(
        "26 size changes",
        with_valid_video(clips.changing_size, "cam01.h264"),
        ("cam01.h264 changes size at frame 4 (64x48 -> 128x96)",),
        3,
        RECONSTRUCT,
        "reconstruct",
    ),
    Case(
        "56 out is a file",
        lambda f: (write_scene(f), (f.parent / "out").write_text("x")),
        ("cannot write to '{out}'",),
        5,
        RECONSTRUCT,
        "reconstruct",
    ),
    Case(
        "56 out below a file",
        lambda f: (write_scene(f), (f / "x").write_text("x")),
        ("cannot write to '{scene}/x/out'",),
        5,
        ("--out", "{scene}/x/out", *RECONSTRUCT[2:]),
        "reconstruct",
    ),
    Case(
        "56 out is the scene",
        write_scene,
        ("--out '{scene}' is the scene itself",),
        2,
        ("--out", "{scene}", *RECONSTRUCT[2:]),
        "reconstruct",
    ),
    Case(
        "59 no such device",
        write_scene,
        ("no device is called 'gpu'",),
        2,
        (*RECONSTRUCT, "--device", "gpu"),
        "reconstruct",
    ),
    Case(
        "59 two networks",
        write_scene,
        ("--weights and --untrained contradict",),
        2,
        (*RECONSTRUCT, "--weights", "x"),
        "reconstruct",
    ),
    Case(
        "59 no preset",
        write_scene,
        ("no network is called 'mv-huge'", "mv-tiny"),
        2,
        (*RECONSTRUCT, "--preset", "mv-huge"),
        "reconstruct",
    ),
    Case("59 chunk", write_scene, ("--chunk 2 with --overlap 2",), 2, (*RECONSTRUCT, "--chunk", "2"), "reconstruct"),
    Case(
        "59 resume and overwrite",
        write_scene,
        ("contradict each other",),
        2,
        (*RECONSTRUCT, "--resume", "--overwrite"),
        "reconstruct",
    ),
    Case("59 voxel nan", write_scene, ("voxel",), 2, (*RECONSTRUCT, "--voxel", "nan"), "reconstruct"),
    Case(
        "59 depth without cameras",
        lambda f: (write_scene(f, frames=2), *(write_depth_folder(f / "truth" / n, 2) for n in ("cam01", "cam02"))),
        ("measured depth needs the cameras",),
        2,
        ("--out", "{out}", "--depth", "{scene}/truth"),
        "reconstruct",
    ),
)

CASES = (*USAGE, *FOLDERS, *VIDEOS, *IMAGES, *CLOCKS, *CALIBRATIONS, *DECODING)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_invalid_input_is_reported_with_an_exit_code(case, tmp_path, cli):
    scene, out = tmp_path / "scene", tmp_path / "out"
    scene.mkdir()
    case.make(scene)
    before = sorted(scene.iterdir()) if scene.is_dir() else []

    ended = cli(case.command, scene, *(text.format(scene=scene, out=out) for text in case.arguments))

    printed = ended.err if case.code else " ".join((ended.out + ended.err).replace("\n", "\n ").split(" "))
    for fragment in case.fragments:
        plain = " ".join(fragment.format(scene=scene, out=out).split())
        assert plain in " ".join(printed.split()), f"{ended.out}\n{ended.err}"
    assert ended.code == case.code, ended.err
    if case.code:
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert "internal error" not in ended.err
        assert_two_lines(ended.err)
    assert not list(tmp_path.rglob("*.part"))
    assert (sorted(scene.iterdir()) if scene.is_dir() else []) == before, "the scene must not change"


def assert_two_lines(err: str) -> None:
    """Check that the output ends with an error line and a hint line, after any warnings."""
    *_, error, hint = err.rstrip("\n").split("\n")
    assert error.startswith("error: ")
    assert hint.startswith("hint:  ")
    assert len(hint) > len("hint:  ")


def test_every_row_has_a_case():
    rows = {int(case.name[:2]) for case in CASES}
    tested_elsewhere = {2, 21, 43, 44, 55, 57, 58, 60}
    assert rows | tested_elsewhere >= {*range(1, 49), *range(55, 61)}


def test_row_02_a_file_instead_of_a_folder_is_refused(tmp_path, cli):
    video = write_video(tmp_path / "cam01.mp4")
    ended = cli("inspect-scene", video)
    assert ended.code == 2
    assert f"error: '{video}' is a file\nhint:  give the folder that contains the videos" in ended.err


def test_row_20_a_socket_is_not_opened(tmp_path, cli, monkeypatch):
    write_scene(tmp_path)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("cam03.mp4")
        ended = cli("inspect-scene", ".")
    assert (ended.code, "cam03.mp4 is not a regular file" in ended.err) == (3, True)


def test_row_21_a_video_without_read_permission_is_refused(tmp_path, cli, monkeypatch):
    write_scene(tmp_path)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "cam01.mp4" and real(path, mode))
    ended = cli("inspect-scene", tmp_path)
    assert ended.code == 3
    assert "error: cam01.mp4: permission denied" in ended.err
    assert "chmod u+r" in ended.err


def test_row_21_a_folder_without_read_permission_is_refused(tmp_path, cli, monkeypatch):
    def refuse(folder: Path):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    ended = cli("inspect-scene", tmp_path)
    assert (ended.code, ended.err.startswith(f"error: '{tmp_path}': permission denied")) == (3, True)


def test_row_22_a_huge_video_is_refused_without_decoding(tmp_path, cli, monkeypatch):
    clips.huge_header(tmp_path / "cam01.avi")
    monkeypatch.setattr("page4d.scene.probe._first_frame", lambda _: pytest.fail("a frame was decoded"))
    assert cli("inspect-scene", tmp_path).code == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is available")
def test_row_59_cuda_without_a_gpu_is_refused(tmp_path, reconstruct):
    ended = reconstruct(write_scene(tmp_path / "scene"), tmp_path / "out", "--device", "cuda")
    assert ended.code == 6
    assert "error: no CUDA device is available" in ended.err
    assert "hint:  use --device cpu" in ended.err
    assert not (tmp_path / "out").exists()
