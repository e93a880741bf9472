"""Fixtures that run the command line in the process of the tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from page4d_cli.app import run

NETWORK = ("--untrained", "--preset", "mv-tiny", "--size", "28", "--no-preview")
"""Options of the smallest run."""


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_stated_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove COLUMNS, which pytest-xdist sets and tables follow."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process and return its exit code and output."""

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        return Ended(run([str(argument) for argument in arguments]), *capsys.readouterr())

    return call


@pytest.fixture
def reconstruct(cli: Cli) -> Cli:
    """`page4d reconstruct` with the smallest network."""

    def call(scene: Path, out: Path, *arguments: object) -> Ended:
        return cli("reconstruct", scene, "--out", out, *NETWORK, *arguments)

    return call
