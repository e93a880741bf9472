"""Invalid and unusual input: one case per kind, with messages and exit code.

Numbers in the names of the cases are rows of a list of kinds of input (1 to 48, 55 to 60); readers whose own tests
state the message have none here.
"""

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

from tests.cli import clips
from tests.cli.clips import picture, sound_track, write_image_folder, write_scene, write_video

pytestmark = pytest.mark.usefixtures("constant_forecast")

Maker = Callable[[Path], object]
Fragments = str | tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A folder, a command on it, and its outcome: fragments of stderr (with code 0: of all output) and exit code."""

    name: str
    make: Maker
    fragments: Fragments
    arguments: str = ""
    code: int = 3
    command: str = "inspect-scene"


def warns(*row: Any) -> Case:
    """Return a case whose output has the text and which ends without an error."""
    return Case(*row, code=0)


def reconstructs(
    name: str,
    make: Maker,
    fragments: str | tuple[str, ...],
    arguments: str = "",
    *,
    out: str = "{out}",
    code: int = 3,
) -> Case:
    """Return a case of `reconstruct` with the smallest network."""
    words = f"--out {out} --untrained --preset mv-tiny --size 28 --no-preview {arguments}"
    return Case(name, make, fragments, words, code, "reconstruct")


def video(maker: Maker, name: str = "cam01.mp4") -> Maker:
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


def calibrated(*names: str, **changes: object) -> Maker:
    return with_file("rig.json", clips.rig(*names, **changes))


def rig_toml(rotation: str = "[0.0, 0.0, 0.0]", matrix: str = "[[60.0,0,32],[0,60.0,24],[0,0,1]]") -> Maker:
    cameras = "".join(
        f'[{name}]\nname = "{name}"\nsize = [64.0, 48.0]\nmatrix = {matrix}\ndistortions = [0.0, 0.0, 0.0, 0.0]\n'
        f"rotation = {rotation}\ntranslation = [0.0, 0.0, 0.0]\nfisheye = false\n"
        for name in ("cam01", "cam02")
    )
    return with_file("Calib.toml", cameras)


USAGE = (
    Case("01 scene missing", lambda folder: folder.rmdir(), "scene folder '{scene}' does not exist", code=2),
    Case(
        "02 a file",
        lambda f: (f.rmdir(), f.touch()),
        "'{scene}' is a file hint: give the folder that contains",
        code=2,
    ),
    Case("06 views 0", write_scene, ("Invalid value for '--views'", "0 is not in the range"), "--views 0", code=2),
    Case("06 views x", write_scene, "--views: no view is called 'x'", "--views x", code=2),
    Case("06 views ,", write_scene, "Invalid value for '--views'", "--views cam01,", code=2),
    Case("06 views twice", write_scene, "--views contains a view twice", "--views cam01,cam01", code=2),
    Case("07 nothing chosen", write_scene, "--frames 9: selects nothing", "--frames 9:", code=2),
    Case("07 fps nan", write_scene, "--fps", "--fps nan", code=2),
    Case("07 max-pixels nan", write_scene, "'--max-pixels': 'nan' should be less than", "--max-pixels nan", code=2),
    Case("07 unit alone", write_scene, "--calibration-unit without --calibration", "--calibration-unit m", code=2),
    Case("07 masks missing", write_scene, ("masks folder", "does not exist"), "--masks {scene}/no", code=2),
    Case("37 fps beyond memory", write_scene, "frames; the limit is 100,000", "--fps 1e8", code=2),
)

FOLDERS = (
    Case("03 empty folder", lambda _: None, "no videos in '{scene}' (supported: mp4, mov, mkv, webm"),
    Case("03 loose images", lambda f: png_file(f / "1.png"), ("no videos in", "it contains 1 image: put the images")),
    Case("04 too few", write_scene, "--views 4, but '{scene}' has 2 videos: cam01.mp4, cam02.mp4", "--views 4"),
    Case("18 broken link", video(lambda p: p.symlink_to("gone.mp4")), "cam01.mp4 is a link to a file that does not"),
    Case("18 link to itself", video(lambda p: p.symlink_to(p.name)), "cam01.mp4 is a link to a file that does not"),
    warns("19 folder called .mp4", video(lambda p: p.mkdir()), "warning: ignored cam01.mp4: a folder without images"),
    warns("19 image folder called .mp4", video(write_image_folder), "cam01.mp4/: images have no time stamps"),
    Case("20 pipe", video(clips.fifo), "cam01.mp4 is not a regular file"),
    Case(
        "20 pipe among images",
        images(lambda p: (p.unlink(), clips.fifo(p))),
        "000002.png is not a regular file",
        "--image-fps 10",
    ),
    Case("20 device", video(lambda p: p.symlink_to("/dev/zero")), "cam01.mp4 is not a regular file"),
    warns("42 identical", twins, "warning: cam01.mp4 and cam02.mp4 are the same file"),
)

VIDEOS = (
    warns("00 metadata not utf-8", video(clips.latin1_metadata), "cam01.mp4   h264"),
    Case(
        "40 damaged sound",
        lambda f: [clips.damaged_sound(f / f"cam{v}.mp4", v) for v in (1, 2)],
        "the audio track of cam1.mp4 cannot be decoded",
        "--sync audio",
    ),
    Case("08 empty", video(content(b"")), "cam01.mp4 is empty"),
    Case("09 text", video(content(b"hello world\n" * 99)), "cam01.mp4 is not a video (unknown file format)"),
    Case("09 one byte", video(content(b"\0")), "cam01.mp4 is not a video (unknown file format)"),
    Case("09 web page", video(content(b"<!DOCTYPE html><html></html>")), "cam01.mp4 is a web page, not a video"),
    Case("09 lfs", video(content(b"version https://git-lfs.github.com/spec/v1\n")), "is a git-lfs pointer"),
    Case("10 png", video(png_file), "cam01.mp4 is a PNG image, not a video"),
    Case(
        "11 ffconcat", video(content(b"ffconcat version 1.0\nfile cam02.mp4\n")), "cam01.mp4 is a playlist (concat)"
    ),
    Case("11 m3u8", video(content(b"#EXTM3U\n#EXTINF:1,\ncam02.mp4\n")), "cam01.mp4 is a playlist (m3u8)"),
    Case("12 sound only", video(clips.audio_only), "cam01.mp4 has no video stream"),
    Case("12 wav", video(clips.wave_file), "cam01.mp4 is not a video"),
    Case(
        "13 moov missing",
        video(clips.without_moov),
        "cam01.mp4 is incomplete or damaged (recording or copy may not have finished)",
    ),
    Case(
        "14 cut off",
        video(clips.truncated_faststart),
        ("cam01.mp4 ends early, after frame", "of 24", "pass --allow-damaged"),
    ),
    Case(
        "16 unknown codec",
        video(lambda p: clips.replace_fourcc(p, b"zzzz")),
        ("cam01.mp4 uses a codec", "cannot decode"),
    ),
    Case("17 encrypted", video(lambda p: clips.replace_fourcc(p, b"encv")), "cam01.mp4 uses a codec or encryption"),
    Case(
        "22 huge",
        video(clips.huge_header, "cam01.avi"),
        "cam01.avi is 16000x16000 (256 Mpx); the limit is 64 Mpx (--max-pixels)",
    ),
    Case("22 limit set", write_scene, "cam01.mp4 is 64x48 (0 Mpx); the limit is 0.001 Mpx", "--max-pixels 0.001"),
    warns(
        "28 aspect",
        video(lambda p: write_video(p, pixel_aspect=Fraction(4, 3))),
        ("cam01: pixels are 1.333:1", "85x48"),
    ),
    warns(
        "29 hdr",
        video(lambda p: write_video(p, codec="libx265", pixel_format="yuv420p10le", transfer=16)),
        "warning:         cam01: HDR (PQ); converted to SDR",
    ),
    warns(
        "31 variable rate",
        video(lambda p: write_video(p, 8, pts=[0, 50, 100, 200, 210, 350, 400, 550], ticks=600)),
        "cam01: variable frame rate; frames are selected by time stamp",
    ),
)

IMAGES = (
    Case(
        "23 bomb",
        images(clips.png_bomb),
        "cam01/000002.png is 60000x60000 (3600 Mpx); the limit is 64 Mpx (--max-pixels)",
        "--image-fps 10",
    ),
)

CLOCKS = (
    Case(
        "32 sound needs time stamps",
        lambda f: (write_video(f / "cam01.h264", muxer="h264"), write_video(f / "cam02.mp4", sound=sound_track(0.3))),
        "cam01.h264 has no audio track",
        "--sync audio",
    ),
    Case("37 limit set", lambda f: write_scene(f, frames=6), "6 frames; the limit is 5", "--max-frames 5", code=2),
    Case("39 toml", with_file("sync.toml", "[cam01]\noffset_s = 1.0\nrate =\n"), "sync.toml: line 3:", code=2),
    Case("39 not there", write_scene, "sync file 'nowhere.json' does not exist", "--sync nowhere.json", code=2),
    Case("40 no sound", write_scene, ("cam01.mp4 has no audio track", "--sync people"), "--sync audio"),
    Case(
        "41 other sound",
        with_sound(1, 2),
        ("audio of cam02 does not match that of cam01 (score", "need 2)"),
        "--sync audio",
    ),
    warns("41 same sound", with_sound(1, 1), ("audio correlation", "cam02 starts"), "--sync audio"),
)

CALIBRATIONS = (
    Case(
        "45 of pictures that are not read",
        lambda f: (calibrated("cam01", "cam02", "c5")(f), (f / "c5").mkdir(), content(b"v/1\1")(f / "c5" / "0.exr")),
        "missing video for c5; ignored c5: a folder of exr files, which are not read",
        "--calibration {scene}/rig.json",
    ),
    Case("47 nan", rig_toml(rotation="[nan, 0.0, 0.0]"), ("Calib.toml", "cam01"), "--calibration {scene}/Calib.toml"),
    warns(
        "47 one place",
        rig_toml(),
        "Calib.toml: the 2 calibrated cameras are at one place",
        "--calibration {scene}/Calib.toml",
    ),
    Case("48 garbage", with_file("rig.json", "\x01\x02 nonsense"), "rig.json", "--calibration {scene}/rig.json"),
    Case("48 missing", write_scene, "nothing.toml", "--calibration nothing.toml"),
    Case(
        "48 pipe",
        lambda f: (write_scene(f), clips.fifo(f / "rig.toml")),
        "rig.toml",
        "--calibration {scene}/rig.toml",
    ),
)

DECODING = (
    reconstructs(
        "15 flipped bytes",
        lambda f: [clips.flipped_bytes(f / f"cam{v}.mp4") for v in (1, 2)],
        ("cam1.mp4 has", "damaged", "pass --allow-damaged"),
    ),
    reconstructs(
        "15 allowed",
        lambda f: [clips.flipped_bytes(f / f"cam{v}.mp4") for v in (1, 2)],
        ("cam1.mp4 is damaged", "intact frames are used"),
        "--allow-damaged --frames 8:14",
        code=0,
    ),
    reconstructs(
        "26 size changes",
        video(clips.changing_size, "cam01.h264"),
        "cam01.h264 changes size at frame 4 (64x48 -> 128x96)",
    ),
    reconstructs("56 out is the scene", write_scene, "--out '{scene}' is the scene itself", code=2, out="{scene}"),
    reconstructs("59 no such device", write_scene, "no device is called 'gpu'", "--device gpu", code=2),
    reconstructs("59 two networks", write_scene, "--weights and --untrained contradict", "--weights x", code=2),
    reconstructs(
        "59 no preset", write_scene, ("no network is called 'mv-huge'", "mv-tiny"), "--preset mv-huge", code=2
    ),
    reconstructs("59 chunk", write_scene, "--chunk 2 with --overlap 2", "--chunk 2 --overlap 2", code=2),
    reconstructs("59 resume and overwrite", write_scene, "contradict each other", "--resume --overwrite", code=2),
    reconstructs("59 voxel nan", write_scene, "voxel", "--voxel nan", code=2),
    Case(
        "59 depth without cameras",
        lambda f: (write_scene(f, frames=2), *(clips.write_depth(f / "truth" / n, 2) for n in ("cam01", "cam02"))),
        "measured depth needs the cameras",
        "--out {out} --depth {scene}/truth",
        code=2,
        command="reconstruct",
    ),
)

CASES = (*USAGE, *FOLDERS, *VIDEOS, *IMAGES, *CLOCKS, *CALIBRATIONS, *DECODING)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_invalid_input_is_reported_with_an_exit_code(case, tmp_path, cli):
    scene, out = tmp_path / "scene", tmp_path / "out"
    scene.mkdir()
    case.make(scene)
    before = sorted(scene.iterdir()) if scene.is_dir() else []

    ended = cli(case.command, scene, *case.arguments.format(scene=scene, out=out).split())

    printed = ended.err if case.code else " ".join((ended.out + ended.err).replace("\n", "\n ").split(" "))
    for fragment in [case.fragments] if isinstance(case.fragments, str) else case.fragments:
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
    monkeypatch.setattr("page4d.scene.video.first_frame", lambda _: pytest.fail("a frame was decoded"))
    assert cli("inspect-scene", tmp_path).code == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is available")
def test_row_59_cuda_without_a_gpu_is_refused(tmp_path, reconstruct):
    ended = reconstruct(write_scene(tmp_path / "scene"), tmp_path / "out", "--device", "cuda")
    assert ended.code == 6
    assert "error: no CUDA device is available" in ended.err
    assert "hint:  use --device cpu" in ended.err
    assert not (tmp_path / "out").exists()
