"""Choice of the video stream, interlaced footage, implausible headers, and file names that look like protocols."""

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition

from page4d.errors import InputError
from page4d.formats.video import VideoFile
from page4d.io.atomic import open_atomic
from page4d.scene.open import open_scene
from page4d.scene.probe import probe_video
from page4d.scene.sound import correlate_audio
from page4d.scene.video import VideoSource
from tests.scene.clip_writers import counter_image, read_counter, write_counter_clip


def probe(path: Path) -> VideoSource:
    return probe_video(path, max_megapixels=64)


def texts(source: VideoSource) -> list[str]:
    return [notice.text for notice in source.notices]


def first_counter(source: VideoSource) -> int:
    with source.open() as reader:
        return read_counter(next(iter(reader.read([0]))) / 255)


def write_streams(
    path: Path, streams: list[tuple[str, int, Disposition | None]], frames: int = 3, smaller: int | None = None
) -> Path:
    """Write one stream per (codec, counter, disposition); all frames of a stream show its counter.

    That with the counter `smaller` has a preview, of half the size.
    """
    with av.open(str(path), "w") as container:
        encoded = []
        for codec, number, disposition in streams:
            stream: Any = container.add_stream(codec, rate=30)
            stream.width, stream.height = (32, 24) if number == smaller else (64, 48)
            stream.pix_fmt = {"mjpeg": "yuvj420p", "png": "rgb24", "ffv1": "gray16le"}.get(codec, "yuv420p")
            if disposition is not None:
                stream.disposition = disposition.value
            encoded.append((stream, number, 1 if disposition == Disposition.attached_pic else frames))
        for stream, number, count in encoded:
            for index in range(count):
                frame = av.VideoFrame.from_ndarray(counter_image(number)).reformat(
                    stream.width, stream.height, format=stream.pix_fmt
                )
                frame.pts, frame.time_base = index, Fraction(1, 30)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("cover", ["mjpeg", "png"])
@pytest.mark.parametrize("suffix", ["mp4", "mov"])
def test_cover_art_is_not_footage(cover: str, suffix: str, tmp_path: Path):
    art = (cover, 5, Disposition.attached_pic)
    first = probe(write_streams(tmp_path / f"first.{suffix}", [art, ("libx264", 9, None)]))
    assert (first.codec, first_counter(first), texts(first)) == ("h264", 9, [])
    last = probe(write_streams(tmp_path / f"last.{suffix}", [("libx264", 9, None), art]))
    assert (last.codec, first_counter(last), texts(last)) == ("h264", 9, [])


def test_a_file_with_only_cover_art_has_no_video(tmp_path: Path):
    path = write_streams(tmp_path / "song.mp4", [("mjpeg", 5, Disposition.attached_pic)])
    with pytest.raises(InputError, match=r"song\.mp4 has no video stream"):
        probe(path)


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_preview_is_not_used_for_the_footage(suffix: str, tmp_path: Path):
    path = write_streams(tmp_path / f"rig.{suffix}", [("mjpeg", 5, None), ("libx264", 9, None)], smaller=5)
    source = probe(path)
    assert (source.size, first_counter(source)) == ((48, 64), 9)
    assert texts(source) == [f"rig.{suffix} has 2 video streams (h264 64x48, mjpeg 32x24); h264 64x48 is used"]


def test_a_larger_still_is_not_used_for_the_footage(tmp_path: Path):
    path, frames = tmp_path / "motion.mkv", 30
    with av.open(str(path), "w") as container:
        streams: list[Any] = [container.add_stream(codec, rate=30) for codec in ("libx264", "mjpeg")]
        for stream, size, pixels in zip(streams, ((64, 48), (128, 96)), ("yuv420p", "yuvj420p"), strict=True):
            stream.width, stream.height, stream.pix_fmt = *size, pixels
        for index in range(frames):
            for stream in streams[: 1 + (index == 0)]:
                frame = av.VideoFrame.from_ndarray(counter_image(9))
                frame = frame.reformat(stream.width, stream.height, format=stream.pix_fmt)
                frame.pts, frame.time_base = index, Fraction(1, 30)
                container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode(None))
    source = probe(path)
    assert (source.size, len(source.frame_times)) == ((48, 64), frames)


@pytest.mark.parametrize("late", [0, 1500, 63000])
def test_joined_recordings_are_refused_instead_of_mixing_their_frames(late: int, tmp_path: Path):
    """The second part has the time stamps of the first, or some between them."""
    parts = [tmp_path / "a.ts", tmp_path / "b.ts"]
    for path, start in zip(parts, (0, late), strict=True):
        ticks = [start + 3000 * index for index in range(30)]
        write_counter_clip(path, 30, ticks=ticks, time_base=Fraction(1, 90000))
    joined = tmp_path / "cam.ts"
    joined.write_bytes(b"".join(path.read_bytes() for path in parts))
    with pytest.raises(InputError, match=r"cam\.ts: time stamps go back") as error:
        probe(joined)
    assert "ffmpeg" in error.value.hint


def test_the_stream_in_use_is_named_if_there_are_several(tmp_path: Path):
    for suffix in ("mp4", "mkv", "ts"):
        path = write_streams(tmp_path / f"rig.{suffix}", [("libx264", 9, None), ("mpeg4", 5, None)])
        source = probe(path)
        assert first_counter(source) == 9
        assert texts(source) == [f"rig.{suffix} has 2 video streams (h264 64x48, mpeg4 64x48); h264 64x48 is used"]
    streams: list[tuple[str, int, Disposition | None]] = [("ffv1", 5, None), ("libx264", 9, None)]
    for is_footage, used in ((True, ("h264", 9)), (False, ("ffv1", 5))):
        for each in (streams, streams[::-1]):
            path = write_streams(tmp_path / "depth.mkv", each)
            source = probe_video(path, max_megapixels=64, is_footage=is_footage)
            assert (source.codec, first_counter(source)) == used
            (text,) = texts(source)
            assert text.startswith(f"depth.mkv has 2 video streams ({used[0]} 64x48, ")


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"x264-params": "interlaced=1", "preset": "ultrafast"}),
        ("mpeg2video", {"flags": "+ildct+ilme", "b": "2000000"}),
    ],
)
@pytest.mark.parametrize("suffix", ["mkv", "ts", "mp4"])
def test_interlaced_footage_is_named(codec: str, options: dict[str, str], suffix: str, tmp_path: Path):
    path = write_counter_clip(tmp_path / f"tape.{suffix}", 6, codec=codec, rate=25, options=options)
    source = probe(path)
    assert len(source.notices) == 1
    assert source.notices[0].text.startswith("tape: interlaced, moving edges are comb-shaped; deinterlace it first")
    with source.open() as reader:
        assert [read_counter(pixels / 255) for pixels in reader.read(range(6))] == list(range(6))


@pytest.mark.parametrize("aspect", [Fraction(1, 5), Fraction(5), Fraction(9)])
def test_an_implausible_pixel_aspect_is_ignored(aspect: Fraction, tmp_path: Path):
    source = probe(write_counter_clip(tmp_path / "a.mkv", 2, pixel_aspect=aspect))
    assert source.size == (48, 64)
    assert texts(source) == [f"a: a pixel aspect of {float(aspect):.4g}:1 is implausible and ignored"]


def test_the_limit_of_pixels_holds_for_square_pixels(tmp_path: Path):
    path = write_counter_clip(tmp_path / "a.mkv", 2, size=(96, 128), pixel_aspect=Fraction(4))
    with pytest.raises(InputError, match=r"a\.mkv is 512x96"):
        probe_video(path, max_megapixels=0.04)


def test_implausible_frame_rates_are_reported(tmp_path: Path):
    fast = probe(write_counter_clip(tmp_path / "fast.mp4", 4, ticks=range(4), time_base=Fraction(1, 1_000_000)))
    assert texts(fast) == ["fast: time stamps give 1e+06 frames per second, which is implausible"]
    slow = [30_000 * count for count in range(4)]
    source = probe(write_counter_clip(tmp_path / "slow.mp4", 4, ticks=slow, time_base=Fraction(1)))
    assert texts(source) == ["slow: time stamps give 3.33e-05 frames per second, which is implausible"]


NAMES = [
    "file:cam01.mp4",
    "2026-11-23T12:30:05.mp4",
    "http:cam01.mp4",
    "pipe:0.mp4",
    "concat:a|b.mp4",
    "subfile,,start,0,end,9,,:a.mp4",
    "data:,x.mp4",
    "crypto+file:a.mp4",
    "-i.mp4",
    "cam%03d.mp4",
    "cam*[1]?.mp4",
    "two\nlines.mp4",
    "tab\tand 'quotes\".mp4",
    "%6e.mp4",
    "a#b?c=d&e.mp4",
    "ünïcödé 日本.mp4",
    os.fsdecode(b"latin-\xfc.mp4"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relative", [True, False])
def test_any_file_name_is_read(name: str, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = write_counter_clip(tmp_path / "plain.mp4", 3, sound=np.random.default_rng(0).standard_normal(4800))
    plain.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    path = Path(name) if relative else tmp_path / name
    source = probe(path)
    assert first_counter(source) == 0
    assert source.label == name
    assert correlate_audio(path, path).seconds == 0
    assert open_scene(Path() if relative else tmp_path).num_times == 3


@pytest.mark.parametrize("name", NAMES)
def test_any_file_name_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with open_atomic(Path(name)) as file, VideoFile(file, (48, 64), 30, 18) as video:
        video.add(counter_image(5))
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208  Path.iterdir normalizes names
    assert first_counter(probe(tmp_path / name)) == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Path.unlink, "a.mp4 does not exist"),
        (lambda path: path.write_bytes(b""), "a.mp4 is empty"),
        (lambda path: (path.unlink(), path.mkdir()), "a.mp4 is not a regular file"),
    ],
)
def test_a_video_that_changes_during_a_run_is_an_error(change: Callable[[Path], object], text: str, tmp_path: Path):
    source = probe(write_counter_clip(tmp_path / "a.mp4", 3))
    change(source.path)
    with pytest.raises(InputError, match=text), source.open() as reader:
        list(reader.read([0]))
