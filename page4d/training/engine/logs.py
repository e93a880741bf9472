"""What a run writes about itself while it runs: `metrics.jsonl` always, TensorBoard's files if asked for."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from page4d.errors import CapabilityError, InputError
from page4d.io.atomic import output_error, write_bytes_atomic


class Log(Protocol):
    """Takes values of a kind (step, evaluation, baselines); each names its `step`."""

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take a record."""
        ...

    def close(self) -> None:
        """Leave everything on disk."""
        ...


class MetricsFile:
    """Lines are appended and flushed one by one; a run that goes back drops the lines after its position."""

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


class TensorBoardLog:
    """The same numbers as scalars, named by their place, such as `losses/depth`.

    Raises:
        CapabilityError: if TensorBoard is not installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise CapabilityError("TensorBoard is not installed", "pip install 'page4d[train]'") from error
        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Add every number."""
        for name, value in _numbers(values):
            if name != "step":
                self._writer.add_scalar(f"{kind}/{name}", value, values["step"])

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics file; a last line that a kill cut short is left out.

    Raises:
        InputError: if the file is missing or another line is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {error}", "move it away; it is only a record") from error


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(_finite(values), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value
