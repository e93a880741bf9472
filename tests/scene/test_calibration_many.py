"""Calibrations of thousands of cameras: linear time, a bound, and messages of bounded length."""

from copy import copy
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch

from page4d.choices import CalibrationMatch
from page4d.conventions import Scale
from page4d.errors import InputError, Level, Notice, listed, one_per_fact, shortened
from page4d.formats.build import pinhole
from page4d.formats.calibrations import read_calibration
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.scene.calibration import match_cameras
from tests.fuzzing import bounded
from tests.scene.calibration_writers import NAMES, WRITERS, make_rig


def test_lists_in_messages_are_bounded() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert listed(range(10_000), limit=2) == "0, 1, ... (10,000 in all)"
    assert listed("abc", limit=2, separator="; ") == "a; b; ... (3 in all)"
    assert len(listed(["x" * 10_000] * 100)) < 1100
    assert shortened("x" * 80) == "x" * 80
    assert len(shortened("x" * 81)) == 80
    assert shortened("abcdefghij", limit=9) == "abc...hij"


def test_a_fact_of_many_views_is_one_notice() -> None:
    views = [f"v{number}" for number in range(1, 101)]
    turned = [Notice(f"{view}: turned by {number} deg", Level.INFO) for number, view in enumerate(views)]
    equal = [Notice(f"{one} and {two} are the same") for one, two in pairwise(views[:6])]
    others = [Notice("1 instant"), *(Notice(f"{view}: interlaced") for view in views[:4])]
    found = one_per_fact([*turned, others[0], *equal, *others[1:]], views)
    assert [(notice.text, notice.level) for notice in found] == [
        ("v1: turned by 0 deg; likewise v2, v3, v4, ... (99 in all)", Level.INFO),
        ("1 instant", Level.WARNING),
        ("v1 and v2 are the same; likewise v2 and v3, v3 and v4, v4 and v5, ... (4 in all)", Level.WARNING),
        *((notice.text, Level.WARNING) for notice in others[1:]),
    ]
    assert one_per_fact(turned, []) == tuple(turned)
    pairs = [Notice(f"{one} and {two} are the same") for one, two in combinations(views[:46], 2)]
    with bounded(seconds=2.0):
        assert len(one_per_fact(pairs, views[:46])) == 1


def many(number: int) -> Calibration:
    camera = CalibratedCamera(
        name="", image_size=(480, 640), intrinsics=pinhole(600, 600, 320, 240), world_to_camera=torch.eye(4)
    )
    cameras = tuple(copy(camera) for _ in range(number))
    for index, each in enumerate(cameras):  # not by `replace`, which would check every lens
        object.__setattr__(each, "name", f"camera-{index}")
    return Calibration(path=Path("rig.json"), scale=Scale.METRIC, cameras=cameras)


def test_the_names_of_many_cameras_are_compared_in_linear_time() -> None:
    with bounded(seconds=2.0):
        calibration = many(10_000)
        assert len(calibration.names) == 10_000
        with pytest.raises(InputError, match="the name appears twice"):
            replace(calibration, cameras=calibration.cameras * 2)


def test_messages_about_many_cameras_are_short() -> None:
    calibration = many(1000)
    views = tuple(f"camera-{index}" for index in range(500))
    misspelt = tuple(f"Camera_{index}" for index in range(2, 1000))
    for names, are_named in ((views, False), (("other",), False), ((*views[:2], *misspelt), True)):
        with pytest.raises(InputError) as raised:
            match_cameras(calibration, names, names, CalibrationMatch.NAME, views_were_named=are_named)
        assert len(raised.value.message) < 600
        assert len(raised.value.hint) < 600


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "nerfstudio-applied"])
def test_more_cameras_than_the_limit_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page4d.formats.files.check_count.__defaults__", ("cameras", 2))
    WRITERS[name](tmp_path, make_rig())
    with pytest.raises(InputError, match="it has 3 cameras, the limit is 2"):
        read_calibration(tmp_path)


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in (*NAMES, "dat", "file-pairs")])
def test_long_and_strange_camera_names_are_shortened_or_refused(name: str, tmp_path: Path) -> None:
    rig = make_rig()
    WRITERS[name](tmp_path, [replace(camera, name="x" * 900 + camera.name) for camera in rig])
    with pytest.raises(InputError, match="the name has 905 characters") as raised:
        read_calibration(tmp_path)
    assert len(raised.value.message) < 400
