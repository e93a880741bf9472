"""For any file content, the image reader returns an image or raises a Page4DError, and prints nothing."""

import io
import tempfile
import zlib
from pathlib import Path

import cv2
import numpy as np
import OpenEXR
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from page4d.formats.depth_files import DEPTH_SUFFIXES
from page4d.scene.image_file import read_header, read_pixels
from page4d.scene.images import probe_image_folder
from tests.fuzzing import fuzz, mutated_bytes, read_or_refuse

SIZE = (24, 32)
RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.integers(0, 256, (*SIZE, 4), dtype=np.uint8)
HOSTILE = (bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff", b"\0", b"\x01")


def pillow_file(kind: str, mode: str = "RGB", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PICTURE).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def exif_block() -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x9003] = 6, "camera", "2026:11:23 12:00:00"
    exif.get_ifd(0x8769)[0x9291] = "123"
    return exif.tobytes()


def deep_file(suffix: str) -> bytes:
    return cv2.imencode(suffix, RANDOM.integers(0, 65536, (*SIZE, 3)).astype(np.uint16))[1].tobytes()


def depth_file(suffix: str) -> bytes:
    depth = RANDOM.random(SIZE, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"0{suffix}")
        if suffix == ".npy":
            np.save(path, depth)
        else:
            OpenEXR.File({"compression": OpenEXR.ZIP_COMPRESSION}, {"Z": depth}).write(str(path))
        return path.read_bytes()


def animation(kind: str) -> bytes:
    return pillow_file(kind, save_all=True, append_images=[Image.fromarray(PICTURE[::-1]).convert("RGB")])


VALID = {
    "png": pillow_file("PNG", exif=exif_block()),
    "palette.png": pillow_file("PNG", "P", transparency=3),
    "deep.png": deep_file(".png"),
    "jpg": pillow_file("JPEG", exif=exif_block()),
    "cmyk.jpg": pillow_file("JPEG", "CMYK"),
    "tif": pillow_file("TIFF"),
    "lzw.tif": pillow_file("TIFF", compression="tiff_lzw"),
    "deep.tif": deep_file(".tif"),
    "pages.tif": animation("TIFF"),
    "webp": pillow_file("WEBP", exif=exif_block()),
    "moving.webp": animation("WEBP"),
    "bmp": pillow_file("BMP"),
    "gif.png": animation("GIF"),
    "moving.png": animation("PNG"),
    "depth.npy": depth_file(".npy"),
    "depth.exr": depth_file(".exr"),
}
BLOCK = exif_block()


def read_all(file: Path) -> None:
    header = read_header(file)
    if file.suffix in DEPTH_SUFFIXES:
        assert read_pixels(file, header.size, grayscale=True).shape == header.size
        return
    probe_image_folder(file.parent, fps=30, max_megapixels=1)
    for grayscale in (False, True):
        pixels = read_pixels(file, header.size, grayscale=grayscale, background=(255, 255, 255))
        assert pixels.shape[:2] == header.size
        assert pixels.ndim == (2 if grayscale else 3)
        assert pixels.dtype in (np.uint8, np.uint16)


def try_content(folder: Path, name: str, content: bytes) -> None:
    """Read a file of this content, which is the only one of its folder."""
    file = folder / f"0.{name.rpartition('.')[2]}"
    file.write_bytes(content)
    try:
        read_or_refuse(lambda: read_all(file), codes=(3,))
    finally:
        file.unlink()


def with_checksums(png: bytes) -> bytes:
    """Correct the checksums of a PNG, so that damage is not noticed by them."""
    parts, at = [png[:8]], 8
    while at + 8 <= len(png):
        length = int.from_bytes(png[at : at + 4])
        body = png[at + 4 : at + 8 + length]
        parts.append(png[at : at + 4] + body + zlib.crc32(body).to_bytes(4))
        at += 12 + length
    return b"".join(parts)


NAMES = sorted(VALID)


@pytest.mark.parametrize("name", NAMES)
def test_the_valid_files_are_read(name: str, folder: Path) -> None:
    file = folder / f"0.{name.rpartition('.')[2]}"
    file.write_bytes(VALID[name])
    assert read_pixels(file, read_header(file).size).shape[:2] in (SIZE, SIZE[::-1])
    file.unlink()


@pytest.mark.parametrize("name", NAMES)
@fuzz(25)
@given(content=st.binary(max_size=300))
def test_arbitrary_content_is_read_or_refused(name: str, content: bytes, folder: Path) -> None:
    start = VALID[name][: len(content) % 40]
    try_content(folder, name, content)
    try_content(folder, name, start + content)


@pytest.mark.parametrize("name", NAMES)
@fuzz(25)
@given(draws=st.data())
def test_mutated_images_are_read_or_refused(name: str, draws: st.DataObject, folder: Path) -> None:
    content = VALID[name]
    for _ in range(draws.draw(st.integers(1, 3))):
        content = draws.draw(mutated_bytes(content, HOSTILE))
    if content[:4] == b"\x89PNG" and draws.draw(st.booleans()):
        content = with_checksums(content)
    try_content(folder, name, content)


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@fuzz(25)
@given(draws=st.data())
def test_mutated_exif_data_are_read_or_refused(kind: str, draws: st.DataObject, folder: Path) -> None:
    block = BLOCK
    if draws.draw(st.booleans()):
        for _ in range(draws.draw(st.integers(1, 3))):
            block = draws.draw(mutated_bytes(block, HOSTILE))
    else:
        block = b"Exif\0\0" + draws.draw(st.sampled_from((b"", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08")))
        block += draws.draw(st.binary(max_size=200))
    try_content(folder, kind, pillow_file({"jpg": "JPEG"}.get(kind, kind), exif=block))


@pytest.mark.parametrize("name", NAMES)
def test_damaged_images_print_nothing(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = VALID[name]
    random = np.random.default_rng(1)
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(8, len(content), 3):
            damaged[place] = random.integers(0, 256)
        try_content(folder, name, bytes(damaged[: random.integers(len(content) // 2, len(content) + 1)]))
    assert capfd.readouterr() == ("", "")
