"""Pretraining runs: bitwise resuming, and the released encoder."""

import json
from dataclasses import replace

import pytest
import torch

from page4d.choices import PretrainMethod
from page4d.errors import InputError, InterruptedRunError, UsageError
from page4d.lab.pretraining import pretrain as pretraining
from page4d.lab.pretraining.config import PRESETS, PretrainConfig, with_encoder, with_size
from page4d.lab.pretraining.data import Crops
from page4d.lab.pretraining.pretrain import PretrainRequest
from page4d.lab.pretraining.tasks import PretrainStep, build_task
from page4d.lab.training.checkpoint import RunFolder
from page4d.lab.training.logs import SilentTrainingObserver, read_metrics
from page4d.lab.training.processes import SINGLE_PROCESS
from page4d.lab.training.train import train as train_network
from page4d.networks.encoders.swin import SwinConfig
from page4d.networks.encoders.vit import ViTConfig
from page4d.weights.loading import load_encoder
from tests.pretraining.recordings import (
    TINY_DINO,
    TINY_MAE,
    assert_equal_runs,
    checkpoint_of,
    run_tiny,
    write_recording,
)
from tests.training.training_runs import never, stop_after

CPU = torch.device("cpu")
METHODS = {"mae": TINY_MAE, "dino": TINY_DINO}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return write_recording(tmp_path_factory.mktemp("pretraining") / "scene")


@pytest.fixture(scope="module", params=list(METHODS))
def whole(request, scene, tmp_path_factory):
    """A run of 6 steps from beginning to end, with its configuration."""
    config = replace(METHODS[request.param], scenes=(str(scene),))
    out = tmp_path_factory.mktemp("pretraining") / request.param
    run_tiny(out, config, 6)
    return config, out


class TestRuns:
    def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(self, whole, tmp_path):
        config, out = whole
        with pytest.raises(InterruptedRunError) as raised:
            run_tiny(tmp_path / "stopped", config, 6, stop=stop_after(2))
        assert raised.value.exit_code == 130
        assert checkpoint_of(tmp_path / "stopped").position.samples == 6
        run_tiny(tmp_path / "stopped", None, None, resume=True)
        assert_equal_runs(out, tmp_path / "stopped")
        files = [folder / "encoder.safetensors" for folder in (out, tmp_path / "stopped")]
        assert files[0].read_bytes() == files[1].read_bytes()

    def test_a_run_writes_metrics(self, whole):
        config, out = whole
        lines = [line for line in read_metrics(RunFolder(out).metrics) if line["kind"] == "step"]
        assert [line["samples"] for line in lines] == [3, 6, 9, 12, 15, 18]
        assert [line["rate"] for line in lines] == pytest.approx([0.5, 1, 1, 1, 2 / 3, 1 / 3])
        assert ("teacher_entropy" in lines[0]["losses"]) == (config.method.kind == "dino")
        kinds = {path.name for path in out.iterdir()}
        assert kinds >= {"config.json", "checkpoint.pt", "metrics.jsonl", "encoder.safetensors"}
        assert PretrainConfig.from_json((out / "config.json").read_text()) == config

    def test_the_released_encoder_has_metadata_without_paths_of_the_user(self, whole, scene):
        config, out = whole
        encoder, loaded, info = load_encoder(out / "encoder.safetensors")
        assert loaded == config.encoder
        metadata = info.metadata
        assert (metadata["steps"], metadata["samples"]) == ("6", "18")
        assert json.loads(metadata["loss"])[-1][0] == 18
        assert str(scene) not in json.dumps(dict(metadata))
        stored = checkpoint_of(out).modules
        name = {"mae": ("average", "encoder."), "dino": ("network", "teacher.encoder.")}[config.method.kind]
        for key, value in encoder.state_dict().items():
            assert torch.equal(value, stored[name[0]][name[1] + key])

    def test_a_run_with_a_time_limit_ends(self, scene, tmp_path):
        outcome = run_tiny(tmp_path / "timed", replace(TINY_MAE, scenes=(str(scene),)), None, seconds=0.2)
        assert outcome.position.step > 0

    def test_weights_stay_finite_in_bf16(self, scene, tmp_path):
        run_tiny(tmp_path, replace(TINY_DINO, scenes=(str(scene),), precision="bf16"), 2)
        assert all(value.isfinite().all() for value in checkpoint_of(tmp_path).modules["network"].values())


def test_a_skipped_step_leaves_teacher_and_centre_unchanged() -> None:
    task = build_task(TINY_DINO, CPU)
    large = tuple(torch.randn(2, 3, 16, 16) for _ in range(2))
    before = {name: value.clone() for name, value in task.network.state_dict().items()}
    with torch.no_grad():
        task.network.student.projector.hidden[0].bias.add_(1)
        before["student.projector.hidden.0.bias"] += 1
    step = PretrainStep(step=0, first_sample=0, batch_size=2, num_batches=1, rate=1.0, done=0.0)
    for moved in (False, True):
        task.losses(Crops(large=large, small=(), noise=torch.empty(2, 0)))
        task.after_step(step, SINGLE_PROCESS, moved=moved)
        same = [name for name, value in task.network.state_dict().items() if torch.equal(value, before[name])]
        assert ("centre" in same) is not moved
        assert ("teacher.projector.hidden.0.bias" in same) is not moved


@pytest.mark.parametrize(("information", "warnings"), [(0.03, 1), (1.2, 0), (None, 0)])
def test_a_collapsed_teacher_is_reported(information, warnings, scene, tmp_path, monkeypatch) -> None:
    messages: list[str] = []
    observer = SilentTrainingObserver()
    monkeypatch.setattr(observer, "message", messages.append)
    config = replace(TINY_MAE, scenes=(str(scene),))
    losses = {"total": 1.0} if information is None else {"total": 1.0, "teacher_information": information}
    monkeypatch.setattr(pretraining, "read_metrics", lambda _: [{"kind": "step", "samples": 1, "losses": losses}])
    pretraining.pretrain(PretrainRequest(out=tmp_path, config=config, steps=1, device="cpu"), observer, never)
    assert len([text for text in messages if "collapsed" in text]) == warnings


class TestRequests:
    def test_presets_survive_json(self) -> None:
        for config in PRESETS.values():
            assert PretrainConfig.from_json(config.to_json()) == config

    def test_another_encoder_sets_the_size_of_crops_and_loses_its_head(self) -> None:
        config = with_encoder(PRESETS[PretrainMethod.DINO], ViTConfig(image_size=64, patch_size=16, num_classes=10))
        assert (config.encoder.num_classes, config.crops.size, config.crops.small_size) == (None, 64, 32)
        assert with_size(config, 96).crops.small_size == 48
        with pytest.raises(UsageError, match="the encoder is a swin"):
            with_encoder(PRESETS[PretrainMethod.MAE], SwinConfig())
        with pytest.raises(UsageError, match="crops of 50 px for patches of 16"):
            with_size(config, 50)

    @pytest.mark.parametrize(
        "change",
        [
            {"batch": 0},
            {"precision": "fp16"},
            {"decay_fraction": 2.0},
            {"crops": replace(TINY_DINO.crops, recoloured=False)},
        ],
    )
    def test_contradictory_settings_are_refused(self, change) -> None:
        with pytest.raises(UsageError) as caught:
            replace(TINY_MAE, **change)
        assert caught.value.hint

    @pytest.mark.parametrize(
        "more", [{"resume": True}, {"config": None}, {"config": TINY_MAE}, {"steps": None}, {"steps": 0}]
    )
    def test_contradictory_requests_are_refused(self, tmp_path, more) -> None:
        config = replace(TINY_MAE, scenes=("x",))
        with pytest.raises(UsageError):
            PretrainRequest(**{"out": tmp_path, "config": config, "steps": 1} | more)

    def test_the_checkpoint_of_another_kind_of_run_is_refused(self, whole, tmp_path) -> None:
        from page4d.lab.training.train import TrainRequest

        _, out = whole
        with pytest.raises(InputError, match="pretraining 2"):
            train_network(TrainRequest(out=out, resume=True, device="cpu"), None, lambda: None)
        (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
        with pytest.raises(InputError, match="damaged"):
            run_tiny(tmp_path, None, None, resume=True)
