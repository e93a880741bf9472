"""Checks that run on the fake device and compare with the CPU; started by `test_fake_device.py`."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from page4d.choices import Poses, SceneFamily
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.lab.synthetic.capture import SceneRequest, SyntheticCapture, sample_truth
from page4d.lab.training.config import CurriculumStage, SampleShape, TrainConfig, TrainedPart
from page4d.lab.training.data import plan_step
from page4d.lab.training.optimizers import OptimizerConfig
from page4d.lab.training.schedule import Position
from page4d.lab.training.state import begin
from page4d.lab.training.train import take_step
from page4d.lab.training.validation import HeldOutScenes, baselines, evaluate_all, network_predictors
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.limits import default_limits, device_bytes
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.records import GroundTruth
from page4d.run import memory
from page4d.run.bounded_queue import BoundedQueue
from page4d.run.predictor import NetworkPredictor
from page4d.run.reconstruct import reconstruct
from page4d.run.stages import clean, detail
from page4d.stereo.descriptors import DenseDescriptors
from page4d.stereo.refine import refinement_of
from page4d.stereo.state import StaticDepth
from page4d.weights.loading import load
from tests.fake_device.device import FAKE_DEVICE, FakeDeviceTensor, counted_waits, fake_device
from tests.networks.small_networks import DEMO_LIKE, OMEGA_LIKE, SMALL_DA3, SMALL_DA3_MONO, demo_like, fill_zeros
from tests.networks.test_every_option import OPTIONS, TINY, inputs, numbers, opened, predict

SHOT = SceneRequest(family=SceneFamily.ARC, num_times=2, num_views=3, image_size=(32, 48))
SEEDS = (2, 4)
UNSUPPORTED = ("dilated-sparse", "frame-cross")
"""Options whose attention with a mask allocates memory without dispatch."""

PUBLISHED = {"da3": SMALL_DA3, "da3-metric": replace(SMALL_DA3_MONO, metric_focal=300.0), "vggt-omega": OMEGA_LIKE}
"""Structures of published networks; that of Pi3X is among the options."""


def tensors_of(record: Any) -> dict[str, Tensor]:
    """Return every tensor in a record, by its path."""
    found: dict[str, Tensor] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif is_dataclass(value):
            found.update({f"{field.name}.{name}": part for name, part in tensors_of(value).items()})
    return found


def assert_same(on_device: Any, on_cpu: Any, tolerance: float = 1e-4) -> None:
    expected, found = tensors_of(on_cpu), tensors_of(on_device)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert isinstance(found[name], FakeDeviceTensor), f"{name} is on the CPU"
        torch.testing.assert_close(found[name].cpu(), value, rtol=tolerance, atol=tolerance, msg=name)


def assert_same_numbers(tested: ViewTimeNetwork, given: dict[str, Tensor]) -> None:
    expected = numbers(predict(tested, given))
    with fake_device():
        found = numbers(
            predict(tested.to(FAKE_DEVICE), {name: value.to(FAKE_DEVICE) for name, value in given.items()})
        )
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert isinstance(found[name], FakeDeviceTensor), f"{name} is on the CPU"
            torch.testing.assert_close(found[name].cpu(), value, rtol=1e-3, atol=1e-4, msg=name)


def network() -> ViewTimeNetwork:
    return demo_like().eval()


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth(SEEDS, SHOT)


def test_operations_that_mix_devices_are_refused() -> None:
    with fake_device(), pytest.raises(RuntimeError, match="on the CPU"):
        torch.ones(3, device=FAKE_DEVICE) + torch.ones(3)


def test_scenes_are_rendered(truth: GroundTruth) -> None:
    with fake_device():
        assert_same(sample_truth(SEEDS, SHOT, FAKE_DEVICE), truth)


@pytest.mark.parametrize("option", ["demo", *(name for name in OPTIONS if name not in UNSUPPORTED)])
def test_networks_predict(option: str) -> None:
    torch.manual_seed(0)
    tested = network() if option == "demo" else opened(build_network(replace(TINY, **OPTIONS[option]))).eval()
    given = inputs(tested.config, dtype=torch.float32)
    if option == "demo":
        del given["mask_ext"]  # an external mask replaces the motion head
    assert_same_numbers(tested, given)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_networks_predict(name: str) -> None:
    torch.manual_seed(0)
    tested = fill_zeros(build_network(PUBLISHED[name])).eval()
    assert_same_numbers(tested, inputs(tested.config, dtype=torch.float32))


@pytest.mark.parametrize("name", list(network_predictors(network(), torch.float32)))
def test_predictions_are_refined(name: str, truth: GroundTruth) -> None:
    def prediction(tested: ViewTimeNetwork, truth: GroundTruth) -> NetworkOutput:
        return network_predictors(tested, torch.float32)[name](truth)

    tested = network()
    expected = prediction(tested, truth)
    with fake_device():
        assert_same(prediction(tested.to(FAKE_DEVICE), sample_truth(SEEDS, SHOT, FAKE_DEVICE)), expected, 1e-3)


def bundled() -> ViewTimeNetwork:
    return load(None, "cpu", "fp32").requires_grad_()


RIG = SceneRequest(family=SceneFamily.ARC, num_times=2, num_views=3, image_size=(64, 96), spacing_deg=(6.0, 6.0))


def to_device(value: Any) -> Any:
    """Copy all tensors of a record to the fake device."""
    if isinstance(value, Tensor):
        return value.to(FAKE_DEVICE)
    if isinstance(value, tuple):
        return tuple(map(to_device, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: to_device(getattr(value, field.name)) for field in fields(value)})
    return value


COLORS = DenseDescriptors(lambda images: (avg_pool2d(images, 8) - 0.5,), "0" * 64)
"""Colours in the place of descriptors."""


def rig_conditioning(name: str, truth: GroundTruth, views: int) -> Conditioning:
    """Return no cameras, true cameras, or cameras that are turned by 0, 40 and 80 degrees, by name."""
    if name == "predicted":
        return NO_CONDITIONING
    rig = truth.cameras[:, :, :views]
    pose = rig.world_to_camera.clone()
    if name == "wrong":
        turns = torch.tensor([[0.0, 0.0, 0.7 * view] for view in range(pose.shape[2])], dtype=pose.dtype)
        pose[..., :3, :] = matrix_from_rotation_vector(turns) @ pose[..., :3, :]
    return Conditioning(world_to_camera=pose, intrinsics=rig.intrinsics)


@pytest.mark.parametrize(
    ("cameras", "views"), [*product(("predicted", "known", "wrong"), (1, 3)), ("known, static background", 3)]
)
def test_refinement_stays_on_the_device(cameras: str, views: int) -> None:
    """No map is copied to the CPU, and few values become Python numbers."""
    truth = sample_truth(SEEDS[:1], RIG)
    tested, images = bundled(), truth.images[:, :, :views]
    given = rig_conditioning(cameras, truth, views)
    with torch.no_grad():
        output = tested(images)
    static = None
    if "static" in cameras:
        depth = truth.depth.clone()
        depth[..., 8:24, 8:32] = 0
        static = tuple(StaticDepth(one, one == 0) for one in depth.unbind(2))
    expected = refinement_of(tested, RigOutput.of(output), images, given, COLORS, static).output.outputs[0]
    with fake_device():
        own, *record, shown = to_device((output, images, given, static and tuple(map(tuple, static))))
        with counted_waits() as waits:
            shown = shown and [StaticDepth(*pair) for pair in shown]
            found = refinement_of(tested, RigOutput.of(own), *record, COLORS, shown).output.outputs[0]
        assert waits["bytes"] < 1000  # masks of tiles, whose boxes are found on the CPU
        assert waits["numbers"] + waits["sizes"] < 120  # two per pair of views and round of matching, and a few
        for name in ("world_to_camera", "intrinsics", "depth"):
            assert isinstance(getattr(found, name), FakeDeviceTensor), f"{name} is on the CPU"
            torch.testing.assert_close(
                getattr(found, name).cpu(), getattr(expected, name), rtol=1e-3, atol=1e-4, msg=name
            )  # a GPU sums up in another order


def test_networks_with_limits_predict_the_same(truth: GroundTruth, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default limits are those of the device; small ones split every part of the network."""
    tested = network()
    sizes = [SHOT.image_size]
    with torch.no_grad():
        expected = tested(truth.images)
        with fake_device():
            assert default_limits(tested.config, sizes, FAKE_DEVICE).max_images is not None
            monkeypatch.setattr(
                "page4d.networks.limits._SHARE", {FAKE_DEVICE.type: 3e4 / device_bytes(FAKE_DEVICE), "cpu": 1.0}
            )
            assert default_limits(tested.config, sizes, FAKE_DEVICE).max_images == 1
            found = tested.to(FAKE_DEVICE)(truth.images.to(FAKE_DEVICE))
            assert_same(found, expected)


def test_networks_and_baselines_are_validated() -> None:
    request = HeldOutScenes(scenes=1, views=3, image_size=SHOT.image_size, families=(SHOT.family,))
    tested, name = network(), "network, refined"
    with fake_device():
        predictors = baselines(request, SHOT.family, FAKE_DEVICE)
        predictors[name] = network_predictors(tested.to(FAKE_DEVICE), torch.float32)[name]
        found = evaluate_all(predictors, [sample_truth(SEEDS[:1], SHOT, FAKE_DEVICE)])
    assert len(found) == 4
    assert found[name]["abs_rel"] is not None


@pytest.mark.parametrize("learner", TrainedPart)
def test_steps_are_taken(learner: TrainedPart, truth: GroundTruth) -> None:
    shapes = (SampleShape(times=2, views=3),)
    stage = CurriculumStage(sizes=(SHOT.image_size,), shots=shapes, images_per_batch=12, learner=learner)
    optimizer = OptimizerConfig(warmup_steps=0)
    config = TrainConfig(model=DEMO_LIKE, stages=(stage,), optimizer=optimizer)

    def losses(device: torch.device, truth: GroundTruth) -> list[float]:
        state, plan = begin(config, device), plan_step(config, Position())
        steps = [take_step(state.network, state, plan, [truth], torch.float32) for _ in range(2)]
        return [step.losses["total"] for step in steps]

    expected = losses(torch.device("cpu"), truth)
    with fake_device():
        assert losses(FAKE_DEVICE, sample_truth(SEEDS, SHOT, FAKE_DEVICE)) == pytest.approx(expected, rel=1e-3)


@pytest.fixture
def whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable the fake device in the threads of a run, and forecast nothing: that is a run on the meta device."""
    consume = BoundedQueue._run

    def on_device(queue: BoundedQueue) -> None:
        with fake_device():
            consume(queue)

    monkeypatch.setattr(BoundedQueue, "_run", on_device)
    monkeypatch.setattr("page4d.run.memory._forward_cost", lambda *_: (1, 1))
    monkeypatch.setitem(memory._AVAILABLE_SHARE, FAKE_DEVICE.type, 0.8)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("whole_runs")
@pytest.mark.parametrize("poses", Poses)
def test_captures_are_reconstructed(poses: Poses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without calibrated cameras as an input of the network; with them, depth has the size of the video.

    Cleaning and finer depth copy no volume to the CPU: masks of motion, whose parts are counted there, and cameras.
    """
    counted: list[tuple[float, float]] = []

    def counting(stage: Any, pixels: Callable[..., float]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            with counted_waits() as waits:
                result = stage(*given)
            counted.append((waits["bytes"], pixels(*given)))
            return result

        return run

    monkeypatch.setattr(clean, "clean", counting(clean.clean, lambda coarse, *_: coarse.depth.numel()))
    monkeypatch.setattr(
        detail, "fine_instant", counting(detail.fine_instant, lambda _, batch, *__: batch.valid.numel())
    )
    capture = SyntheticCapture(seed=3, num_views=2, num_times=3, image_size=(32, 48), spacing_deg=20)
    settings = ReconstructSettings(chunk=2, overlap=1, poses=poses, preview=False, memory_bytes=2 << 30)
    tested, scene = network(), capture.scene()

    def depths(out: Path, device: torch.device) -> list[NDArray[np.float32]]:
        predictor = NetworkPredictor(network=tested.to(device), device=device, settings=settings)
        reconstruct(scene, predictor, out=out)
        output = open_output(out)
        return [output.depth(time, view.name) for time in range(3) for view in scene.views]

    expected = depths(tmp_path / "cpu", torch.device("cpu"))
    with fake_device():
        found = depths(tmp_path / "device", FAKE_DEVICE)
    for on_device, on_cpu in zip(found, expected, strict=True):
        np.testing.assert_allclose(on_device, on_cpu, rtol=0.01)
    assert all(copied <= 3 * pixels for copied, pixels in counted)
