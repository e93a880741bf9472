"""Videos: time stamps, colours, orientation and damage in every container."""

import gc
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from page4d.errors import InputError
from page4d.scene import video
from page4d.scene.probe import probe_video
from page4d.scene.video import VideoSource
from tests.scene.clip_writers import (
    BT601,
    BT709,
    FULL,
    LIMITED,
    NTSC,
    copy_video,
    counter_clip,
    cut_by_edit_list,
    flat_ycbcr,
    read_counter,
    set_rotation,
    write_counter_clip,
    write_video,
)

B_FRAMES = {"preset": "fast", "x264-params": "bframes=2:b-adapt=0:keyint=10:min-keyint=10:scenecut=0"}
OPEN_GOP = {"preset": "fast", "x264-params": B_FRAMES["x264-params"] + ":open-gop=1"}
RATED = {"b": "2000000"}
KINDS: dict[str, dict[str, Any]] = {
    "plain.mp4": {},
    "ntsc.mp4": {"rate": NTSC},
    "fragmented.mp4": {"muxer_options": {"movflags": "frag_keyframe+empty_moov"}},
    "b-frames.mp4": {"options": B_FRAMES},
    "b-frames.mkv": {"options": B_FRAMES},
    "b-frames.ts": {"options": B_FRAMES},
    "b-frames.avi": {"options": B_FRAMES},
    "open-gop.mov": {"options": OPEN_GOP},
    "open-gop.mkv": {"options": OPEN_GOP},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"bf": "2", **RATED}},
    "motion-jpeg.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "program.mpg": {"codec": "mpeg2video", "rate": 25, "options": {"bf": "2", **RATED}},
    "flash.flv": {},
    "windows.wmv": {"codec": "wmv2", "options": RATED},
    "broadcast.mxf": {"codec": "mpeg2video", "rate": 25, "options": RATED},
    "vp8.webm": {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "16", **RATED}},
    "vp9.webm": {
        "codec": "libvpx-vp9",
        "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "5", **RATED},
    },
    "av1.mp4": {"codec": "libsvtav1", "options": {"preset": "12", "svtav1-params": "lp=1"}},
    "hevc.mp4": {"codec": "libx265"},
    "prores.mov": {"codec": "prores_ks", "pixel_format": "yuv422p10le"},
    "ffv1.mkv": {"codec": "ffv1"},
    "raw.y4m": {"codec": "rawvideo"},
    "loop.gif": {"codec": "gif", "pixel_format": "rgb8", "rate": 25},
}


def probe(path: Path) -> VideoSource:
    return probe_video(path, max_megapixels=64)


def pictures(source: VideoSource, indices: Any = None, size: tuple[int, int] | None = None) -> list[Any]:
    with source.open(size) as reader:
        return list(reader.read(range(len(source.frame_times)) if indices is None else indices))


def counters(source: VideoSource, indices: Any = None) -> list[int]:
    return [read_counter(pixels / np.iinfo(pixels.dtype).max) for pixels in pictures(source, indices)]


@pytest.mark.parametrize("name", KINDS)
def test_every_frame_is_decoded_at_its_time_in_every_container(name: str, tmp_path: Path):
    source = probe(write_counter_clip(tmp_path / name, 24, **KINDS[name]))
    rate = float(KINDS[name].get("rate", 30))
    # Matroska, WebM, FLV and ASF keep whole milliseconds.
    rounding = 1e-3 if name.endswith(("mkv", "webm", "flv", "wmv")) else 1e-6
    np.testing.assert_allclose(source.frame_times, np.arange(24) / rate, atol=rounding)
    assert counters(source) == list(range(24))
    assert counters(source, [3, 9, 9, 17]) == [3, 9, 9, 17]
    assert source.is_timed


@pytest.mark.parametrize(("name", "settings"), [("a.h264", {"options": B_FRAMES}), ("a.hevc", {"codec": "libx265"})])
def test_frames_of_raw_streams_are_counted_and_reported(name: str, settings: dict[str, Any], tmp_path: Path):
    source = probe(write_counter_clip(tmp_path / name, 24, rate=NTSC, **settings))
    assert counters(source) == list(range(24))
    assert counters(source, [5, 20]) == [5, 20]
    np.testing.assert_allclose(source.frame_times, np.arange(24) / float(NTSC))  # the rate is declared in the stream
    assert not source.is_timed
    assert [notice.text for notice in source.notices] == ["a: no time stamps; assuming 29.97 fps"]


def test_a_variable_rate_keeps_its_time_stamps(tmp_path: Path):
    ticks = [0, 3000, 6000, 9300, 15000, 18000, 27000, 27900]
    source = probe(write_counter_clip(tmp_path / "a.mp4", 8, ticks=ticks, time_base=Fraction(1, 90000)))
    np.testing.assert_allclose(source.frame_times, np.array(ticks) / 90000, atol=1e-9)
    assert counters(source) == list(range(8))


@pytest.mark.parametrize("start", [0, 63000])
def test_times_start_at_the_first_frame(start: int, tmp_path: Path):
    ticks = [start + 3000 * count for count in range(12)]
    for name in ("a.ts", "a.mp4", "a.mkv"):
        source = probe(write_counter_clip(tmp_path / name, 12, ticks=ticks, time_base=Fraction(1, 90000)))
        np.testing.assert_allclose(source.frame_times, np.arange(12) / 30, atol=1e-3)
        assert counters(source, [0, 11]) == [0, 11]


@pytest.mark.parametrize("options", [B_FRAMES, OPEN_GOP])
def test_edit_lists_are_applied(options: dict[str, str], tmp_path: Path):
    path = write_counter_clip(tmp_path / "trimmed.mp4", 50, options=options)
    cut_by_edit_list(path, first=25, count=12, rate=30, delay=2)
    source = probe(path)
    np.testing.assert_allclose(source.frame_times, np.arange(12) / 30, atol=1e-6)
    assert counters(source) == list(range(25, 37))
    assert counters(source, [4, 11]) == [29, 36]
    assert source.notices == ()


@pytest.mark.parametrize("suffix", ["mp4", "mov"])
def test_a_copy_cut_between_key_frames_starts_at_the_cut(suffix: str, tmp_path: Path):
    whole = write_counter_clip(tmp_path / "whole.mp4", 50, options=B_FRAMES)
    cut = tmp_path / f"cut.{suffix}"
    with av.open(str(whole)) as given, av.open(str(cut), "w") as taken:
        stream = given.streams.video[0]
        target = taken.add_stream_from_template(stream)
        tick = round(1 / 30 / stream.time_base)
        for packet in given.demux(stream):
            if packet.dts is not None and packet.pts >= 20 * tick:
                packet.pts, packet.dts, packet.stream = packet.pts - 25 * tick, packet.dts - 25 * tick, target
                taken.mux(packet)
    source = probe(cut)
    assert counters(source) == list(range(25, 50))
    assert source.frame_times[0] == 0


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("gop", ["one key frame", "closed", "open"])
def test_seeking_returns_the_requested_frame(name: str, gop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keys = "keyint=1000:min-keyint=1000" if gop == "one key frame" else "keyint=12:min-keyint=12"
    more = ":open-gop=1" if gop == "open" else ""
    options = {"preset": "fast", "x264-params": f"bframes=3:b-adapt=0:scenecut=0:{keys}{more}"}
    source = probe(write_counter_clip(tmp_path / name, 150, options=options))
    decoded = 0
    original = video.decode_stream

    def counted(*arguments: Any) -> Any:
        nonlocal decoded
        for item in original(*arguments):
            decoded += 1
            yield item

    monkeypatch.setattr(video, "decode_stream", counted)
    for after_s, max_decoded in ((0.2, 150 if gop == "one key frame" else 200), (3.0, 150)):
        monkeypatch.setattr(video, "_SEEK_AFTER_S", after_s)
        for indices in ([0, 100, 149], [95, 97, 120, 131], range(0, 150, 7), [149], range(1, 150, 31)):
            decoded = 0
            assert counters(source, indices) == list(indices)
            assert decoded <= max_decoded
    if gop != "one key frame":
        monkeypatch.setattr(video, "_SEEK_AFTER_S", 3.0)
        decoded = 0
        assert counters(source, [0, 140]) == [0, 140]
        assert decoded < 40


def test_indices_beyond_the_end_of_a_truncated_file_are_refused(tmp_path: Path):
    path = write_counter_clip(tmp_path / "a.mkv", 30, options=B_FRAMES)
    source = probe(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(InputError, match=r"a\.mkv"):
        counters(source)


def test_a_truncated_faststart_file_is_refused_or_shortened(tmp_path: Path):
    path = write_counter_clip(
        tmp_path / "a.mp4", 40, options=B_FRAMES, muxer_options={"movflags": "faststart"}, size=(96, 128)
    )
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 4 // 5])
    with pytest.raises(InputError, match=r"a.mp4 ends early, after frame \d+ of 40"):
        probe(path)
    source = probe_video(path, max_megapixels=64, allow_damaged=True)
    found = counters(source)
    assert 0 < len(found) < 40
    np.testing.assert_allclose(source.frame_times, (np.array(found) - found[0]) / 30, atol=1e-6)
    assert "intact frames are used" in source.notices[-1].text


@pytest.mark.parametrize("name", ["b-frames.avi", "mpeg4.avi"])
def test_a_truncated_avi_is_refused(name: str, tmp_path: Path):
    path = write_counter_clip(tmp_path / name, 60, size=(96, 128), **KINDS[name])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(InputError, match="ends early, after frame"):
        probe(path)


def ramp(size: tuple[int, int]) -> Any:
    height, width = size
    x, y = np.linspace(20, 220, width), np.linspace(30, 200, height)
    return np.stack(np.broadcast_arrays(x[None], y[:, None], 90.0), axis=-1).astype(np.uint8)


@pytest.mark.parametrize("degrees", [90, 180, 270])
@pytest.mark.parametrize("size", [(48, 64), (47, 63)])
def test_rotation_is_applied_as_opencv_does(degrees: int, size: tuple[int, int], tmp_path: Path):
    even = size[0] % 2 == 0
    path = write_video(tmp_path / "phone.mp4", [ramp(size)] * 3, pixel_format="yuv420p" if even else "yuv444p")
    set_rotation(path, degrees)
    source = probe(path)
    shown = cv2.VideoCapture(str(path)).read()[1][..., ::-1]
    assert source.size == shown.shape[:2]
    assert np.abs(pictures(source)[0].astype(int) - shown).mean() < 2  # OpenCV's are darker, and up to 6 off
    assert source.notices[-1].text == f"phone: rotated {degrees} degrees clockwise"


def test_rotated_frames_are_resized(tmp_path: Path):
    path = write_video(tmp_path / "phone.mp4", [ramp((96, 128))] * 2)
    set_rotation(path, 90)
    small = pictures(probe(path), size=(64, 48))[0].astype(int)
    assert small.shape == (64, 48, 3)
    whole = pictures(probe(path))[0]
    assert np.abs(small - cv2.resize(whole, (48, 64), interpolation=cv2.INTER_AREA)).mean() < 1.5


@pytest.mark.parametrize("aspect", [Fraction(4, 3), Fraction(8, 9)])
@pytest.mark.parametrize("turned", [False, True])
def test_non_square_pixels_are_resampled_to_square(aspect: Fraction, turned: bool, tmp_path: Path):
    path = write_video(tmp_path / "wide.mp4", [ramp((48, 72))] * 2, pixel_aspect=aspect)
    if turned:
        set_rotation(path, 90)
    source = probe(path)
    width = round(72 * aspect)
    assert source.size == ((width, 48) if turned else (48, width))
    assert f"pixels are {float(aspect):.4g}:1" in source.notices[0].text
    pixels = pictures(source)[0]
    expected = np.rot90(ramp((48, width)), -1) if turned else ramp((48, width))
    assert np.abs(pixels.astype(int) - expected).mean() < 2


@pytest.mark.parametrize("size", [(47, 63), (48, 63), (47, 64), (35, 50)])
def test_odd_sizes_are_decoded_completely(size: tuple[int, int], tmp_path: Path):
    source = probe(write_video(tmp_path / "odd.mkv", [ramp(size)] * 2, codec="ffv1", pixel_format="yuv420p"))
    assert source.size == size
    for pixels in pictures(source):
        assert np.abs(pixels.astype(int) - ramp(size)).max() <= 8
        assert np.abs(pixels.astype(int) - ramp(size)).mean() < 2


COLORS = [(255, 255, 255), (0, 0, 0), (128, 128, 128), (200, 40, 40), (40, 180, 60), (30, 60, 210), (220, 200, 90)]


@pytest.mark.parametrize("matrix", [BT601, BT709])
@pytest.mark.parametrize("color_range", [LIMITED, FULL])
@pytest.mark.parametrize("sampling", ["yuv444p", "yuv420p"])
@pytest.mark.parametrize("height", [48, 720])
def test_tagged_colours_are_decoded(matrix: int, color_range: int, sampling: str, height: int, tmp_path: Path):
    check_colors(tmp_path, (matrix, color_range), sampling, height, tagged=True)


@pytest.mark.parametrize(("matrix", "height"), [(BT601, 480), (BT709, 720)])
def test_untagged_colours_are_decoded_as_bt601_or_bt709_by_height(matrix: int, height: int, tmp_path: Path):
    check_colors(tmp_path, (matrix, LIMITED), "yuv420p", height, tagged=False)


def check_colors(folder: Path, tags: tuple[int, int], sampling: str, height: int, *, tagged: bool) -> None:
    """Compare the middles of stripes with their colours, at full and at half size."""
    size = (height, 16 * len(COLORS))
    path = write_video(
        folder / "a.mp4",
        [flat_ycbcr(COLORS, tags, size, sampling)],
        given_as=sampling,
        pixel_format=sampling,
        tags=tags if tagged else None,
        options={"qp": "0"},
    )
    for shown in (size, (size[0] // 2, size[1] // 2)):
        pixels = pictures(probe(path), size=shown)[0].astype(int)
        places = (np.arange(len(COLORS)) + 0.5) * shown[1] / len(COLORS)
        error = pixels[shown[0] // 2, places.astype(int)] - COLORS
        assert np.abs(error).mean() < 0.7
        assert np.abs(error).max() <= 3


def test_ten_bit_videos_keep_their_precision(tmp_path: Path):
    width = 256
    luma = np.repeat(np.linspace(64, 940, width).astype(np.uint16)[None], 16, axis=0)
    planes = np.concatenate([luma.ravel(), np.full(2 * 8 * width // 2, 512, dtype=np.uint16)])
    path = tmp_path / "deep.mkv"
    with av.open(str(path), "w") as container:
        # with B-frames, x265 writes an uninitialized decoding time for a single frame
        options = {"x265-params": "log-level=none:lossless=1:bframes=0", "preset": "ultrafast"}
        stream: Any = container.add_stream("libx265", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = width, 16, "yuv420p10le"
        frame = av.VideoFrame(width, 16, "yuv420p10le")
        frame.pts, frame.time_base = 0, Fraction(1, 30)
        parts = np.split(planes, [16 * width, 16 * width + 8 * width // 2])
        for plane, values in zip(frame.planes, parts, strict=True):
            rows = np.zeros((plane.height, plane.line_size // 2), dtype=np.uint16)
            rows[:, : plane.width] = values.reshape(plane.height, plane.width)
            plane.update(rows.tobytes())
        container.mux([*stream.encode(frame), *stream.encode(None)])
    pixels = pictures(probe(path))[0]
    assert pixels.dtype == np.uint16
    assert len(np.unique(pixels[8, :, 1])) > 250
    expected = (luma[0].astype(float) - 64) / 876 * 65535
    assert np.abs(pixels[8, :, 1].astype(float) - expected).max() < 256  # one level of 8 bits


def test_sixteen_bit_gray_is_exact(tmp_path: Path):
    gray = (np.arange(48 * 64, dtype=np.uint16) * 21).reshape(48, 64)
    path = write_video(tmp_path / "depth.mkv", [gray], codec="ffv1", pixel_format="gray16le", given_as="gray16le")
    pixels = pictures(probe(path))[0]
    assert pixels.dtype == np.uint16
    assert np.abs(pixels[..., 0].astype(int) - gray).max() <= 1


def test_alpha_is_ignored_with_a_notice(tmp_path: Path):
    path = write_counter_clip(tmp_path / "a.mov", 3, codec="prores_ks", pixel_format="yuva444p10le")
    source = probe(path)
    assert [notice.text for notice in source.notices] == ["a: alpha ignored"]
    assert counters(source) == [0, 1, 2]
    assert pictures(source)[0].dtype == np.uint16


def test_a_video_of_one_frame_is_read(tmp_path: Path):
    source = probe(write_counter_clip(tmp_path / "a.mp4", 1))
    assert source.frame_times.tolist() == [0]
    assert counters(source) == [0]


def test_repeated_indices_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = probe(write_counter_clip(tmp_path / "a.mp4", 10))
    converted = 0
    original = video.VideoReader._to_rgb

    def counted(*arguments: Any) -> Any:
        nonlocal converted
        converted += 1
        return original(*arguments)

    monkeypatch.setattr(video.VideoReader, "_to_rgb", counted)
    assert counters(source, [2, 2, 2, 7, 7]) == [2, 2, 2, 7, 7]
    assert converted == 2


def avi_with_drops(path: Path, numbers: list[int | None]) -> Path:
    """Write a motion-JPEG AVI; None is an empty chunk, as capture programs write for dropped frames."""
    chunks = [b"" if n is None else cv2.imencode(".jpg", counter_clip([n])[0])[1].tobytes() for n in numbers]

    def chunk(name: bytes, content: bytes) -> bytes:
        return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)

    def group(name: bytes, kind: bytes, content: bytes) -> bytes:
        return chunk(name, kind + content)

    count = len(numbers)
    main = struct.pack("<14I", 33333, 10**6, 0, 0x10, count, 0, 1, 10**5, 64, 48, 0, 0, 0, 0)
    head = b"vidsMJPG" + struct.pack("<10I", 0, 0, 0, 1, 30, 0, count, 10**5, 0, 0) + struct.pack("<4h", 0, 0, 64, 48)
    form = struct.pack("<IiiHH4s5I", 40, 64, 48, 1, 24, b"MJPG", 64 * 48 * 3, 0, 0, 0, 0)
    lists = group(
        b"LIST", b"hdrl", chunk(b"avih", main) + group(b"LIST", b"strl", chunk(b"strh", head) + chunk(b"strf", form))
    )
    place, index = 4, b""
    for content in chunks:
        index += b"00dc" + struct.pack("<3I", 0x10, place, len(content))
        place += 8 + len(content) + len(content) % 2
    movie = group(b"LIST", b"movi", b"".join(chunk(b"00dc", content) for content in chunks))
    path.write_bytes(group(b"RIFF", b"AVI ", lists + movie + chunk(b"idx1", index)))
    return path


def test_empty_avi_chunks_do_not_shift_frames(tmp_path: Path):
    path = avi_with_drops(tmp_path / "capture.avi", [0, 1, None, 3, None, None, 6, 7, 8])
    for allow_damaged in (False, True):
        source = probe_video(path, max_megapixels=64, allow_damaged=allow_damaged)
        assert counters(source) == [0, 1, 3, 6, 7, 8]
        assert source.notices == ()
    np.testing.assert_allclose(source.frame_times, np.array([0, 1, 3, 6, 7, 8]) / 30)


def test_frames_copied_between_containers_keep_their_order(tmp_path: Path):
    given = write_counter_clip(tmp_path / "a.mp4", 24, options=OPEN_GOP)
    for name in ("b.mkv", "b.ts", "b.mov"):
        assert counters(probe(copy_video(given, tmp_path / name))) == list(range(24))


def test_a_decoder_is_freed_without_garbage_collection(tmp_path: Path):
    source = probe(write_video(tmp_path / "a.mp4", counter_clip(range(12))))
    gc.collect()

    def alive() -> list[str]:
        kinds = (type(value).__name__ for value in gc.get_objects())
        return sorted(kind for kind in kinds if kind in {"VideoReader", "VideoCodecContext", "InputContainer"})

    before = alive()
    gc.disable()
    try:
        with source.open() as reader:
            next(iter(reader.read([2])))
            assert len(alive()) > len(before)
        del reader
        assert alive() == before
    finally:
        gc.enable()
