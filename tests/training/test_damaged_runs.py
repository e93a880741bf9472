"""Files of runs that were changed by hand are refused, and metrics survive kills and resuming."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from page4d.errors import InputError
from page4d.lab.training import state as states
from page4d.lab.training.checkpoint import write_checkpoint
from page4d.lab.training.config import TRAINING_PRESETS
from page4d.lab.training.logs import MetricsFile, read_metrics
from page4d.lab.training.schedule import Budget

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = states.begin(TRAINING_PRESETS["tiny"], CPU)
    path = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    write_checkpoint(path, state, state.position, Budget(samples=4))
    return torch.load(path, weights_only=True)


UNFIT, NO_POSITION = "does not fit its own configuration", "is damaged or no checkpoint: a position"
DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "lacks a tensor": (lambda held: held["network"].popitem(), UNFIT),
    "shapes": (lambda held: held["network"].update(dict.fromkeys(held["network"], torch.zeros(7))), UNFIT),
    "no average": (lambda held: held.update(average={}), UNFIT),
    "no tensors": (lambda held: held.update(network=3), UNFIT),
    "no optimizer": (lambda held: held.update(optimizer={}), UNFIT),
    "a number": (lambda held: held.update(optimizer=3), UNFIT),
    "no moments": (lambda held: held.update(optimizer={"a": 1}), UNFIT),
    "history": (lambda held: held.update(history=3), "is damaged or no checkpoint"),
    "format": (lambda held: held.update(format="x" * 5000), "has format x*"),
    "steps below 0": (lambda held: held["position"].update(step=-5), NO_POSITION),
    "samples below 0": (lambda held: held["position"].update(samples=-7), NO_POSITION),
    "steps": (lambda held: held["position"].update(step=2**70), NO_POSITION),
    "NaN": (lambda held: held["position"].update(seconds=float("nan")), NO_POSITION),
    "infinity": (lambda held: held["position"].update(seconds=float("inf")), NO_POSITION),
    "no stage": (lambda held: held["position"].update(stage_starts=()), NO_POSITION),
    "decay": (lambda held: held["position"].update(decay_start=0, decay_samples=0), NO_POSITION),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_no_run_writes_is_refused(damage: str, content: dict[str, Any], tmp_path) -> None:
    held, (change, message), path = copy.deepcopy(content), DAMAGES[damage], tmp_path / "checkpoint.pt"
    change(held)
    torch.save(held, path)
    read = states.TrainCheckpoint.read
    with pytest.raises(InputError, match=message) as caught:
        states.resume(read(path), CPU) if message == UNFIT else read(path)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("file", [b"", b"hello world", b"PK\3\4", b"\x80\2."])
def test_a_file_that_is_no_checkpoint_is_refused(file: bytes, tmp_path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(file)
    with pytest.raises(InputError, match="is damaged or no checkpoint"):
        states.TrainCheckpoint.read(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.mark.parametrize(
    "line",
    [
        *("3", "{}", "[]", '{"kind": []}', '{"kind": "other", "step": 1}', '{"kind": "step", "step": "x"}'),
        '{"kind": "step", "step": 1, "samples": 1}',
        '{"kind": "step", "step": 1, "samples": null, "losses": {}}',
        '{"kind": "evaluation", "step": 1, "samples": 1, "figures": 3}',
    ],
)
def test_a_line_that_no_training_writes_is_refused(line: str, path) -> None:
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl.* is not a line that a training writes"):
        read_metrics(path)


def write(path, steps, start: int) -> None:
    log = MetricsFile(path, start)
    for step in steps:
        log.write("step", {"step": step, "samples": step, "losses": {"total": 1.0 / step}})
    log.close()


def test_resuming_drops_the_lines_after_the_position(path):
    write(path, range(1, 6), 0)
    write(path, (4, 5), 3)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5]


def test_an_incomplete_last_line_is_dropped(path):
    write(path, (1, 2), 0)
    path.write_text(path.read_text() + '{"kind": "step", "st')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    write(path, (3,), 2)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3]


def test_a_file_without_json_is_refused(path):
    path.write_text("step 1\nstep 2\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl' cannot be read: line 1"):
        read_metrics(path)


def test_non_finite_numbers_are_null(path):
    log = MetricsFile(path, 0)
    log.write("step", {"step": 1, "samples": 1, "losses": {"total": float("nan"), "depth": float("inf")}})
    log.close()
    assert read_metrics(path)[0]["losses"] == {"total": None, "depth": None}
