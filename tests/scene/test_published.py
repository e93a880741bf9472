"""Network input of the published preprocessing equals that of the public loaders, pixel by pixel."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from clip_writers import write_video
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from page4d.choices import Preprocess
from page4d.geometry.pixels import place_views
from page4d.scene.batches import open_placed_batches
from page4d.scene.open import open_scene
from page4d.scene.records import FrameBatch, Scene

GOLDEN = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"
HASHES = json.loads((GOLDEN / "preprocess_sha256.json").read_text())
WAYS = {
    "crop": Preprocess.VGGT_CROP,
    "pad": Preprocess.VGGT_PAD,
    "mixed_crop": Preprocess.VGGT_CROP,
    "pi3": Preprocess.PI3,
}


def read(scene: Scene, preprocess: Preprocess) -> FrameBatch:
    transforms = place_views(preprocess, [view.source.size for view in scene.views], 0, 14)
    with open_placed_batches(scene, transforms, preprocess) as reader:
        return reader.read(0, scene.num_times)


def scene_of(pictures: dict[str, Tensor], folder: Path) -> Scene:
    for name, pixels in pictures.items():
        (folder / name).mkdir()
        Image.fromarray(pixels.numpy()).save(folder / name / "0.png")
    return open_scene(folder)


def levels(batch: FrameBatch) -> Tensor:
    """Return the images as bytes [V, 3, H, W]; asserts that every value is exactly a multiple of 1/255."""
    images = batch.images[0, 0]
    bytes_ = (images * 255).round().to(torch.uint8)
    assert torch.equal(bytes_.float() / 255, images)
    return bytes_


@pytest.mark.parametrize("name", list(HASHES))
def test_pixel_hashes_equal_the_reference(name: str, tmp_path: Path) -> None:
    inputs = load_file(GOLDEN / "preprocess_inputs.safetensors")
    way, _, picture = name.partition("/")
    names = [picture] if picture else ["land", "rgba"]
    ours = levels(read(scene_of({part: inputs[f"input/{part}"] for part in names}, tmp_path), WAYS[way]))
    assert hashlib.sha256((ours[0] if picture else ours).numpy().tobytes()).hexdigest() == HASHES[name]


@pytest.mark.parametrize("way", ["vggt_crop", "vggt_pad", "vggt_mixed", "pi3"])
def test_all_pixels_equal_the_reference(way: str, tmp_path: Path) -> None:
    path = SHARED / f"preprocess_{way}.safetensors"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    tensors = load_file(path)
    for number, (name, expected) in enumerate(tensors.items()):
        kind, _, rest = name.partition("/")
        if kind == "input":
            continue
        (tmp_path / str(number)).mkdir()
        step, _, picture = rest.partition("/")
        parts = {part: tensors[f"input/{part}"] for part in ([picture] if picture else ["land", "rgba"])}
        ours = levels(read(scene_of(parts, tmp_path / str(number)), WAYS[step]))
        assert torch.equal(ours[0] if picture else ours, expected), name


def test_padding_is_white_and_invalid(tmp_path: Path) -> None:
    picture = torch.full((40, 80, 3), 40, dtype=torch.uint8)
    batch = read(scene_of({"a": picture}, tmp_path), Preprocess.VGGT_PAD)
    outside = ~batch.valid[0, 0, 0]
    assert torch.equal(batch.valid[0, 0, 0], batch.pixel_transforms[0].content_mask())
    assert bool((batch.images[0, 0, 0][:, outside] == 1).all())
    assert outside.sum() == 518 * (518 - 252)


def test_image_mask_and_depth_are_cropped_equally(tmp_path: Path) -> None:
    """A band of rows is bright, masked and near, in a view that is cropped to its middle."""
    rig, band = tmp_path / "rig", slice(30, 35)
    for folder, kind in ((rig, np.uint8), (tmp_path / "m", np.uint8), (tmp_path / "d", np.uint16)):
        pixels = np.zeros((96, 56), kind)
        pixels[band] = 2000 if kind is np.uint16 else 255
        (folder / "a").mkdir(parents=True)
        Image.fromarray(pixels).save(folder / "a" / "0.png")
    scene = open_scene(rig, masks=tmp_path / "m", depth=tmp_path / "d")
    batch = read(scene, Preprocess.VGGT_CROP)
    (view,) = batch.pixel_transforms
    assert view.top < 0
    edges = view.to_network(torch.tensor([[0.0, band.start], [0.0, band.stop]]))[:, 1]
    rows = torch.arange(view.canvas_size[0]) + 0.5
    inside, near = (rows > edges[0]) & (rows < edges[1]), (rows[:, None] - edges).abs().amin(dim=1) < 10
    assert inside.any()
    clear = ~near
    assert torch.equal(batch.depth[0, 0, 0, clear, 9] == 2, inside[clear])
    assert torch.equal(batch.dynamic[0, 0, 0, clear, 9] > 0.5, inside[clear])
    assert torch.equal(batch.images[0, 0, 0, 0, clear, 9] > 0.5, inside[clear])
    assert bool(batch.valid.all())


def test_only_vggt_preprocessing_blends_alpha_with_white(tmp_path: Path) -> None:
    picture = np.zeros((56, 56, 4), np.uint8)
    picture[:28, :, 3] = 255  # the upper half is black, the lower one transparent
    scene = scene_of({"a": torch.from_numpy(picture)}, tmp_path)
    for preprocess, expected in ((Preprocess.VGGT_CROP, 1.0), (Preprocess.PI3, 0.0)):
        image = read(scene, preprocess).images[0, 0, 0, 0]
        assert float(image[100, 100]) == 0
        assert float(image[-100, 100]) == expected


def test_videos_and_sixteen_bit_images_are_resampled_by_the_same_filter(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 64).round().astype(np.uint8)
    picture = np.repeat(np.broadcast_to(ramp, (48, 64))[..., None], 3, axis=2)
    expected = np.asarray(Image.fromarray(picture).resize((518, 392), Image.Resampling.BICUBIC)) / 255
    (tmp_path / "v").mkdir()
    write_video(tmp_path / "v" / "a.mp4", [np.ascontiguousarray(picture)])
    (tmp_path / "d" / "a").mkdir(parents=True)
    deep = Image.fromarray((picture[..., 0].astype(np.uint16) << 8) + 77)
    deep.save(tmp_path / "d" / "a" / "0.png")
    for folder, tolerance in (("v", 3 / 255), ("d", 1e-6)):
        image = read(open_scene(tmp_path / folder), Preprocess.VGGT_CROP).images[0, 0, 0]
        assert image.shape == (3, 392, 518)
        np.testing.assert_allclose(image[0], expected[..., 0], atol=tolerance)
