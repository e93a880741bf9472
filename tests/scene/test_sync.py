"""Views of any rate, offset and clock are aligned, with every synchronization method."""

import re
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page4d.errors import InputError, UsageError
from page4d.scene import video
from page4d.scene.batches import FrameBatch, open_batches
from page4d.scene.clocks import describe_clocks, read_sync_file, timecode_seconds
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from page4d.scene.sound import correlate_audio
from tests.scene.clip_writers import (
    NTSC,
    counter_clip,
    read_counter,
    set_rotation,
    write_counter_clip,
    write_images,
    write_sync,
    write_video,
)

TICK = Fraction(1, 90000)
ROUNDING = 1e-4
"""Upper bound in seconds on the rounding of time stamps in MP4 and TS."""


class Rig:
    """A folder of clips with encoded frame numbers, and the true time of every frame on the common clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.times: dict[str, Any] = {}
        self.periods: dict[str, Any] = {}
        self._clocks: dict[str, tuple[float, float]] = {}

    def add(self, file: str, own_times: Any, clock: tuple[float, float] = (0.0, 1.0), **settings: Any) -> None:
        """Write a clip with frames at `own_times` of a clock with (offset, rate)."""
        (self.folder / file).parent.mkdir(exist_ok=True, parents=True)
        turned = settings.pop("turned", 0)
        size = settings.pop("size", (48, 64))
        if "rate" not in settings:
            settings |= {"time_base": TICK, "ticks": [round(time / TICK) for time in own_times]}
        frames = counter_clip(range(len(own_times)), size[::-1] if turned % 180 else size)
        path = self.folder / file
        write_video(path, [np.rot90(frame, turned // 90) for frame in frames], **settings)
        if turned:
            set_rotation(path, turned)
        name, (offset, rate) = path.stem, clock
        self._clocks[name] = clock
        self.times[name] = offset + rate * np.array([float(time) for time in own_times])
        gaps = np.diff(self.times[name])
        self.periods[name] = np.maximum(np.r_[gaps[:1], gaps], np.r_[gaps, gaps[-1:]])
        write_sync(self.folder, self._clocks)

    def open(self, **options: Any) -> Scene:
        return open_scene(self.folder, **options)

    def check(self, scene: Scene, batches: list[FrameBatch]) -> Any:
        """Compare the true time of every returned frame with its instant; return the counters."""
        counts = np.concatenate([read_batch(batch) for batch in batches])
        times = np.concatenate([batch.times.numpy() for batch in batches])
        for view, name in enumerate(scene.view_names):
            error = np.abs(self.times[name][counts[:, view]] - times)
            assert (error <= self.periods[name][counts[:, view]] / 2 + ROUNDING).all(), (name, error.max())
        return counts


def steady(rate: Fraction | float, duration_s: float) -> list[Fraction]:
    return [count / Fraction(rate) for count in range(round(duration_s * rate))]


def read_batch(batch: FrameBatch) -> Any:
    """Decode the counters [T, V] from the images without padding."""
    counts = []
    for instant in batch.images[0]:
        pictures = [
            picture[:, transform.rows, transform.columns].permute(1, 2, 0).numpy()
            for picture, transform in zip(instant, batch.pixel_transforms, strict=True)
        ]
        counts.append([read_counter(picture) for picture in pictures])
    return np.array(counts)


def read_all(scene: Scene, chunk: int = 1000, overlap: int = 0, long_side: int = 56) -> list[FrameBatch]:
    """Read a scene in chunks and return the instants that each adds."""
    batches = []
    with open_batches(scene, long_side=long_side, multiple=14) as reader:
        for start in range(0, scene.num_times, chunk):
            stop = min(start + chunk, scene.num_times)
            batch = reader.read(max(start - overlap, 0), stop)
            assert len(batch.times) == stop - max(start - overlap, 0)
            np.testing.assert_array_equal(batch.times, scene.times[max(start - overlap, 0) : stop])
            if start and overlap:
                before = batches[-1]
                common = min(overlap, len(before.times))
                np.testing.assert_array_equal(batch.images[:, :common], before.images[:, -common:])
            batches.append(batch if not start else _from(batch, min(overlap, start)))
    return batches


def _from(batch: FrameBatch, start: int) -> FrameBatch:
    return replace(batch, times=batch.times[start:], images=batch.images[:, start:], valid=batch.valid[:, start:])


def mixed_rig(folder: Path, duration_s: float = 1.6) -> Rig:
    """Write clips of five rates with offsets, drifting clocks, a variable rate, rotation and B-frames."""
    rig = Rig(folder)
    b_frames = {"preset": "fast", "x264-params": "bframes=2:b-adapt=0"}
    irregular = np.cumsum(np.r_[0, np.random.default_rng(4).uniform(0.026, 0.041, 45)])
    rig.add("cam24.mp4", steady(24, duration_s), (0.0, 1.0), rate=24)
    rig.add("cam25.mkv", steady(25, duration_s), (-0.113, 1.001), rate=25, options=b_frames)
    rig.add("cam29.mp4", steady(NTSC, duration_s), (0.217, 0.9995), rate=NTSC, options=b_frames)
    rig.add("cam30.ts", steady(30, duration_s), (0.051, 1.0), rate=30, options=b_frames)
    rig.add("cam60.mov", steady(60, duration_s), (0.302, 1.002), rate=60)
    rig.add("phone.mp4", irregular, (0.08, 1.0), turned=90, size=(64, 48))
    rig.add("upside.mp4", steady(30, duration_s), (0.1234, 1.0), turned=180)
    return rig


def test_all_rates_and_clocks_are_aligned_within_half_a_frame(tmp_path):
    rig = mixed_rig(tmp_path)
    scene = rig.open()
    assert scene.synchronisation == "file sync.json"
    assert scene.views[0].clock.std_seconds is None
    assert scene.view_names == ("cam24", "cam25", "cam29", "cam30", "cam60", "phone", "upside")
    rig.check(scene, read_all(scene))
    first, last = max(t[0] for t in rig.times.values()), min(t[-1] for t in rig.times.values())
    inside = (rig.times["cam24"] >= first) & (rig.times["cam24"] <= last)
    assert set(np.flatnonzero(inside)) <= set(scene.views[0].indices)
    assert not any("left out" in notice.text for notice in scene.notices)


@pytest.mark.parametrize(
    "options",
    [
        {"fps": 24.0},
        {"fps": 50.0},
        {"fps": 7.3},
        {"stride": 3},
        {"frames": (5, 20)},
        {"frames": (-9, None), "stride": 2},
        {"fps": 30.0, "frames": (3, -3), "stride": 4},
        {"views": ("phone", "cam60")},
        {"views": 3},
    ],
)
def test_every_selection_is_aligned(options: dict[str, Any], tmp_path):
    rig = mixed_rig(tmp_path, 1.0)
    scene = rig.open(**options)
    rig.check(scene, read_all(scene))
    if "fps" in options and "stride" not in options:
        np.testing.assert_allclose(np.diff(scene.times), 1 / options["fps"])


def test_views_with_a_common_start_have_equal_frame_numbers(tmp_path):
    for name in ("a.mp4", "b.mkv", "c.ts", "d.avi", "e.h264", "f.webm"):
        codec = {"codec": "libvpx-vp9", "options": {"cpu-used": "8", "b": "2000000"}} if name.startswith("f") else {}
        write_counter_clip(tmp_path / name, 20, **codec)
    scene = open_scene(tmp_path)
    assert scene.synchronisation == "same start"
    counts = np.concatenate([read_batch(batch) for batch in read_all(scene)])
    np.testing.assert_array_equal(counts, np.arange(20)[:, None].repeat(6, axis=1))


@pytest.mark.parametrize(("chunk", "overlap"), [(1, 0), (4, 1), (5, 3), (7, 6), (100, 0)])
def test_chunks_with_overlap_decode_every_frame_once(chunk: int, overlap: int, tmp_path, monkeypatch):
    rig = mixed_rig(tmp_path, 0.8)
    scene = rig.open()
    whole = rig.check(scene, read_all(scene))
    converted = 0
    original = video.VideoReader._to_rgb

    def counted(*arguments: Any) -> Any:
        nonlocal converted
        converted += 1
        return original(*arguments)

    monkeypatch.setattr(video.VideoReader, "_to_rgb", counted)
    np.testing.assert_array_equal(rig.check(scene, read_all(scene, chunk, overlap)), whole)
    assert converted == sum(len(set(view.indices)) for view in scene.views)


def test_frames_after_seeking_are_aligned(tmp_path):
    rig = Rig(tmp_path)
    sparse = {"preset": "fast", "x264-params": "keyint=90:min-keyint=90:bframes=3:scenecut=0:open-gop=1"}
    rig.add("a.mp4", steady(25, 14), rate=25, options=sparse)
    rig.add("b.mkv", steady(NTSC, 14), (0.51, 0.999), rate=NTSC, options=sparse)
    scene = rig.open(stride=111)
    assert scene.num_times == 4
    rig.check(scene, read_all(scene, chunk=1))
    scene = rig.open(frames=(300, 305))
    rig.check(scene, read_all(scene))


def test_duplicated_frames_do_not_shift_the_alignment(tmp_path):
    rig = Rig(tmp_path)
    times = steady(30, 1)
    rig.add("a.mp4", times)
    rig.add("b.mp4", sorted([*times, times[9] + Fraction(1, 1000)]))
    counts = rig.check(rig.open(), read_all(rig.open()))
    assert counts[:, 0].tolist() == list(range(30))
    assert len(set(counts[:, 1])) == 30


@pytest.mark.parametrize(
    ("code", "fps", "seconds"),
    [
        ("00:00:00:00", 25, 0),
        ("01:00:00:00", 25, 3600),
        ("10:00:00:12", 24, 36000.5),
        ("01:00:00:00", 30000 / 1001, 3603.6),  # non-drop: 108000 frames of 1001/30000 s
        ("01:00:00;00", 30000 / 1001, 107892 * 1001 / 30000),
        ("00:01:00;02", 30000 / 1001, 1800 * 1001 / 30000),
        ("00:00:59;29", 30000 / 1001, 1799 * 1001 / 30000),
        ("00:10:00;00", 30000 / 1001, 17982 * 1001 / 30000),
        ("01:00:00.00", 30000 / 1001, 107892 * 1001 / 30000),
        ("00:01:00;04", 60000 / 1001, 3600 * 1001 / 60000),
        ("23:59:59;29", 30000 / 1001, 2589407 * 1001 / 30000),
        ("02:00:00:00", 24000 / 1001, 7200 * 1.001),
        ("10:00:00:095", 120, 36000 + 95 / 120),
        ("00:00:01:199", 200, 1 + 199 / 200),
        ("00:00:00:0999", 1000, 0.999),
    ],
)
@pytest.mark.parametrize("measured", [1.0, 1 + 2e-4, 1 - 2e-4])
def test_time_codes_are_counted_as_in_smpte_st_12_1(code: str, fps: float, seconds: float, measured: float):
    assert timecode_seconds(code, fps * measured) == pytest.approx(seconds, abs=1e-6)


def test_drop_frame_codes_follow_the_wall_clock():
    for hours in range(1, 24):
        assert timecode_seconds(f"{hours:02}:00:00;00", 29.97) == pytest.approx(3600 * hours, abs=0.1)
    assert timecode_seconds("01:00:00;00", 29.97) == pytest.approx(3600, abs=1 / 29.97)


@pytest.mark.parametrize("code", ["", "1:00:00:00", "01:00:00", "aa:bb:cc:dd", "01:00:00:00:00", "01:00:00:25"])
def test_malformed_time_codes_are_refused(code: str):
    with pytest.raises(InputError, match="is not a time code"):
        timecode_seconds(code, 25)


@pytest.mark.parametrize("suffix", ["mov", "mp4", "mxf"])
def test_views_are_aligned_by_embedded_time_codes(suffix: str, tmp_path):
    codec = {"codec": "mpeg2video", "options": {"b": "2000000"}} if suffix == "mxf" else {}
    for name, code in (("a", "10:00:00:05"), ("b", "10:00:00:12"), ("c", "10:00:00:00")):
        write_counter_clip(tmp_path / f"{name}.{suffix}", 25, rate=25, metadata={"timecode": code}, **codec)
    for mode in ("auto", "timecode"):
        scene = open_scene(tmp_path, sync=mode)
        assert scene.synchronisation == "time code"
        counts = np.concatenate([read_batch(batch) for batch in read_all(scene)])
        np.testing.assert_array_equal(counts[0], [7, 0, 12])
        assert len(counts) == 13
        assert (np.diff(counts, axis=0) == 1).all()


def test_drop_frame_time_codes_tolerate_rounded_time_stamps_and_gaps(tmp_path):
    write_counter_clip(tmp_path / "a.mkv", 40, rate=NTSC, metadata={"timecode": "14:37:12;20"})
    ticks = [count * 3003 for count in range(40) if count not in (7, 8, 9, 21)]
    write_counter_clip(
        tmp_path / "b.mov", 36, rate=NTSC, ticks=ticks, time_base=TICK, metadata={"timecode": "14:37:12;27"}
    )
    scene = open_scene(tmp_path, sync="timecode")
    assert scene.views[1].clock.offset_s == pytest.approx(7 * 1001 / 30000, abs=1e-6)
    assert [view.clock.std_seconds for view in scene.views] == pytest.approx([0.5 * 1001 / 30000] * 2)
    text = describe_clocks(scene.synchronisation, [view.clock for view in scene.views], "timecode")
    assert text == "from time code: starts of views up to 0.234 s apart (+-17 ms)"


def write_coded(folder: Path, codes: dict[str, str | None], rate: Fraction | int, counted: int | None = None) -> None:
    """Write clips with time codes that count `counted` numbers per second instead of one per frame."""
    for name, code in codes.items():
        path = folder / name
        write_counter_clip(path, 90, rate=rate, metadata={"timecode": code} if code else {})
        if counted is not None:
            content = bytearray(path.read_bytes())
            entry = content.index(b"stsd", content.index(b"TimeCodeHandler")) + 16
            step = 1001 if Fraction(rate).denominator == 1001 else 1000
            struct.pack_into(">IIB", content, entry + 20, counted * 1000, step, counted)
            path.write_bytes(content)


@pytest.mark.parametrize(
    ("codes", "rate", "counted", "late"),
    [
        (("10:00:00:05", "10:00:00:25"), NTSC * 2, 30, 20 * 1001 / 30000),
        (("10:00:00:05", "10:00:00:17"), 50, 25, 12 / 25),
        (("01:00:00;02", "01:00:00;12"), NTSC * 2, 30, 10 * 1001 / 30000),
        (("10:00:00:095", "10:00:01:005"), 120, None, 30 / 120),
        (("23:59:59:20", "00:00:00:05"), NTSC, None, 15 * 1001 / 30000),
        (("23:59:59;20", "00:00:00;05"), NTSC, None, 15 * 1001 / 30000),
        (("00:00:00:05", "23:59:59:20"), 25, None, -10 / 25),
    ],
)
def test_time_codes_count_at_their_own_rate_and_wrap_at_midnight(
    codes: tuple[str, str], rate: Fraction | int, counted: int | None, late: float, tmp_path
):
    # With another rate of the track, the stored number is another time of day: by the same factor in both views.
    write_coded(tmp_path, {"a.mov": codes[0], "b.mov": codes[1]}, rate, counted)
    first, second = open_scene(tmp_path).views
    assert second.clock.offset_s - first.clock.offset_s == pytest.approx(late, abs=1e-6)


def test_time_codes_of_some_views_are_used_and_reported(tmp_path):
    write_coded(tmp_path, {"a.mov": "10:00:00:10", "b.mp4": None, "c.mov": "10:00:00:00", "d.mkv": "10:00:00:99"}, 30)
    scene = open_scene(tmp_path)
    assert scene.synchronisation == "time code (2 of 4 views)"
    assert [view.clock.offset_s for view in scene.views] == pytest.approx([10 / 30, 0, 0, 0])
    assert sum(view.clock.std_seconds is None for view in scene.views) == 2
    texts = [notice.text for notice in scene.notices]
    assert "d.mkv: '10:00:00:99' is not a time code of 30 numbers per second; it is not used" in texts
    expected = "a, c start 0.333 s apart by time code; b, d without it: assumed to start with c; sync=FILE"
    assert any(text.startswith(expected) for text in texts)


def test_time_codes_of_some_views_that_do_not_overlap_are_reported(tmp_path):
    write_coded(tmp_path, {"a.mov": "10:00:00:00", "b.mp4": None, "c.mov": "15:00:00:00"}, 30)
    scene = open_scene(tmp_path)
    assert (scene.synchronisation, scene.num_times) == ("same start", 90)
    text = "a, c start 18000.000 s apart by time code, which is not used: the views would not overlap in time"
    assert text in [notice.text for notice in scene.notices]


def test_double_rates_without_a_stated_rate_of_the_time_code_are_reported(tmp_path):
    """Matroska states the time code as text alone."""
    write_coded(tmp_path, {"a.mkv": "10:00:00:05", "b.mkv": "10:00:00:17"}, 50)
    text = "a.mkv, b.mkv: the rate of the time code is not stated; one number per frame is assumed"
    for mode in ("auto", "timecode"):
        scene = open_scene(tmp_path, sync=mode)
        assert scene.views[1].clock.offset_s == pytest.approx(12 / 50)
        assert text in [notice.text for notice in scene.notices]


@pytest.mark.parametrize(
    ("suffix", "starts", "is_reported"),
    [
        ("mkv", (10.0, 10.5), True),
        ("mkv", (3.0, 3.04), True),
        ("mkv", (0.0, 0.5), True),
        ("mkv", (0.0, 0.2), False),
        ("mkv", (10.0, 10.01), False),
        ("mkv", (10.0, 30.0), False),
        ("ts", (0.0, 0.5), False),
        ("ts", (10.0, 10.5), True),
    ],
)
def test_files_whose_time_stamps_begin_at_different_times_are_reported(
    suffix: str, starts: tuple[float, float], is_reported: bool, tmp_path
):
    for name, start in zip("ab", starts, strict=True):
        ticks = [round(start * 90000) + 3600 * n for n in range(30)]
        write_counter_clip(tmp_path / f"{name}.{suffix}", 30, rate=25, ticks=ticks, time_base=TICK)
    scene = open_scene(tmp_path)
    assert (scene.synchronisation, scene.num_times) == ("same start", 30)
    found = [notice.text for notice in scene.notices if "time stamps of a begin at" in notice.text]
    assert len(found) == is_reported
    if is_reported:
        assert found[0].endswith("s: not used; if one recorder wrote both, give the offsets by sync=FILE")
    assert not any("begin" in notice.text for notice in open_scene(tmp_path, sync="none").notices)


@pytest.mark.parametrize(
    ("names", "apart"),
    [
        ("a_2024-05-01_12-30-15 b_2024-05-01_12-30-18 c_2024-05-01_12-30-16", "3 s"),
        ("ch1_main_20240501123015_20240501123100 ch2_main_20240501123215_20240501123400", "120 s"),
        ("2024-05-01T12-30-15.250 2024-05-01T12-30-15.000", "0.25 s"),
        ("VID_20240501_123015 VID_20240501_123016", ""),
        ("a_2024-05-01_12-30-15 b", ""),
    ],
)
def test_videos_whose_names_state_different_starts_are_reported(names: str, apart: str, tmp_path):
    for name in names.split():
        write_counter_clip(tmp_path / f"{name}.mp4", 3)
    found = [notice.text for notice in open_scene(tmp_path).notices if "by their names" in notice.text]
    assert [text.split("up to ")[1].split(" apart")[0] for text in found] == ([apart] if apart else [])


def test_frame_numbers_of_some_views_are_used_and_reported(tmp_path):
    write_counter_clip(tmp_path / "c.mp4", 20, rate=25)
    for name, first in (("a", 100), ("b", 105)):
        write_images(tmp_path / name, {f"{n}.png": counter_clip([n])[0] for n in range(first, first + 20)})
    scene = open_scene(tmp_path, image_fps=25)
    counts = np.concatenate([read_batch(batch) for batch in read_all(scene)])
    assert counts[0].tolist() == [105, 105, 5]
    assert any("a, b start 0.200 s apart by frame numbers" in notice.text for notice in scene.notices)


def test_time_codes_are_required_in_every_view(tmp_path):
    write_counter_clip(tmp_path / "a.mov", 9, metadata={"timecode": "10:00:00:05"})
    write_counter_clip(tmp_path / "b.mov", 9)
    assert open_scene(tmp_path).synchronisation == "same start"
    with pytest.raises(InputError, match=r"b\.mov has no embedded time code"):
        open_scene(tmp_path, sync="timecode")


def noise(seconds: float, rate: int = 48000, seed: int = 0) -> Any:
    """Return noise with bursts, like claps and speech."""
    random = np.random.default_rng(seed)
    count = round(seconds * rate)
    loudness = np.interp(np.arange(count), np.linspace(0, count, 60), random.uniform(0.05, 0.5, 60) ** 2)
    return random.standard_normal(count) * loudness


@pytest.mark.parametrize(
    ("suffix", "sound_codec"),
    [("mp4", "aac"), ("mp4", "libopus"), ("mov", "pcm_s16le"), ("mkv", "aac"), ("mkv", "flac"), ("ts", "mp2")],
)
@pytest.mark.parametrize(("shift_s", "late_s"), [(0.5, 0.0), (-0.7, 0.0), (0.3456, 0.25)])
def test_audio_gives_the_offset_within_a_millisecond(
    suffix: str, sound_codec: str, shift_s: float, late_s: float, tmp_path
):
    """The second camera starts `shift_s` after the first, its audio track `late_s` after its video track."""
    event, rate = noise(6), 48000
    first, second = (round((1 + start) * rate) for start in (0, shift_s + late_s))
    for name, start, late in (("a", first, 0.0), ("b", second, late_s)):
        audio = event[start : start + 3 * rate] + 0.01 * np.random.default_rng(start).standard_normal(3 * rate)
        path = tmp_path / f"{name}.{suffix}"
        write_counter_clip(path, 60, sound=audio, sound_start_s=late, sound_codec=sound_codec)
    scene = open_scene(tmp_path, sync="audio")
    offset = scene.views[1].clock.offset_s - scene.views[0].clock.offset_s
    assert offset == pytest.approx(shift_s, abs=1e-3)
    assert scene.views[0].clock.std_seconds == 0
    assert scene.views[1].clock.std_seconds == pytest.approx(0.005, abs=0.0005)


def test_audio_with_a_gap_and_that_of_a_short_recording_that_starts_late_are_matched(tmp_path):
    event, rate = noise(12), 48000
    gap = event[rate // 2 : rate * 10].copy()
    gap[rate : rate * 3 // 2] = np.nan
    for name, sound in (("a", event), ("b", gap), ("c", event[rate * 9 :][: rate * 2])):
        write_counter_clip(tmp_path / f"{name}.mp4", 30 * len(sound) // rate, sound=sound)
    for order in ("abc", "cab"):
        scene = open_scene(tmp_path, sync="audio", views=tuple(order))
        starts = {view.name: view.clock.offset_s for view in scene.views}
        assert [starts[name] - starts["a"] for name in "bc"] == pytest.approx([0.5, 9.0], abs=1e-3)


def test_audio_of_another_sample_rate_matches_and_of_another_event_does_not(tmp_path):
    write_counter_clip(tmp_path / "a.mp4", 60, sound=noise(3))
    resampled = np.interp(np.arange(0, 3, 1 / 44100), np.arange(0, 3, 1 / 48000), noise(3))
    write_counter_clip(tmp_path / "b.mp4", 60, sound=resampled[4410:], sound_rate=44100)
    write_counter_clip(tmp_path / "c.mp4", 60, sound=noise(3, seed=9))
    scene = open_scene(tmp_path, sync="audio", views=("a", "b"))
    assert scene.views[1].clock.offset_s == pytest.approx(0.1, abs=1e-3)
    with pytest.raises(InputError, match=r"audio of c does not match that of a \(score 1\.\d, need 2\)"):
        open_scene(tmp_path, sync="audio", views=("a", "c"))


def test_audio_that_only_another_view_hears_gives_its_clock(tmp_path):
    """The first and the third camera stand too far apart: each records an event of its own, the second one both."""
    near, far = noise(3), noise(3, seed=9)
    for name, sound in (("a", near), ("b", (near + far)[4800:]), ("c", far[14400:])):
        (tmp_path / name).mkdir()
        write_counter_clip(tmp_path / name / "video.mp4", 60, sound=sound)
    scene = open_scene(tmp_path, sync="audio")
    assert [view.clock.offset_s for view in scene.views] == pytest.approx([0, 0.1, 0.3], abs=1e-3)
    assert [view.clock.std_seconds for view in scene.views] == pytest.approx([0, 0.005, 0.007], abs=5e-4)
    texts = [notice.text for notice in scene.notices if "by audio" in notice.text]
    assert [text[:29] for text in texts] == ["b starts +0.1000 s after a by", "c starts +0.2000 s after b by"]


@pytest.mark.parametrize(("suffix", "sound_codec"), [("mp4", "aac"), ("mov", "pcm_s16le")])
@pytest.mark.parametrize("loudness", [0.0, 1e-4, 0.003])
def test_a_hum_alone_is_refused(suffix: str, sound_codec: str, loudness: float, tmp_path):
    time = np.arange(0, 3, 1 / 48000)
    for seed, name in enumerate("ab"):
        hum = sum(0.2 / order * np.sin(2 * np.pi * 50 * order * (time + 0.00713 * seed)) for order in (1, 2, 3, 4))
        hiss = loudness * np.random.default_rng(seed).standard_normal(len(time))
        write_counter_clip(tmp_path / f"{name}.{suffix}", 60, sound=hum + hiss, sound_codec=sound_codec)
    with pytest.raises(InputError, match=r"need 2|several offsets fit"):
        open_scene(tmp_path, sync="audio")


@pytest.mark.parametrize(("period_s", "seconds"), [(0.5, 8), (1.3, 8), (3.0, 20)])
def test_a_loop_is_refused_though_one_of_its_offsets_has_the_longest_overlap(
    period_s: float, seconds: int, tmp_path: Path
):
    loop = np.tile(0.3 * noise(period_s), 60)
    for seed, (name, start) in enumerate((("a", 0), ("b", 120000))):
        hiss = 0.01 * np.random.default_rng(seed).standard_normal(seconds * 48000)
        sound = loop[start : start + seconds * 48000] + hiss
        write_counter_clip(tmp_path / f"{name}.mov", 60, sound=sound, sound_codec="pcm_s16le")
    with pytest.raises(InputError, match="several offsets fit"):
        open_scene(tmp_path, sync="audio")


def in_room(sound: Any, seed: int) -> Any:
    """Return what a microphone records in a room: echoes over 0.6 s with 9 times the energy of the direct sound."""
    tail = np.random.default_rng(seed).standard_normal(4800) * np.exp(-6.9 * np.arange(4800) / 4800)
    return np.convolve(sound, np.append(1.0, 3 * tail / np.linalg.norm(tail)))[: len(sound)]


def claps(seed: int, *times_s: float) -> Any:
    """Return 14 s of 8 kHz with claps of 20 ms."""
    sound, random = np.zeros(14 * 8000), np.random.default_rng(seed)
    for time in times_s:
        clap = random.standard_normal(160) * np.exp(-np.arange(160) / 40)
        sound[round(time * 8000) :][:160] += clap
    return sound


@pytest.mark.parametrize(
    ("first", "second", "doubt"),
    [
        (noise(14, 8000), None, ""),
        (claps(1, 3, 3.7, 5.2, 6.1, 8.1, 9.7), None, ""),
        (noise(14, 8000), noise(14, 8000, seed=9), "need 2"),
        (claps(1, 3, 5.2, 8.1), claps(2, 3.4, 6.1, 9), "need 2"),
        (claps(1, 5), claps(2, 7), "need 2"),
        (np.tile(noise(2, 8000), 7), None, "several offsets fit"),
        (np.tile(noise(0.1, 8000), 140), None, "several offsets fit"),
    ],
    ids=["talk", "claps", "other talk", "other claps", "one clap each", "loop", "short loop"],
)
def test_echoes_are_no_other_offsets_and_loops_are(first: Any, second: Any, doubt: str, tmp_path: Path):
    for number, (name, sound) in enumerate({"a": first, "b": first if second is None else second}.items()):
        start = 13000 * number
        heard = in_room(sound, number)[start : start + 80000]
        heard = 0.1 * heard / heard.std() + 0.02 * np.random.default_rng(number).standard_normal(80000)
        write_counter_clip(tmp_path / f"{name}.mov", 9, sound=heard, sound_rate=8000, sound_codec="pcm_s16le")
    offset = correlate_audio(tmp_path / "a.mov", tmp_path / "b.mov")
    assert re.search(doubt, offset.doubt) if doubt else not offset.doubt
    assert doubt or abs(offset.seconds - 1.625) < 2 * offset.std_seconds < 0.05


def write_drifting(path: Path, sound: Any, start_s: float, rate: float, seconds: float = 60) -> None:
    """Write a video whose clock has a rate, and that starts `start_s` after the sound of 16 kHz."""
    at = (start_s + np.arange(round(seconds * 16000)) / 16000 * rate) * 16000
    heard = np.interp(at, np.arange(len(sound)), sound)
    heard += 0.003 * np.random.default_rng(len(path.name)).standard_normal(len(at))
    write_counter_clip(path, 60, sound=heard, sound_rate=16000, sound_codec="pcm_s16le")


def test_long_audio_gives_the_rates_of_clocks_that_drift_also_by_way_of_another_view(tmp_path: Path):
    near, far = (noise(63, 16000, seed) for seed in (1, 2))
    rates = {"a": 1.0, "bb": 1 + 9e-5, "ccc": 1 - 5e-5}
    for (name, rate), sound in zip(rates.items(), (near, near + far, far), strict=True):
        write_drifting(tmp_path / f"{name}.mov", sound, 0.5 * len(name), rate)
    scene = open_scene(tmp_path, sync="audio")
    for view in scene.views[1:]:
        end = view.clock.offset_s + 60 * view.clock.rate
        assert view.clock.offset_s == pytest.approx(0.5 * len(view.name) - 0.5, abs=3e-4)
        assert end == pytest.approx(0.5 * len(view.name) - 0.5 + 60 * rates[view.name], abs=3e-4)
        assert view.clock.std_seconds < 0.008
    texts = [notice.text for notice in scene.notices if "by audio" in notice.text]
    assert all(re.search(r"with a rate of (1.00009|0.99986)\d \(\+-0.00000\d\)$", text) for text in texts)


@pytest.mark.parametrize(
    ("drift", "loop_s", "seconds", "is_refused"),
    [(0.0, 63, 60, False), (9e-5, 63, 40, False), (9e-5, 3, 60, True), (9e-5, 0.25, 60, True)],
)
def test_audio_without_drift_short_audio_and_loops_give_no_rate(
    drift: float, loop_s: float, seconds: float, is_refused: bool, tmp_path: Path
):
    sound = np.tile(noise(loop_s, 16000), round(63 / loop_s))
    for name, start, rate in (("a", 0.0, 1.0), ("bb", 0.5, 1 + drift)):
        write_drifting(tmp_path / f"{name}.mov", sound, start, rate, seconds)
    found = correlate_audio(tmp_path / "a.mov", tmp_path / "bb.mov")
    assert (found.rate, found.rate_std) == (1, 0)
    assert ("several offsets fit" in found.doubt) == is_refused
    assert is_refused or found.seconds == pytest.approx(0.5, abs=5e-3)


def test_audio_is_matched_despite_a_loud_hum(tmp_path):
    time = np.arange(0, 3, 1 / 48000)
    for shift, name in ((0.0, "a"), (0.4, "b")):
        start = round(shift * 48000)
        audio = 0.02 * noise(4)[start : start + len(time)] + 0.5 * np.sin(2 * np.pi * 50 * time)
        write_counter_clip(tmp_path / f"{name}.mov", 60, sound=audio, sound_codec="pcm_s16le")
    offset = correlate_audio(tmp_path / "a.mov", tmp_path / "b.mov")
    assert offset.seconds == pytest.approx(0.4, abs=1e-3)
    assert offset.score > 10
    assert offset.second_peak < 0.1


def test_silence_and_videos_without_audio_are_refused(tmp_path):
    for name in "ab":
        write_counter_clip(tmp_path / f"{name}.mp4", 9, sound=np.zeros(20000))
    with pytest.raises(InputError, match="does not match"):
        open_scene(tmp_path, sync="audio")
    write_counter_clip(tmp_path / "c.mp4", 9)
    with pytest.raises(InputError, match=r"c\.mp4 has no audio track"):
        open_scene(tmp_path, sync="audio", views=("a", "c"))


NAMES = ("cam01", "cam02")


@pytest.mark.parametrize(
    ("file", "text", "clock"),
    [
        ("sync.json", '{"views": {"cam01": {"offset_s": 0.25, "rate": 1.5}, "cam02": {}}}', (0.25, 1.5)),
        ("sync.json", '\ufeff{"cam01": {"offset_s": 0.25}, "cam02": {"offset_s": 0}}', (0.25, 1)),
        ("sync.toml", "[views.cam01]\noffset_s = 0.25\nrate = 1.5\n[views.cam02]\n", (0.25, 1.5)),
        ("sync.TOML", "cam01 = {offset_s = -86400, rate = 1.5}\ncam02 = {rate = 1}\n", (-86400, 1.5)),
        ("s.toml", "cam01.rate = 0.001\ncam02.rate = 1\n", (0, 0.001)),
        ("s.toml", "cam01.rate = 30\ncam02.rate = 1\n", (0, 30)),
    ],
)
def test_a_sync_file_is_read(file: str, text: str, clock: tuple[float, float], tmp_path):
    (tmp_path / file).write_text(text, encoding="utf-8")
    clocks = read_sync_file(tmp_path / file, NAMES)
    assert (clocks["cam01"].offset_s, clocks["cam01"].rate) == clock
    assert (clocks["cam02"].offset_s, clocks["cam02"].rate) == (0, 1)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("s.json", '{"cam01":\n {"offset_s": 1,}}', "s.json: line 2: "),
        ("s.json", '{"cam01":\n\n {"offset_s": NaN}}', "s.json: line 3: NaN is not a JSON number"),
        ("s.json", '{"cam01": {"offset_s": -Infinity}}', "s.json: line 1: -Infinity is not a JSON number"),
        ("s.json", '{"cam01": {"offset_s": 1e999}}', "view 'cam01': offset_s: "),
        ("s.json", '{"cam01": {"offset_s": "1"}}', "view 'cam01': offset_s: "),
        ("s.json", '{"cam01": {"offset_s": true}}', "view 'cam01': offset_s: "),
        ("s.json", '{"cam01": {"offset_s": ' + "9" * 400 + "}}", "cam01"),
        ("s.json", '{"cam01": {"offset_s": ' + "9" * 5000 + "}}", "s.json: a number has too many digits"),
        ("s.json", '{"cam01": {"offset": 1}}', "view 'cam01': offset: "),
        ("s.json", '{"cam01": {"rate": 0}}', "view 'cam01': rate: "),
        ("s.json", '{"cam01": {"rate": -1}}', "view 'cam01': rate: "),
        ("s.json", '{"cam01": {"offset_frames": 3}}', "view 'cam01': offset_frames: unknown key"),
        ("s.json", '{"cam01": {"rate": 1e-9}}', "view 'cam01': rate: Input should be"),
        ("s.json", '{"cam01": {"rate": 1000}}', "view 'cam01': rate: Input should be"),
        ("s.json", '{"cam01": {"offset_s": 1e9}}', "view 'cam01': offset_s: Input should be"),
        ("s.json", '{"cam01": {"offset_s": -1e300}}', "view 'cam01': offset_s: Input should be"),
        ("s.json", '{"views": {"cam01": {}}, "cam02": {"offset_s": 1}, "comment": "x"}', "cam02 is not in 'views'"),
        ("s.json", '{"cam01": 0.25}', "view 'cam01' is not a table"),
        ("s.json", '{"views": {"cam9": {}}}', "s.json: no view is called 'cam9'"),
        ("s.json", '{"views": [1]}', "'views' is not a table"),
        ("s.json", "[]", "s.json: line 1: not a table of views"),
        ("s.json", "", "s.json: line 1: "),
        ("s.json", "[" * 100000, "s.json: it is nested too deeply"),
        ("s.json", '{"cam01": {}, "cam01": {}}', "s.json: key 'cam01' appears twice"),
        ("s.toml", "[cam01]\noffset_s = \n", "s.toml: line 2: "),
        ("s.toml", "[cam01]\noffset_s = nan\n", "view 'cam01': offset_s: "),
        ("s.toml", "[cam01]\noffset_s = inf\n", "view 'cam01': offset_s: "),
        ("s.toml", "[cam01", "s.toml: line 1: "),
    ],
)
def test_invalid_sync_files_are_refused_with_the_place(file: str, text: str, message: str, tmp_path):
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_sync_file(tmp_path / file, NAMES)
    assert message in caught.value.message
    assert file in caught.value.message


def test_binary_and_missing_sync_files_are_refused(tmp_path):
    (tmp_path / "s.json").write_bytes(b"x\0")
    with pytest.raises(UsageError, match=r"s\.json: it is not UTF-8 text \(perhaps UTF-16\)"):
        read_sync_file(tmp_path / "s.json", NAMES)
    write_counter_clip(tmp_path / "a.mp4", 3)
    with pytest.raises(UsageError, match="sync file 'audoi' does not exist"):
        open_scene(tmp_path, sync="audoi")


def test_views_without_entry_in_the_sync_file_are_reported(tmp_path):
    for name in "abc":
        write_counter_clip(tmp_path / f"{name}.mp4", 12)
    write_sync(tmp_path, {"b": (0.1, 1.06)})
    texts = [notice.text for notice in open_scene(tmp_path).notices]
    assert "sync.json has no entry for a, c: offset 0 s and rate 1 are used" in texts
    assert "sync.json: b (1.06): a rate other than 1 means slow motion or a time lapse" in texts
    write_sync(tmp_path, {"b": (0.1, 1.0)})
    scene = open_scene(tmp_path)
    assert [view.indices[0] for view in scene.views] == [3, 0, 3]
    # The file may contain unused views.
    assert open_scene(tmp_path, views=("a", "c")).num_times == 12
    assert open_scene(tmp_path, sync="none").num_times == 12


def test_a_sync_file_applies_to_numbered_image_folders(tmp_path):
    for name in "ab":
        write_images(tmp_path / name, {f"{n:03}.png": frame for n, frame in enumerate(counter_clip(range(20)))})
    write_sync(tmp_path, {"b": (0.2, 1.0)})
    scene = open_scene(tmp_path, image_fps=25)
    counts = np.concatenate([read_batch(batch) for batch in read_all(scene)])
    assert (counts[:, 0] - counts[:, 1] == 5).all()
    assert len(counts) == 15


@pytest.mark.parametrize(
    ("code", "rate", "kind"), [("00:01:00;02", NTSC, "is drop-frame"), ("00:01:00:02", 25, "is of a whole rate")]
)
def test_time_codes_that_drift_apart_are_not_compared(code: str, rate: Fraction | int, kind: str, tmp_path):
    """They drift apart by 3.6 s per hour."""
    write_counter_clip(tmp_path / "a.mov", 9, rate=rate, metadata={"timecode": code})
    write_counter_clip(tmp_path / "b.mov", 9, rate=NTSC, metadata={"timecode": "00:01:00:02"})
    with pytest.raises(InputError, match=rf"the time code of a\.mov {kind}, that of b\.mov is not"):
        open_scene(tmp_path)
    assert open_scene(tmp_path, sync="none").num_times >= 7


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_silence(value: float, tmp_path):
    sound = np.random.default_rng(0).normal(0, 0.2, 48000).astype(np.float32)
    damaged = sound[4800:].copy()
    damaged[2000:2010] = value
    for name, track in (("a", sound), ("b", damaged)):
        write_counter_clip(tmp_path / f"{name}.mkv", 30, sound=track, sound_codec="pcm_f32le")
    assert open_scene(tmp_path, sync="audio").views[1].clock.offset_s == pytest.approx(0.1, abs=1e-3)
