"""One image file: damaged metadata, kinds of pixels, several images in a file, and files that change."""

import io
import os
import resource
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from PIL import Image

from page4d.errors import InputError
from page4d.scene.batches import open_batches
from page4d.scene.image_file import read_header, read_pixels
from page4d.scene.images import probe_image_folder
from page4d.scene.open import open_scene
from tests.scene.clip_writers import counter_image, write_images

PICTURE = counter_image(0b101100111000)
OTHER = Image.fromarray(PICTURE[::-1])
TIFF = b"Exif\0\0II*\0"

DAMAGED_EXIF = {
    "header cut": TIFF,
    "byte order": b"Exif\0\0XX*\0\x08\0\0\0\x01\0",
    "offset": TIFF + b"\xff\xff\xff\xff",
    "entries cut": TIFF + b"\x08\0\0\0\x09\0\x0f\x01",
    "count": TIFF + b"\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\xff\x08\0\0\0",
}
CYCLE = TIFF + b"\x08\0\0\0\x02\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
"""EXIF data with orientation 6, whose directory contains itself."""


def save(path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(PICTURE).save(path, **options)
    return path


def texts(folder: Path) -> list[str]:
    return [notice.text for notice in probe_image_folder(folder, fps=30, max_megapixels=64).notices]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("kind", DAMAGED_EXIF)
def test_images_with_damaged_exif_data_are_read_as_stored(kind: str, suffix: str, tmp_path):
    intact = save(tmp_path / "cam01" / f"0.{suffix}")
    damaged = save(tmp_path / "cam01" / f"1.{suffix}", exif=DAMAGED_EXIF[kind])
    assert texts(tmp_path / "cam01") == [
        f"cam01: damaged EXIF data in 1 of 2 images (first 1.{suffix}): read without rotation"
    ]
    np.testing.assert_array_equal(read_pixels(damaged, (48, 64)), read_pixels(intact, (48, 64)))


def test_an_orientation_is_found_in_exif_data_that_are_cyclic_or_damaged_elsewhere(tmp_path):
    elsewhere = b"\x02\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\x0f\x01\x02\0\xff\xff\0\0\xff\xff\xff\0"
    for name, block in {"0": CYCLE, "1": TIFF + b"\x08\0\0\0" + elsewhere}.items():
        file = save(tmp_path / "cam01" / f"{name}.jpg", exif=block)
        assert read_header(file).size == (64, 48)
        assert read_pixels(file, (64, 48)).shape[:2] == (64, 48)
    assert texts(tmp_path / "cam01") == []


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@pytest.mark.parametrize("deep", [False, True])
def test_header_and_pixels_agree_on_exif_data_after_the_pixels_of_a_png(deep: bool, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = PICTURE.astype(np.uint16) if deep else PICTURE
    content = cv2.imencode(".png", picture)[1].tobytes()
    (tmp_path / "0.png").write_bytes(content[:-12] + png_chunk(b"eXIf", exif.tobytes()[6:]) + content[-12:])
    assert read_header(tmp_path / "0.png").size == (48, 64)
    np.testing.assert_array_equal(read_pixels(tmp_path / "0.png", (48, 64))[..., ::-1], picture)


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_orientation_of_a_sixteen_bit_png_is_that_of_its_eight_bit_copy(orientation: int, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    levels = np.arange(24 * 32).reshape(24, 32) % 256
    for name, kind in (("shallow", np.uint8), ("deep", np.uint16)):
        Image.fromarray(levels.astype(kind)).save(tmp_path / f"{name}.png", exif=exif)
    size = read_header(tmp_path / "deep.png").size
    shallow, deep = (read_pixels(tmp_path / f"{name}.png", size, grayscale=True) for name in ("shallow", "deep"))
    assert deep.dtype == np.uint16
    np.testing.assert_array_equal(deep, shallow)


SEVERAL = {"0.png": "PNG", "0.webp": "WEBP", "0.tif": "TIFF", "0.bmp": "GIF"}


@pytest.mark.parametrize("name", SEVERAL)
def test_animations_and_pages_are_reported_and_the_first_image_is_read(name: str, tmp_path):
    lossless = {"lossless": True} if name.endswith("webp") else {}
    save(tmp_path / "cam01" / name, format=SEVERAL[name], save_all=True, append_images=[OTHER], **lossless)
    expected = (
        f"cam01: animation or several pages in 1 of 1 image (first {name}): only the first image of a file is used"
    )
    assert expected in texts(tmp_path / "cam01")
    np.testing.assert_array_equal(read_pixels(tmp_path / "cam01" / name, (48, 64)), PICTURE)


def test_previews_in_a_file_are_no_further_images(tmp_path):
    small = Image.fromarray(PICTURE[::2, ::2])
    save(tmp_path / "a" / "0.mpo", format="MPO", save_all=True, append_images=[OTHER])
    (tmp_path / "a" / "0.mpo").rename(tmp_path / "a" / "0.jpg")
    save(tmp_path / "a" / "1.tif", save_all=True, append_images=[small])
    (tmp_path / "a" / "2.tif").write_bytes(with_reduced_page((tmp_path / "a" / "1.tif").read_bytes()))
    assert [read_header(file).has_more_images for file in sorted((tmp_path / "a").iterdir())] == [False, True, False]


def with_reduced_page(content: bytes) -> bytes:
    """Turn an entry of the second page of a TIFF into the tag of a smaller copy."""
    first = struct.unpack_from("<I", content, 4)[0]
    count = struct.unpack_from("<H", content, first)[0]
    second = struct.unpack_from("<I", content, first + 2 + 12 * count)[0]
    changed, entries = bytearray(content), range(struct.unpack_from("<H", content, second)[0])
    at = next(place for place in (second + 2 + 12 * n for n in entries) if content[place : place + 2] == b"\x1c\x01")
    struct.pack_into("<HHII", changed, at, 254, 4, 1, 1)
    return bytes(changed)


def test_alpha_and_files_of_other_formats_are_reported(tmp_path):
    save(tmp_path / "cam01" / "0.png")
    Image.fromarray(np.dstack([PICTURE, PICTURE[..., 0]])).save(tmp_path / "cam01" / "1.png")
    for name in ("3.heic", "2.HEIC", "Thumbs.db", "._1.gif"):
        (tmp_path / "cam01" / name).write_bytes(b"x")
    assert texts(tmp_path / "cam01") == [
        "cam01: alpha ignored",
        "cam01: 2 files not read (first 2.HEIC): heic is not supported",
    ]


def test_the_content_decides_how_an_image_is_read_not_the_suffix(tmp_path):
    levels = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80
    Image.fromarray(levels).save(tmp_path / "0.png", format="TIFF")
    np.testing.assert_array_equal(read_pixels(tmp_path / "0.png", (24, 32), grayscale=True), levels)
    (tmp_path / "1.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\nshowpage\n")
    with pytest.raises(InputError, match=r"1\.png is not a readable image"):
        read_header(tmp_path / "1.png")


@pytest.mark.parametrize(("kind", "found"), [(np.float32, "32-bit float"), (np.int32, "32-bit signed")])
def test_pixels_that_are_not_whole_numbers_of_sixteen_bits_are_named(kind: type[np.generic], found: str, tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.ones((12, 16), dtype=kind)).save(tmp_path / "a" / "0.tif")
    with pytest.raises(InputError, match=rf"a/0\.tif has {found} grayscale pixels") as refused:
        texts(tmp_path / "a")
    assert refused.value.hint == "convert it to 8 or 16 bits per channel"


def test_an_image_that_is_turned_unlike_the_others_is_refused_with_the_reason(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("0.jpg", "2.jpg"):
        save(tmp_path / "a" / name)
    save(tmp_path / "a" / "1.jpg", exif=exif)
    with pytest.raises(InputError, match=r"a/1\.jpg is 48x64, the others 64x48") as refused:
        texts(tmp_path / "a")
    assert "EXIF orientation" in refused.value.hint


def test_photos_of_one_instant_need_no_equal_numbers(tmp_path):
    for view, name in (("a", "IMG_1234.jpg"), ("b", "IMG_5678.jpg"), ("c", "IMG_0042.jpg")):
        save(tmp_path / view / name)
    assert open_scene(tmp_path).num_times == 1


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (Path.unlink, r"a/1\.png was removed during the run"),
    "folder removed": (lambda file: shutil.rmtree(file.parent), r"a/0\.png was removed during the run"),
    "folder": (lambda file: (file.unlink(), file.mkdir()), r"a/1\.png is no longer a file"),
    "pipe": (lambda file: (file.unlink(), os.mkfifo(file)), r"a/1\.png is no longer a file"),
    "emptied": (lambda file: file.write_bytes(b""), r"a/1\.png is damaged"),
    "text": (lambda file: file.write_text("x"), r"a/1\.png is damaged"),
    "smaller": (
        lambda file: Image.fromarray(PICTURE[::2, ::2]).save(file),
        r"a/1\.png changed during the run: it is 32x24, and was 64x48",
    ),
    "float": (lambda file: Image.fromarray(np.ones((48, 64), np.float32)).save(file, format="TIFF"), "is damaged"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_frame_that_changes_during_a_run_is_named(change: str, tmp_path):
    for view in "ab":
        write_images(tmp_path / view, {f"{n}.png": PICTURE for n in range(3)})
    scene = open_scene(tmp_path)
    act, message = CHANGES[change]
    act(tmp_path / "a" / "1.png")
    with open_batches(scene, long_side=56, multiple=14) as reader, pytest.raises(InputError, match=message) as failed:
        reader.read(0, 3)
    assert failed.value.hint


@contextmanager
def without_file_handles() -> Iterator[None]:
    """Leave no file handle to the process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_lack_of_file_handles_is_not_blamed_on_the_image(tmp_path):
    file = save(tmp_path / "a" / "0.png")
    for read in (lambda: read_header(file), lambda: read_pixels(file, (48, 64))):
        with without_file_handles(), pytest.raises(OSError, match="Too many open files"):
            read()


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(12, "Cannot allocate memory"), OSError("out of memory error")]
)
def test_a_lack_of_memory_is_not_blamed_on_the_image(error: Exception, tmp_path, monkeypatch):
    file = save(tmp_path / "0.png")

    monkeypatch.setattr("PIL.Image.Image.convert", Mock(side_effect=error))
    with pytest.raises(type(error)):
        read_pixels(file, (48, 64))


@pytest.mark.parametrize("chunk", [b"iCCP", b"zTXt"])
def test_compressed_metadata_are_not_inflated_without_bound(chunk: bytes, tmp_path):
    stream = io.BytesIO()
    Image.fromarray(PICTURE).save(stream, "PNG")
    content = stream.getvalue()
    bomb = png_chunk(chunk, b"x\0\0" + zlib.compress(bytes(100_000_000), 9))
    (tmp_path / "0.png").write_bytes(content[:33] + bomb + content[33:])
    with pytest.raises(InputError, match=r"0\.png is not a readable image"):
        read_header(tmp_path / "0.png")
