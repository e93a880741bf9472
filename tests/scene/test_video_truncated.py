"""Truncated videos are refused or used up to the cut; complete ones are not, whatever their headers state."""

import shutil
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from page4d.errors import InputError
from page4d.scene.probe import probe_video
from page4d.scene.video import DamageScan, VideoSource
from tests.scene.clip_writers import read_counter, write_counter_clip

B_FRAMES = {"preset": "fast", "x264-params": "bframes=2:b-adapt=0:keyint=10:min-keyint=10:scenecut=0"}
RATED = {"b": "2000000"}
SOUND = 0.3 * np.random.default_rng(0).standard_normal(48000)
FRAMES = 24
KINDS: dict[str, dict[str, Any]] = {
    "a.mkv": {"options": B_FRAMES},
    "sound.mkv": {"sound": SOUND},
    "vp8.webm": {"codec": "libvpx", "options": RATED},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8", **RATED}},
    "a.ts": {"options": B_FRAMES},
    "sound.ts": {"sound": SOUND},
    "a.m2ts": {},
    "a.wmv": {"codec": "wmv2", "options": RATED},
    "a.mp4": {},
    "faststart.mp4": {"muxer_options": {"movflags": "faststart"}},
    "a.gif": {"codec": "gif", "pixel_format": "rgb8", "rate": 25},
    "a.y4m": {"codec": "rawvideo"},
    "a.ivf": {"codec": "libvpx", "options": RATED},
    "a.ogv": {"codec": "libvpx", "muxer": "ogg", "options": RATED},
}
BY_DURATION: dict[str, dict[str, Any]] = {
    "a.flv": {},
    "sound.flv": {"sound": SOUND},
    "a.mxf": {"codec": "mpeg2video", "rate": 25, "options": RATED},
}
"""Containers in which a cut in the last tenth of a second is within the rounding of the stated duration."""


def probe(path: Path, *, allow_damaged: bool = False) -> VideoSource:
    return probe_video(path, max_megapixels=64, allow_damaged=allow_damaged)


def read_all(source: VideoSource) -> int:
    with source.open() as reader:
        return len(list(reader.read(range(len(source.frame_times)))))


def cut(path: Path, size: int) -> Path:
    target = path.with_name(f"cut{path.suffix}")
    target.write_bytes(path.read_bytes()[:size])
    return target


@pytest.mark.parametrize("name", [*KINDS, *BY_DURATION])
def test_a_cut_is_found_at_any_place(name: str, tmp_path: Path) -> None:
    path = write_counter_clip(tmp_path / name, FRAMES, **(KINDS | BY_DURATION)[name])
    source = probe(path)
    assert len(source.frame_times) == FRAMES
    assert {notice.text for notice in source.notices} <= {"a: alpha ignored"}
    assert len(probe(path, allow_damaged=True).frame_times) == FRAMES
    size = path.stat().st_size
    last = size - 1 if name in KINDS else size * 3 // 5
    packet = {".ts": 188, ".m2ts": 192}.get(path.suffix, 0)
    for stop in np.linspace(size // 10, last, 23).astype(int):
        if packet and stop % packet == 0:
            stop += 1
        with pytest.raises(InputError, match=r"cut\.\w+ (ends early|is incomplete|is not|has no)") as caught:
            read_all(probe(cut(path, int(stop))))
        assert caught.value.hint


@pytest.mark.parametrize("name", ["a.mkv", "vp9.webm", "a.ts", "a.flv", "faststart.mp4"])
def test_intact_frames_before_the_cut_are_used_on_request(name: str, tmp_path: Path) -> None:
    path = write_counter_clip(tmp_path / name, FRAMES, **(KINDS | BY_DURATION)[name])
    part = cut(path, path.stat().st_size * 3 // 4 + 1)
    source = probe(part, allow_damaged=True)
    assert 1 < read_all(source) < FRAMES
    assert source.notices[-1].text.startswith(f"cut{part.suffix} ")
    assert f"{len(source.frame_times)} intact frames are used" in source.notices[-1].text


@pytest.mark.parametrize(
    ("suffix", "codec", "lost"), [("avi", "mjpeg", 1), ("avi", "libx264", 6), ("mkv", "mjpeg", 1)]
)
def test_frames_after_lost_ones_keep_their_times(suffix: str, codec: str, lost: int, tmp_path: Path) -> None:
    options = {"pixel_format": "yuvj420p"} if codec == "mjpeg" else {"options": {"g": "6", "sc_threshold": "0"}}
    path = write_counter_clip(tmp_path / f"a.{suffix}", FRAMES, codec=codec, **options)
    with av.open(str(path)) as container:
        place, size = next((packet.pos + 8, packet.size - 8) for packet in container.demux(video=0) if packet.size)
    content = bytearray(path.read_bytes())
    content[place : place + size] = b"\xff\x00" * (size // 2) + b"\0" * (size % 2)
    path.write_bytes(content)
    source = probe(path, allow_damaged=True)
    with source.open() as reader:
        found = [read_counter(image / 255) for image in reader.read(range(len(source.frame_times)))]
    assert found == list(range(lost, FRAMES)) == source.positions.tolist()  # masks and tables have them by number
    np.testing.assert_allclose(source.frame_times, np.array(found) / 30, atol=2e-3)


@pytest.mark.parametrize(
    ("packets", "places"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 2, 1, 4, 3], [0, 1, 2, 3, 4]),
        ([2, 3, 5], [2, 3, 5]),
        ([0, 3, 2, 6, 5], [0, 2, 3, 5, 6]),
        ([None, None, 3], [0, 1, 3]),
    ],
    ids=["all", "B-frames", "first and fourth lost", "lost among B-frames", "without numbers"],
)
def test_lost_packets_take_the_places_of_frames(packets: list[int | None], places: list[int]) -> None:
    scan = DamageScan(packets, np.ones(len(packets), bool), 0, None, len(packets), False)
    assert scan.places.tolist() == places


OPEN = "keyint=12:min-keyint=12:scenecut=0:bframes=2:b-adapt=0:open-gop=1"
BETWEEN_KEY_FRAMES: dict[str, tuple[str, dict[str, str], int]] = {
    "a.ts": ("libx264", {"preset": "fast", "x264-params": OPEN}, 12),
    "a.mkv": ("libx264", {"g": "12", "bf": "0", "sc_threshold": "0"}, 12),
    "a.mp4": ("libx264", {"g": "12", "bf": "0", "sc_threshold": "0"}, 12),
    "a.h264": ("libx264", {"g": "12", "bf": "0", "sc_threshold": "0"}, 12),
    "hevc.ts": ("libx265", {"x265-params": f"log-level=none:{OPEN}"}, 12),
    "mpeg2.ts": ("mpeg2video", {"g": "12", "bf": "2", **RATED}, 12),
    "mpeg4.ts": ("mpeg4", {"g": "12", **RATED}, 12),
    "refresh.ts": ("libx264", {"preset": "fast", "x264-params": "keyint=12:intra-refresh=1:bframes=0"}, 14),
}
"""Codec, its options, and the first complete frame of a recording without its first 5 packets."""


@pytest.mark.parametrize("name", BETWEEN_KEY_FRAMES)
def test_frames_before_the_first_key_frame_are_left_out(name: str, tmp_path: Path) -> None:
    codec, options, first = BETWEEN_KEY_FRAMES[name]
    suffix = ".mkv" if name == "a.h264" else Path(name).suffix
    path = write_counter_clip(tmp_path / f"whole{suffix}", 30, codec=codec, options=options, rate=25)
    with av.open(str(path)) as given, av.open(str(tmp_path / name), "w") as taken:
        stream = taken.add_stream_from_template(given.streams.video[0])
        packets = [packet for packet in given.demux(video=0) if packet.size]
        times = [float(packet.pts * packet.time_base) for packet in packets]
        for packet in packets[5:]:
            packet.stream = stream
            taken.mux(packet)
    for allow_damaged in (False, True):
        source = probe(tmp_path / name, allow_damaged=allow_damaged)
        with source.open() as reader:
            images = reader.read(range(len(source.frame_times)))
            assert [read_counter(image / 255) for image in images] == list(range(first, 30))
        np.testing.assert_allclose(source.frame_times, np.sort(times)[first:] - min(times[5:]), atol=2e-3)
        text = f"{source.path.stem}: {first - 5} frames left out: the recording begins between two key frames"
        assert text in [notice.text for notice in source.notices]


def test_a_recording_that_was_never_finished_is_complete(tmp_path: Path) -> None:
    for name in ("live.mkv", "live.webm"):
        codec: dict[str, Any] = {"codec": "libvpx", "options": RATED} if name.endswith("webm") else {}
        path = write_counter_clip(tmp_path / name, FRAMES, muxer_options={"live": "1"}, **codec)
        assert probe(path).notices == ()


@pytest.mark.parametrize("name", ["a.mkv", "a.flv", "a.ts", "a.mp4"])
def test_sound_may_be_longer_or_shorter_than_the_video(name: str, tmp_path: Path) -> None:
    for seconds in (0.3, 2.0):
        sound = 0.3 * np.random.default_rng(0).standard_normal(int(48000 * seconds))
        path = write_counter_clip(tmp_path / name, FRAMES, sound=sound)
        assert len(probe(path).frame_times) == FRAMES


def test_a_last_frame_of_long_duration_is_not_a_cut(tmp_path: Path) -> None:
    """Screen recordings state the time up to which the last frame was shown; no packet ends there."""
    path = tmp_path / "screen.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        packets = []
        for count in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 50 * count, np.uint8))
            frame.pts = count
            packets += stream.encode(frame)
        packets += stream.encode(None)
        packets[-1].duration = 300
        container.mux(packets)
    with av.open(str(path)) as container:
        assert container.duration > 10_000_000
    source = probe(path)
    assert (len(source.frame_times), source.notices) == (5, ())


def test_a_copy_that_ends_in_zeros_is_found(tmp_path: Path) -> None:
    path = write_counter_clip(tmp_path / "a.mkv", 120, size=(96, 128))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    with pytest.raises(InputError, match=r"a\.mkv ends early, after frame \d+$"):
        probe(path)


def test_transport_streams_may_start_within_a_packet(tmp_path: Path) -> None:
    path = write_counter_clip(tmp_path / "a.ts", FRAMES)
    for junk in (1, 100, 187):
        tail = tmp_path / "tail.ts"
        tail.write_bytes(path.read_bytes()[:junk][::-1].replace(b"G", b"g") + path.read_bytes())
        assert len(probe(tail).frame_times) == FRAMES
        assert probe(tail).notices == ()


def test_data_after_the_last_box_of_an_mp4_is_ignored(tmp_path: Path) -> None:
    path = write_counter_clip(tmp_path / "a.mp4", FRAMES)
    for extra in (b"\xff" * 40, b"SEFT", struct.pack(">I4s", 0, b"free") + bytes(100)):
        other = shutil.copy(path, tmp_path / "b.mp4")
        with other.open("ab") as file:
            file.write(extra)
        assert probe(other).notices == ()
