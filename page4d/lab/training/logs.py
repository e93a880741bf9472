"""Progress reports of a run, and its log `metrics.jsonl`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from pydantic_core import to_json

from page4d.errors import InputError, shortened
from page4d.io.atomic import output_error, write_bytes_atomic
from page4d.io.documents import parse_json

_CURVE_POINTS = 24


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Means over the steps since the previous report. `eta_s` is None while it cannot be estimated."""

    step: int
    samples: int
    seconds: float
    samples_per_second: float
    eta_s: float | None
    rate: float
    stage: int
    gradient_norm: float
    skipped: int
    losses: Mapping[str, float]


Evaluation = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Metrics by scene family, row of the table, and metric."""


_ENTRIES: dict[str, dict[str, type]] = {
    "step": {"step": int, "samples": int, "losses": dict},
    "evaluation": {"step": int, "samples": int, "figures": dict},
    "baselines": {"step": int, "figures": dict},
}
"""Entries of the lines of a metrics file, by kind, that charts and weights are made of."""


class TrainObserver(Protocol):
    """Receives progress reports."""

    def step(self, report: StepReport) -> None:
        """Receive the report on the latest steps."""

    def evaluation(self, step: int, metrics: Evaluation) -> None:
        """Receive metrics on held-out scenes after a step."""

    def message(self, text: str) -> None:
        """Receive a line of text."""


class SilentTrainingObserver:
    """Discards all reports."""

    def step(self, report: StepReport) -> None:
        """Discard a report."""

    def evaluation(self, step: int, metrics: Evaluation) -> None:
        """Discard metrics."""

    def message(self, text: str) -> None:
        """Discard a message."""


class MetricsFile:
    """Appends and flushes one line per record; lines after the step at which a run resumes are dropped.

    A record has a kind (step, evaluation, baselines) and its `step`.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in read_metrics(path) if line["step"] <= step] if path.is_file() else []
        write_bytes_atomic(path, "".join(_line(line) for line in kept).encode())
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append a line; numbers that are not finite become null.

        Raises:
            OutputError: if it cannot be written.
        """
        try:
            self._file.write(_line({"kind": kind, **values}))
            self._file.flush()
        except OSError as error:
            raise output_error(error, self._path) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics file without an incomplete last line.

    Raises:
        InputError: if the file is missing or a complete line is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [_parse_line(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {error}", "move it away; training does not need it") from error


def _parse_line(text: str) -> dict[str, Any]:
    """Return a record with the entries of its kind.

    Raises:
        ValueError: if the text is none.
    """
    line = parse_json(text)
    kind = line.get("kind") if isinstance(line, dict) else None
    entries = _ENTRIES.get(kind) if isinstance(kind, str) else None
    if entries is None or not all(isinstance(line.get(name), form) for name, form in entries.items()):
        raise ValueError(f"'{shortened(text.strip())}' is not a line that a training writes")
    return dict(line)


def summarize_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return about 24 points of the loss, and all metrics on held-out scenes."""
    steps = [line for line in metrics if line["kind"] == "step"]
    chosen = steps[:: max(1, len(steps) // _CURVE_POINTS)]
    return {
        "loss": [[line["samples"], line["losses"]["total"]] for line in chosen],
        "held_out": [[line["samples"], line["figures"]] for line in metrics if line["kind"] == "evaluation"],
        "baselines": [line["figures"] for line in metrics if line["kind"] == "baselines"],
    }


def _line(values: Mapping[str, Any]) -> str:
    return to_json(values, inf_nan_mode="null").decode() + "\n"
