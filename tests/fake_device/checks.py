"""What must run wholly on a device that is not the CPU, with the CPU's numbers. `test_elsewhere.py` runs it apart."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.export.output import open_output
from page4d.export.run_record import NetworkRecord
from page4d.ground_truth import GroundTruth
from page4d.inference.predictor import NetworkPredictor
from page4d.inference.reconstruct import reconstruct
from page4d.inference.settings import ReconstructSettings
from page4d.inference.world import Poses
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.synthetic.capture import SyntheticCapture
from page4d.synthetic.sampler import SceneFamily, ShotRequest, sample_truth
from page4d.training.engine.step_plan import Position, plan_step
from page4d.training.supervised.config import Learner, OptimizerConfig, OptimizerKind, Shot, Stage, TrainConfig
from page4d.training.supervised.step import take_step
from page4d.training.supervised.training_state import begin
from page4d.training.validation.validation import HeldOutRequest, baselines, judge, network_guessers
from page4d.training.validation.validation_metrics import Guess
from tests.fake_device.device import ELSEWHERE, Far, elsewhere
from tests.models.demo_like import DEMO_LIKE, demo_like
from tests.models.test_every_option import OPTIONS, TINY, inputs, numbers, opened, predict

SHOT = ShotRequest(family=SceneFamily.ARC, num_times=2, num_views=3, image_size=(32, 48))
SEEDS = (2, 4)
ALLOCATES = ("dilated-sparse", "frame-cross")
"""Attention with a mask allocates below what the stand-in sees."""


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


def assert_same(far: Any, near: Any, tolerance: float = 1e-4) -> None:
    expected, found = tensors_of(near), tensors_of(far)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert isinstance(found[name], Far), f"{name} is on the CPU"
        torch.testing.assert_close(found[name].cpu(), value, rtol=tolerance, atol=tolerance, msg=name)


def network() -> ViewTimeNetwork:
    return demo_like().eval()


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth(SEEDS, SHOT)


def test_tensors_on_two_devices_do_not_mix() -> None:
    with elsewhere(), pytest.raises(RuntimeError, match="on the CPU"):
        torch.ones(3, device=ELSEWHERE) + torch.ones(3)


def test_scenes_are_rendered(truth: GroundTruth) -> None:
    with elsewhere():
        assert_same(sample_truth(SEEDS, SHOT, ELSEWHERE), truth)


@pytest.mark.parametrize("option", ["demo", *(name for name in OPTIONS if name not in ALLOCATES)])
def test_networks_predict(option: str) -> None:
    torch.manual_seed(0)
    asked = network() if option == "demo" else opened(build_network(replace(TINY, **OPTIONS[option]))).eval()
    given = inputs(asked.config, dtype=torch.float32)
    if option == "demo":
        del given["mask_ext"]  # motion is not asked for where it is told
    expected = numbers(predict(asked, given))
    with elsewhere():
        found = numbers(predict(asked.to(ELSEWHERE), {name: value.to(ELSEWHERE) for name, value in given.items()}))
        for name, value in expected.items():
            assert isinstance(found[name], Far), f"{name} is on the CPU"
            torch.testing.assert_close(found[name].cpu(), value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", list(network_guessers(network(), torch.float32)))
def test_networks_are_refined(name: str, truth: GroundTruth) -> None:
    def guess(asked: ViewTimeNetwork, truth: GroundTruth) -> Guess:
        return network_guessers(asked, torch.float32)[name](truth)

    asked = network()
    expected = guess(asked, truth)
    with elsewhere():
        assert_same(guess(asked.to(ELSEWHERE), sample_truth(SEEDS, SHOT, ELSEWHERE)), expected, 1e-3)


def test_a_network_and_baselines_are_judged() -> None:
    request = HeldOutRequest(scenes=1, views=3, image_size=SHOT.image_size, families=(SHOT.family,))
    asked, name = network(), "network, refined"
    with elsewhere():
        guessers = baselines(request, SHOT.family, ELSEWHERE)
        guessers[name] = network_guessers(asked.to(ELSEWHERE), torch.float32)[name]
        found = judge(guessers, [sample_truth(SEEDS[:1], SHOT, ELSEWHERE)])
    assert len(found) == 4
    assert found[name]["abs_rel"] is not None


@pytest.mark.parametrize("learner", Learner)
def test_steps_are_taken(learner: Learner, truth: GroundTruth) -> None:
    stage = Stage(sizes=(SHOT.image_size,), shots=(Shot(times=2, views=3),), images_per_batch=12, learner=learner)
    optimizer = OptimizerConfig(kind=OptimizerKind.MUON, warmup_steps=0)
    config = TrainConfig(model=DEMO_LIKE, stages=(stage,), optimizer=optimizer)

    def losses(device: torch.device, truth: GroundTruth) -> list[float]:
        state, plan = begin(config, device), plan_step(config, Position())
        steps = [take_step(state.network, state, plan, [truth], torch.float32) for _ in range(2)]
        return [step.losses["total"] for step in steps]

    expected = losses(torch.device("cpu"), truth)
    with elsewhere():
        assert losses(ELSEWHERE, sample_truth(SEEDS, SHOT, ELSEWHERE)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("tells_cameras", [True, False])
def test_captures_are_reconstructed(tells_cameras: bool, tmp_path: Path) -> None:
    capture = SyntheticCapture(seed=3, num_views=2, num_times=3, image_size=(32, 48), spacing_deg=20)
    settings = ReconstructSettings(chunk=2, overlap=1, poses=Poses.PREDICTED, preview=False, memory_bytes=2 << 30)
    record = NetworkRecord(name="x", trained=False)
    asked, scene = network(), capture.scene()

    def depths(out: Path, device: torch.device) -> list[NDArray[np.float32]]:
        predictor = NetworkPredictor(network=asked.to(device), device=device, tells_cameras=tells_cameras)
        reconstruct(scene, predictor, record, out, settings)
        output = open_output(out)
        return [output.depth(time, view.name) for time in range(3) for view in scene.views]

    expected = depths(tmp_path / "near", torch.device("cpu"))
    with elsewhere():
        found = depths(tmp_path / "far", ELSEWHERE)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.01)
