"""Time stamps in names of images and in tables pair the frames, reveal lost ones, and keep their absolute start."""

import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from page4d.conventions import ClockOrigin
from page4d.errors import InputError, Page4DError, UsageError
from page4d.scene.open import open_scene
from page4d.scene.stamps import NS, find_stamp_tables, stamps_of_names
from tests.scene.clip_writers import counter_image, write_counter_clip, write_images

EPOCH_NS = 1_403_636_579_763_555_584
DATE_NS = int(datetime(2024, 5, 1, 12, 30, 15, tzinfo=UTC).timestamp()) * NS
CLOCK_NS = (12 * 3600 + 30 * 60 + 15) * NS


def dates(pattern: str, step_ms: int = 40, count: int = 30, first_ms: int = 0) -> list[str]:
    """Return dates from 2024-05-01 12:30:15 on; `pattern` is that of strftime with `{ms}` and `{us}`."""
    names = []
    for index in range(count):
        ms = first_ms + index * step_ms
        moment = datetime.fromtimestamp(DATE_NS / NS + ms // 1000, tz=UTC)
        names.append(moment.strftime(pattern).format(ms=f"{ms % 1000:03}", us=f"{ms % 1000:03}000"))
    return names


@pytest.mark.parametrize(
    ("names", "origin", "first_ns", "step_ns"),
    [
        ([f"{EPOCH_NS + n * 50_000_000}" for n in range(5)], "1970", EPOCH_NS, 50_000_000),
        ([f"cam0_{EPOCH_NS // 1000 + n * 33_333}" for n in range(5)], "1970", EPOCH_NS // 1000 * 1000, 33_333_000),
        ([f"{EPOCH_NS // 10**6 + n * 40}" for n in range(5)], "1970", EPOCH_NS // 10**6 * 10**6, 40_000_000),
        ([f"{1700000000 + n * 5}" for n in range(5)], "1970", 1700000000 * NS, 5 * NS),
        ([f"1305031102.{775304 + n * 33000}" for n in range(5)], "1970", 1305031102775304000, 33_000_000),
        ([f"{1305031102 + n * 0.25}" for n in range(9)], "1970", 1305031102 * NS, 250_000_000),
        ([f"1305031102_{100000000 + n * 33000000}" for n in range(5)], "1970", 1305031102100000000, 33_000_000),
        (
            [f"a_Color_15535253669{12 + n * 33}.54248046875" for n in range(3)],
            "1970",
            1553525366912542480,
            33_000_000,
        ),
        (dates("%Y-%m-%d_%H-%M-%S.{ms}"), "1970", DATE_NS, 40_000_000),
        (dates("%Y-%m-%d_%H-%M-%S.{ms}", count=5), "1970", DATE_NS, 40_000_000),
        (dates("%Y-%m-%dT%H:%M:%S.{us}Z"), "1970", DATE_NS, 40_000_000),
        (dates("%Y%m%dT%H%M%S.{us}"), "1970", DATE_NS, 40_000_000),
        (dates("%Y-%m-%dT%H:%M:%S.{us}+0230"), "1970", DATE_NS - 9000 * NS, 40_000_000),
        (dates("%Y-%m-%dT%H:%M:%S.{ms}-01:00"), "1970", DATE_NS + 3600 * NS, 40_000_000),
        (dates("PXL_%Y%m%d_%H%M%S{ms}"), "1970", DATE_NS, 40_000_000),
        (dates("%Y%m%d%H%M%S{ms}_left"), "1970", DATE_NS, 40_000_000),
        (dates("%Y-%m-%d-%H-%M-%S-{ms}"), "1970", DATE_NS, 40_000_000),
        (dates("%Y-%m-%d %H.%M.%S", step_ms=1000), "1970", DATE_NS, NS),
        (dates("IMG_%Y%m%d_%H%M%S", step_ms=7000), "1970", DATE_NS, 7 * NS),
        (dates("%H-%M-%S.{ms}", first_ms=600), "midnight", CLOCK_NS + 600_000_000, 40_000_000),
        (dates("%H-%M-%S.{ms}", count=5), "midnight", CLOCK_NS, 40_000_000),
        (dates("%H_%M_%S_{ms}"), "midnight", CLOCK_NS, 40_000_000),
        (dates("cam1_%H%M%S_{us}"), "midnight", CLOCK_NS, 40_000_000),
        ([f"f{n / 8:.6f}" for n in range(1, 12)], "unknown", NS // 8, NS // 8),
    ],
)
def test_times_of_every_notation_are_read_exactly(names: list[str], origin: str, first_ns: int, step_ns: int):
    (found,) = stamps_of_names([names])
    assert found[0] == origin
    assert found[1].tolist() == [first_ns + step_ns * index for index in range(len(names))]


@pytest.mark.parametrize(
    "names",
    [
        [f"{n:06}" for n in range(0, 1000, 100)],
        [f"{n:010}" for n in range(9)],
        [f"{1700000000 + n}" for n in range(9)],
        [f"{1700000000123 + n}" for n in range(9)],
        [f"{1700000000123456 + int(n)}" for n in np.cumsum(np.random.default_rng(0).exponential(9e5, 40))],
        [f"{1700000000123456 + n * 33_333_333}" for n in range(9)],
        [f"{20240501 + n}" for n in range(9)],
        [f"12-30-{n:02}" for n in range(9)],
        [f"2024-05-{n:02}" for n in range(1, 9)],
        [f"20240501_{n:06}" for n in range(100, 159)],
        [f"20240501_{n:06}" for n in range(0, 3000, 100)],
        [f"20240501_000000_{n:06}" for n in range(100, 2000, 100)],
        [f"IMG_20240501_1230{n}" for n in (15, 28, 47)],
        [f"shot2.{n:04}" for n in range(1001, 1020)],
        [f"shot2.{n:04}" for n in range(0, 1000, 100)],
        [f"01-02-03-{n:03}" for n in range(0, 500, 10)],
        [f"01.02.03.{n:02}" for n in range(50)],
        [f"192.168.1.{n}" for n in range(1, 20)],
        [f"{n}.{n * 33:05}" for n in range(20)],
        [f"{n:06}_{n * 33333:06}" for n in range(20)],
        ["1403636579763555584"],
        [f"image_{n}" for n in range(8)],
    ],
)
def test_numbers_and_dates_are_no_times(names: list[str]):
    assert stamps_of_names([names]) == [None]


def write_stamped(folder: Path, names: dict[str, list[str]], lost: dict[str, list[int]]) -> Path:
    """Write images that encode their index, without the lost ones."""
    for view, of_view in names.items():
        kept = [index for index in range(len(of_view)) if index not in lost.get(view, [])]
        write_images(folder / view, {f"{of_view[index]}.png": counter_image(index) for index in kept})
    return folder


def indices(folder: Path, view: str, names: list[str]) -> list[int]:
    """Return the index in `names` of the image of a view at each instant."""
    (found,) = (one for one in open_scene(folder).views if one.name == view)
    return [names.index(found.source.files[index].stem) for index in found.indices]


@pytest.mark.parametrize(
    ("names", "start_ns"),
    [
        ([f"{EPOCH_NS + n * 50_000_000 - 128 * (n % 2)}" for n in range(10)], EPOCH_NS),
        ([f"{(EPOCH_NS + n * 50_000_000) / 1e9:.6f}" for n in range(10)], 1_403_636_579_763_556_000),
        (dates("%Y-%m-%d_%H-%M-%S.{ms}", first_ms=600, count=22), DATE_NS + 600_000_000),
        (dates("%H-%M-%S.{ms}", first_ms=600, count=22), CLOCK_NS + 600_000_000),
    ],
)
def test_images_are_paired_by_the_times_in_their_names(names: list[str], start_ns: int, tmp_path: Path):
    write_stamped(tmp_path, {"a": names, "b": names}, {"b": [2, 5]})
    scene = open_scene(tmp_path)
    assert (scene.synchronisation, scene.start_ns) == ("time stamps in the file names", start_ns)
    kept = [index for index in range(len(names)) if index not in (2, 5)]
    assert indices(tmp_path, "a", names) == indices(tmp_path, "b", names) == kept
    texts = [notice.text for notice in scene.notices]
    assert any(text.startswith("2 instants left out: b has no frame") for text in texts)
    assert not any("fps" in text or "number" in text for text in texts)


def test_times_are_ordered_as_times_and_wrap_at_midnight(tmp_path: Path):
    clock = ["23-59-59.900", "23-59-59.940", "23-59-59.980", "00-00-00.020", "00-00-00.060"]
    write_stamped(tmp_path / "clock", {"a": clock, "b": clock}, {"a": [0, 1, 2]})
    assert indices(tmp_path / "clock", "a", clock) == indices(tmp_path / "clock", "b", clock) == [3, 4]
    python = [repr(1700000000.5 + n / 8) for n in range(9)]  # 0.5, 0.625, 0.75: not in the order of their digits
    write_stamped(tmp_path / "python", {"a": python, "b": python}, {"b": [4]})
    assert indices(tmp_path / "python", "b", python) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_times_of_some_views_are_used_and_reported(tmp_path: Path):
    names = [f"{EPOCH_NS + n * 50_000_000}" for n in range(12)]
    write_stamped(tmp_path, {"a": names[:9], "b": names[3:], "c": [f"f{n}" for n in range(9)]}, {})
    scene = open_scene(tmp_path, image_fps=20)
    assert [view.clock.offset_s for view in scene.views] == [0.0, 0.15, 0.0]
    text = "a, b start 0.150 s apart by time stamps in the file names; c without it: assumed to start with a"
    assert any(notice.text.startswith(text) for notice in scene.notices)


def test_another_image_rate_than_that_of_the_names_is_reported(tmp_path: Path):
    names = [f"{EPOCH_NS + n * 50_000_000}" for n in range(9)]
    write_stamped(tmp_path, {"a": names}, {})
    texts = [notice.text for notice in open_scene(tmp_path, image_fps=12).notices]
    assert "a/: the time stamps give 20 fps, not image_fps=12" in texts
    assert [notice.text for notice in open_scene(tmp_path, image_fps=20.1).notices] == []


@pytest.mark.parametrize(
    ("late_ns", "is_paired"), [(0, True), (7_000_000, True), (-20_000_000, True), (10**9, False)]
)
def test_depth_with_times_of_its_own_is_paired_by_time(late_ns: int, is_paired: bool, tmp_path: Path):
    """In RGB-D TUM, depth maps are 20 ms apart from the pictures."""
    write_stamped(tmp_path / "scene", {"a": [f"{EPOCH_NS + n * 50_000_000}" for n in range(6)]}, {})
    depth = [f"{EPOCH_NS + late_ns + n * 50_000_000}.png" for n in range(-1, 7)]
    levels = np.full((48, 64), 1000, dtype=np.uint16)
    write_images(tmp_path / "depth" / "a", dict.fromkeys(depth, levels))
    if not is_paired:
        with pytest.raises(InputError, match="has no frame for"):
            open_scene(tmp_path / "scene", depth=tmp_path / "depth")
        return
    (view,) = open_scene(tmp_path / "scene", depth=tmp_path / "depth").views
    assert view.depth.indices == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    "names",
    [
        *(
            [pattern.format(n) for n in range(8)]
            for pattern in ("{:06}_color", "{:04}_cam1", "take2_{:03}_left", "{}")
        ),
        [f"{n * 1000 // 30:06}" for n in range(8)],
        [f"{EPOCH_NS + n}" for n in range(8)],
        [f"{123456789012345 + n * 33333333 + n * n * 777}" for n in range(8)],
        [f"{10**24 + n * 33333333 + n * n * 777}" for n in range(8)],
    ],
)
def test_numbers_before_a_word_and_ticks_of_a_clock_count_frames(names: list[str], tmp_path: Path):
    write_stamped(tmp_path, {"a": names, "b": names}, {"b": [2]})
    assert open_scene(tmp_path, image_fps=30).synchronisation == "frame numbers in the file names"
    assert indices(tmp_path, "a", names) == indices(tmp_path, "b", names) == [0, 1, 3, 4, 5, 6, 7]


def test_every_camera_may_have_frame_numbers_of_its_own(tmp_path: Path):
    names = {"a": [f"G00{10001 + n}" for n in range(8)], "b": [f"G00{20001 + n}" for n in range(8)]}
    write_stamped(tmp_path, names, {"b": [2]})
    assert [indices(tmp_path, view, names[view]) for view in names] == [[0, 1, 3, 4, 5, 6, 7]] * 2


PERIOD = 1 / 30
KEPT = {"cam_0": list(range(12)), "cam_1": [n for n in range(2, 14) if n not in (5, 6)]}
"""Instants at which cameras with a common trigger have a frame: cam_1 starts later and loses two."""


def npy_of(values: Sequence[float] | Sequence[Sequence[float]]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values))
    return file.getvalue()


def each(name: str, write: Callable[[Sequence[int]], bytes]) -> dict[str, bytes]:
    return {name.format(view): write(kept) for view, kept in KEPT.items()}


def rows(name: str, header: str, row: Callable[[int], str]) -> dict[str, bytes]:
    """Return a table of text per view, with a row per frame below the header if there is one."""
    return each(
        name, lambda kept: "".join(line + "\n" for line in (*filter(None, [header]), *map(row, kept))).encode()
    )


def caliscope(column: str) -> dict[str, bytes]:
    found = [(n, view[-1], 54321 + n * PERIOD) for view, kept in KEPT.items() for n in kept]
    text = f"sync_index,{column},frame_time\n" + "".join(
        f"{n},{view},{time:.8f}\n" for n, view, time in sorted(found)
    )
    return {"timestamps.csv": text.encode()}


def by_columns(n: int) -> str:
    return ",".join([str(n), *(f"{n / 30:.5f}" if n in kept else "" for kept in KEPT.values())])


SKELLYCAM = "frame_number,timestamp.from_recording_start.ms,timestamp.utc.seconds,from_previous.frame_duration.ms"
OF_SKELLYCAM = "timestamps/camera_timestamps/rec.{}.timestamps.csv"
CSV = "{}_timestamps.csv"

TABLES: dict[str, tuple[dict[str, bytes], float]] = {
    "seconds": (rows(CSV, "frame,timestamp_s", lambda n: f"{n},{100 + n / 30:.6f}"), 100),
    "no unit": (rows(CSV, "frame,timestamp", lambda n: f"{n},{5e6 + n * 1e3 / 30:.3f}"), 5000),
    "clock of two weeks": (rows(CSV, "timestamp", lambda n: f"{12 * 10**14 + n * 33333333}"), 1.2e6),
    "epoch": (
        rows("{}-time_stamps.csv", "timestamp,width", lambda n: f"{1753507730865 + n * 33},640"),
        1753507730.865,
    ),
    "euroc": (rows(CSV, "#timestamp [ns],filename", lambda n: f"{EPOCH_NS + n * 33333333},{n}.png"), EPOCH_NS / 1e9),
    "no header": (rows("{}.timestamps.txt", "", lambda n: f"{7 + n / 30:.6f}"), 7),
    "semicolons": (rows(CSV, "Bild;Zeit (timestamp, ms)", lambda n: f"{n};{n * 100 / 3:.3f}".replace(".", ",")), 0),
    "kitti": (rows("{}_timestamps.txt", "", lambda n: f"2024-05-01 12:30:15.{n * 33333333:09}"), DATE_NS / 1e9),
    "skellycam": (
        rows(OF_SKELLYCAM, SKELLYCAM, lambda n: f"{n},{n * 33.3},{1786082436.639207 + n / 30:.6f},33.3"),
        1786082436.639207,
    ),
    "earlier skellycam": (
        rows(f"timestamps/{CSV}", "frame_number, timestamp_from_zero_ns", lambda n: f"{n}, {n * 33333333}"),
        0,
    ),
    "time of day": (
        rows(CSV, "frame;timestamp", lambda n: f"{n};12:30:{15 + n // 30:02}.{n * 33333 % 10**6:06}"),
        CLOCK_NS / 1e9,
    ),
    "mkvextract": (rows("{}_timestamps.txt", "# timestamp format v2", lambda n: f"{500 + n * 100 / 3:.6f}"), 0.5),
    "json": ({"timestamps.json": json.dumps({v: [100 + n / 30 for n in k] for v, k in KEPT.items()}).encode()}, 100),
    "campy": (each("{}_frametimes.npy", lambda k: npy_of([range(len(k)), [900 + n / 30 for n in k]])), 900),
    "npy": (each("{}_timestamps.npy", lambda k: npy_of([13387370298875 + n * 33333333 for n in k])), 13387.370298875),
    "a column per view": (
        {"timestamps.csv": "\n".join(("n,cam_0,cam_1", *map(by_columns, range(14)), "")).encode()},
        0,
    ),
    "caliscope": (caliscope("cam_id"), 54321),
    "earlier caliscope": ({"frame_time_history.csv": caliscope("port")["timestamps.csv"]}, 54321),
}


@pytest.mark.parametrize("kind", TABLES)
def test_frames_are_paired_by_tables_of_time_stamps(kind: str, tmp_path: Path):
    files, start_s = TABLES[kind]
    for view, kept in KEPT.items():
        write_counter_clip(tmp_path / f"{view}.mp4", len(kept))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    scene = open_scene(tmp_path)
    common = [n for n in KEPT["cam_0"] if n in KEPT["cam_1"]]
    assert [[KEPT[view.name][index] for index in view.indices] for view in scene.views] == [common] * 2
    assert scene.synchronisation.startswith("time stamps in ")
    assert scene.start_ns == pytest.approx(start_s * 1e9, abs=200)
    assert scene.clock_origin is ClockOrigin.STAMPS
    np.testing.assert_allclose(scene.times, np.array(common) * PERIOD, atol=4e-3)
    first, second = (view.clock.rate for view in scene.views)
    assert second == pytest.approx(first, rel=0.02), "lost frames are no drift of a clock"
    texts = [notice.text for notice in scene.notices]
    assert any(text.startswith("2 instants left out: cam_1 has no frame") for text in texts)
    assert not any(text.startswith("ignored") for text in texts)
    assert open_scene(tmp_path, sync="none").synchronisation == "same start"


def test_tables_that_do_not_fit_are_refused_or_reported(tmp_path: Path):
    for view in ("a", "b"):
        write_counter_clip(tmp_path / f"{view}.mp4", 6)
    table = tmp_path / "a_timestamps.csv"
    table.write_text("timestamp_s\n" + "".join(f"{n / 30}\n" for n in range(7)))
    with pytest.raises(InputError, match=r"a_timestamps\.csv has 7 time stamps for 6 frames of a\.mp4"):
        open_scene(tmp_path)
    table.write_text("timestamp_s\n0\n1\n2\n2\n3\n4\n")
    with pytest.raises(InputError, match=r"a_timestamps\.csv: time 4 of 6 is not after the one before"):
        open_scene(tmp_path)
    with pytest.raises(UsageError, match=r"a_timestamps\.csv is a table of time stamps, not a sync file"):
        open_scene(tmp_path, sync=str(table))
    table.write_text("comment\nby hand\n")
    np.save(tmp_path / "b_timestamps.npy", {"color": [1, 2, 3]}, allow_pickle=True)
    texts = [notice.text for notice in open_scene(tmp_path).notices]
    assert {f"{name}: no times of the views; it is not used" for name in (table.name, "b_timestamps.npy")} <= {*texts}
    (tmp_path / "b_timestamps.npy").unlink()
    table.write_text("timestamp_s\n" + "".join(f"{n / 30}\n" for n in (0, 1, 2, 4, 5, 6)))
    scene = open_scene(tmp_path)
    assert scene.synchronisation == "time stamps in a_timestamps.csv (1 of 2 views)"
    assert [view.indices for view in scene.views] == [(0, 1, 2, 3, 4), (0, 1, 2, 4, 5)]
    assert any(notice.text.startswith("a by time stamps in a_timestamps.csv") for notice in scene.notices)


@pytest.mark.parametrize(
    ("name", "text", "is_used"),
    [
        ("a.csv", "frame,device_timestamp_ns\n" + "".join(f"{n},{10**15 + n * 33333333}\n" for n in range(6)), True),
        ("a.csv", "timestamp_s,joint,x\n" + "".join(f"{n // 2 / 30},{n % 2},1\n" for n in range(12)), False),
        ("a.csv", "frame,x\n" + "".join(f"{n},1\n" for n in range(6)), False),
        ("timestamps.csv", "timestamp_s\n" + "".join(f"{n / 30}\n" for n in range(6)), True),
        ("times.txt", "".join(f"{n / 10:e}\n" for n in range(6)), True),
        ("timestamps.csv", "timestamp_s\n" + "".join(f"{n / 30}\n" for n in range(7)), False),
        ("imu_timestamps.csv", "timestamp_s,ax\n" + "".join(f"{n / 200},1\n" for n in range(60)), False),
        ("a_rgb_timestamps.csv", "timestamp_s\n" + "".join(f"{n / 30}\n" for n in range(6)), True),
        ("a_imu_timestamps.csv", "timestamp_s,ax\n" + "".join(f"{n / 200},1\n" for n in range(60)), False),
        ("a_imu_timestamps.csv", "timestamp_s\n1\n1\n", False),
        ("gps.csv", "timestamp,lat\n1,2\n", False),
        ("a_timesync.csv", "frame,global_time_s\n" + "".join(f"{n},{17e8 + n / 30}\n" for n in range(6)), True),
        ("a.frames.txt", "".join(f"{n / 30:.3f}\n" for n in range(6)), True),
        ("a_ts.txt", "".join(f"{n}\n" for n in range(9)), False),
        ("a_frames.csv", "frame,x\n" + "".join(f"{n},1\n" for n in range(6)), False),
    ],
)
def test_tables_that_may_be_those_of_other_sensors_are_used_only_if_they_fit(
    name: str, text: str, is_used: bool, tmp_path: Path
):
    for view in ("a", "b"):
        write_counter_clip(tmp_path / f"{view}.mp4", 6)
    (tmp_path / name).write_text(text)
    scene = open_scene(tmp_path)
    assert scene.synchronisation.startswith(f"time stamps in {name}") is is_used
    assert scene.num_times == 6
    assert any(notice.text.startswith(f"ignored {name}") for notice in scene.notices) <= (not is_used)


def test_a_table_in_the_folder_of_a_camera_is_that_of_its_view(tmp_path: Path):
    for view, kept in (("a", [0, 1, 2, 3, 4, 5]), ("b", [0, 1, 3, 4, 5])):
        (tmp_path / view).mkdir()
        (tmp_path / view / "infra1_timestamps.csv").write_text("time_ms\n" + "".join(f"{n * 33}\n" for n in kept))
        write_counter_clip(tmp_path / view / "color.mp4", len(kept))
        (tmp_path / view / "timestamps.csv").write_text("time_ms\n" + "".join(f"{n * 33.3}\n" for n in kept))
    scene = open_scene(tmp_path)
    assert [view.indices for view in scene.views] == [(0, 1, 3, 4, 5), (0, 1, 2, 3, 4)]


def test_a_sync_file_may_have_the_times_of_all_frames(tmp_path: Path):
    for view in ("a", "b"):
        write_counter_clip(tmp_path / f"{view}.mp4", 6)
    clocks: dict[str, dict[str, object]] = {
        "a": {"times_s": [n / 30 for n in (0, 1, 2, 4, 5, 6)]},
        "b": {"offset_s": 1 / 30},
    }
    (tmp_path / "sync.json").write_text(json.dumps({"views": clocks}))
    scene = open_scene(tmp_path)
    assert [view.indices for view in scene.views] == [(1, 2, 3, 4, 5), (0, 1, 3, 4, 5)]
    assert (scene.start_ns, scene.clock_origin) == (None, ClockOrigin.FILE)
    clocks["b"] = {"times_s": [1.7e9 + n / 30 for n in range(6)]}
    clocks["a"] = {"times_s": [1.7e9 + n / 30 for n in range(1, 7)]}
    (tmp_path / "sync.json").write_text(json.dumps(clocks))
    scene = open_scene(tmp_path)
    assert [view.indices for view in scene.views] == [(0, 1, 2, 3, 4), (1, 2, 3, 4, 5)]
    assert (scene.start_ns, scene.clock_origin) == (1_700_000_000 * NS, ClockOrigin.STAMPS)


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ({"times_s": [0.0, 0.1]}, InputError, "sync.json: a has 2 time stamps for 6 frames of a.mp4"),
        ({"times_s": [0.0, 0.2, 0.1]}, UsageError, "times_s do not increase"),
        ({"times_s": []}, UsageError, "view 'a': times_s: "),
        ({"times_s": [0.0], "rate": 1.0}, UsageError, "give times_s, or offset_s and rate"),
        ({"times_s": [1.7e9 + n for n in range(6)]}, UsageError, "sync.json: times_s of a are dates, b has none"),
    ],
)
def test_invalid_times_of_frames_are_refused(entry: dict[str, object], error: type, message: str, tmp_path: Path):
    for view in ("a", "b"):
        write_counter_clip(tmp_path / f"{view}.mp4", 6)
    (tmp_path / "sync.json").write_text(json.dumps({"a": entry}))
    with pytest.raises(error) as caught:
        open_scene(tmp_path)
    assert message in caught.value.message


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=60) | st.text('timestamp_s [],;\t"#0123456789.:-eNinf\n', max_size=80).map(str.encode))
@example(b"PK\x05\x06")  # the end of an archive
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    folder = tmp_path_factory.mktemp("tables")
    for name in ("timestamps.csv", "a_timestamps.npy", "b_timestamps.json"):
        (folder / name).write_bytes(content)
        with suppress(Page4DError):
            tables, *_ = find_stamp_tables(folder, {"a": folder / "a.mp4", "b": folder / "b.mp4"})
            assert all((np.diff(table.in_ns(0.04)) >= 0).all() for table in tables.values())
        (folder / name).unlink()


def test_a_time_beyond_every_calendar_is_refused(tmp_path: Path):
    (tmp_path / "timestamps.csv").write_text("timestamp_s\n1\n1e25\n")
    tables, are_certain, _ = find_stamp_tables(tmp_path, {"a": tmp_path / "a.mp4"})
    assert not are_certain
    with pytest.raises(InputError, match=r"timestamps\.csv: 1e\+25 is no time of a frame"):
        tables["a"].in_ns(0.04)


@given(
    st.lists(
        st.lists(st.from_regex(r"[a-f_.-]?[0-9]{0,20}[-_.:T]?[0-9]{0,9}", fullmatch=True), max_size=5), max_size=3
    )
)
def test_any_names_have_times_or_none(views: list[list[str]]):
    assert len(stamps_of_names(views)) == len(views)
