"""Masks and measured depth: paired with the correct frames and read exactly."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from clip_writers import (
    counter_clip,
    counter_image,
    read_counter,
    write_counter_clip,
    write_images,
    write_sync,
    write_video,
)

from page4d.choices import MaskMeaning
from page4d.errors import InputError, UsageError
from page4d.scene.batches import open_batches
from page4d.scene.open import open_scene
from page4d.scene.records import FrameBatch, Scene


def read(scene: Scene, long_side: int = 64) -> FrameBatch:
    with open_batches(scene, long_side=long_side, multiple=1) as reader:
        return reader.read(0, scene.num_times)


def mask_numbers(maps: Any) -> list[int]:
    return [read_counter(one.numpy()[..., None].repeat(3, axis=-1)) for one in maps]


@pytest.fixture
def rig(tmp_path: Path) -> Path:
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
        if kind == "video":
            folder.mkdir(exist_ok=True)
            write_video(folder / f"{name}.mp4", frames)
        else:
            write_images(folder / name, {f"{n:03}.png": frame[..., 0] for n, frame in enumerate(frames)})
    return folder


@pytest.mark.parametrize("kind", ["images", "video"])
@pytest.mark.parametrize("scale", [1.0, 0.5, 2.0])
def test_masks_are_paired_with_the_frames_of_their_view(kind: str, scale: float, rig: Path, tmp_path: Path) -> None:
    masks = write_masks(tmp_path / "m", kind, scale)
    batch = read(open_scene(rig, masks=masks))
    assert batch.dynamic is not None
    assert mask_numbers(batch.dynamic[0, :, 0]) == list(range(3, 12))
    assert mask_numbers(batch.dynamic[0, :, 1]) == list(range(9))
    assert 0 <= float(batch.dynamic.min()) <= float(batch.dynamic.max()) <= 1
    assert batch.valid.all()


@pytest.mark.parametrize("meaning", [MaskMeaning.IGNORE, MaskMeaning.KEEP])
def test_masks_exclude_pixels(meaning: MaskMeaning, rig: Path, tmp_path: Path) -> None:
    batch = read(open_scene(rig, masks=write_masks(tmp_path / "m", "images"), mask_meaning=meaning))
    assert batch.dynamic is None
    marked = torch.from_numpy(np.stack([counter_image(n)[..., 0] > 0 for n in range(3, 12)]))
    assert torch.equal(batch.valid[0, :, 0], marked if meaning is MaskMeaning.KEEP else ~marked)


def test_one_marked_pixel_excludes_its_network_pixel(rig: Path, tmp_path: Path) -> None:
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


def test_a_view_without_masks_is_reported_and_has_unknown_motion(rig: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "m" / "b", {f"{n}.png": np.full((48, 64), 255, np.uint8) for n in range(12)})
    scene = open_scene(rig, masks=tmp_path / "m")
    assert "no masks for a" in [notice.text for notice in scene.notices]
    batch = read(scene)
    assert batch.dynamic is not None
    assert (batch.dynamic[:, :, 0] == 0.5).all()
    assert (batch.dynamic[:, :, 1] == 1).all()
    ignoring = read(open_scene(rig, masks=tmp_path / "m", mask_meaning=MaskMeaning.IGNORE)).valid
    assert ignoring[:, :, 0].all()
    assert not ignoring[:, :, 1].any()


def test_measured_depth_is_exact(rig: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    depth = random.integers(0, 65536, (12, 48, 64)).astype(np.uint16)
    for name in "ab":
        write_images(tmp_path / "d" / name, {f"{n:04}.png": one for n, one in enumerate(depth)})
    batch = read(open_scene(rig, depth=tmp_path / "d", depth_levels=4000))
    assert batch.depth is not None
    np.testing.assert_array_equal(batch.depth[0, :, 0].numpy(), (depth[3:] / 4000).astype(np.float32))
    small = read(open_scene(rig, depth=tmp_path / "d", depth_levels=4000), long_side=22).depth
    assert small is not None
    height, width = small.shape[-2:]
    fits = np.zeros((height, width), dtype=bool)
    for side in (-1e-6, 1e-6):  # a centre between two measurements may take either
        rows = ((np.arange(height) + 0.5) * 48 / height).astype(int)
        columns = ((np.arange(width) + 0.5) * 64 / width + side).astype(int)
        fits |= small[0, 0, 1].numpy() == (depth[0][rows][:, columns] / 4000).astype(np.float32)
    assert fits.all()


def test_depth_of_another_resolution_is_aligned_with_the_image(rig: Path, tmp_path: Path) -> None:
    depth = np.repeat(np.repeat(np.arange(24 * 32, dtype=np.uint16).reshape(24, 32), 2, axis=0), 2, axis=1)
    for name in "ab":
        write_images(tmp_path / "d" / name, {f"{n:04}.png": depth[::2, ::2] for n in range(12)})
    batch = read(open_scene(rig, depth=tmp_path / "d", depth_levels=1))
    assert batch.depth is not None
    np.testing.assert_array_equal(batch.depth[0, 0, 0].numpy(), depth.astype(np.float32))


def test_masks_of_image_folders_are_paired_by_name(tmp_path: Path) -> None:
    for name in "ab":
        write_images(tmp_path / "rig" / name, {f"{n:03}.png": counter_image(n) for n in range(20, 32)})
        masks = {f"{n:03}.png": counter_image(n)[..., 0] for n in range(40)}
        write_images(tmp_path / "m" / name, masks)
    batch = read(open_scene(tmp_path / "rig", masks=tmp_path / "m", image_fps=30, frames=(2, 9)))
    assert batch.dynamic is not None
    assert mask_numbers(batch.dynamic[0, :, 1]) == list(range(22, 29))
    (tmp_path / "m" / "b" / "025.png").unlink()
    with pytest.raises(InputError, match="masks of b: missing for 1 of 12 frames, first 025"):
        open_scene(tmp_path / "rig", masks=tmp_path / "m", image_fps=30)


def test_sidecars_that_do_not_match_their_view_are_refused(rig: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_scene(rig, masks=tmp_path / "nowhere")
    (tmp_path / "m").mkdir()
    with pytest.raises(UsageError, match=r"no masks in .* for a, b"):
        open_scene(rig, masks=tmp_path / "m")
    write_video(tmp_path / "m" / "a.mp4", counter_clip(range(6)))
    with pytest.raises(InputError, match=r"masks: a\.mp4 has no frame for 6 of 9 instants of a"):
        open_scene(rig, masks=tmp_path / "m")
    (tmp_path / "m" / "a.mp4").unlink()
    write_images(tmp_path / "m" / "a", {f"{n}.png": np.zeros((48, 48), np.uint8) for n in range(12)})
    with pytest.raises(InputError, match="masks of a are 48x48, its frames 64x48: aspect ratios differ"):
        open_scene(rig, masks=tmp_path / "m")


def test_depth_of_more_than_sixteen_bits_is_refused(rig: Path, tmp_path: Path) -> None:
    (tmp_path / "d" / "a").mkdir(parents=True)
    for n in range(12):
        cv2.imwrite(str(tmp_path / "d" / "a" / f"{n}.tif"), np.ones((48, 64), np.float32))
    with pytest.raises(InputError, match=r"a/3\.tif"):
        read(open_scene(rig, depth=tmp_path / "d"))
