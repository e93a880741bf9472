"""Data-parallel training in two processes."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from page4d.lab.training import train as training
from page4d.lab.training.checkpoint import RunFolder
from page4d.lab.training.processes import ProcessGroup
from page4d.lab.training.train import SupervisedTraining
from tests.forks import forked
from tests.training.training_runs import TINY, checkpoint_of, train_tiny

STEPS = 3


class StoringTraining(SupervisedTraining):
    """Stores the final weights of every rank in the parent folder of the run."""

    def train(self) -> None:
        super().train()
        path = self._context.folder.path.parent / f"rank{os.environ['RANK']}.pt"
        torch.save(self.state.network.state_dict(), path)


def train_storing(out: Path) -> None:
    torch.set_num_threads(1)
    with patch.object(training, "SupervisedTraining", StoringTraining):
        train_tiny(out, 2 * STEPS)


@pytest.fixture(scope="module")
def parallel(tmp_path_factory) -> Path:
    """Folder of a run of two processes, connected by gloo; this process has rank 0."""
    out = tmp_path_factory.mktemp("parallel") / "run"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    second = forked(
        tmp_path_factory.mktemp("second"), train_storing, out, environment=os.environ | place | {"RANK": "1"}
    )
    with patch.dict(os.environ, place | {"RANK": "0"}):
        train_storing(out)
    code, _, error = second.ended()
    assert code == 0, error
    return out


def test_both_processes_end_with_the_same_weights(parallel):
    first, second = (torch.load(parallel.parent / f"rank{rank}.pt") for rank in "01")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_equal_one_that_accumulates_both_batches(parallel, tmp_path):
    train_tiny(tmp_path / "alone", 2 * STEPS, config=replace(TINY, accumulation=2))
    alone, together = checkpoint_of(tmp_path / "alone"), checkpoint_of(parallel)
    assert together.position.samples == alone.position.samples == 2 * STEPS
    assert together.position.step == alone.position.step == STEPS
    initial = torch.cat([value.flatten() for value in initial_weights().values()])
    ends = [torch.cat([value.flatten() for value in end.network.values()]) for end in (alone, together)]
    change = (ends[0] - initial).norm()
    assert (ends[1] - ends[0]).norm() < 1e-3 * change


def test_only_the_main_process_writes(parallel):
    assert {path.name for path in parallel.parent.iterdir()} == {"run", "rank0.pt", "rank1.pt"}
    assert RunFolder(parallel).weights.is_file()


def test_batches_are_partitioned_among_processes():
    assert [list(ProcessGroup(rank, 3).batches(6)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]


def initial_weights() -> dict[str, torch.Tensor]:
    from page4d.lab.training.state import begin

    return begin(TINY, torch.device("cpu")).network.state_dict()
