"""Batches in the order of their steps, rendered in between or ahead of time by other processes."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.geometry.camera import Cameras
from page4d.ground_truth import GroundTruth
from page4d.training.engine.step_plan import StepPlan
from page4d.training.supervised.sources import Source

AHEAD = 2
"""Steps that every worker is ahead of the training."""


@dataclass(frozen=True)
class PlannedBatch:
    """One of a step's batches."""

    plan: StepPlan
    batch: int


Plans = Callable[[], StepPlan | None]
"""Gives the next step, or None after the last one."""


@contextmanager
def open_feed(
    sources: Sequence[Source], plans: Plans, batches: Sequence[int], device: torch.device, workers: int
) -> Iterator[Iterator[tuple[StepPlan, list[GroundTruth]]]]:
    """Give every step with those of its batches that this process trains on."""
    if workers == 0:
        yield _in_between(sources, plans, batches, device)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(tuple(sources),)) as pool:
        try:
            yield _ahead(pool, plans, batches, device, workers * AHEAD)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_between(
    sources: Sequence[Source], plans: Plans, batches: Sequence[int], device: torch.device
) -> Iterator[tuple[StepPlan, list[GroundTruth]]]:
    while (plan := plans()) is not None:
        yield plan, [sources[plan.source].read(plan.samples(batch), plan.request, device) for batch in batches]


def _ahead(
    pool: ProcessPoolExecutor, plans: Plans, batches: Sequence[int], device: torch.device, ahead: int
) -> Iterator[tuple[StepPlan, list[GroundTruth]]]:
    queue: deque[tuple[StepPlan, list[Future[dict[str, Any]]]]] = deque()
    while True:
        while len(queue) < ahead and (plan := plans()) is not None:
            queue.append((plan, [pool.submit(_render, plan, batch) for batch in batches]))
        if not queue:
            return
        plan, futures = queue.popleft()
        yield plan, [_unpacked(future.result(), device) for future in futures]


_sources: tuple[Source, ...] = ()
"""Of a worker process; set once when it starts."""


def _start_worker(sources: tuple[Source, ...]) -> None:
    """Prepare a worker: one thread, deaf to the terminal's Ctrl-C, gone when its parent is gone."""
    global _sources
    _sources = sources
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _render(plan: StepPlan, batch: int) -> dict[str, Any]:
    return _packed(_sources[plan.source].read(plan.samples(batch), plan.request, torch.device("cpu")))


def _packed(truth: GroundTruth) -> dict[str, Any]:
    """Turn truth into arrays, which travel through a pipe instead of scarce shared memory."""
    return {
        "images": truth.images.numpy(),
        "valid": truth.valid.numpy(),
        "depth": truth.depth.numpy(),
        "dynamic": None if truth.dynamic is None else truth.dynamic.numpy(),
        "times": truth.times.numpy(),
        "world_to_camera": truth.cameras.world_to_camera.numpy(),
        "intrinsics": truth.cameras.intrinsics.numpy(),
    }


def _unpacked(arrays: dict[str, NDArray[np.generic] | None], device: torch.device) -> GroundTruth:
    tensors = {
        name: torch.from_numpy(array).to(device, non_blocking=True)
        for name, array in arrays.items()
        if array is not None
    }
    height, width = tensors["images"].shape[-2:]
    return GroundTruth(
        images=tensors["images"],
        valid=tensors["valid"],
        depth=tensors["depth"],
        dynamic=tensors.get("dynamic"),
        cameras=Cameras(
            world_to_camera=tensors["world_to_camera"],
            intrinsics=tensors["intrinsics"],
            image_size=(height, width),
        ),
        times=tensors["times"],
    )
