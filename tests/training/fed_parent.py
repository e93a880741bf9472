"""A process with a rendering worker: prints its process number, reads more steps after a second, and sleeps.

python -m tests.training.fed_parent
"""

import itertools
import multiprocessing
import time

import torch

from page4d.lab.training.data import SyntheticSource, feed_batches, plan_step
from page4d.lab.training.schedule import Position
from tests.training.training_runs import TINY

if __name__ == "__main__":
    steps = (plan_step(TINY, Position(step=number, samples=number)) for number in itertools.count())
    feed = feed_batches([SyntheticSource(0)], steps, range(1), torch.device("cpu"), 1)
    next(feed)  # the worker has started
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    time.sleep(1)
    for _ in range(4):
        next(feed)
    print("more steps", flush=True)
    time.sleep(600)
