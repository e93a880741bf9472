"""Execution on one thread."""

import os
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch

from page4d.networks.layers.execution import on_threads
from page4d.stereo import refine


@pytest.fixture
def threads() -> Iterator[int]:
    """Use more than one thread, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_one_thread_ends_with_the_body_and_with_its_errors(threads: int) -> None:
    with on_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
    with pytest.raises(ZeroDivisionError), on_threads(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads


def test_refinement_computes_on_one_thread(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(refine, "view_predictions", lambda *_: seen.append(torch.get_num_threads()))
    refine.run_refinement(Mock(), 8, 2)
    assert seen == [1]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_of_the_command_line_wait_passively_by_default_and_it_ends_without_garbage_collection(
    given: str | None,
) -> None:
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = (
        "import atexit, gc, os, page4d_cli.app as app, page4d_cli.__main__ as main\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "app.main = lambda: print(os.environ['OMP_WAIT_POLICY'])\n"
        "main.start()"
    )
    environment = own if given is None else own | {"OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [given or "PASSIVE", "True"]
