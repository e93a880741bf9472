"""Network input of the published preprocessing equals that of the public loaders, pixel by pixel."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from page4d.choices import Preprocess
from page4d.formats.maps import crop_to_content
from page4d.geometry.pixels import PixelTransform
from page4d.networks.preprocess import crop_views, da3_input_sizes, pad_windows, place_views
from page4d.scene.batches import FrameBatch, open_placed_batches
from page4d.scene.images import resize_twice
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from tests.scene.clip_writers import write_video

GOLDEN = Path(__file__).parents[1] / "golden"
SHARED = Path(__file__).parents[3] / "shared" / "golden"
HASHES = json.loads((GOLDEN / "preprocess_sha256.json").read_text())
WAYS = {
    "crop": Preprocess.VGGT_CROP,
    "pad": Preprocess.VGGT_PAD,
    "mixed_crop": Preprocess.VGGT_CROP,
    "pi3": Preprocess.PI3,
}


def read(scene: Scene, preprocess: Preprocess, transforms: tuple[PixelTransform, ...] | None = None) -> FrameBatch:
    if transforms is None:
        multiple = 16 if preprocess is Preprocess.VGGT_OMEGA else 14
        transforms = place_views(preprocess, [view.source.size for view in scene.views], 0, multiple)
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


DA3_OMEGA = json.loads((GOLDEN / "preprocess_da3_omega.json").read_text())["sha256"]
MIXED = ("mixed_0", "mixed_1", "mixed_2")


def sha256(pixels: Tensor) -> str:
    return hashlib.sha256(pixels.contiguous().numpy().tobytes()).hexdigest()


def da3(inputs: dict[str, Tensor], names: tuple[str, ...], long_side: int) -> list[Tensor]:
    """Return the images [3, H, W] that the network sees, at another size than that of the option."""
    sizes = [(inputs[name].shape[0], inputs[name].shape[1]) for name in names]
    contents = [da3_input_sizes(size, long_side)[1] for size in sizes]
    placed = crop_views(sizes, contents)
    resized = [
        torch.from_numpy(resize_twice(inputs[name].numpy(), size)) for name, size in zip(names, contents, strict=True)
    ]
    return [
        pixels[view.content_rows, view.content_columns].permute(2, 0, 1)
        for pixels, view in zip(resized, placed, strict=True)
    ]


def omega(inputs: dict[str, Tensor], names: tuple[str, ...], side: int, folder: Path) -> Tensor:
    scene = scene_of({name: inputs[name] for name in names}, folder)
    transforms = pad_windows([view.source.size for view in scene.views], side)
    return levels(read(scene, Preprocess.VGGT_OMEGA, transforms))


def test_pixel_hashes_of_da3_and_vggt_omega_equal_the_reference(tmp_path: Path) -> None:
    tensors = load_file(GOLDEN / "preprocess_da3_omega.safetensors")
    first = {name.removeprefix("da3/"): pixels for name, pixels in tensors.items()}
    names = ("image_1", *MIXED)
    for name, pixels in zip(names, [*da3(first, names[:1], 140), *da3(first, MIXED, 140)], strict=True):
        assert sha256(pixels) == DA3_OMEGA[f"da3/{name}"], name
    for number in (2, 4):
        name = f"vggt-omega/image_{number}"
        (tmp_path / str(number)).mkdir()
        (pixels,) = omega({"a": tensors[name]}, ("a",), 128, tmp_path / str(number))
        assert sha256(pixels) == DA3_OMEGA[name], name


@pytest.mark.parametrize("way", ["da3", "vggt_omega"])
def test_all_pixels_of_da3_and_vggt_omega_equal_the_reference(way: str, tmp_path: Path) -> None:
    path = SHARED / f"preprocess_{way}.safetensors"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    tensors, record = load_file(path), json.loads(path.with_suffix(".json").read_text())
    inputs = {name.removeprefix("input/"): pixels for name, pixels in tensors.items() if name.startswith("input/")}
    rows = [((f"image_{row['index']}",), row) for row in record["images"]]
    for number, (names, row) in enumerate([*rows, (MIXED, record["mixed"])]):
        if row.get("method", row.get("mode")) not in ("upper_bound_resize", "balanced"):
            continue  # not a default
        (tmp_path / str(number)).mkdir()
        if way == "da3":
            ours = da3(inputs, names, row["process_res"])
        else:
            ours = list(omega(inputs, names, row["image_resolution"], tmp_path / str(number)))
        for name, pixels in zip(names, ours, strict=True):
            assert torch.equal(pixels, tensors[f"output/{name}"]), name


def test_da3_images_are_resized_twice(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (90, 601, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    batch = read(scene_of({"a": pixels}, tmp_path), Preprocess.DA3)
    assert batch.pixel_transforms[0].canvas_size == (70, 504)
    assert torch.equal(levels(batch)[0], torch.from_numpy(resize_twice(pixels.numpy(), (70, 504))).permute(2, 0, 1))


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


def banded(folder: Path, band: np.ndarray) -> Scene:
    """Return a view of one picture that is bright, masked and 2 m away where the band is."""
    for kind, level in (("rig", np.uint8(255)), ("masks", np.uint8(255)), ("depth", np.uint16(2000))):
        (folder / kind / "a").mkdir(parents=True)
        Image.fromarray(band * level).save(folder / kind / "a" / "0.png")
    return open_scene(folder / "rig", masks=folder / "masks", depth=folder / "depth")


def test_image_mask_and_depth_are_cropped_equally(tmp_path: Path) -> None:
    """A band of rows is bright, masked and near, in a view that is cropped to its middle."""
    band, shown = slice(30, 35), np.zeros((96, 56), bool)
    shown[band] = True
    batch = read(banded(tmp_path, shown), Preprocess.VGGT_CROP)
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


def test_image_mask_and_depth_are_read_from_one_window(tmp_path: Path) -> None:
    """A band of columns is bright, masked and near, in a view that is cropped before it is resized."""
    band, shown = slice(130, 140), np.zeros((64, 301), bool)
    shown[:, band] = True
    batch = read(banded(tmp_path, shown), Preprocess.VGGT_OMEGA)
    (view,) = batch.pixel_transforms
    edges = view.to_network(torch.tensor([[float(band.start), 0.0], [float(band.stop), 0.0]]))[:, 0]
    columns = torch.arange(view.canvas_size[1]) + 0.5
    inside = (columns > edges[0]) & (columns < edges[1])
    clear = (columns[:, None] - edges).abs().amin(dim=1) > 10
    assert inside[clear].sum() > 20
    assert torch.equal(batch.depth[0, 0, 0, 9, clear] == 2, inside[clear])
    assert torch.equal(batch.dynamic[0, 0, 0, 9, clear] > 0.5, inside[clear])
    assert torch.equal(batch.images[0, 0, 0, 0, 9, clear] > 0.5, inside[clear])
    depth = crop_to_content(batch.depth[0, 0, 0], view)
    assert depth.shape == view.map_size
    positions = (torch.arange(view.map_size[1]) + 0.5) * 301 / view.map_size[1]
    near = (positions[:, None] - torch.tensor([float(band.start), float(band.stop)])).abs().amin(dim=1) < 3
    assert torch.equal((depth[9] == 2)[~near], ((positions > band.start) & (positions < band.stop))[~near])


def test_only_vggt_preprocessing_blends_alpha_with_white(tmp_path: Path) -> None:
    picture = np.zeros((56, 56, 4), np.uint8)
    picture[:28, :, 3] = 255  # the upper half is black, the lower one transparent
    scene = scene_of({"a": torch.from_numpy(picture)}, tmp_path)
    for preprocess, expected in (
        (Preprocess.VGGT_CROP, 1.0),
        (Preprocess.VGGT_OMEGA, 1.0),
        (Preprocess.PI3, 0.0),
        (Preprocess.DA3, 0.0),
    ):
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
