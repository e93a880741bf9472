"""Measured depth is read exactly from files of other programs; values that are no reading are left out."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import OpenEXR
import pytest
from numpy.typing import NDArray

from page4d.conventions import Scale
from page4d.errors import InputError, Level, UsageError
from page4d.scene.batches import open_batches
from page4d.scene.image_file import read_header, read_pixels
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from page4d.scene.sidecar_values import check_depth
from tests.scene.clip_writers import Pixels, write_counter_clip, write_video

DEPTH = np.linspace(0.5, 9.5, 48 * 64, dtype=np.float32).reshape(48, 64)
HALF = DEPTH.astype(np.float16)
ROOM = Path(__file__).parents[2] / "samples" / "room"
NOISE = np.random.default_rng(0).random((48, 64), np.float32)


def exr(channels: dict[str, NDArray[Any]], compression: str = "ZIP", **header: object) -> Callable[[Path], None]:
    """Return a writer of channels by the reference library."""
    given = {"compression": getattr(OpenEXR, f"{compression}_COMPRESSION"), "type": OpenEXR.scanlineimage, **header}
    return lambda path: OpenEXR.File(given, channels).write(str(path))


def npy(values: NDArray[Any]) -> Callable[[Path], None]:
    return lambda path: np.save(path, values)


READ: dict[str, tuple[str, Callable[[Path], None], NDArray[Any]]] = {
    "float32": ("npy", npy(DEPTH), DEPTH),
    "float64 by columns": ("npy", npy(np.asfortranarray(DEPTH.astype(">f8"))), DEPTH),
    "float16 in 4 axes": ("npy", npy(HALF[None, ..., None]), HALF),
    "levels": ("npy", npy((DEPTH * 1000).astype(np.uint16)), (DEPTH * 1000).astype(np.uint16)),
    "TIFF": ("tif", lambda path: cv2.imwrite(str(path), DEPTH), DEPTH),
    "Z": ("exr", exr({"Z": DEPTH}), DEPTH),
    "Z and others": ("exr", exr({"Z": DEPTH, "confidence.V": HALF, "A": HALF}), DEPTH),
    "layer": ("exr", exr({"View.Depth.V": DEPTH, "View.Normal.Z": HALF}), DEPTH),
    "picture": ("exr", exr({"RGB": np.dstack([DEPTH] * 3)}), DEPTH),
    "first of three": ("exr", exr({"R": np.zeros_like(DEPTH), "B": DEPTH}), DEPTH),
    "half": ("exr", exr({"Y": HALF}, "ZIPS"), HALF),
    "no compression": ("exr", exr({"Z": DEPTH}, "NO"), DEPTH),
    "incompressible": ("exr", exr({"Z": NOISE}), NOISE),
}


@pytest.mark.parametrize("kind", READ)
def test_maps_of_other_programs_are_exact(kind: str, tmp_path: Path):
    suffix, write, expected = READ[kind]
    path = tmp_path / f"0.{suffix}"
    write(path)
    found = read_pixels(path, read_header(path).size, grayscale=True)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == (np.uint16 if kind == "levels" else np.float32)


def test_pixels_outside_the_data_window_of_an_exr_are_unknown(tmp_path: Path):
    windows = {
        "dataWindow": (np.array([4, -2], np.int32), np.array([67, 45], np.int32)),
        "displayWindow": (np.array([0, 0], np.int32), np.array([63, 47], np.int32)),
    }
    exr({"Z": DEPTH}, **windows)(tmp_path / "0.exr")
    expected = np.zeros((48, 64), np.float32)
    expected[:46, 4:] = DEPTH[2:, :60]
    np.testing.assert_array_equal(read_pixels(tmp_path / "0.exr", (48, 64), grayscale=True), expected)


def tiled(path: Path) -> None:
    OpenEXR.File({"type": OpenEXR.tiledimage, "tiles": OpenEXR.TileDescription()}, {"Z": DEPTH}).write(str(path))


def cut(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def write_cut(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[:-9])

    return write_cut


REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "PIZ": ("exr", exr({"Z": DEPTH}, "PIZ"), "has PIZ compression, which is not read"),
    "tiles": ("exr", tiled, "has tiles, deep samples or several parts, which is not read"),
    "no EXR": ("exr", lambda path: path.write_bytes(b"\x76\x2f\x31\x01" + bytes(60)), "is not a readable image"),
    "stack": ("npy", npy(np.ones((3, 48, 64))), r"is an array of shape \(3, 48, 64\), not one map"),
    "objects": ("npy", npy(np.array([[None] * 2] * 2)), "is not a readable image"),
    "whole numbers": ("npy", npy(np.ones((48, 64), np.int32)), "has 32-bit signed grayscale pixels, which are not"),
    "colours": ("exr", exr({"R": DEPTH, "G": DEPTH * 2}), "the channels G, R of a/0.exr differ"),
    "cut npy": ("npy", cut(npy(DEPTH)), "is damaged"),
    "cut exr": ("exr", cut(exr({"Z": DEPTH})), "is damaged"),
    "other kinds": (
        "npz",
        lambda path: path.write_bytes(b"x"),
        r"no depth maps in '.*' for a: a/ holds 1 \.npz file",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_files_that_are_no_maps_are_refused_with_the_reason(kind: str, tmp_path: Path):
    suffix, write, message = REFUSED[kind]
    for folder in (tmp_path / "rig", tmp_path / "d" / "a"):
        folder.mkdir(parents=True)
    write_counter_clip(tmp_path / "rig" / "a.mp4", 1)
    write(tmp_path / "d" / "a" / f"0.{suffix}")
    with pytest.raises((InputError, UsageError), match=message) as failed:
        depth_of(open_scene(tmp_path / "rig", depth=tmp_path / "d"))
    assert failed.value.hint


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    """Two videos of 2 frames."""
    (tmp_path / "rig").mkdir()
    for name in "ab":
        write_counter_clip(tmp_path / "rig" / f"{name}.mp4", 2)
    return tmp_path / "rig"


def with_depth(rig: Path, maps: dict[str, Pixels], suffix: str = "npy", **options: Any) -> Scene:
    folder = rig.parent / "depth"
    for view, depth in maps.items():
        (folder / view).mkdir(parents=True)
        for number in range(2):
            if suffix == "npy":
                np.save(folder / view / f"{number}.npy", depth)
            else:
                cv2.imwrite(str(folder / view / f"{number}.{suffix}"), depth)
    return open_scene(rig, depth=folder, **options)


def depth_of(scene: Scene) -> NDArray[np.float32]:
    with open_batches(scene, long_side=64, multiple=1) as reader:
        depth = reader.read(0, 1).depth
    return depth[0, 0].numpy()


@pytest.mark.parametrize(("levels", "unit"), [(None, 1.0), (1000.0, 1000.0)])
def test_float_depth_is_in_units_of_the_scene_unless_levels_are_given(levels: float | None, unit: float, rig: Path):
    scene = with_depth(rig, {"a": DEPTH, "b": DEPTH}, depth_levels=levels)
    np.testing.assert_array_equal(depth_of(scene)[1], (DEPTH / np.float32(unit)))
    text = f"float depth maps: a value of {unit:g} is 1 unit of the calibration; depth_levels states another scale"
    assert [notice.level for notice in scene.notices if notice.text == text] == [Level.INFO]


@pytest.mark.parametrize(("depth", "is_reported"), [(800, True), (150, False), (2, False)])
def test_float_depth_in_millimetres_is_reported(depth: float, is_reported: bool, rig: Path):
    scene = with_depth(rig, {"a": DEPTH * 0 + depth, "b": DEPTH * 0 + depth})
    found = [notice.text for notice in check_depth(replace(scene, scale=Scale.METRIC))]
    assert ("the median depth of a is 800 m: check depth_levels" in found) is is_reported
    assert "float depth maps: a value of 1 is 1 metre; depth_levels states another scale" in found


@pytest.mark.parametrize(("levels", "factor"), [(1000, None), (100, "0.1"), (4000, "4"), (1e6, "1000")])
def test_depth_of_another_unit_than_the_cameras_is_reported(levels: float, factor: str | None):
    truth = ROOM / "truth"
    scene = open_scene(ROOM, calibration=truth / "cameras.json", depth=truth / "depth", depth_levels=levels)
    found = [notice.text for notice in scene.notices if "views agree at" in notice.text]
    assert [re.search(r"agree at (\S+) times.*pass depth_levels=1000,", text)[1] for text in found] == [factor][
        : factor is not None
    ]


@pytest.mark.parametrize(("far", "is_reported"), [(1000.0, True), (20.0, True), (15.0, False)])
def test_a_distance_that_stands_for_none_is_reported(far: float, is_reported: bool, rig: Path):
    depth = np.where(np.arange(64) < 8, np.float32(far), DEPTH)
    texts = [notice.text for notice in with_depth(rig, {"a": depth, "b": depth}).notices]
    found = (
        f"12% of the readings are {far:g}, the others at most 9.5; write 0 if {far:g} is no reading, such as the sky"
    )
    assert (f"depth maps of a: {found}" in texts) is is_reported


def test_sixteen_bit_depth_has_1000_levels_per_unit_unless_others_are_given(rig: Path):
    levels = np.full((48, 64), 1500, np.uint16)
    assert depth_of(with_depth(rig, {"a": levels, "b": levels}, "png")).max() == 1.5


NO_READING = {
    "16 bits": (np.uint16, (0, 65535), 50.0),
    "float": (np.float32, (np.nan, np.inf, -np.inf, -1.0, 0.0), 0.0),
    "rendered": (np.float32, (1e10, 65504.0), 100.0),
}


@pytest.mark.parametrize("kind", NO_READING)
def test_values_that_are_no_reading_are_left_out_and_saturated_ones_reported(kind: str, rig: Path):
    dtype, values, saturated = NO_READING[kind]
    depth = np.full((48, 64), 2, dtype)
    depth[:, 32:] = np.resize(np.array(values, dtype), (48, 32))
    scene = with_depth(rig, {"a": depth, "b": depth}, "png" if dtype is np.uint16 else "npy", depth_levels=1)
    expected = np.zeros((48, 64))
    expected[:, :32] = 2
    np.testing.assert_array_equal(depth_of(scene)[0], expected)
    text = f"depth maps of a, b: {saturated / 2:.2g} % of the pixels are saturated"
    assert [notice.text.split(":")[1] for notice in scene.notices if "saturated" in notice.text] == (
        [text.split(":")[1]] if saturated else []
    )


def test_the_last_level_of_a_lossless_video_is_no_reading(rig: Path):
    depth = np.full((48, 64), 1500, np.uint16)
    depth[:, :16] = 65535
    (rig.parent / "d").mkdir()
    for view in "ab":
        path = rig.parent / "d" / f"{view}.mkv"
        write_video(path, [depth] * 2, codec="ffv1", pixel_format="gray16le", given_as="gray16le")
    scene = open_scene(rig, depth=rig.parent / "d")
    assert np.unique(depth_of(scene)).tolist() == [0, 1.5]
    assert sum("depth maps of a, b: 25 % of the pixels are saturated" in notice.text for notice in scene.notices) == 1


def test_float_depth_and_levels_are_not_mixed(rig: Path):
    levels = np.full((48, 64), 1500, np.uint16)
    with pytest.raises(InputError, match="depth maps of a are float, those of other views 16-bit levels"):
        with_depth(rig, {"a": DEPTH, "b": levels})
    cv2.imwrite(str(rig.parent / "depth" / "a" / "2.png"), levels)
    with pytest.raises(InputError, match=r"depth maps of a: a/0\.npy is float, a/2\.png has 16-bit levels"):
        open_scene(rig, depth=rig.parent / "depth")
