"""Training runs: steps, bitwise resuming, branches, released weights, and failures."""

import json
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.errors import InterruptedRunError, MemoryBudgetError, OutputError, UsageError
from page4d.lab.synthetic.capture import SceneRequest, SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.lab.training import train as steps
from page4d.lab.training.checkpoint import RunFolder, write_checkpoint
from page4d.lab.training.config import (
    TRAINING_PRESETS,
    ConditioningProbabilities,
    SampleShape,
    SourceConfig,
    TrainConfig,
    TrainedPart,
)
from page4d.lab.training.data import CaptureSource, SyntheticSource, plan_step
from page4d.lab.training.logs import SilentTrainingObserver, read_metrics
from page4d.lab.training.schedule import Budget, Position
from page4d.lab.training.state import TrainingState, begin, begin_from_weights, resume
from page4d.lab.training.train import TrainRequest, train
from page4d.lab.training.validation import NETWORK, evaluate, network_predictors
from page4d.networks.config_parts import MatchConfig
from page4d.networks.ood import OODLimits
from page4d.networks.presets import PRESETS as NETWORKS
from page4d.weights.loading import load
from tests.networks.small_networks import DEMO_LIKE
from tests.training.training_runs import (
    SIZE,
    TINY,
    Recorder,
    assert_equal_runs,
    checkpoint_of,
    stop_after,
    train_tiny,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 6 samples from beginning to end."""
    out = tmp_path_factory.mktemp("training") / "whole"
    train_tiny(out, 6)
    return out


def training_only(part: TrainedPart) -> TrainConfig:
    """Return a run that trains one part of a network with all parts."""
    stage = replace(TINY.stages[0], learner=part, sizes=((32, 40),), shots=(SampleShape(times=2, views=2),))
    optimizer = replace(TINY.optimizer, warmup_steps=0, learning_rate=0.01)
    evaluation = replace(TINY.evaluation, image_size=(32, 40))
    return replace(TINY, model=DEMO_LIKE, stages=(stage,), optimizer=optimizer, evaluation=evaluation)


def parameter(state: TrainingState, name: str) -> Tensor:
    return dict(state.network.named_parameters())[name]


def one_batch(config: TrainConfig = TINY):
    plan = plan_step(config, Position())
    return plan, [
        SyntheticSource(config.seed).read(plan.samples(batch), plan.request, CPU) for batch in range(plan.num_batches)
    ]


class TestSteps:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_steps_on_one_batch_lower_the_loss(self, dtype):
        config = replace(TINY, optimizer=replace(TINY.optimizer, warmup_steps=0))
        state = begin(config, CPU)
        plan, truths = one_batch(config)
        losses = [steps.take_step(state.network, state, plan, truths, dtype).losses["total"] for _ in range(6)]
        assert losses[-1] < 0.95 * losses[0]
        assert {value.dtype for value in state.network.parameters()} == {torch.float32}

    def test_recomputed_activations_have_the_same_gradients(self):
        plan, truths = one_batch()
        moved = []
        for state in (begin(TINY, CPU), begin(replace(TINY, checkpoint_blocks=True), CPU)):
            forward = steps.prepare_forward(state.network, state.config)
            steps.take_step(forward, state, plan, truths, torch.float32)
            moved.append(state.network.state_dict())
        assert all(torch.equal(moved[0][name], moved[1][name]) for name in moved[0])

    def test_accumulated_losses_are_averaged(self):
        config = replace(TINY, accumulation=2)
        plan, truths = one_batch(config)
        found = steps.take_step(begin(config, CPU).network, begin(config, CPU), plan, truths, torch.float32)
        single = [
            steps.take_step(state.network, state, plan, [truth], torch.float32).losses["total"]
            for truth in truths
            for state in [begin(TINY, CPU)]
        ]
        assert found.losses["total"] == pytest.approx(sum(single) / 2, rel=1e-5)

    @pytest.mark.parametrize(
        ("part", "losses", "parts"),
        [
            (TrainedPart.MATCHES, {"match_probability", "match_position", "total"}, {"encoder", "matching"}),
            (TrainedPart.MOTION, {"motion", "total"}, {"motion_head"}),
        ],
    )
    def test_a_stage_trains_its_part_only(self, part, losses, parts):
        config = training_only(part)
        if part is TrainedPart.MATCHES:
            network = replace(NETWORKS["mv-tiny"], matches=MatchConfig(dim=8, hidden=8))
            stage = replace(TINY.stages[0], learner=part, shots=(SampleShape(times=1, views=2),))
            config = replace(TINY, model=network, stages=(stage,), optimizer=replace(TINY.optimizer, warmup_steps=0))
        state = begin(config, CPU)
        before = {name: value.clone() for name, value in state.network.named_parameters()}
        plan, truths = one_batch(config)
        found = [steps.take_step(state.network, state, plan, truths, torch.float32).losses for _ in range(8)]
        assert set(found[0]) == losses
        assert found[-1]["total"] < 0.95 * found[0]["total"]
        moved = {
            name.split(".")[0] for name, value in before.items() if not torch.equal(value, parameter(state, name))
        }
        assert moved == parts
        assert all(value.requires_grad for value in state.network.parameters())

    def test_a_matching_stage_trains_all_of_a_network_without_matching(self):
        config = replace(TINY, stages=(replace(TINY.stages[0], learner=TrainedPart.MATCHES),))
        state = begin(config, CPU)
        plan, truths = one_batch(config)
        assert "depth" in steps.take_step(state.network, state, plan, truths, torch.float32).losses

    def test_a_stage_for_a_missing_part_is_refused(self):
        with pytest.raises(UsageError, match="trains motion, which this network does not have"):
            begin(replace(training_only(TrainedPart.MOTION), model=replace(DEMO_LIKE, motion_head=None)), CPU)
        with pytest.raises(UsageError, match="where motion is trained"):
            replace(training_only(TrainedPart.MOTION), hints=ConditioningProbabilities(masks=0.1))
        with pytest.raises(UsageError, match="motion in samples of one instant"):
            replace(TINY.stages[0], learner=TrainedPart.MOTION)

    def test_the_network_is_conditioned_as_planned(self):
        given = []

        def forward(_: Tensor, masks: Tensor | None, *, conditioning):
            given.append(
                (masks is not None, conditioning.intrinsics is not None, conditioning.world_to_camera is not None)
            )

        _, (truth,) = one_batch()
        for hints in (
            ConditioningProbabilities(intrinsics=0, cameras=0),
            ConditioningProbabilities(intrinsics=1, cameras=0),
            ConditioningProbabilities(intrinsics=0, cameras=1, masks=1),
        ):
            steps.predict(forward, truth, plan_step(replace(TINY, hints=hints), Position()), torch.float32)
        assert given == [(False, False, False), (False, True, False), (True, True, True)]


class TestResuming:
    @pytest.mark.usefixtures("forked_processes")
    def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(self, whole, tmp_path):
        """Stopped with batches of a worker, resumed without."""
        out = tmp_path / "stopped"
        with pytest.raises(InterruptedRunError) as raised:
            train_tiny(out, 6, stop=stop_after(3), workers=1)
        assert raised.value.exit_code == 130
        assert checkpoint_of(out).position.step == 2
        train_tiny(out, 6, config=None, resume=True, workers=0)
        assert_equal_runs(whole, out)
        assert RunFolder(out).weights.read_bytes() == RunFolder(whole).weights.read_bytes()

    def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(self, whole, tmp_path, monkeypatch):
        """The run is killed during the learning rate decay and resumes from its last checkpoint."""
        out = tmp_path / "killed"
        config = replace(TINY, save_every_seconds=1e-9)
        take, taken = steps.take_step, iter(range(100))

        def die(*arguments):
            if next(taken) == 4:
                raise KeyboardInterrupt
            return take(*arguments)

        monkeypatch.setattr("page4d.lab.training.train.take_step", die)
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out, 6, config=config)
        assert checkpoint_of(out).position.decay_start == 3
        monkeypatch.undo()
        train_tiny(out, 6, config=None, resume=True)
        assert_equal_runs(whole, out)

    def test_a_finished_run_with_more_samples_continues_from_before_the_decay(self, whole, tmp_path):
        train_tiny(tmp_path, 3)
        with pytest.raises(UsageError, match="finished"):
            train_tiny(tmp_path, 3, config=None, resume=True)
        train_tiny(tmp_path, 6, config=None, resume=True)
        assert_equal_runs(whole, tmp_path)
        lines = read_metrics(RunFolder(tmp_path).metrics)
        assert [line["step"] for line in lines if line["kind"] == "step"] == [*range(1, 7)]

    def test_a_run_stopped_before_its_decay_resumes_with_more_samples(self, whole, tmp_path):
        with pytest.raises(InterruptedRunError):
            train_tiny(tmp_path / "stopped", 4, stop=stop_after(2))
        assert checkpoint_of(tmp_path / "stopped").position.samples == 2  # the decay would begin here
        train_tiny(tmp_path / "stopped", 6, config=None, resume=True)
        assert_equal_runs(whole, tmp_path / "stopped")

    def test_a_run_resumes_with_another_configuration(self, whole):
        checkpoint = checkpoint_of(whole)
        faster = replace(TINY, optimizer=replace(TINY.optimizer, learning_rate=0.5, weight_decay=0.1))
        optimizer = resume(checkpoint, CPU, faster).optimizer
        assert [(group["full_lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
            (0.5, 0.1),
            (0.5, 0),
        ]
        assert optimizer.state_dict()["state"].keys() == checkpoint.optimizer["state"].keys()

    def test_the_older_checkpoint_remains_if_the_new_one_cannot_be_written(self, whole, tmp_path, file_size_limit):
        path = tmp_path / "checkpoint.pt"
        path.write_bytes(b"older")
        state = resume(checkpoint_of(whole), torch.device("cpu"))
        with file_size_limit(1000), pytest.raises(OutputError, match=r"checkpoint.pt': the file is larger than this"):
            write_checkpoint(path, state, state.position, Budget(samples=6))
        assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
        assert path.read_bytes() == b"older"


class TestWeights:
    def test_weights_are_reproduced_from_their_metadata(self, whole, tmp_path):
        metadata = load(RunFolder(whole).weights, "cpu").info.metadata
        assert (metadata["samples"], metadata["licence"]) == ("6", "Apache-2.0")
        assert json.loads(metadata["curve"])["held_out"][-1][0] == 6
        assert OODLimits.from_json(metadata["domain"]).limits.keys() == {"doubt", "depth_gap"}  # those of mv-tiny
        again = TrainConfig.from_json(metadata["training"])
        assert "--until-samples 6 " in metadata["command"]
        train_tiny(tmp_path, 6, config=again)
        assert RunFolder(tmp_path).weights.read_bytes() == RunFolder(whole).weights.read_bytes()

    def test_fine_tuning_on_a_capture_lowers_its_error(self, whole, tmp_path):
        folder = tmp_path / "room"
        write_capture(SyntheticCapture(seed=3, num_views=2, num_times=2, image_size=(48, 64), spacing_deg=12), folder)
        stage = replace(TINY.stages[0], shots=(SampleShape(times=1, views=2),))
        optimizer = replace(TINY.optimizer, learning_rate=5e-3, average_decay=0.5)
        config = replace(TINY, stages=(stage,), sources=(SourceConfig(path=str(folder)),), optimizer=optimizer)
        train_tiny(tmp_path / "tuned", 20, config=config, weights=RunFolder(whole).weights)
        request = SceneRequest(num_times=1, num_views=2, image_size=SIZE)
        truths = [CaptureSource(folder, 99).read(range(4), request, CPU)]

        def error(path) -> float:
            predictor = network_predictors(load(path, "cpu"), torch.float32)[NETWORK]
            return evaluate(predictor, truths)["abs_rel"]

        assert error(RunFolder(tmp_path / "tuned").weights) < 0.8 * error(RunFolder(whole).weights)
        assert "sha256" in checkpoint_of(tmp_path / "tuned").history["from"]
        assert "domain" not in load(RunFolder(tmp_path / "tuned").weights, "cpu").info.metadata

    def test_a_motion_head_is_added_to_weights_and_trained(self, tmp_path):
        plain = replace(DEMO_LIKE, motion_head=None)
        train_tiny(tmp_path / "plain", 1, config=replace(training_only(TrainedPart.ALL), model=plain))
        origin = RunFolder(tmp_path / "plain").weights
        train_tiny(tmp_path / "more", 2, config=training_only(TrainedPart.MOTION), weights=origin)
        before, after = (load(RunFolder(tmp_path / name).weights, "cpu") for name in ("plain", "more"))
        assert after.config == DEMO_LIKE
        kept = after.state_dict()
        assert all(torch.equal(value, kept[name]) for name, value in before.state_dict().items())
        assert "with a fresh motion_head" in checkpoint_of(tmp_path / "more").history["from"]

    def test_weights_of_another_network_keep_their_configuration(self, whole):
        state = begin_from_weights(
            replace(TINY, model=replace(DEMO_LIKE, mlp_ratio=2.0)), RunFolder(whole).weights, CPU
        )
        assert state.network.config == TINY.model


class TestFailures:
    def test_a_step_without_a_finite_gradient_is_skipped_and_reported(self, tmp_path, monkeypatch):
        corrupt(monkeypatch, {2})
        observer = Recorder()
        train_tiny(tmp_path, 5, observer=observer)
        assert observer.messages == ["step 2: the gradient is not finite, the weights are unchanged"]
        assert [report.skipped for report in observer.steps] == [0, 0, 1, 1, 1]
        assert all(value.isfinite().all() for value in checkpoint_of(tmp_path).network.values())
        lines = [line for line in read_metrics(RunFolder(tmp_path).metrics) if line["kind"] == "step"]
        assert lines[2]["losses"]["total"] is None

    def test_too_many_consecutive_skipped_steps_end_the_run(self, tmp_path, monkeypatch):
        corrupt(monkeypatch, set(range(100)))
        config = replace(TINY, optimizer=replace(TINY.optimizer, max_skipped=3))
        with pytest.raises(UsageError, match="3 steps in a row"):
            train_tiny(tmp_path, 9, config=config)

    @pytest.mark.parametrize("more", [{"config": None}, {"budget": None}, {"weights": "x", "resume": True}])
    def test_contradictory_requests_are_refused(self, tmp_path, more):
        with pytest.raises(UsageError):
            TrainRequest(**{"out": tmp_path, "config": TINY, "budget": Budget(samples=1)} | more)

    def test_a_folder_with_a_run_is_refused(self, whole):
        with pytest.raises(UsageError, match="holds a run already"):
            train_tiny(whole, 8)

    def test_an_unknown_network_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="mv-huge"):
            train_tiny(tmp_path, 8, config=replace(TINY, model="mv-huge"))


def corrupt(monkeypatch, bad: set[int]) -> None:
    """Make the loss of some steps infinite."""
    whole, number = steps.losses, iter(range(1000))

    def corrupted(*arguments, **named):
        parts = whole(*arguments, **named)
        if next(number) in bad:
            parts["total"] = parts["total"] * float("inf")
        return parts

    monkeypatch.setattr(steps, "losses", corrupted)


def test_exhausted_memory_is_reported_with_advice(tmp_path, monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("page4d.lab.training.train.take_step", exhausted)
    with pytest.raises(MemoryBudgetError) as raised:
        train_tiny(tmp_path, 2)
    assert "2.00 GiB" in raised.value.message
    assert "images_per_batch" in raised.value.hint


def test_denormals_are_flushed_to_zero_during_a_run_only(tmp_path):
    smallest = []

    def measure() -> None:
        smallest.append(float(torch.tensor(1e-39) * 1.0))

    train_tiny(tmp_path, 2, stop=measure)
    measure()
    assert set(smallest[:-1]) == {0.0}
    assert smallest[-1] > 0.0


def test_a_stop_request_before_the_first_step_is_obeyed_and_the_run_resumed(tmp_path):
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(samples=8))
    with pytest.raises(InterruptedRunError, match="interrupted after step 0") as caught:
        train(request, SilentTrainingObserver(), lambda: signal.SIGTERM)
    assert caught.value.exit_code == 143
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    with pytest.raises(InterruptedRunError, match="interrupted after step 0"):
        train(TrainRequest(out=request.out, resume=True), SilentTrainingObserver(), lambda: signal.SIGTERM)
    assert [line["kind"] for line in read_metrics(request.out / "metrics.jsonl")] == ["baselines"]


def test_the_time_budget_ends_a_run_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(steps.SupervisedTraining, "_begin", lambda _: time.sleep(0.2))
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(seconds=0.1))
    with pytest.raises(UsageError, match=r"no step was complete after 0\.\d s"):
        train(request, SilentTrainingObserver(), lambda: None)


@pytest.mark.parametrize(("spoiled", "found"), [("gradient", "the last 5 of 7 steps"), ("weights", "after step 1")])
def test_a_diverged_run_ends_with_an_error_and_without_weights(spoiled: str, found: str, tmp_path, monkeypatch):
    take = steps.SupervisedTraining._take

    def diverge(self: steps.SupervisedTraining, *arguments: object) -> object:
        result = take(self, *arguments)
        parameter = next(self.state.network.parameters())
        with torch.no_grad():
            parameter[:] = float("nan") if spoiled == "weights" or self.state.position.step > 0 else parameter
        return result

    monkeypatch.setattr(steps.SupervisedTraining, "_take", diverge)
    with pytest.raises(UsageError, match=f"the training diverged: .*{found}") as caught:
        train_tiny(tmp_path / "run", 1 if spoiled == "weights" else 7)
    assert "lower learning_rate" in caught.value.hint
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
