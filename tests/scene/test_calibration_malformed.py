"""Damaged and hostile calibrations raise an InputError with file, camera and hint."""

import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from page4d.errors import InputError
from page4d.formats.calibrations import read_calibration
from page4d.formats.table import SUPPORTED_FORMATS
from tests.scene.calibration_writers import WRITERS, edit_json, make_rig

GARBAGE = {
    "empty": b"",
    "text": b"this is not a calibration\n",
    "binary": bytes(range(256)) * 20,
    "zeros": b"\0" * 4096,
    "half a brace": b'{"frames": [',
    "a list": b"[1, 2, 3]",
    "deep": b"[" * 20_000,
    "deep objects": b'{"a":' * 20_000,
    "long number": b'{"frames": ' + b"9" * 5000 + b"}",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
}
NAMES = ("x.qca.txt", "x.toml", "transforms.json", "cameras.json", "intri.yml", "cameras.bin", "images.txt", "x.dat")


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("name", NAMES)
def test_garbage_is_refused_with_message_and_hint(name: str, content: bytes, tmp_path: Path):
    for each in {name, name.replace("intri", "extri")}:
        (tmp_path / each).write_bytes(content)
    for stem in ("cameras", "images"):
        if name in ("cameras.bin", "images.txt"):
            (tmp_path / stem).with_suffix(Path(name).suffix).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_calibration(tmp_path / name)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert "\n" not in caught.value.message
    begins = "cannot read calibration '" if content[:1] not in (b"[", b"{") else ""
    assert caught.value.message.startswith(begins)
    if begins and "no camera" not in caught.value.message:
        assert caught.value.hint == SUPPORTED_FORMATS
    if name == "x.dat" and b"\0" in content:
        assert "it is a binary file of a format that is not read" in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path):
    for path in (tmp_path / "nothing.toml", tmp_path / "a\0b.toml", tmp_path / ("x" * 5000)):
        with pytest.raises(InputError, match=r"^'.*' does not exist$") as refused:
            read_calibration(path)
        assert refused.value.hint == "check the path"  # it may be that of lenses, or of a board
    (tmp_path / "Nothing.json").touch()
    with pytest.raises(InputError) as refused:
        read_calibration(tmp_path / "nothing.jsn")
    assert refused.value.hint == "did you mean Nothing.json? check the path"


def test_huge_files_are_refused_before_reading(tmp_path: Path):
    for name, limit in (("x.toml", 2), ("x.qca.txt", 2), ("transforms.json", 256), ("intri.yml", 2)):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate((limit + 1) * 1024**2)
        (tmp_path / "extri.yml").touch()
        with pytest.raises(InputError, match=f"it has {limit + 1} MB, the limit is {limit} MB"):
            read_calibration(path)


def test_an_alias_bomb_is_refused_within_a_second(tmp_path: Path):
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    (tmp_path / "intri.yml").write_text(f"a0: &a0 [x]\n{levels}K_1: {{rows: 3, cols: 3, data: *a39}}\nnames: [1]\n")
    (tmp_path / "extri.yml").write_text(
        "R_1: {rows: 3, cols: 1, data: [0, 0, 0]}\nT_1: {rows: 3, cols: 1, data: [0, 0, 0]}"
    )
    start = time.monotonic()
    with pytest.raises(
        InputError, match=r"intri.yml and extri.yml: camera 1: K_1 contains a value that is not a number"
    ):
        read_calibration(tmp_path)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("count", [1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_binary_counts_beyond_the_end_of_the_file_are_refused(count: int, tmp_path: Path):
    WRITERS["colmap-binary"](tmp_path, make_rig())
    model = tmp_path / "sparse" / "0"
    for name, place in (("cameras.bin", 0), ("images.bin", 0), ("images.bin", 8 + 64 + len("cam01.png") + 1)):
        original = (model / name).read_bytes()
        if count > 3 or place:
            changed = original[:place] + struct.pack("<Q", count) + original[place + 8 :]
            (model / name).write_bytes(changed)
            with pytest.raises(InputError):
                read_calibration(tmp_path)
        (model / name).write_bytes(original)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin"])
def test_truncated_binary_files_are_refused(name: str, tmp_path: Path):
    WRITERS["colmap-binary"](tmp_path, make_rig())
    path = tmp_path / "sparse" / "0" / name
    original = path.read_bytes()
    for length in range(0, len(original), 7):
        path.write_bytes(original[:length])
        with pytest.raises(InputError, match=rf"^cannot read calibration '{name}': (it is incomplete|a name)"):
            read_calibration(tmp_path)


XML = "<?xml version='1.0'?>\n"
FILES: tuple[tuple[dict[str, str], str], ...] = (
    ({}, r"calibration '\w+': it contains no calibration file"),
    ({"intri.yml": "K_1: 1"}, r"extri.yml is missing \(intri.yml and extri.yml belong together\)"),
    ({"a.toml": "", "b.toml": "a = 1"}, r"it contains no calibration file: a.toml, b.toml are none"),
    (
        {"a.toml": "[c]\nmatrix = 1", "b.qca.txt": "<calibration/>", "c.yml": "a: 1"},
        r"cannot read calibration 'a.toml': no camera has all of matrix, rotation, translation$",
    ),
    ({"x.qca.txt": XML + '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;&b;&b;">]><a>&c;</a>'}, "it declares a DTD"),
    (
        {"images.txt": "", "cameras.txt": "1 THIN_PRISM_FISHEYE 64 48 50 50 32 24 0 0 0 0 0 0 0 0\n"},
        r"cameras.txt: the camera model THIN_PRISM_FISHEYE is not supported",
    ),
    (
        {"images.txt": "", "cameras.txt": "# comment\n1 PINHOLE 64 48 50 32 24\n"},
        r"cameras.txt': line 2: 3 parameters, PINHOLE has 4",
    ),
    (
        {"images.txt": "1 1 0 0 0 0 0 0 2 cam05/0.png\n\n", "cameras.txt": "1 PINHOLE 64 48 50 50 32 24\n"},
        r"camera cam05: image cam05/0.png uses camera number 2, which is missing",
    ),
    (
        {
            "images.txt": "1 1 0 0 0 0 0 0 1 a.png\n2 1 0 0 0 0 0 0 1 b.png\n",
            "cameras.txt": "1 PINHOLE 4 4 5 5 2 2\n",
        },
        r"'images.txt': line 2: expected points, or an empty line, after each image",
    ),
    ({"transforms.json": '{\n "frames": [\n  {,\n'}, r"'transforms.json': line 3: Expecting property name"),
    ({"x.toml": "[cam]\nsize = [1\n"}, r"'x.toml': line 3: Unclosed array"),
    ({"cameras.json": '{"views": {}}'}, "cameras.json.*(no camera|at least 1 item)"),
    ({"c.qca.txt": "<calibration/>"}, "c.qca.txt.*no camera"),
    ({"t.toml": "[metadata]\na = 1\n"}, "t.toml.*no camera"),
    ({"rig.csv": "name,fx\ncam01,2,3\n"}, "rig.csv': its rows have different numbers of columns"),
    ({"transforms.json": '{"frames": []}'}, "transforms.json.*(no camera|at least 1 item)"),
)


@pytest.mark.parametrize(("contents", "message"), FILES, ids=lambda value: value if isinstance(value, str) else "")
def test_files_that_are_no_calibration_are_refused(contents: dict[str, str], message: str, tmp_path: Path):
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_calibration(tmp_path)


BLOCK = r"(K_cam01: !!opencv-matrix\n)(?:   .*\n)+"
DAMAGE = {
    "qualisys": (
        ('serial="cam02"', 'serial="cam02" x="', "not well-formed XML"),
        ("<transform ", "<transfer ", "Calib.qca.txt: camera cam01: <transform> is missing"),
        ('skew="0.0"', 'skew="x"', "camera cam01: skew of <intrinsic> contains 'x', which is not a number"),
        ("focalLengthU", "focal", "camera cam01: focalLengthU of <intrinsic> is missing"),
        ('left="16"', 'left="1e99"', "camera cam01: the image size is "),
        ('radialDistortion1="-0.21"', 'radialDistortion1="nan"', "camera cam01: the distortion coefficients"),
        ('skew="0.0"', 'skew="1_6"', "camera cam01: skew of <intrinsic> contains '1_6', which is not a number"),
        ("<calibration>", "<calibrations>", "not well-formed XML"),
        ("encoding='ASCII'", "encoding='nonsense'", "its text encoding is unknown|not well-formed"),
    ),
    "yaml": (
        ("K_cam01", "Q_cam01", r"intri.yml and extri.yml: camera cam01: K_cam01 is missing"),
        ("T_cam01", "Q_cam01", r"camera cam01: it has a lens, but no pose \(R and T\)"),
        ("rows: 3", "rows: 300000000000", r"numbers for 3e\+11x"),
        ("rows: 3", "rows: 1.5", r"numbers for 1.5x"),
        (r"data: \[ ", "data: [ .Nan, ", r"camera cam01: \S+ has \d+ numbers for \dx\d"),
        (
            r"data: \[ 611.25, ",
            "data: [ 6_11.25, ",
            "camera cam01: K_cam01 contains '6_11.25', which is not a number",
        ),
        (r"data: \[ 611.25, ", "data: [ ٤, ", "camera cam01: K_cam01 contains '٤', which is not a number"),
        ("W_cam01", "Q_cam01", "camera cam01: the image has a height or a width alone"),
        ("H_cam01", "Q_cam01", "camera cam01: the image has a height or a width alone"),
        (r"data: \[ 611.25, ", "data: [ .Nan, ", "camera cam01: the intrinsics contain a non-finite number"),
        (r"data: \[", "data: {", r"intri.yml': line \d+: "),
        ("- cam02", "- cam01", r"camera cam01: the name appears twice"),
        ("- cam02", "- cam99", r"camera cam99: K_cam99 is missing"),
        (
            BLOCK,
            r"\1   rows: 2\n   cols: 2\n   dt: d\n   data: [1, 2, 3, 4]\n",
            r"camera cam01: camera_matrix has 4 numbers for 3x3",
        ),
    ),
    "toml": (
        (r"rotation = \[[^,]+", "rotation = [85.0", "camera cam01: the rotation vector has a length of 85"),
        ('name = "cam03"', 'name = "cam01"', r"^Calib.toml: camera cam01: the name appears twice"),
        (
            r"rotation = .*",
            "rotation = [[0.0], [], [0.1]]",
            r"Calib.toml: camera cam01: R has 2 numbers, expected 3 or 9",
        ),
        (r"translation = .*", "translation = [[], [], []]", r"Calib.toml: camera cam01: T has 0 numbers for 1x3"),
        (r"(?m)^size = .*", "size = [640.5, 480]", "Calib.toml: camera cam01: the image size is 640.5x480"),
        (
            r"matrix = .*",
            "matrix = [[900.0, 0.0, 0.0], [0.0, 900.0, 0.0], [320.0, 240.0, 1.0]]",
            "Calib.toml: camera cam01: camera_matrix is transposed, but R may not be",
        ),
        ("fisheye = .*", 'fisheye = "maybe"', "Calib.toml: camera cam01: fisheye is 'maybe', expected true or false"),
    ),
    "colmap-text": (
        (r"(?m)^7 .*\n", r"\g<0>\g<0>", "camera number 7 appears twice"),
        ("611.25", "6_11.25", "'6_11.25' is not a number"),
    ),
}


@pytest.mark.parametrize(
    ("name", "old", "new", "message"), [(name, *row) for name, rows in DAMAGE.items() for row in rows]
)
def test_damaged_files_are_refused_with_the_place(name: str, old: str, new: str, message: str, tmp_path: Path):
    """`old` is a regular expression, replaced in every file of the format."""
    WRITERS[name](tmp_path, make_rig())
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        path.write_text(re.sub(old, new, path.read_text()))
    with pytest.raises(InputError, match=message) as raised:
        read_calibration(tmp_path)
    assert ("in radians, not in degrees" in raised.value.hint) == ("length of 85" in message)


EDITS: dict[str, tuple[tuple[Callable[[Any], object], str], ...]] = {
    "output": (
        (lambda v: v["intrinsics"][0].__setitem__(0, -5.0), "the focal length is -5 px"),
        (lambda v: v["world_to_camera"][0].__setitem__(0, 9.0), "the rotation is not a rotation"),
        (lambda v: v["world_to_camera"][3].__setitem__(0, 1.0), "the last row of the pose"),
        (lambda v: v["intrinsics"].pop(), "intrinsics.*: List should have at least 3 items"),
        (lambda v: v["intrinsics"][1].__setitem__(1, "x"), "intrinsics.*: Input should be a valid"),
        (lambda v: v.pop("world_to_camera"), "world_to_camera: Field required"),
        (lambda v: v.update(image_size=[0, 480]), "image_size.0: Input should be greater than 0"),
        (lambda v: v.update(world_to_camera=[v["world_to_camera"]] * 3), "3 poses for 2 times"),
        (lambda v: v["distortion"]["coefficients"].pop(), "3 coefficients for brown-conrady"),
        (lambda v: v.update(intrinsics=[v["intrinsics"]] * 3), "3 intrinsics for 2 times"),
        (lambda v: v["intrinsics"][2].__setitem__(0, 1.0), "the intrinsics are not of the form"),
    ),
    "nerfstudio": (
        (lambda c: c.update(camera_model="EQUIRECTANGULAR"), "the camera model EQUIRECTANGULAR is not"),
        (lambda c: c["frames"][0].update(k4=0.5), "k4 of the OPENCV model"),
        (lambda c: c["frames"][0].pop("fl_x") and c["frames"][0].pop("fl_y"), "it has neither fl_x"),
        (lambda c: [c["frames"][0].pop(key) for key in ("w", "cx")], "it has neither cx, cy nor w, h"),
        (lambda c: c["frames"][2].update(transform_matrix=[[1]]), "camera ./images/cam03.png: transform_matrix"),
        (lambda c: c["frames"][1].update(file_path="images/cam01.png"), "two images have this name"),
        (lambda c: c.update(applied_transform=np.diag([2, 2, 2, 0])[:3].tolist()), "applied_transform is not"),
        (lambda c: c["frames"][0]["transform_matrix"][3].reverse(), "the last row of"),
        (lambda c: c["frames"][0].pop("fl_x") and c["frames"][0].update(camera_angle_x=4), "the field of"),
        (lambda c: c["frames"][0].update(w=10**9), "w: Input should be less than or equal to 1000000"),
    ),
}


@pytest.mark.parametrize(("name", "edit", "message"), [(name, *row) for name, rows in EDITS.items() for row in rows])
def test_an_invalid_camera_is_refused_with_its_key(
    name: str, edit: Callable[[Any], object], message: str, tmp_path: Path
):
    camera = "cam02" if name == "output" else "cam01"
    path = WRITERS[name](tmp_path, make_rig())
    edit_json(path, lambda content: edit(content["views"][camera] if name == "output" else content))
    place = "" if message.startswith(("camera ", "applied")) else f"camera {camera}: "
    with pytest.raises(InputError, match=f"^{path.name}: {place}{message}") as caught:
        read_calibration(path)
    assert caught.value.hint


def test_an_unreadable_file_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.toml"
    path.touch()

    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(InputError, match=r"cannot read calibration 'x.toml': permission denied"):
        read_calibration(path)


def without_distortion(text: str) -> str:
    return re.sub(r"dist_\w+: !!opencv-matrix\n(?:   .*\n)+", "", text)


def with_empty_distortion(text: str) -> str:
    empty = "   rows: 0\n   cols: 0\n   dt: d\n   data: []\n"
    return re.sub(r"(dist_\w+: !!opencv-matrix\n)(?:   .*\n)+", rf"\1{empty}", text)


@pytest.mark.parametrize("edit", [without_distortion, with_empty_distortion])
def test_yaml_without_distortion_is_read_with_a_notice(edit: Callable[[str], str], tmp_path: Path):
    WRITERS["yaml"](tmp_path, make_rig())
    path = tmp_path / "intri.yml"
    path.write_text(edit(path.read_text()))
    calibration = read_calibration(tmp_path)
    assert all(camera.distortion is None for camera in calibration.cameras)
    assert calibration.notices == (
        "intri.yml has no distortion of cam01, cam02, cam03: undistorted images are assumed",
    )


@pytest.mark.parametrize("value", [True, "64", None, [64]])
def test_values_of_another_type_are_no_numbers(value: object, tmp_path: Path):
    path = WRITERS["nerfstudio"](tmp_path, make_rig())
    for key in ("w", "fl_x", "k1"):
        edit_json(WRITERS["nerfstudio"](tmp_path, make_rig()), lambda c, key=key: c["frames"][0].update({key: value}))
        if value is None and key != "k1":
            continue  # stands for a key that is left out
        with pytest.raises(InputError, match=f"camera cam01: {key}: Input should be a valid number"):
            read_calibration(path)
