"""Masks and measured depth: paired with the correct frames and read exactly."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from page4d.choices import MaskMeaning
from page4d.errors import InputError, Level, UsageError
from page4d.scene.batches import FrameBatch, open_batches
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from tests.scene.clip_writers import (
    Pixels,
    counter_clip,
    counter_image,
    read_counter,
    write_counter_clip,
    write_images,
    write_sync,
    write_video,
)


def read(scene: Scene, long_side: int = 64) -> FrameBatch:
    with open_batches(scene, long_side=long_side, multiple=1) as reader:
        return reader.read(0, scene.num_times)


def mask_numbers(maps: Any) -> list[int]:
    return [read_counter(one.numpy()[..., None].repeat(3, axis=-1)) for one in maps]


@pytest.fixture
def rig(tmp_path) -> Path:
    """Two videos of 12 frames; the second starts 0.1 s (3 frames) later."""
    (tmp_path / "rig").mkdir()
    for name in ("a", "b"):
        write_counter_clip(tmp_path / "rig" / f"{name}.mp4", 12)
    write_sync(tmp_path / "rig", {"b": (0.1, 1.0)})
    return tmp_path / "rig"


def write_masks(folder: Path, kind: str, scale: float = 1.0) -> Path:
    """Write masks that encode the frame number, as numbered images or as a video."""
    height, width = round(48 * scale), round(64 * scale)
    frames = counter_clip(range(12), (height, width))
    for name in ("a", "b"):
        if kind != "images":
            folder.mkdir(exist_ok=True)
            write_video(folder / f"{name}.mp4", frames, rate=24 if kind == "video at 24 fps" else 30)
        else:
            write_images(folder / name, {f"{n:03}.png": frame[..., 0] for n, frame in enumerate(frames)})
    return folder


@pytest.mark.parametrize("kind", ["images", "video", "video at 24 fps"])
@pytest.mark.parametrize("scale", [1.0, 0.5, 2.0])
def test_masks_are_paired_with_the_frames_of_their_view(kind: str, scale: float, rig: Path, tmp_path):
    batch = read(open_scene(rig, masks=write_masks(tmp_path / "m", kind, scale)))
    assert mask_numbers(batch.dynamic[0, :, 0]) == list(range(3, 12))
    assert mask_numbers(batch.dynamic[0, :, 1]) == list(range(9))
    assert 0 <= float(batch.dynamic.min()) <= float(batch.dynamic.max()) <= 1
    assert batch.valid.all()


@pytest.mark.parametrize("meaning", [MaskMeaning.IGNORE, MaskMeaning.KEEP])
def test_masks_exclude_pixels(meaning: MaskMeaning, rig: Path, tmp_path):
    batch = read(open_scene(rig, masks=write_masks(tmp_path / "m", "images"), mask_meaning=meaning))
    assert batch.dynamic is None
    marked = torch.from_numpy(np.stack([counter_image(n)[..., 0] > 0 for n in range(3, 12)]))
    assert torch.equal(batch.valid[0, :, 0], marked if meaning is MaskMeaning.KEEP else ~marked)


def test_one_marked_pixel_excludes_its_network_pixel(rig: Path, tmp_path):
    mask = np.zeros((48, 64), np.uint8)
    mask[20, 30] = 255
    for name in "ab":
        write_images(tmp_path / "m" / name, {f"{n}.png": mask for n in range(12)})
    ignored = ~read(open_scene(rig, masks=tmp_path / "m", mask_meaning=MaskMeaning.IGNORE), long_side=16).valid[
        0, 0, 0
    ]
    assert ignored.nonzero().tolist() == [[5, 7]]
    kept = read(open_scene(rig, masks=tmp_path / "m", mask_meaning=MaskMeaning.KEEP), long_side=16).valid
    assert not kept.any()


def test_a_view_without_masks_is_reported_and_has_unknown_motion(rig: Path, tmp_path):
    write_images(tmp_path / "m" / "b", {f"{n}.png": np.full((48, 64), 255, np.uint8) for n in range(12)})
    scene = open_scene(rig, masks=tmp_path / "m")
    assert "no masks for a" in [notice.text for notice in scene.notices]
    batch = read(scene)
    assert (batch.dynamic[:, :, 0] == 0.5).all()
    assert (batch.dynamic[:, :, 1] == 1).all()
    ignoring = read(open_scene(rig, masks=tmp_path / "m", mask_meaning=MaskMeaning.IGNORE)).valid
    assert ignoring[:, :, 0].all()
    assert not ignoring[:, :, 1].any()


def test_measured_depth_is_exact(rig: Path, tmp_path):
    depth = np.random.default_rng(0).integers(0, 65535, (12, 48, 64)).astype(np.uint16)
    for name in "ab":
        write_images(tmp_path / "d" / name, {f"{n:04}.png": one for n, one in enumerate(depth)})
    batch = read(open_scene(rig, depth=tmp_path / "d", depth_levels=4000))
    np.testing.assert_array_equal(batch.depth[0, :, 0].numpy(), (depth[3:] / 4000).astype(np.float32))
    small = read(open_scene(rig, depth=tmp_path / "d", depth_levels=4000), long_side=22).depth
    height, width = small.shape[-2:]
    fits = np.zeros((height, width), dtype=bool)
    for side in (-1e-6, 1e-6):  # a centre between two measurements may take either
        rows = ((np.arange(height) + 0.5) * 48 / height).astype(int)
        columns = ((np.arange(width) + 0.5) * 64 / width + side).astype(int)
        fits |= small[0, 0, 1].numpy() == (depth[0][rows][:, columns] / 4000).astype(np.float32)
    assert fits.all()
    (rig / "a.mp4").rename(rig / "disp.mp4")
    (tmp_path / "d" / "a").rename(tmp_path / "d" / "disp")
    folder = tmp_path / "d"
    for name in ("d", "depth_from_disparity", "disparity_to_depth", "disp_depth"):
        folder = folder.rename(tmp_path / name)
        open_scene(rig, depth=folder)
    for name in ("disp", "inverse_depth"):
        folder = folder.rename(tmp_path / name)
        with pytest.raises(InputError, match=rf"'{name}/b/0000\.png' is named as disparity or inverse depth"):
            open_scene(rig, depth=folder, views=("b",))


def test_depth_of_another_resolution_is_aligned_with_the_image(rig: Path, tmp_path):
    depth = np.repeat(np.repeat(np.arange(24 * 32, dtype=np.uint16).reshape(24, 32), 2, axis=0), 2, axis=1)
    for name in "ab":
        write_images(tmp_path / "d" / name, {f"{n:04}.png": depth[::2, ::2] for n in range(12)})
    batch = read(open_scene(rig, depth=tmp_path / "d", depth_levels=1))
    np.testing.assert_array_equal(batch.depth[0, 0, 0].numpy(), depth.astype(np.float32))


def test_few_masks_of_a_view_are_read_next_to_a_video(tmp_path):
    (tmp_path / "rig").mkdir()
    write_counter_clip(tmp_path / "rig" / "a.mp4", 3)
    masks = {f"{n:03}.png": frame[..., 0] for n, frame in enumerate(counter_clip(range(3), (48, 64)))}
    write_images(tmp_path / "m" / "a", masks)
    write_counter_clip(tmp_path / "m" / "a" / "preview.mp4", 3)
    batch = read(open_scene(tmp_path / "rig", masks=tmp_path / "m"))
    assert mask_numbers(batch.dynamic[0, :, 0]) == [0, 1, 2]


def test_masks_of_image_folders_are_paired_by_name(tmp_path):
    for name in "ab":
        write_images(tmp_path / "rig" / name, {f"{n:03}.png": counter_image(n) for n in range(20, 32)})
        masks = {f"{n:03}.png": counter_image(n)[..., 0] for n in range(40)}
        write_images(tmp_path / "m" / name, masks)
    batch = read(open_scene(tmp_path / "rig", masks=tmp_path / "m", image_fps=30, frames=(2, 9)))
    assert mask_numbers(batch.dynamic[0, :, 1]) == list(range(22, 29))
    (tmp_path / "m" / "b" / "025.png").unlink()
    with pytest.raises(InputError, match="masks of b: missing for 1 of 12 frames, first 025"):
        open_scene(tmp_path / "rig", masks=tmp_path / "m", image_fps=30)


def test_sidecars_that_do_not_match_their_view_are_refused(rig: Path, tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        open_scene(rig, masks=tmp_path / "nowhere")
    (tmp_path / "m").mkdir()
    with pytest.raises(UsageError, match=r"no masks in .* for a, b"):
        open_scene(rig, masks=tmp_path / "m")
    write_video(tmp_path / "m" / "a.mp4", counter_clip(range(6)))
    for count in (2, 24):
        write_video(tmp_path / "m" / "b.mp4", counter_clip(range(count)), rate=15)
        open_scene(rig, masks=tmp_path / "m", views=("b",), frames=(0, 1))
    write_video(tmp_path / "m" / "b.mp4", counter_clip(range(11)), rate=15)
    with pytest.raises(InputError, match=r"masks: b\.mp4 has 11 frames in 0\.733 s, b 12 in 0\.4 s"):
        open_scene(rig, masks=tmp_path / "m", views=("b",))
    with pytest.raises(InputError, match=r"masks: a\.mp4 has no frame for 6 of 9 instants of a"):
        open_scene(rig, masks=tmp_path / "m")
    (tmp_path / "m" / "a.mp4").unlink()
    write_images(tmp_path / "m" / "a", {f"{n}.png": np.zeros((48, 48), np.uint8) for n in range(12)})
    with pytest.raises(InputError, match="masks of a are 48x48, its frames 64x48: aspect ratios differ"):
        open_scene(rig, masks=tmp_path / "m")


DEPTH_HINT = (
    "give depth as 16-bit grayscale PNG or TIFF, as float NPY, EXR or TIFF, or as lossless gray16 video such as FFV1 "
    "in MKV"
)
LEVELS = np.random.default_rng(0).integers(0, 65535, (12, 48, 64)).astype(np.uint16)


INEXACT = {
    "8-bit grayscale": Image.fromarray(np.ones((48, 64), np.uint8)),
    "8-bit colour": Image.fromarray(np.ones((48, 64, 3), np.uint8)),
    "8-bit palette": Image.fromarray(np.ones((48, 64), np.uint8)).convert("P"),
    "32-bit signed grayscale": Image.fromarray(np.ones((48, 64), np.int32)),
}
SUFFIXES = [*((kind, "tif") for kind in INEXACT), *((kind, "png") for kind in list(INEXACT)[:3])]


@pytest.mark.parametrize(("kind", "suffix"), [*SUFFIXES, ("8-bit grayscale", "jpg"), ("8-bit colour", "jpg")])
def test_images_that_are_not_exact_depth_are_refused(kind: str, suffix: str, rig: Path, tmp_path):
    (tmp_path / "d" / "a").mkdir(parents=True)
    INEXACT[kind].save(tmp_path / "d" / "a" / f"0.{suffix}")
    with pytest.raises(InputError, match=rf"a/0\.{suffix} has {kind} pixels, which are not measured depth") as failed:
        open_scene(rig, depth=tmp_path / "d")
    assert failed.value.hint == DEPTH_HINT


def test_sixteen_bit_colour_is_not_depth(rig: Path, tmp_path):
    (tmp_path / "d" / "a").mkdir(parents=True)
    for number, one in enumerate(LEVELS):
        cv2.imwrite(str(tmp_path / "d" / "a" / f"{number}.png"), np.dstack([one] * 3))
    with pytest.raises(InputError, match=r"a/0\.png has 16-bit colour pixels, which are not measured depth"):
        open_scene(rig, depth=tmp_path / "d")


@pytest.mark.parametrize(
    ("codec", "layout", "message"),
    [
        ("libx264", "yuv420p", "has yuv420p pixels, which are not measured depth"),
        ("libx264", "yuv420p10le", "has yuv420p10le pixels"),
        ("ffv1", "gray", "has gray pixels"),
        ("ffv1", "gray12le", "has gray12le pixels"),
        ("jpeg2000", "gray16le", "is compressed by jpeg2000, which can change depth"),
    ],
)
def test_videos_that_are_not_exact_depth_are_refused(codec: str, layout: str, message: str, rig: Path, tmp_path):
    (tmp_path / "d").mkdir()
    write_video(tmp_path / "d" / "a.mkv", LEVELS, codec=codec, pixel_format=layout, given_as="gray16le")
    with pytest.raises(InputError, match=rf"a\.mkv {message}") as failed:
        open_scene(rig, depth=tmp_path / "d")
    assert failed.value.hint == DEPTH_HINT


@pytest.mark.parametrize(("codec", "name"), [("ffv1", "{}.mkv"), ("png", "{}.mov")])
def test_lossless_video_of_depth_is_exact(codec: str, name: str, rig: Path, tmp_path):
    (tmp_path / "d").mkdir()
    layout = "gray16le" if codec == "ffv1" else "gray16be"
    for view in "ab":
        path = tmp_path / "d" / name.format(view)
        write_video(path, LEVELS, codec=codec, pixel_format=layout, given_as="gray16le")
    batch = read(open_scene(rig, depth=tmp_path / "d", depth_levels=1))
    np.testing.assert_array_equal(batch.depth[0, :, 0].numpy(), LEVELS[3:].astype(np.float32))


def test_the_views_themselves_and_two_sequences_for_a_view_are_refused(rig: Path, tmp_path):
    for options in ({"masks": rig}, {"depth": rig}):
        with pytest.raises(UsageError, match=r"folder '.*' holds the views themselves"):
            open_scene(rig, **options)
    write_masks(tmp_path / "m", "images")
    write_video(tmp_path / "m" / "a.mp4", counter_clip(range(12)))
    with pytest.raises(InputError, match=r"holds 2 sequences for a: a, a\.mp4"):
        open_scene(rig, masks=tmp_path / "m")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        open_scene(rig, masks=tmp_path / "file")


HALF = counter_image(0b1111)[..., 0]
FLAT = {value: np.full((48, 64), value, np.uint8) for value in (0, 1, 255)}


def with_masks(rig: Path, folder: Path, a: Pixels, b: Pixels, meaning: MaskMeaning) -> Scene:
    for view, mask in (("a", a), ("b", b)):
        write_images(folder / view, {f"{n}.png": mask for n in range(12)})
    return open_scene(rig, masks=folder, mask_meaning=meaning)


def warnings_of(scene: Scene) -> list[str]:
    return [notice.text for notice in scene.notices if notice.level is Level.WARNING and "checked" in notice.text]


@pytest.mark.parametrize(
    ("meaning", "value"), [(MaskMeaning.IGNORE, 255), (MaskMeaning.IGNORE, 1), (MaskMeaning.KEEP, 0)]
)
def test_masks_that_leave_no_pixel_are_refused(meaning: MaskMeaning, value: int, rig: Path, tmp_path):
    with pytest.raises(InputError, match="the masks leave no pixel of any frame") as failed:
        with_masks(rig, tmp_path / "m", FLAT[value], FLAT[value], meaning)
    assert (failed.value.exit_code, f"mask_meaning='{meaning}'" in failed.value.hint) == (3, True)


def test_one_pixel_left_in_one_frame_that_is_not_sampled_suffices(rig: Path, tmp_path):
    write_images(tmp_path / "m" / "b", {f"{n}.png": FLAT[255] for n in range(12)})
    write_images(tmp_path / "m" / "a", {f"{n}.png": FLAT[255] for n in range(12)})
    left = FLAT[255].copy()
    left[5, 7] = 0
    write_images(tmp_path / "m" / "b", {"5.png": left})
    scene = open_scene(rig, masks=tmp_path / "m", mask_meaning=MaskMeaning.IGNORE)
    assert read(scene).valid.sum() == 1


@pytest.mark.parametrize(
    ("meaning", "value", "text"),
    [
        (MaskMeaning.IGNORE, 255, "every pixel is marked, everything is left out (mask_meaning='ignore')"),
        (MaskMeaning.DYNAMIC, 255, "every pixel is marked, everything moves (mask_meaning='dynamic')"),
        (MaskMeaning.KEEP, 255, "every pixel is marked, nothing is left out (mask_meaning='keep')"),
        (MaskMeaning.IGNORE, 1, "every pixel is marked, everything is left out (mask_meaning='ignore')"),
        (MaskMeaning.KEEP, 0, "no pixel is marked; the brightest value is 0, marked are those above 127"),
    ],
)
def test_masks_of_one_value_are_reported(meaning: MaskMeaning, value: int, text: str, rig: Path, tmp_path):
    scene = with_masks(rig, tmp_path / "m", FLAT[value], HALF, meaning)
    assert warnings_of(scene) == [f"masks of a (8 checked): {text}"]


def test_masks_that_mark_nothing_are_reported_if_those_of_no_view_do(rig: Path, tmp_path):
    assert warnings_of(with_masks(rig, tmp_path / "m", FLAT[0], HALF, MaskMeaning.IGNORE)) == []
    assert len(warnings_of(with_masks(rig, tmp_path / "m", FLAT[0], FLAT[0], MaskMeaning.IGNORE))) == 2


def test_a_film_given_as_masks_is_reported(rig: Path, tmp_path):
    gray = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))
    assert warnings_of(with_masks(rig, tmp_path / "m", HALF, gray, MaskMeaning.IGNORE)) == [
        "masks of b (8 checked): 75% of the pixels are neither black nor white; are they masks?"
    ]


def test_masks_of_any_colour_mark_pixels(rig: Path, tmp_path):
    red = np.stack([HALF // 255 * 200, HALF * 0, HALF * 0], axis=-1)
    palette = Image.fromarray(HALF // 255).convert("P")
    palette.putpalette([0, 0, 0, 128, 0, 0])
    for n in range(12):
        write_images(tmp_path / "m" / "a", {f"{n}.png": red})
        (tmp_path / "m" / "b").mkdir(exist_ok=True)
        palette.save(tmp_path / "m" / "b" / f"{n}.png")
    assert (read(open_scene(rig, masks=tmp_path / "m")).dynamic == torch.from_numpy(HALF / 255)).all()


DISK = np.hypot(*(np.indices((48, 64)) - 24)) / 12
"""Distance from the centre of a disk, in its radius."""


def soft(width: float) -> Pixels:
    """Return a disk with an edge of this width, in its radius."""
    return np.rint(255 * ((1 - DISK) / width + 0.5).clip(0, 1)).astype(np.uint8)


def labelled(*labels: int, kind: type[np.generic] = np.uint8) -> Pixels:
    """Return vertical bars of labels, with 0 between them."""
    mask = np.zeros((48, 64), kind)
    for place, label in enumerate(labels):
        mask[5:40, 2 + 10 * place : 9 + 10 * place] = label
    return mask


FAINT = np.random.default_rng(0).integers(0, 4, (48, 64)).astype(np.uint8)
LABELS = "masks: label maps (values such as {}): all pixels other than 0 are marked"
MASKS: dict[str, tuple[Pixels, Pixels, str]] = {
    "labels": (labelled(1, 13, 150), labelled(1, 13, 150) > 0, LABELS.format("1, 13")),
    "many labels": (labelled(2, 5, 9, 40, 60, 90), labelled(1, 1, 1, 1, 1, 1) > 0, LABELS.format("2, 5, 9, 40")),
    "deep labels": (labelled(26, 1001, kind=np.uint16), labelled(1, 1) > 0, LABELS.format("26, 1001")),
    "colours": (
        np.dstack([labelled(64, 0, 0), labelled(0, 128, 0), labelled(0, 0, 32)]),
        labelled(1, 1, 1) > 0,
        "32, 64",
    ),
    "0 and 1": (labelled(1), labelled(1) > 0, LABELS.format("1")),
    "binary": (labelled(255), labelled(255) > 0, ""),
    "deep binary": (labelled(65535, kind=np.uint16), labelled(1) > 0, ""),
    "soft edge": (soft(0.2), soft(0.2) > 127, ""),
    "wide edge": (soft(1.5), soft(1.5) > 127, ""),
    "faint noise": (FAINT, FAINT > 127, ""),
    "shades": (np.where(DISK < 1, 255, np.arange(64) + 40).astype(np.uint8), DISK < 1, ""),
}


@pytest.mark.parametrize("kind", MASKS)
def test_label_maps_are_told_from_masks_of_brightness(kind: str, rig: Path, tmp_path):
    mask, expected, text = MASKS[kind]
    scene = with_masks(rig, tmp_path / "m", mask, mask, MaskMeaning.DYNAMIC)
    found = [notice for notice in scene.notices if "label maps" in notice.text]
    assert len(found) == bool(text)
    for notice in found:
        assert text in notice.text
        assert notice.level is (Level.INFO if kind == "0 and 1" else Level.WARNING)
    marked = read(scene).dynamic
    np.testing.assert_array_equal(marked[0, 0, 1].numpy() > 0, expected)


def test_masks_of_all_views_are_label_maps_if_those_of_one_are(rig: Path, tmp_path):
    scene = with_masks(rig, tmp_path / "m", labelled(200), labelled(7), MaskMeaning.DYNAMIC)
    assert sum("label maps" in notice.text for notice in scene.notices) == 1
    marked = read(scene).dynamic
    assert (marked[0, :, 0] == marked[0, :, 1]).all()


def test_the_palette_of_a_label_map_counts_where_no_sampled_mask_is_dark(rig: Path, tmp_path):
    for view, dark in (("a", 10), ("b", 7)):
        (tmp_path / "m" / view).mkdir(parents=True)
        for number in range(12):
            mask = Image.fromarray(labelled(8 if number == dark else 1))
            mask.putpalette([0, 0, 0, 128, 0, 0, *[0] * 18, 64, 0, 0])
            mask.save(tmp_path / "m" / view / f"{number}.png")
    scene = open_scene(rig, masks=tmp_path / "m")
    assert [n.level for n in scene.notices if "palette" in n.text] == [Level.INFO]
    marked = read(scene).dynamic
    assert (marked[0, :, 1] == torch.from_numpy(labelled(1))).all()


def test_masks_are_named_like_their_images_or_with_png_after_the_whole_name(tmp_path):
    for view in "ab":
        write_images(tmp_path / "rig" / view, {f"{n:03}.jpg": counter_image(n) for n in range(6)})
        write_images(tmp_path / "m" / view, {f"{n:03}.jpg.png": counter_image(n)[..., 0] for n in range(6)})
    marked = read(open_scene(tmp_path / "rig", masks=tmp_path / "m")).dynamic
    assert mask_numbers(marked[0, :, 1]) == list(range(6))


@pytest.mark.parametrize("value", [0, 65535])
def test_depth_without_a_reading_is_refused_in_all_views_and_reported_in_one(value: int, rig: Path, tmp_path):
    flat = np.full((48, 64), value, np.uint16)
    for view in "ab":
        write_images(tmp_path / "d" / view, {f"{n}.png": flat for n in range(12)})
    with pytest.raises(InputError, match="no depth map has a reading: all values are 0 or 65535"):
        open_scene(rig, depth=tmp_path / "d")
    write_images(tmp_path / "d" / "b", {f"{n}.png": LEVELS[n] for n in range(12)})
    found = "0" if value == 0 else "65535 or 0"
    assert warnings_of(open_scene(rig, depth=tmp_path / "d")) == [
        f"depth maps of a (8 checked): all values are {found}"
    ]


def test_images_numbered_from_1_are_refused_for_any_frames(rig: Path, tmp_path):
    """With frames=1: each mask would silently belong to the frame before."""
    for name in ("a", "b"):
        write_images(tmp_path / "m" / name, {f"{n + 1:03}.png": np.eye(48, 64) > 0 for n in range(12)})
    for frames in ((None, None), (2, None), (2, 5)):
        with pytest.raises(InputError, match="masks of a are numbered from 1, the frames of the video from 0"):
            open_scene(rig, masks=tmp_path / "m", frames=frames)


def test_images_without_numbers_must_be_as_many_as_the_frames(rig: Path, tmp_path):
    for name in ("a", "b"):
        write_images(tmp_path / "m" / name, {f"{chr(97 + n)}.png": np.eye(48, 64) > 0 for n in range(13)})
    with pytest.raises(InputError, match="masks of a: 13 images without frame numbers for 12 frames"):
        open_scene(rig, masks=tmp_path / "m")
    for name in ("a", "b"):
        (tmp_path / "m" / name / "m.png").unlink()
    assert open_scene(rig, masks=tmp_path / "m").views[1].mask is not None


def test_an_empty_mask_is_named_with_its_folder(rig: Path, tmp_path):
    folder = write_masks(tmp_path / "m", "images")
    (folder / "b" / "004.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"^b/004\.png is empty$"):
        open_scene(rig, masks=folder)


@pytest.mark.parametrize("name", ["{view}.png", "{view}_mask.png", "{view}/mask.png"])
def test_a_mask_of_a_static_camera_holds_for_all_frames(name: str, tmp_path):
    (tmp_path / "rig").mkdir()
    for view in ("cam0", "cam1"):
        write_counter_clip(tmp_path / "rig" / f"{view}.mp4", 5)
        path = tmp_path / "m" / name.format(view=view)
        write_images(path.parent, {path.name: np.eye(48, 64) > 0.5})
    scene = open_scene(tmp_path / "rig", masks=tmp_path / "m")
    assert [view.mask and view.mask.indices for view in scene.views] == [(0,) * 5] * 2
    assert "masks: one image for all frames of cam0, cam1" in [notice.text for notice in scene.notices]
    dynamic = read(scene).dynamic
    assert float(dynamic.max()) == 1.0
    assert bool((dynamic == dynamic[:, :1]).all())


def test_the_mask_of_the_first_frame_is_no_mask_of_a_static_camera(tmp_path):
    (tmp_path / "rig").mkdir()
    write_counter_clip(tmp_path / "rig" / "00.mp4", 5)
    write_images(tmp_path / "m" / "00", {"000000.png": np.eye(48, 64) > 0.5})
    with pytest.raises(InputError):
        open_scene(tmp_path / "rig", masks=tmp_path / "m")
