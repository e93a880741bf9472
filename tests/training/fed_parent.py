"""A process with two rendering workers: prints their process numbers, reads more steps after a second, and sleeps.

python fed_parent.py
"""

import itertools
import multiprocessing
import time

import torch
from training_runs import TINY

from page4d.training.engine.step_plan import Position
from page4d.training.supervised.curriculum import plan_step
from page4d.training.supervised.feed import feed_batches
from page4d.training.supervised.sources import SyntheticSource

if __name__ == "__main__":
    steps = (plan_step(TINY, Position(step=number, samples=number)) for number in itertools.count())
    feed = feed_batches([SyntheticSource(0)], steps, range(1), torch.device("cpu"), 2)
    next(feed), next(feed)  # one step of each worker: both have started
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    time.sleep(1)
    for _ in range(8):
        next(feed)
    print("more steps", flush=True)
    time.sleep(600)
