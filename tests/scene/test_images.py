"""Image folders: timing by frame number, bit depth, orientation and damage."""

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from page4d.errors import InputError
from page4d.scene.batches import open_batches
from page4d.scene.images import probe_image_folder
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from tests.scene.clip_writers import counter_clip, counter_image, read_counter, write_images

SAVED_MODES = {
    "jpg": ("RGB", "L", "CMYK", "1"),
    "webp": ("RGB", "RGBA", "P", "L", "LA", "CMYK", "1"),
    "png": ("RGB", "RGBA", "P", "L", "LA", "1"),
    "bmp": ("RGB", "RGBA", "P", "L", "1"),
    "tif": ("RGB", "RGBA", "P", "L", "LA", "CMYK", "1"),
}
"""Modes that Pillow saves in a format."""


def numbered(folder: Path, numbers: dict[str, int] | list[int], pattern: str = "{:04}.png") -> Path:
    """Write images that encode their number."""
    named = numbers if isinstance(numbers, dict) else {pattern.format(number): number for number in numbers}
    return write_images(folder, {name: counter_image(number) for name, number in named.items()})


def counts(scene: Scene) -> Any:
    with open_batches(scene, long_side=56, multiple=14) as reader:
        images = reader.read(0, scene.num_times).images[0]
    rows, columns = reader.transforms[0].rows, reader.transforms[0].columns
    pictures = images[..., rows, columns].permute(0, 1, 3, 4, 2).numpy()
    return np.array([[read_counter(picture) for picture in instant] for instant in pictures])


def pixels(folder: Path, index: int = 0, **settings: Any) -> Any:
    source = probe_image_folder(folder, fps=30, max_megapixels=64, **settings)
    with source.open() as reader:
        return next(reader.read([index]))


def texts(scene: Scene) -> str:
    return "\n".join(notice.text for notice in scene.notices)


def test_a_missing_image_leaves_a_gap(tmp_path: Path) -> None:
    numbered(tmp_path / "a", list(range(20)))
    numbered(tmp_path / "b", [n for n in range(20) if n not in (6, 7, 13)])
    scene = open_scene(tmp_path, image_fps=25)
    assert scene.synchronisation == "frame numbers in the file names"
    found = counts(scene)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert found[:, 0].tolist() == [n for n in range(20) if n not in (6, 7, 13)]
    assert "3 instants left out: b has no frame" in texts(scene)
    np.testing.assert_allclose(scene.times, found[:, 0] / 25)


@pytest.mark.parametrize("step", [1, 2, 10])
def test_folders_that_begin_at_different_numbers_are_aligned_by_number(step: int, tmp_path: Path) -> None:
    numbered(tmp_path / "a", list(range(100, 100 + 20 * step, step)))
    numbered(tmp_path / "b", list(range(100 + 5 * step, 100 + 25 * step, step)))
    scene = open_scene(tmp_path, image_fps=10)
    found = counts(scene)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert (len(found), found[0, 0]) == (15, 100 + 5 * step)
    np.testing.assert_allclose(scene.times, 0.5 + np.arange(15) / 10)


def test_views_of_different_rate_are_paired_by_number(tmp_path: Path) -> None:
    numbered(tmp_path / "a", list(range(20)))
    numbered(tmp_path / "b", list(range(0, 20, 2)))
    found = counts(open_scene(tmp_path, image_fps=30))
    np.testing.assert_array_equal(found, np.arange(0, 20, 2)[:, None].repeat(2, axis=1))


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ([0, 50, 200, 350, 900], [50, 200, 900, 2000], [50, 200, 900]),
        ([0, 100, 200, 300, 1070], [300, 1070], [300, 1070]),
        ([5 + n**3 for n in range(9)], [5 + n**3 for n in range(9)], [5 + n**3 for n in range(9)]),
    ],
)
def test_frames_picked_from_videos_are_paired_by_number(
    first: list[int], second: list[int], common: list[int], tmp_path: Path
) -> None:
    numbered(tmp_path / "a", first)
    numbered(tmp_path / "b", second)
    scene = open_scene(tmp_path, image_fps=30)
    assert counts(scene).tolist() == [[number, number] for number in common]
    assert "without regular frame numbers" not in texts(scene)


@pytest.mark.parametrize(
    "names",
    [
        {f"frame_{letter}.png": n for n, letter in enumerate("abcdefghi")},
        {f"{n}.{suffix}": n for n, suffix in zip([1, 1, 2, 3], ["png", "bmp", "png", "png"], strict=True)},
    ],
)
def test_images_without_frame_numbers_are_counted_and_reported(names: dict[str, int], tmp_path: Path) -> None:
    for view in "ab":
        numbered(tmp_path / view, names)
    scene = open_scene(tmp_path, image_fps=30)
    assert scene.synchronisation == "same start"
    assert "a/, b/: file names without regular frame numbers; images are counted" in texts(scene)
    np.testing.assert_allclose(scene.times, np.arange(len(names)) / 30)
    assert [view.indices for view in scene.views] == [tuple(range(len(names)))] * 2


def test_images_are_in_natural_order_without_hidden_files(tmp_path: Path) -> None:
    numbered(tmp_path / "a", [8, 9, 10, 11, 100], "f{}.png")
    (tmp_path / "a" / "._f8.png").write_bytes(b"resource fork")
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"x")
    source = probe_image_folder(tmp_path / "a", fps=30, max_megapixels=64)
    assert [file.stem for file in source.files] == ["f8", "f9", "f10", "f11", "f100"]
    assert source.numbers == (8, 9, 10, 11, 100)


def test_single_photos_have_no_rate(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / name, {"photo.png": counter_clip([1])[0]})
    assert not any("fps" in notice.text for notice in open_scene(tmp_path).notices)


def test_an_assumed_image_rate_is_reported(tmp_path: Path) -> None:
    numbered(tmp_path / "a", list(range(4)))
    assert "a/: images have no time stamps; assuming 30 fps (image_fps)" in texts(open_scene(tmp_path))
    assert "assuming" not in texts(open_scene(tmp_path, image_fps=30))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_kept(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    given = np.random.default_rng(0).integers(0, 65536, (20, 30, 3)).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "a" / f"0.{suffix}"), given[..., ::-1])
    found = pixels(tmp_path / "a")
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, given)
    cv2.imwrite(str(tmp_path / "a" / f"0.{suffix}"), given[..., 0])
    np.testing.assert_array_equal(pixels(tmp_path / "a", grayscale=True), given[..., 0])


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize(
    ("suffix", "mode"), [(suffix, mode) for suffix, modes in SAVED_MODES.items() for mode in modes]
)
def test_pixels_are_those_of_pillow_in_every_mode_and_orientation(suffix: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / f"0.{suffix}"
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (13, 17, 4), dtype=np.uint8)).convert(mode)
    for orientation in range(10):  # 0 and 9 are not valid
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(path, exif=exif)
        with Image.open(io.BytesIO(path.read_bytes())) as stored:  # not mapped: Pillow 13 turns a mapped TIFF twice
            upright = ImageOps.exif_transpose(stored)
            for grayscale, kind in ((False, "RGB"), (True, "L")):
                expected = np.asarray(upright.convert(kind))
                np.testing.assert_array_equal(pixels(tmp_path / "a", grayscale=grayscale), expected)


def test_images_of_different_size_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "a", {f"{n}.png": frame for n, frame in enumerate(counter_clip(range(5)))})
    write_images(tmp_path / "a", {"2.png": counter_image(2, (24, 32))})
    with pytest.raises(InputError, match=r"a/2\.png is 32x24, the others 64x48"):
        open_scene(tmp_path)


def broken(kind: str, suffix: str, path: Path) -> None:
    deep = kind.startswith("deep")
    picture = np.random.default_rng(1).integers(0, 65536 if deep else 256, (48, 64, 3))
    content = cv2.imencode(f".{suffix}", picture.astype(np.uint16 if deep else np.uint8))[1].tobytes()
    if kind.endswith("cut"):
        content = content[: len(content) * 2 // 3]
    else:
        middle = len(content) // 2
        content = content[:middle] + bytes(64) + content[middle + 64 :]
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        *(("cut", suffix) for suffix in ("png", "jpg", "bmp", "tif", "webp")),
        ("deep cut", "png"),
        ("deep cut", "tif"),
        ("scrambled", "png"),
        ("deep scrambled", "png"),
    ],
)
def test_damaged_images_are_refused(kind: str, suffix: str, tmp_path: Path) -> None:
    for view in "ab":
        write_images(tmp_path / view, {f"{n}.{suffix}": frame for n, frame in enumerate(counter_clip(range(3)))})
    broken(kind, suffix, tmp_path / "b" / f"1.{suffix}")
    with pytest.raises(InputError, match=rf"b/1\.{suffix} is (damaged|not a readable image)"):
        counts(open_scene(tmp_path))


def test_files_that_are_not_images_are_refused(tmp_path: Path) -> None:
    numbered(tmp_path / "a", list(range(3)))
    (tmp_path / "a" / "0001.png").write_text("<html>")
    with pytest.raises(InputError, match=r"a/0001\.png is not a readable image"):
        open_scene(tmp_path)
    (tmp_path / "a" / "0001.png").write_text("")
    with pytest.raises(InputError, match=r"0001\.png is empty"):
        open_scene(tmp_path)


@pytest.mark.parametrize(("bits", "is_reported"), [(16, False), (13, False), (12, True), (10, True)])
def test_sixteen_bit_images_of_few_bits_are_reported(bits: int, is_reported: bool, tmp_path: Path) -> None:
    """12 bits stored in 16 are nearly black."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        values = np.linspace(0, 2**bits - 1, 48 * 64).reshape(48, 64).astype(np.uint16)
        cv2.imwrite(str(tmp_path / name / "0.png"), values)
    texts = [notice.text for notice in open_scene(tmp_path).notices]
    text = f"a/: the brightest value of 0.png is {2**bits - 1} of 65535: a nearly black image"
    assert any(each.startswith(text) for each in texts) is is_reported


@pytest.mark.parametrize(
    ("numbers", "is_reported"),
    [([1, 2, 9998, 9999], True), ([0, 9996], True), ([1, 20, 9980], False), ([997, 998, 999], False)],
)
def test_a_counter_that_may_have_restarted_is_reported(numbers: list[int], is_reported: bool, tmp_path: Path) -> None:
    write_images(tmp_path / "a", {f"IMG_{n:04}.png": counter_clip([0])[0] for n in numbers})
    texts = [notice.text for notice in open_scene(tmp_path).notices]
    assert any("if the counter of the camera restarted" in text for text in texts) is is_reported


def test_numbers_from_0_and_from_1_are_reported(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 1)):
        write_images(tmp_path / name, {f"{n + first}.png": counter_clip([n])[0] for n in range(3)})
    text = "a/ begins with 0.png, b/ begins with 1.png: equal numbers are paired; pass sync='none' to pair the first"
    scene = open_scene(tmp_path)
    assert [view.indices for view in scene.views] == [(1, 2), (0, 1)]
    assert any(notice.text.startswith(text) for notice in scene.notices)
    in_order = open_scene(tmp_path, sync="none")
    assert [view.indices for view in in_order.views] == [(0, 1, 2)] * 2
    assert not any(notice.text.startswith(text) for notice in in_order.notices)
    (tmp_path / "sync.json").write_text('{"views": {"a": {}, "b": {}}}')
    assert not any(notice.text.startswith(text) for notice in open_scene(tmp_path).notices)
