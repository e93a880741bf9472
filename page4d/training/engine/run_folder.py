"""Where a run keeps its files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.path / "config.json"

    @property
    def checkpoint(self) -> Path:
        """The run as it stands."""
        return self.path / "checkpoint.pt"

    @property
    def stable(self) -> Path:
        """The run before its rate began to fall: from here it goes on if it is given more time."""
        return self.path / "stable.pt"

    @property
    def metrics(self) -> Path:
        """One line a report."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's files."""
        return self.path / "tensorboard"

    @property
    def weights(self) -> Path:
        """The averaged weights."""
        return self.path / "weights.safetensors"

    @property
    def curve(self) -> Path:
        """The picture of the run."""
        return self.path / "curve.png"
