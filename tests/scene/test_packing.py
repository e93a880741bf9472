"""Panoramas, stereo pairs in one picture and raw colour mosaics are named; ordinary footage is not."""

import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from page4d.errors import InputError
from page4d.scene.open import open_scene
from page4d.scene.packing import is_mosaic
from tests.scene.clip_writers import Pixels, write_counter_clip, write_images, write_video

RANDOM = np.random.default_rng(0)
SCENE = cv2.resize(RANDOM.integers(0, 256, (34, 34, 3), dtype=np.uint8), (272, 272), interpolation=cv2.INTER_CUBIC)
LEFT, RIGHT = SCENE[40:160, 40:200], SCENE[40:160, 47:207]
SPHERICAL_UUID = bytes.fromhex("ffcc8263f8554a938814587a02521fdd")


def declare_panorama(path: Path) -> None:
    """Add the box of Spherical Video V1 to the only track of an MP4."""
    tags = {"Spherical": "true", "Stitched": "true", "StitchingSoftware": "x", "ProjectionType": "equirectangular"}
    inner = "".join(f"<GSpherical:{tag}>{value}</GSpherical:{tag}>" for tag, value in tags.items())
    text = f"<rdf:SphericalVideo>{inner}</rdf:SphericalVideo>".encode()
    box = struct.pack(">I", 24 + len(text)) + b"uuid" + SPHERICAL_UUID + text
    content = bytearray(path.read_bytes())
    movie, track = content.rfind(b"moov") - 4, content.rfind(b"trak") - 4
    end = track + int.from_bytes(content[track : track + 4])
    content[end:end] = box
    for at in (movie, track):
        content[at : at + 4] = (int.from_bytes(content[at : at + 4]) + len(box)).to_bytes(4)
    path.write_bytes(content)


def refused(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_scene(folder)
    return caught.value


def test_a_spherical_video_is_refused(tmp_path: Path):
    declare_panorama(write_counter_clip(tmp_path / "a.mp4", 3))
    error = refused(tmp_path)
    assert error.message == "a.mp4 is a panorama (equirectangular), not the image of a pinhole camera"
    assert "v360=equirect:flat" in error.hint


@pytest.mark.parametrize(
    ("suffix", "projection", "is_refused"),
    [("jpg", "equirectangular", True), ("png", "cylindrical", True), ("jpg", "rectilinear", False)],
)
def test_panoramas_of_photo_sphere_are_refused(suffix: str, projection: str, is_refused: bool, tmp_path: Path):
    xmp = f'<rdf:Description GPano:ProjectionType="{projection}"/>'
    (tmp_path / "a").mkdir()
    picture = Image.fromarray(LEFT)
    if suffix == "png":
        text = PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp)
        picture.save(tmp_path / "a" / "0.png", pnginfo=text)
    else:
        picture.save(tmp_path / "a" / "0.jpg", xmp=xmp.encode())
    if is_refused:
        assert refused(tmp_path).message.startswith(f"a/0.{suffix} is a panorama ({projection})")
    else:
        open_scene(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "packing"),
    [
        ("a.mkv", {"metadata": {"stereo_mode": "left_right"}}, "side by side"),
        ("a.mkv", {"metadata": {"stereo_mode": "bottom_top"}}, "on top of each other"),
        ("a.mp4", {"options": {"x264-params": "frame-packing=5"}}, "in alternate frames"),
        ("a.mkv", {"metadata": {"stereo_mode": "mono"}}, ""),
    ],
)
def test_declared_stereo_footage_is_refused(name: str, settings: dict[str, Any], packing: str, tmp_path: Path):
    write_counter_clip(tmp_path / name, 3, **settings)
    if not packing:
        open_scene(tmp_path)
        return
    error = refused(tmp_path)
    assert error.message == f"{name} is stereoscopic footage: two cameras in one picture, {packing}"
    assert error.hint.startswith("make a view of each eye: ")


TWO_SCENES = np.hstack([SCENE[:120, :136], SCENE[140:260, 130:266]])
PICTURES: dict[str, tuple[Pixels, str]] = {
    "side by side": (np.hstack([LEFT, RIGHT]), "side by side"),
    "on top of each other": (np.vstack([LEFT, RIGHT]), "on top of each other"),
    "brighter": (np.hstack([LEFT, RIGHT // 2 + 90]), "side by side"),
    "square halves": (np.hstack([SCENE[:160, :160], SCENE[:160, 5:165]]), "side by side"),
    "one scene, wide": (SCENE[:130], ""),
    "one scene, tall": (SCENE[:, :130], ""),
    "one scene, square": (SCENE, ""),
    "two scenes": (TWO_SCENES, ""),
    "a board": (
        np.kron(np.indices((10, 20)).sum(0) % 2 * 200, np.ones((16, 16))).astype(np.uint8)[..., None].repeat(3, 2),
        "",
    ),
    "stripes": (np.tile(np.arange(64) % 16 // 8 * 255, (120, 5)).astype(np.uint8)[..., None].repeat(3, 2), ""),
    "a line": (np.tile(SCENE[:2], (1, 20, 1)), ""),
    "black": (np.zeros((100, 300, 3), np.uint8), ""),
}


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("is_video", [False, True])
def test_equal_halves_are_stereo_footage(kind: str, is_video: bool, tmp_path: Path):
    picture, packing = PICTURES[kind]
    picture = np.ascontiguousarray(picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2])
    if is_video:
        write_video(tmp_path / "a.mp4", [picture])
    else:
        write_images(tmp_path / "a", {"0.png": picture})
    if packing:
        label = "a.mp4" if is_video else "a/"
        error = refused(tmp_path)
        assert error.message == (
            f"the halves of the first frame of {label} show the same scene: two cameras in one picture, {packing}"
        )
        assert "crop=iw" in error.hint
    else:
        open_scene(tmp_path)


def mosaic(rgb: Pixels, first: tuple[int, int] = (0, 0)) -> Pixels:
    """Return the RGGB mosaic of a picture, beginning at the row and column `first`."""
    rows, columns = np.indices(rgb.shape[:2])
    channel = (rows + first[0]) % 2 + (columns + first[1]) % 2
    return np.take_along_axis(rgb, channel[..., None], axis=2)[..., 0]


GRAY = SCENE.mean(axis=2).astype(np.uint8)


MOSAICS = {
    "RGGB": mosaic(SCENE),
    "GBRG": mosaic(SCENE, (1, 0)),
    "GRBG": mosaic(SCENE, (0, 1)),
    "raw 12 bits": mosaic((SCENE * (0.5, 1.0, 0.6)).astype(np.uint8)).astype(np.uint16) * 16,
}
GRAYS = {
    "gray": GRAY,
    "deep": GRAY.astype(np.uint16) * 16,
    "dark": GRAY // 30,
    "noise": RANDOM.integers(0, 256, (200, 300)).astype(np.uint8),
    "interlaced": np.where(np.arange(272)[:, None] % 2, GRAY, np.roll(GRAY, 9, axis=1)),
    "enlarged": cv2.resize(GRAY, (544, 544), interpolation=cv2.INTER_NEAREST),
    "flat": np.full((64, 64), 7, np.uint8),
    "tiny": np.eye(10, dtype=np.uint8),
}


@pytest.mark.parametrize("kind", MOSAICS | GRAYS)
def test_a_colour_mosaic_is_told_from_gray_pictures(kind: str):
    assert is_mosaic((MOSAICS | GRAYS)[kind]) is (kind in MOSAICS)


def test_mosaics_are_reported_once_for_all_views(tmp_path: Path):
    for view in "ab":
        write_images(tmp_path / view, dict.fromkeys(("0.png", "1.png"), mosaic(SCENE)))
    write_images(tmp_path / "c", {"0.png": GRAY, "1.png": GRAY})
    for name, layout in (("d.mkv", "gray"), ("e.mkv", "gray10le"), ("f.mkv", "gray16le")):
        write_video(tmp_path / name, [mosaic(SCENE)], codec="ffv1", pixel_format=layout, given_as="gray")
    found = [notice.text for notice in open_scene(tmp_path).notices if "Bayer" in notice.text]
    assert [text.split(":")[0] for text in found] == ["d", "e", "f", "a/, b/"]
