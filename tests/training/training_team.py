"""The second of two processes that train the minimal run; it stores its final weights.

python -m tests.training.training_team FOLDER SAMPLES, in the environment of torchrun.
"""

import os
import sys
from pathlib import Path

import torch

from page4d.lab.training import train as training
from page4d.lab.training.train import SupervisedTraining
from tests.training.training_runs import train_tiny


class StoringTraining(SupervisedTraining):
    """Stores the final weights of every rank in the parent folder of the run."""

    def train(self) -> None:
        super().train()
        path = self._context.folder.path.parent / f"rank{os.environ['RANK']}.pt"
        torch.save(self.state.network.state_dict(), path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    training.SupervisedTraining = StoringTraining
    train_tiny(Path(sys.argv[1]), int(sys.argv[2]))
