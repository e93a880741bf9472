"""The second process of a team: trains the smallest run, and keeps the weights that it ended with.

python training_team.py FOLDER SAMPLES, in the environment that torchrun gives.
"""

import os
import sys
from pathlib import Path

import torch
from training_runs import train_tiny

from page4d.training.supervised import train as training
from page4d.training.supervised.run import Run


class KeepingRun(Run):
    """Leaves its weights in the folder above the run's, whatever its rank."""

    def train(self) -> bool:
        finished = super().train()
        path = self._context.folder.path.parent / f"rank{os.environ['RANK']}.pt"
        torch.save(self.state.network.state_dict(), path)
        return finished


if __name__ == "__main__":
    torch.set_num_threads(1)
    training.Run = KeepingRun
    train_tiny(Path(sys.argv[1]), int(sys.argv[2]))
