"""Runs whose files were changed by hand are refused with an error of input when they are resumed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from page4d.errors import InputError
from page4d.lab.training import state as states
from page4d.lab.training.checkpoint import write_checkpoint
from page4d.lab.training.config import TRAINING_PRESETS
from page4d.lab.training.logs import read_metrics
from page4d.lab.training.schedule import Budget

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = states.begin(TRAINING_PRESETS["tiny"], CPU)
    path = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    write_checkpoint(path, state, state.position, Budget(samples=4))
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held["network"].popitem(),
        lambda held: held["network"].update(dict.fromkeys(held["network"], torch.zeros(7))),
        lambda held: held.update(average={}),
        lambda held: held.update(network=3),
        lambda held: held.update(optimizer={}),
        lambda held: held.update(optimizer=3),
        lambda held: held.update(optimizer={"a": 1}),
    ],
    ids=["lacks a tensor", "shapes", "no average", "no tensors", "no optimizer", "a number", "no moments"],
)
def test_a_checkpoint_that_does_not_fit_its_configuration_is_refused(
    change: Callable[[dict[str, Any]], object], content: dict[str, Any], tmp_path
) -> None:
    held = copy.deepcopy(content)
    change(held)
    path = tmp_path / "checkpoint.pt"
    torch.save(held, path)
    with pytest.raises(InputError, match="does not fit its own configuration") as caught:
        states.resume(states.TrainCheckpoint.read(path), CPU)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("file", [b"", b"hello world", b"PK\3\4", b"\x80\2."])
def test_a_file_that_is_no_checkpoint_is_refused(file: bytes, tmp_path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(file)
    with pytest.raises(InputError, match="is damaged or no checkpoint"):
        states.TrainCheckpoint.read(path)


@pytest.mark.parametrize("change", [{"history": 3}, {"format": "x" * 5000}])
def test_entries_of_another_type_are_refused(change: dict[str, Any], content: dict[str, Any], tmp_path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({**content, **change}, path)
    with pytest.raises(InputError) as caught:
        states.TrainCheckpoint.read(path)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "change",
    [
        {"step": -5},
        {"samples": -7},
        {"step": 2**70},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"stage_starts": ()},
        {"decay_start": 0, "decay_samples": 0},
    ],
    ids=str,
)
def test_a_position_that_no_run_reaches_is_refused(change: dict[str, Any], content: dict[str, Any], tmp_path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({**content, "position": {**content["position"], **change}}, path)
    with pytest.raises(InputError, match="is damaged or no checkpoint: a position"):
        states.TrainCheckpoint.read(path)


@pytest.mark.parametrize(
    "line",
    [
        *("3", "{}", "[]", '{"kind": []}', '{"kind": "other", "step": 1}', '{"kind": "step", "step": "x"}'),
        '{"kind": "step", "step": 1, "samples": 1}',
        '{"kind": "step", "step": 1, "samples": null, "losses": {}}',
        '{"kind": "evaluation", "step": 1, "samples": 1, "figures": 3}',
    ],
)
def test_a_line_that_no_training_writes_is_refused(line: str, tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match="is not a line that a training writes"):
        read_metrics(path)
