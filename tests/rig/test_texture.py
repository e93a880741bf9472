"""Features of texture are in undistorted original pixels, repeat over instants with equal ids, and respect masks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from page4d.choices import MaskMeaning
from page4d.geometry.distortion import Distortion, LensModel
from page4d.rig.epipolar import undistorted_pixels
from page4d.rig.learned import cross_attention
from page4d.rig.lens import lenses_of
from page4d.rig.texture import MAX_INSTANTS, ROOT_SIFT, extract_texture
from page4d.scene.images import probe_image_folder
from page4d.scene.open import open_scene
from page4d.scene.records import PairedFrames, Scene


def blobs(centres: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image with bright blobs of 4 px at the given places, in pixels with centres at 0.5."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    image = np.full(size, 60.0)
    for cx, cy in centres:
        image += 150 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * 4.0**2))
    return np.repeat(np.clip(image, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


CENTRES = np.array([[40.25, 30.5], [120.5, 44.0], [70.0, 90.75], [150.0, 100.0]])


def write_scene(folder: Path, size: tuple[int, int] = (130, 190), frames: int = 2, factor: float = 1.0) -> Scene:
    for view in ("a", "b"):
        (folder / view).mkdir(parents=True)
        for frame in range(frames):
            Image.fromarray(blobs(CENTRES * factor, size)).save(folder / view / f"{frame}.png")
    return open_scene(folder)


def test_features_lie_on_pixel_centres_of_one_half(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    for view in extract_texture(scene, [0], lenses_of(scene), ROOT_SIFT):
        distances = np.linalg.norm(view[0].points[None] - CENTRES[:, None], axis=-1)
        assert distances.min(axis=1).max() < 0.2


def test_features_that_repeat_over_instants_have_the_same_ids(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    seen: list[tuple[int, int]] = []
    view = extract_texture(
        scene, [0, 1], lenses_of(scene), ROOT_SIFT, lambda done, total: seen.append((done, total))
    )[0]
    assert view[0].ids.tolist() == view[1].ids.tolist()
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_few_instants_are_used_however_long_the_capture_is(tmp_path: Path) -> None:
    scene = write_scene(tmp_path, frames=20)
    instants = sorted(extract_texture(scene, range(20), lenses_of(scene), ROOT_SIFT)[0])
    assert len(instants) == MAX_INSTANTS
    assert (instants[0], instants[-1]) == (0, 19)


def test_known_features_are_kept_and_those_of_other_instants_added(tmp_path: Path) -> None:
    scene = write_scene(tmp_path, frames=3)
    known = extract_texture(scene, [0, 2], lenses_of(scene), ROOT_SIFT)
    found = extract_texture(scene, range(3), lenses_of(scene), ROOT_SIFT, known=known)
    for before, after in zip(known, found, strict=True):
        assert sorted(after) == [0, 1, 2]
        assert all(after[instant] is before[instant] for instant in (0, 2))
        assert after[1].ids.tolist() == before[0].ids.tolist()


def test_excluded_pixels_have_no_features(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "rig")
    (tmp_path / "mask" / "a").mkdir(parents=True)
    mask = np.zeros((130, 190), np.uint8)
    mask[:, :95] = 255
    for name in ("0", "1"):
        Image.fromarray(mask).save(tmp_path / "mask" / "a" / f"{name}.png")
    source = probe_image_folder(tmp_path / "mask" / "a", fps=30, max_megapixels=1, grayscale=True)
    views = tuple(replace(view, mask=PairedFrames(frames=source, indices=(0, 1))) for view in scene.views)
    for meaning, left, right in ((MaskMeaning.IGNORE, False, True), (MaskMeaning.KEEP, True, False)):
        masked = replace(scene, views=views, mask_meaning=meaning)
        points = extract_texture(masked, [0], lenses_of(scene), ROOT_SIFT)[0][0].points
        assert bool((points[:, 0] < 90).any()) is left
        assert bool((points[:, 0] > 100).any()) is right


def test_black_frames_have_no_features(tmp_path: Path) -> None:
    for view in ("a", "b"):
        (tmp_path / view).mkdir()
        Image.new("RGB", (64, 48)).save(tmp_path / view / "0.png")
    scene = open_scene(tmp_path)
    for texture in extract_texture(scene, [0], lenses_of(scene), ROOT_SIFT):
        assert texture[0].points.shape == (0, 2)
    assert extract_texture(scene, [], lenses_of(scene), ROOT_SIFT)[0] == {}


def test_undistortion_inverts_the_lens(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    distortion = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(0.1, 0.02, 0.001, -0.002))
    lens = replace(lenses_of(scene)[0], distortion=distortion)
    ideal = undistorted_pixels(CENTRES, lens)
    focal, centre = lens.focal, lens.intrinsics[:2, 2]
    again = distortion.distort(torch.from_numpy((ideal - centre) / focal)).numpy() * focal + centre
    assert np.abs(ideal - CENTRES).max() > 0.05
    np.testing.assert_allclose(again, CENTRES, atol=1e-6)


def test_cross_attention_is_that_of_the_public_matcher() -> None:
    lightglue = pytest.importorskip("kornia.feature.lightglue", reason="kornia is not installed")
    torch.manual_seed(0)
    block = lightglue.CrossBlock(64, 4).eval()
    first, second = torch.randn(2, 50, 64), torch.randn(2, 70, 64)
    with torch.inference_mode():
        for found, expected in zip(cross_attention(block, first, second), block(first, second), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
