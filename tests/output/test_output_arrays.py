"""A result as points, pictures, arrays, PyTorch dataset and xarray dataset: all equal the single readers."""

import pickle
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from page4d.errors import CapabilityError, InputError, UsageError
from page4d.geometry.camera import project
from page4d.geometry.transforms import transform_points
from page4d.output.reader import Output, open_output
from page4d.scene.open import open_scene
from tests.output.output_scene import export, made_capture, with_velocity
from tests.scene.clip_writers import counter_clip, read_counter, write_video

NAMES = ("cam 1", "cam 2", "Kamera ü")
SIZES = ((120, 160), (120, 160), (160, 120))
PAIR = NAMES[:2]
TIMES = 12


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos whose pictures are frame numbers, of another number in each view."""
    folder = tmp_path_factory.mktemp("scene")
    for view, (name, size) in enumerate(zip(NAMES, SIZES, strict=True)):
        write_video(folder / f"{name}.mp4", counter_clip(range(100 * view, 100 * view + TIMES), size))
    return folder


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, scene: Path) -> Output:
    """A run of these videos; its maps are of the ray-traced capture."""
    folder = tmp_path_factory.mktemp("out")
    export(folder, made_capture(TIMES, 56, SIZES, names=NAMES), scene=open_scene(scene))
    return open_output(folder)


def test_world_points_project_onto_their_own_pixels(output: Output):
    zooming = output.cameras.intrinsics.clone()
    zooming[..., :2, :2] *= torch.linspace(1, 2, TIMES)[:, None, None, None]
    output = replace(output, cameras=replace(output.cameras, intrinsics=zooming))
    for view, name in enumerate(NAMES):
        for instant in (0, TIMES - 1):
            points, mask = output.world_points(instant, name)
            depth = output.depth(instant, name)
            assert points.dtype == np.float32
            assert np.array_equal(mask, depth > 0)
            assert mask.mean() > 0.5
            assert np.isnan(points[~mask]).all()
            pose = output.cameras.world_to_camera[instant, view]
            in_camera = transform_points(pose, torch.from_numpy(points[mask]).double())
            pixels, z = project(in_camera, output.intrinsics_at_maps(name)[instant])
            rows, columns = np.nonzero(mask)
            assert np.abs(pixels.numpy() - np.stack([columns, rows], axis=1) - 0.5).max() < 1e-3
            assert np.abs(z.numpy() - depth[mask]).max() < 1e-5


def test_images_are_those_of_the_videos(output: Output, scene: Path, tmp_path: Path):
    for view, name in enumerate(NAMES):
        picture = output.image(5, name, scene)
        assert picture.shape == (*SIZES[view], 3)
        assert read_counter(picture / 255.0) == 100 * view + 5
        (streamed,) = output.pictures(scene).read(name, [5])
        assert np.array_equal(picture, streamed)
        small = output.image(5, name, scene, size="maps")
        assert small.shape == (*output.depth(5, name).shape, 3)
        assert small.dtype == np.uint8
        assert read_counter(small / 255.0) == 100 * view + 5
    with pytest.raises(UsageError, match="no picture size is called 'map'"):
        output.image(5, NAMES[0], scene, size="map")
    with pytest.raises(InputError, match="no videos in"):
        output.image(5, NAMES[0], tmp_path)


def test_open3d_clouds_equal_the_points(output: Output, open3d: ModuleType):
    cloud, converted = output.points(1), output.to_open3d(1)
    assert isinstance(converted, open3d.t.geometry.PointCloud)
    assert np.array_equal(converted.point.positions.numpy(), cloud.xyz)
    assert np.array_equal(converted.point.colors.numpy(), cloud.rgb)
    for name in ("confidence", "view", "dynamic"):
        assert np.array_equal(converted.point[name].numpy()[:, 0], getattr(cloud, name))


def test_arrays_equal_the_single_readers(output: Output):
    times, views = (7, 0, 3), ("cam 2", "cam 1")
    arrays = output.arrays(views=views, times=times)
    assert list(arrays) == ["depth", "conf", "dynamic", "intrinsics", "world_to_camera", "times", "views"]
    assert arrays["views"].tolist() == list(views)
    assert arrays["times"].tolist() == [output.run.times[time] for time in times]
    assert arrays["depth"].dtype == arrays["conf"].dtype == np.float32
    assert arrays["intrinsics"].dtype == arrays["world_to_camera"].dtype == np.float64
    for place, time in enumerate(times):
        for column, view in enumerate(views):
            index = NAMES.index(view)
            assert np.array_equal(arrays["depth"][place, column], output.depth(time, view))
            assert np.array_equal(arrays["conf"][place, column], output.confidence(time, view))
            assert np.array_equal(arrays["dynamic"][place, column], output.dynamic(time, view))
            assert np.array_equal(arrays["intrinsics"][place, column], output.intrinsics_at_maps(view)[time])
            assert np.array_equal(
                arrays["world_to_camera"][place, column], output.cameras.world_to_camera[time, index]
            )
    assert output.arrays(views=PAIR)["depth"].shape == (TIMES, 2, *output.depth(0, "cam 1").shape)


def test_an_instant_is_any_whole_number(output: Output):
    expected = output.arrays(PAIR, [1])["times"]
    for times in ([1.0], np.array([1]), np.ones(1)):
        assert np.array_equal(output.arrays(PAIR, times)["times"], expected)
        assert output.dataset(times=times).times == (1,)


def test_arrays_can_be_saved_and_loaded(output: Output, tmp_path: Path):
    arrays = output.arrays(views=["cam 1"], times=[0, 1])
    for instant in (1, np.array(1), torch.tensor(1)):
        assert np.array_equal(output.arrays(views="cam 1", times=instant)["depth"], arrays["depth"][1:])
    np.savez(tmp_path / "a.npz", **arrays)
    loaded = np.load(tmp_path / "a.npz")  # without pickle
    assert all(np.array_equal(loaded[name], value) for name, value in arrays.items())


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({}, r"the maps of cam 1 are 56x42, those of Kamera ü 42x56"),
        ({"views": ["cam"]}, "no view is called 'cam'"),
        ({"views": []}, "no views"),
        ({"times": []}, "no instants"),
        ({"times": [0, 12]}, "no instant 12"),
        ({"times": [-1]}, "no instant -1"),
        ({"times": [1.5]}, r"no instant 1\.5"),
        ({"times": 12}, "no instant 12"),
        ({"times": [True, False]}, "no instant True"),
        ({"times": torch.tensor([True])}, "no instant"),
        ({"times": slice(0, 2)}, r"no instant slice\(0, 2"),
        ({"times": "cam 1"}, "no instant cam 1"),
        ({"views": [0]}, "no view is called '0'"),
        ({"views": 0}, "no view is called '0'"),
    ],
)
def test_a_choice_that_does_not_fit_is_refused(output: Output, chosen: dict[str, list], words: str):
    with pytest.raises(UsageError, match=words) as raised:
        output.arrays(**chosen)
    assert chosen or raised.value.hint == "give views of one size, such as views=['cam 1', 'cam 2']"


def test_a_run_without_motion_has_arrays_and_items_without_it(tmp_path: Path):
    export(tmp_path, replace(made_capture(2, 28, SIZES, names=NAMES), dynamic=None))
    still = open_output(tmp_path)
    assert "dynamic" not in still.arrays(views=PAIR)
    assert "mask" not in still.dataset()[0]
    assert "image" not in still.dataset()[0]


def test_a_run_with_velocities_has_them_in_clouds_arrays_and_items(tmp_path: Path):
    export(tmp_path, with_velocity(made_capture(3, 56, SIZES, names=NAMES), (10.5, -1.0, 0.25)))
    output = open_output(tmp_path)
    arrays = output.arrays(views=PAIR)
    assert arrays["velocity"].shape == (*arrays["depth"].shape, 3)
    assert arrays["velocity"].dtype == arrays["velocity_sigma"].dtype == np.float32
    fast = arrays["velocity"][arrays["dynamic"] & (arrays["velocity_sigma"] > 0)]
    assert np.abs(fast - [10.5, -1.0, 0.25]).max() <= output.run.motion.motion_step
    assert (arrays["velocity"][~arrays["dynamic"]] == 0).all()
    assert not arrays["velocity_sigma"][..., :7].any()
    assert not arrays["velocity"][..., :7, :].any()
    assert (arrays["velocity_sigma"][..., 7:] > 0).all()
    dataset = output.dataset()
    for index in range(len(dataset)):
        time, view = divmod(index, len(NAMES))
        velocity, sigma = output.velocity(time, NAMES[view])
        assert np.array_equal(dataset[index]["velocity"], velocity)
        assert np.array_equal(dataset[index]["velocity_sigma"], sigma)
        if view < len(PAIR):
            assert np.array_equal(arrays["velocity"][time, view], velocity)
    cloud = output.points(1)
    assert (cloud.velocity_sigma > 0).mean() == pytest.approx(0.875, abs=0.05)
    assert np.array_equal((cloud.velocity != 0).any(axis=1), (cloud.dynamic != 0) & (cloud.velocity_sigma > 0))
    xarray = pytest.importorskip("xarray")
    output.to_xarray(views=PAIR).to_netcdf(tmp_path / "a.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "a.nc", engine="scipy") as read:
        assert output.maps(0, NAMES[0]).keys() <= read.keys()
        assert np.array_equal(read.velocity, arrays["velocity"])
        assert np.array_equal(read.velocity_sigma, arrays["velocity_sigma"])
        assert (read.velocity.dims, read.velocity.attrs["units"]) == (("time", "view", "y", "x", "axis"), "metre s-1")
        assert float(read.velocity.sel(axis="y").min()) == pytest.approx(-1.0, abs=1e-3)


def test_a_run_without_velocities_has_arrays_and_items_without_them(output: Output):
    assert "velocity" not in output.arrays(views=PAIR, times=[0])
    assert "velocity" not in output.dataset(times=[0])[0]
    with pytest.raises(UsageError, match="no velocities"):
        output.velocity(0, PAIR[0])


@pytest.mark.parametrize("size", ["maps", "original"])
def test_items_of_a_dataset_equal_the_single_readers(output: Output, scene: Path, size: str):
    dataset = output.dataset(scene, times=[0, 1, 4], size=size)
    assert len(dataset) == 9
    order = list(range(9))
    random.Random(0).shuffle(order)
    for index in [*range(9), *order, -1]:
        item, (place, view) = dataset[index], divmod(index % 9, 3)
        time, name = (0, 1, 4)[place], NAMES[view]
        image = output.image(time, name, scene, size=size)
        assert torch.equal(item["image"], torch.from_numpy(image / np.float32(255)).permute(2, 0, 1))
        assert np.array_equal(item["depth"], output.depth(time, name))
        assert np.array_equal(item["confidence"], output.confidence(time, name))
        assert np.array_equal(item["mask"], output.dynamic(time, name))
        exact = output.intrinsics_at_maps(name) if size == "maps" else output.cameras.intrinsics[:, view]
        assert torch.allclose(item["K"].double(), exact[time], rtol=1e-6)
        assert torch.equal(item["world_to_camera"], output.cameras.world_to_camera[time, view].float())
        assert (item["time"].item(), item["view"].item()) == (output.run.times[time], view)
    with pytest.raises(IndexError):
        dataset[9]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_the_dataset_in_other_processes(output: Output, scene: Path, workers: int):
    dataset = output.dataset(scene, views=PAIR)
    dataset[3]  # opens a decoder before the workers start
    loader = DataLoader(dataset, batch_size=4, num_workers=workers)
    read = 0
    for batch in loader:
        for time, view, image, depth in zip(
            batch["time"], batch["view"], batch["image"], batch["depth"], strict=True
        ):
            index = round((time.item() - 0.1) * 30)
            assert read_counter(image.permute(1, 2, 0).numpy()) == 100 * int(view) + index
            assert np.array_equal(depth, output.depth(index, PAIR[int(view)]))
            assert 2 * index + int(view) == read
            read += 1
    assert read == 2 * TIMES


def test_output_and_dataset_can_be_pickled(output: Output, scene: Path):
    dataset = output.dataset(scene, views=PAIR)
    item = dataset[5]
    copy = pickle.loads(pickle.dumps(dataset))
    assert all(torch.equal(copy[5][name], value) for name, value in item.items())
    assert np.array_equal(pickle.loads(pickle.dumps(output)).depth(0, "cam 1"), output.depth(0, "cam 1"))


def test_xarray_equals_the_arrays_also_when_saved(output: Output, tmp_path: Path):
    xarray = pytest.importorskip("xarray")
    made = output.to_xarray(views=PAIR, times=range(3))
    made.to_netcdf(tmp_path / "a.nc", engine="scipy")
    arrays = output.arrays(views=PAIR, times=range(3))
    with xarray.open_dataset(tmp_path / "a.nc", engine="scipy") as read:
        for found in (made, read):
            assert dict(found.depth.sizes) == {"time": 3, "view": 2, "y": 42, "x": 56}
            for name, key in (("confidence", "conf"), *((name, name) for name in ("depth", "dynamic", "intrinsics"))):
                assert np.array_equal(found[name], arrays[key])
            assert np.array_equal(found.world_to_camera, arrays["world_to_camera"])
            assert np.array_equal(found.time, arrays["times"])
            assert found.view.values.tolist() == list(PAIR)
            assert (found.x.values[0], found.x.values[-1]) == (0.5, 55.5)
            assert found.attrs["unit"] == "metre"
            assert found.attrs["convention_depth"] == "z-depth along the optical axis"
            assert found.depth.attrs["units"] == "metre"
    assert np.array_equal(made.depth.sel(view="cam 2").isel(time=1), output.depth(1, "cam 2"))


def test_without_xarray_the_command_that_installs_it_is_named(output: Output, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(CapabilityError, match="to_xarray needs xarray") as raised:
        output.to_xarray()
    assert "pip install 'xarray>=2024" in raised.value.hint
