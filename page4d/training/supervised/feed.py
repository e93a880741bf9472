"""Batches of training samples in the order of their steps, rendered on demand or by worker processes."""

import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from page4d.errors import CapabilityError, Page4DError
from page4d.ground_truth import GroundTruth
from page4d.training.supervised.curriculum import CurriculumStep
from page4d.training.supervised.sources import Source

PREFETCHED_STEPS = 2
"""Steps that each worker renders ahead of the training."""

_CPU = torch.device("cpu")
_Rendered = tuple[CurriculumStep, bytes] | Page4DError


def feed_batches(
    sources: Sequence[Source],
    steps: Iterator[CurriculumStep],
    batches: Sequence[int],
    device: torch.device,
    workers: int,
) -> Generator[tuple[CurriculumStep, list[GroundTruth]]]:
    """Yield every step with those of its batches that this process trains on; closing it ends the workers.

    Raises:
        InputError: if a source cannot be read.
    """
    if workers == 0:
        for step in steps:
            yield step, _read(sources, step, batches, device)
        return
    loader = DataLoader(
        _RenderedSteps(sources, batches),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=PREFETCHED_STEPS,
        collate_fn=_unchanged,
        worker_init_fn=_start_worker,
        multiprocessing_context="spawn",
        generator=torch.Generator(),
    )
    for rendered in _received(loader):
        if isinstance(rendered, Page4DError):
            raise rendered
        step, content = rendered
        yield step, torch.load(io.BytesIO(content), map_location=device, weights_only=False)


def _received(loader: "DataLoader[_Rendered]") -> Iterator[_Rendered]:
    """Yield what the workers send.

    Raises:
        CapabilityError: if one of them was ended from outside.
    """
    received = iter(loader)
    while True:
        try:
            rendered = next(received)
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise CapabilityError(
                "a process that renders batches was ended, perhaps because memory ran out",
                "use fewer --workers, then continue with --resume",
            ) from error
        yield rendered


def _read(
    sources: Sequence[Source], step: CurriculumStep, batches: Sequence[int], device: torch.device
) -> list[GroundTruth]:
    return [sources[step.source].read(step.samples(batch), step.request, device) for batch in batches]


class _RenderedSteps(Dataset[_Rendered]):
    """Steps as bytes, which the DataLoader sends through a pipe; it would send tensors through scarce shared memory.

    Errors are returned: the DataLoader would lose their hints.
    """

    def __init__(self, sources: Sequence[Source], batches: Sequence[int]) -> None:
        self._sources, self._batches = sources, batches

    def __getitem__(self, step: CurriculumStep) -> _Rendered:
        content = io.BytesIO()
        try:
            torch.save(_read(self._sources, step, self._batches, _CPU), content)
        except Page4DError as error:
            return error
        return step, content.getvalue()


def _unchanged(rendered: Any) -> Any:
    return rendered


def _start_worker(_: int) -> None:
    """Ignore Ctrl-C, and exit with the parent process: a full pipe would keep a worker of the DataLoader alive."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
